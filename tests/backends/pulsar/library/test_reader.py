"""A broker that blocks readers is noticed: silence is not the end of a range."""

from __future__ import annotations

from typing import NamedTuple
from unittest import mock

import pulsar
import pytest

from pulsar_txn_spark.backends.pulsar import entry_headers
from pulsar_txn_spark.backends.pulsar import log as pulsar_log
from pulsar_txn_spark.backends.pulsar.admin_api import EntryHeader, TransactionState
from pulsar_txn_spark.backends.pulsar.known_topics import KnownTopic
from pulsar_txn_spark.backends.pulsar.ledgers import Ledger, ManagedLedger
from pulsar_txn_spark.backends.pulsar.library import reader as library_reader
from pulsar_txn_spark.backends.pulsar.library.reader import EntryFeed
from pulsar_txn_spark.backends.pulsar.log import PulsarSegmentLog
from pulsar_txn_spark.backends.pulsar.pulsar_pb2 import MessageIdData
from pulsar_txn_spark.errors import DataLossError, SegmentLogError, SegmentLogUnavailableError
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import SegmentRef

SEGMENT = SegmentRef("s", "topic://public/default/t", "persistent://public/default/s")
END = Position(3, 2)
PLAIN, HIDDEN = EntryHeader(False, "", 0, 1), EntryHeader(True, "", 0, 1)


class Entry(NamedTuple):
    position: Position
    producer_name: str = "w"
    first: Position | None = None


def managed_ledger_of(entries: int) -> ManagedLedger:
    """Return a topic of one ledger."""
    ledgers = (Ledger(3, entries, 100),) if entries else ()
    return ManagedLedger(3, ledgers, Position(3, entries - 1) if entries else EARLIEST, entries, 3)


