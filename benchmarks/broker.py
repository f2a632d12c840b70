"""What the plug-in costs a broker, how soon plain consumers see a commit, and their transactions.

Two standalone brokers, without the plug-in and with it, and one Java client for each that knows
nothing of this package (`PlainClient.java`). The processor time is that of the broker's process.
The broker without the plug-in has two sides, too: what they differ by is what the machine adds. So
both brokers have done as much when they are compared, and are equally warm.
"""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import urllib3

from benchmarks.embedded import redis_on_port
from benchmarks.measure import Result, Series, SideError, compare, in_pairs, interleave
from benchmarks.micro_batch import MILLISECONDS
from benchmarks.own_process import OwnProcess
from benchmarks.throughput import NATIVE, ROWS_PER_SECOND, Drop, Report
from benchmarks.visible import by_percentile
from pulsar_txn_spark import Admin, client
from pulsar_txn_spark.backends.pulsar.wire.client import CLIENTS
from pulsar_txn_spark.backends.pulsar.wire.coordinator import Ended, WireCoordinators
from pulsar_txn_spark.backends.pulsar.wire.producer import WireSegmentWriter, WireWriterSettings
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.testing.broker_jar import COORDINATOR
from pulsar_txn_spark.testing.pulsar_server import (
    PulsarServer,
    find_java,
    resolve_classpath,
)

WITHOUT = "without the plug-in"
AGAIN = "without it, once more"
UNGATED = "with it, ordinary topic"
GATED = "with it, gated segment"
CPU = "µs of broker CPU/row"
_PAIRS = 3  # times the repetitions: the aim is less than single runs differ
_WARM_UP = 4  # rounds: brokers that have not done much are several times slower
_COMMITS = 500
_PAUSE_S = 0.004  # between commits, so that the consumer waits again
_COLD = 50  # of them that do not count
_TIMEOUT_MS = 60_000
_CHECK_DELAY = "managedLedgerNewEntriesCheckDelayInMillis"
_CHECK_DELAYS_MS = (10, 1)
"""How often brokers look whether what a consumer waits for may be read now; first the default."""
_PARALLEL = (1, 8, 32)  # transactions under way at once
_TRANSACTIONS = 1_000  # of a run
_ROW = b"x" * 100
_CLOCK_NS = 1_000_000_000
_SYNCED = {"journalSyncData": "true"}
"""As the metadata store does, too."""
_TICKS = os.sysconf("SC_CLK_TCK")
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class _Broker:
    """A broker, and a client of it."""

    server: PulsarServer
    plain: OwnProcess
    store_url: str | None

    @property
    def options(self) -> dict[str, str]:
        urls = {"service.url": self.server.service_url, "admin.url": self.server.admin_url}
        return urls | ({} if self.store_url is None else {"store.url": self.store_url})

    @contextmanager
    def topic(self) -> Iterator[str]:
        """Give an ordinary topic."""
        path = f"persistent/public/default/bench-plain-{next(_numbers)}"
        url = f"{self.server.admin_url}/admin/v2/{path}"
        with urllib3.PoolManager() as pool:
            pool.request("PUT", url)
            yield path.replace("/", "://", 1)
            pool.request("DELETE", f"{url}?force=true")

    @contextmanager
    def gated(self) -> Iterator[tuple[str, str]]:
        """Give a topic that the broker gates, and the topic of its only segment."""
        admin, name = Admin(self.options), f"bench-gated-{next(_numbers)}"
        yield name, admin.create_topic(name, segments=1, gate="broker").active[0].ref.log_name
        admin.delete_topic(name)

    def cpu_s(self) -> float:
        """Return what the broker's process has used of the processors so far."""
        folder = os.fsencode(self.server.log_path.parent)
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes().split(b"\0")
                if not command[0].endswith(b"java") or folder not in command[1]:
                    continue
                fields = (process / "stat").read_text().rpartition(")")[2].split()
            except (OSError, IndexError):  # it has ended meanwhile, or is none of ours
                continue
            return (int(fields[11]) + int(fields[12])) / _TICKS
        raise SideError("the broker's process is not in /proc: this is measured on Linux only")


@contextmanager
def _started(store_url: str | None = None, **settings: str) -> Iterator[_Broker]:
    """Start a broker, with the plug-in if there is a store for it."""
    program = str(Path(__file__).with_name("PlainClient.java"))
    with (
        PulsarServer(store_url=store_url, settings=settings) as server,
        OwnProcess([find_java(), "-cp", resolve_classpath(), program, server.service_url]) as plain,
    ):
        yield _Broker(server, plain, store_url)


