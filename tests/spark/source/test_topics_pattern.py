"""Topics that come and go while a query with a pattern runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.errors import (
    DataLossError,
    OptionError,
    TopicNotFoundError,
    TransactionDomainError,
)
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.retention import RETENTION_PROPERTY, Retention
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import Segment, Topology
from pulsar_txn_spark.spark.datasource import PulsarTxnDataSource
from pulsar_txn_spark.spark.source.topics import SourceTopics
from tests.models.segment_histories import Task, record_batch
from tests.support.streaming import Killed, StreamingQuery

A, B, OTHER = (TopicName.parse(name) for name in ("flights-a", "flights-b", "other"))
PATTERN = {"topicsPattern": "public/default/flights-.*"}
Make = Callable[..., StreamingQuery]


@pytest.fixture
def query(run: Components, redis_path: str) -> Make:
    def make(name: str, /, **options: str) -> StreamingQuery:
        return StreamingQuery(run, redis_path, name, **PATTERN, **options)

    return make


def write(run: Components, topic: TopicName, *values: int) -> None:
    task = Task(run, f"write-{topic}-{values[0]}")
    task.writers.append(topic, record_batch([("k", value) for value in values]))
    task.commit(task.writers.finish())


@pytest.mark.parametrize("start", ["latest", "earliest"])
@pytest.mark.parametrize("subscription", [{}, {"subscription": "s"}])
def test_a_new_topic_is_read_from_its_first_message(
    run: Components, query: Make, start: str, subscription: dict[str, str]
) -> None:
    run.topics.create(A, 1)
    write(run, A, 1)
    reader = query("q", startingOffsets=start, **subscription)
    reader.run_all()
    for topic, value in ((B, 2), (OTHER, 3)):
        run.topics.create(topic, 2)
        write(run, topic, value)
    reader.run_all()
    reader.restart()
    write(run, A, 4)
    write(run, B, 5)
    reader.run_all()
    assert sorted(reader.values) == ([1] if start == "earliest" else []) + [2, 4, 5]


def test_a_segment_of_a_new_topic_that_retention_has_deleted_is_a_loss(
    run: Components, query: Make
) -> None:
    """It was to be read from its first message, as one whose beginning was trimmed."""
    run.topics.create(A, 1)
    write(run, A, 1)
    reader = query("q", startingOffsets="earliest")
    reader.run_all()
    run.topics.create(B, 1)
    write(run, B, 2)
    run.topics.changes.split(B, "0")
    retention = Retention(size_bytes=0).serialize()
    run.store.topics.change_property(str(B), RETENTION_PROPERTY, retention)
    assert run.retention().sweep(lambda _: None).deleted
    write(run, B, 3)
    reader.restart()
    with pytest.raises(DataLossError, match="flights-b"):
        reader.run_all()
    assert reader.values == [1]
    reader.options["failOnDataLoss"] = "false"
    reader.restart()
    reader.run_all()
    assert reader.values == [1, 3]


def test_a_topic_of_the_other_backend_on_the_same_store_stops_no_pattern(
    run: Components, query: Make, caplog: pytest.LogCaptureFixture
) -> None:
    run.topics.create(A, 1)
    write(run, A, 1)
    reader = query("q", startingOffsets="earliest")
    reader.run_all()
    plan = Topology.plan(B, 1, "pulsar")
    version = run.store.topics.version(str(B))
    run.store.topics.swap(str(B), version, plan.serialize(), None, instance_id=plan.instance_id)
    run.store.meta.add_topic(str(B))
    write(run, A, 2)
    reader.run_all()
    assert reader.values == [1, 2]
    [warning] = [r.getMessage() for r in caplog.records if "is not read yet" in r.getMessage()]
    assert "lives on the backend 'pulsar'" in warning


def test_a_topic_that_was_adopted_is_not_taken_for_deleted(
    run: Components, redis_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = SourceTopics(Options({"store.path": redis_path, "topic": str(A)}, Use.READ), run)

    def adopted(topic: TopicName) -> Topology:
        raise TransactionDomainError(f"{topic} was adopted by {A}")

    monkeypatch.setattr(run.topics, "readable", adopted)
    with pytest.raises(TransactionDomainError, match="was adopted by"):
        topics.find("persistent://public/default/flights")
    assert topics.find(str(B)) is None


def test_a_query_that_begins_without_a_topic_reads_those_that_come(
    run: Components, query: Make
) -> None:
    reader = query("q")
    reader.run_all()
    run.topics.create(A, 1)
    write(run, A, 1)
    reader.run_all()
    assert reader.values == [1]


@pytest.mark.parametrize("again", [False, True])
def test_a_deleted_topic_is_a_loss_that_stops_the_query(
    run: Components, query: Make, again: bool
) -> None:
    run.topics.create(A, 1)
    run.topics.create(B, 1)
    write(run, A, 1)
    reader = query("q", startingOffsets="earliest")
    reader.run_all()
    run.topics.delete(A)
    if again:
        run.topics.create(A, 1)
    write(run, B, 2)
    with pytest.raises(DataLossError, match=r"deleted.*set failOnDataLoss=false to go on"):
        reader.run_all()
    assert reader.values == [1]


@pytest.mark.parametrize(
    "fewer", [{"topic": str(A)}, {"topics": str(A)}, {"topicsPattern": ".*flights-a"}]
)
def test_a_topic_that_is_only_not_named_any_more_is_no_loss_that_may_be_accepted(
    run: Components, redis_path: str, fewer: dict[str, str]
) -> None:
    """With failOnDataLoss=false its offset would go, and all of it be read when it comes back."""
    for topic, value in ((A, 1), (B, 2)):
        run.topics.create(topic, 1)
        write(run, topic, value)
    both = {"topics": f"{A},{B}"}
    reader = StreamingQuery(run, redis_path, "q", **both, startingOffsets="earliest")
    reader.run_all()
    rest = {key: text for key, text in reader.options.items() if key not in both}
    reader.options = {**rest, **fewer}
    reader.restart()
    with pytest.raises(DataLossError, match=r"flights-b, .*still there.*name it again") as refused:
        reader.trigger()
    assert "failOnDataLoss" not in str(refused.value)
    reader.options = {**rest, **both}
    reader.restart()
    write(run, B, 3)
    reader.run_all()
    assert sorted(reader.values) == [1, 2, 3]


def test_a_topic_that_is_another_one_by_now_is_a_loss_also_if_it_is_not_named(
    run: Components, redis_path: str
) -> None:
    for topic in (A, B):
        run.topics.create(topic, 1)
    reader = StreamingQuery(run, redis_path, "q", topics=f"{A},{B}", startingOffsets="earliest")
    reader.run_all()
    run.topics.delete(B)
    run.topics.create(B, 1)
    reader.options["topics"] = str(A)
    reader.restart()
    with pytest.raises(DataLossError, match="set failOnDataLoss=false to go on"):
        reader.trigger()


def test_a_batch_read_of_a_pattern_that_matches_nothing_is_an_error(
    run: Components, redis_path: str
) -> None:
    run.topics.create(OTHER, 1)
    options = {"store.path": redis_path, **PATTERN}
    source = PulsarTxnDataSource(dict(options))
    reader = source.reader(source.schema())
    with pytest.raises(
        TopicNotFoundError, match=r"flights.*matches no topic .*other.*batch read"
    ) as caught:
        reader.partitions()
    assert f"(in the metadata store {redis_path} there are 1: " in str(caught.value)


def test_a_topic_and_a_partition_of_it_are_not_read_both() -> None:
    def of_pulsar(name: TopicName) -> Topology:
        logs = [f"{name}-partition-{n}" for n in (0, 1)] if name.name == "t" else [str(name)]
        refs = [SegmentRef(log, str(name), log) for log in logs]
        return Topology(name, "", tuple(Segment(ref, 0, 1) for ref in refs), len(refs), "pulsar")

    components: Any = SimpleNamespace(topics=SimpleNamespace(readable=of_pulsar))

    def read(names: str) -> list[str]:
        options = Options({"topics": names}, Use.READ | Use.STREAM)
        return list(SourceTopics(options, components).topologies())

    one, two = (f"persistent://public/default/t-partition-{n}" for n in (1, 2))
    for both in (f"persistent://public/default/t,{one}", f"{one},persistent://public/default/t"):
        with pytest.raises(OptionError, match=f"both have {one}, whose rows would be read twice"):
            read(both)
    assert len(read(f"persistent://public/default/t,{two}")) == 2


def test_without_fail_on_data_loss_a_deleted_topic_is_skipped_and_a_new_one_of_its_name_is_read(
    run: Components, query: Make, caplog: pytest.LogCaptureFixture
) -> None:
    run.topics.create(A, 1)
    run.topics.create(B, 1)
    write(run, A, 1)
    reader = query("q", startingOffsets="earliest", failOnDataLoss="false")
    reader.run_all()
    run.topics.delete(A)
    write(run, B, 2)
    with caplog.at_level(logging.WARNING):
        reader.run_all()
        reader.run_all()
    [warning] = [r.getMessage() for r in caplog.records if "has read topic" in r.getMessage()]
    assert "skipped, as failOnDataLoss is false" in warning
    assert str(A) not in reader.offsets[-1]["topics"]
    run.topics.create(A, 2)
    write(run, A, 3)
    reader.run_all()
    run.topics.delete(A)
    run.topics.create(A, 1)
    write(run, A, 4)
    reader.run_all()
    assert reader.values == [1, 2, 3, 4]


def test_of_a_planned_batch_the_rows_of_a_deleted_topic_are_skipped(
    run: Components, query: Make
) -> None:
    run.topics.create(A, 1)
    run.topics.create(B, 1)
    reader = query("q", startingOffsets="earliest", failOnDataLoss="false")
    reader.run_all()
    write(run, A, 1)
    write(run, B, 2)
    with pytest.raises(Killed):
        reader.trigger(dies="planned")
    run.topics.delete(A)
    reader.run_all()
    assert reader.values == [2]