class Broker:
    """Shows entries when it likes, and tells what they are."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pulsar_log, "_LATE_SECONDS", 0.0)
        monkeypatch.setattr(entry_headers, "_ASK_AGAIN_SECONDS", 0.0)
        self.state: TransactionState | None = None
        self.headers: dict[Position, EntryHeader] = {}
        self.managed_ledgers = [managed_ledger_of(3)]
        self.shown: list[Entry | None] = []
        self.rows: list[Entry] = []
        self.log = PulsarSegmentLog.__new__(PulsarSegmentLog)
        admin = mock.Mock()
        admin.settled_transactions_of.side_effect = lambda *_, **__: self.state
        admin.managed_ledger.side_effect = self._managed_ledger
        self.log._admin = admin
        self.log._known = {SEGMENT: KnownTopic(0.0, None, gated=False, contains_txn="")}
        self.log._header_budget = pulsar_log._HeaderBudget()
        self.log._headers = mock.Mock()
        for source in (self.log._headers, admin):
            source.entry_header.side_effect = lambda _, at: self.headers.get(at, PLAIN)
        self.log._headers.between.side_effect = lambda *_: ()
        self.log._transport = mock.Mock(drops_chunks=True)
        self.feed = feed = self.log._transport.feed.return_value
        feed.next_entry.side_effect = lambda _: self.shown.pop(0) if self.shown else None
        rows = self.log._transport.rows.return_value
        rows.add.side_effect = self.rows.append
        rows.batches.return_value = []
        for name in ("_check_process", "_check_exists", "_check_whole"):
            monkeypatch.setattr(self.log, name, mock.Mock())

    def _managed_ledger(self, _topic: str) -> ManagedLedger:
        return (
            self.managed_ledgers.pop(0)
            if len(self.managed_ledgers) > 1
            else self.managed_ledgers[0]
        )

    def read(self, end: Position = END) -> list[int]:
        """Read the range, and return which entries came."""
        found = self.log.read(
            SEGMENT,
            EARLIEST,
            end,
            visible=lambda _writer, _position: True,
            columns=frozenset({"value"}),
            max_rows=10,
        )
        assert list(found) == []
        return [entry.position.entry for entry in self.rows]


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    return Broker(monkeypatch)


def test_rows_that_the_broker_holds_back_are_not_skipped(broker: Broker) -> None:
    broker.state = TransactionState("Ready", Position(3, 0), 1)
    with pytest.raises(SegmentLogUnavailableError, match=r"nobody read beyond 3:0.*Nothing was"):
        broker.read()


@pytest.mark.parametrize("shown", [0, 1, 2])
def test_a_broker_that_shows_nothing_more_before_the_end_makes_no_range_shorter(
    broker: Broker, shown: int
) -> None:
    broker.shown = [Entry(Position(3, entry)) for entry in range(shown)]
    with pytest.raises(
        SegmentLogUnavailableError, match=rf"shows nothing after .*3:{shown} is there.*Nothing was"
    ):
        broker.read()


def test_a_broker_that_is_late_is_waited_for(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulsar_log, "_LATE_SECONDS", 60.0)
    first, *others = (Entry(Position(3, entry)) for entry in range(3))
    broker.shown = [first, None, None, None, *others]
    assert broker.read() == [0, 1, 2]


def test_a_broker_that_shows_nothing_for_a_while_may_not_have_the_topic_any_more(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulsar_log, "_LATE_SECONDS", 60.0)
    monkeypatch.setattr(pulsar_log, "_LOOK_UP_SECONDS", 0.0)
    broker.shown = [Entry(Position(3, 0))]

    def at_the_next_broker(previous: Position) -> None:
        assert previous == (3, 0)
        broker.shown = [Entry(Position(3, 1)), Entry(Position(3, 2))]

    broker.feed.look_up_again.side_effect = at_the_next_broker
    assert broker.read() == [0, 1, 2]
    assert broker.feed.look_up_again.call_count == 1


def test_a_broker_that_knows_no_such_entries_yet_is_waited_for_and_then_named(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.managed_ledgers = [managed_ledger_of(0)]
    with pytest.raises(SegmentLogUnavailableError, match=r"although 3:2 is there or was"):
        broker.read()
    monkeypatch.setattr(pulsar_log, "_LATE_SECONDS", 60.0)
    broker.managed_ledgers = [managed_ledger_of(0), managed_ledger_of(0), managed_ledger_of(3)]
    broker.shown = [None, None, *(Entry(Position(3, entry)) for entry in range(3))]
    assert broker.read() == [0, 1, 2]


@pytest.mark.parametrize("max_read", [END, Position(4, -1), None])
def test_a_range_of_which_nothing_is_to_be_seen_ends(
    broker: Broker, max_read: Position | None
) -> None:
    broker.state = None if max_read is None else TransactionState("Ready", max_read, 1)
    broker.headers = {Position(3, entry): HIDDEN for entry in range(3)}
    assert broker.read() == []


def test_what_is_hidden_at_the_end_is_no_reason_to_wait_and_what_lies_before_it_is(
    broker: Broker,
) -> None:
    broker.headers[Position(3, 2)] = HIDDEN
    broker.shown = [Entry(Position(3, 0)), Entry(Position(3, 1))]
    assert broker.read() == [0, 1]
    broker.shown = [Entry(Position(3, 0))]
    with pytest.raises(SegmentLogUnavailableError, match="3:1 is there"):
        broker.read()


class Slow:
    """A broker behind whose entries a clock goes on: a second for each header, and each poll."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch, hidden: int) -> None:
        self.now = 0.0
        self.asked: list[Position] = []
        self.headers = {Position(3, entry): HIDDEN for entry in range(hidden)}
        monkeypatch.setattr(pulsar_log, "_LATE_SECONDS", 30.0)
        monkeypatch.setattr(pulsar_log, "time", mock.Mock(monotonic=lambda: self.now))
        headers: mock.Mock = broker.log._headers  # type: ignore[assignment]
        headers.entry_header.side_effect = self.entry_header
        self.next_entry = broker.feed.next_entry.side_effect
        broker.feed.next_entry.side_effect = self.polled

    def entry_header(self, _topic: str, at: Position) -> EntryHeader:
        self.now += 1.0
        self.asked.append(at)
        return self.headers.get(at, PLAIN)

    def polled(self, previous: Position) -> Entry | None:
        self.now += 1.0
        found: Entry | None = self.next_entry(previous)
        return found


