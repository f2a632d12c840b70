"""Pulsar's own transactions over the wire, against a coordinator in this process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from pulsar_txn_spark.backends.pulsar.pulsar_pb2 import BaseCommand
from pulsar_txn_spark.backends.pulsar.txn_bits import TxnBits
from pulsar_txn_spark.backends.pulsar.wire.client import WireClient
from pulsar_txn_spark.backends.pulsar.wire.connection import RefusedError
from pulsar_txn_spark.backends.pulsar.wire.coordinator import ASSIGNMENT, Ended, WireCoordinators
from pulsar_txn_spark.backends.pulsar.wire.settings import ConnectionSettings
from pulsar_txn_spark.config import PulsarConfig
from tests.support.fake_pulsar import TXN_NOT_FOUND, FakePulsar

NO_COORDINATOR = 20
NOT_ALLOWED = 22
UNKNOWN = 0


@pytest.fixture
def broker() -> Iterator[FakePulsar]:
    broker = FakePulsar(partitions={ASSIGNMENT: 16})
    yield broker
    broker.close()


@pytest.fixture
def coordinators(broker: FakePulsar) -> Iterator[WireCoordinators]:
    settings = ConnectionSettings.of(PulsarConfig(broker.url, "http://x"))
    client = WireClient(replace(settings, operation_s=5, connect_s=5))
    yield WireCoordinators(client)
    client.close()


def test_a_transaction_of_a_name_is_always_of_the_same_coordinator(
    broker: FakePulsar, coordinators: WireCoordinators
) -> None:
    found = [coordinators.begin(name, 1234) for name in ("a", "b", "a", "b")]
    assert len(set(found)) == 4
    assert found[0].most == found[2].most
    assert found[1].most == found[3].most
    assert found[0].most != found[1].most
    assert broker.coordinator.timeouts_ms == [1234] * 4
    asked = [c.lookupTopic.topic for c in broker.heard if c.type == BaseCommand.LOOKUP]
    assert asked == [f"{ASSIGNMENT}-partition-{txn.most}" for txn in found[:2]]
    assert broker.count(BaseCommand.TC_CLIENT_CONNECT_REQUEST) == 2


def test_topics_take_part_in_a_transaction_that_is_committed_or_aborted(
    broker: FakePulsar, coordinators: WireCoordinators
) -> None:
    for commit in (True, False):
        txn = coordinators.begin("a", 1000)
        coordinators.add_partitions(txn, ["t-partition-0", "t-partition-1"])
        assert broker.coordinator.open[txn] == {"t-partition-0", "t-partition-1"}
        assert coordinators.end(txn, commit=commit) is Ended.AS_ASKED
        assert (txn in broker.coordinator.committed) is commit


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_that_has_ended_is_forgotten_and_nobody_says_how_it_ended(
    coordinators: WireCoordinators, commit: bool
) -> None:
    txn = coordinators.begin("a", 1000)
    coordinators.end(txn, commit=commit)
    assert coordinators.end(txn, commit=True) is Ended.FORGOTTEN
    assert coordinators.end(txn, commit=False) is Ended.FORGOTTEN
    with pytest.raises(RefusedError) as refused:
        coordinators.add_partitions(txn, ["t"])
    assert refused.value.result == "TransactionNotFound"


def test_forgotten_is_believed_only_of_the_broker_that_has_the_coordinator_now(
    broker: FakePulsar, coordinators: WireCoordinators
) -> None:
    txn = coordinators.begin("a", 1000)
    answers: list[tuple[int, str] | None] = [(TXN_NOT_FOUND, f"{txn} not found"), None]
    broker.coordinator.on_end = lambda _txn, _commit: answers.pop(0)
    lookups = broker.count(BaseCommand.LOOKUP)
    assert coordinators.end(txn, commit=False) is Ended.AS_ASKED
    assert broker.count(BaseCommand.LOOKUP) == lookups + 1


def test_a_transaction_of_another_role_does_not_count_as_ended(
    broker: FakePulsar, coordinators: WireCoordinators
) -> None:
    txn = coordinators.begin("a", 1000)
    said = f"Client (x) is neither the owner of the transaction {txn} nor a super user"
    broker.coordinator.on_end = lambda _txn, _commit: (TXN_NOT_FOUND, said)
    with pytest.raises(RefusedError, match="neither the owner"):
        coordinators.end(txn, commit=False)


def test_a_transaction_that_commits_can_no_longer_be_aborted(
    broker: FakePulsar, coordinators: WireCoordinators
) -> None:
    txn = coordinators.begin("a", 1000)
    broker.coordinator.committing.add(txn)
    assert coordinators.end(txn, commit=False) is Ended.OTHERWISE
    assert coordinators.end(txn, commit=True) is Ended.AS_ASKED


@pytest.mark.parametrize("kind", [BaseCommand.TC_CLIENT_CONNECT_REQUEST, BaseCommand.NEW_TXN])
@pytest.mark.parametrize("error", [NO_COORDINATOR, UNKNOWN])
def test_a_coordinator_that_moves_is_looked_up_and_asked_again(
    broker: FakePulsar, coordinators: WireCoordinators, kind: BaseCommand.Type, error: int
) -> None:
    coordinators.begin("a", 1000)
    broker.peers[-1].cut()
    broker.refuses[kind] = [(error, "it is being loaded")] * 2
    txn = coordinators.begin("a", 1000)
    assert coordinators.end(txn, commit=True) is Ended.AS_ASKED
    assert not broker.refuses[kind]


def test_a_broker_without_transactions_says_so_at_once(
    broker: FakePulsar, coordinators: WireCoordinators
) -> None:
    said = [(NOT_ALLOWED, "Transactions are not enabled.")]
    broker.refuses[BaseCommand.TC_CLIENT_CONNECT_REQUEST] = said
    with pytest.raises(RefusedError, match="not enabled") as refused:
        coordinators.begin("a", 1000)
    assert refused.value.result == "NotAllowedError"
    assert TxnBits(1, 2) not in broker.coordinator.open
