"""Trimming a Pulsar segment: whole ledgers, when the broker likes, and nothing twice or too far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import repeat
from typing import Any

import pytest

from pulsar_txn_spark.backends.pulsar import entry_headers
from pulsar_txn_spark.backends.pulsar.admin_api import EntryHeader
from pulsar_txn_spark.backends.pulsar.ledgers import Ledger, ManagedLedger
from pulsar_txn_spark.backends.pulsar.log import (
    ADOPTED_PROPERTY,
    INTERNAL_SUBSCRIPTION,
    ORIGIN_PROPERTY,
    SEGMENT_PROPERTY,
    TRIM_PROPERTY,
    PulsarSegmentLog,
)
from pulsar_txn_spark.backends.pulsar.subscription_expiry import Expiry
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.errors import (
    SegmentLogError,
    SegmentLogUnavailableError,
    SegmentNotFoundError,
)
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import SegmentRef

SEGMENT = SegmentRef("id", "topic://public/default/t", "persistent://public/default/t")
STEPS = ["remove", "properties", "move", "policy", "trim"]


class Crash(Exception):  # noqa: N818 — not an error of anybody's
    pass


class FakeAdmin:
    """A broker's topic of several ledgers, which removes what may go when it is told to."""

    def __init__(self) -> None:
        self.ledgers = dict.fromkeys((3, 5, 8, 9), 2)  # entries
        self.found = {SEGMENT_PROPERTY: SEGMENT.id, ORIGIN_PROPERTY: f"{EARLIEST},3"}
        self.acknowledged = Position(3, -1)
        self.keeps_all = True
        self.policies_forgotten = 0
        self.subscribed = [INTERNAL_SUBSCRIPTION]
        self.expires_after_min: int | None = 0
        self.published = {3: 100, 5: 200, 8: 300, 9: 400}
        self.dies_before = ""
        self.meanwhile: dict[str, Callable[[], None]] = {}  # what others do before a step
        self.fails_at: Iterator[Position] = iter(())  # entries that a request does not find

    def _reach(self, step: str) -> None:
        self.meanwhile.pop(step, lambda: None)()
        if step == self.dies_before:
            self.dies_before = ""
            raise Crash

    def remove(self) -> None:
        """Do what the broker does in the background."""
        if not self.keeps_all:
            needed = self.acknowledged if self.subscribed else Position(max(self.ledgers), -1)
            self.ledgers = {
                number: entries
                for number, entries in self.ledgers.items()
                if Position(number, entries - 1) >= needed or not entries
            }

    def managed_ledger(self, _topic: str) -> ManagedLedger:
        ledgers = tuple(Ledger(n, count, 100) for n, count in self.ledgers.items() if count)
        return ManagedLedger(min(self.ledgers), ledgers, ledgers[-1].last, 0)

    def properties(self, _topic: str) -> dict[str, str]:
        return dict(self.found)

    def set_properties(self, _topic: str, properties: Mapping[str, str]) -> None:
        self._reach("properties")
        self.found |= properties

    def remove_property(self, _topic: str, name: str) -> None:
        self._reach("remove")
        self.found.pop(name, None)

    def retain_nothing(self, _topic: str) -> None:
        self._reach("policy")
        self.keeps_all = False

    def retain_all(self, _topic: str) -> None:
        self.keeps_all = True

    keep_all_data = retain_all

    def forget_policies(self, _topic: str) -> None:
        self.keeps_all = True  # so this broker does without a policy of the topic's own
        self.policies_forgotten += 1

    def partitions(self, _topic: str) -> int:
        return 0

    def subscription_expiry(self, _topic: str) -> Expiry:
        return Expiry("public/default", self.expires_after_min, "the broker")

    def subscriptions(self, _topic: str) -> list[str]:
        return [*self.subscribed, "pulsar.dedup"]

    def create_subscription(self, _topic: str, name: str) -> None:
        self.subscribed.append(name)
        self.acknowledged = Position(min(self.ledgers), -1)

    def delete_subscription(self, _topic: str, name: str) -> None:
        if name in self.subscribed:
            self.subscribed.remove(name)

    def move_subscription(self, _topic: str, _name: str, to: Position) -> None:
        self._reach("move")
        assert to.entry == 0
        if not self.subscribed:
            raise SegmentNotFoundError("Subscription not found")
        assert self.trims(), "what goes is noted before it goes"
        self.acknowledged = to

    def trim_ledgers(self, _topic: str) -> None:
        self._reach("trim")

    def trims(self) -> dict[str, str]:
        return {name: what for name, what in self.found.items() if name.startswith(TRIM_PROPERTY)}

    def entry_header(self, _topic: str, position: Position) -> EntryHeader:
        if next(self.fails_at, None) == position:
            return EntryHeader(False, "", 0, 1, there=False)
        published_ms = self.published.get(position.ledger)
        return EntryHeader(False, "", 0, 1, published_ms=published_ms)

    def close(self) -> None:
        pass


