"""Redis memory of a transaction: open, finished, collected, and of writers that lost.

Counted is ``MEMORY USAGE`` of every key, with its share of the shared ones (indexes, nonces, pins,
marks). Left out are streams of events and counts of metrics, which do not grow. What the server's
allocator and its tables take in addition shows in the rows of ``used_memory``.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from benchmarks.embedded import TIMEOUT_MS, StoreBench
from benchmarks.measure import Result
from pulsar_txn_spark.config import StoreConfig
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.store.metadata_pb2 import OpRecord, Outcome, Winner
from pulsar_txn_spark.store.records import EndedBy, TxnId
from pulsar_txn_spark.store.redis import connection
from pulsar_txn_spark.txn.coordinator import TransactionCoordinator, as_record
from pulsar_txn_spark.txn.participants import pointer_intent
from pulsar_txn_spark.txn.sweeper import SegmentEnds, Sweeper
from pulsar_txn_spark.txn.transaction_buffer import MetadataTransactionBuffer, writer_name

_COUNT = 600  # of each kind: more than a small hash of Redis holds in its compact form
_BOUNDED = (b":events", b":metrics", b":birth")
_SEGMENT = "public/default/events/aaaaaaaa/0000-7fff-"
_UNIT = "bytes each"


@dataclass(frozen=True)
class _Shape:
    """A transaction: so many tasks, each of which writes to so many segments."""

    name: str
    tasks: int
    segments: int

    @property
    def writers(self) -> int:
        return self.tasks * self.segments


_SHAPES = (_Shape("1 task, 1 segment", 1, 1), _Shape("4 tasks, 2 segments each", 4, 2))


def store_memory(bench: StoreBench) -> list[Result]:
    """Measure bytes for each transaction by its state, and for each writer that lost."""
    results = []
    for shape in _SHAPES:
        for side, value in _Measured(bench, shape).run().items():
            bench.report(f"{shape.name}: {side}", value)
            results.append(Result(f"memory, {shape.name}", side, _UNIT, value, (value,)))
    return results


class _Measured:
    def __init__(self, bench: StoreBench, shape: _Shape) -> None:
        self.shape = shape
        self.client: Any = connection.connect(StoreConfig(path=bench.path))
        self.client.flushall()
        self.transactions = TransactionCoordinator(bench.store())
        self.buffer = MetadataTransactionBuffer(self.transactions)
        self.at = 0

    def run(self) -> dict[str, float]:
        measured = {}
        self.end(self.open(), commit=True)  # tag records, scripts, first entries of the shared keys
        self.collect()
        keys, used = self.keys(), self.used()
        opened = [self.open() for _ in range(_COUNT)]
        measured["open"] = (self.keys() - keys) / _COUNT
        measured["open, by used_memory"] = (self.used() - used) / _COUNT
        for transaction in opened:
            self.end(transaction, commit=True)
        measured["finished, not collected"] = (self.keys() - keys) / _COUNT
        measured["finished, by used_memory"] = (self.used() - used) / _COUNT
        self.collect()
        measured["committed and collected"] = (self.keys() - keys) / _COUNT
        keys = self.keys()
        for _ in range(_COUNT):
            self.end(self.open(), commit=False)
        self.collect()
        writers = _COUNT * self.shape.writers
        measured["aborted and collected, for each writer and segment"] = (
            self.keys() - keys
        ) / writers
        return measured

    def open(self) -> tuple[TxnId, str, list[Winner]]:
        nonce = secrets.token_hex(8)
        txn = self.transactions.new_txn(
            nonce,
            timeout_ms=TIMEOUT_MS,
            owner="host.example/4711/123456789|01234567-89ab-cdef-0123-456789abcdef",
            sink="01234567-89ab-cdef-0123-456789abcdef",
            query="01234567-89ab-cdef-0123-456789abcdef",
            batch=str(1_000_000 + self.at),
            # What a micro-batch has: the pointer of its sink. It is taught by nobody here.
            intents=[pointer_intent("q" * 36, "s" * 36)],
        )
        segments = [f"{_SEGMENT}{number}" for number in range(self.shape.segments)]
        winners = []
        for task in range(self.shape.tasks):
            writer = writer_name(txn, 1_000_000 + task, secrets.token_hex(6))
            self.buffer.admit(txn, nonce, TIMEOUT_MS, writer, segments)
            ops = {}
            for segment in segments:
                self.at += 1
                at = as_record(Position(1, self.at))
                winners.append(Winner(segment=segment, writer=writer, last=at))
                record = OpRecord(
                    kind=OpRecord.WRITE,
                    segment=segment,
                    writer=writer,
                    first=at,
                    last=at,
                    messages=1_000,
                    bytes=100_000,
                )
                ops[f"{writer}/{segment}"] = record.SerializeToString()
            self.transactions.append_ops(txn, nonce, ops)
        return txn, nonce, winners

    def end(self, transaction: tuple[TxnId, str, list[Winner]], *, commit: bool) -> None:
        txn, nonce, winners = transaction
        if commit:
            self.transactions.commit(txn, nonce, Outcome(winners=winners, digest=b"d" * 32))
        else:
            self.transactions.abort(txn, EndedBy.OWNER, nonce=nonce, cause="its job failed")

    def collect(self) -> None:
        def ends(_: str) -> SegmentEnds:
            return SegmentEnds(Position(1, self.at), EARLIEST)

        # Nobody is about to write a pointer here, so no header has to wait for one.
        for tc in range(self.transactions.store.identity.coordinators):
            for key in self.client.scan_iter(f"{{tc{tc}}}:intents:*"):
                self.client.srem(key, pointer_intent("q" * 36, "s" * 36))
        Sweeper(self.transactions, ends, retention_ms=0, busy_s=3_600).sweep()
        left = self.client.keys("*:txn:*")
        if left:
            raise RuntimeError(f"{len(left)} headers were not collected")

    def keys(self) -> int:
        """Return what all keys take together."""
        pipe = self.client.pipeline(transaction=False)
        for key in self.client.scan_iter(count=10_000):
            if not key.endswith(_BOUNDED):
                pipe.memory_usage(key, samples=0)
        return sum(size or 0 for size in pipe.execute())

    def used(self) -> int:
        """Return what the server takes, but for the streams, which are bounded."""
        streams = sum(self.client.memory_usage(k, samples=0) for k in self.client.keys("*:events"))
        return int(self.client.info("memory")["used_memory"]) - int(streams)
