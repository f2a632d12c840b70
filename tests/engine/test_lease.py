"""The one heartbeat: it outlives an outage, hears of a loss, and ends with whom it beats for."""

from __future__ import annotations

import gc
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest

from pulsar_txn_spark.engine.lease import Lease, Leased, Leases
from pulsar_txn_spark.errors import (
    FencedError,
    PulsarTxnError,
    StoreError,
    StoreUnavailableError,
    TransactionAbortedError,
    TransactionNotFoundError,
)

PATIENCE_S = 10  # what comes, comes at once: this is how long a failing test takes


class ManualClock:
    """Time that passes when the test says so; the thread waits for that, and for changes."""

    def __init__(self) -> None:
        self._now = 0.0
        self._waits = threading.Event()
        self._changed: threading.Condition | None = None

    def now(self) -> float:
        return self._now

    def wait(self, changed: threading.Condition, seconds: float) -> None:
        assert seconds > 0
        self._changed = changed
        self._waits.set()
        changed.wait()

    def pass_by(self, seconds: float, *, thread_ends: threading.Thread | None = None) -> None:
        """Let time pass, and wait until all that is due by then is done."""
        self.settle()
        assert self._changed is not None
        with self._changed:
            self._now += seconds
            self._waits.clear()
            self._changed.notify_all()
        if thread_ends is None:
            self.settle()
        else:
            thread_ends.join(PATIENCE_S)
            assert not thread_ends.is_alive()

    def settle(self) -> None:
        assert self._waits.wait(PATIENCE_S), "the thread is not waiting"


class Owner:
    """Whose lease is kept: counts the heartbeats, and hears of the loss."""

    def __init__(self, timeout_ms: int = 1_000, tc: int | None = None) -> None:
        self.timeout_ms = timeout_ms
        self.tc = tc
        self.beats = 0
        self.heard: list[PulsarTxnError] = []
        self.error: Exception | None = None

    def beat(self) -> None:
        self.beats += 1
        if self.error is not None:
            raise self.error

    def lost(self, error: PulsarTxnError) -> None:
        self.heard.append(error)


class Left:
    """What a dropped owner left open; closing it does what the test says."""

    def __init__(self, close: Callable[[], None] = lambda: None, *, is_open: bool = True) -> None:
        self.is_open = is_open
        self._close = close

    def close(self) -> None:
        self.is_open = False
        self._close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def leases(clock: ManualClock) -> Iterator[Leases]:
    found = Leases(clock)
    yield found
    thread = found._thread
    found._due.clear()
    with found._changed:
        found._changed.notify_all()
    if thread is not None:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def thread_of(leases: Leases) -> threading.Thread:
    assert leases._thread is not None
    return leases._thread


def test_a_lease_is_extended_four_times_before_it_would_end(
    leases: Leases, clock: ManualClock
) -> None:
    owner = Owner()
    leases.keep(owner)
    clock.pass_by(0.24)
    assert owner.beats == 0
    for beats in (1, 2, 3, 4):
        clock.pass_by(0.25)
        assert owner.beats == beats


def test_each_lease_is_extended_by_its_own_period(leases: Leases, clock: ManualClock) -> None:
    short, long = Owner(1_000), Owner(4_000)
    leases.keep(long)
    leases.keep(short)
    for _ in range(8):
        clock.pass_by(0.25)
    assert (short.beats, long.beats) == (8, 2)


def test_a_lease_does_not_wait_for_all_those_of_a_coordinator_that_does_not_answer(
    leases: Leases, clock: ManualClock
) -> None:
    beats: list[float] = []

    class Answered(Owner):
        def beat(self) -> None:
            beats.append(clock.now())

    class Unanswered(Owner):
        def beat(self) -> None:
            super().beat()
            if self.beats == 1:
                clock._now += 5  # the store's timeout
                raise StoreUnavailableError("no answer")

    answered, unanswered = Answered(20_000, tc=1), [Unanswered(60_000, tc=0) for _ in range(10)]
    for owner in (*unanswered, answered):
        leases.keep(owner)
    clock.pass_by(5)
    clock.pass_by(10)
    assert beats == [5, *range(15, 66, 5)], "it waits for one of them at a time"