@pytest.fixture
def admin() -> FakeAdmin:
    return FakeAdmin()


def open_log(admin: FakeAdmin) -> PulsarSegmentLog:
    """Open the log as another process does: it remembers nothing."""
    log = PulsarSegmentLog(PulsarConfig("pulsar://127.0.0.1:1", "http://127.0.0.1:1"))
    fake: Any = admin
    log._admin = log._headers = fake
    return log


def test_a_trim_counts_once_the_broker_has_removed_the_ledgers(admin: FakeAdmin) -> None:
    log, other = open_log(admin), open_log(admin)
    assert other.trimmed_to(SEGMENT) == EARLIEST
    assert log.trim(SEGMENT, Position(8, 0)) == EARLIEST
    assert log.trimmed_to(SEGMENT) == other.trimmed_to(SEGMENT) == EARLIEST
    admin.remove()
    assert list(admin.ledgers) == [8, 9], "a ledger goes whole, or not at all"
    assert log.trimmed_to(SEGMENT) == other.trimmed_to(SEGMENT) == Position(5, 1)
    assert log.trim(SEGMENT, Position(9, 1)) == Position(5, 1)
    admin.remove()
    assert list(admin.ledgers) == [9], "the last one stays: an empty one may be replaced"
    assert other.trimmed_to(SEGMENT) == open_log(admin).trimmed_to(SEGMENT) == Position(8, 1)
    assert log.trim(SEGMENT, Position(9, 1)) == Position(8, 1)
    assert admin.found[ORIGIN_PROPERTY] == f"{EARLIEST},3"
    assert admin.trims() == {
        f"{TRIM_PROPERTY}.id.8": "5:1,8",
        f"{TRIM_PROPERTY}.id.9": "8:1,9",
    }


def test_a_trim_that_was_begun_is_finished_before_another_one_begins(admin: FakeAdmin) -> None:
    log = open_log(admin)
    log.trim(SEGMENT, Position(3, 1))
    assert log.trim(SEGMENT, Position(8, 1)) == EARLIEST
    assert admin.acknowledged == Position(5, 0)
    admin.remove()
    assert log.trim(SEGMENT, Position(8, 1)) == Position(3, 1)
    assert admin.acknowledged == Position(9, 0)


@pytest.mark.parametrize("step", STEPS[1:])
def test_whoever_comes_next_finishes_a_trim_that_died(admin: FakeAdmin, step: str) -> None:
    admin.dies_before = step
    with pytest.raises(Crash):
        open_log(admin).trim(SEGMENT, Position(5, 1))
    admin.remove()
    log = open_log(admin)
    assert log.trimmed_to(SEGMENT) == (Position(5, 1) if step == "trim" else EARLIEST)
    log.trim(SEGMENT, Position(5, 1))
    admin.remove()
    assert list(admin.ledgers) == [8, 9]
    assert log.trimmed_to(SEGMENT) == Position(5, 1)


@pytest.mark.parametrize("step", STEPS)
def test_whoever_comes_next_finishes_a_trim_that_died_behind_another_one(
    admin: FakeAdmin, step: str
) -> None:
    for up_to in (Position(3, 1), Position(5, 1)):
        open_log(admin).trim(SEGMENT, up_to)
        admin.remove()
    admin.dies_before = step
    with pytest.raises(Crash):
        open_log(admin).trim(SEGMENT, Position(8, 1))
    admin.remove()
    log = open_log(admin)
    assert log.trimmed_to(SEGMENT) == Position(8 if step in ("policy", "trim") else 5, 1)
    log.trim(SEGMENT, Position(8, 1))
    admin.remove()
    assert list(admin.ledgers) == [9]
    assert log.trimmed_to(SEGMENT) == Position(8, 1)


