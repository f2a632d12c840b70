"""A durable subscription over the wire, against a broker that moves, or answers too late."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from pulsar_txn_spark.backends.pulsar.pulsar_pb2 import BaseCommand
from pulsar_txn_spark.backends.pulsar.wire.client import WireClient
from pulsar_txn_spark.backends.pulsar.wire.connection import RefusedError
from pulsar_txn_spark.backends.pulsar.wire.cursor import WireCursor
from pulsar_txn_spark.backends.pulsar.wire.settings import ConnectionSettings
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.position import Position
from tests.support.fake_pulsar import LEDGER, FakePulsar

TOPIC = "persistent://public/default/t"
METADATA_ERROR = 1


@pytest.fixture
def broker() -> Iterator[FakePulsar]:
    found = FakePulsar()
    found.topic(TOPIC).cursors["s"] = 3
    yield found
    found.close()


@pytest.fixture
def client(broker: FakePulsar) -> Iterator[WireClient]:
    settings = ConnectionSettings.of(PulsarConfig(broker.url, "http://127.0.0.1:1"))
    found = WireClient(replace(settings, operation_s=0.5))
    yield found
    found.close()


def test_a_broker_that_subscribes_too_late_is_told_that_nobody_waits(
    broker: FakePulsar, client: WireClient
) -> None:
    broker.ignores[BaseCommand.SUBSCRIBE] = 1
    with pytest.raises(RefusedError, match="Timeout"):
        WireCursor(client, TOPIC, "s")
    broker.await_heard(BaseCommand.CLOSE_CONSUMER)
    (late,) = (each.subscribe.consumer_id for each in broker.heard if each.HasField("subscribe"))
    closed = [each.close_consumer for each in broker.heard if each.HasField("close_consumer")]
    assert [each.consumer_id for each in closed] == [late]
    with WireCursor(client, TOPIC, "s") as cursor:
        assert cursor.position() == Position(LEDGER, 3)


def test_a_subscription_whose_topic_has_moved_is_opened_again(
    broker: FakePulsar, client: WireClient
) -> None:
    with WireCursor(client, TOPIC, "s") as cursor:
        broker.refuses[BaseCommand.GET_LAST_MESSAGE_ID] = [(METADATA_ERROR, "Consumer not found")]
        assert cursor.position() == Position(LEDGER, 3)


def test_a_subscription_whose_connection_is_lost_is_opened_again(
    broker: FakePulsar, client: WireClient
) -> None:
    with WireCursor(client, TOPIC, "s") as cursor:
        for peer in broker.peers:
            peer.cut()
        assert cursor.position() == Position(LEDGER, 3)
        cursor.acknowledge(Position(LEDGER, 4))
        assert cursor.position() == Position(LEDGER, 4)


def test_a_refusal_that_no_other_try_changes_is_not_tried_again(
    broker: FakePulsar, client: WireClient
) -> None:
    with WireCursor(client, TOPIC, "s") as cursor:
        broker.refuses[BaseCommand.GET_LAST_MESSAGE_ID] = [(4, "not yours")]
        with pytest.raises(RefusedError, match="not yours"):
            cursor.position()
