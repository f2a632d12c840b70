"""What a log has lost is never passed over, however little of it a reader takes (INV-11).

A ledger may be recovered shorter than what was acknowledged in it. Ledgers in front of a reader may
be deleted. A broker may pass over entries in the middle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pulsar_txn_spark.backends.pulsar import entry_headers
from pulsar_txn_spark.backends.pulsar import log as pulsar_log
from pulsar_txn_spark.backends.pulsar.admin_api import EntryHeader, PulsarAdmin
from pulsar_txn_spark.backends.pulsar.ledgers import Ledger, ManagedLedger
from pulsar_txn_spark.backends.pulsar.log import (
    ORIGIN_PROPERTY,
    SEGMENT_PROPERTY,
    PulsarSegmentLog,
)
from pulsar_txn_spark.backends.pulsar.native_topic_log import PulsarTopicLog
from pulsar_txn_spark.backends.pulsar.wire.connection import wire_id
from pulsar_txn_spark.client.reader import Reading, SubscriptionReader
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.errors import DataLossError
from pulsar_txn_spark.position import EARLIEST, MessagePosition, Position
from pulsar_txn_spark.segments.log import LogRange, SegmentRef
from pulsar_txn_spark.txn.transaction_buffer import ReadableRange, Visibility
from tests.backends.pulsar.test_ledgers import Counted
from tests.support import fake_pulsar
from tests.support.fake_admin_api import LEDGER, FakeAdminApi, fake_admin_api
from tests.support.fake_pulsar import FakePulsar

SEGMENT = SegmentRef("s1", "topic://public/default/t", "persistent://public/default/s1")
WRITTEN, LEFT = 7, 6  # entries of the first ledger


class Lossy:
    """A segment whose first ledger has lost its last entry; an entry in another ledger follows."""

    def __init__(self, broker: FakePulsar, api: FakeAdminApi) -> None:
        self.log = PulsarSegmentLog(PulsarConfig(broker.url, api.url, transport="wire"))
        api.create(SEGMENT)
        writer = self.log.writer(SEGMENT, "w")
        for number in range(WRITTEN):
            writer.append(pa.record_batch({"value": pa.array([b"%d" % number], pa.binary())}))
            self.acknowledged = writer.flush().last
        writer.close()
        # The broker's last entry is the first one of the next ledger from now on: see `mapped`.

    def stats(self) -> dict[str, Any]:
        ledgers = [(LEDGER, LEFT, 600), (LEDGER + 1, 0, 0)]
        return {
            "lastConfirmedEntry": f"{LEDGER + 1}:0",
            "currentLedgerSize": 100,
            "entriesAddedCounter": 1,
            "ledgers": [{"ledgerId": id_, "entries": n, "size": size} for id_, n, size in ledgers],
        }

    def read(self, start: Position, end: Position) -> list[int]:
        batches = self.log.read(
            SEGMENT,
            start,
            end,
            visible=lambda _name, _position: True,
            columns=frozenset({"value"}),
            max_rows=100,
        )
        return [int(value) for batch in batches for value in batch.column(0).to_pylist()]


@pytest.fixture
def lossy(broker: FakePulsar, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lossy]:
    with fake_admin_api() as api:
        lossy = Lossy(broker, api)
        answer = api.answer
        monkeypatch.setattr(
            api,
            "answer",
            lambda name, what: lossy.stats() if what == "internalStats" else answer(name, what),
        )

        def mapped(ledger: int, entry: int) -> Any:
            moved = ledger == LEDGER and entry >= LEFT
            return wire_id(ledger + 1, entry - LEFT) if moved else wire_id(ledger, entry)

        monkeypatch.setattr(fake_pulsar, "wire_id", mapped)
        yield lossy
        lossy.log.close()


def test_acknowledged_rows_that_a_closed_ledger_lacks_are_never_passed_over(lossy: Lossy) -> None:
    assert lossy.acknowledged == Position(LEDGER, WRITTEN - 1)
    with pytest.raises(DataLossError, match=r"ledger 7 was closed at 7:5.*Nothing was skipped"):
        lossy.read(Position(LEDGER, 2), Position(LEDGER, WRITTEN - 1))


def test_what_is_left_of_a_closed_ledger_is_read(lossy: Lossy) -> None:
    [snapshot] = lossy.log.snapshot_each([SEGMENT])
    end = snapshot.last_up_to(Position(LEDGER, WRITTEN - 1))
    assert end == Position(LEDGER, LEFT - 1)
    assert lossy.read(Position(LEDGER, 2), end) == [3, 4, 5]


# -- a reader that takes no more than the beginning ------------------------------------------------

ENTRIES, ROWS = 8, 800
NATIVE = SegmentRef(SEGMENT.log_name, SEGMENT.log_name, SEGMENT.log_name)
HIDDEN = EntryHeader(hidden=True, message="", chunk=0, chunks=1)
NOT_THERE = EntryHeader(hidden=False, message="", chunk=0, chunks=1, there=False)


class Whole:
    """A segment of eight entries, of which a broker may not deliver some."""

    def __init__(self, broker: FakePulsar, api: FakeAdminApi) -> None:
        self.broker, self.api, self.segment = broker, api, SEGMENT
        config = PulsarConfig(broker.url, api.url, transport="wire")
        self.log = PulsarSegmentLog(config)
        api.create(SEGMENT)
        writer = self.log.writer(SEGMENT, "w")
        for _ in range(ENTRIES):
            writer.append(pa.record_batch({"value": pa.array([b"v"] * ROWS, pa.binary())}))
            writer.flush()
            self.last = api.append(SEGMENT)
        writer.close()
        self.log.trimmed_to(SEGMENT)  # so that what the topic says of itself is known
        self.native = PulsarTopicLog(config)
        self.stats: list[dict[str, Any]] = []
        """What the broker says of the ledgers: the first one once, the last one for ever."""

    def look_at(self, name: str, what: str) -> Any:
        answer = FakeAdminApi.answer(self.api, name, what)  # which counts
        if what != "internalStats" or not self.stats:
            return answer
        return self.stats.pop(0) if len(self.stats) > 1 else self.stats[0]

    def is_native(self) -> None:
        """Let the topic be one of Pulsar's own."""
        self.log, self.segment = self.native, NATIVE
        self.api.properties["s1"] = {}
        self.native._check_exists(NATIVE)

    def pass_over(self, *entries: int) -> None:
        """Let the broker not deliver entries."""
        self.broker.coordinator.known.add((0, 1))
        self.broker.topic(SEGMENT.log_name).txns |= dict.fromkeys(entries, (0, 1))

    def roll_over(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let each two entries be in a ledger of their own, from now on."""
        monkeypatch.setattr(
            fake_pulsar, "wire_id", lambda _, entry: wire_id(LEDGER + entry // 2, entry % 2)
        )
        self.last = Position(LEDGER + 3, 1)
        self.stats = [stats_of(LEDGER, LEDGER + 3)]

    def first_batch_of_a_client(self, start: Position) -> int:
        """Read as a client does, which looks no further; return how many messages it gets."""
        reader = SubscriptionReader.__new__(SubscriptionReader)
        components, ref = SimpleNamespace(log=self.log), SimpleNamespace(ref=self.segment)
        reader._components, reader._consumer = components, None  # type: ignore[assignment]
        at = MessagePosition.whole(start)
        state = SimpleNamespace(holder_of=lambda _: None, cursor=at)
        reading = Reading(ref, None, state, start, at)  # type: ignore[arg-type]
        read, _, _ = reader._read_range(reading, ReadableRange(self.last, Visibility()), 0, {})
        return len(read.messages)

    def all_batches(self, start: Position) -> int:
        return sum(batch.num_rows for batch in self.read(start))

    def next_batch(self, start: Position) -> int:
        rows: int = next(self.read(start)).num_rows
        return rows

    def read(self, start: Position) -> Iterator[pa.RecordBatch]:
        return self.log.read(
            self.segment,
            start,
            self.last,
            visible=lambda _name, _position: True,
            columns=frozenset({"value"}),
            max_rows=1_000,
        )


def stats_of(first: int, last: int) -> dict[str, Any]:
    """Return what a broker says of ledgers of two entries each."""
    return {
        "lastConfirmedEntry": f"{last}:1",
        "currentLedgerSize": 100,
        "entriesAddedCounter": 1,
        "ledgers": [{"ledgerId": n, "entries": 2, "size": 100} for n in range(first, last + 1)],
    }


TAKE = pytest.mark.parametrize(
    "take", [Whole.next_batch, Whole.first_batch_of_a_client, Whole.all_batches]
)
Take = Callable[[Whole, Position], int]


@pytest.fixture
def whole(broker: FakePulsar, monkeypatch: pytest.MonkeyPatch) -> Iterator[Whole]:
    monkeypatch.setattr(entry_headers, "_ASK_AGAIN_SECONDS", 0.0)
    with fake_admin_api() as api:
        whole = Whole(broker, api)
        monkeypatch.setattr(api, "answer", whole.look_at)
        api.calls()
        yield whole
        whole.log.close()
        whole.native.close()


@TAKE
@pytest.mark.parametrize("native", [False, True], ids=["segment", "native"])
def test_rows_behind_ledgers_that_somebody_deleted_are_not_given_out(
    whole: Whole, take: Take, *, native: bool
) -> None:
    if native:
        whole.is_native()
    else:
        properties = whole.api.properties["s1"]
        assert properties is not None
        properties[ORIGIN_PROPERTY] = f"{EARLIEST},3"
        whole.log._read_properties(SEGMENT)
    with pytest.raises(DataLossError, match=r"rows of \(5:10, 7:7\]"):
        take(whole, Position(5, 10))


@TAKE
@pytest.mark.parametrize("status", [404, 200], ids=["not there", "there"])
def test_rows_behind_an_entry_that_did_not_come_are_not_given_out(
    whole: Whole, status: int, take: Take
) -> None:
    whole.pass_over(1)
    lost = f"/ledger/{LEDGER}/entry/1"
    whole.api.instead = lambda path: (404, "") if status == 404 and path.endswith(lost) else None
    with pytest.raises(DataLossError, match=r"entry 7:1 .*did not come.*Nothing was skipped"):
        take(whole, EARLIEST)


@pytest.mark.parametrize("looked_at", [0, 1, 100])
@pytest.mark.parametrize("last", [3, 6], ids=["in the middle", "before the last row"])
def test_ledgers_that_go_while_a_range_is_read_are_noticed(
    whole: Whole, monkeypatch: pytest.MonkeyPatch, last: int, looked_at: int
) -> None:
    whole.roll_over(monkeypatch)
    monkeypatch.setattr(pulsar_log, "_LOOKED_AT_ALWAYS", looked_at)
    whole.stats.append(stats_of(LEDGER + 2, LEDGER + 3))
    whole.api.instead = lambda path: (404, "") if f"/ledger/{LEDGER + 1}/" in path else None
    whole.pass_over(*range(2, last + 1))
    rows: list[int] = []
    with pytest.raises(DataLossError, match=r"everything up to 9:-1 was deleted"):
        rows.extend(batch.num_rows for batch in whole.read(EARLIEST))
    assert sum(rows) == 2 * ROWS, "no row goes out behind them"


def test_a_look_at_an_entry_does_not_prove_that_other_ledgers_are_there(
    whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole.roll_over(monkeypatch)
    monkeypatch.setattr(pulsar_log, "_LOOKED_AT_ALWAYS", 1)
    monkeypatch.setattr(PulsarAdmin, "entry_header", lambda *_: HIDDEN)
    whole.stats.append(stats_of(LEDGER + 2, LEDGER + 3))
    whole.pass_over(1, 2, 3)
    with pytest.raises(DataLossError, match=r"everything up to 9:-1 was deleted"):
        whole.all_batches(EARLIEST)


def test_entries_that_the_broker_did_not_tell_of_before_are_asked_for(
    whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole.roll_over(monkeypatch)
    whole.stats.insert(0, stats_of(LEDGER, LEDGER))
    whole.pass_over(2, 3)
    with pytest.raises(DataLossError, match=r"entry 8:0 .*did not come"):
        whole.all_batches(EARLIEST)


def test_ledgers_that_just_follow_each_other_cost_one_call_for_all(
    whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole.roll_over(monkeypatch)
    assert whole.all_batches(EARLIEST) == ENTRIES * ROWS
    assert whole.api.asked == {"internalStats": 1}


def test_entries_that_are_hidden_cost_a_call_each_also_where_a_ledger_begins(
    whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole.roll_over(monkeypatch)
    looked_at = []

    def entry_header(_: PulsarAdmin, _topic: str, at: Position) -> EntryHeader:
        looked_at.append(at)
        return HIDDEN

    monkeypatch.setattr(PulsarAdmin, "entry_header", entry_header)
    whole.pass_over(2, 4)
    assert whole.all_batches(EARLIEST) == (ENTRIES - 2) * ROWS
    assert looked_at == [Position(8, 0), Position(9, 0)]
    # Whoever sees what is hidden in a ledger has seen that it is there.
    assert whole.api.asked == {"internalStats": 1}


def test_markers_of_pulsars_own_transactions_cost_no_call(whole: Whole) -> None:
    whole.is_native()
    whole.pass_over(1, 3, 5)
    whole.api.calls()
    assert whole.all_batches(Position(LEDGER, -1)) == (ENTRIES - 3) * ROWS
    # These find out where the last message is.
    assert whole.api.asked == {"internalStats": 1, "ledger": 1}


@pytest.mark.parametrize("lost", [False, True], ids=["hidden", "lost"])
def test_an_entry_that_a_broker_fails_to_look_at_once_is_not_lost(
    whole: Whole, monkeypatch: pytest.MonkeyPatch, *, lost: bool
) -> None:
    answers = [NOT_THERE, NOT_THERE if lost else HIDDEN]
    monkeypatch.setattr(PulsarAdmin, "entry_header", lambda *_: answers.pop(0))
    whole.pass_over(1)
    if lost:
        with pytest.raises(DataLossError, match=r"entry 7:1 .*did not come"):
            whole.all_batches(EARLIEST)
    else:
        assert whole.all_batches(EARLIEST) == (ENTRIES - 1) * ROWS
    assert not answers


# -- what it costs where many entries are hidden ---------------------------------------------------


class Rows:
    """Counts rows, a hundred to a batch."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, _entry: Any) -> None:
        self.count += 1

    def batches(self, *, everything: bool) -> Iterator[pa.RecordBatch]:
        if self.count >= 100 or (everything and self.count):
            batch = pa.record_batch({"value": pa.nulls(self.count, pa.binary())})
            self.count = 0
            yield batch


class Many:
    """Segments of ledgers of two entries each, the second of which is hidden."""

    def __init__(self, number: int) -> None:
        self.now, self.asked, self.looked_at = 0.0, 0, 0
        self.ledgers = Counted(Ledger(at, 2, 100) for at in range(1, number + 1))
        self.log = PulsarSegmentLog(PulsarConfig("pulsar://127.0.0.1:1", "http://127.0.0.1:1"))
        self.log._header_budget = pulsar_log._HeaderBudget(lambda: self.now)
        admin: Any = self
        self.log._admin = admin
        transport: Any = SimpleNamespace(
            drops_chunks=False, rows=lambda *_: Rows(), known_topics=lambda _: None
        )
        self.log._transport = transport

    def managed_ledger(self, _topic: str) -> ManagedLedger:
        self.asked += 1
        return ManagedLedger(1, self.ledgers, Position(len(self.ledgers), 1), 1)

    def properties(self, _topic: str) -> dict[str, str]:
        return {SEGMENT_PROPERTY: SEGMENT.id, ORIGIN_PROPERTY: f"{EARLIEST},1"}

    def entry_header(self, _topic: str, at: Position) -> EntryHeader:
        assert at.entry == 1
        self.looked_at += 1
        return HIDDEN

    def read(self, start: Position, segment: SegmentRef = SEGMENT) -> Iterator[pa.RecordBatch]:
        wanted = LogRange(segment, start, Position(len(self.ledgers), 0), lambda *_: True)
        feed: Any = SimpleNamespace(
            next_entry=lambda previous: SimpleNamespace(
                position=Position(max(0, previous.ledger) + 1, 0), producer_name="w"
            ),
            close=lambda: None,
        )
        return self.log._read(wanted, frozenset({"value"}), 100, lambda: feed)


def test_of_many_ledgers_that_end_with_something_hidden_each_batch_costs_a_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pulsar_log, "_LOOKED_AT_ALWAYS", 0)
    many = Many(1_000)
    Counted.looks = 0
    batches = [batch.num_rows for batch in many.read(EARLIEST)]
    assert batches == [100] * 10
    assert many.asked <= 1 + len(batches)
    assert many.looked_at == 0
    assert Counted.looks < 30 * 1_000


def test_entries_that_are_hidden_from_a_reader_of_many_ranges_cost_few_calls_in_some_seconds() -> (
    None
):
    many = Many(4_000)
    for seconds in range(3):
        many.now = seconds * pulsar_log._LOOKED_AT_SECONDS
        for number in range(10):
            at = Position((seconds * 10 + number) * 100, 0)
            assert next(many.read(at)).num_rows == 100
        assert many.looked_at == (seconds + 1) * 100
    other = replace(SEGMENT, log_name="persistent://public/default/s2")
    next(many.read(EARLIEST, other))
    assert many.looked_at > 300, "another segment has its own"
