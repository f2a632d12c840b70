"""Killed between the passes in which the acknowledgements of a transaction are materialized."""

from __future__ import annotations

import signal
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from pulsar_txn_spark import steps
from pulsar_txn_spark.position import EARLIEST
from pulsar_txn_spark.steps import Phase, Step
from pulsar_txn_spark.store.ack_ranges import AckState
from pulsar_txn_spark.store.records import Code, SubscriptionRef, TxnId, TxnState
from pulsar_txn_spark.txn.coordinator import TxnStatus
from pulsar_txn_spark.txn.pending_ack import CLIENT_OWNER
from tests.crash.crash_child import MESSAGES, acknowledge, nth_message
from tests.support.scenario import SEGMENT, World

WHERE = SubscriptionRef(SEGMENT, "sub", CLIENT_OWNER)
PASSES = 3


@pytest.mark.crash
@pytest.mark.parametrize(
    "commit,phase,nth",
    [
        *((True, phase, nth) for phase in (Phase.BEFORE, Phase.AFTER) for nth in (1, 2, PASSES)),
        (False, Phase.BEFORE, 2),
        (False, Phase.AFTER, 2),
    ],
)
def test_whoever_dies_between_two_passes_of_an_acknowledgement_leaves_it_to_the_next(
    world: World,
    tmp_path: Path,
    processes: ForkServerContext,
    commit: bool,
    phase: Phase,
    nth: int,
) -> None:
    world.acks.claim(WHERE, EARLIEST)
    environment = {
        steps.FAULT: f"{Step.MATERIALIZE}:{phase}:{nth}",
        steps.FAULT_FILE: str(tmp_path / "fault"),
    }
    child = processes.Process(
        target=acknowledge,
        args=(world.path, WHERE),
        kwargs={"commit": commit, "environment": environment},
    )
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    txn = world.store.transactions.of_nonce(world.coordinator.shard("nonce"), "nonce")
    assert txn is not None
    found = world.store.subscriptions.read_acks(SEGMENT, "sub")
    assert found is not None
    passed = nth - (phase is Phase.BEFORE)
    locked = max(0, MESSAGES // 2 - 512 * passed)
    assert len(found.pending.get(txn.key, [])) == locked, "the child died somewhere else"
    require_decided(world, txn, commit=commit)
    if locked:
        assert world.store.segments.close(SEGMENT, txn.tc, txn.counter + 1).code is Code.PENDING

    # Whoever reads next materializes what is left: no message is lost, none is given back.
    process = world.another_process()
    state = process.acks.replay(SEGMENT, "sub")
    gone = AckState.DELETED if commit else AckState.PENDING
    states = [state.state_of(nth_message(n)) for n in range(1, MESSAGES + 1)]
    assert states == [AckState.PENDING, gone] * (MESSAGES // 2)
    assert world.client.hlen(world.key("pending-acks:sub")) == 0
    assert world.client.keys(world.key("pending-ranges:*")) == []
    process.coordinator.materialize(process.header(txn))
    final = TxnStatus.COMMITTED if commit else TxnStatus.ABORTED
    assert process.coordinator.status(txn) is final


def require_decided(world: World, txn: TxnId, *, commit: bool) -> None:
    assert world.state(txn) is (TxnState.COMMITTED if commit else TxnState.ABORTED)
    assert not world.header(txn).materialized
