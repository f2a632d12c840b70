"""Transactions a second, and what their commit takes, beside the raw round trip to the same Redis.

No Spark and no log: one process, whose threads share a store, as those of a driver do. The figures
are those of a server that syncs every write before its reply.
"""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from benchmarks.embedded import TIMEOUT_MS, StoreBench, row
from benchmarks.measure import Result, Series
from pulsar_txn_spark.config import StoreConfig
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.store.metadata_pb2 import Outcome, Winner
from pulsar_txn_spark.store.records import EndedBy, TxnId, TxnState
from pulsar_txn_spark.store.redis import connection
from pulsar_txn_spark.txn.coordinator import TransactionCoordinator, as_record
from pulsar_txn_spark.txn.participants import write_intent
from pulsar_txn_spark.txn.sweeper import SegmentEnds, Sweeper
from pulsar_txn_spark.txn.transaction_buffer import MetadataTransactionBuffer, writer_name

_THREADS = (1, 8)
_COUNT = 300  # operations of each thread in a run
_FINISHED = 2_000  # headers of a sweep
_BYTES = b"x" * 300  # about what a transaction's begin writes

Operation = Callable[[int], float]
"""Does it once, for a thread's number; returns how long its commit took, or all of it."""


class _Run(NamedTuple):
    """What one run of a side measured: times in milliseconds."""

    per_second: float
    p50: float
    p99: float


def coordinator(bench: StoreBench) -> list[Result]:
    """Measure transactions a second and commit latencies."""
    results = []
    for threads in _THREADS:
        results += _transactions(bench, threads)
    return [*results, *_sweeps(bench)]


def _transactions(bench: StoreBench, threads: int) -> list[Result]:
    sides = _sides(bench)
    runs: dict[str, list[_Run]] = {side: [] for side in sides}
    for repetition in range(bench.repetitions + 1):
        for side in list(sides) if repetition % 2 == 0 else list(sides)[::-1]:
            measured = _run(sides[side], threads)
            bench.report(f"{side}, {threads} threads", measured.per_second)
            runs[side].append(measured)
    case = f"{threads} thread" + ("s" if threads > 1 else "")
    bare = "bare HSET, synced"
    results = []
    for field, what, unit in (
        ("per_second", "transactions", "per s"),
        ("p50", "commit, p50", "ms"),
        ("p99", "commit, p99", "ms"),
    ):
        series = {
            side: Series(
                unit, getattr(own[0], field), [getattr(figures, field) for figures in own[1:]]
            )
            for side, own in runs.items()
        }
        results += [row(f"{what}, {case}", s, own, bare, series) for s, own in series.items()]
    return results


def _run(operation: Operation, threads: int) -> _Run:
    def one(thread: int) -> list[float]:
        return [operation(thread) for _ in range(_COUNT)]

    with ThreadPoolExecutor(threads) as pool:
        began = time.perf_counter()
        times = [seconds for own in pool.map(one, range(threads)) for seconds in own]
        passed = time.perf_counter() - began
    return _Run(
        len(times) / passed,
        statistics.median(times) * 1000,
        statistics.quantiles(times, n=100)[98] * 1000,
    )


def _sides(bench: StoreBench) -> dict[str, Operation]:
    store = bench.store()
    transactions = TransactionCoordinator(store)
    buffer = MetadataTransactionBuffer(transactions)
    client = connection.connect(StoreConfig(path=bench.path))

    def timed(step: Callable[[], object]) -> float:
        began = time.perf_counter()
        step()
        return time.perf_counter() - began

    def with_writer(thread: int) -> float:
        nonce, segment = secrets.token_hex(8), f"bench/{thread}"
        opened: list[TxnId] = []
        writer = buffer.open(nonce, TIMEOUT_MS, "", _name, [segment], opened.append)
        [txn] = opened
        last = as_record(Position(1, txn.counter))
        outcome = Outcome(winners=[Winner(segment=segment, writer=writer, last=last)])
        intents = {write_intent(segment, writer)}
        return timed(lambda: transactions.commit(txn, nonce, outcome, intents=intents))

    def empty(_: int) -> float:
        nonce = secrets.token_hex(8)
        txn = transactions.new_txn(nonce, timeout_ms=TIMEOUT_MS)
        return timed(lambda: transactions.commit(txn, nonce, Outcome(), intents=()))

    def decided(_: int) -> float:
        nonce = secrets.token_hex(8)
        txn = transactions.new_txn(nonce, timeout_ms=TIMEOUT_MS)
        return timed(
            lambda: store.transactions.end(txn, TxnState.COMMITTED, b"", EndedBy.OWNER, nonce)
        )

    return {
        "with a writer": with_writer,
        "no participant": empty,
        "compare-and-set alone": decided,
        "bare HSET, synced": lambda thread: timed(
            lambda: client.hset("bench:raw", str(thread), _BYTES)
        ),
        "bare PING": lambda _: timed(client.ping),
    }


def _name(txn: TxnId | None) -> str:
    return writer_name(txn, 0, "abcdef012345")


def _sweeps(bench: StoreBench) -> list[Result]:
    """Measure how many headers a second one sweep collects."""
    series = Series("headers/s")
    for repetition in range(bench.repetitions + 1):
        figure = _sweep(bench)
        bench.report("sweep", figure)
        if repetition == 0:
            series.first = figure
        else:
            series.runs.append(figure)
    return [row("sweep", "one process, a writer in each", series, None, {})]


def _sweep(bench: StoreBench) -> float:
    operation = _sides(bench)["with a writer"]
    transactions = TransactionCoordinator(bench.store())
    sweeper = Sweeper(
        transactions,
        lambda _: SegmentEnds(Position(1, 1 << 40), EARLIEST),
        retention_ms=0,
        busy_s=3_600,
    )
    sweeper.sweep()  # what was left before
    with ThreadPoolExecutor(_THREADS[-1]) as pool:
        list(pool.map(operation, (i % _THREADS[-1] for i in range(_FINISHED))))
    began = time.perf_counter()
    removed = sweeper.sweep().headers_removed
    passed = time.perf_counter() - began
    if removed != _FINISHED:
        raise RuntimeError(f"expected {_FINISHED} headers to be collected, found {removed}")
    return removed / passed