def broker(
    folder: Path, rows: int, repetitions: int, report: Report, _: Drop
) -> Iterator[list[Result]]:
    """Measure what the plug-in costs, and the time from a commit to a plain consumer.

    Raises
    ------
    SideError
        If that cannot be measured here.
    """
    if shutil.which("mvn") is None:
        raise SideError("there is no 'mvn' on the PATH to fetch brokers with")
    with redis_on_port(folder) as store_url:
        with _started() as without, _started(store_url) as plugged:
            yield from _price(without, plugged, rows, repetitions, report)
        for delay_ms in _CHECK_DELAYS_MS:
            with _started(store_url, **{_CHECK_DELAY: str(delay_ms)}) as plugged:
                yield from _visibility(plugged, delay_ms, report)
        coordinator = {"transactionMetadataStoreProviderClassName": COORDINATOR}
        with (
            _started(**_SYNCED) as own,
            redis_on_port(folder) as client_store_url,
            _started(store_url, **_SYNCED, **coordinator) as ours,
        ):
            yield from _transactions(own, client_store_url, ours, repetitions, report)


# -- price ---------------------------------------------------------------------------------------


def _price(
    without: _Broker, plugged: _Broker, rows: int, repetitions: int, report: Report
) -> Iterator[list[Result]]:
    """Let plain clients publish and consume, with and without the plug-in in turn."""

    def gated() -> dict[tuple[str, str], float]:
        with plugged.gated() as (_, log_name):
            return _passed(plugged, log_name, rows)

    sides: dict[str, Callable[[], dict[tuple[str, str], float]]] = {
        WITHOUT: lambda: _through_topic(without, rows),
        AGAIN: lambda: _through_topic(without, rows),
        UNGATED: lambda: _through_topic(plugged, rows),
        GATED: gated,
    }
    cases: dict[tuple[str, str], dict[str, Series]] = {}
    for repetition in range(_WARM_UP + _PAIRS * repetitions):
        for side in list(sides) if repetition % 2 == 0 else list(sides)[::-1]:
            for (case, unit), figure in sides[side]().items():
                report(f"{case}, {unit}", side, figure)
                series = cases.setdefault((case, unit), {}).setdefault(side, Series(unit))
                if series.first is None:
                    series.first = figure
                if repetition >= _WARM_UP:
                    series.runs.append(figure)
    for (case, unit), measured in cases.items():
        name = case if unit == ROWS_PER_SECOND else f"{case}_broker_cpu"
        yield in_pairs(name, measured, dict.fromkeys((AGAIN, UNGATED, GATED), (WITHOUT,)))


def _through_topic(broker: _Broker, rows: int) -> dict[tuple[str, str], float]:
    with broker.topic() as topic:
        return _passed(broker, topic, rows)


def _passed(broker: _Broker, topic: str, rows: int) -> dict[tuple[str, str], float]:
    """Publish rows and consume them; return rates and the broker's processor time."""
    figures = {}
    for case, do in (("plain_publish", "publish"), ("plain_consume", "consume")):
        before = broker.cpu_s()
        seconds = broker.plain.ask(do, topic=topic, rows=rows)["seconds"]
        figures[case, ROWS_PER_SECOND] = rows / seconds
        figures[case, CPU] = (broker.cpu_s() - before) * 1e6 / rows
    return figures


# -- visibility ----------------------------------------------------------------------------------


def _visibility(plugged: _Broker, delay_ms: int, report: Report) -> Iterator[list[Result]]:
    """Measure from the call of a commit to a plain consumer that was waiting for the row."""
    case = f"commit_to_plain_consumer_checked_each_{delay_ms}_ms"
    for who, commits in (("gated segment", _ours), (NATIVE, _native)):
        results = []
        with commits(plugged) as (topic, commit):
            times = tuple(_arrivals(plugged.plain, topic, commit))
        for what, figure in (*by_percentile(times).items(), ("highest", max(times))):
            report(case, f"{who}, {what}", figure)
            results.append(Result(case, f"{who}, {what}", MILLISECONDS, figure, times))
        yield results


def _arrivals(plain: OwnProcess, topic: str, commit: Callable[[], int]) -> Iterator[float]:
    """Commit one row after another; give the time until it arrives, in milliseconds."""
    before = time.monotonic_ns()
    there = plain.ask("listen", topic=topic)["nanoseconds"]
    if not before - _CLOCK_NS < there < time.monotonic_ns() + _CLOCK_NS:
        raise SideError("Java and Python have no clock in common here")
    for number in range(_COLD + _COMMITS):
        began = commit()
        passed_ms = (plain.ask("arrival")["nanoseconds"] - began) / 1e6
        if number >= _COLD:
            yield passed_ms
        time.sleep(_PAUSE_S)
    plain.ask("stop")


_Commits = Iterator[tuple[str, Callable[[], int]]]


@contextmanager
def _ours(plugged: _Broker) -> _Commits:
    """Give a gated topic, and what commits a row there that lies in the log already."""
    with (
        plugged.gated() as (topic, log_name),
        client.connect(plugged.options) as service,
        service.producer(topic) as producer,
    ):

        def commit() -> int:
            txn = service.new_txn()
            producer.send(b"row", txn=txn)
            txn.flush()
            began = time.monotonic_ns()
            txn.commit()
            return began

        yield log_name, commit


