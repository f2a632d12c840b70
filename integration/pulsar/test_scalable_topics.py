"""Scalable topics of a broker of Pulsar 5, read through the wire transport and through Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from integration.support.pulsar5 import VERSION, Pulsar5
from integration.support.spark import (
    NO_PANDAS_3,
    Lab,
    failure,
    forget_last_commit,
    until,
    until_the_clock_moves,
)
from pulsar_txn_spark.backends.pulsar.log import PulsarSegmentLog
from pulsar_txn_spark.backends.pulsar.scalable_topic_log import ScalableTopicLog
from pulsar_txn_spark.backends.pulsar.wire import scalable
from pulsar_txn_spark.backends.pulsar.wire.reader import WireEntryFeed, WireReaderSettings
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.engine.native_sink import NativeBatch, NativeSink
from pulsar_txn_spark.errors import (
    DataLossError,
    OptionError,
    SegmentLogError,
    SegmentSealedError,
    TopicNotFoundError,
    TransactionDomainError,
)
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import SegmentState
from pulsar_txn_spark.testing.pulsar_server import Broker, PulsarServer
from pulsar_txn_spark.txn.batch import SinkRules
from pulsar_txn_spark.txn.native_history import CommittedBatch, Decision, decide
from tests.contract.segment_log import (
    Harness,
    SegmentLogContract,
    everything,  # noqa: F401 - for the script that is killed
)

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings(NO_PANDAS_3)]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with PulsarServer(version=VERSION, short_lived=True) as server:
        yield Broker(server.service_url, server.admin_url, "maven")


@pytest.fixture(scope="module")
def pulsar(broker: Broker) -> Broker:
    return broker


@pytest.fixture
def five(broker: Broker) -> Iterator[Pulsar5]:
    found = Pulsar5(broker)
    yield found
    found.close()


@pytest.fixture
def log(five: Pulsar5) -> Iterator[ScalableTopicLog]:
    opened = ScalableTopicLog(five.config, topology_s=0.0)
    yield opened
    opened.close()


@pytest.fixture
def lab(spark: SparkSession, embedded: dict[str, str], broker: Broker, tmp_path: Path) -> Lab:
    where = {"service.url": broker.service_url, "admin.url": broker.admin_url}
    return Lab(spark, embedded | where, tmp_path)


def values(
    log: ScalableTopicLog,
    ref: SegmentRef,
    start: Position = EARLIEST,
    end: Position | None = None,
) -> list[str]:
    """Read a range of a segment, all that can be read unless told otherwise."""
    batches = log.read(
        ref,
        start,
        log.last_confirmed(ref) if end is None else end,
        visible=lambda _writer, _position: True,
        columns=frozenset({"value"}),
        max_rows=1000,
    )
    return [value.decode() for batch in batches for value in batch.column("value").to_pylist()]


def test_rows_are_read_up_to_the_first_open_transaction(
    five: Pulsar5, log: ScalableTopicLog
) -> None:
    topic = five.topic()
    ref = log.topology(topic).segments[0].ref
    assert values(log, ref) == []
    five.produce(topic, "a1", "a2")
    assert values(log, ref) == ["a1", "a2"]
    txn = five.begin()
    five.produce(topic, "b1", txn=txn)
    five.produce(topic, "c1")
    assert values(log, ref) == ["a1", "a2"]
    five.end(txn, commit=True)
    until(lambda: values(log, ref) == ["a1", "a2", "b1", "c1"])
    aborted = five.begin()
    five.produce(topic, "x1", txn=aborted)
    five.end(aborted, commit=False)
    five.produce(topic, "d1")
    until(lambda: values(log, ref) == ["a1", "a2", "b1", "c1", "d1"])


def test_what_was_read_once_stays_readable_where_an_aborted_row_is_the_last(
    five: Pulsar5, log: ScalableTopicLog
) -> None:
    topic = five.topic()
    ref = log.topology(topic).segments[0].ref
    five.produce(topic, "a1")
    aborted = five.begin()
    five.produce(topic, "x1", txn=aborted)
    five.end(aborted, commit=False)
    end = log.last_confirmed(ref)
    assert values(log, ref, end=end) == ["a1"]
    assert log.last_confirmed(ref) == end


def test_a_sealed_segment_has_an_end_only_when_no_transaction_is_open_there(
    five: Pulsar5, log: ScalableTopicLog
) -> None:
    topic = five.topic()
    five.produce(topic, "a1")
    txn = five.begin()
    five.produce(topic, "b1", txn=txn)
    five.change(topic, "split", 0)
    parent, *children = log.topology(topic).segments
    assert parent.state is SegmentState.SEALED
    assert parent.sealed_at is None, "what is open there may still come to be read"
    assert {child.parents for child in children} == {(parent.ref.id,)}
    assert values(log, parent.ref) == ["a1"]
    five.end(txn, commit=True)
    until(lambda: log.topology(topic).segments[0].sealed_at is not None)
    parent = log.topology(topic).segments[0]
    assert values(log, parent.ref, end=parent.sealed_at) == ["a1", "b1"]


@pytest.mark.parametrize("visible", [0, 1])
def test_a_sealed_segment_ends_although_its_last_rows_were_aborted(
    five: Pulsar5, log: ScalableTopicLog, visible: int
) -> None:
    topic = five.topic()
    for number in range(visible):
        five.produce(topic, f"a{number}")
    txn = five.begin()
    five.produce(topic, "x1", txn=txn)
    five.change(topic, "split", 0)
    five.end(txn, commit=False)
    until(lambda: log.topology(topic).segments[0].sealed_at is not None)
    parent = log.topology(topic).segments[0]
    assert values(log, parent.ref, end=parent.sealed_at) == ["a0"][:visible]


def test_limits_cut_a_range_without_losing_a_row(five: Pulsar5, log: ScalableTopicLog) -> None:
    topic = five.topic()
    ref = log.topology(topic).segments[0].ref
    wanted = [f"a{number}" for number in range(6)]
    for value in wanted:
        five.produce(topic, value)
    end = log.last_confirmed(ref)
    found: list[str] = []
    start = EARLIEST
    while start < end:
        assert log.measure(ref, start, end).entries == len(wanted) - len(found)
        to = log.limit(ref, start, end, 2, None)
        own = values(log, ref, start, to)
        assert len(own) == 2
        found, start = found + own, to
    assert found == wanted
    cuts = [EARLIEST, *log.split(ref, EARLIEST, end, 3)]
    assert len(cuts) == 4
    parts = [values(log, ref, a, b) for a, b in pairwise(cuts)]
    assert sum(parts, []) == wanted  # noqa: RUF017 - three short lists


def test_a_time_leads_to_the_first_entry_that_was_published_then(
    five: Pulsar5, log: ScalableTopicLog
) -> None:
    topic = five.topic()
    ref = log.topology(topic).segments[0].ref
    assert log.position_at(ref, 0) is None
    times = []
    for value in ("a1", "a2", "a3"):
        times.append(time.time_ns() // 1_000_000)
        five.produce(topic, value)
        until_the_clock_moves()
    end = log.last_confirmed(ref)
    for number, at in enumerate(times):
        position = log.position_at(ref, at)
        assert position is not None
        assert values(log, ref, position, end) == ["a1", "a2", "a3"][number:]
    assert log.position_at(ref, times[-1] + 60_000) is None


def test_what_is_no_scalable_topic_is_refused_by_name(five: Pulsar5, log: ScalableTopicLog) -> None:
    with pytest.raises(TopicNotFoundError, match="has no scalable topic topic://public/default/no"):
        log.topology(TopicName.of_any_domain("scalable://public/default/no"))
    with pytest.raises(OptionError, match="wire"):
        ScalableTopicLog(
            type(five.config)(five.config.service_url, five.config.admin_url, transport="client")
        )


def test_the_first_ledger_is_known_although_its_first_rows_are_not_shown(
    five: Pulsar5, log: ScalableTopicLog
) -> None:
    topic = five.topic()
    ref = log.topology(topic).segments[0].ref
    assert log.trimmed_to(ref) == EARLIEST
    aborted = five.begin()
    five.produce(topic, "x1", txn=aborted)
    five.end(aborted, commit=False)
    txn = five.begin()
    five.produce(topic, "b1", txn=txn)
    first = log.trimmed_to(ref)
    assert (first.ledger > 0, first.entry) == (True, -1)
    five.end(txn, commit=True)
    until(lambda: values(log, ref) == ["b1"])
    assert log.trimmed_to(ref) == first == Position(log.last_confirmed(ref).ledger, -1)
    # A namespace that is unloaded begins a ledger in each of its topics.
    five.admin("PUT", "namespaces/public/default/unload")
    five.produce(topic, "c1")
    until(lambda: values(log, ref) == ["b1", "c1"])
    assert log.trimmed_to(ref) == first
    with pytest.raises(DataLossError, match="may be gone"):
        values(log, ref, Position(first.ledger - 1, 0), Position(first.ledger - 1, 7))


def test_aborted_rows_at_the_end_are_told_from_those_of_an_open_transaction(
    five: Pulsar5, log: ScalableTopicLog
) -> None:
    topic = five.topic()
    ref = log.topology(topic).segments[0].ref
    five.produce(topic, "a1")
    end, after_all = log.last_confirmed(ref), Position(1 << 62, 0)
    assert log.measure(ref, end, after_all).entries == 0
    txn = five.begin()
    five.produce(topic, "x1", txn=txn)
    five.produce(topic, "x2", txn=txn)
    assert log.measure(ref, end, after_all).entries == 2
    five.end(txn, commit=False)
    until(lambda: log.measure(ref, end, after_all).entries == 0)


def test_whoever_asks_once_waits_for_what_a_broker_has_still_to_show(
    five: Pulsar5, log: ScalableTopicLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scalable, "_CALM", 500)
    topic = five.topic()
    ref = log.topology(topic).segments[0].ref

    def end() -> Position:
        # A process that knows nothing yet, and for which no broker is quick enough.
        fresh = ScalableTopicLog(five.config, patience_s=0.001, topology_s=0.0)
        try:
            [snapshot] = fresh.snapshot_each([ref], patient=True)
            return snapshot.last_confirmed
        finally:
            fresh.close()

    assert end() == EARLIEST
    # Where none has ended, this release shows open rows after a reload.
    first = five.begin()
    five.produce(topic, "x0", txn=first)
    five.end(first, commit=False)
    rows = [f"a{number}" for number in range(20)]
    for row in rows:
        five.produce(topic, row)
    before = end()
    assert values(log, ref, end=before) == rows
    txn = five.begin()
    five.produce(topic, "b1", txn=txn)
    five.produce(topic, "c1")
    assert end() == before
    five.admin("PUT", "namespaces/public/default/unload")
    assert end() == before, "a broker that has just loaded the segment shows its rows late"
    five.end(txn, commit=True)
    until(lambda: values(log, ref, end=end()) == [*rows, "b1", "c1"])
    aborted = five.begin()
    five.produce(topic, "x1", txn=aborted)
    before = end()
    five.change(topic, "split", 0)
    assert end() == before
    five.end(aborted, commit=False)
    assert end() == before


def test_names_of_a_namespace_are_those_of_scalable_topics(
    five: Pulsar5, log: ScalableTopicLog
) -> None:
    topic = five.topic()
    assert topic in log.names("public", "default", lambda name: name == topic.name)
    assert log.names("public", "default", lambda _name: False) == []


# --- through Spark ------------------------------------------------------------------------------


def test_a_stream_follows_splits_and_merges_in_order_per_key(lab: Lab, five: Pulsar5) -> None:
    topic, out, keys = five.topic(2), lab.topic(), "abcdefgh"
    checkpoint = lab.checkpoint()

    def drain() -> None:
        source = lab.stream(str(topic)).selectExpr("value", "__key")
        lab.drain(lab.sink(source, out, checkpoint))

    def produce(step: int, commit: bool | None = None) -> None:
        rows = [f"{key}{step}" for key in keys]
        if commit is None:
            five.produce(topic, *rows)
            return
        txn = five.begin()
        five.produce(topic, *rows, txn=txn)
        five.end(txn, commit=commit)

    produce(0)
    drain()
    produce(1, commit=True)
    five.change(topic, "split", 0)
    produce(2, commit=False)
    produce(3)
    drain()
    five.change(topic, "merge", 1, 3)
    produce(4, commit=True)
    drain()
    produce(5)
    while len(lab.visible(out)) < len(keys) * 5:
        drain()
    for key in keys:
        own = [row["value"].decode() for row in lab.rows(out) if row["key"] == key.encode()]
        assert own == [f"{key}{step}" for step in (0, 1, 3, 4, 5)]


def test_topic_names_lead_to_scalable_topics_where_the_namespace_says_so(
    lab: Lab, five: Pulsar5
) -> None:
    topic = five.topic()
    five.produce(topic, "a1", "b2")
    override = {"domain__overrides": "public/default=scalable"}
    assert lab.values(topic.pulsar_name, **override) == ["a1", "b2"]
    assert "does not exist (in the metadata store" in failure(lambda: lab.values(topic.pulsar_name))
    pattern = f"scalable://public/default/{topic.name[:-1]}."
    assert lab.values(topicsPattern=pattern) == ["a1", "b2"]
    rows = lab.read(str(topic)).collect()
    assert {row["__topic"] for row in rows} == {str(topic)}


def test_a_subscription_of_ours_on_a_scalable_topic_is_refused(lab: Lab, five: Pulsar5) -> None:
    topic = five.topic()
    said = failure(lambda: lab.source(str(topic), subscription="s"))
    assert "none spans both" in said


# --- the sink -----------------------------------------------------------------------------------


class DiedError(Exception):
    """The driver is gone."""


class Sink:
    """A sink into a scalable topic, and what others see of it."""

    def __init__(self, five: Pulsar5, log: ScalableTopicLog) -> None:
        self.five, self.log = five, log
        self.topic = five.topic(2)
        self.id = f"sink-{self.topic.name}"

    @property
    def sink(self) -> NativeSink:
        """Return what a new driver or worker has."""
        return NativeSink(self.five.config, "public/default", self.id, scalable=True)

    def write(self, batch: NativeBatch, task: int, *values: str) -> None:
        """Be the only attempt at a task."""
        writer = self.sink.writer(batch, task, f"a{task}")
        try:
            rows = {"value": [v.encode() for v in values], "key": [v[:1].encode() for v in values]}
            writer.append(self.topic, pa.RecordBatch.from_pydict(rows))
            writer.finish()
        finally:
            writer.close()

    def drive(self, number: int, dies: str = "") -> Decision:
        """Be the driver of a micro-batch of two tasks, up to where it dies."""
        sink = self.sink

        def step(name: str) -> None:
            if name == dies:
                raise DiedError

        batch = sink.begin(60_000)
        step("begun")
        decision = decide(self.id, batch.last, "query", number, SinkRules())
        if decision is Decision.REPLAY:
            sink.abort(batch)
            return decision
        for task in range(2):
            self.write(batch, task, *(f"{key}{number}{task}" for key in "abcdefgh"))
            step(f"task {task}")
        sink.close_batch(batch, {0: "a0", 1: "a1"})
        step("closed")
        sink.commit(batch, CommittedBatch("query", number))
        step("committed")
        return decision

    def expected(self, batches: int) -> list[str]:
        return sorted(f"{k}{n}{t}" for k in "abcdefgh" for n in range(batches) for t in range(2))

    def visible(self) -> list[str]:
        """Return what a reader gets, of all segments."""
        segments = self.log.topology(self.topic).segments
        return sorted(value for each in segments for value in values(self.log, each.ref))

    def wait_for(self, batches: int) -> None:
        until(lambda: self.visible() == self.expected(batches))


def once_served(read: Callable[[], list[str]]) -> list[str]:
    """Return what is read first of topics that are being loaded again."""
    found: list[list[str]] = []

    def is_served() -> bool:
        with suppress(SegmentLogError):  # 5.0.0-M1 refuses a reader for more than one reason then
            found.append(read())
        return bool(found)

    until(is_served)
    return found[0]


def first_shown(five: Pulsar5, segments: list[SegmentRef]) -> list[str]:
    """Return the first entry that a reader of each segment gets, if one comes in 5 s.

    A segment that is being loaded shows its rows late: to be asked for a moment proves nothing.
    """
    settings = WireReaderSettings(poll_s=5.0, asks_last=False)
    feeds = [WireEntryFeed(segment, EARLIEST, five.client, settings) for segment in segments]
    try:
        found = [feed.next_entry(EARLIEST) for feed in feeds]
    finally:
        for feed in feeds:
            feed.close()
    return [str(entry.position) for entry in found if entry is not None]


@pytest.fixture
def sink(five: Pulsar5, log: ScalableTopicLog) -> Sink:
    return Sink(five, log)


def test_a_batch_is_committed_once_over_all_segments_and_its_replay_writes_nothing(
    sink: Sink,
) -> None:
    assert sink.drive(0) is Decision.WRITE
    sink.wait_for(1)
    assert sink.drive(0) is Decision.REPLAY
    assert sink.drive(1) is Decision.WRITE
    sink.wait_for(2)


@pytest.mark.parametrize("dies", ["begun", "task 0", "task 1", "closed", "committed"])
def test_a_driver_that_dies_leaves_its_batch_to_the_next_one(sink: Sink, dies: str) -> None:
    sink.drive(0)
    with pytest.raises(DiedError):
        sink.drive(1, dies=dies)
    again = sink.drive(1)
    assert again is (Decision.REPLAY if dies == "committed" else Decision.WRITE)
    sink.drive(2)
    sink.wait_for(3)


def test_a_split_between_two_tasks_neither_loses_nor_doubles_a_row(sink: Sink) -> None:
    driver = sink.sink
    batch = driver.begin(60_000)
    sink.write(batch, 0, *(f"{key}00" for key in "abcdefgh"))
    sink.five.change(sink.topic, "split", 0)
    until(lambda: len(sink.log.topology(sink.topic).active) == 3)
    sink.write(batch, 1, *(f"{key}01" for key in "abcdefgh"))
    assert sink.visible() == []
    driver.close_batch(batch, {0: "a0", 1: "a1"})
    driver.commit(batch, CommittedBatch("query", 0))
    sink.wait_for(1)


def test_a_split_under_a_task_fails_it_and_a_restart_writes_the_batch_to_the_children(
    sink: Sink,
) -> None:
    sink.drive(0)
    driver = sink.sink
    batch = driver.begin(60_000)
    writer = driver.writer(batch, 0, "a0")
    rows = [f"{key}10" for key in "abcdefgh"]
    table = {"value": [v.encode() for v in rows], "key": [v[:1].encode() for v in rows]}
    writer.append(sink.topic, pa.RecordBatch.from_pydict(table))
    writer.finish()
    sink.five.change(sink.topic, "split", 0)
    writer.append(sink.topic, pa.RecordBatch.from_pydict(table))
    with pytest.raises(SegmentSealedError, match="was sealed"):
        writer.finish()
    writer.close()
    driver.abort(batch)
    sink.drive(1)
    sink.wait_for(2)


def test_rows_of_an_open_transaction_stay_hidden_when_the_broker_loads_the_segment_again(
    sink: Sink,
) -> None:
    driver = sink.sink
    batch = driver.begin(60_000)
    sink.write(batch, 0, *(f"{key}00" for key in "abcdefgh"))
    segments = [each.ref for each in sink.log.topology(sink.topic).segments]
    sink.five.admin("PUT", "namespaces/public/default/unload")
    assert once_served(lambda: first_shown(sink.five, segments)) == []
    driver.abort(batch)
    sink.drive(0)
    sink.wait_for(1)


def test_a_segment_in_which_no_transaction_has_ended_shows_open_rows_after_a_reload(
    five: Pulsar5, log: ScalableTopicLog
) -> None:
    """The defect of 5.0.0-M1 for which the sink aborts a transaction first."""
    topic = five.topic()
    txn = five.begin()
    five.produce(topic, "open", txn=txn)
    ref = log.topology(topic).segments[0].ref
    assert values(log, ref) == []
    five.admin("PUT", "namespaces/public/default/unload")
    assert once_served(lambda: values(log, ref)) == ["open"]
    five.end(txn, commit=False)


def test_topics_of_both_kinds_are_not_written_in_one_transaction(sink: Sink) -> None:
    batch = sink.sink.begin(60_000)
    writer = sink.sink.writer(batch, 0, "a0")
    ordinary = TopicName.of_any_domain("persistent://public/default/other")
    writer.append(ordinary, pa.RecordBatch.from_pydict({"value": [b"x"]}))
    with pytest.raises(TransactionDomainError, match="no transaction of Pulsar's spans both"):
        writer.finish()
    sink.sink.abort(batch)


def test_a_stream_of_spark_writes_a_scalable_topic_and_replays_nothing(
    lab: Lab, five: Pulsar5, log: ScalableTopicLog
) -> None:
    source, topic = lab.topic(), five.topic(2)

    def drain() -> None:
        lab.drain(lab.sink(lab.source(source), str(topic), lab.checkpoint(), transactions="native"))

    def visible() -> list[str]:
        segments = log.topology(topic).segments
        return sorted(value for each in segments for value in values(log, each.ref))

    lab.produce(source, "a", "b", "c")
    drain()
    until(lambda: visible() == ["a", "b", "c"])
    forget_last_commit(lab.checkpoint())
    five.change(topic, "split", 0)
    drain()
    lab.produce(source, "d", "e")
    drain()
    until(lambda: visible() == ["a", "b", "c", "d", "e"])


# --- our own segments there ---------------------------------------------------------------------


@pytest.fixture
def transport() -> str:
    return "wire"


@pytest.fixture
def harness(pulsar: Broker, transport: str) -> Iterator[Harness]:
    config = PulsarConfig(pulsar.service_url, pulsar.admin_url, transport=transport)
    harness = Harness(
        log=PulsarSegmentLog(config),
        log_name_prefix="persistent://public/default/",
        too_large_bytes=5 * 1024 * 1024 - 100,  # a default bookie would not store it
        any_key=transport == "wire",
    )
    yield harness
    harness.close()


class TestOurSegmentsOverTheWire(SegmentLogContract):
    pass


class TestOurSegmentsThroughTheClient(SegmentLogContract):
    @pytest.fixture
    def transport(self) -> str:
        return "client"
