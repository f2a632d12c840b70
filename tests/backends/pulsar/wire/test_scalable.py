"""What is found out about scalable topics over the wire, against a broker in this process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from pulsar_txn_spark.backends.pulsar.pulsar_pb2 import BaseCommand, SegmentInfoProto
from pulsar_txn_spark.backends.pulsar.wire.client import WireClient
from pulsar_txn_spark.backends.pulsar.wire.connection import RefusedError
from pulsar_txn_spark.backends.pulsar.wire.coordinator import Ended, WireCoordinators
from pulsar_txn_spark.backends.pulsar.wire.scalable import look_up
from pulsar_txn_spark.backends.pulsar.wire.settings import ConnectionSettings
from pulsar_txn_spark.config import PulsarConfig
from tests.support.fake_pulsar import INVALID_STATUS, TXN_NOT_FOUND, FakePulsar

TOPIC = "topic://public/default/t"


@pytest.fixture
def broker() -> Iterator[FakePulsar]:
    segment = SegmentInfoProto(segment_id=0, hash_start=0, hash_end=65_535, state=0)
    broker = FakePulsar(scalable={TOPIC: [segment]})
    yield broker
    broker.close()


@pytest.fixture
def client(broker: FakePulsar) -> Iterator[WireClient]:
    settings = ConnectionSettings.of(PulsarConfig(broker.url, "http://x"))
    client = WireClient(replace(settings, operation_s=5, connect_s=5))
    yield client
    client.close()


def test_a_lookup_gives_the_segments_and_ends_its_session(
    broker: FakePulsar, client: WireClient
) -> None:
    for _ in range(2):
        assert [each.hash_end for each in look_up(client, TOPIC).segments] == [65_535]
    broker.await_heard(BaseCommand.SCALABLE_TOPIC_CLOSE, 2)
    opened = [
        c.scalableTopicLookup.session_id for c in broker.heard if c.HasField("scalableTopicLookup")
    ]
    closed = [
        c.scalableTopicClose.session_id for c in broker.heard if c.HasField("scalableTopicClose")
    ]
    assert opened == closed
    assert len(set(opened)) == 2


def test_a_lookup_of_what_is_not_there_says_so(client: WireClient) -> None:
    with pytest.raises(RefusedError, match="not found") as refused:
        look_up(client, "topic://public/default/other")
    assert refused.value.result == "TopicNotFound"


def test_an_older_broker_is_not_asked_what_it_does_not_know() -> None:
    broker = FakePulsar()
    client = WireClient(ConnectionSettings.of(PulsarConfig(broker.url, "http://x")))
    try:
        with pytest.raises(RefusedError) as refused:
            look_up(client, TOPIC)
        assert refused.value.result == "UnsupportedVersionError"
        with pytest.raises(RefusedError, match="nor their transactions") as refused:
            WireCoordinators(client, scalable=True).begin("a", 1)
        assert refused.value.result == "NotAllowedError"
        assert not broker.count(BaseCommand.SCALABLE_TOPIC_LOOKUP)
        assert not broker.count(BaseCommand.WATCH_TC_ASSIGNMENTS)
    finally:
        client.close()
        broker.close()


def test_every_command_to_the_coordinators_of_scalable_topics_says_whose_it_is(
    broker: FakePulsar, client: WireClient
) -> None:
    coordinators = WireCoordinators(client, scalable=True)
    txn = coordinators.begin("a", 1234)
    coordinators.add_partitions(txn, ["segment://public/default/t/0000-ffff-0"])
    assert coordinators.end(txn, commit=True) is Ended.AS_ASKED
    said = {c.type: c for c in broker.heard}
    assert said[BaseCommand.TC_CLIENT_CONNECT_REQUEST].tcClientConnectRequest.scalable
    assert said[BaseCommand.NEW_TXN].newTxn.scalable
    assert said[BaseCommand.ADD_PARTITION_TO_TXN].addPartitionToTxn.scalable
    assert said[BaseCommand.END_TXN].endTxn.scalable
    assert not broker.count(BaseCommand.LOOKUP), "they have no topic of their own"
    WireCoordinators(client, scalable=True).end(txn, commit=True)
    assert broker.count(BaseCommand.WATCH_TC_ASSIGNMENTS) == 2


def test_a_transaction_that_nobody_owns_is_forgotten_unless_clients_have_names(
    broker: FakePulsar, client: WireClient
) -> None:
    coordinators = WireCoordinators(client, scalable=True)
    txn = coordinators.begin("a", 1234)
    said = "Client ({}) is neither the owner of the transaction (0,1) nor a super user"
    broker.coordinator.on_end = lambda _txn, _commit: (TXN_NOT_FOUND, said.format("null"))
    assert coordinators.end(txn, commit=False) is Ended.FORGOTTEN
    broker.coordinator.on_end = lambda _txn, _commit: (TXN_NOT_FOUND, said.format("spark"))
    with pytest.raises(RefusedError, match="neither the owner"):
        coordinators.end(txn, commit=False)
    broker.coordinator.on_end = lambda _txn, _commit: (INVALID_STATUS, "it is COMMITTED")
    assert coordinators.end(txn, commit=False) is Ended.OTHERWISE
