"""Native topics: how far they are read, what is gone, and what is refused."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import numpy as np
import pulsar
import pytest
import redis
from pyspark.sql.types import StructType

from pulsar_txn_spark.backends.pulsar import entry_headers, native_topic_log
from pulsar_txn_spark.backends.pulsar.admin_api import EntryHeader, PulsarAdmin, TransactionState
from pulsar_txn_spark.backends.pulsar.ledgers import Ledger, ManagedLedger
from pulsar_txn_spark.backends.pulsar.log import (
    CREATED_PROPERTY,
    SEGMENT_PROPERTY,
    PulsarSegmentLog,
    _Holes,
)
from pulsar_txn_spark.backends.pulsar.native_topic_log import PulsarTopicLog
from pulsar_txn_spark.engine.components import Components, open_components
from pulsar_txn_spark.errors import (
    DataLossError,
    OptionError,
    SegmentLogError,
    SegmentLogUnavailableError,
    SegmentNotFoundError,
    TopicExistsError,
    TopicNotFoundError,
    TransactionDomainError,
)
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.catalog import Topics
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.spark.context import TaskFacts
from pulsar_txn_spark.spark.rows import message_ids
from pulsar_txn_spark.spark.source import planner as planner_module
from pulsar_txn_spark.spark.source.partition import SourcePartition, partition_index
from pulsar_txn_spark.spark.source.stream import PulsarTxnStreamReader
from pulsar_txn_spark.spark.source.task import read_partition
from pulsar_txn_spark.spark.source.topics import source_options
from pulsar_txn_spark.spark.versions import ReadAllAvailable

NAME = "persistent://public/default/t"
TOPIC = TopicName.of_any_domain(NAME)
REF = SegmentRef(NAME, NAME, NAME)


def managed_ledger_of(*ledgers: tuple[int, int], state: str = "") -> ManagedLedger:
    """Return a managed ledger of ledgers with so many entries; the last one is open."""
    number, entries = ledgers[-1]
    return ManagedLedger.of(
        {
            "lastConfirmedEntry": f"{number}:{entries - 1}",
            "currentLedgerSize": 10 * entries,
            "entriesAddedCounter": 0,
            "state": state,
            "ledgers": [{"ledgerId": n, "entries": c, "size": 10 * c} for n, c in ledgers],
        }
    )


class Admin:
    """The admin API of a broker with a few topics."""

    def __init__(self) -> None:
        self.counts: dict[str, int | None] = {NAME: 0}
        self.properties_of: dict[str, dict[str, str]] = {}
        self.managed_ledgers: dict[str, ManagedLedger] = {}
        self.states: list[TransactionState | Exception | None] = [ready(Position(9, 9))]
        self.hidden: set[Position] = set()
        self.scalable: set[str] = set()
        self.chunks: dict[Position, EntryHeader] = {}
        self.transactions_off_at = -math.inf
        self.forbidden: set[str] = set()
        self.asked: list[str] = []

    def chunked(self, message: str, *entries: int, of: int = 0) -> None:
        """Let entries of ledger 6 be the chunks of a message; `of` if some are still to come."""
        for chunk, entry in enumerate(entries):
            header = EntryHeader(
                hidden=False, message=message, chunk=chunk, chunks=of or len(entries)
            )
            self.chunks[Position(6, entry)] = header

    def partitions(self, topic: str) -> int | None:
        return self.counts.get(topic)

    def properties(self, topic: str) -> dict[str, str] | None:
        self.asked.append(topic)
        if topic in self.forbidden:
            raise SegmentLogUnavailableError("the admin API refuses us")
        return self.properties_of.get(topic, {})

    def managed_ledger(self, topic: str) -> ManagedLedger:
        return self.managed_ledgers[topic]

    def transactions_of(self, _topic: str, **_how: bool) -> TransactionState | None:
        found = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if isinstance(found, Exception):
            raise found
        return found

    def settled_transactions_of(self, topic: str) -> TransactionState | None:
        return PulsarAdmin.settled_transactions_of(self, topic)  # type: ignore[arg-type]

    def entry_header(self, _topic: str, position: Position) -> EntryHeader:
        plain = EntryHeader(hidden=position in self.hidden, message="", chunk=0, chunks=1)
        return self.chunks.get(position, plain)

    def between(
        self, topic: str, start: Position, end: Position
    ) -> Iterator[tuple[Position, EntryHeader]]:
        for entry in range(start.entry + 1, end.entry):
            yield Position(6, entry), self.entry_header(topic, Position(6, entry))

    def has_scalable(self, _tenant: str, _namespace: str, name: str) -> bool:
        return name in self.scalable

    def topics(self, _tenant: str, _namespace: str) -> list[str]:
        return sorted(self.managed_ledgers)


def ready(position: Position) -> TransactionState:
    return TransactionState("Ready", position, 0)


@pytest.fixture
def admin() -> Admin:
    return Admin()


@pytest.fixture
def log(admin: Admin) -> PulsarTopicLog:
    found = PulsarTopicLog.__new__(PulsarTopicLog)
    with mock.patch("pulsar_txn_spark.backends.pulsar.log.PulsarSegmentLog.__init__"):
        PulsarTopicLog.__init__(found, mock.Mock(admin_url="http://broker"))
    found._config = mock.Mock(admin_url="http://broker")
    found._admin = found._headers = admin  # type: ignore[assignment]
    found._transport = mock.Mock(partitions=lambda topic, ask_admin: ask_admin(topic))
    found._known = {}
    found._lock = mock.MagicMock()
    return found


# -- how far it is read ----------------------------------------------------------------------------


def test_a_topic_is_read_up_to_where_pulsars_own_transactions_let_readers(
    log: PulsarTopicLog, admin: Admin
) -> None:
    admin.managed_ledgers[NAME] = managed_ledger_of((6, 8))
    admin.states = [ready(Position(6, 2))]
    assert log.last_confirmed(REF) == Position(6, 2)
    admin.states = [ready(Position(6, 7))]
    assert log.last_confirmed(REF) == Position(6, 7)


def test_a_broker_without_transactions_lets_read_up_to_the_last_entry(
    log: PulsarTopicLog, admin: Admin
) -> None:
    admin.managed_ledgers[NAME] = managed_ledger_of((6, 8))
    admin.states = [None]
    assert log.last_confirmed(REF) == Position(6, 7)


def test_a_topic_that_is_being_loaded_is_waited_for(log: PulsarTopicLog, admin: Admin) -> None:
    admin.managed_ledgers[NAME] = managed_ledger_of((6, 8))
    # Until it knows, a broker names the last entry, whatever is undecided before it.
    recovering = TransactionState("Initializing", Position(6, 7), 0)
    admin.states = [SegmentNotFoundError("not loaded"), recovering, ready(Position(6, 3))]
    assert log.last_confirmed(REF) == Position(6, 3)


def test_a_topic_that_does_not_say_how_far_it_may_be_read_is_not_read(
    log: PulsarTopicLog, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.managed_ledgers[NAME] = managed_ledger_of((6, 8))
    admin.states = [TransactionState("Initializing", EARLIEST, 0)]
    clock = itertools.count(0, 20)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with pytest.raises(SegmentLogUnavailableError, match="its transactions are Initializing"):
        log.last_confirmed(REF)


def test_the_end_of_a_closed_ledger_is_the_beginning_of_the_next_one(
    log: PulsarTopicLog, admin: Admin
) -> None:
    # When the closed one is gone, nobody knows any more that it had no further entry.
    admin.managed_ledgers[NAME] = managed_ledger_of((6, 8), (12, 0))
    admin.states = [ready(Position(6, 7))]
    end = log.last_confirmed(REF)
    assert end == Position(12, -1)
    admin.managed_ledgers[NAME] = managed_ledger_of((12, 3))
    assert log.trimmed_to(REF) <= end
    log._check_whole(REF, end, Position(12, 2))


def test_what_an_open_transaction_blocks_is_no_end_of_a_ledger(
    log: PulsarTopicLog, admin: Admin
) -> None:
    admin.managed_ledgers[NAME] = managed_ledger_of((6, 8), (12, 0))
    admin.states = [ready(Position(6, 3))]
    assert log.last_confirmed(REF) == Position(6, 3)


# -- what is gone ----------------------------------------------------------------------------------


def test_data_that_the_broker_deleted_unread_is_reported(log: PulsarTopicLog, admin: Admin) -> None:
    admin.managed_ledgers[NAME] = managed_ledger_of((12, 3))
    with pytest.raises(DataLossError, match=r"rows of \(6:3, 12:2\].*retention"):
        log._check_whole(REF, Position(6, 3), Position(12, 2))


def test_from_the_beginning_means_from_whatever_is_there(log: PulsarTopicLog, admin: Admin) -> None:
    admin.managed_ledgers[NAME] = managed_ledger_of((12, 3))
    log._check_whole(REF, EARLIEST, Position(12, 2))
    assert log.trimmed_to(REF) == Position(12, -1)


def test_an_empty_topic_that_is_loaded_again_has_lost_nothing(
    log: PulsarTopicLog, admin: Admin
) -> None:
    for ledger in (6, 9):
        admin.managed_ledgers[NAME] = managed_ledger_of((ledger, 0))
        admin.states = [ready(Position(ledger, -1))]
        assert log.trimmed_to(REF) == EARLIEST
        assert log.last_confirmed(REF) == EARLIEST


def test_markers_at_the_end_of_a_range_are_not_waited_for(
    log: PulsarTopicLog, admin: Admin
) -> None:
    admin.managed_ledgers[NAME] = managed_ledger_of((6, 8))
    admin.hidden = {Position(6, 6), Position(6, 7)}
    assert log._last_delivered(REF, EARLIEST, Position(6, 7)) == Position(6, 5)
    assert log._last_delivered(REF, Position(6, 5), Position(6, 7)) == Position(6, 5)


@pytest.mark.parametrize(
    "stale, fresh, end, last",
    [
        pytest.param([(6, 4)], [(6, 8)], Position(6, 7), Position(6, 7), id="entries"),
        pytest.param([(6, 8)], [(6, 8), (9, 2)], Position(9, 1), Position(9, 1), id="ledgers"),
        pytest.param([(6, 4)], [(6, 8), (9, 0)], Position(9, -1), Position(6, 7), id="closed"),
        pytest.param([(6, 0)], [(6, 0), (7, 3)], Position(7, 2), Position(7, 2), id="empty"),
    ],
)
def test_a_broker_that_has_lost_the_topic_makes_no_range_shorter(
    log: PulsarTopicLog,
    admin: Admin,
    monkeypatch: pytest.MonkeyPatch,
    stale: list[tuple[int, int]],
    fresh: list[tuple[int, int]],
    end: Position,
    last: Position,
) -> None:
    admin.managed_ledgers[NAME] = managed_ledger_of(*stale, state="LedgerOpened")

    def another_answers(_seconds: float) -> None:
        admin.managed_ledgers[NAME] = managed_ledger_of(*fresh, state="LedgerOpened")

    monkeypatch.setattr(time, "sleep", another_answers)
    assert log._last_delivered(REF, EARLIEST, end) == last


def test_a_broker_that_never_knows_the_end_of_a_range_is_given_up(
    log: PulsarTopicLog, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.managed_ledgers[NAME] = managed_ledger_of((6, 4), state="LedgerOpened")
    clock = itertools.count(0, 10)
    monkeypatch.setattr(
        native_topic_log, "time", mock.Mock(monotonic=lambda: next(clock), sleep=mock.Mock())
    )
    with pytest.raises(SegmentLogUnavailableError, match=r"up to 6:7 .* up to 6:3 only"):
        log._last_delivered(REF, EARLIEST, Position(6, 7))


@pytest.mark.parametrize(
    "ledgers, state",
    [
        pytest.param([(6, 8)], "ClosedLedger", id="the-empty-ledger-was-closed"),
        pytest.param([(6, 8)], "Terminated", id="the-topic-was-sealed"),
        pytest.param([(6, 8), (12, 0)], "LedgerOpened", id="another-one-took-its-place"),
    ],
)
def test_an_end_in_an_empty_ledger_that_is_gone_is_not_waited_for(
    log: PulsarTopicLog,
    admin: Admin,
    monkeypatch: pytest.MonkeyPatch,
    ledgers: list[tuple[int, int]],
    state: str,
) -> None:
    admin.managed_ledgers[NAME] = managed_ledger_of(*ledgers, state=state)
    monkeypatch.setattr(time, "sleep", mock.Mock(side_effect=AssertionError("it waits")))
    assert log._last_delivered(REF, EARLIEST, Position(9, -1)) == Position(6, 7)


def test_a_range_of_which_all_is_gone_is_not_waited_for(
    log: PulsarTopicLog, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.managed_ledgers[NAME] = managed_ledger_of((12, 0), state="LedgerOpened")
    monkeypatch.setattr(time, "sleep", mock.Mock(side_effect=AssertionError("it waits")))
    assert log._last_delivered(REF, EARLIEST, Position(6, 7)) == EARLIEST


def test_a_range_ends_before_a_message_of_which_chunks_are_still_to_come(
    log: PulsarTopicLog, admin: Admin
) -> None:
    admin.managed_ledgers[NAME] = managed_ledger_of((6, 8))
    admin.chunked("m", 6, 7, of=3)
    assert log.last_confirmed(REF) == Position(6, 5)
    admin.managed_ledgers[NAME] = managed_ledger_of((6, 9))
    admin.chunked("m", 6, 7, 8)
    assert log.last_confirmed(REF) == Position(6, 8)


def test_a_range_does_not_end_within_a_message_where_a_broker_fails_to_read_an_entry(
    log: PulsarTopicLog, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_headers, "_ASK_AGAIN_SECONDS", 0.0)
    admin.managed_ledgers[NAME] = managed_ledger_of((6, 8))
    admin.chunked("m", 6, 7, of=3)
    entry_header, failures = admin.entry_header, 1

    def failing(topic: str, position: Position) -> EntryHeader:
        nonlocal failures
        if failures:
            failures -= 1
            return EntryHeader(hidden=False, message="", chunk=0, chunks=1, there=False)
        return entry_header(topic, position)

    monkeypatch.setattr(admin, "entry_header", failing)
    assert log.last_confirmed(REF) == Position(6, 5)
    log._ends.clear()
    failures = 2
    assert log.last_confirmed(REF) == Position(6, 7), "as far as can be told"
    monkeypatch.setattr(native_topic_log, "_UNKNOWN_SECONDS", 0.0)
    failures = 2
    assert log.last_confirmed(REF) == Position(6, 7), "it is not asked for at each poll"
    failures, log._ends[NAME] = 0, (Position(6, 7), Position(6, 7), 0.0)
    assert log.last_confirmed(REF) == Position(6, 5), "what could not be told is not kept for long"


def test_of_a_ledger_that_was_deleted_no_entry_is_asked_for(
    log: PulsarTopicLog, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The last entry was read, and its ledger is gone: an empty one follows.
    admin.managed_ledgers[NAME] = ManagedLedger.of(
        {
            "lastConfirmedEntry": "5:9",
            "currentLedgerSize": 0,
            "entriesAddedCounter": 10,
            "ledgers": [{"ledgerId": 6, "entries": 0, "size": 0}],
        }
    )
    monkeypatch.setattr(admin, "entry_header", mock.Mock(side_effect=AssertionError))
    assert log.last_confirmed(REF) == Position(5, 9)


def test_a_limit_takes_a_message_whole_or_not_at_all(
    log: PulsarTopicLog, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.chunked("m", 3, 4, 5)
    end = Position(6, 7)
    for cut, start, expected in [(4, 1, 2), (4, 2, 5), (5, 2, 5), (2, 1, 2)]:
        monkeypatch.setattr(
            PulsarSegmentLog, "limit_by", lambda *_, cut=cut, **__: Position(6, cut)
        )
        ledgers = ManagedLedger(6, (Ledger(6, 8, 80),), end, 0)
        limited = log.limit_by(REF, ledgers, Position(6, start), end, 1, None)
        assert limited == Position(6, expected)


def test_a_message_that_begins_before_the_range_is_not_dropped(admin: Admin) -> None:
    admin.chunked("m", 3, 4, 5)
    _Holes(admin, REF).check(Position(6, 2), Position(6, 5))  # type: ignore[arg-type]
    with pytest.raises(SegmentLogError, match=r"found chunk 1 of 3 at 6:4.*Nothing was skipped"):
        _Holes(admin, REF).check(Position(6, 3), Position(6, 6))  # type: ignore[arg-type]


def test_a_message_that_begins_before_the_range_is_found_behind_many_others(admin: Admin) -> None:
    for entry in range(4, 40):
        admin.chunked(f"m{entry}", entry, of=9)
    admin.chunked("m", 3, 40, 41)
    with pytest.raises(SegmentLogError, match=r"found chunk 1 of 3 at 6:40.*Nothing was skipped"):
        _Holes(admin, REF).check(Position(6, 3), Position(6, 42))  # type: ignore[arg-type]


def test_a_message_that_pulsar_client_dropped_is_not_passed_over(admin: Admin) -> None:
    # Its first chunk was sent again, on a topic without deduplication.
    admin.chunked("m", 4, 5)
    admin.chunks[Position(6, 3)] = admin.chunks[Position(6, 4)]
    holes = _Holes(admin, REF)  # type: ignore[arg-type]
    with pytest.raises(SegmentLogError, match=r"begins at 6:4 and ends at 6:5.*transport 'wire'"):
        holes.check(Position(6, 2), Position(6, 6))


def test_a_last_chunk_that_was_sent_again_behind_its_message_is_passed_over(admin: Admin) -> None:
    admin.chunked("m", 3, 4, 5)
    admin.chunks[Position(6, 6)] = admin.chunks[Position(6, 5)]
    holes = _Holes(admin, REF)  # type: ignore[arg-type]
    holes.check(Position(6, 2), Position(6, 5))
    holes.show(Position(6, 3))
    holes.check(Position(6, 5), Position(6, 7))
    holes.show(None)


def test_a_message_that_pulsar_client_cannot_decrypt_is_not_passed_over(admin: Admin) -> None:
    admin.hidden = {Position(6, 3)}
    admin.chunks[Position(6, 4)] = EntryHeader(False, "", 0, 1, empty=True)
    admin.chunks[Position(6, 5)] = EntryHeader(False, "", 0, 1, there=False)
    holes = _Holes(admin, REF)  # type: ignore[arg-type]
    holes.check(Position(6, 2), Position(6, 6))
    with pytest.raises(DataLossError, match=r"entry 6:6 is there, .*Nothing was skipped"):
        holes.check(Position(6, 5), Position(6, 7))


# -- which topics ----------------------------------------------------------------------------------


def test_partitions_are_named_as_pulsar_names_them(log: PulsarTopicLog, admin: Admin) -> None:
    admin.counts[NAME] = 2
    found = log.topology(TOPIC)
    assert [s.descriptor for s in found.segments] == ["t-partition-0", "t-partition-1"]
    assert [s.ref.log_name for s in found.segments] == [f"{NAME}-partition-{n}" for n in (0, 1)]
    assert all(s.ref.in_pulsar_domain for s in found.segments)


def test_a_topic_without_partitions_is_the_only_one_of_itself(log: PulsarTopicLog) -> None:
    assert [s.descriptor for s in log.topology(TOPIC).segments] == ["t"]


def test_a_partition_that_is_added_later_is_found(log: PulsarTopicLog, admin: Admin) -> None:
    admin.counts[NAME] = 1
    assert len(log.topology(TOPIC).segments) == 1
    admin.counts[NAME] = 3
    found, _ = log._topologies[TOPIC]
    log._topologies[TOPIC] = (found, 0.0)
    assert len(log.topology(TOPIC).segments) == 3


def test_a_topic_that_the_broker_does_not_know_is_not_found(log: PulsarTopicLog) -> None:
    absent = TopicName.of_any_domain("persistent://public/default/absent")
    with pytest.raises(TopicNotFoundError, match="does not exist on the broker"):
        log.topology(absent)


@pytest.mark.parametrize("name", [SEGMENT_PROPERTY, CREATED_PROPERTY])
def test_a_segment_is_not_read_past_its_gate(log: PulsarTopicLog, admin: Admin, name: str) -> None:
    admin.properties_of[NAME] = {name: "public/default/x/3f2a/0000-ffff-0"}
    with pytest.raises(TransactionDomainError, match="Read topic://public/default/x"):
        log.topology(TOPIC)


@pytest.mark.parametrize("mark", [SEGMENT_PROPERTY, CREATED_PROPERTY])
def test_a_pattern_finds_topics_of_one_namespace_without_those_of_the_system(
    log: PulsarTopicLog, admin: Admin, mark: str
) -> None:
    base = "persistent://public/default/"
    for name in ("a-partition-0", "a-partition-1", "b", "__change_events", "c--1--0000-ffff-0"):
        admin.managed_ledgers[base + name] = managed_ledger_of((1, 0))
    admin.properties_of[base + "c--1--0000-ffff-0"] = {mark: "public/default/c/1/x"}
    topics = Topics(mock.Mock(), mock.Mock(), log)
    assert [str(n) for n in topics.matching(base + ".*")] == [base + "a", base + "b"]
    assert [str(n) for n in topics.matching(base + "b?")] == [base + "b"]
    with pytest.raises(OptionError, match="in one namespace"):
        topics.matching("persistent://public/.*")
    with pytest.raises(OptionError, match="no regular expression"):
        topics.matching(base + "[")


BASE = "persistent://public/default/"
ODD = ("orders@eu", "a b", "zürich", "ticks#1", "a/b")


@pytest.fixture
def topics(log: PulsarTopicLog, admin: Admin) -> Topics:
    """Give topics of which one may not be read, and some have names that we cannot read."""
    for name in ("flights", "secret", *ODD, f"{ODD[0]}-partition-0"):
        admin.managed_ledgers[BASE + name] = managed_ledger_of((1, 0))
    admin.forbidden = {BASE + "secret"}
    return Topics(mock.Mock(), mock.Mock(), log)


def test_a_topic_that_a_pattern_does_not_match_may_have_any_name_and_be_forbidden(
    topics: Topics, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    assert [str(name) for name in topics.matching(BASE + "fl.*")] == [BASE + "flights"]
    assert admin.asked == [BASE + "flights"]
    assert caplog.records == []


def test_a_match_whose_name_cannot_be_read_is_left_out_with_a_warning(
    topics: Topics, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    admin.forbidden.clear()
    for _ in range(2):
        matching = [name.name for name in topics.matching(BASE + ".*")]
        assert matching == ["flights", "secret"]
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == len(ODD)
    for name in ODD:
        assert any(f"{BASE + name!r} matches topicsPattern" in warning for warning in warned)


def test_a_match_that_may_not_be_read_is_an_error(topics: Topics) -> None:
    with pytest.raises(SegmentLogUnavailableError, match="refuses us"):
        topics.matching(BASE + "[a-z]+")


def test_nothing_is_written_to_or_done_with_such_a_topic(log: PulsarTopicLog) -> None:
    for refused in (log.create, log.delete, log.seal, lambda ref: log.writer(ref, "w")):
        with pytest.raises(TransactionDomainError, match="none spans both"):
            refused(REF)


# -- the source ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given", [{"topic": NAME}, {"topics": f"t,{NAME}"}, {"topicsPattern": f"{NAME}.*"}]
)
def test_such_a_topic_is_not_acknowledged_in_a_transaction_of_ours(given: dict[str, str]) -> None:
    source_options(given, Use.READ | Use.STREAM)
    with pytest.raises(TransactionDomainError, match=r"none spans both.*Leave the option"):
        source_options({**given, "subscription": "s"}, Use.READ | Use.STREAM)


def test_without_pulsar_there_are_no_such_topics(run: Components) -> None:
    with pytest.raises(OptionError, match=r"give service\.url"):
        run.topics.readable(TOPIC)


class Reading:
    """A stream over one native topic, asked as Spark does."""

    def __init__(
        self, path: str, log: PulsarTopicLog, options: Mapping[str, str] | None = None
    ) -> None:
        run = open_components(Options({"store.path": path}, Use.CONNECT))
        run.topics._pulsar_topics = log
        given = {"store.path": path, "topic": NAME, "startingOffsets": "earliest"}
        self.run = run
        self.stream = PulsarTxnStreamReader({**given, **(options or {})}, StructType())
        self.at: dict[str, Any] = self.stream.initialOffset()

    def batch(self) -> list[tuple[str, str, str]]:
        """Return what the next micro-batch reads: descriptor, start and end."""
        end = self.stream.latestOffset(self.at, ReadAllAvailable())
        found = self.stream.partitions(self.at, end)
        self.at = json.loads(json.dumps(end))
        return [
            (planned.segment.id.rpartition("/")[2], str(planned.start), str(planned.end))
            for partition in found
            if isinstance(partition, SourcePartition)
            for planned in partition.ranges
        ]


@pytest.fixture
def reading(redis_path: str, redis_client: redis.Redis, log: PulsarTopicLog) -> Reading:
    admin: Any = log._admin
    admin.counts[NAME] = 2
    for n in (0, 1):
        admin.managed_ledgers[f"{NAME}-partition-{n}"] = managed_ledger_of((6 + n, 3))
    admin.states = [ready(Position(9, -1))]
    return Reading(redis_path, log)


def test_a_stream_goes_from_position_to_position_and_asks_the_store_for_no_gate(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_gate(_segments: object) -> None:
        raise AssertionError("there is no gate")

    monkeypatch.setattr(reading.run.store.segments, "gates", no_gate)
    assert reading.batch() == [("t-partition-0", "6:-1", "6:2"), ("t-partition-1", "7:-1", "7:2")]
    admin: Any = reading.run.topics._pulsar_topics._admin  # type: ignore[union-attr]
    assert reading.batch() == []
    admin.managed_ledgers[f"{NAME}-partition-1"] = managed_ledger_of((7, 5))
    assert reading.batch() == [("t-partition-1", "7:2", "7:4")]


def test_a_partition_that_is_added_later_is_read_from_its_beginning(reading: Reading) -> None:
    reading.batch()
    log: Any = reading.run.topics._pulsar_topics
    log._admin.counts[NAME] = 3
    log._admin.managed_ledgers[f"{NAME}-partition-2"] = managed_ledger_of((8, 1))
    log._topologies.clear()
    assert reading.batch() == [("t-partition-2", "-1:-1", "8:0")]


def test_a_stream_whose_topic_lost_unread_data_stops(reading: Reading) -> None:
    reading.batch()
    log: Any = reading.run.topics._pulsar_topics
    log._admin.managed_ledgers[f"{NAME}-partition-0"] = managed_ledger_of((8, 2))
    end = reading.stream.latestOffset(reading.at, ReadAllAvailable())
    [partition] = reading.stream.partitions(reading.at, end)
    assert isinstance(partition, SourcePartition)
    # The task knows which batch it is: this one is not committed.
    facts = TaskFacts("a-query", 1, "run", 0, 0)
    with (
        mock.patch.object(TaskFacts, "of_task", return_value=facts),
        pytest.raises(DataLossError, match="has been deleted"),
    ):
        read_partition(reading.stream._options, partition, StructType())


def one_topic(admin: Admin, *ledgers: tuple[int, int]) -> None:
    """Let the topic have no partitions, and these ledgers."""
    admin.counts[NAME] = 0
    admin.managed_ledgers[NAME] = managed_ledger_of(*ledgers)
    admin.states = [ready(admin.managed_ledgers[NAME].last)]


REBUILT = [
    pytest.param([(4, 1000)], id="which ends before it"),
    pytest.param([(4, 1000), (9, 5), (80, 5)], id="which has come to higher ledgers"),
]


@pytest.mark.parametrize("ledgers", REBUILT)
def test_a_stream_whose_topic_never_had_the_ledger_it_stands_in_stops(
    redis_path: str,
    redis_client: redis.Redis,
    log: PulsarTopicLog,
    admin: Admin,
    monkeypatch: pytest.MonkeyPatch,
    ledgers: list[tuple[int, int]],
) -> None:
    one_topic(admin, (70, 3))
    reading = Reading(redis_path, log)
    assert reading.batch() == [("t", "70:-1", "70:2")]
    one_topic(admin, *ledgers)  # a cluster that was built again, or the one it is replicated to
    clock = itertools.count(0, 5)
    slept = mock.Mock()
    monkeypatch.setattr(
        planner_module, "time", mock.Mock(monotonic=lambda: next(clock), sleep=slept)
    )
    with pytest.raises(DataLossError, match=r"up to 70:2.*another topic.*Nothing was skipped"):
        reading.batch()
    assert slept.call_count > 2, "a broker may be behind"


def test_a_stream_waits_for_a_broker_that_does_not_know_the_latest_ledger_yet(
    redis_path: str,
    redis_client: redis.Redis,
    log: PulsarTopicLog,
    admin: Admin,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one_topic(admin, (60, 8), (70, 3))
    reading = Reading(redis_path, log)
    reading.batch()
    one_topic(admin, (60, 8))
    looks = iter([((60, 8),), ((60, 8), (70, 3)), ((60, 8), (70, 5))])
    monkeypatch.setattr(time, "sleep", lambda _seconds: one_topic(admin, *next(looks)))
    assert reading.batch() == [], "it stands at the end"
    one_topic(admin, (60, 8), (70, 5))
    assert reading.batch() == [("t", "70:2", "70:4")]


def test_a_batch_that_was_planned_on_another_topic_is_not_read_when_it_is_repeated(
    redis_path: str,
    redis_client: redis.Redis,
    log: PulsarTopicLog,
    admin: Admin,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one_topic(admin, (70, 3))
    reading = Reading(redis_path, log)
    reading.batch()
    one_topic(admin, (70, 5))
    start, end = reading.at, reading.stream.latestOffset(reading.at, ReadAllAvailable())
    one_topic(admin, (4, 1000), (9, 5), (80, 5))
    monkeypatch.setattr(planner_module, "_PATIENCE_S", 0.0)
    again = Reading(redis_path, log)
    [partition] = again.stream.partitions(start, end)
    assert isinstance(partition, SourcePartition)
    facts = TaskFacts("a-query", 1, "run", 0, 0)
    with (
        mock.patch.object(TaskFacts, "of_task", return_value=facts),
        pytest.raises(DataLossError, match="another topic"),
    ):
        read_partition(again.stream._options, partition, StructType())


def test_a_stream_that_may_lose_data_goes_on_in_another_topic(
    redis_path: str,
    redis_client: redis.Redis,
    log: PulsarTopicLog,
    admin: Admin,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one_topic(admin, (70, 3))
    reading = Reading(redis_path, log, {"failOnDataLoss": "false"})
    reading.batch()
    one_topic(admin, (4, 1000))
    monkeypatch.setattr(planner_module, "_PATIENCE_S", 0.0)
    assert reading.batch() == []
    monkeypatch.setattr(planner_module, "_PATIENCE_S", 1e6)
    assert reading.batch() == [], "it is waited for once"
    one_topic(admin, (4, 1000), (9, 5), (80, 5))
    assert reading.batch() == [("t", "70:2", "80:4")]


@pytest.mark.parametrize(
    "ledgers",
    [
        pytest.param([(70, 3), (85, 2)], id="retention has trimmed what lies before"),
        pytest.param([(60, 8), (70, 3), (85, 2)], id="another ledger follows"),
        pytest.param([(60, 8), (70, 3), (80, 0), (85, 2)], id="an empty ledger was replaced"),
    ],
)
def test_a_stream_goes_on_behind_ledgers_that_come_and_go(
    redis_path: str,
    redis_client: redis.Redis,
    log: PulsarTopicLog,
    admin: Admin,
    ledgers: list[tuple[int, int]],
) -> None:
    one_topic(admin, (60, 8), (70, 3))
    reading = Reading(redis_path, log)
    reading.batch()
    one_topic(admin, *ledgers)
    assert reading.batch() == [("t", "70:2", "85:1")]


def test_a_topic_with_fewer_partitions_than_the_checkpoint_knows_is_another_one(
    reading: Reading,
) -> None:
    reading.batch()
    log: Any = reading.run.topics._pulsar_topics
    log._admin.counts[NAME] = 1
    log._topologies.clear()
    with pytest.raises(DataLossError, match="deleted and created again"):
        reading.batch()


def test_a_message_id_names_the_partition_as_pulsars_clients_do() -> None:
    ref = SegmentRef(f"{NAME}-partition-3", NAME, f"{NAME}-partition-3")
    assert partition_index(ref) == 3
    assert partition_index(REF) == -1
    ours = SegmentRef("s", "topic://public/default/t-partition-3", "persistent://a/b/c-partition-3")
    assert partition_index(ours) == -1
    one = np.array([1])
    ids = message_ids(one, one, one * -1, one * 0, partition=partition_index(ref)).to_pylist()
    assert pulsar.MessageId.deserialize(ids[0]).partition() == 3


def test_the_id_of_a_message_in_chunks_says_where_it_begins() -> None:
    two = np.array([7, 7])
    entries, none = np.array([8, 9]), np.array([-1, -1])
    first, other = message_ids(two, entries, none, none * 0, firsts={0: (6, 5)}).to_pylist()
    # As Java's ChunkMessageIdImpl writes it: the last chunk's id, and the first one's as field 7.
    assert first == b"\x08\x07\x10\x08\x3a\x04\x08\x06\x10\x05"
    assert other == b"\x08\x07\x10\x09"
    assert pulsar.MessageId.deserialize(first).serialize() == first


def test_the_name_of_a_scalable_topic_of_pulsars_own_is_refused_before_anything_is_made(
    redis_path: str, redis_client: redis.Redis, log: PulsarTopicLog, admin: Admin
) -> None:
    run = open_components(Options({"store.path": redis_path}, Use.CONNECT))
    topics = Topics(run.store, run.log, log)
    taken, free = TopicName.parse("taken"), TopicName.parse("free")
    admin.scalable.add(taken.name)
    keys = set(redis_client.keys())
    refused = pytest.raises(TopicExistsError, match=r"scalable topic .*taken.*Nothing was created")
    with refused:
        topics.create(taken, 1)
    with refused:
        topics.adopt(TOPIC, taken)
    assert set(redis_client.keys()) == keys
    assert topics.create(free, 1).active


# -- the admin API ---------------------------------------------------------------------------------

OFF = b'{"reason":"This Broker is not configured with transactionCoordinatorEnabled=true."}'
STATE = b'{"state":"Ready","maxReadPosition":"6:7","ongoingTxnSize":2}'


def answering(status: int, data: bytes = b"", **headers: str) -> PulsarAdmin:
    admin = PulsarAdmin.__new__(PulsarAdmin)
    admin._url = "http://broker"
    admin._credentials = mock.Mock(method="none")
    headers = {key.replace("_", "-"): value for key, value in headers.items()}
    answer = mock.Mock(status=status, data=data, headers=headers, reason="", retries=None)
    admin._operation_s = 30
    admin._was_reached = admin._has_transactions = False
    admin._off_at = -math.inf
    admin._retries = mock.Mock()
    admin._pool = mock.Mock()
    admin._pool.request.return_value = answer
    return admin


@pytest.mark.parametrize(
    "said",
    [
        "Topic is already fenced",  # it is being deleted
        "Failed to acquire ownership for namespace bundle public/default/0x00000000_0xffffffff",
    ],
)
def test_a_topic_on_which_a_broker_is_at_work_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setattr("time.sleep", mock.Mock())
    admin = answering(404)
    pool: Any = admin._pool
    reason = json.dumps({"reason": f"\nMessage: {said}\n"}).encode()
    at_work = mock.Mock(status=500, data=reason, headers={}, reason="")
    pool.request.side_effect = [at_work, at_work, pool.request.return_value]
    admin.delete_topic(NAME)
    assert pool.request.call_count == 3
    # Any other failure is told at once.
    pool.request.reset_mock(side_effect=True)
    pool.request.return_value = mock.Mock(status=500, data=b'{"reason":"no"}', headers={})
    with pytest.raises(SegmentLogError, match="500"):
        admin.delete_topic(NAME)
    assert pool.request.call_count == 1


def test_a_broker_that_is_busy_with_a_subscription_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.sleep", mock.Mock())
    admin = answering(204)
    pool: Any = admin._pool
    busy = mock.Mock(status=412, data=b'{"reason":"Subscription Busy"}', headers={}, reason="")
    pool.request.side_effect = [busy, busy, pool.request.return_value]
    admin.delete_subscription(NAME, "s")
    assert pool.request.call_count == 3
    pool.request.side_effect = None
    pool.request.return_value = busy
    with pytest.raises(SegmentLogError, match=r"412 .*Busy"):
        admin.delete_subscription(NAME, "s")
    # Any other precondition that fails is told at once.
    pool.request.reset_mock()
    pool.request.return_value = mock.Mock(status=412, data=b'{"reason":"no"}', headers={})
    with pytest.raises(SegmentLogError, match="412"):
        admin.delete_subscription(NAME, "s")
    assert pool.request.call_count == 1


def test_a_request_that_the_web_server_refuses_by_itself_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.sleep", mock.Mock())
    admin = answering(200, b'{"a":"b"}')
    pool: Any = admin._pool
    page = b"<h1>Bad Message 400</h1>\n<pre>reason: No Host</pre>"
    misread = mock.Mock(status=400, data=page, headers={}, reason="Bad Request")
    pool.request.side_effect = [misread, misread, pool.request.return_value]
    assert admin.properties(NAME) == {"a": "b"}
    assert pool.request.call_count == 3
    # It ends, and the error says what the web server has said.
    pool.request.side_effect = None
    pool.request.return_value = misread
    with pytest.raises(SegmentLogError, match=r"400 \(Bad Message 400 reason: No Host\)"):
        admin.properties(NAME)
    # What Pulsar itself refuses is told at once.
    pool.request.reset_mock()
    pool.request.return_value = mock.Mock(status=400, data=b'{"reason":"no"}', headers={})
    with pytest.raises(SegmentLogError, match=r"400 \(no\)"):
        admin.properties(NAME)
    assert pool.request.call_count == 1


@pytest.mark.parametrize("status, there", [(200, True), (404, False), (405, False)])
def test_a_scalable_topic_of_pulsars_own_is_told_from_none(status: int, *, there: bool) -> None:
    assert answering(status).has_scalable("public", "default", "t") is there


def test_only_a_broker_that_says_so_has_no_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", mock.Mock())
    assert answering(200, STATE).transactions_of(NAME) == TransactionState(
        "Ready", Position(6, 7), 2
    )
    assert answering(503, OFF).transactions_of(NAME) is None
    with pytest.raises(SegmentLogUnavailableError):
        answering(503, b'{"reason":"moving"}').transactions_of(NAME)


class Brokers:
    """What a topic log hears of transactions, by a clock that stands still."""

    def __init__(self, log: PulsarTopicLog, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        self.log = log
        log._admin = answering(200)
        self._pool: Any = log._admin._pool

    def hear(self, name: str, status: int = 0, data: bytes = b"") -> Position | None:
        """Return how far a topic may be read; without a status, nobody is asked."""
        answers = [mock.Mock(status=status, data=data, headers={}, retries=None)] if status else []
        self._pool.request.side_effect = answers
        horizon = self.log._horizon(SegmentRef(name, NAME, f"{NAME}-{name}"))
        assert next(self._pool.request.side_effect, None) is None, "it was to be asked"
        return horizon


@pytest.fixture
def brokers(log: PulsarTopicLog, monkeypatch: pytest.MonkeyPatch) -> Brokers:
    return Brokers(log, monkeypatch)


def test_a_broker_without_transactions_is_asked_once_a_minute_for_all_topics(
    brokers: Brokers,
) -> None:
    for _ in range(2):
        assert brokers.hear("a", 503, OFF) is None
        for name in ("a", "b", "c"):
            assert brokers.hear(name) is None
        brokers.now_s += 59
        assert brokers.hear("b") is None
        brokers.now_s += 1
    assert brokers.hear("b", 200, STATE) == Position(6, 7)


def test_while_transactions_are_rolled_out_a_broker_without_speaks_of_no_other_topic(
    brokers: Brokers,
) -> None:
    assert brokers.hear("a", 200, STATE) == Position(6, 7)
    assert brokers.hear("b", 503, OFF) is None
    assert brokers.hear("a", 200, STATE) == Position(6, 7)
    assert brokers.hear("b") is None
    brokers.now_s += 60
    assert brokers.hear("b", 200, STATE) == Position(6, 7)


def test_a_topic_without_transactions_says_nothing_of_the_others(brokers: Brokers) -> None:
    """As one of the system's."""
    assert brokers.hear("a", 200, b"null") is None
    assert brokers.hear("a") is None
    assert brokers.hear("b", 200, STATE) == Position(6, 7)


