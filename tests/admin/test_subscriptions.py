"""Resets and deletions of subscriptions: one step each, and nobody dead is in their way."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from pulsar_txn_spark import Admin
from pulsar_txn_spark.backends.embedded.log import EmbeddedSegmentLog
from pulsar_txn_spark.cli import main
from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.errors import (
    AcknowledgementConflictError,
    OptionError,
    PulsarTxnError,
    SegmentNotFoundError,
    TopicNotFoundError,
)
from pulsar_txn_spark.position import EARLIEST, MessagePosition, Position
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.retention import Retention
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.store.metadata_pb2 import Outcome
from pulsar_txn_spark.store.records import AckRequest, Answer, Code, EndedBy, TxnId, TxnState
from pulsar_txn_spark.store.redis.subscriptions import RedisSubscriptionStore

TOPIC = TopicName.parse("administered")
NAME = str(TOPIC)
SUB = "sub"


@pytest.fixture
def run(run: Components) -> Components:
    run.topics.create(TOPIC, 1)
    return run


@pytest.fixture
def options(redis_path: str) -> dict[str, str]:
    return {"store.path": redis_path}


def segment(run: Components, number: int = 0) -> str:
    return run.topics.require(TOPIC).segment(str(number)).ref.id


def write(run: Components, *values: bytes) -> Position:
    [found] = run.topics.require(TOPIC).active
    writer = run.log.writer(found.ref, "plain")
    for value in values:
        writer.append(pa.record_batch([pa.array([value])], names=["value"]))
        last = writer.flush().last
    writer.close()
    assert last is not None
    run.store.segments.raise_high(found.ref.id, last)
    return last


def claim(run: Components, start: Position = EARLIEST, source: int = 1) -> None:
    answer = run.store.subscriptions.claim_cursor(segment(run), SUB, "q", source, start)
    assert answer.code is Code.OK


def place(
    run: Components, start: Position, end: Position, timeout_ms: int = 60_000
) -> tuple[TxnId, str]:
    """Place a pending acknowledgement of a transaction that stays open."""
    nonce = f"ack-{end}"
    txn = run.coordinator.new_txn(nonce, timeout_ms=timeout_ms)
    run.store.transactions.intend(txn, nonce, timeout_ms, [f"A|{segment(run)}|{SUB}"])
    request = AckRequest(segment(run), SUB, "q", 1, start, end, "s", "0")
    assert [a.code for a in run.store.subscriptions.place_acks(txn, [request])] == [Code.OK]
    return txn, nonce


def stands(run: Components) -> tuple[Position, str] | None:
    [cursor] = run.store.subscriptions.read_cursors([segment(run)], SUB)
    return None if cursor is None else (cursor.position, cursor.query)


def at(entry: int) -> Position:
    return Position(1, entry)


def delete_beside(run: Components, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let retention delete a segment that is read through, behind the next look at its cursors."""
    end = write(run, b"a")
    claim(run, end)
    [parent] = run.topics.require(TOPIC).active
    run.topics.changes.split(TOPIC, parent.descriptor)
    run.store.topics.change_property(NAME, "__retention", Retention(size_bytes=0).serialize())
    read = RedisSubscriptionStore.read_cursors
    deleted: list[str] = []

    def beside(store: RedisSubscriptionStore, *args: Any) -> Any:
        found = read(store, *args)
        if not deleted:
            deleted.append("now")
            deleted[:] = run.retention().sweep(lambda _: None).deleted
        return found

    monkeypatch.setattr(RedisSubscriptionStore, "read_cursors", beside)
    return deleted


# -- one step ------------------------------------------------------------------------------------


