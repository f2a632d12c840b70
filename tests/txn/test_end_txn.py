"""What the owner of a transaction, and anybody else, is told by the coordinator (PIP-31)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from pulsar_txn_spark.errors import (
    CommitStateUnknownError,
    FencedError,
    TransactionAbortedError,
    TransactionConflictError,
    TransactionDomainError,
    TransactionNotFoundError,
)
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.store.metadata_pb2 import Outcome
from pulsar_txn_spark.store.records import Code, EndedBy, TxnHeader, TxnId, TxnState
from pulsar_txn_spark.txn.coordinator import TxnAction, TxnStatus
from tests.support.scenario import SEGMENT, Loss, Txn, World, ack

COMMIT, ABORT = TxnAction.COMMIT, TxnAction.ABORT
ANOTHER = "another owner"


def end(world: World, txn: Txn, action: TxnAction, nonce: str = "") -> None:
    world.coordinator.end_txn(txn.id, action, nonce=nonce or txn.nonce)


def unchanged(world: World, txn: Txn) -> Callable[[], bool]:
    def essence(header: TxnHeader) -> tuple[object, ...]:
        return header.state, header.outcome, header.deadline_ms, header.intents

    before = essence(world.header(txn))
    return lambda: essence(world.header(txn)) == before


# --- the table: who ends what, and hears what ---------------------------------------------------

C, A = TxnState.COMMITTED, TxnState.ABORTED
FENCED, LATE, ABORTED_BEFORE, MISSING = (
    FencedError,
    TransactionConflictError,
    TransactionAbortedError,
    TransactionNotFoundError,
)
ENDS: dict[str, tuple[str, str, str, str, str, str]] = {
    # before      owner:              another process:  administrator  sweep
    #             commit    abort     commit    abort    abort          abort, as expired
    "absent": ("MISSING", "MISSING", "MISSING", "MISSING", "MISSING", "MISSING"),
    "open": ("C", "A", "FENCED", "FENCED", "A", "LATE"),
    "expired": ("C", "A", "FENCED", "FENCED", "A", "A"),
    "committed": ("C", "LATE", "FENCED", "FENCED", "C", "C"),
    "aborted": ("ABORTED_BEFORE", "A", "FENCED", "FENCED", "A", "A"),
}
"""What comes of it: the state that the transaction has then, or the error that is raised.