@pytest.mark.parametrize("step", STEPS)
def test_a_trim_that_wakes_behind_two_later_ones_takes_nothing_back(
    admin: FakeAdmin, step: str
) -> None:
    admin.ledgers |= {12: 2, 14: 2}

    def trim(*ledgers: int) -> None:
        for ledger in ledgers:
            open_log(admin).trim(SEGMENT, Position(ledger, 1))
            admin.remove()

    trim(3, 5)
    admin.meanwhile[step] = lambda: trim(8, 9)
    log = open_log(admin)
    assert log.trim(SEGMENT, Position(8, 1)) == Position(9, 1)
    admin.remove()
    assert list(admin.ledgers) == [12, 14]
    for reader in (log, open_log(admin)):  # who has read what was given up has lost nothing
        assert reader.trimmed_to(SEGMENT) == Position(9, 1)
        reader._check_whole(SEGMENT, Position(9, 1), Position(12, 1))
    trim(12)
    assert open_log(admin).trimmed_to(SEGMENT) == Position(12, 1)
    assert list(admin.trims()) == [f"{TRIM_PROPERTY}.id.{ledger}" for ledger in (12, 14)]


@pytest.mark.parametrize("late", [3, 8], ids=["shorter", "longer"])
def test_of_two_trims_that_were_begun_the_longer_one_is_finished(
    admin: FakeAdmin, late: int
) -> None:
    def trim_too() -> None:
        open_log(admin).trim(SEGMENT, Position(11 - late, 1))

    admin.meanwhile["properties"] = trim_too
    open_log(admin).trim(SEGMENT, Position(late, 1))
    assert admin.acknowledged == Position(9, 0)
    for gone in (EARLIEST, Position(3, 1), Position(8, -1), Position(8, 1)):
        assert open_log(admin).trimmed_to(SEGMENT) == gone
        del admin.ledgers[min(admin.ledgers)]


def test_a_trim_whose_subscription_is_gone_lets_nothing_go(admin: FakeAdmin) -> None:
    admin.subscribed.clear()
    with pytest.raises(SegmentLogError, match="was deleted, or has expired") as raised:
        open_log(admin).trim(SEGMENT, Position(3, 1))
    assert "retention was left as it is" in str(raised.value)
    admin.remove()
    assert list(admin.ledgers) == [3, 5, 8, 9]


def test_a_trim_lets_nothing_go_of_a_topic_that_is_given_back_amid_it(admin: FakeAdmin) -> None:
    admin.found[ADOPTED_PROPERTY] = SEGMENT.id
    log = open_log(admin)
    admin.meanwhile["policy"] = lambda: log.give_back(SEGMENT)
    admin.dies_before = "trim"
    with pytest.raises(SegmentNotFoundError):
        open_log(admin).trim(SEGMENT, Position(5, 1))
    assert (admin.found, admin.subscribed) == ({}, [])
    admin.remove()
    assert list(admin.ledgers) == [3, 5, 8, 9], "its data is its owner's again"


def test_a_trim_that_wakes_takes_nothing_from_who_has_adopted_the_topic_anew(
    admin: FakeAdmin,
) -> None:
    def adopt_anew() -> None:
        admin.found |= {SEGMENT_PROPERTY: "other", ADOPTED_PROPERTY: "other"}

    admin.meanwhile["move"] = adopt_anew
    with pytest.raises(SegmentNotFoundError):
        open_log(admin).trim(SEGMENT, Position(5, 1))
    assert (admin.acknowledged, admin.keeps_all) == (Position(3, -1), True)
    assert admin.subscribed == [INTERNAL_SUBSCRIPTION]
    admin.remove()
    assert list(admin.ledgers) == [3, 5, 8, 9]


def test_a_topic_that_is_given_back_while_its_trim_fails_keeps_no_policy(admin: FakeAdmin) -> None:
    admin.found[ADOPTED_PROPERTY] = SEGMENT.id
    log = open_log(admin)
    admin.meanwhile["policy"] = lambda: log.give_back(SEGMENT)
    admin.dies_before = "policy"
    with pytest.raises(SegmentNotFoundError):
        open_log(admin).trim(SEGMENT, Position(5, 1))
    assert admin.policies_forgotten == 2


