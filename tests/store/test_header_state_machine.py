"""The header of a transaction: one table of transitions, and no other way to move (INV-1)."""

from __future__ import annotations

import itertools
from typing import cast

import pytest

from pulsar_txn_spark.errors import (
    CommitStateUnknownError,
    FencedError,
    StoreUnavailableError,
    TransactionAbortedError,
    TransactionConflictError,
    TransactionNotFoundError,
)
from pulsar_txn_spark.store.metadata_pb2 import Outcome, Winner
from pulsar_txn_spark.store.records import MAY_DECIDE, TRANSITIONS, Code, EndedBy, TxnId, TxnState
from tests.support.scenario import Loss, Txn, World

OPEN, COMMITTED, ABORTED = TxnState.OPEN, TxnState.COMMITTED, TxnState.ABORTED


def expected_answer(
    state: TxnState, to: TxnState, by: EndedBy, *, owner: bool, expired: bool
) -> Code:
    """Say what the store has to answer: the same rules once more, as a function of values."""
    if by is EndedBy.OWNER and not owner:
        return Code.FENCED
    if not TRANSITIONS[state]:
        return Code.DECIDED
    if to not in TRANSITIONS[state]:
        return Code.ILLEGAL
    if to not in MAY_DECIDE[by]:
        return Code.ILLEGAL
    if by is EndedBy.EXPIRED and not expired:
        return Code.ALIVE
    return Code.OK


def header_in(world: World, state: TxnState) -> Txn:
    txn = world.open()
    if state is not OPEN:
        answer = world.store.transactions.end(txn.id, state, b"first", EndedBy.OWNER, txn.nonce)
        assert answer.code is Code.OK
    return txn


@pytest.mark.parametrize(
    "state,to,by,owner,expired",
    list(itertools.product(TxnState, TxnState, EndedBy, [True, False], [True, False])),
)
def test_every_move_is_answered_as_the_table_of_transitions_says(
    world: World, state: TxnState, to: TxnState, by: EndedBy, owner: bool, expired: bool
) -> None:
    txn = header_in(world, state)
    if expired:
        world.expire(txn)
    before = world.header(txn)
    seq = world.store.seen(f"tc{txn.id.tc}").seq

    answer = world.store.transactions.end(
        txn.id, to, b"second", by, txn.nonce if owner else "another owner"
    )

    assert answer.code is expected_answer(state, to, by, owner=owner, expired=expired)
    after = world.header(txn)
    if answer.code is Code.OK:
        assert (after.state, after.outcome) == (to, b"second")
        assert after.finalized_ms is not None
        assert world.store.seen(f"tc{txn.id.tc}").seq == seq + 1
    else:
        assert (after.state, after.outcome) == (before.state, before.outcome)
        assert after.finalized_ms == before.finalized_ms
        assert world.store.seen(f"tc{txn.id.tc}").seq == seq, "a refusal changed something"


def test_the_table_of_transitions_leaves_open_once_and_for_good() -> None:
    assert set(TRANSITIONS) == set(TxnState)
    assert TRANSITIONS[OPEN] == {COMMITTED, ABORTED}
    assert not TRANSITIONS[COMMITTED]
    assert not TRANSITIONS[ABORTED]


def test_every_ground_may_abort_and_only_the_owner_may_commit() -> None:
    assert set(MAY_DECIDE) == set(EndedBy)
    assert [by for by in EndedBy if COMMITTED in MAY_DECIDE[by]] == [EndedBy.OWNER]
    assert all(ABORTED in states and OPEN not in states for states in MAY_DECIDE.values())


@pytest.mark.parametrize("to", [COMMITTED, ABORTED])
def test_an_unknown_ground_ends_nothing(world: World, to: TxnState) -> None:
    txn = world.open()
    answer = world.store.transactions.end(txn.id, to, b"", cast("EndedBy", "because"), txn.nonce)
    assert answer.code is Code.ILLEGAL
    assert world.state(txn) is OPEN


def test_a_transaction_that_never_was_is_neither_committed_nor_aborted(world: World) -> None:
    nobody = TxnId(0, 4711)
    for by in EndedBy:
        assert world.store.transactions.end(nobody, ABORTED, b"", by, "").code is Code.ABSENT
    with pytest.raises(TransactionNotFoundError, match="has no header"):
        world.coordinator.commit(nobody, "nonce", Outcome())
    with pytest.raises(TransactionNotFoundError):
        world.coordinator.abort(nobody, EndedBy.FENCE, cause="")
    assert world.store.transactions.read(nobody) is None


