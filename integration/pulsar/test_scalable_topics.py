"""Scalable topics of a broker of Pulsar 5, read through the wire transport and through Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration.support.pulsar5 import VERSION, Pulsar5
from integration.support.spark import NO_PANDAS_3, Lab, failure, until, until_the_clock_moves
from pulsar_txn_spark.backends.pulsar.scalable_topic_log import ScalableTopicLog
from pulsar_txn_spark.errors import OptionError, TopicNotFoundError
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import SegmentState
from pulsar_txn_spark.testing.pulsar_server import Broker, PulsarServer

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings(NO_PANDAS_3)]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with PulsarServer(version=VERSION, short_lived=True) as server:
        yield Broker(server.service_url, server.admin_url, "maven")


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


def test_names_of_a_namespace_are_those_of_scalable_topics(
    five: Pulsar5, log: ScalableTopicLog
) -> None:
    topic = five.topic()
    assert topic in log.names("public", "default")


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
    assert "does not exist in this metadata store" in failure(lambda: lab.values(topic.pulsar_name))
    pattern = f"scalable://public/default/{topic.name[:-1]}."
    assert lab.values(topicsPattern=pattern) == ["a1", "b2"]
    rows = lab.read(str(topic)).collect()
    assert {row["__topic"] for row in rows} == {str(topic)}


def test_a_subscription_of_ours_on_a_scalable_topic_is_refused(lab: Lab, five: Pulsar5) -> None:
    topic = five.topic()
    said = failure(lambda: lab.source(str(topic), subscription="s"))
    assert "none spans both" in said