def test_a_sweep_keeps_what_is_left_of_a_trimmed_segment_whose_subscription_is_gone(
    admin: FakeAdmin,
) -> None:
    log = open_log(admin)
    log.trim(SEGMENT, Position(3, 1))
    admin.remove()
    admin.subscribed.clear()
    with pytest.raises(SegmentLogError, match="It was created again, and the next sweep trims"):
        log.protect_each([SEGMENT])
    admin.remove()
    assert admin.keeps_all
    log.protect_each([SEGMENT])
    log.trim(SEGMENT, Position(5, 1))
    admin.remove()
    assert list(admin.ledgers) == [8, 9]


def test_a_trimmed_segment_whose_subscription_is_going_to_expire_is_kept_by_the_broker(
    admin: FakeAdmin,
) -> None:
    log = open_log(admin)
    log.trim(SEGMENT, Position(3, 1))
    admin.remove()
    admin.expires_after_min = 5
    with pytest.raises(SegmentLogError, match="set-subscription-expiration-time -t 0 public/def"):
        log.protect_each([SEGMENT, SEGMENT])
    admin.subscribed.clear()
    admin.remove()
    assert list(admin.ledgers) == [5, 8, 9]
    # What has expired meanwhile is created again once the namespace is mended.
    with pytest.raises(SegmentLogError, match=r"the next sweep then|create-subscription"):
        log.protect_each([SEGMENT])
    assert not admin.subscribed, "it would vanish again"
    admin.expires_after_min = 0
    with pytest.raises(SegmentLogError, match="created again"):
        log.protect_each([SEGMENT])
    log.protect_each([SEGMENT])


def test_where_nobody_can_tell_why_a_subscription_is_gone_the_broker_keeps_what_is_left(
    admin: FakeAdmin,
) -> None:
    log = open_log(admin)
    admin.expires_after_min = None
    log.protect_each([SEGMENT])
    log.trim(SEGMENT, Position(3, 1))
    admin.subscribed.clear()
    with pytest.raises(SegmentLogError, match="create-subscription -m earliest -s __pulsar_txn"):
        log.protect_each([SEGMENT])
    assert (admin.keeps_all, admin.subscribed) == (True, [])


def test_a_topic_that_was_given_back_meanwhile_gets_no_policy(admin: FakeAdmin) -> None:
    log = open_log(admin)
    admin.keeps_all, admin.found = False, {}
    admin.subscribed.clear()
    with pytest.raises(SegmentNotFoundError):
        log.protect_each([SEGMENT])
    assert not admin.keeps_all


@pytest.mark.parametrize("origin, first", [("-1:-1,3", 3), ("3:1,5", 5)])
def test_a_trim_of_the_form_without_a_ledger_in_its_name_is_finished_and_goes(
    admin: FakeAdmin, origin: str, first: int
) -> None:
    admin.found |= {ORIGIN_PROPERTY: origin, TRIM_PROPERTY: "5:1,8"}
    admin.ledgers = {number: 2 for number in admin.ledgers if number >= first}
    log = open_log(admin)
    given_up = Position.parse(origin.partition(",")[0])
    assert log.trimmed_to(SEGMENT) == given_up
    assert log.trim(SEGMENT, Position(3, 1)) == given_up
    admin.remove()
    assert list(admin.ledgers) == [8, 9]
    assert log.trimmed_to(SEGMENT) == open_log(admin).trimmed_to(SEGMENT) == Position(5, 1)
    log.trim(SEGMENT, Position(8, 1))
    admin.remove()
    assert log.trimmed_to(SEGMENT) == open_log(admin).trimmed_to(SEGMENT) == Position(8, 1)
    admin.ledgers[12] = 2
    log.trim(SEGMENT, Position(9, 1))
    assert TRIM_PROPERTY not in admin.found


def test_what_a_trim_has_noted_too_late_means_nothing_to_the_topic_s_next_segment(
    admin: FakeAdmin,
) -> None:
    # The topic was given back, and adopted again, while the trim was paused.
    admin.found[f"{TRIM_PROPERTY}.another.9"] = "8:1,9"
    log = open_log(admin)
    assert log.trim(SEGMENT, Position(3, 1)) == EARLIEST
    assert admin.acknowledged == Position(5, 0)