def test_a_decision_takes_the_transaction_out_of_the_open_ones(world: World) -> None:
    for state in (COMMITTED, ABORTED):
        txn = world.open()
        assert (txn.id, world.header(txn).deadline_ms) in world.store.transactions.list_open(
            txn.id.tc, deadline_ms=None, limit=10
        )
        world.store.transactions.end(txn.id, state, b"", EndedBy.OWNER, txn.nonce)
        assert world.store.transactions.list_open(txn.id.tc, deadline_ms=None, limit=10) == []
        finals = world.client.zrange(f"{{tc{txn.id.tc}}}:idx:txn-by-final-state", 0, -1)
        assert f"{state}|{txn.id.key}".encode() in finals


def test_open_transactions_are_listed_by_deadline_and_only_those_that_are_due(
    world: World,
) -> None:
    made: dict[int, list[Txn]] = {}
    for timeout_ms in (3_000_000, 1_000_000, 2_000_000):
        for _ in range(8):
            txn = world.open(timeout_ms=timeout_ms)
            made.setdefault(txn.id.tc, []).append(txn)
    tc, txns = max(made.items(), key=lambda item: len(item[1]))
    listed = world.store.transactions.list_open(tc, deadline_ms=None, limit=100)
    assert {txn for txn, _ in listed} == {txn.id for txn in txns}
    assert [deadline for _, deadline in listed] == sorted(d for _, d in listed)
    median = listed[len(listed) // 2][1]
    due = world.store.transactions.list_open(tc, deadline_ms=median, limit=100)
    assert due == [item for item in listed if item[1] <= median]
    assert world.store.transactions.list_open(tc, deadline_ms=None, limit=2) == listed[:2]


# --- leases -----------------------------------------------------------------------------------


def test_the_store_clock_decides_whether_a_lease_is_over(world: World) -> None:
    txn = world.open(timeout_ms=60_000)
    with pytest.raises(TransactionConflictError, match="is alive until"):
        world.coordinator.abort(txn.id, EndedBy.EXPIRED, cause="somebody is impatient")
    assert world.state(txn) is OPEN

    short = world.open(timeout_ms=1)
    while not world.header(short).expired:  # bounded: the store's clock gets on by itself
        pass
    assert world.coordinator.abort(short.id, EndedBy.EXPIRED, cause="over") is ABORTED


def test_a_heartbeat_gives_an_expired_but_undecided_transaction_its_lease_back(
    world: World,
) -> None:
    txn = world.open()
    world.expire(txn)
    assert world.header(txn).expired
    world.coordinator.heartbeat(txn.id, txn.nonce, 60_000)
    assert not world.header(txn).expired
    assert world.coordinator.complete_on_behalf([txn.id], set()) is False
    assert world.state(txn) is OPEN


def test_an_expired_lease_alone_does_not_keep_the_owner_from_committing(world: World) -> None:
    txn = world.open()
    world.expire(txn)
    world.commit(txn)
    assert world.state(txn) is COMMITTED


@pytest.mark.parametrize("state", [COMMITTED, ABORTED])
def test_a_heartbeat_neither_revives_nor_prolongs_a_decided_transaction(
    world: World, state: TxnState
) -> None:
    txn = header_in(world, state)
    deadline_ms = world.header(txn).deadline_ms
    error = TransactionAbortedError if state is ABORTED else TransactionConflictError
    with pytest.raises(error):
        world.coordinator.heartbeat(txn.id, txn.nonce, 60_000)
    assert world.header(txn).deadline_ms == deadline_ms
    assert world.store.transactions.list_open(txn.id.tc, deadline_ms=None, limit=10) == []


def test_only_the_nonce_of_the_attempt_may_prolong_or_write(world: World) -> None:
    txn = world.open()
    with pytest.raises(FencedError):
        world.coordinator.heartbeat(txn.id, "another owner", 60_000)
    with pytest.raises(FencedError):
        world.coordinator.intend(txn.id, "another owner", 60_000, ["W|s|w"])
    with pytest.raises(FencedError):
        world.coordinator.append_ops(txn.id, "another owner", {"op": b""})
    assert world.header(txn).intents == frozenset()


# --- the decision as the coordinator makes it ----------------------------------------------------


def test_a_commit_repeated_by_its_owner_succeeds_and_changes_nothing(world: World) -> None:
    txn = world.open()
    winner = world.write(txn, "row")
    world.commit(txn, winner)
    finalized_ms = world.header(txn).finalized_ms
    world.commit(txn, winner)
    assert world.header(txn).finalized_ms == finalized_ms
    assert world.visible() == ["row"]


def test_a_commit_repeated_with_other_winners_is_a_conflict(world: World) -> None:
    txn = world.open()
    winner = world.write(txn, "row")
    loser = world.write(txn, "other", task=1)
    world.commit(txn, winner)
    with pytest.raises(TransactionConflictError, match="other writers"):
        world.commit(txn, winner, loser)
    assert world.visible() == ["row"]


def test_nobody_but_the_owner_may_commit(world: World) -> None:
    txn = world.open()
    with pytest.raises(FencedError):
        world.coordinator.commit(txn.id, "another owner", Outcome())
    assert world.state(txn) is OPEN
    world.commit(txn)
    with pytest.raises(FencedError):
        world.coordinator.commit(txn.id, "another owner", Outcome())


def test_a_commit_after_an_abort_fails_and_names_the_cause(world: World) -> None:
    txn = world.open()
    world.coordinator.abort(txn.id, EndedBy.FENCE, cause="a newer attempt took over")
    with pytest.raises(TransactionAbortedError, match="a newer attempt took over"):
        world.commit(txn)


def test_an_abort_after_a_commit_says_committed_and_changes_nothing(world: World) -> None:
    txn = world.open()
    world.commit(txn, world.write(txn, "row"))
    for by in EndedBy:
        state = world.coordinator.abort(txn.id, by, nonce=txn.nonce, cause="too late")
        assert state is COMMITTED
    assert world.visible() == ["row"]


def test_an_abort_by_another_process_that_claims_to_be_the_owner_is_fenced(world: World) -> None:
    txn = world.open()
    with pytest.raises(FencedError):
        world.coordinator.abort(txn.id, EndedBy.OWNER, nonce="another owner", cause="")
    assert world.state(txn) is OPEN


# --- unknown is not failed ----------------------------------------------------------------------


def test_a_commit_whose_reply_is_lost_is_found_in_the_header(world: World) -> None:
    txn = world.open()
    winner = world.write(txn, "row")
    network = world.lose({"txn_end": [Loss.REPLY]})
    world.commit(txn, winner)
    assert network.calls["txn_end"] == 1, "a decided header needs no second compare-and-set"
    assert world.visible() == ["row"]


def test_a_commit_whose_request_is_lost_is_made_again(world: World) -> None:
    txn = world.open()
    winner = world.write(txn, "row")
    network = world.lose({"txn_end": [Loss.REQUEST, Loss.REQUEST]})
    world.commit(txn, winner)
    assert network.calls["txn_end"] == 3
    assert world.visible() == ["row"]


def test_a_commit_whose_reply_is_lost_after_somebody_aborted_it_fails_as_aborted(
    world: World,
) -> None:
    txn = world.open()
    winner = world.write(txn, "row")
    world.another_process().coordinator.abort(txn.id, EndedBy.FENCE, cause="taken over")
    world.lose({"txn_end": [Loss.REPLY]})
    with pytest.raises(TransactionAbortedError, match="taken over"):
        world.commit(txn, winner)
    world.mend()
    assert world.visible() == []


def test_an_abort_whose_reply_is_lost_is_found_in_the_header(world: World) -> None:
    txn = world.open()
    world.write(txn, "row")
    world.lose({"txn_end": [Loss.REPLY]})
    world.abort(txn)
    assert world.state(txn) is ABORTED
    assert world.pinned() == []


@pytest.mark.parametrize("loss", list(Loss))
def test_a_commit_without_any_answer_is_unknown_and_not_failed(world: World, loss: Loss) -> None:
    txn = world.open()
    winner = world.write(txn, "row")
    world.lose(always={"*": loss})
    with pytest.raises(CommitStateUnknownError, match="may or may not"):
        world.commit(txn, winner)
    world.mend()
    assert world.state(txn) is (COMMITTED if loss is Loss.REPLY else OPEN)
    # The owner may ask again, and finds its own decision or makes it.
    world.commit(txn, winner)
    assert world.visible() == ["row"]


def test_a_commit_whose_requests_never_arrive_is_unknown_although_the_header_is_open(
    world: World,
) -> None:
    # The last request may still be on its way: an OPEN header does not say that it failed.
    txn = world.open()
    world.lose(always={"txn_end": Loss.REQUEST})
    with pytest.raises(CommitStateUnknownError):
        world.commit(txn)
    assert world.state(txn) is OPEN


def test_a_commit_stays_unknown_where_the_second_try_cannot_even_connect(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    txn = world.open()
    end_txn = world.store.transactions.end
    answers = iter([CommitStateUnknownError("lost"), StoreUnavailableError("no connection")])

    def unreachable(*args: object) -> object:
        raise next(answers)

    monkeypatch.setattr(world.store.transactions, "end", unreachable)
    with pytest.raises(CommitStateUnknownError):
        world.commit(txn)
    monkeypatch.setattr(world.store.transactions, "end", end_txn)
    assert world.state(txn) is OPEN


def test_a_winner_and_its_bound_stand_in_the_header_with_the_decision(world: World) -> None:
    txn = world.open()
    winner = world.write(txn, "row")
    world.commit(txn, winner)
    header = world.another_process().header(txn)
    assert list(Outcome.FromString(header.outcome).winners) == [winner]
    assert isinstance(winner, Winner)