def test_a_reset_to_here_keeps_what_is_committed_while_it_runs(
    run: Components, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding 6: it read the cursor and wrote it back."""
    write(run, b"a", b"b")
    claim(run)
    reset = RedisSubscriptionStore.reset_cursor
    late: list[int] = []

    def beside(store: RedisSubscriptionStore, *args: Any) -> Any:
        if not late:
            late.append(1)
            run.coordinator.commit(*place(run, EARLIEST, at(1)), Outcome())
        return reset(store, *args)

    monkeypatch.setattr(RedisSubscriptionStore, "reset_cursor", beside)
    Admin(options).reset_subscription(NAME, SUB, to="here")
    assert stands(run) == (at(1), "")


@pytest.mark.parametrize("to", ["earliest", "latest"])
def test_a_reset_that_finds_the_cursor_moved_reads_it_again(
    run: Components, options: dict[str, str], monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    write(run, b"a", b"b")
    claim(run)
    reset = RedisSubscriptionStore.reset_cursor
    calls: list[Code] = []

    def beside(store: RedisSubscriptionStore, *args: Any) -> Any:
        if not calls:
            run.coordinator.commit(*place(run, EARLIEST, at(0)), Outcome())
            write(run, b"c")
        answer = reset(store, *args)
        calls.append(answer.code)
        return answer

    monkeypatch.setattr(RedisSubscriptionStore, "reset_cursor", beside)
    Admin(options).reset_subscription(NAME, SUB, to=to)
    assert calls == [Code.CHANGED, Code.OK]
    assert stands(run) == ((EARLIEST if to == "earliest" else at(2)), "")


@pytest.mark.parametrize(
    "to", ["earliest", "latest", "here", datetime.max.replace(tzinfo=UTC)], ids=str
)
def test_a_reset_passes_over_a_segment_that_is_deleted_beside_it(
    run: Components, options: dict[str, str], monkeypatch: pytest.MonkeyPatch, to: str | datetime
) -> None:
    """Its subscriptions have read it, and stand in its children: nobody needs what is left."""
    deleted = delete_beside(run, monkeypatch)
    moves = Admin(options).reset_subscription(NAME, SUB, to=to)
    [parent, *children] = [s.ref.id for s in run.topics.require(TOPIC).segments]
    assert deleted == [parent]
    assert [move.segment for move in moves] == children
    cursors = run.store.subscriptions.read_cursors(children, SUB)
    assert [cursor and cursor.query for cursor in cursors] == ["", ""]


def test_a_place_in_a_segment_that_is_deleted_meanwhile_is_refused(
    run: Components, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted = delete_beside(run, monkeypatch)
    with pytest.raises(OptionError, match="has no log: a subscription stands only in"):
        Admin(options).reset_subscription(NAME, SUB, to={"0000-ffff-0": EARLIEST})
    assert len(deleted) == 1


@pytest.mark.parametrize("to", ["earliest", "latest", {"0000-ffff-0": EARLIEST}], ids=str)
def test_a_log_that_is_gone_though_somebody_needs_it_is_an_error_of_the_reset(
    run: Components, options: dict[str, str], to: str | dict[str, Position]
) -> None:
    write(run, b"a")
    claim(run)
    [found] = run.topics.require(TOPIC).active
    run.log.delete(found.ref)
    with pytest.raises(SegmentNotFoundError):
        Admin(options).reset_subscription(NAME, SUB, to=to)


def test_a_query_that_runs_cannot_take_a_subscription_back(
    run: Components, options: dict[str, str]
) -> None:
    write(run, b"a")
    claim(run, source=7)
    Admin(options).reset_subscription(NAME, SUB, to="here")
    for source, expected in ((6, Code.CHANGED), (7, Code.CHANGED), (8, Code.OK)):
        answer = run.store.subscriptions.claim_cursor(segment(run), SUB, "q", source, EARLIEST)
        assert answer.code is expected


def test_a_query_that_goes_on_elsewhere_does_not_take_a_subscription_that_was_moved(
    run: Components, options: dict[str, str]
) -> None:
    write(run, b"a")
    claim(run)
    Admin(options).reset_subscription(NAME, SUB, to="latest")
    for start, expected in ((EARLIEST, Code.CHANGED), (at(0), Code.OK)):
        [answer] = run.store.subscriptions.claim_cursors(SUB, "q", 2, {segment(run): start})
        assert answer.code is expected


# -- who is in the way ---------------------------------------------------------------------------

Act = Callable[[dict[str, str]], object]
BOTH: list[Act] = [
    lambda options: Admin(options).reset_subscription(NAME, SUB, to="here"),
    lambda options: Admin(options).delete_subscription(NAME, SUB),
]


@pytest.mark.parametrize("act", BOTH, ids=["reset", "delete"])
def test_a_decided_transaction_is_completed_on_behalf_of_its_dead_owner(
    run: Components, options: dict[str, str], act: Act
) -> None:
    """Finding 13: both refused for ever, until somebody swept."""
    write(run, b"a")
    claim(run)
    txn, nonce = place(run, EARLIEST, at(0))
    outcome = Outcome().SerializeToString(deterministic=True)
    ended = run.store.transactions.end(txn, TxnState.COMMITTED, outcome, EndedBy.OWNER, nonce=nonce)
    assert ended.code is Code.OK
    act(options)  # the owner died right behind the compare-and-set
    assert stands(run) in ((at(0), ""), None)


@pytest.mark.parametrize("act", BOTH, ids=["reset", "delete"])
def test_an_expired_transaction_is_aborted_first(
    run: Components, options: dict[str, str], act: Act
) -> None:
    """Finding 13."""
    write(run, b"a")
    claim(run)
    txn, _ = place(run, EARLIEST, at(0), timeout_ms=0)
    act(options)
    header = run.store.transactions.read(txn)
    assert header is not None
    assert header.state is TxnState.ABORTED
    assert stands(run) in ((EARLIEST, ""), None)


@pytest.mark.parametrize("act", BOTH, ids=["reset", "delete"])
def test_a_living_transaction_is_refused_and_named(
    run: Components, options: dict[str, str], act: Act
) -> None:
    write(run, b"a")
    claim(run)
    txn, _ = place(run, EARLIEST, at(0))
    with pytest.raises(AcknowledgementConflictError, match="which is open") as caught:
        act(options)
    assert str(txn) in str(caught.value)
    assert stands(run) == (EARLIEST, "q")


# -- where to ------------------------------------------------------------------------------------


def test_an_unknown_subscription_is_an_error_and_is_not_made(
    run: Components, options: dict[str, str]
) -> None:
    """Finding 25: a misspelt name was created, and then retained data for ever."""
    claim(run)
    for act in (
        lambda: Admin(options).reset_subscription(NAME, "subb", to="earliest"),
        lambda: Admin(options).delete_subscription(NAME, "subb"),
    ):
        with pytest.raises(PulsarTxnError, match="has no subscription 'subb'; there are: sub"):
            act()
    assert run.store.subscriptions.names(segment(run)) == [SUB]


def test_a_subscription_is_reset_to_a_position(run: Components, options: dict[str, str]) -> None:
    write(run, b"a", b"b", b"c")
    claim(run)
    descriptor = segment(run).rpartition("/")[2]
    places: Any = ({descriptor: "1:1"}, json.dumps({descriptor: "1:1"}), {segment(run): at(1)})
    for number, to in enumerate(places, 1):
        claim(run, source=number)
        [move] = Admin(options).reset_subscription(NAME, SUB, to=to)
        assert (str(move.after), move.owner) == ("1:1", "q")
        assert stands(run) == (at(1), "")


def test_a_reset_refuses_positions_of_another_topic_or_of_an_earlier_life(
    run: Components, options: dict[str, str]
) -> None:
    admin, other = Admin(options), TopicName.parse("other")
    run.topics.create(other, 1)
    earlier = segment(run)
    descriptor = earlier.rpartition("/")[2]
    admin.delete_topic(NAME)
    run.topics.create(TOPIC, 1)
    write(run, b"a", b"b", b"c")
    claim(run)
    foreign = run.topics.require(other).segments[0].ref.id
    for to, said in (
        ({str(other): {descriptor: "1:1"}}, f"are of topic {other}, but"),
        ({NAME: {descriptor: "1:1"}, str(other): {descriptor: "1:1"}}, "positions of one topic"),
        ({foreign: "1:1"}, f"has no segment '{foreign}'"),
        ({earlier: "1:1"}, f"has no segment '{earlier}'"),
    ):
        with pytest.raises(OptionError, match=re.escape(said)):
            admin.reset_subscription(NAME, SUB, to=json.dumps(to))
        assert stands(run) == (EARLIEST, "q")
    admin.reset_subscription(NAME, SUB, to=json.dumps({"administered": {descriptor: "1:1"}}))
    assert stands(run) == (at(1), "")


def test_a_reset_never_goes_behind_what_retention_lets_go_meanwhile(
    run: Components, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(run, b"a", b"b", b"c")
    claim(run, at(2))
    descriptor = segment(run).rpartition("/")[2]
    reset = RedisSubscriptionStore.reset_cursor

    def beside(store: RedisSubscriptionStore, *args: Any) -> Any:
        run.store.segments.mark_trimmed(segment(run), at(1))
        return reset(store, *args)

    monkeypatch.setattr(RedisSubscriptionStore, "reset_cursor", beside)
    with pytest.raises(OptionError, match=r"up to 1:1 was deleted by retention.* behind 1:0"):
        Admin(options).reset_subscription(NAME, SUB, to={descriptor: "1:0"})
    assert stands(run) == (at(2), "q")
    [move] = Admin(options).reset_subscription(NAME, SUB, to={descriptor: "earliest"})
    assert str(move.after) == "1:1"


def test_a_deletion_takes_a_cursor_along_that_is_handed_over_beside_it(
    run: Components, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(run)
    run.topics.changes.split(TOPIC, "0")
    [parent, *children] = [s.ref.id for s in run.topics.require(TOPIC).segments]
    delete = RedisSubscriptionStore.delete_cursor
    order: list[str] = []

    def beside(store: RedisSubscriptionStore, id_: str, name: str) -> Any:
        if id_ == parent and parent not in order:
            for child in children:
                store.inherit_cursor(child, name, "q", "", 0)
        order.append(id_)
        return delete(store, id_, name)

    monkeypatch.setattr(RedisSubscriptionStore, "delete_cursor", beside)
    Admin(options).delete_subscription(NAME, SUB)
    assert order[: len(children) + 1] == [*reversed(children), parent]
    ids = [parent, *children]
    assert run.store.subscriptions.read_cursors(ids, SUB) == [None] * len(ids)


def test_a_deletion_leaves_the_subscription_of_another_topic_of_the_name_alone(
    run: Components, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(run)
    delete = RedisSubscriptionStore.delete_cursor

    def beside(store: RedisSubscriptionStore, id_: str, name: str) -> Any:
        answer = delete(store, id_, name)
        run.topics.delete(TOPIC)
        run.topics.create(TOPIC, 1)
        claim(run)
        return answer

    monkeypatch.setattr(RedisSubscriptionStore, "delete_cursor", beside)
    with pytest.raises(TopicNotFoundError, match="nothing was done to another topic"):
        Admin(options).delete_subscription(NAME, SUB)
    assert stands(run) == (EARLIEST, "q")


@pytest.mark.parametrize("pending", [False, True])
def test_a_deletion_says_that_it_cannot_delete_what_is_used_again_and_again(
    run: Components, options: dict[str, str], monkeypatch: pytest.MonkeyPatch, pending: bool
) -> None:
    claim(run)
    delete = RedisSubscriptionStore.delete_cursor

    def beside(store: RedisSubscriptionStore, id_: str, name: str) -> Any:
        answer = delete(store, id_, name)
        claim(run)
        return Answer(Code.PENDING) if pending else answer

    monkeypatch.setattr(RedisSubscriptionStore, "delete_cursor", beside)
    with pytest.raises(AcknowledgementConflictError, match="Stop it, then delete again"):
        Admin(options).delete_subscription(NAME, SUB)


def test_a_segment_that_is_not_named_stays_where_it_stands(
    run: Components, options: dict[str, str]
) -> None:
    write(run, b"a", b"b")
    claim(run, at(1))
    run.topics.changes.seal(TOPIC, "0")
    child = run.topics.require(TOPIC).active[0]
    run.store.subscriptions.claim_cursor(child.ref.id, SUB, "q", 1, EARLIEST)
    Admin(options).reset_subscription(NAME, SUB, to={child.descriptor: "earliest"})
    assert stands(run) == (at(1), "")


@pytest.mark.parametrize(
    "to, expected",
    [
        ({"0000-ffff-0": "1:9"}, "1:9 lies behind 1:0"),
        ({"0000-ffff-7": "1:0"}, "has no segment"),
        ({"0000-ffff-0": "x"}, "expected a position as 'ledger:entry'"),
        ({}, "expected positions like"),
        ("yesterday", "expected 'earliest', 'latest', 'here', a time"),
        ("2026-01-31T08:00:00", "has no zone"),
        ("1769846400", "looks like seconds"),
        (7, "looks like seconds"),
    ],
)
def test_a_place_that_does_not_exist_is_refused(
    run: Components, options: dict[str, str], to: Any, expected: str
) -> None:
    write(run, b"a")
    claim(run)
    with pytest.raises(OptionError, match=expected):
        Admin(options).reset_subscription(NAME, SUB, to=to)
    assert stands(run) == (EARLIEST, "q")


def moment(run: Components) -> int:
    """Return a time after everything so far, and not after what comes."""
    _, begun = run.store.transactions.lowest_open(0)
    now = begun
    while now == begun:
        _, now = run.store.transactions.lowest_open(0)
    return now


def test_a_subscription_is_reset_to_a_time(run: Components, options: dict[str, str]) -> None:
    write(run, b"old")
    now_ms = moment(run)
    write(run, b"new")
    later = datetime.now(UTC) + timedelta(days=1)
    time = datetime.fromtimestamp(now_ms / 1000, UTC)
    claim(run)
    for to in (time, time.isoformat(), now_ms, str(now_ms)):
        Admin(options).reset_subscription(NAME, SUB, to=to)
        assert stands(run) == (at(0), "")
        Admin(options).reset_subscription(NAME, SUB, to=later)
        assert stands(run) == (at(1), "")
        Admin(options).reset_subscription(NAME, SUB, to=0)
        assert stands(run) == (EARLIEST, "")


def test_a_reset_to_a_time_begins_a_child_at_its_beginning_if_its_parent_is_not_read(
    run: Components, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(run, b"old")
    first, parent = moment(run), segment(run)
    write(run, b"new")
    claim(run)
    run.topics.changes.seal(TOPIC, "0")
    child = run.topics.require(TOPIC).active[0].ref
    second = moment(run)
    write(run, b"newest")
    position_at = EmbeddedSegmentLog.position_at

    def behind(self: Any, ref: SegmentRef, time_ms: int) -> Position | None:
        # The child was written by a producer whose clock is behind.
        return None if ref.id == child.id else position_at(self, ref, time_ms)

    def stand(name: str) -> Position:
        [cursor] = run.store.subscriptions.read_cursors([name], SUB)
        assert cursor is not None
        return cursor.position

    Admin(options).reset_subscription(NAME, SUB, to=second)
    assert (stand(parent), stand(child.id)) == (at(1), EARLIEST)
    monkeypatch.setattr(EmbeddedSegmentLog, "position_at", behind)
    Admin(options).reset_subscription(NAME, SUB, to=first)
    assert (stand(parent), stand(child.id)) == (at(0), EARLIEST)
    Admin(options).reset_subscription(NAME, SUB, to=second)
    assert (stand(parent), stand(child.id)) == (at(1), at(0))


def test_a_reset_to_a_time_says_behind_an_empty_segment_what_its_parent_says(
    run: Components, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that was sealed without a row has nothing left to read, and its own child has."""
    write(run, b"old")
    time_ms = moment(run)
    write(run, b"new")
    claim(run)
    run.topics.changes.seal(TOPIC, "0")
    run.topics.changes.seal(TOPIC, "1")
    write(run, b"newest")
    # The last row was written by a producer whose clock is behind.
    last, position_at = segment(run, 2), EmbeddedSegmentLog.position_at
    monkeypatch.setattr(
        EmbeddedSegmentLog,
        "position_at",
        lambda log, ref, at_ms: None if ref.id == last else position_at(log, ref, at_ms),
    )
    moves = Admin(options).reset_subscription(NAME, SUB, to=time_ms)
    after = [move.after for move in moves]
    assert after == [MessagePosition.whole(place) for place in (at(0), EARLIEST, EARLIEST)]


def test_what_is_not_decided_yet_is_not_skipped_however_old_it_is(
    run: Components, options: dict[str, str]
) -> None:
    last = write(run, b"old")
    txn = run.coordinator.new_txn("open", timeout_ms=60_000)
    run.buffer.admit(txn, "open", 60_000, f"{txn.key}-0-w", [segment(run)])
    write(run, b"behind the pin")
    claim(run)
    later = datetime.now(UTC) + timedelta(days=1)
    Admin(options).reset_subscription(NAME, SUB, to=later)
    assert stands(run) == (last, "")


def test_a_dry_run_says_what_would_move_and_moves_nothing(
    run: Components, options: dict[str, str]
) -> None:
    write(run, b"a", b"b")
    claim(run)
    [move] = Admin(options).reset_subscription(NAME, SUB, to="latest", dry_run=True)
    assert (str(move.before), str(move.after)) == ("-1:-1", "1:1")
    assert stands(run) == (EARLIEST, "q")


# -- the command line ----------------------------------------------------------------------------


def invoke(options: dict[str, str], *args: str, answer: str = "") -> Any:
    given = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    return CliRunner().invoke(main.app, ["subscription", *args, *given], input=answer)


def test_a_reset_without_a_place_is_refused(run: Components, options: dict[str, str]) -> None:
    """Finding 25: it rewound to the beginning, unasked."""
    write(run, b"a")
    claim(run, at(0))
    result = invoke(options, "reset", NAME, SUB)
    assert result.exit_code == 2
    assert "--to" in result.output
    assert stands(run) == (at(0), "q")


@pytest.mark.parametrize(
    "command", [["reset", NAME, SUB, "--to", "earliest"], ["delete", NAME, SUB]]
)
def test_a_reset_and_a_deletion_ask_and_name_the_owner(
    run: Components, options: dict[str, str], command: list[str]
) -> None:
    write(run, b"a")
    claim(run)
    run.coordinator.commit(*place(run, EARLIEST, at(0)), Outcome())
    result = invoke(options, *command, answer="n\n")
    assert result.exit_code == 1
    output = " ".join(result.output.split())
    assert re.search(
        r"belongs to query q, which last committed an acknowledgement \d+ s ago", output
    )
    assert stands(run) == (at(0), "q")
    unasked = invoke(options, *command)
    assert isinstance(unasked.exception, OptionError)
    assert "--yes" in str(unasked.exception)
    assert stands(run) == (at(0), "q")
    assert invoke(options, *command, answer="y\n").exit_code == 0
    assert stands(run) in ((EARLIEST, ""), None)


def test_a_dry_run_of_the_command_asks_nothing_and_changes_nothing(
    run: Components, options: dict[str, str]
) -> None:
    write(run, b"a")
    claim(run)
    result = invoke(options, "reset", NAME, SUB, "--to", "latest", "--dry-run", "--json")
    [row] = json.loads(result.stdout)
    assert (row["from"], row["to"], row["query"]) == ("-1:-1", "1:0", "q")
    assert stands(run) == (EARLIEST, "q")


@pytest.mark.parametrize(
    "command",
    [
        ["reset", NAME, "subb", "--to", "earliest", "--yes"],
        ["delete", NAME, "subb", "--yes"],
        ["describe", NAME, "subb"],
    ],
    ids=["reset", "delete", "describe"],
)
def test_an_unknown_name_on_the_command_line_is_an_error(
    run: Components, options: dict[str, str], command: list[str]
) -> None:
    claim(run)
    result = invoke(options, *command)
    assert "has no subscription 'subb'" in str(result.exception)
    assert run.store.subscriptions.names(segment(run)) == [SUB]