def test_after_a_single_error_no_lease_of_its_coordinator_ends_however_many_are_due() -> None:
    lease_s, round_trip_s, count = 60, 0.1, 240  # one more is due at any moment

    class BusyClock(ManualClock):
        def wait(self, changed: threading.Condition, seconds: float) -> None:
            self._now += seconds

    busy_clock = BusyClock()

    class Busy(Owner):
        last, longest_s = 0.0, 0.0

        def beat(self) -> None:
            busy_clock._now += round_trip_s
            super().beat()
            self.longest_s = max(self.longest_s, busy_clock.now() - self.last)
            self.last = busy_clock.now()

    class OneThread(Leases):
        def _start(self) -> None:
            self._thread = threading.current_thread()

    leases = OneThread(busy_clock)
    owners = [Busy(lease_s * 1_000, tc=number % 4) for number in range(count)]
    for owner in owners:
        leases.keep(owner)
    owners[0].error = StoreUnavailableError("no answer")
    while owners[0].beats == 0:
        leases._beat_next()
    owners[0].error = None
    while busy_clock.now() < 4 * lease_s:
        leases._beat_next()
    assert max(owner.longest_s for owner in owners) < lease_s
    assert max(busy_clock.now() - owner.last for owner in owners) < lease_s


@pytest.mark.parametrize(
    "error", [StoreUnavailableError("the store is restarted"), StoreError("OOM: it has no room")]
)
def test_a_heartbeat_that_fails_is_tried_again_until_the_store_is_back(
    leases: Leases, clock: ManualClock, error: StoreError
) -> None:
    owner = Owner()
    leases.keep(owner)
    owner.error = error
    for _ in range(3):
        clock.pass_by(0.25)
    owner.error = None
    clock.pass_by(0.25)
    assert (owner.beats, owner.heard) == (4, [])


@pytest.mark.parametrize("kind", [TransactionAbortedError, TransactionNotFoundError])
def test_an_owner_hears_that_its_lease_is_lost_and_it_is_extended_no_more(
    leases: Leases, clock: ManualClock, kind: type[PulsarTxnError]
) -> None:
    owner, other = Owner(), Owner(400_000)
    leases.keep(other)
    leases.keep(owner)
    owner.error = kind("an administrator did")
    clock.pass_by(0.25)
    clock.pass_by(10)
    assert (owner.beats, owner.heard) == (1, [owner.error])
    assert list(leases._due) == [other], "the others keep theirs"


def test_what_the_owner_meets_itself_ends_the_heartbeat_without_a_loss(
    leases: Leases, clock: ManualClock
) -> None:
    owner = Owner()
    leases.keep(owner)
    owner.error = FencedError("a newer attempt has begun")
    clock.pass_by(0.25, thread_ends=thread_of(leases))
    assert (owner.beats, owner.heard) == (1, [])


def test_an_error_of_one_heartbeat_ends_no_other(leases: Leases, clock: ManualClock) -> None:
    broken, sound = Owner(), Owner(2_000)
    broken.error = ValueError("not an error of this package")
    leases.keep(broken)
    leases.keep(sound)
    clock.pass_by(0.25)
    clock.pass_by(0.25)
    assert (broken.beats, sound.beats, broken.heard) == (1, 1, [])


def test_the_thread_ends_with_the_last_lease_and_begins_again_with_the_next(
    leases: Leases, clock: ManualClock
) -> None:
    first, second = Owner(), Owner()
    leases.keep(first)
    leases.keep(second)
    thread = thread_of(leases)
    leases.let_go(first)
    leases.let_go(first)
    clock.pass_by(0.25)
    assert (first.beats, second.beats) == (0, 1)
    leases.let_go(second)
    leases.keep(first)
    assert thread_of(leases) is thread, "it waits for its next turn: many leases are short"
    leases.let_go(first)
    clock.pass_by(0.25, thread_ends=thread)
    assert first.beats == 0
    leases.keep(first)
    assert thread_of(leases) is not thread
    clock.pass_by(0.25)
    assert first.beats == 1


def test_the_thread_ends_with_an_owner_that_is_dropped(leases: Leases, clock: ManualClock) -> None:
    owner = Owner()
    leases.keep(owner)
    clock.settle()
    left = Left()
    leases.forgotten(left)
    del owner
    gc.collect()
    clock.pass_by(0.25, thread_ends=thread_of(leases))
    assert not left.is_open, "what was left behind is closed by the thread"


def test_after_an_owner_that_is_dropped_while_the_thread_looks_the_next_lease_is_extended(
    leases: Leases, clock: ManualClock
) -> None:
    owner, next_owner = Owner(), Owner()
    leases.keep(owner)
    thread = thread_of(leases)
    # The newest reference is told first: the registry counts the owner still, and has none.
    dropped = weakref.ref(owner, lambda _: clock.pass_by(0.25, thread_ends=thread))
    clock.settle()
    del owner
    gc.collect()
    assert dropped() is None
    leases.keep(next_owner)
    clock.pass_by(0.25)
    assert next_owner.beats == 1