An administrator and a sweep abort by `abort`, which returns the state: they are told in it that
somebody else was quicker. (The command line makes an error of that.)
"""
CODES = {
    "MISSING": Code.ABSENT,
    "FENCED": Code.FENCED,
    "LATE": Code.ALIVE,  # of one that is open; of a decided one DECIDED
}
WAYS = ("owner commits", "owner aborts", "other commits", "other aborts", "admin", "sweep")
ROWS = [
    (before, way, told) for before, row in ENDS.items() for way, told in zip(WAYS, row, strict=True)
]


def prepared(world: World, before: str) -> Txn:
    if before == "absent":
        return Txn(TxnId(0, 4711), "nonce")
    txn = world.open()
    if before == "expired":
        world.expire(txn)
    elif before != "open":
        end(world, txn, COMMIT if before == "committed" else ABORT)
    return txn


@pytest.mark.parametrize("before,way,told", ROWS)
def test_whoever_ends_a_transaction_hears_what_the_table_says(
    world: World, before: str, way: str, told: str
) -> None:
    txn = prepared(world, before)
    nonce = ANOTHER if way.startswith("other") else txn.nonce
    expected = globals()[told]

    def act() -> None:
        if way in ("admin", "sweep"):
            by = EndedBy.ADMIN if way == "admin" else EndedBy.EXPIRED
            assert world.coordinator.abort(txn.id, by, cause="a test") is expected
        else:
            end(world, txn, COMMIT if way.endswith("commits") else ABORT, nonce)

    if isinstance(expected, TxnState):
        act()
        assert world.state(txn) is expected
        return
    same = unchanged(world, txn) if before != "absent" else None
    with pytest.raises(expected) as caught:
        act()
    assert type(caught.value) is expected
    assert same is None or same()


@pytest.mark.parametrize("before,way,told", ROWS)
def test_the_script_answers_what_the_table_says(
    world: World, before: str, way: str, told: str
) -> None:
    txn = prepared(world, before)
    to = TxnState.COMMITTED if way.endswith("commits") else TxnState.ABORTED
    by = {"admin": EndedBy.ADMIN, "sweep": EndedBy.EXPIRED}.get(way, EndedBy.OWNER)
    nonce = ANOTHER if way.startswith("other") else txn.nonce
    answer = world.store.transactions.end(txn.id, to, b"", by, nonce)
    decided = before in ("committed", "aborted")
    expected = Code.DECIDED if decided and told != "FENCED" else CODES.get(told, Code.OK)
    assert answer.code is expected
    if decided and told != "FENCED":
        assert answer.state == before.upper()


@pytest.mark.parametrize("action", TxnAction)
def test_the_owner_ends_an_open_transaction_by_one_compare_and_set(
    world: World, action: TxnAction
) -> None:
    txn = world.open()
    network = world.lose()
    world.coordinator.end_txn(txn.id, action, nonce=txn.nonce, outcome=Outcome())
    assert network.calls["txn_end"] == 1
    world.mend()
    assert world.state(txn) is (TxnState.COMMITTED if action is COMMIT else TxnState.ABORTED)


@pytest.mark.parametrize("action", TxnAction)
def test_ending_again_the_same_way_succeeds_and_changes_nothing(
    world: World, action: TxnAction
) -> None:
    txn = world.open()
    end(world, txn, action)
    same = unchanged(world, txn)
    end(world, txn, action)
    assert same()


def test_a_commit_again_without_an_outcome_keeps_the_winners(world: World) -> None:
    txn = world.open()
    world.coordinator.end_txn(
        txn.id, COMMIT, nonce=txn.nonce, outcome=Outcome(winners=[world.write(txn, "row")])
    )
    end(world, txn, COMMIT)
    assert world.visible() == ["row"]


@pytest.mark.parametrize("by", EndedBy)
def test_an_abort_of_what_anybody_aborted_before_succeeds(world: World, by: EndedBy) -> None:
    txn = world.open()
    world.expire(txn)
    world.coordinator.abort(txn.id, by, nonce=txn.nonce, cause="first")
    same = unchanged(world, txn)
    end(world, txn, ABORT)
    assert same()


def test_a_commit_after_an_abort_is_a_conflict_and_changes_nothing(world: World) -> None:
    txn = world.open()
    end(world, txn, ABORT)
    same = unchanged(world, txn)
    with pytest.raises(TransactionConflictError, match="aborted before its commit") as caught:
        end(world, txn, COMMIT)
    assert isinstance(caught.value, TransactionAbortedError)
    assert same()


def test_an_abort_after_a_commit_is_a_conflict_and_changes_nothing(world: World) -> None:
    txn = world.open()
    winner = world.write(txn, "row")
    world.commit(txn, winner)
    same = unchanged(world, txn)
    with pytest.raises(TransactionConflictError, match="was committed before") as caught:
        end(world, txn, ABORT)
    assert not isinstance(caught.value, TransactionAbortedError)
    assert same()
    assert world.visible() == ["row"]


@pytest.mark.parametrize("action", TxnAction)
@pytest.mark.parametrize("before", [None, *TxnAction])
def test_another_owner_is_fenced_whatever_the_state(
    world: World, before: TxnAction | None, action: TxnAction
) -> None:
    txn = world.open()
    if before is not None:
        end(world, txn, before)
    same = unchanged(world, txn)
    with pytest.raises(FencedError):
        end(world, txn, action, ANOTHER)
    assert same()


@pytest.mark.parametrize("action", TxnAction)
def test_another_owner_whose_replies_are_lost_is_fenced_as_well(
    world: World, action: TxnAction
) -> None:
    txn = world.open()
    end(world, txn, action)
    world.lose({"txn_end": [Loss.REPLY]})
    with pytest.raises(FencedError):
        end(world, txn, action, ANOTHER)


@pytest.mark.parametrize("action", TxnAction)
def test_a_transaction_without_a_header_is_not_found(world: World, action: TxnAction) -> None:
    with pytest.raises(TransactionNotFoundError):
        end(world, Txn(TxnId(0, 4711), "nonce"), action)


@pytest.mark.parametrize("action", TxnAction)
def test_an_end_without_any_reply_is_unknown_and_may_be_repeated(
    world: World, action: TxnAction
) -> None:
    txn = world.open()
    world.lose(always={"txn_end": Loss.REPLY, "txn_read": Loss.REQUEST})
    with pytest.raises(CommitStateUnknownError):
        world.coordinator.end_txn(txn.id, action, nonce=txn.nonce, outcome=Outcome())
    world.mend()
    end(world, txn, action)
    assert world.state(txn) is (TxnState.COMMITTED if action is COMMIT else TxnState.ABORTED)


def test_a_commit_that_names_no_writers_is_refused_where_there_are_some(world: World) -> None:
    txn = world.open()
    winner = world.write(txn, "row")
    with pytest.raises(TransactionConflictError, match="names none of them"):
        end(world, txn, COMMIT)
    assert world.state(txn) is TxnState.OPEN
    world.commit(txn, winner)
    assert world.visible() == ["row"]


def test_a_commit_again_that_has_seen_more_of_the_store_is_the_same(world: World) -> None:
    txn = world.open()
    winner = world.write(txn, "row")
    for seen in (1, 2):
        outcome = Outcome(winners=[winner], last_seen={f"seg:{SEGMENT}": seen})
        world.coordinator.end_txn(txn.id, COMMIT, nonce=txn.nonce, outcome=outcome)
    assert world.visible() == ["row"]


# --- what changes nothing -----------------------------------------------------------------------


@pytest.mark.parametrize("nonce", ["owner", ANOTHER])
@pytest.mark.parametrize("before", [None, *TxnAction])
def test_participants_are_added_to_open_transactions_by_their_owner_and_change_nothing(
    world: World, before: TxnAction | None, nonce: str
) -> None:
    txn = world.open("owner")
    if before is not None:
        end(world, txn, before)
    expected: type[Exception] | None = {
        None: None,
        COMMIT: TransactionConflictError,
        ABORT: TransactionAbortedError,
    }[before]
    if nonce == ANOTHER:
        expected = FencedError
    same = unchanged(world, txn)
    for _ in range(2):
        with pytest.raises(expected) if expected else nullcontext():
            world.coordinator.add_partition(txn.id, [SEGMENT], nonce=nonce)
        with pytest.raises(expected) if expected else nullcontext():
            world.coordinator.add_subscription(txn.id, [(SEGMENT, "sub")], nonce=nonce)
    assert same()


def test_nothing_is_added_to_a_transaction_without_a_header(world: World) -> None:
    nobody = TxnId(0, 4711)
    with pytest.raises(TransactionNotFoundError):
        world.coordinator.add_partition(nobody, [SEGMENT], nonce="n")
    with pytest.raises(TransactionNotFoundError):
        world.coordinator.add_subscription(nobody, [(SEGMENT, "sub")], nonce="n")


# --- statuses -----------------------------------------------------------------------------------


def test_a_status_is_final_only_once_every_participant_has_materialized(world: World) -> None:
    txn = world.open()
    winner = world.write(txn, "row")
    assert world.coordinator.status(txn.id) is TxnStatus.OPEN
    world.expire(txn)
    assert world.coordinator.status(txn.id) is TxnStatus.OPEN
    world.decide(txn, winner)
    assert world.coordinator.status(txn.id) is TxnStatus.COMMITTING
    world.coordinator.materialize(world.header(txn))
    assert world.coordinator.status(txn.id) is TxnStatus.COMMITTED

    lost = world.open()
    world.store.transactions.end(lost.id, TxnState.ABORTED, b"", EndedBy.FENCE)
    assert world.coordinator.status(lost.id) is TxnStatus.ABORTING
    world.coordinator.materialize(world.header(lost))
    assert world.coordinator.status(lost.id) is TxnStatus.ABORTED


def test_a_transaction_that_was_collected_has_no_status(world: World) -> None:
    with pytest.raises(TransactionNotFoundError, match="collected"):
        world.coordinator.status(TxnId(0, 4711))


class PulsarsTxnId:
    """An id of Pulsar's own transactions, as the bridge to a JVM shows it."""

    def __str__(self) -> str:
        return "(0,1)"


