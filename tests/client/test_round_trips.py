"""What a client's transaction costs in round trips. These bounds only ever go down."""

from __future__ import annotations

import redis

from pulsar_txn_spark import client
from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.segments.topic_name import TopicName
from tests.support.round_trips import meet_all_coordinators, round_trips

TOPIC = TopicName.parse("t")
ROUND_TRIPS, SYNCED = 3, 3


def test_a_transaction_with_one_row(
    run: Components, redis_path: str, redis_client: redis.Redis
) -> None:
    run.topics.create(TOPIC, 1)
    with client.connect({"store.path": redis_path}) as service:
        meet_all_coordinators(run)
        producer = service.producer(str(TOPIC))
        for _ in range(2):  # a first one meets a segment that nobody has written to yet
            with service.new_txn() as txn:
                producer.send(b"1", txn=txn)
        with round_trips(redis_client) as trips, service.new_txn() as txn:
            producer.send(b"1", txn=txn)
    assert trips.total <= ROUND_TRIPS
    assert trips.synced <= SYNCED