def test_a_lease_is_extended_before_what_others_left_open_is_closed(
    leases: Leases, clock: ManualClock
) -> None:
    owner = Owner()
    leases.keep(owner)
    beats_before: list[int] = []
    leases.forgotten(Left(lambda: beats_before.append(owner.beats)))
    clock.pass_by(0.25)
    assert beats_before == [1]


def test_a_lease_that_is_due_does_not_wait_for_all_that_others_left_open(
    leases: Leases, clock: ManualClock
) -> None:
    owner = Owner()
    leases.keep(owner)
    beats_before: list[int] = []

    def close_slowly() -> None:
        beats_before.append(owner.beats)
        clock._now += 0.25

    for _ in range(3):
        leases.forgotten(Left(close_slowly))
    clock.pass_by(0.25)
    assert beats_before == [1, 2, 3]


def test_what_cannot_be_closed_ends_no_lease_and_is_logged(
    leases: Leases, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ValueError("it does not close")

    owner, behind = Owner(), Left()
    leases.keep(owner)
    leases.forgotten(Left(fail))
    leases.forgotten(behind)
    with caplog.at_level(logging.WARNING):
        clock.pass_by(0.25)
    clock.pass_by(0.25)
    assert (owner.beats, behind.is_open) == (2, False)
    assert "it does not close" in caplog.text


def test_of_an_owner_that_left_nothing_open_nothing_is_kept(leases: Leases) -> None:
    for _ in range(100):
        leases.forgotten(Left(is_open=False))
    assert not leases._forgotten


def test_a_fork_leaves_what_is_its_parents_open(
    leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    leases.forgotten(Left())
    assert not leases._forgotten


def test_after_a_thread_that_could_not_be_started_the_next_lease_has_one(
    leases: Leases, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    refused, owner = Owner(), Owner()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            leases.keep(refused)
    leases.keep(owner)
    assert list(leases._due) == [owner], "nobody takes the refused one for one that is extended"
    clock.pass_by(0.25)
    assert owner.beats == 1


def test_a_lease_whose_keeper_is_dropped_as_well_is_extended_no_more(clock: ManualClock) -> None:
    owner = Owner()
    leases = Leases(clock)
    leases.keep(owner)
    clock.settle()
    thread = thread_of(leases)
    del owner, leases
    gc.collect()
    clock.pass_by(0.25, thread_ends=thread)


def test_a_lease_is_kept_within_a_block_and_no_longer(leases: Leases, clock: ManualClock) -> None:
    owner = Owner()
    with leases.kept(owner):
        thread = thread_of(leases)
        clock.pass_by(0.25)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert owner.beats == 1


def test_the_end_of_a_lease_waits_for_a_heartbeat_of_that_moment(clock: ManualClock) -> None:
    begun, let_go, ended = threading.Event(), threading.Event(), threading.Event()
    came_after: list[bool] = []

    class Watched(Leases):
        def let_go(self, leased: Leased) -> None:
            super().let_go(leased)
            let_go.set()

    def extend() -> None:
        begun.set()
        assert let_go.wait(PATIENCE_S)
        came_after.append(ended.wait(0.2))

    leases, lease = Watched(clock), Lease(1_000, extend)
    leases.keep(lease)
    clock.settle()
    passing = threading.Thread(target=lambda: clock.pass_by(0.25, thread_ends=thread))
    thread = thread_of(leases)
    passing.start()
    assert begun.wait(PATIENCE_S)
    leases.end(lease)
    ended.set()
    passing.join(PATIENCE_S)
    assert came_after == [False]


def test_what_lost_its_lease_says_so_before_it_writes_on(
    leases: Leases, clock: ManualClock
) -> None:
    errors: list[PulsarTxnError | None] = [None, TransactionAbortedError("its lease was over")]

    def extend() -> None:
        if error := errors.pop(0):
            raise error

    lease = Lease(1_000, extend)
    leases.keep(lease)
    clock.pass_by(0.25)
    lease.require()
    clock.pass_by(0.25, thread_ends=thread_of(leases))
    with pytest.raises(TransactionAbortedError, match=r"was over\): .* nothing more is written"):
        lease.require()


def test_time_is_this_machines_unless_a_test_says_otherwise() -> None:
    beaten = threading.Event()
    extend: Callable[[], None] = beaten.set
    with Leases().kept(Lease(20, extend)):
        assert beaten.wait(PATIENCE_S)