@pytest.mark.parametrize("given", [PulsarsTxnId(), (0, 1), "0:1", TxnId(99, 1), TxnId(0, -1)])
def test_an_id_of_the_other_kind_is_refused_before_the_store_is_asked(
    world: World, given: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.open("n")
    coordinator, buffer = world.coordinator, world.buffer
    monkeypatch.setattr(world.store.scripts, "client", None)
    record = Outcome()
    for refused in (
        lambda: coordinator.status(given),
        lambda: coordinator.add_partition(given, ["s"], nonce="n"),
        lambda: coordinator.add_subscription(given, [("s", "u")], nonce="n"),
        lambda: coordinator.end_txn(given, TxnAction.COMMIT, nonce="n", outcome=record),
        lambda: coordinator.end_txn(given, TxnAction.ABORT, nonce="n"),
        lambda: coordinator.abort(given, EndedBy.ADMIN, cause="c"),
        lambda: coordinator.append_ops(given, "n", {"op": b""}),
        lambda: buffer.admit(given, "n", 1000, "w", ["s"]),
        lambda: world.acks.acknowledge(given, "n", 1000, [ack(EARLIEST, Position(1, 1))]),
    ):
        with pytest.raises(TransactionDomainError, match="Pulsar's own transactions"):
            refused()
