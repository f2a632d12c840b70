"""What a micro-batch costs in round trips. These bounds go down, but for a safeguard."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest
import redis

from pulsar_txn_spark import client
from pulsar_txn_spark.backends.embedded import log as embedded_log
from pulsar_txn_spark.backends.embedded.log import EmbeddedSegmentLog
from pulsar_txn_spark.config import StoreConfig
from pulsar_txn_spark.engine.components import Components, open_components
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import Router
from pulsar_txn_spark.spark.context import TaskFacts
from pulsar_txn_spark.spark.sink.writers import PulsarTxnStreamWriter
from pulsar_txn_spark.spark.source.idle import IdleWatch
from pulsar_txn_spark.spark.source.partition import SourcePartition
from pulsar_txn_spark.spark.source.stream import PulsarTxnStreamReader
from pulsar_txn_spark.spark.versions import ReadAllAvailable
from pulsar_txn_spark.store.redis.connection import connect
from tests.support.redis_servers import StartRedis, start_cluster
from tests.support.round_trips import RoundTrips, meet_all_coordinators, round_trips
from tests.support.scenario import load_scripts
from tests.support.streaming import SCHEMA

IN, OUT = TopicName.parse("in"), TopicName.parse("out")


def a_key_of_each_segment(run: Components, topic: TopicName) -> list[bytes]:
    """Return as many keys as there are segments, each of which is routed to another one."""
    router = Router(run.topics.require(topic), 0)
    keys: dict[int, bytes] = {}
    for number in itertools.count():
        key = f"key-{number}".encode()
        keys.setdefault(int(router.route(pa.array([key]), 1)[0]), key)
        if len(keys) == len(router.segments):
            return list(keys.values())
    raise AssertionError("unreachable")


class Query:
    """A query from one topic to another, step by step as Spark runs it; one task writes."""

    def __init__(
        self,
        store: dict[str, str],
        segments: int,
        monkeypatch: pytest.MonkeyPatch,
        subscription: str = "",
    ) -> None:
        self.store = store
        self.run = open_components(Options(store, Use.CONNECT))
        for topic in (IN, OUT):
            self.run.topics.create(topic, segments)
        self.batch = 0
        self.keys = a_key_of_each_segment(self.run, IN)
        monkeypatch.setattr(TaskFacts, "of_task", self._facts)
        monkeypatch.setattr(IdleWatch, "unchanged_since", lambda *_: False)
        monkeypatch.setattr(IdleWatch, "watch", lambda *_: None)
        monkeypatch.setattr(IdleWatch, "before_poll", lambda *_: None)
        monkeypatch.setattr(IdleWatch, "after_poll", lambda *_, **__: None)
        # As many tasks read as on two cores.
        given = {"topic": str(IN), "startingOffsets": "earliest", "maxPartitions": "2"}
        if subscription:
            given["subscription"] = subscription
        self.reader = PulsarTxnStreamReader({**store, **given}, SCHEMA)
        self.end: dict[str, Any] = self.reader.initialOffset()
        self._attempts = itertools.count()

    def _facts(self) -> TaskFacts:
        return TaskFacts("query", self.batch, f"run-{self.batch}", 0, next(self._attempts))

    def fill(self) -> None:
        """Write a row to each segment that the query reads."""
        with client.connect(self.store) as service:
            producer = service.producer(str(IN))
            with service.new_txn() as txn:
                for key in self.keys:
                    producer.send(b"1", key=key, txn=txn)

    def micro_batch(self) -> int:
        """Run one, and return how many rows it has written."""
        start, self.end = self.end, self.reader.latestOffset(self.end, ReadAllAvailable())
        if self.batch:
            self.reader.commit(start)  # of the batch before, as Spark does behind the poll
        options = {**self.store, "topic": str(OUT)}
        writer = PulsarTxnStreamWriter(options, SCHEMA, overwrite=False)
        batches = [
            batch
            for partition in self.reader.partitions(start, self.end)
            if isinstance(partition, SourcePartition)
            for batch in self.reader.read(partition)
        ]
        rows = pa.Table.from_batches(batches).combine_chunks().to_batches()
        written = writer.write(iter(rows))
        writer.commit([written], self.batch)
        self.batch += 1
        return sum(batch.num_rows for batch in rows)


def counted(query: Query, redis_client: redis.Redis | redis.RedisCluster) -> RoundTrips:
    """Count those of a micro-batch in the middle of a query."""
    meet_all_coordinators(query.run)
    for _ in range(2):  # a first one meets segments that nobody has written to yet
        query.fill()
        query.micro_batch()
    query.fill()
    load_scripts(redis_client)  # on a cluster the coordinator may be a server's first
    with round_trips(redis_client) as trips:
        assert query.micro_batch() == len(query.keys)
    return trips


@pytest.mark.parametrize("subscription, most", [("", 14), ("sub", 16)])
@pytest.mark.parametrize("segments", [4, 16, 64])
def test_a_micro_batch_with_a_row_in_each_segment(
    redis_path: str,
    redis_client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    segments: int,
    subscription: str,
    most: int,
) -> None:
    query = Query({"store.path": redis_path}, segments, monkeypatch, subscription)
    assert counted(query, redis_client).total <= most


@pytest.mark.parametrize("subscription, most", [("", 18), ("sub", 23)])
@pytest.mark.parametrize("segments", [4, 16, 64])
@pytest.mark.slow
def test_a_micro_batch_with_a_row_in_each_segment_on_a_cluster(
    redis_path: str,
    redis_client: redis.Redis,
    start_redis: StartRedis,
    monkeypatch: pytest.MonkeyPatch,
    segments: int,
    subscription: str,
    most: int,
) -> None:
    del redis_path
    # Of the servers of the metadata store alone; where rows go is another one, as Pulsar is.
    log = EmbeddedSegmentLog(redis_client)
    monkeypatch.setattr(embedded_log, "EmbeddedSegmentLog", lambda *_: log)
    store = {"store.url": f"redis+cluster://127.0.0.1:{start_cluster(start_redis, nodes=3)}"}
    cluster = connect(StoreConfig(url=store["store.url"]))
    query = Query(store, segments, monkeypatch, subscription)
    assert counted(query, cluster).total <= most