def test_where_one_may_not_ask_only_segments_are_read() -> None:
    with pytest.raises(SegmentLogUnavailableError, match="refuses us"):
        answering(403).transactions_of(NAME)
    assert answering(403).transactions_of(NAME, required=False) is None


def test_markers_and_aborted_entries_are_told_from_others() -> None:
    def hidden(status: int = 200, **headers: str) -> bool:
        return answering(status, b"", **headers).entry_header(NAME, Position(6, 7)).hidden

    assert not hidden()
    assert not hidden(X_Pulsar_txn_aborted="false")
    assert hidden(X_Pulsar_txn_aborted="true")
    assert hidden(X_Pulsar_marker_type="22")
    assert not hidden(404)


def test_a_chunk_is_told_from_a_whole_message() -> None:
    headers = {
        "X_Pulsar_uuid": "m",
        "X_Pulsar_chunk_id": "1",
        "X_Pulsar_num_chunks_from_msg": "3",
        "X_Pulsar_producer_name": "p",
    }
    found = answering(200, b"", **headers).entry_header(NAME, Position(6, 7))
    assert found == EntryHeader(hidden=False, message="m", chunk=1, chunks=3, producer="p")


def test_policies_are_those_of_the_topic_whose_partition_it_is() -> None:
    admin = answering(204)
    admin.forget_policies(f"{NAME}-partition-1")
    asked = [call.args[1] for call in admin._pool.request.call_args_list]  # type: ignore[attr-defined]
    assert len(asked) == 5
    assert all(
        url.startswith("http://broker/admin/v2/persistent/public/default/t/") for url in asked
    )