def test_a_range_ends_behind_more_hidden_entries_than_a_late_broker_is_waited_for(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(broker, monkeypatch, hidden=1000)
    broker.managed_ledgers = [managed_ledger_of(1000)]
    assert broker.read(Position(3, 999)) == []
    assert slow.asked == [Position(3, entry) for entry in range(1000)], "each of them once"


def test_an_entry_behind_many_hidden_ones_that_does_not_come_is_named_in_the_end(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(broker, monkeypatch, hidden=400)
    broker.managed_ledgers = [managed_ledger_of(500)]
    with pytest.raises(SegmentLogUnavailableError, match="3:400 is there"):
        broker.read(Position(3, 499))
    found = slow.asked.index(Position(3, 400))
    assert set(slow.asked[found:]) == {Position(3, 400)}
    assert 10 < len(slow.asked[found:]) < 30, "it is waited for from when it was found"


def test_what_comes_while_hidden_entries_are_looked_at_is_taken_at_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(broker, monkeypatch, hidden=999)
    broker.managed_ledgers = [managed_ledger_of(1000)]
    broker.log._transport.drops_chunks = False
    broker.log._admin.entry_header.side_effect = lambda _, at: slow.headers[at]  # type: ignore[attr-defined]
    broker.shown = [None, None, Entry(Position(3, 999))]
    assert broker.read(Position(3, 999)) == [999]
    assert 0 < len(slow.asked) < 30


def test_a_message_whose_last_chunk_lies_behind_the_range_is_no_reason_to_wait(
    broker: Broker,
) -> None:
    broker.shown = [Entry(Position(3, 0))]
    for chunk in (0, 1):
        broker.headers[Position(3, 1 + chunk)] = EntryHeader(False, "m", chunk, 3)
    assert broker.read() == [0]


def test_a_message_whose_first_chunk_lies_before_the_range_is_not_dropped(broker: Broker) -> None:
    broker.headers[Position(3, 0)] = EntryHeader(False, "m", 1, 3)
    with pytest.raises(SegmentLogError, match=r"found chunk 1 of 3 at 3:0.*Nothing was skipped"):
        broker.read()


@pytest.mark.parametrize("kind", ["plain", "last chunk"])
def test_what_pulsar_client_drops_in_front_of_a_row_fails_the_read(
    broker: Broker, kind: str
) -> None:
    """Also where the first chunk was sent again: the client drops such a message in silence."""
    chunk, last = EntryHeader(False, "m", 0, 2), EntryHeader(False, "m", 1, 2)
    holes = [chunk, chunk, last] if kind == "last chunk" else [PLAIN]
    error = SegmentLogError if kind == "last chunk" else DataLossError
    end = Position(3, len(holes))
    broker.managed_ledgers = [managed_ledger_of(len(holes) + 1)]
    found = list(enumerate(holes))
    broker.log._headers.between.side_effect = lambda *_: (  # type: ignore[attr-defined]
        (Position(3, entry), header) for entry, header in found
    )
    broker.shown = [Entry(end)]
    with pytest.raises(error, match=r"pulsar-client .*Nothing was skipped; .*'wire'"):
        broker.read(end)


def test_a_last_chunk_that_came_again_is_no_reason_to_wait(broker: Broker) -> None:
    chunks = [EntryHeader(False, "m", chunk, 2) for chunk in (0, 1, 1)]
    broker.headers = {Position(3, entry): header for entry, header in enumerate(chunks)}
    broker.log._headers.between.side_effect = lambda *_: [  # type: ignore[attr-defined]
        (Position(3, 0), chunks[0])
    ]
    broker.shown = [Entry(Position(3, 1), first=Position(3, 0))]
    assert broker.read() == [1]


@pytest.mark.parametrize("after", [Position(3, 2), Position(4, 0)], ids=["within", "at the end"])
@pytest.mark.parametrize("drops_chunks", [True, False])
def test_an_entry_that_the_broker_passes_over_is_not_skipped(
    broker: Broker, after: Position, *, drops_chunks: bool
) -> None:
    broker.log._transport.drops_chunks = drops_chunks
    shown = [Entry(Position(3, 0)), Entry(after)]
    for header in (EntryHeader(False, "", 0, 1, there=False), PLAIN):
        broker.shown, broker.headers[Position(3, 1)] = list(shown), header
        with pytest.raises(DataLossError, match=r"3:1 .*did not come.*Nothing was skipped"):
            broker.read()
    broker.rows.clear()
    broker.shown = list(shown)
    broker.headers = {Position(3, entry): HIDDEN for entry in (1, 2)}
    assert broker.read() == [
        position.entry for position in (Position(3, 0), after) if position <= END
    ]


def test_the_end_of_a_range_is_not_passed_over_either(broker: Broker) -> None:
    broker.shown = [*(Entry(Position(3, entry)) for entry in (0, 1)), Entry(Position(4, 0))]
    with pytest.raises(DataLossError, match=r"3:2 .*did not come"):
        broker.read()


def test_of_many_entries_that_did_not_come_some_are_looked_at(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulsar_log, "_LOOKED_AT_ALWAYS", 1)
    broker.headers[Position(3, 0)] = HIDDEN
    broker.shown = [Entry(Position(3, 2))]
    assert broker.read() == [2]
    broker.log._headers.entry_header.assert_called_once()  # type: ignore[attr-defined]


@pytest.mark.parametrize("first", [None, Position(3, 4)])
def test_an_entry_says_where_its_message_begins(first: Position | None) -> None:
    reader = mock.Mock()
    reader._reader = reader
    id_ = MessageIdData(ledgerId=3, entryId=7)
    if first is not None:
        id_.first_chunk_message_id.CopyFrom(MessageIdData(ledgerId=3, entryId=4))
    message_id = reader.read_next.return_value.message_id.return_value
    message_id.ledger_id.return_value, message_id.entry_id.return_value = 3, 7
    message_id.batch_index.return_value = -1
    message_id.serialize.return_value = id_.SerializeToString()
    entry = EntryFeed(reader, SEGMENT).next_entry(Position(3, 6))
    assert entry is not None
    assert (entry.position, entry.size, entry.first) == (Position(3, 7), 0, first)


def test_a_reader_that_announces_what_never_comes_is_not_believed_for_long() -> None:
    # pulsar-client does so behind the last visible message, once it has connected anew.
    reader = mock.Mock()
    reader._reader = reader
    reader.has_message_available.return_value = True
    reader.read_next.side_effect = pulsar.Timeout("nothing came")
    assert EntryFeed(reader, SEGMENT).next_entry(EARLIEST) is None
    assert reader.read_next.call_count < 10


def test_a_reader_that_a_sealed_topic_disconnects_again_and_again_leaves_the_proof_to_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(library_reader, "_PROGRESS_SECONDS", 0.05)
    reader = mock.Mock()
    reader._reader = reader
    reader.read_next.side_effect = pulsar.Timeout("nothing came")
    reader.has_message_available.side_effect = pulsar.NotConnected("not ready")
    feed = EntryFeed(reader, SEGMENT)
    assert feed.next_entry(EARLIEST) is None
    reader.has_message_available.side_effect = pulsar.LookupError("no owner")
    with pytest.raises(SegmentLogUnavailableError, match="LookupError"):
        feed.next_entry(EARLIEST)
