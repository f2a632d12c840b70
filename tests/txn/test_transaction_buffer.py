"""The transaction buffer: who may append to a segment, and how far it may be read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pulsar_txn_spark.errors import (
    FencedError,
    StoreCorruptError,
    StoreUnavailableError,
    TransactionAbortedError,
    TransactionConflictError,
)
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.store.metadata_pb2 import OpRecord, Winner
from pulsar_txn_spark.store.records import (
    Code,
    EndedBy,
    Gate,
    SegmentDecision,
    TxnId,
    TxnState,
    WriterFate,
)
from pulsar_txn_spark.store.redis import segments as segments_module
from pulsar_txn_spark.store.redis.exchange import Request
from pulsar_txn_spark.txn import transaction_buffer as buffer_module
from pulsar_txn_spark.txn.coordinator import as_record
from pulsar_txn_spark.txn.op_log import read_ops
from pulsar_txn_spark.txn.participants import write_intent
from pulsar_txn_spark.txn.sweeper import Sweeper
from pulsar_txn_spark.txn.transaction_buffer import Visibility, txn_of_writer, writer_name
from tests.support.round_trips import round_trips
from tests.support.scenario import OTHER_SEGMENT, SEGMENT, TIMEOUT_MS, Loss, World

# --- admission --------------------------------------------------------------------------------


def test_a_writer_is_intended_and_pinned_before_it_may_append(world: World) -> None:
    txn = world.open()
    writer = world.admit(txn)
    assert world.header(txn).intents == {write_intent(SEGMENT, writer)}
    assert world.pinned() == [writer]


def test_the_intents_of_all_segments_are_recorded_in_one_step_before_any_pin(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    txn = world.open()
    seen: list[frozenset[str]] = []
    pin = world.store.segments.pin

    def spy(*args: Any) -> Any:
        seen.append(world.header(txn).intents)
        return pin(*args)

    monkeypatch.setattr(world.store.segments, "pin", spy)
    world.buffer.admit(txn.id, txn.nonce, TIMEOUT_MS, "w", [SEGMENT, OTHER_SEGMENT])
    assert seen == [{write_intent(SEGMENT, "w"), write_intent(OTHER_SEGMENT, "w")}]
    assert world.pinned(SEGMENT) == world.pinned(OTHER_SEGMENT) == ["w"]


def test_a_pin_asked_for_again_is_the_old_pin(world: World) -> None:
    txn = world.open()
    writer = world.admit(txn)
    other = world.open()
    world.commit(other, world.write(other, "a", task=1))
    [answer] = world.store.segments.pin(txn.id, writer, [SEGMENT])
    assert answer.code is Code.PINNED
    assert answer.bound == EARLIEST, "the bound must not rise"
    assert world.pinned() == [writer]


def test_a_pin_stands_at_the_highest_position_that_is_known_to_be_acknowledged(
    world: World,
) -> None:
    txn = world.open()
    world.commit(txn, world.write(txn, "a", "b"))
    later = world.open()
    world.admit(later)
    [pin] = world.store.segments.gates([SEGMENT])[0].pins
    assert (pin.bound, pin.txn) == (Position(1, 1), later.id)


def test_an_acknowledged_position_is_only_ever_raised(world: World) -> None:
    world.store.segments.raise_high(SEGMENT, Position(9, 0))
    world.store.segments.raise_high(SEGMENT, Position(8, 99))
    world.admit(world.open())
    [pin] = world.store.segments.gates([SEGMENT])[0].pins
    assert pin.bound == Position(9, 0), "positions compare as numbers, not as text"


@pytest.mark.parametrize("state", [TxnState.COMMITTED, TxnState.ABORTED])
def test_a_decided_transaction_admits_nobody_and_leaves_no_pin(
    world: World, state: TxnState
) -> None:
    txn = world.open()
    world.store.transactions.end(txn.id, state, b"", EndedBy.OWNER, txn.nonce)
    with pytest.raises((TransactionAbortedError, TransactionConflictError)):
        world.admit(txn)
    assert world.header(txn).intents == frozenset()
    assert world.pinned() == []


def test_a_pin_after_the_drop_is_refused(world: World) -> None:
    txn = world.open()
    writer = world.admit(txn)
    world.store.segments.materialize(
        txn.id, TxnState.ABORTED, [SegmentDecision(SEGMENT, (WriterFate(writer, EARLIEST),))]
    )
    # As if the segment had forgotten that the transaction was resolved: the drop alone refuses.
    world.client.hdel(world.key("resolved"), txn.id.key)
    with pytest.raises(FencedError, match="was dropped"):
        world.buffer.admit(txn.id, txn.nonce, TIMEOUT_MS, writer, [SEGMENT])
    assert world.pinned() == []


@pytest.mark.parametrize("state", [TxnState.COMMITTED, TxnState.ABORTED])
def test_a_pin_request_that_arrives_twice_and_late_finds_the_segment_resolved(
    world: World, state: TxnState
) -> None:
    txn = world.open()
    winner = world.write(txn, "row")
    if state is TxnState.COMMITTED:
        world.commit(txn, winner)
    else:
        world.abort(txn)
    world.client.hdel(world.key("dropped"), winner.writer)
    [answer] = world.store.segments.pin(txn.id, winner.writer, [SEGMENT])
    assert (answer.code, answer.decision) == (Code.RESOLVED, state)
    assert world.pinned() == []


def test_a_pin_that_overtakes_its_decision_is_refused_after_the_materialization(
    world: World,
) -> None:
    # The intent was recorded, the pin is still on its way when the transaction is aborted.
    txn = world.open()
    writer = writer_name(txn.id, 0, "late")
    world.coordinator.intend(txn.id, txn.nonce, TIMEOUT_MS, [write_intent(SEGMENT, writer)])
    world.abort(txn)
    [answer] = world.store.segments.pin(txn.id, writer, [SEGMENT])
    assert answer.code is Code.RESOLVED
    assert world.pinned() == []


def test_a_closed_segment_takes_no_pin_of_an_older_transaction(world: World) -> None:
    txn = world.open()
    newer = world.open()
    while newer.id.tc != txn.id.tc:
        newer = world.open()
    world.admit(newer, segment=SEGMENT)
    world.client.hset(world.key("closed"), str(txn.id.tc), str(newer.id.counter))
    with pytest.raises(TransactionConflictError, match="closed"):
        world.admit(txn)
    assert len(world.pinned()) == 1


# --- the gate ---------------------------------------------------------------------------------


def test_an_open_transaction_hides_its_own_rows_and_everything_behind_them(world: World) -> None:
    done = world.open()
    world.commit(done, world.write(done, "a"))
    txn = world.open()
    world.write(txn, "b")
    later = world.open()
    world.commit(later, world.write(later, "c", task=1))
    assert world.visible() == ["a"]
    assert world.readable().blocked_by == (txn.id,)


def test_a_committed_transaction_is_visible_whole_and_an_aborted_one_never(world: World) -> None:
    one, two = world.open(), world.open()
    first = world.write(one, "a")
    world.write(two, "x")
    second = world.write(one, "b", task=1)
    assert world.visible() == []
    world.commit(one, first, second)
    assert world.visible() == [], "the other one's pin was set before anything was acknowledged"
    world.abort(two)
    assert world.visible() == ["a", "b"]
    assert world.pinned() == []


def test_a_writer_that_is_not_named_by_the_commit_is_dropped_from_the_start(world: World) -> None:
    txn = world.open()
    loser = world.write(txn, "doubled", task=1)
    winner = world.write(txn, "a")
    world.commit(txn, winner)
    assert world.visible() == ["a"]
    assert world.dropped() == {loser.writer: EARLIEST}


def test_a_losing_writer_whose_pin_alone_is_there_blocks_nobody(world: World) -> None:
    txn = world.open()
    world.admit(txn, task=1)
    world.commit(txn, world.write(txn, "a"))
    assert world.pinned() == []
    assert world.visible() == ["a"]


def test_a_winner_with_a_bound_counts_up_to_its_bound_only(world: World) -> None:
    txn = world.open()
    writer = world.admit(txn)
    kept = world.log.append(SEGMENT, writer, "kept")
    world.log.append(SEGMENT, writer, "went out again under another name")
    other = world.write(txn, "went out again under another name", task=1)
    bounded = Winner(segment=SEGMENT, writer=writer, bound=as_record(kept), last=as_record(kept))
    world.commit(txn, bounded, other)
    assert world.visible() == ["kept", "went out again under another name"]
    assert world.dropped() == {writer: kept}
    # A zombie of that name appends later still: behind the bound, so never read.
    world.log.append(SEGMENT, writer, "zombie")
    assert world.visible() == ["kept", "went out again under another name"]


def test_a_winner_to_whom_nothing_was_acknowledged_is_dropped_from_the_start(world: World) -> None:
    txn = world.open()
    writer = world.admit(txn)
    world.log.append(SEGMENT, writer, "never acknowledged")
    world.commit(txn, Winner(segment=SEGMENT, writer=writer, bound=as_record(EARLIEST)))
    assert world.visible() == []


def test_a_zombie_of_an_aborted_transaction_appends_to_nobody(world: World) -> None:
    txn = world.open()
    winner = world.write(txn, "a")
    world.abort(txn)
    world.log.append(SEGMENT, winner.writer, "zombie")
    assert world.visible() == []
    assert world.readable().end == world.log.last_confirmed(SEGMENT)


def test_pins_and_dropped_writers_are_read_anew_for_every_read(world: World) -> None:
    # INV-4: a reader that keeps what it knew of a segment would see the open rows.
    done = world.open()
    world.commit(done, world.write(done, "a"))
    assert world.visible() == ["a"]
    open_one, aborted = world.open(), world.open()
    world.write(aborted, "x", task=1)
    world.abort(aborted)
    world.write(open_one, "b")
    assert world.visible() == ["a"]


def test_whatever_comes_between_the_reads_of_lac_and_pins_is_not_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # INV-4: LAC first. A writer that pins and appends between the two reads is either seen by its
    # pin or lies behind the LAC. In the other order its row would be read while it is open.
    other = world.another_process()
    txn = other.open()
    reads = 0

    def between() -> None:
        nonlocal reads
        reads += 1
        if reads == 1:
            other.write(txn, "open")

    def last_confirmed(segment: str) -> Position:
        found = world.log.last_confirmed(segment)
        between()
        return found

    gates = world.store.segments.gates

    def gates_then(segments: list[str], *args: Any, **more: Any) -> list[Gate]:
        found = gates(segments, *args, **more)
        between()
        return found

    monkeypatch.setattr(world.store.segments, "gates", gates_then)
    [found] = world.buffer.readable([SEGMENT], last_confirmed, [EARLIEST])
    assert reads == 2
    assert world.log.read(SEGMENT, EARLIEST, found.end, found.visibility) == []


def test_the_end_never_falls_below_what_was_read(world: World) -> None:
    done = world.open()
    world.commit(done, world.write(done, "a", "b"))
    world.client.hdel(world.key("state"), "high-position")  # nobody knows of a receipt any more
    world.admit(world.open())
    assert world.readable(start=Position(1, 1)).end == Position(1, 1)
    assert world.readable(start=EARLIEST).end == EARLIEST


def test_a_writer_that_is_pinned_right_after_a_look_is_pinned_behind_what_it_showed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.log.append(SEGMENT, "a plain producer", "a")
    other = world.another_process()
    gates = world.store.segments.gates

    def gates_then(segments: list[str], *args: Any, **more: Any) -> list[Gate]:
        found = gates(segments, *args, **more)
        other.write(other.open(), "open")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(world.store.segments, "gates", gates_then)
        assert world.visible() == ["a"]
    assert world.visible() == ["a"]


def test_an_older_answer_of_the_log_hides_nothing_again(world: World) -> None:
    for value in ("a", "b"):
        world.log.append(SEGMENT, "a plain producer", value)
    assert world.visible() == ["a", "b"]
    world.buffer.get_max_read_position(SEGMENT, lambda _: Position(1, 0))  # of an earlier owner
    world.write(world.open(), "open")
    assert world.visible() == ["a", "b"]


def test_what_is_committed_behind_what_a_reader_has_passed_stays_readable(world: World) -> None:
    world.log.append(SEGMENT, "a plain producer", "a")
    assert world.visible() == ["a"]
    done = world.open()
    world.commit(done, world.write(done, "b"))
    world.write(world.open(), "open")
    assert world.visible() == ["a", "b"]


def test_rows_that_nobody_reports_cost_a_look_no_round_trip(world: World) -> None:
    assert world.visible() == []
    for value in ("a", "b", "c"):
        world.log.append(SEGMENT, "a plain producer", value)
        with round_trips(world.client) as looks:
            assert value in world.visible()
            world.visible()
        assert (looks.total, looks.synced) == (2, 1), "the first of them notes how far it was"


def test_the_lowest_pin_counts_as_a_number(world: World) -> None:
    world.store.segments.raise_high(SEGMENT, Position(9, 3))
    ten = world.admit(world.open())
    world.client.hset(world.key("state"), "high-position", Position(8, 7).padded())
    nine = world.admit(world.open())
    assert world.pinned() == [nine, ten]
    gate = world.store.segments.gates([SEGMENT])[0]
    found = buffer_module._readable(gate, Position(9, 9), EARLIEST)
    assert found.end == Position(8, 7)


def test_a_segment_without_transactions_is_read_to_its_end(world: World) -> None:
    world.log.append(SEGMENT, "some producer", "a")
    world.store.segments.raise_high(SEGMENT, world.log.last_confirmed(SEGMENT))
    assert world.store.segments.gates([SEGMENT]) == [Gate(high=Position(1, 0))]
    assert world.visible() == ["a"]
    assert world.visible(asks_log=False) == ["a"]


# --- without asking the log -------------------------------------------------------------------


def test_what_was_reported_is_read_without_asking_the_log(world: World) -> None:
    assert world.readable(asks_log=False).end == EARLIEST
    committed, lost = world.open(), world.open()
    world.write(committed, "x", task=1)
    world.write(lost, "y")
    world.commit(committed, world.write(committed, "a"))
    world.abort(lost)
    world.log.append(SEGMENT, "some producer", "b")
    found = world.readable(asks_log=False)
    assert found.end == Position(1, 2)
    assert world.visible(asks_log=False) == ["a"]
    assert world.visible() == ["a", "b"]


def test_an_open_transaction_blocks_whoever_does_not_ask_the_log(world: World) -> None:
    blocking, done = world.open(), world.open()
    world.write(blocking, "x")
    world.commit(done, world.write(done, "a"))
    found = world.readable(asks_log=False)
    assert (found.end, found.blocked_by) == (EARLIEST, (blocking.id,))
    # Nobody has reported entries of this one: it counts as blocking all the same.
    world.abort(blocking)
    later = world.open()
    world.write(later, "y")
    found = world.readable(asks_log=False)
    assert (found.end, found.blocked_by) == (Position(1, 1), (later.id,))


def test_a_decision_that_nobody_has_materialized_is_found_without_asking_the_log(
    world: World,
) -> None:
    txn = world.open()
    world.decide(txn, world.write(txn, "a"))
    assert world.another_process().visible(asks_log=False) == ["a"]
    assert world.header(txn).materialized


def test_each_segment_is_gated_by_its_own_pins(world: World) -> None:
    done, locked = world.open(), world.open()
    world.commit(done, world.write(done, "a"), world.write(done, "b", segment=OTHER_SEGMENT))
    world.write(locked, "x", segment=OTHER_SEGMENT)
    found = world.buffer.readable(
        [SEGMENT, OTHER_SEGMENT], world.log.last_confirmed, [EARLIEST, EARLIEST]
    )
    assert [len(f.blocked_by) for f in found] == [0, 1]
    assert world.visible(SEGMENT) == ["a"]
    assert world.visible(OTHER_SEGMENT) == ["b"]


# --- helping ----------------------------------------------------------------------------------


def test_whoever_is_blocked_by_a_decided_transaction_materializes_it(world: World) -> None:
    txn = world.open()
    winner = world.write(txn, "a")
    loser = world.write(txn, "x", task=1)
    world.decide(txn, winner)
    assert not world.header(txn).materialized
    reader = world.another_process()
    assert reader.visible() == ["a"]
    assert reader.dropped() == {loser.writer: EARLIEST}
    assert world.header(txn).materialized


def test_whoever_is_blocked_by_an_expired_transaction_aborts_it(world: World) -> None:
    dead, done = world.open(), world.open()
    world.write(dead, "x")
    world.commit(done, world.write(done, "a", task=1))
    assert world.visible() == []
    world.expire(dead)
    assert world.another_process().visible() == ["a"]
    assert world.state(dead) is TxnState.ABORTED


def test_the_headers_of_all_that_block_are_read_at_once(world: World) -> None:
    open_ones = [world.open() for _ in range(6)]
    for txn in open_ones:
        world.write(txn, "a")
    reader = world.another_process()
    assert len(reader.readable().blocked_by) == len(open_ones)
    before = reader.store.round_trips
    assert len(reader.readable().blocked_by) == len(open_ones)
    assert reader.store.round_trips - before == 2, "the gate, then the headers"


def test_whoever_reads_all_segments_at_once_completes_what_many_pins_are_in_front_of(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments_module, "_PINS_READ", 2)
    still_open = world.open()
    for task in range(3):
        world.write(still_open, "x", task=task)
    world.store.segments.raise_high(SEGMENT, world.log.last_confirmed(SEGMENT))
    both, txn = [SEGMENT, OTHER_SEGMENT], world.open()  # whose pin stands behind that
    winners = [world.write(txn, "a", segment=segment) for segment in both]
    world.decide(txn, *winners)
    last = world.log.last_confirmed(OTHER_SEGMENT)
    decision = SegmentDecision(OTHER_SEGMENT, (WriterFate(winners[1].writer, None),), (), last)
    world.store.segments.materialize(txn.id, TxnState.COMMITTED, [decision])
    reader = world.another_process()
    blocked, _ = reader.buffer.readable(
        both, reader.log.last_confirmed, [EARLIEST] * 2, ends_only=True, at_once=True
    )
    assert world.header(txn).materialized
    assert blocked.end < blocked.high == world.log.last_confirmed(SEGMENT), "a part is left out"


def test_a_living_transaction_is_not_aborted_by_impatient_readers(world: World) -> None:
    txn = world.open()
    winner = world.write(txn, "a")
    assert world.visible() == []
    assert world.state(txn) is TxnState.OPEN
    world.commit(txn, winner)
    assert world.visible() == ["a"]


def test_an_owner_that_comes_back_while_another_process_aborts_keeps_its_transaction(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    txn = world.open()
    world.write(txn, "a")
    world.expire(txn)
    read_txns = world.store.transactions.read_many

    def read_then_beat(found: Sequence[TxnId]) -> Any:
        headers = read_txns(found)
        world.another_process().coordinator.heartbeat(txn.id, txn.nonce, TIMEOUT_MS)
        return headers

    monkeypatch.setattr(world.store.transactions, "read_many", read_then_beat)
    assert world.coordinator.complete_on_behalf([txn.id], set()) is False
    monkeypatch.undo()
    assert world.state(txn) is TxnState.OPEN


def test_a_reader_reads_on_where_a_sweep_collects_what_it_was_about_to_abort(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    txn = world.open()
    world.write(txn, "x")
    world.expire(txn)
    sweeper = Sweeper(world.another_process().coordinator, lambda _: None, retention_ms=-1)
    reader = world.another_process()
    read_many, swept = reader.store.transactions.read_many, []

    def read_then_swept(found: Sequence[TxnId]) -> Any:
        headers = read_many(found)
        swept.append(sweeper.sweep().headers_removed)
        return headers

    monkeypatch.setattr(reader.store.transactions, "read_many", read_then_swept)
    assert reader.visible() == []
    assert sum(swept) == 1
    assert reader.readable().blocked_by == ()


def test_who_completes_a_transaction_does_what_is_left_even_where_its_header_says_that_all_is_done(
    world: World,
) -> None:
    txn = world.open()
    winner = world.write(txn, "a")
    world.decide(txn, winner)
    world.client.hset(f"{{tc{txn.id.tc}}}:txn:{txn.id.key}", "materialized", "1")
    assert world.visible() == ["a"]
    assert world.pinned() == []


def test_a_pin_without_a_header_is_reported_and_not_guessed(world: World) -> None:
    txn = world.open()
    world.write(txn, "a")
    world.client.delete(f"{{tc{txn.id.tc}}}:txn:{txn.id.key}")
    with pytest.raises(StoreCorruptError, match=r"no header.*not guessed"):
        world.visible()
    assert len(world.pinned()) == 1


def test_a_header_that_a_sweep_removes_meanwhile_is_not_missing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The reader sees the pin; before it reads the header, a sweep materializes the decision, closes
    # the segment and collects the header.
    txn = world.open()
    world.decide(txn, world.write(txn, "a"))
    reader = world.another_process()
    read_txns = reader.store.transactions.read_many

    def sweep_then_read(found: Sequence[TxnId]) -> Any:
        Sweeper(world.coordinator, lambda _: None, retention_ms=0).sweep()
        return read_txns(found)

    monkeypatch.setattr(reader.store.transactions, "read_many", sweep_then_read)
    assert reader.visible() == ["a"]
    assert world.store.transactions.read(txn.id) is None


def test_an_open_transaction_is_never_materialized(world: World) -> None:
    txn = world.open()
    world.write(txn, "a")
    with pytest.raises(StoreCorruptError, match="not decided"):
        world.coordinator.materialize(world.header(txn))
    assert len(world.pinned()) == 1


def test_a_process_that_materializes_hours_late_finds_no_pin_and_does_nothing(world: World) -> None:
    txn = world.open()
    winner = world.write(txn, "a")
    loser = world.write(txn, "x", task=1)
    world.decide(txn, winner)
    stale = world.header(txn)
    assert world.another_process().visible() == ["a"]
    # What was dropped may be collected once the log has deleted it: it must not come back.
    world.client.hdel(world.key("dropped"), loser.writer)
    before = world.client.hget(world.key("birth"), "seq")
    world.coordinator.materialize(stale)
    assert world.dropped() == {}
    assert world.client.hget(world.key("birth"), "seq") == before, "it changed something"


def test_a_process_that_materializes_late_does_nothing_below_closed(world: World) -> None:
    txn = world.open()
    winner = world.write(txn, "x")
    world.client.hset(world.key("closed"), str(txn.id.tc), str(txn.id.counter + 1))
    decision = SegmentDecision(SEGMENT, (WriterFate(winner.writer, EARLIEST),))
    [answer] = world.store.segments.materialize(txn.id, TxnState.ABORTED, [decision])
    assert answer.code is Code.CLOSED
    assert world.dropped() == {}


def test_many_dead_transactions_are_got_out_of_the_way_in_one_read(world: World) -> None:
    for number in range(70):  # more than a gate returns pins at a time
        txn = world.open()
        world.write(txn, f"x{number}", task=number)
        world.expire(txn)
    done = world.open()
    world.commit(done, world.write(done, "a"))
    assert world.visible() == ["a"]
    assert world.pinned() == []


def test_materializing_raises_the_position_from_which_later_pins_start(world: World) -> None:
    aborted = world.open()
    world.write(aborted, "x")
    world.abort(aborted)
    assert world.client.hget(world.key("state"), "high-position") is None
    txn = world.open()
    world.commit(txn, world.write(txn, "a", "b"))
    high = world.client.hget(world.key("state"), "high-position")
    assert high is not None
    assert Position.from_padded(high.decode()) == Position(1, 2)


def test_materializing_tells_those_who_watch(world: World) -> None:
    txn = world.open()
    world.commit(txn, world.write(txn, "a"))
    [(_, event)] = world.client.xrange(world.key("events"))
    assert event == {b"type": b"resolved", b"txn": txn.id.key.encode(), b"decision": b"COMMITTED"}
    # Idempotent: no second event.
    world.coordinator.materialize(world.header(txn), repeat=True)
    assert world.client.xlen(world.key("events")) == 1


# --- step by step -----------------------------------------------------------------------------


def look_after_every_command(
    world: World, monkeypatch: pytest.MonkeyPatch, check: Callable[[list[str]], None]
) -> None:
    """Let a reader that helps nobody look at the segment after each command on the store."""
    reader = world.another_process()
    read = Request.replies
    looking = False

    def read_and_look(self: Request) -> list[Any]:
        nonlocal looking
        replies = read(self)
        if not looking:
            looking = True
            try:
                lac = world.log.last_confirmed(SEGMENT)
                [gate] = reader.store.segments.gates([SEGMENT])
                for known in (lac, gate.high):
                    found = buffer_module._readable(gate, known, EARLIEST)
                    check(world.log.read(SEGMENT, EARLIEST, found.end, found.visibility))
            finally:
                looking = False
        return replies

    monkeypatch.setattr(Request, "replies", read_and_look)


def test_no_command_of_an_abort_shows_a_row_of_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[list[str]] = []
    look_after_every_command(world, monkeypatch, looks.append)
    txn = world.open()
    world.write(txn, "x", "y")
    world.write(txn, "z", task=1)
    world.abort(txn)
    assert len(looks) > 8
    assert all(seen == [] for seen in looks)


def test_every_command_of_a_commit_shows_all_of_its_rows_or_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[list[str]] = []
    look_after_every_command(world, monkeypatch, looks.append)
    txn = world.open()
    world.write(txn, "x", task=1)
    winner = world.write(txn, "a", "b")
    world.commit(txn, winner)
    assert [] in looks
    assert looks[-1] == ["a", "b"]
    assert all(seen in ([], ["a", "b"]) for seen in looks)


# --- visibility -------------------------------------------------------------------------------


def test_a_writers_name_tells_its_transaction_and_other_producers_have_none() -> None:
    txn = TxnId(3, 12345678901234567890)
    assert txn_of_writer(writer_name(txn, 17, "0a1b")) == txn
    for name in ("", "producer", "ptxn", "ptxn-1-2", "ptxn-a-b-c-d", "ptxs-1-2-3-4", "ptxn-1-2-3"):
        assert txn_of_writer(name) is None


def test_what_is_below_the_floor_is_never_read_whoever_wrote_it(world: World) -> None:
    txn = world.open()
    world.commit(txn, world.write(txn, "a"))
    assert world.visible() == ["a"]
    world.client.hset(world.key("floor"), str(txn.id.tc), str(txn.id.counter + 1))
    assert world.readable().visibility.floor == {txn.id.tc: txn.id.counter + 1}
    assert world.visible() == []


def test_visibility_knows_bounds_floor_and_unknown_writers() -> None:
    low, high = writer_name(TxnId(1, 5), 0, "r"), writer_name(TxnId(1, 6), 0, "r")
    visible = Visibility({high: Position(2, 7), "gone": EARLIEST}, {1: 6})
    assert visible(high, Position(2, 7))
    assert not visible(high, Position(2, 8))
    assert not visible(high, Position(3, 0))
    assert not visible("gone", Position(0, 0))
    assert not visible(low, Position(0, 0))
    assert visible(writer_name(TxnId(2, 1), 0, "r"), Position(0, 0)), "another TC has another floor"
    assert visible("some producer", Position(0, 0))


# --- by the names of PIP-471 --------------------------------------------------------------------


def test_an_entry_is_appended_after_what_says_so_and_never_after_the_decision(
    world: World,
) -> None:
    txn = world.open()
    writer = writer_name(txn.id, 0, "abcd")
    seen = []

    def append() -> Position:
        ops = [OpRecord.FromString(op.record) for op in read_ops(world.store.op_log, txn.id)]
        seen.append((world.pinned(), world.header(txn).intents, ops))
        return world.log.append(SEGMENT, writer, "row")

    def write() -> Position:
        return world.buffer.append_buffer_to_txn(
            txn.id, txn.nonce, TIMEOUT_MS, writer, SEGMENT, append
        )

    assert write() == Position(1, 0)
    op = OpRecord(kind=OpRecord.WRITE, segment=SEGMENT, writer=writer)
    assert seen == [([writer], frozenset({write_intent(SEGMENT, writer)}), [op])]
    assert write() == Position(1, 1)
    assert seen[1] == seen[0], "a second append of the writer needs no second record"
    world.abort(txn)
    with pytest.raises(TransactionConflictError):
        write()
    assert len(seen) == 2
    assert read_ops(world.store.op_log, txn.id) == []


def test_an_append_whose_operation_record_is_refused_does_not_happen(world: World) -> None:
    txn = world.open()
    writer = writer_name(txn.id, 0, "abcd")
    world.lose(always={"txn_op": Loss.REQUEST})
    with pytest.raises(StoreUnavailableError):
        world.buffer.append_buffer_to_txn(
            txn.id, txn.nonce, TIMEOUT_MS, writer, SEGMENT, lambda: pytest.fail("appended")
        )


def test_max_read_position_and_aborted_writers_say_what_a_reader_sees(world: World) -> None:
    lost, kept, still_open = world.open(), world.open(), world.open()
    dropped = world.write(lost, "lost")
    winner = world.write(kept, "kept", task=1)
    world.write(still_open, "open", task=2)
    buffer, lac = world.buffer, world.log.last_confirmed
    assert buffer.get_max_read_position(SEGMENT, lac) == EARLIEST
    world.abort(lost)
    world.commit(kept, winner)
    # The writer of the open transaction was pinned behind what was acknowledged by then: nothing.
    assert buffer.get_max_read_position(SEGMENT, lac) == EARLIEST
    world.abort(still_open)
    assert buffer.get_max_read_position(SEGMENT, lac) == lac(SEGMENT)
    assert buffer.is_txn_aborted(SEGMENT, dropped.writer, Position(1, 0))
    assert not buffer.is_txn_aborted(SEGMENT, winner.writer, Position(1, 1))


def test_recovery_reads_one_gate_for_each_segment_and_no_header(world: World) -> None:
    txn = world.open()
    world.write(txn, "row")
    process = world.another_process()
    network = process.lose()
    (found,) = process.buffer.recover([SEGMENT], world.log.last_confirmed)
    assert network.calls == {"seg_gate": 1}
    assert (found.end, found.blocked_by) == (EARLIEST, (txn.id,))
