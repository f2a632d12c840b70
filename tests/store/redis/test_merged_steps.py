"""Several steps as one script: all of it, in its order, or what has taken effect so far."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest

from pulsar_txn_spark.errors import (
    FencedError,
    SegmentSealedError,
    StoreError,
    StoreRolledBackError,
    TopologyConflictError,
    TransactionAbortedError,
    TransactionConflictError,
)
from pulsar_txn_spark.position import EARLIEST, MessagePosition, Position
from pulsar_txn_spark.store.ack_ranges import AckInterval
from pulsar_txn_spark.store.metadata_pb2 import Outcome, Pointer, Winner
from pulsar_txn_spark.store.records import (
    Code,
    CommitAnswer,
    EndedBy,
    OpLogSettings,
    SegmentDecision,
    SinkEntry,
    SubscriptionRef,
    TopologyVersion,
    TxnId,
    TxnState,
    WriterFate,
)
from pulsar_txn_spark.store.redis import scripts
from pulsar_txn_spark.txn.batch import Attempt, BatchKey
from pulsar_txn_spark.txn.coordinator import TxnStatus, as_record
from pulsar_txn_spark.txn.participants import ack_intent, pointer_intent, write_intent
from pulsar_txn_spark.txn.pending_ack import MetadataPendingAckStore
from pulsar_txn_spark.txn.transaction_buffer import txn_of_writer, writer_name
from tests.support.scenario import (
    OTHER_SEGMENT,
    SEGMENT,
    TIMEOUT_MS,
    Loss,
    Txn,
    World,
    ack,
    load_scripts,
)

BOTH = [SEGMENT, OTHER_SEGMENT]
P1 = Position(1, 10)
OPS = {"op": b"record"}


@pytest.fixture
def known(world: World) -> World:
    """Return a world whose segments were written to before: all tags are there."""
    load_scripts(world.client)
    for tc in range(world.store.identity.coordinators):
        world.store.transactions.lowest_open(tc)
    for segment in BOTH:
        txn = world.open()
        world.commit(txn, world.write(txn, "before", segment=segment))
    return world


def intents_of(winners: Sequence[Winner]) -> set[str]:
    return {write_intent(winner.segment, winner.writer) for winner in winners}


def merged_commit(
    world: World, txn: Txn, winners: Sequence[Winner], intents: Collection[str] | None = None
) -> CommitAnswer | None:
    decisions = [SegmentDecision(w.segment, (WriterFate(w.writer, None),)) for w in winners]
    return world.store.merged.commit(
        txn.id,
        txn.nonce,
        Outcome(winners=winners).SerializeToString(deterministic=True),
        {},
        intents_of(winners) if intents is None else intents,
        OPS,
        decisions,
    )


def test_a_writer_is_admitted_and_a_transaction_committed_in_one_round_trip_each(
    known: World,
) -> None:
    txn = known.open()
    before = known.store.round_trips
    winners = [known.write(txn, "a", segment=segment) for segment in BOTH]
    assert known.store.round_trips - before == len(BOTH)
    before = known.store.round_trips
    outcome = Outcome(winners=winners)
    intents = intents_of(winners)
    known.coordinator.commit(txn.id, txn.nonce, outcome, intents=intents, ops=OPS)
    assert known.store.round_trips - before == 1
    assert known.coordinator.status(txn.id) is TxnStatus.COMMITTED
    for segment in BOTH:
        assert known.visible(segment) == ["before", "a"]
        assert known.pinned(segment) == []
    assert known.store.op_log.read(txn.id).records == {}


def opened(
    world: World, nonce: str, *segments: str, expected: TopologyVersion | None = None
) -> tuple[Txn, str]:
    """Open a transaction together with its first writer."""
    ids: list[TxnId] = []
    writer = world.buffer.open(
        nonce,
        TIMEOUT_MS,
        "owner",
        lambda txn: writer_name(txn, 0, "abcd"),
        segments,
        ids.append,
        expected,
    )
    assert len(ids) == 1
    return Txn(ids[0], nonce), writer


@pytest.mark.parametrize("single", [False, True], ids=["merged", "single"])
def test_a_transaction_is_opened_with_its_first_writer(known: World, *, single: bool) -> None:
    known.store.scripts._single_steps = single
    before = known.store.round_trips
    txn, writer = opened(known, "n", *BOTH)
    assert known.store.round_trips - before == (3 if single else 1)
    assert writer == writer_name(txn.id, 0, "abcd")
    assert txn_of_writer(writer) == txn.id
    header = known.header(txn)
    assert header.state is TxnState.OPEN
    assert (header.nonce, header.owner) == ("n", "owner")
    assert header.intents == {write_intent(segment, writer) for segment in BOTH}
    for segment in BOTH:
        [pin] = known.store.segments.gates([segment])[0].pins
        assert (pin.writer, pin.txn) == (writer, txn.id)
        known.log.append(segment, writer, "a")
        assert known.visible(segment) == ["before"]
    # The same nonce asks again, as after a lost reply: all is as it was.
    assert opened(known, "n", *BOTH) == (txn, writer)
    assert known.header(txn).intents == header.intents
    winners = [
        Winner(segment=s, writer=writer, last=as_record(known.log.last_confirmed(s))) for s in BOTH
    ]
    known.coordinator.commit(
        txn.id, txn.nonce, Outcome(winners=winners), intents=intents_of(winners)
    )
    for segment in BOTH:
        assert known.visible(segment) == ["before", "a"]
        assert known.pinned(segment) == []


SINK, QUERY = "sink", "query"


@pytest.fixture
def running(known: World) -> World:
    """Return a world in which a query has written its first batch to a sink."""
    known.run_batch(BatchKey(SINK, QUERY, 0), "n0", "0", run="driver|run-0")
    return known


def begin(world: World, nonce: str, batch: int = 1, run: str = "") -> Attempt:
    return world.batches.begin(BatchKey(SINK, QUERY, batch), nonce, f"driver|{run or nonce}")


def pointer_of(world: World) -> Pointer:
    return Pointer.FromString(world.store.sinks.read_pointer(SINK, QUERY).own)


@pytest.mark.parametrize("single", [False, True], ids=["merged", "single"])
def test_a_micro_batch_begins_in_one_step_after_a_read_of_the_one_before(
    running: World, *, single: bool
) -> None:
    running.store.scripts._single_steps = single
    before = running.store.round_trips
    attempt = begin(running, "n1")
    # Pointer with the header of the batch before, then: registration, header and pointer.
    assert running.store.round_trips - before == (4 if single else 2)
    header, pointer = running.header(attempt.txn), pointer_of(running)
    assert (header.state, header.nonce, header.owner) == (TxnState.OPEN, "n1", "driver|n1")
    assert (header.sink, header.query, header.batch) == (SINK, QUERY, "1")
    assert header.intents == {pointer_intent(QUERY, SINK)}
    assert (pointer.txn_id, pointer.batch_id, pointer.nonce) == (attempt.txn.key, 1, "n1")
    assert pointer.owner == "driver|n1"
    assert pointer.every_batch
    assert pointer.before.batch_id == 0
    assert running.store.queries.read_sinks(QUERY) == {SINK: SinkEntry(1, "n1")}
    assert running.another_process().batches.begin(attempt.key, "n1", "driver|n1") == attempt


def test_an_attempt_that_begins_in_one_step_ends_what_an_earlier_one_left_in_other_sinks(
    running: World,
) -> None:
    other = BatchKey("other", QUERY, 1)
    running.run_batch(BatchKey("other", QUERY, 0), "o0", "o", run="driver|run-0")
    left = running.batches.begin(other, "o1", "driver|dead")
    attempt = begin(running, "n1")
    assert running.state(left.txn) is TxnState.ABORTED
    assert running.state(attempt.txn) is TxnState.OPEN
    assert pointer_of(running).txn_id == attempt.txn.key


def test_no_pointer_names_a_transaction_that_was_over_before_it_began(running: World) -> None:
    before = pointer_of(running)
    running.batches.abort_nonce("n1", cause="the write failed")
    with pytest.raises(TransactionAbortedError):
        begin(running, "n1")
    assert pointer_of(running) == before


def test_a_pointer_that_has_changed_is_not_written_in_one_step(
    running: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = running.another_process(), running.another_process()
    take_over = slow.batches._take_over
    begun: list[Attempt] = []

    def after_another(*args: Any) -> bool:
        if not begun:
            begun.append(begin(quick, "quick"))
        return take_over(*args)

    monkeypatch.setattr(slow.batches, "_take_over", after_another)
    attempt = begin(slow, "slow")
    assert running.state(begun[0].txn) is TxnState.ABORTED, "the second try has found it"
    assert pointer_of(running).txn_id == attempt.txn.key
    assert list(pointer_of(running).retired_nonces) == ["quick"]


def test_nothing_begins_where_a_tag_of_it_is_not_the_one_that_was_known(running: World) -> None:
    before = pointer_of(running)
    running.client.hset(f"{{query:{QUERY}}}:birth", "uuid", "another store")
    tc = running.coordinator.shard("n1")
    lowest = running.store.transactions.lowest_open(tc)[0]
    with pytest.raises(StoreRolledBackError, match="belongs to store another store"):
        begin(running, "n1")
    assert running.store.transactions.of_nonce(tc, "n1") is None
    assert running.store.transactions.lowest_open(tc)[0] == lowest
    assert pointer_of(running) == before


@pytest.mark.parametrize("loss", list(Loss))
def test_a_lost_reply_to_a_batch_that_begins_is_found_out(
    running: World, monkeypatch: pytest.MonkeyPatch, loss: Loss
) -> None:
    monkeypatch.setattr(scripts, "_LOST_REPLY_PAUSE_S", 0.0)
    network = running.lose({"txn_begin": [loss, loss]})
    attempt = begin(running, "n1")
    running.mend()
    assert network.calls["txn_begin"] == 3
    assert pointer_of(running).txn_id == attempt.txn.key
    assert running.state(attempt.txn) is TxnState.OPEN
    running.batches.commit(attempt, [[running.write_batch(attempt, "a")]], "", acknowledge=True)
    assert running.visible() == ["before", "0", "a"]


def test_nobody_is_pinned_for_a_transaction_that_is_over(known: World) -> None:
    txn, _ = opened(known, "n", SEGMENT)
    known.abort(txn)
    with pytest.raises(TransactionAbortedError):
        opened(known, "n", *BOTH)
    committed, writer = opened(known, "other", SEGMENT)
    winner = Winner(segment=SEGMENT, writer=writer, last=as_record(EARLIEST))
    known.commit(committed, winner)
    with pytest.raises(TransactionConflictError, match="takes no more writes"):
        opened(known, "other", *BOTH)
    assert known.pinned() == known.pinned(OTHER_SEGMENT) == []


def test_no_transaction_begins_where_a_tag_is_not_the_one_that_was_known(known: World) -> None:
    known.client.hset(known.key("birth", OTHER_SEGMENT), "uuid", "another store")
    tc = known.coordinator.shard("n")
    intents = [write_intent(segment, "ptxn-#-0-abcd") for segment in BOTH]
    before = known.store.transactions.lowest_open(tc)[0]
    found = known.store.merged.open(tc, "n", "", TIMEOUT_MS, intents, "ptxn-#-0-abcd", BOTH)
    assert found is None
    assert known.store.transactions.of_nonce(tc, "n") is None
    assert known.store.transactions.lowest_open(tc)[0] == before
    assert known.pinned() == []
    with pytest.raises(StoreRolledBackError, match="belongs to store another store"):
        opened(known, "n", *BOTH)


TOPIC = "topic://public/default/versions"


def test_no_transaction_begins_by_a_topology_that_has_changed(known: World) -> None:
    version = known.store.topics.swap(TOPIC, 0, b"record")
    assert version is not None
    txn, _ = opened(known, "first", *BOTH, expected=TopologyVersion(TOPIC, version))
    known.abort(txn)
    assert known.store.topics.swap(TOPIC, version, b"another") is not None
    before = known.store.round_trips
    with pytest.raises(TopologyConflictError):
        opened(known, "n", *BOTH, expected=TopologyVersion(TOPIC, version))
    assert known.store.round_trips - before == 1
    assert known.store.transactions.of_nonce(known.coordinator.shard("n"), "n") is None
    assert known.pinned() == known.pinned(OTHER_SEGMENT) == []


def test_a_topology_that_the_single_steps_would_not_check_is_not_taken(
    known: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = known.store.topics.swap(TOPIC, 0, b"record")
    assert version is not None
    monkeypatch.setattr(scripts, "_MERGED_AT_ONCE", 2)
    with pytest.raises(TopologyConflictError):
        opened(known, "n", *BOTH, expected=TopologyVersion(TOPIC, version))
    assert known.pinned() == known.pinned(OTHER_SEGMENT) == []


def test_what_a_lost_reply_has_opened_ends_with_the_transaction_that_goes_on(
    known: World,
) -> None:
    version = known.store.topics.swap(TOPIC, 0, b"record")
    assert version is not None
    first, _ = opened(known, "n", SEGMENT, expected=TopologyVersion(TOPIC, version))
    # Nobody has heard of it: its reply was lost, and the topology has changed since.
    assert known.store.topics.swap(TOPIC, version, b"another") is not None
    with pytest.raises(TopologyConflictError):
        opened(known, "n", SEGMENT, expected=TopologyVersion(TOPIC, version))
    txn, writer = opened(known, "n", OTHER_SEGMENT)
    assert txn == first
    position = known.log.append(OTHER_SEGMENT, writer, "b")
    winner = Winner(segment=OTHER_SEGMENT, writer=writer, last=as_record(position))
    intents = {write_intent(OTHER_SEGMENT, writer)}
    known.coordinator.commit(txn.id, txn.nonce, Outcome(winners=[winner]), intents=intents)
    assert known.visible(OTHER_SEGMENT) == ["before", "b"]
    assert known.pinned() == known.pinned(OTHER_SEGMENT) == []


def test_the_id_is_known_of_a_transaction_whose_first_writer_was_refused(known: World) -> None:
    known.store.segments.retire(OTHER_SEGMENT, EARLIEST, [])
    known.store.segments.fence([OTHER_SEGMENT])
    ids: list[TxnId] = []
    with pytest.raises(SegmentSealedError):
        known.buffer.open(
            "n", TIMEOUT_MS, "", lambda txn: writer_name(txn, 0, "abcd"), BOTH, ids.append
        )
    assert known.state(ids[0]) is TxnState.OPEN


def test_used_up_numbers_of_transactions_are_an_error_and_no_pin(known: World) -> None:
    tc = known.coordinator.shard("n")
    known.client.set(f"{{tc{tc}}}:txn-counter", "9007199254740991")
    with pytest.raises(StoreError, match="used up"):
        opened(known, "n", *BOTH)
    assert known.pinned() == []


def test_each_tag_counts_its_changes_and_is_read_once(known: World) -> None:
    txn, writer = opened(known, "n", *BOTH)
    tc = f"{{tc{txn.id.tc}}}:birth"
    winners = [Winner(segment=s, writer=writer, last=as_record(EARLIEST)) for s in BOTH]
    tags = [tc, *(known.key("birth", segment) for segment in BOTH)]
    before = [int(known.client.hget(tag, "seq")) for tag in tags]
    known.client.config_resetstat()
    known.coordinator.commit(
        txn.id, txn.nonce, Outcome(winners=winners), intents=intents_of(winners), ops=OPS
    )
    counted = known.client.info("commandstats")
    assert counted["cmdstat_info"]["calls"] == 1, "for the histories of all tags"
    assert "cmdstat_exists" not in counted, "as no slot moves where one server has all tags"
    after = [int(known.client.hget(tag, "seq")) for tag in tags]
    # Operation record, decision, deletion of the record; one materialization in each segment.
    assert [b - a for a, b in zip(before, after, strict=True)] == [3, 1, 1]
    assert known.store.seen(f"tc{txn.id.tc}").seq == after[0]
    assert [known.store.seen(f"seg:{segment}").seq for segment in BOTH] == after[1:]


def test_a_history_that_begins_in_several_steps_at_once_begins_once_in_each_tag(
    known: World,
) -> None:
    txn, writer = opened(known, "n", *BOTH)
    tags = [f"{{tc{txn.id.tc}}}:birth", *(known.key("birth", segment) for segment in BOTH)]
    for tag in tags:
        known.client.hset(tag, "server", "a server of before")
    before = [known.client.hget(tag, "history") for tag in tags]
    winners = [Winner(segment=s, writer=writer, last=as_record(EARLIEST)) for s in BOTH]
    known.coordinator.commit(
        txn.id, txn.nonce, Outcome(winners=winners), intents=intents_of(winners), ops=OPS
    )
    for tag, old in zip(tags, before, strict=True):
        ended = known.client.hget(tag, "histories").decode()
        assert [history.split(":")[0] for history in ended.split()] == [old.decode()]
        assert known.client.hget(tag, "history") != old
    again, _ = opened(known, "other", *BOTH)
    assert known.state(again) is TxnState.OPEN, "what was seen lies in the past of each tag"


@pytest.mark.usefixtures("single_steps")
def test_single_steps_do_the_same(known: World) -> None:
    assert not known.store.merged.possible
    txn = known.open()
    winner = known.write(txn, "a")
    intents = intents_of([winner])
    outcome = Outcome(winners=[winner])
    known.coordinator.commit(txn.id, txn.nonce, outcome, intents=intents, ops=OPS)
    assert known.coordinator.status(txn.id) is TxnStatus.COMMITTED
    assert known.visible() == ["before", "a"]
    assert known.store.op_log.read(txn.id).records == {}


def test_no_writer_is_pinned_whose_intents_were_refused(known: World) -> None:
    txn = known.open()
    known.store.transactions.end(txn.id, TxnState.ABORTED, b"", EndedBy.FENCE)
    with pytest.raises(TransactionAbortedError):
        known.admit(txn)
    assert known.pinned() == []
    other = known.open()
    with pytest.raises(FencedError):
        known.admit(Txn(other.id, "another nonce"))
    assert known.pinned() == []


@pytest.mark.parametrize("single", [False, True], ids=["merged", "single"])
def test_a_micro_batch_acknowledges_in_one_step(known: World, *, single: bool) -> None:
    known.store.scripts._single_steps = single
    for segment in BOTH:
        known.store.subscriptions.claim_cursor(segment, "sub", "q", 1, EARLIEST)
    txn = known.open()
    wanted = [ack(EARLIEST, P1, segment=segment) for segment in BOTH]
    pending_acks = MetadataPendingAckStore(known.coordinator)
    before = known.store.round_trips
    assert pending_acks.acknowledge(txn.id, txn.nonce, TIMEOUT_MS, wanted) == wanted
    assert known.store.round_trips - before == (2 if single else 1)
    intents = known.header(txn).intents
    assert intents == {ack_intent(segment, "sub") for segment in BOTH}
    known.coordinator.commit(txn.id, txn.nonce, Outcome(), intents=intents)
    cursors = known.store.subscriptions.read_cursors(BOTH, "sub")
    assert [cursor and cursor.position for cursor in cursors] == [P1, P1]


def test_no_acknowledgement_is_placed_whose_intents_were_refused(known: World) -> None:
    known.store.subscriptions.claim_cursor(SEGMENT, "sub", "q", 1, EARLIEST)
    txn = known.open()
    known.store.transactions.end(txn.id, TxnState.ABORTED, b"", EndedBy.FENCE)
    other = known.open()
    pending_acks = MetadataPendingAckStore(known.coordinator)
    with pytest.raises(TransactionAbortedError):
        pending_acks.acknowledge(txn.id, txn.nonce, TIMEOUT_MS, [ack(EARLIEST, P1)])
    with pytest.raises(FencedError):
        pending_acks.acknowledge(other.id, "another nonce", TIMEOUT_MS, [ack(EARLIEST, P1)])
    # Nobody has locked the cursor.
    assert pending_acks.acknowledge(other.id, other.nonce, TIMEOUT_MS, [ack(EARLIEST, P1)])


def test_what_one_segment_refuses_is_acknowledged_in_the_others(known: World) -> None:
    known.store.subscriptions.claim_cursor(OTHER_SEGMENT, "sub", "q", 1, EARLIEST)
    txn = known.open()
    # Of SEGMENT no task has claimed the subscription: it is claimed now.
    wanted = [ack(EARLIEST, P1, segment=segment) for segment in BOTH]
    pending_acks = MetadataPendingAckStore(known.coordinator)
    assert pending_acks.acknowledge(txn.id, txn.nonce, TIMEOUT_MS, wanted) == wanted
    known.coordinator.commit(txn.id, txn.nonce, Outcome(), intents=known.header(txn).intents)
    cursors = known.store.subscriptions.read_cursors(BOTH, "sub")
    assert [cursor and cursor.position for cursor in cursors] == [P1, P1]


def test_nothing_is_materialized_of_a_transaction_that_was_decided_otherwise(known: World) -> None:
    txn = known.open()
    winner = known.write(txn, "a")
    known.store.transactions.end(txn.id, TxnState.ABORTED, b"", EndedBy.FENCE)
    for ops in (OPS, {}):
        found = known.store.merged.commit(
            txn.id,
            txn.nonce,
            Outcome(winners=[winner]).SerializeToString(deterministic=True),
            {},
            intents_of([winner]),
            ops,
            [SegmentDecision(SEGMENT, (WriterFate(winner.writer, None),))],
        )
        assert found is not None
        assert (found.answer.code, found.answer.state) == (Code.DECIDED, TxnState.ABORTED)
        assert found.header is None
        assert known.pinned() == [winner.writer]
    with pytest.raises(TransactionAbortedError):
        known.coordinator.commit(
            txn.id, txn.nonce, Outcome(winners=[winner]), intents=intents_of([winner])
        )
    assert known.visible() == ["before"]


def test_a_decision_is_not_materialized_by_one_that_does_not_know_all_writers(
    known: World,
) -> None:
    txn = known.open()
    winner, loser = known.write(txn, "a"), known.write(txn, "x", task=1)
    for unknown in (set(), {"W|elsewhere|w"}):
        assert intents_of([winner]) | unknown != known.header(txn).intents
    found = merged_commit(known, txn, [winner])
    assert found is not None
    assert found.answer.code is Code.OK
    assert not found.materialized
    assert found.header is not None
    assert found.header.intents == intents_of([winner, loser])
    assert sorted(known.pinned()) == sorted([winner.writer, loser.writer])
    # The single steps go on with the intents of the header.
    known.coordinator.materialize(found.header)
    assert known.dropped() == {loser.writer: EARLIEST}
    assert known.visible() == ["before", "a"]


def test_a_writer_that_the_caller_of_a_commit_does_not_know_is_dropped(known: World) -> None:
    txn = known.open()
    winner, loser = known.write(txn, "a"), known.write(txn, "x", task=1)
    outcome = Outcome(winners=[winner])
    known.coordinator.commit(txn.id, txn.nonce, outcome, intents=intents_of([winner]))
    assert known.dropped() == {loser.writer: EARLIEST}
    assert known.visible() == ["before", "a"]
    assert known.coordinator.status(txn.id) is TxnStatus.COMMITTED


def test_an_intent_more_than_there_are_is_no_full_knowledge(known: World) -> None:
    txn = known.open()
    winner = known.write(txn, "a")
    found = merged_commit(known, txn, [winner], {*intents_of([winner]), "W|elsewhere|w"})
    assert found is not None
    assert not found.materialized
    assert known.pinned() == [winner.writer]


def test_a_tag_that_is_not_the_one_that_was_known_keeps_all_others_untouched(known: World) -> None:
    txn = known.open()
    known.client.hset(known.key("birth", OTHER_SEGMENT), "uuid", "another store")
    writer = writer_name(txn.id, 0, "w")
    intents = [write_intent(segment, writer) for segment in BOTH]
    before = known.store.seen(f"tc{txn.id.tc}")
    found = known.store.merged.admit(txn.id, txn.nonce, TIMEOUT_MS, intents, writer, BOTH)
    assert found is None
    assert known.header(txn).intents == frozenset()
    assert known.pinned() == []
    assert known.store.seen(f"tc{txn.id.tc}") == before
    with pytest.raises(StoreRolledBackError, match="belongs to store another store"):
        known.buffer.admit(txn.id, txn.nonce, TIMEOUT_MS, writer, BOTH)


def test_a_tag_that_nobody_has_registered_is_not_registered_by_a_read(known: World) -> None:
    # Its creator died in between; the other tag is of another store, so nothing may be written.
    txn = known.open()
    known.client.hdel(known.key("birth"), "registered")
    known.client.hset(known.key("birth", OTHER_SEGMENT), "uuid", "another store")
    calls = [scripts.Call("seg_raise", f"seg:{s}", ["state", "events"], []) for s in BOTH]
    calls[0].registered = True
    assert known.store.scripts.merged("txn_admit", calls) is None
    assert not known.client.hexists(known.key("birth"), "registered")
    assert known.header(txn).intents == frozenset()


def test_a_lost_reply_to_a_commit_in_one_step_is_found_out(
    known: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "_LOST_REPLY_PAUSE_S", 0.0)
    for loss in Loss:
        txn = known.open()
        winner = known.write(txn, f"{loss}")
        network = known.lose({"txn_commit": [loss, loss], "txn_admit": [loss]})
        known.write(txn, f"{loss} too", segment=OTHER_SEGMENT)
        known.mend()
        known.lose({"txn_commit": [loss, loss]})
        known.coordinator.commit(
            txn.id,
            txn.nonce,
            Outcome(winners=[winner]),
            intents=known.header(txn).intents,
            ops=OPS,
        )
        known.mend()
        assert network.calls["txn_admit"] == 2
        assert known.coordinator.status(txn.id) is TxnStatus.COMMITTED
        assert known.pinned() == known.pinned(OTHER_SEGMENT) == []
    assert known.visible() == ["before", *(f"{loss}" for loss in Loss)]
    assert known.visible(OTHER_SEGMENT) == ["before"]


def test_a_late_copy_changes_nothing(known: World) -> None:
    txn = known.open()
    winner = known.write(txn, "a")
    assert merged_commit(known, txn, [winner]) is not None
    later = known.open()
    while later.id.tc != txn.id.tc:
        later = known.open()
    blocking = known.write(later, "b", task=1)
    for _ in range(2):
        late = merged_commit(known, txn, [winner])
        assert late is not None
        assert late.answer.code is Code.DECIDED
        known.store.merged.admit(
            txn.id, txn.nonce, TIMEOUT_MS, sorted(intents_of([winner])), winner.writer, [SEGMENT]
        )
        assert known.pinned() == [blocking.writer]
        assert known.store.op_log.read(txn.id).records == {}


def test_a_commit_in_one_step_learns_how_records_are_gathered_from_now_on(known: World) -> None:
    txn = known.open()
    winner = known.write(txn, "a")
    settings = OpLogSettings(enabled=True)
    known.another_process().store.op_log.change_settings(txn.id.tc, settings)
    assert known.coordinator.ops_go_along(txn.id)
    known.coordinator.commit(
        txn.id, txn.nonce, Outcome(winners=[winner]), intents=intents_of([winner]), ops=OPS
    )
    assert not known.coordinator.ops_go_along(txn.id)
    # Records that are refused say nothing of the settings.
    aborted = known.open()
    while aborted.id.tc != txn.id.tc:
        aborted = known.open()
    known.store.transactions.end(aborted.id, TxnState.ABORTED, b"", EndedBy.FENCE)
    with pytest.raises(TransactionAbortedError):
        known.coordinator.commit(aborted.id, aborted.nonce, Outcome(), intents=(), ops=OPS)
    assert not known.coordinator.ops_go_along(txn.id)
    known.coordinator.ops.close()


def test_what_one_step_cannot_give_up_at_once_is_given_up_by_the_next(known: World) -> None:
    where = SubscriptionRef(SEGMENT, "sub", "q")
    known.acks.claim(where, EARLIEST)
    txn = known.open()
    places = [MessagePosition(1, entry) for entry in range(1400)]
    intervals = [AckInterval(*places[at : at + 2]) for at in range(0, 1400, 2)]
    known.acks.acknowledge_individual(txn.id, txn.nonce, TIMEOUT_MS, where, intervals)
    intents = known.header(txn).intents
    known.coordinator.commit(txn.id, txn.nonce, Outcome(), intents=intents)
    assert known.coordinator.status(txn.id) is TxnStatus.COMMITTED
    state = known.store.subscriptions.read_acks(SEGMENT, "sub")
    assert state is not None
    assert not state.pending


@pytest.mark.parametrize("at_once", [2, 160])
def test_a_commit_is_repeated_by_its_owner_whichever_steps_it_takes(
    world: World, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(scripts, "_MERGED_AT_ONCE", at_once)
    txn = world.open()
    winner = world.write(txn, "a")
    intents = intents_of([winner])
    for _ in range(2):
        world.coordinator.commit(
            txn.id, txn.nonce, Outcome(winners=[winner]), intents=intents, ops=OPS
        )
    with pytest.raises(TransactionConflictError, match="with other writers"):
        world.coordinator.commit(txn.id, txn.nonce, Outcome(), intents=intents, ops=OPS)
    assert world.visible() == ["a"]
    aborted = world.open()
    world.coordinator.abort(aborted.id, EndedBy.FENCE, cause="a newer one")
    with pytest.raises(TransactionAbortedError):
        world.coordinator.commit(aborted.id, aborted.nonce, Outcome(), intents=(), ops=OPS)


def test_too_many_writers_for_one_step_take_single_ones(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    txn = world.open()
    writers = [writer_name(txn.id, number, "w") for number in range(30)]
    for writer in writers:
        world.buffer.admit(txn.id, txn.nonce, TIMEOUT_MS, writer, [SEGMENT, OTHER_SEGMENT])
    winners = [
        Winner(segment=SEGMENT, writer=w, last=as_record(world.log.append(SEGMENT, w, w)))
        for w in writers
    ]
    monkeypatch.setattr(scripts, "_MERGED_ARGUMENTS", 2 * len(writers))
    intents = world.header(txn).intents
    before = world.store.round_trips
    world.coordinator.commit(txn.id, txn.nonce, Outcome(winners=winners), intents=intents, ops=OPS)
    assert world.store.round_trips - before > 1
    assert world.coordinator.status(txn.id) is TxnStatus.COMMITTED
    assert world.visible() == writers
    assert world.pinned() == world.pinned(OTHER_SEGMENT) == []


def test_too_many_segments_for_one_step_take_single_ones(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "_MERGED_AT_ONCE", 3)
    txn = world.open()
    segments = [f"segment-{number}" for number in range(4)]
    world.store.segments.prepare(segments)
    writer = writer_name(txn.id, 0, "w")
    world.buffer.admit(txn.id, txn.nonce, TIMEOUT_MS, writer, segments)
    intents = world.header(txn).intents
    assert intents == {write_intent(segment, writer) for segment in segments}
    world.coordinator.commit(txn.id, txn.nonce, Outcome(), intents=intents, ops=OPS)
    assert world.coordinator.status(txn.id) is TxnStatus.COMMITTED
    assert all(not world.pinned(segment) for segment in segments)
