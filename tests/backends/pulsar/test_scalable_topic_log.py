"""Scalable topics of Pulsar 5 as they are read, against a broker in this process."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pyarrow as pa
import pytest

from pulsar_txn_spark.backends.pulsar import scalable_topic_log
from pulsar_txn_spark.backends.pulsar.pulsar_pb2 import BaseCommand, MessageMetadata
from pulsar_txn_spark.backends.pulsar.scalable_topic_log import ScalableTopicLog
from pulsar_txn_spark.backends.pulsar.wire.client import CLIENTS
from pulsar_txn_spark.backends.pulsar.wire.connection import RefusedError
from pulsar_txn_spark.backends.pulsar.wire.reader import WireEntry
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.errors import (
    DataLossError,
    OptionError,
    SegmentLogUnavailableError,
    TopicNotFoundError,
    TransactionDomainError,
)
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.catalog import Topics
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.reading_order import ReadingOrder
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import SegmentState
from tests.support.fake_pulsar import LEDGER, FakePulsar
from tests.support.scalable_world import PATIENCE_S, TOPIC, segment
from tests.support.scalable_world import ScalableTopicWorld as World

AFTER_ALL = Position(1 << 62, 0)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World(monkeypatch)
    yield world
    world.close()


def test_segments_are_named_as_pulsar_does_and_by_the_time_of_their_creation(world: World) -> None:
    world.split()
    parent, first, second = world.log.layout(TOPIC).segments

    assert parent.ref.log_name == "segment://public/default/t/0000-ffff-0"
    assert parent.descriptor == "0000-ffff-0@1000"
    assert parent.ref.topic == str(TOPIC) == "scalable://public/default/t"
    assert (first.parents, second.parents) == ((parent.ref.id,), (parent.ref.id,))
    assert parent.children == (first.ref.id, second.ref.id)
    assert (second.hash_start, second.hash_end) == (32_768, 65_535)


def test_only_what_was_delivered_counts_as_readable(world: World) -> None:
    ref = world.ref()
    assert world.log.last_confirmed(ref) == EARLIEST
    world.write(ref, "a", "b")
    assert world.log.last_confirmed(ref) == Position(LEDGER, 1)
    txn = world.coordinators.begin("x", 1000)
    world.write(ref, "c", txn=txn)
    world.write(ref, "d")
    assert world.log.last_confirmed(ref) == Position(LEDGER, 1)
    assert world.read(ref) == ["a", "b"]
    world.coordinators.end(txn, commit=True)
    assert world.log.last_confirmed(ref) == Position(LEDGER, 3)
    assert world.read(ref) == ["a", "b", "c", "d"]


def test_a_new_log_finds_what_lies_before_an_open_transaction(world: World) -> None:
    ref = world.ref()
    world.write(ref, *map(str, range(20)))
    txn = world.coordinators.begin("x", 1000)
    world.write(ref, "open", txn=txn)
    found = EARLIEST
    for _ in range(5):  # each goes on where the one before it has stopped
        found = world.log.last_confirmed(ref)
    assert found == Position(LEDGER, 19)


def test_an_aborted_row_at_the_end_holds_nobody_back(world: World) -> None:
    ref = world.ref()
    world.write(ref, "a")
    txn = world.coordinators.begin("x", 1000)
    world.write(ref, "b", txn=txn)
    world.coordinators.end(txn, commit=False)
    assert world.read(ref) == ["a"]
    world.write(ref, "c")
    assert world.read(ref) == ["a", "c"]


@pytest.mark.parametrize("moves", [False, True])
def test_a_segment_that_is_being_loaded_shows_no_aborted_row(world: World, moves: bool) -> None:
    ref = world.ref()
    for value, commit in (("a", True), ("x", False), ("b", True)):
        txn = world.coordinators.begin("x", 1000)
        world.write(ref, value, txn=txn)
        world.coordinators.end(txn, commit=commit)
    end = world.log.last_confirmed(ref)

    def load(_command: BaseCommand) -> None:
        world.broker.is_loading = True

    if moves:  # in the middle, to be looked up and loaded again
        world.broker.on_lookup = load
        world.broker.cut_after_deliveries = 1
    else:
        world.broker.is_loading = True
    assert world.read(ref, end=end) == ["a", "b"]


def test_children_are_released_when_nothing_is_open_in_the_parent(world: World) -> None:
    ref = world.ref()
    world.write(ref, "a")
    txn = world.coordinators.begin("x", 1000)
    world.write(ref, "b", txn=txn)
    world.split()
    topology = world.log.topology(TOPIC)
    parent = topology.segments[0]
    assert (parent.state, parent.sealed_at) == (SegmentState.SEALED, None)
    read = {parent.descriptor: world.log.last_confirmed(ref)}
    assert ReadingOrder.of(topology, read).released == {parent.descriptor}
    world.coordinators.end(txn, commit=True)
    topology = world.log.topology(TOPIC)
    parent, *children = topology.segments
    assert parent.sealed_at == Position(LEDGER, 1)
    assert ReadingOrder.of(topology, read).released == {parent.descriptor}
    read = {parent.descriptor: parent.sealed_at}
    assert ReadingOrder.of(topology, read).released == {child.descriptor for child in children}


@pytest.mark.parametrize("visible", [0, 1])
def test_a_sealed_segment_ends_although_its_last_rows_were_aborted(
    world: World, visible: int
) -> None:
    ref = world.ref()
    world.write(ref, *["a"][:visible])
    txn = world.coordinators.begin("x", 1000)
    world.write(ref, "b", "c", txn=txn)
    world.split()
    world.coordinators.end(txn, commit=False)
    parent = world.log.topology(TOPIC).segments[0]
    assert parent.sealed_at == Position(LEDGER, visible + 1), "the log's end, whatever was aborted"
    assert world.read(ref, end=parent.sealed_at) == ["a"][:visible], "the broker says it ends"


def test_a_segment_that_is_called_sealed_and_is_not_yet_has_no_end(world: World) -> None:
    ref = world.ref()
    world.write(ref, "a")
    world.split()
    world.broker.topic(ref.log_name).terminated = False
    assert world.log.topology(TOPIC).segments[0].sealed_at is None


def test_limits_cut_by_entries_and_always_get_on(world: World) -> None:
    ref = world.ref()
    world.write(ref, *"abcdef")
    end = world.log.last_confirmed(ref)
    assert world.log.limit(ref, EARLIEST, end, None, None) == end
    assert world.log.limit(ref, EARLIEST, end, 2, None) == Position(LEDGER, 1)
    assert world.log.limit(ref, Position(LEDGER, 1), end, 2, None) == Position(LEDGER, 3)
    assert world.log.limit(ref, EARLIEST, end, None, 1) == Position(LEDGER, 0)
    assert world.log.limit(ref, EARLIEST, end, 100, None) == end
    size = world.log.measure(ref, Position(LEDGER, 1), end)
    assert (size.entries, size.messages, size.exact) == (4, 4, False)
    assert world.log.measure(ref, end, end).entries == 0
    assert world.log.split(ref, EARLIEST, end, 3) == [
        Position(LEDGER, 1),
        Position(LEDGER, 3),
        end,
    ]
    assert world.log.split(ref, EARLIEST, end, 100)[-1] == end


def test_what_an_earlier_ledger_had_may_be_gone_and_is_not_skipped(world: World) -> None:
    ref = world.ref()
    world.write(ref, "a")
    end = world.log.last_confirmed(ref)
    assert world.log.trimmed_to(ref) == Position(LEDGER, -1)
    with pytest.raises(DataLossError, match="may be gone"):
        world.read(ref, Position(LEDGER - 1, 5), end)
    assert world.read(ref, EARLIEST, end) == ["a"], "from the beginning means whatever there is"


def test_a_range_that_is_gone_as_a_whole_is_not_read_as_an_empty_one(world: World) -> None:
    ref = world.ref()
    world.write(ref, "a")
    with pytest.raises(DataLossError, match="may be gone"):
        world.read(ref, Position(LEDGER - 1, 2), Position(LEDGER - 1, 5))


def test_what_is_gone_of_a_sealed_segment_is_not_read_as_empty(world: World) -> None:
    ref = world.ref()
    world.split()
    with pytest.raises(DataLossError, match="may be gone"):
        world.read(ref, Position(LEDGER - 1, 2), Position(LEDGER, 0))


@pytest.mark.parametrize("start", [EARLIEST, Position(LEDGER - 1, 0)])
def test_a_ledger_that_is_deleted_while_a_range_is_read_is_noticed(
    world: World, monkeypatch: pytest.MonkeyPatch, start: Position
) -> None:
    ref = world.ref()
    world.write(ref, "a")  # the first ledger that is there is LEDGER now
    script_feed(monkeypatch, Position(LEDGER - 1, 1), Position(LEDGER + 1, 0))
    with pytest.raises(DataLossError, match=rf"rows of \({LEDGER - 1}:1, {LEDGER + 1}:0\]"):
        list(nothing_visible(world, ref, start, Position(LEDGER + 1, 0)))


def test_a_new_ledger_behind_one_that_is_there_is_no_loss(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = world.ref()
    world.write(ref, "a")
    script_feed(monkeypatch, Position(LEDGER, 1), Position(LEDGER + 1, 0))
    end = Position(LEDGER + 1, 0)
    assert list(nothing_visible(world, ref, Position(LEDGER, 0), end)) == []


def script_feed(monkeypatch: pytest.MonkeyPatch, *positions: Position) -> None:
    """Let the next reader get entries at these positions."""

    class Feed:
        def __init__(self, *_: object) -> None:
            self._left = list(positions)

        def next_entry(self, _previous: Position) -> WireEntry:
            return WireEntry(self._left.pop(0), MessageMetadata(), b"")

        def close(self) -> None:
            pass

    monkeypatch.setattr(scalable_topic_log, "WireEntryFeed", Feed)


def nothing_visible(
    world: World, ref: SegmentRef, start: Position, end: Position
) -> Iterator[pa.RecordBatch]:
    return world.log.read(
        ref,
        start,
        end,
        visible=lambda _writer, _position: False,
        columns=frozenset({"value"}),
        max_rows=10,
    )


@pytest.fixture
def slow(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """Return a world whose broker knows what is there, and is slow to show it."""
    monkeypatch.setattr(scalable_topic_log, "_LATE_SECONDS", 10.0)
    ref = world.ref()
    world.write(ref, "a", "b")
    assert world.log.last_confirmed(ref) == Position(LEDGER, 1)
    world.broker.delivers_after_s = 3 * PATIENCE_S
    return world


def test_a_slow_broker_hides_no_loss(slow: World) -> None:
    ref = slow.ref()
    assert slow.log.trimmed_to(ref) == Position(LEDGER, -1)
    with pytest.raises(DataLossError, match="may be gone"):
        slow.read(ref, Position(LEDGER - 1, 2), Position(LEDGER, 0))


def test_an_empty_segment_has_lost_nothing(world: World) -> None:
    assert world.log.trimmed_to(world.ref()) == EARLIEST


@pytest.mark.parametrize("sealed", [False, True])
def test_a_time_is_found_in_a_segment_that_a_broker_is_slow_to_show(
    slow: World, sealed: bool
) -> None:
    ref = slow.ref()
    if sealed:
        slow.broker.delivers_after_s = 0.0
        slow.split()
        assert slow.log.topology(TOPIC).segments[0].sealed_at == Position(LEDGER, 1)
        slow.broker.delivers_after_s = 3 * PATIENCE_S
    assert slow.log.position_at(ref, 0) == EARLIEST
    assert slow.log.position_at(ref, 2**62) is None


def test_a_time_is_not_searched_for_without_what_has_to_come(
    slow: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scalable_topic_log, "_LATE_SECONDS", 0.2)
    slow.broker.delivers_after_s = 1e6
    with pytest.raises(SegmentLogUnavailableError, match="shows nothing behind"):
        slow.log.position_at(slow.ref(), 0)


def test_rows_behind_what_is_readable_are_counted_unless_they_were_aborted(world: World) -> None:
    ref = world.ref()
    world.write(ref, "a")
    end = world.log.last_confirmed(ref)
    assert world.log.measure(ref, end, AFTER_ALL).entries == 0
    for commit in (False, True):
        txn = world.coordinators.begin("x", 1000)
        world.write(ref, "b", "c", txn=txn)
        assert world.log.measure(ref, end, AFTER_ALL).entries >= 2
        world.coordinators.end(txn, commit=commit)
        assert (world.log.measure(ref, end, AFTER_ALL).entries > 0) is commit


def test_a_segment_that_moves_to_another_broker_is_asked_again(world: World) -> None:
    ref = world.ref()
    world.write(ref, "a")
    world.broker.refuses[BaseCommand.GET_LAST_MESSAGE_ID] = [(1, "Consumer not found")]
    assert world.log.last_confirmed(ref) == Position(LEDGER, 0)


def test_a_consumer_that_is_in_the_way_is_an_outage_and_no_unknown_error(world: World) -> None:
    refused = RefusedError("ConsumerBusy", "Exclusive consumer is already connected")
    error = ScalableTopicLog._error(refused, "ask for", world.ref())
    assert isinstance(error, SegmentLogUnavailableError)


def test_a_forked_worker_gives_back_no_client_of_its_parents(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ScalableTopicLog(world.config)
    with monkeypatch.context() as forked:
        forked.setattr(log, "_pid", -1)
        forked.setattr(CLIENTS, "_used", {})  # a child forgets them
        log.close()
    CLIENTS.release(world.config)


# --- how far one may read who asks only once -----------------------------------------------------


def patient_end(world: World) -> Position:
    """Return how far a fresh process may read that does not ask again."""
    log = ScalableTopicLog(world.config, patience_s=2 * PATIENCE_S, topology_s=0.0)
    try:
        [snapshot] = log.snapshot_each([world.ref()], patient=True)
        return snapshot.last_confirmed
    finally:
        log.close()


@pytest.fixture
def patient(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """Return a world where nobody can wait until a broker counts as silent."""
    monkeypatch.setattr(scalable_topic_log, "_LATE_SECONDS", 1e6)
    return world


def test_whoever_asks_once_waits_for_a_slow_broker(patient: World) -> None:
    ref = patient.ref()
    assert patient_end(patient) == EARLIEST
    patient.write(ref, "a", "b", "c")
    patient.broker.delivers_after_s = 1e6
    assert patient.log.last_confirmed(ref) == EARLIEST, "the next snapshot may find more"
    patient.broker.delivers_after_s = 5 * PATIENCE_S
    assert patient_end(patient) == Position(LEDGER, 2)


@pytest.mark.parametrize("before, slow", [(1, 0.0), (20, 0.0), (3, 3 * PATIENCE_S)])
@pytest.mark.slow
def test_whoever_asks_once_ends_before_an_open_transaction(
    patient: World, before: int, slow: float
) -> None:
    ref = patient.ref()
    patient.write(ref, *map(str, range(before)))
    txn = patient.coordinators.begin("x", 1000)
    patient.write(ref, "open", txn=txn)
    patient.write(ref, "behind")
    patient.broker.delivers_after_s = slow
    assert patient_end(patient) == Position(LEDGER, before - 1)
    patient.coordinators.end(txn, commit=True)
    assert patient_end(patient) == Position(LEDGER, before + 1)


@pytest.mark.parametrize("visible", [0, 1])
def test_whoever_asks_once_waits_for_nothing_behind_aborted_rows(
    patient: World, visible: int
) -> None:
    ref = patient.ref()
    patient.write(ref, *["a"][:visible])
    txn = patient.coordinators.begin("x", 1000)
    patient.write(ref, "b", "c", txn=txn)
    patient.coordinators.end(txn, commit=False)
    assert patient_end(patient) == (Position(LEDGER, 0) if visible else EARLIEST)
    txn = patient.coordinators.begin("x", 1000)
    patient.write(ref, "open", txn=txn)
    assert patient_end(patient) == (Position(LEDGER, 0) if visible else EARLIEST)


def test_whoever_asks_once_is_told_where_a_sealed_segment_ends(patient: World) -> None:
    ref = patient.ref()
    patient.write(ref, "a")
    patient.split()
    patient.broker.topic(ref.log_name).terminated = False
    assert patient.log.topology(TOPIC).segments[0].sealed_at is None
    patient.broker.topic(ref.log_name).terminated = True
    assert patient_end(patient) == Position(LEDGER, 0)


def test_a_broker_that_shows_nothing_of_what_it_showed_gives_no_end(world: World) -> None:
    ref = world.ref()
    world.write(ref, "a")
    assert world.log.last_confirmed(ref) == Position(LEDGER, 0)
    world.write(ref, "b")
    world.broker.delivers_after_s = 1e6
    with pytest.raises(SegmentLogUnavailableError, match=r"rows up to 7:0 .* nothing behind 7:-1"):
        world.log.snapshot_each([ref], patient=True)


def test_a_segment_that_begins_with_an_open_transaction_has_no_row_for_whoever_asks_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    txn = world.coordinators.begin("x", 1000)
    world.write(world.ref(), "open", txn=txn)
    assert patient_end(world) == EARLIEST
    assert "has entries up to 7:0, and the broker shows none of them" in caplog.text


def test_a_row_that_is_due_and_does_not_come_is_an_error(world: World) -> None:
    ref = world.ref()
    world.write(ref, "a")
    with pytest.raises(SegmentLogUnavailableError, match="shows nothing behind 7:0"):
        world.read(ref, end=Position(LEDGER, 1))


def test_a_topic_that_is_not_there_or_not_scalable_is_refused(world: World) -> None:
    other = TopicName.of_any_domain("scalable://public/default/other")
    with pytest.raises(TopicNotFoundError, match="no scalable topic topic://public/default/other"):
        world.log.topology(other)
    legacy = segment(0, 0, 65_535)
    legacy.legacy_topic_name = "persistent://public/default/t"
    world.become(legacy)
    with pytest.raises(TransactionDomainError, match="ordinary topic"):
        world.log.topology(TOPIC)


def test_a_pattern_leaves_out_a_topic_whose_name_cannot_be_read(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"topic://public/default/{name}" for name in ("b", "a", "a@eu", "c d", "__log")]
    listed = mock.Mock(return_value=names)
    monkeypatch.setattr(world.log.admin, "scalable_topics", listed)
    topics = Topics(mock.Mock(), mock.Mock(), scalable_topics=lambda: world.log)
    base = "scalable://public/default/"
    assert [str(n) for n in topics.matching(f"{base}[^c].*|b")] == [f"{base}a", f"{base}b"]
    [warning] = [record.getMessage() for record in caplog.records]
    assert f"'{base}a@eu' matches topicsPattern, and is not read" in warning


def test_brokers_before_pulsar_5_are_named_as_the_reason(world: World) -> None:
    older = FakePulsar()
    log = ScalableTopicLog(PulsarConfig(older.url, "http://127.0.0.1:1"))
    try:
        with pytest.raises(OptionError, match="brokers of Pulsar 5"):
            log.topology(TOPIC)
    finally:
        log.close()
        CLIENTS.close_idle()
        older.close()
    with pytest.raises(OptionError, match="need the transport 'wire'"):
        ScalableTopicLog(PulsarConfig(world.broker.url, "http://x", transport="client"))


@pytest.mark.parametrize("change", ["create", "adopt", "delete", "seal", "appended"])
def test_nothing_but_a_native_sink_changes_such_a_topic(world: World, change: str) -> None:
    with pytest.raises(TransactionDomainError):
        getattr(world.log, change)(world.ref())
    with pytest.raises(TransactionDomainError):
        world.log.trim(world.ref(), EARLIEST)
    with pytest.raises(TransactionDomainError):
        world.log.writer(world.ref(), "w")
    with pytest.raises(TransactionDomainError):
        world.log.published_before(world.ref(), 0)
