"""Native topics on a real broker: read beside its own transactions, and adopted."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pulsar as pulsar_client
import pytest
from pyspark.sql import SparkSession

import pulsar_txn_spark
from integration.support.admin_rest import AdminRest
from integration.support.java_client import java_program
from integration.support.spark import NO_PANDAS_3, Lab, failure, until, until_the_clock_moves
from pulsar_txn_spark.backends.pulsar.library.connections import close_quietly
from pulsar_txn_spark.backends.pulsar.log import INTERNAL_SUBSCRIPTION, SEGMENT_PROPERTY
from pulsar_txn_spark.errors import SegmentLogError
from pulsar_txn_spark.options import METADATA_COLUMNS
from pulsar_txn_spark.segments.topology import SegmentState
from pulsar_txn_spark.spark.datasource import PulsarTxnDataSource
from pulsar_txn_spark.testing.pulsar_server import Broker

pytestmark = pytest.mark.filterwarnings(NO_PANDAS_3)

QUIET = pulsar_client.ConsoleLogger(pulsar_client.LoggerLevel.Warn)


class Plain:
    """Topics of a broker as anybody uses them, without this package."""

    def __init__(self, broker: Broker) -> None:
        self.admin = AdminRest(broker.admin_url)
        self._client = pulsar_client.Client(broker.service_url, logger=QUIET)

    def topic(self, partitions: int = 0) -> str:
        """Create a topic that no other test has; return its name."""
        name = f"public/default/own-{uuid.uuid4().hex[:8]}"
        if partitions:
            self.admin("PUT", f"persistent/{name}/partitions", partitions)
        else:
            self.admin("PUT", f"persistent/{name}")
        return f"persistent://{name}"

    def produce(self, topic: str, *values: str, key: str = "k") -> None:
        producer = self._client.create_producer(topic, batching_enabled=False)
        for value in values:
            producer.send(value.encode(), partition_key=key, properties={"p": value})
        producer.close()

    def read(self, topic: str) -> list[str]:
        reader = self._client.create_reader(topic, pulsar_client.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(10_000).data().decode())
        # It takes the notice that a sealed topic was read to its end for a broken connection.
        close_quietly(reader)
        return found

    def close(self) -> None:
        self._client.close()
        self.admin.close()


class NativeTransactions:
    """A producer with Pulsar's own transactions, in a JVM that ends with this object."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._jvm = subprocess.Popen(
            java_program("NativeTransactions", broker.service_url, topic),
            stdin=subprocess.PIPE,  # closed when this process dies, which ends the JVM
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __call__(self, command: str) -> str:
        assert self._jvm.stdin is not None
        assert self._jvm.stdout is not None
        self._jvm.stdin.write(command + "\n")
        self._jvm.stdin.flush()
        for line in self._jvm.stdout:
            if line.startswith("> "):
                return line[2:].strip()
        raise AssertionError(f"the JVM ended at {command!r}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._jvm.communicate(timeout=30)


@pytest.fixture
def plain(pulsar: Broker) -> Iterator[Plain]:
    found = Plain(pulsar)
    yield found
    found.close()


@pytest.fixture
def lab(spark: SparkSession, embedded: dict[str, str], pulsar: Broker, tmp_path: Path) -> Lab:
    where = {"service.url": pulsar.service_url, "admin.url": pulsar.admin_url}
    return Lab(spark, embedded | where, tmp_path)


def stream_into(lab: Lab, source: str, out: str, **options: object) -> Callable[[], list[str]]:
    """Return what runs a stream for what is there now, and says what has come out in all."""

    def drain() -> list[str]:
        lab.drain(lab.sink(lab.source(source, **options), out, lab.checkpoint()))
        return lab.visible(out)

    return drain


def test_a_partitioned_topic_is_read_as_any_other(lab: Lab, plain: Plain) -> None:
    topic, out = plain.topic(2), lab.topic()
    plain.produce(topic, "a", "b", key="x")
    plain.produce(topic, "c", "d", key="y")
    rows = lab.read(topic).collect()
    assert sorted(bytes(row["value"]).decode() for row in rows) == ["a", "b", "c", "d"]
    assert {row["__topic"] for row in rows} == {topic}
    for row in rows:
        value = bytes(row["value"]).decode()
        assert bytes(row["__key"]).decode() == ("x" if value in "ab" else "y")
        assert row["__messageProperties"] == {"p": value}
        id_ = pulsar_client.MessageId.deserialize(bytes(row["__messageId"]))
        assert id_.partition() in (0, 1)
    drain = stream_into(lab, topic, out, maxMessagesPerTrigger=1)
    assert drain() == ["a", "b", "c", "d"]
    assert drain() == ["a", "b", "c", "d"], "nothing twice after a restart"
    plain.admin("POST", f"{topic.replace('://', '/')}/partitions", 4)
    for key in "pqrstuvw":
        plain.produce(topic, f"new-{key}", key=key)
    assert drain() == ["a", "b", "c", "d", *(f"new-{key}" for key in "pqrstuvw")]


def test_partitions_are_read_between_two_times_and_rows_name_their_producer(
    embedded: dict[str, str], plain: Plain, pulsar: Broker
) -> None:
    topic = plain.topic(2)
    for value in "abcd":
        plain.produce(topic, value, value, key=value)
        until_the_clock_moves()
    given = embedded | {"service.url": pulsar.service_url, "admin.url": pulsar.admin_url}
    given |= {"topic": topic, "startingOffsetsByTimestampStrategy": "latest"}

    def rows(**options: object) -> list[dict[str, Any]]:
        columns = {"metadata.columns": ",".join(METADATA_COLUMNS)}
        source = PulsarTxnDataSource(given | columns | {k: str(v) for k, v in options.items()})
        reader = source.reader(source.schema())
        batches = [b for p in reader.partitions() for b in reader.read(p)]
        found = [row for batch in batches for row in batch.to_pylist()]  # type: ignore[union-attr]
        return sorted(found, key=lambda row: row["__publishTime"])

    everything = rows(startingTimestamp=0)
    assert [row["value"] for row in everything] == [b"%c" % c for c in b"aabbccdd"]
    assert [row["__sequenceId"] for row in everything] == [0, 1] * 4
    for row in everything:
        assert row["__topicPartition"] == f"{topic.rpartition('/')[0]}/{row['__segment']}"
        assert row["__producerName"]
    times = [round(row["__publishTime"].timestamp() * 1000) for row in everything]
    for start in range(0, 8, 2):
        for end in range(start, 8, 2):
            found = rows(startingTimestamp=times[start], endingTimestamp=times[end])
            assert found == everything[start:end]
        assert rows(startingTimestamp=times[start]) == everything[start:]


def test_pulsars_own_transactions_block_readers_and_show_what_was_committed(
    lab: Lab, plain: Plain, pulsar: Broker
) -> None:
    topic, out = plain.topic(), lab.topic()
    drain = stream_into(lab, topic, out)
    with NativeTransactions(pulsar, topic) as native:
        native("plain before")
        id_ = native("begin")
        native("send in")
        native("plain behind")
        assert drain() == ["before"]
        assert lab.values(topic) == ["before"]
        most, least = map(int, id_.strip("()").split(","))
        assert lab.run.topics.pulsar_knows(most, least)
        assert not lab.run.topics.pulsar_knows(most, least + 1_000_000)
        native("commit")
        assert drain() == ["before", "behind", "in"]
        native("begin")
        native("send never")
        plain.admin.unload(topic)
        assert drain() == ["before", "behind", "in"], "a topic that is being loaded shows nothing"
        native("abort")
        native("plain after")
        assert drain() == ["after", "before", "behind", "in"]
    for transport in ("client", "wire"):
        assert lab.values(topic, transport=transport) == ["after", "before", "behind", "in"]


def test_what_would_span_both_domains_is_refused(lab: Lab, plain: Plain) -> None:
    topic = plain.topic()
    error = failure(lambda: lab.write(lab.frame("x"), topic))
    assert "none spans both" in error
    error = failure(lambda: lab.read(f"{lab.segments(lab.topic())[0].log_name}").collect())
    assert "is a segment of topic://" in error


@pytest.mark.parametrize("partitions", [pytest.param(0, marks=pytest.mark.long), 2])
def test_a_topic_is_adopted_with_its_data_and_read_on_in_order(
    lab: Lab, plain: Plain, pulsar: Broker, partitions: int
) -> None:
    origin = plain.topic(partitions)
    path = origin.replace("://", "/")
    topic = origin.replace("persistent://", "topic://")
    one = f"{origin}-partition-1" if partitions else origin
    with NativeTransactions(pulsar, one) as native:
        native("begin")
        native("send never")
        native("abort")
        native("begin")
        native("send committed")
        with pytest.raises(SegmentLogError, match="producers are connected"):
            pulsar_txn_spark.Admin(lab.options).adopt_topic(origin, topic)
        native("commit")
    plain.produce(origin, "a", "b", key="x")
    done = pulsar_txn_spark.Admin(lab.options).adopt_topic(origin, topic, segments=2)
    parents = [segment for segment in done.segments if segment.adopted]
    assert len(parents) == max(1, partitions)
    assert {segment.state for segment in parents} == {SegmentState.SEALED}
    again = pulsar_txn_spark.Admin(lab.options).adopt_topic(origin, topic, segments=2)
    assert again == done
    lab.write(lab.frame("new"), topic)
    assert lab.values(topic) == ["a", "b", "committed", "new"]
    out = lab.topic()
    assert stream_into(lab, topic, out, subscription="s")() == ["a", "b", "committed", "new"]
    # A job that goes on naming it as before reads the adopted one, if it is told so.
    assert "is a segment of" in failure(lambda: lab.values(origin))
    assert lab.values(origin, domain__overrides="public/default=topic")[-1] == "new"
    # The way back: the old data is where it was, and nothing of ours is left there.
    pulsar_txn_spark.Admin(lab.options).delete_topic(topic)
    names = [f"{origin}-partition-{n}" for n in range(partitions)] or [origin]
    assert sorted(v for name in names for v in plain.read(name)) == ["a", "b", "committed"]
    for name in names:
        rest = name.replace("://", "/")
        assert SEGMENT_PROPERTY not in (plain.admin("GET", f"{rest}/properties") or {})
        assert INTERNAL_SUBSCRIPTION not in plain.admin("GET", f"{rest}/subscriptions")
    until(lambda: not plain.admin("GET", f"{path}/retention"))
    assert lab.values(origin) == ["a", "b", "committed"]