def test_what_one_segment_of_a_topic_has_given_up_means_nothing_to_the_next_one(
    admin: FakeAdmin,
) -> None:
    reader, other = open_log(admin), open_log(admin)
    other.trim(SEGMENT, Position(5, 1))
    admin.remove()
    assert reader.trimmed_to(SEGMENT) == Position(5, 1)
    # Another process gives the topic back, and adopts it again.
    following = replace(SEGMENT, id="following")
    admin.found = {SEGMENT_PROPERTY: following.id, ORIGIN_PROPERTY: f"{EARLIEST},8"}
    assert reader.trimmed_to(following) == open_log(admin).trimmed_to(following) == EARLIEST
    reader._check_whole(following, EARLIEST, Position(9, 1))


def test_what_somebody_else_removed_is_told_from_what_was_given_up(admin: FakeAdmin) -> None:
    log = open_log(admin)
    log.trim(SEGMENT, Position(3, 1))
    admin.remove()
    del admin.ledgers[5]
    assert log.trimmed_to(SEGMENT) == Position(8, -1)
    assert open_log(admin).trimmed_to(SEGMENT) == Position(8, -1)


def test_a_trim_that_is_half_removed_is_reported_as_far_as_it_is_gone(admin: FakeAdmin) -> None:
    log = open_log(admin)
    log.trim(SEGMENT, Position(8, 1))
    del admin.ledgers[3]
    assert log.trimmed_to(SEGMENT) == Position(5, -1)


@pytest.mark.parametrize(
    "time_ms, expected",
    [(100, EARLIEST), (101, Position(3, 1)), (300, Position(5, 1)), (9999, Position(9, 1))],
)
def test_a_ledger_is_as_old_as_its_last_entry(
    admin: FakeAdmin, time_ms: int, expected: Position
) -> None:
    assert open_log(admin).published_before(SEGMENT, time_ms) == expected


def test_a_ledger_that_does_not_say_when_it_was_written_is_kept(admin: FakeAdmin) -> None:
    admin.published = {3: 100}
    assert open_log(admin).published_before(SEGMENT, 9999) == Position(3, 1)


@pytest.mark.parametrize(
    "time_ms, expected",
    [
        (0, EARLIEST),
        (100, EARLIEST),
        (101, Position(3, 1)),
        (300, Position(5, 1)),
        (9999, None),
    ],
)
def test_the_position_at_a_time_lies_before_the_first_entry_since_then(
    admin: FakeAdmin, time_ms: int, expected: Position | None
) -> None:
    assert open_log(admin).position_at(SEGMENT, time_ms) == expected


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_headers, "_ASK_AGAIN_SECONDS", 0.0)


@pytest.mark.usefixtures("no_pause")
@pytest.mark.parametrize("request_number", range(4))
def test_an_entry_that_a_broker_fails_to_read_once_does_not_move_the_position_at_a_time(
    admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch, request_number: int
) -> None:
    asked: list[Position] = []
    entry_header = admin.entry_header

    def failing(topic: str, position: Position) -> EntryHeader:
        asked.append(position)
        admin.fails_at = iter([position] if len(asked) == request_number + 1 else [])
        return entry_header(topic, position)

    monkeypatch.setattr(admin, "entry_header", failing)
    assert open_log(admin).position_at(SEGMENT, 101) == Position(3, 1)
    assert len(asked) > request_number
    assert asked.count(asked[request_number]) >= 2


@pytest.mark.usefixtures("no_pause")
def test_an_entry_that_cannot_be_read_is_not_taken_for_an_old_one(admin: FakeAdmin) -> None:
    admin.ledgers = {3: 1}
    admin.fails_at = repeat(Position(3, 0))
    with pytest.raises(SegmentLogUnavailableError, match="cannot read entry 3:0 of segment id"):
        open_log(admin).position_at(SEGMENT, 50)


@pytest.mark.usefixtures("no_pause")
def test_an_entry_that_was_trimmed_meanwhile_is_older_than_what_is_there(
    admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry_header = admin.entry_header

    def trimmed(topic: str, position: Position) -> EntryHeader:
        if position.ledger < 8:
            admin.ledgers = {8: 2, 9: 2}
            admin.fails_at = iter([position])
        return entry_header(topic, position)

    monkeypatch.setattr(admin, "entry_header", trimmed)
    assert open_log(admin).position_at(SEGMENT, 50) == Position(5, 1)