@contextmanager
def _native(plugged: _Broker) -> _Commits:
    """Give the same under Pulsar's own transactions."""
    config = PulsarConfig(plugged.server.service_url, plugged.server.admin_url)
    wire, rows = CLIENTS.acquire(config), pa.record_batch({"value": pa.array([b"row"])})
    coordinators = WireCoordinators(wire)
    with plugged.topic() as topic:

        def commit() -> int:
            txn = coordinators.begin("bench", _TIMEOUT_MS)
            coordinators.add_partitions(txn, [topic])
            writer = WireSegmentWriter(
                SegmentRef(topic, topic, topic),
                f"bench-{secrets.token_hex(6)}",
                wire,
                WireWriterSettings.of(config),
                before_report=lambda _last: None,
                bits=txn,
                native=True,
            )
            writer.append(rows)
            writer.flush()
            writer.close()
            began = time.monotonic_ns()
            if coordinators.end(txn, commit=True) is not Ended.AS_ASKED:
                raise SideError("a transaction of Pulsar's own was not committed")
            return began

        yield topic, commit
    CLIENTS.release(config)


# -- transactions of plain clients ---------------------------------------------------------------

_Commit = Callable[[int], tuple[float, list[float]]]
"""Makes transactions, so many at a time; returns seconds, and the milliseconds of each commit."""


def _transactions(
    own: _Broker, client_store_url: str, ours: _Broker, repetitions: int, report: Report
) -> Iterator[list[Result]]:
    """Let plain clients commit transactions, of Pulsar's coordinators and of this package's.

    The client of this package is a Python process with as many threads; its coordinator is a
    library, and the broker has no plug-in. It has a metadata store of its own: in the other
    broker's one, its sweeps would look for segments of another cluster.
    """
    pulsars, packages = "Pulsar's coordinator", "this package's coordinator"
    empty = {pulsars: partial(_by_java, own, ""), packages: partial(_by_java, ours, "")}
    with (
        own.topic() as ordinary,
        ours.topic() as other,
        ours.gated() as (_, gated),
        _by_python(own, client_store_url) as by_python,
    ):
        one_row: dict[str, _Commit] = {
            pulsars: partial(_by_java, own, ordinary),
            packages: partial(_by_java, ours, other),
            f"{packages}, gated segment": partial(_by_java, ours, gated),
            "this package's client": by_python,
        }
        for parallel in _PARALLEL:
            for kind, sides in (("empty", empty), ("one_row", one_row)):
                case = f"{kind}_transactions_{parallel}_at_a_time"
                yield from _committed(case, sides, parallel, repetitions, report)


def _committed(
    case: str, sides: Mapping[str, _Commit], parallel: int, repetitions: int, report: Report
) -> Iterator[list[Result]]:
    """Measure transactions a second, and the time from the call of a commit to its answer."""
    times: dict[str, list[float]] = {side: [] for side in sides}

    def run(side: str) -> float:
        seconds, commits_ms = sides[side](parallel)
        times[side] += commits_ms
        return _TRANSACTIONS / seconds

    runs = {side: partial(run, side) for side in sides}
    series = interleave(runs, repetitions, "per s", partial(report, case))
    first, *others = sides
    yield compare(case, series, dict.fromkeys(others, (first,)))
    for side, measured in times.items():
        warm = measured[_TRANSACTIONS:]
        yield [
            Result(f"{case}_commit", f"{side}, {what}", MILLISECONDS, figure, tuple(warm))
            for what, figure in by_percentile(warm).items()
        ]


def _by_java(broker: _Broker, topic: str, parallel: int) -> tuple[float, list[float]]:
    """Let Pulsar's Java client make transactions, with a row each where there is a topic."""
    question = {"topic": topic, "rows": _TRANSACTIONS, "parallel": parallel}
    answer = broker.plain.ask("transactions", **question)
    return answer["seconds"], [nanoseconds / 1e6 for nanoseconds in answer["commits"]]


@contextmanager
def _by_python(broker: _Broker, store_url: str) -> Iterator[_Commit]:
    """Give what lets this package's client make transactions with a row each."""
    options = {**broker.options, "store.url": store_url}
    admin, name = Admin(options), f"bench-client-{next(_numbers)}"
    admin.create_topic(name, segments=1)
    with client.connect(options) as service, service.producer(name) as producer:

        def one(_: int) -> float:
            txn = service.new_txn()
            producer.send(_ROW, txn=txn)
            txn.flush()
            began = time.perf_counter()
            txn.commit()
            return (time.perf_counter() - began) * 1000

        def run(threads: int) -> tuple[float, list[float]]:
            with ThreadPoolExecutor(threads) as pool:
                began = time.perf_counter()
                commits_ms = list(pool.map(one, range(_TRANSACTIONS)))
                return time.perf_counter() - began, commits_ms

        yield run
    admin.delete_topic(name)
