"""A waiting reader is woken by what happens, and by nothing that it could miss."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from pulsar_txn_spark.errors import StoreRolledBackError, StoreUnavailableError
from pulsar_txn_spark.position import EARLIEST, MessagePosition, Position
from pulsar_txn_spark.store.ack_ranges import AckInterval
from pulsar_txn_spark.store.protocol import EventFeed
from pulsar_txn_spark.store.records import (
    Code,
    SegmentDecision,
    SubscriptionRef,
    TxnState,
    WriterFate,
)
from pulsar_txn_spark.txn.pending_ack import CLIENT_OWNER
from pulsar_txn_spark.txn.watcher import SegmentWatcher
from tests.support.connections import in_use
from tests.support.scenario import OTHER_SEGMENT, SEGMENT, TIMEOUT_MS, World

LONG_S = 20.0  # nobody waits so long: a wake-up that is lost shows as this much time
FOR_EVER_MS = 3_600_000  # no recheck that could stand in for an event
SOON_S = 5.0
STREAM = f"{{seg:{SEGMENT}}}:events"


@pytest.fixture
def watcher(world: World) -> Iterator[SegmentWatcher]:
    """Return a watcher that is up to date and has nothing but events to go by."""
    world.store.segments.gates([SEGMENT, OTHER_SEGMENT])
    with SegmentWatcher(
        world.another_process().store.event_feed(),
        [SEGMENT, OTHER_SEGMENT],
        recheck_ms=FOR_EVER_MS,
    ) as found:
        assert found.wait(0) == [SEGMENT, OTHER_SEGMENT]
        assert found.poll() == []
        yield found


def woken_by(watcher: SegmentWatcher, cause: object) -> list[str]:
    """Return what a thread that waits already is told when `cause` is called."""
    assert callable(cause)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(watcher.wait, LONG_S)
        cause()
        return waiting.result(SOON_S)


def test_every_segment_is_due_at_first(world: World) -> None:
    world.commit(txn := world.open(), world.write(txn, "before"))
    with SegmentWatcher(
        world.store.event_feed(), [OTHER_SEGMENT, SEGMENT], recheck_ms=FOR_EVER_MS
    ) as watcher:
        assert watcher.wait(LONG_S) == [OTHER_SEGMENT, SEGMENT]
        assert watcher.wait(0.0) == []


def test_a_commit_wakes_who_waits_for_its_segment_and_no_other(
    world: World, watcher: SegmentWatcher
) -> None:
    txn = world.open()
    winner = world.write(txn, "a")
    assert watcher.poll() == []
    assert woken_by(watcher, lambda: world.commit(txn, winner)) == [SEGMENT]
    assert world.visible() == ["a"]
    assert watcher.poll() == []


def test_a_report_wakes_who_waits_also_if_another_reader_was_there_before_it(
    world: World, watcher: SegmentWatcher
) -> None:
    last = world.log.append(SEGMENT, "a producer", "a")
    assert world.another_process().visible() == ["a"]
    assert watcher.poll() == []
    assert woken_by(watcher, lambda: world.store.segments.raise_high(SEGMENT, last)) == [SEGMENT]


def test_an_event_between_the_poll_and_the_wait_is_not_lost(
    world: World, watcher: SegmentWatcher
) -> None:
    world.commit(txn := world.open(), world.write(txn, "a"))
    assert watcher.wait(LONG_S) == [SEGMENT]
    # While the reader looks at the state, more comes.
    world.commit(txn := world.open(), world.write(txn, "b"))
    world.commit(txn := world.open(), world.write(txn, "c", segment=OTHER_SEGMENT))
    seen: set[str] = set()
    while seen != {SEGMENT, OTHER_SEGMENT}:
        found = watcher.wait(LONG_S)
        assert found, "one of them was lost"
        seen.update(found)


def test_an_abort_wakes_who_waits_behind_its_pin(world: World, watcher: SegmentWatcher) -> None:
    dead = world.open()
    world.write(dead, "dead")
    world.commit(txn := world.open(), world.write(txn, "a"))
    assert watcher.wait(LONG_S) == [SEGMENT]
    assert world.visible() == []
    assert woken_by(watcher, lambda: world.abort(dead)) == [SEGMENT]
    assert world.visible() == ["a"]


def test_rows_outside_of_transactions_wake_as_well(world: World, watcher: SegmentWatcher) -> None:
    assert woken_by(watcher, lambda: world.store.segments.raise_high(SEGMENT, Position(1, 1))) == [
        SEGMENT
    ]


def test_a_decision_wakes_whom_it_blocks_although_nobody_materialized_it(
    world: World, watcher: SegmentWatcher
) -> None:
    txn = world.open()
    winner = world.write(txn, "a")
    watcher.blocked_by(SEGMENT, world.readable().blocked_by)
    assert watcher.wait(LONG_S) == [SEGMENT], "it may have been decided in the meantime"
    watcher.blocked_by(SEGMENT, world.readable().blocked_by)
    assert watcher.poll() == []
    # The committer dies right after the compare-and-set.
    assert woken_by(watcher, lambda: world.decide(txn, winner)) == [SEGMENT]
    assert world.visible() == ["a"], "who was blocked has materialized it"


def test_the_decisions_of_others_do_not_wake_a_reader_that_is_blocked(
    world: World, watcher: SegmentWatcher
) -> None:
    txn = world.open()
    world.write(txn, "a")
    watcher.blocked_by(SEGMENT, [txn.id])
    assert watcher.wait(LONG_S) == [SEGMENT]
    for _ in range(2 * world.store.identity.coordinators):
        other = world.open()
        if other.id.tc != txn.id.tc:
            world.decide(other)
    assert watcher.poll() == []
    watcher.blocked_by(SEGMENT, ())
    world.decide(txn)
    assert watcher.poll() == []


class PartlyDown:
    """Events of a store, of whose coordinators some cannot be reached."""

    def __init__(self, feed: EventFeed) -> None:
        self._feed = feed
        self.wake, self.close = feed.wake, feed.close
        self.down: set[str] = set()
        self._followed: set[str] = set()

    def follow(self, tags: Collection[str]) -> None:
        self._feed.follow(tags)
        self._followed = set(tags)

    def wait(self, timeout_s: float) -> set[str]:
        if self.down & self._followed:
            raise StoreUnavailableError("a server of the cluster is down")
        return self._feed.wait(timeout_s)


def test_a_coordinator_that_is_down_fails_only_who_waits_for_its_transactions(
    world: World,
) -> None:
    feed = PartlyDown(world.store.event_feed())
    first, second = world.open(), world.open()
    while second.id.tc == first.id.tc:
        second = world.open()
    with SegmentWatcher(feed, [SEGMENT, OTHER_SEGMENT], recheck_ms=FOR_EVER_MS) as watcher:
        watcher.blocked_by(SEGMENT, [first.id])
        watcher.blocked_by(OTHER_SEGMENT, [second.id])
        watcher.wait(0)
        feed.down = {f"tc{first.id.tc}"}
        with pytest.raises(StoreUnavailableError):
            watcher.wait(LONG_S)
        watcher.blocked_by(SEGMENT, ())
        assert woken_by(watcher, lambda: world.decide(second)) == [OTHER_SEGMENT]
        assert woken_by(
            watcher, lambda: world.store.segments.raise_high(SEGMENT, Position(1, 1))
        ) == [SEGMENT]
        feed.down.clear()
        watcher.blocked_by(SEGMENT, [first.id])
        assert watcher.wait(LONG_S) == [SEGMENT]
        assert woken_by(watcher, lambda: world.decide(first)) == [SEGMENT], "followed again"


def test_a_decision_wakes_readers_with_the_first_of_its_steps(
    world: World, watcher: SegmentWatcher
) -> None:
    inbox = SubscriptionRef(SEGMENT, "sub", CLIENT_OWNER)
    world.acks.claim(inbox, EARLIEST)
    txn = world.open()
    winner = world.write(txn, "a")
    whole = [MessagePosition.whole(Position(1, entry)) for entry in range(1300)]
    every_other = [AckInterval(*pair) for pair in list(pairwise(whole))[::2]]
    world.acks.acknowledge_individual(txn.id, txn.nonce, TIMEOUT_MS, inbox, every_other)
    world.decide(txn, winner)
    assert watcher.poll() == []
    # The helper dies after its first step: the rows can be read, some messages are still locked.
    decision = SegmentDecision(
        SEGMENT, (WriterFate(winner.writer, None),), ("sub",), Position(1, 0)
    )
    [answer] = world.store.segments.materialize(txn.id, TxnState.COMMITTED, [decision])
    assert answer.code is Code.MORE
    assert watcher.wait(SOON_S) == [SEGMENT]
    assert world.visible() == ["a"]


def test_a_watcher_that_missed_trimmed_events_reads_the_state_again(world: World) -> None:
    with SegmentWatcher(world.store.event_feed(), [SEGMENT], recheck_ms=FOR_EVER_MS) as watcher:
        watcher.wait(LONG_S)  # due at first: nothing stands at the server yet
        for _ in range(3):
            world.commit(txn := world.open(), world.write(txn, "a"))
        world.client.xtrim(STREAM, maxlen=1, approximate=False)
        assert watcher.wait(LONG_S) == [SEGMENT]
        assert watcher.poll() == []


def test_the_streams_stay_bounded_and_keep_their_newest_event(world: World) -> None:
    load = world.client.pipeline(transaction=False)
    for stream in (STREAM, "{tc0}:events"):
        for _ in range(3000):
            load.xadd(stream, {"type": "resolved"})
    load.execute()
    world.store.segments.raise_high(SEGMENT, Position(1, 1))
    while (txn := world.open()).id.tc != 0:
        pass
    world.decide(txn)
    for stream, kind in ((STREAM, b"new-data"), ("{tc0}:events", b"decided")):
        assert world.client.xlen(stream) < 1_300
        [(_, newest)] = world.client.xrevrange(stream, count=1)
        assert newest[b"type"] == kind


def test_a_lost_connection_counts_as_an_event_on_everything_it_followed(
    world: World, watcher: SegmentWatcher
) -> None:
    def cut() -> None:
        world.client.client_kill_filter(_type="normal", skipme=True)

    watcher.poll()
    assert woken_by(watcher, cut) == [SEGMENT, OTHER_SEGMENT]
    world.commit(txn := world.open(), world.write(txn, "a"))
    assert watcher.wait(LONG_S) == [SEGMENT]


def test_a_connection_that_went_silent_is_given_up(
    world: World, watcher: SegmentWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher.poll()
    monkeypatch.setattr("pulsar_txn_spark.store.redis.event_feed._SILENCE_S", 0.05)
    assert watcher.wait(LONG_S) == [SEGMENT, OTHER_SEGMENT]


def test_without_any_event_everything_is_polled_once_in_a_while(world: World) -> None:
    with SegmentWatcher(
        world.store.event_feed(), [SEGMENT, OTHER_SEGMENT], recheck_ms=50
    ) as watcher:
        begun = time.monotonic()
        watcher.wait(LONG_S)
        assert watcher.wait(LONG_S) == [SEGMENT, OTHER_SEGMENT]
        assert 0.05 <= time.monotonic() - begun < SOON_S


def test_segments_that_are_new_to_a_watcher_are_due_and_others_are_forgotten(
    world: World, watcher: SegmentWatcher
) -> None:
    world.store.segments.raise_high(SEGMENT, Position(1, 1))
    watcher.follow([OTHER_SEGMENT, "new"])
    assert watcher.wait(LONG_S) == ["new"]
    world.store.segments.raise_high("new", Position(1, 1))
    assert watcher.wait(LONG_S) == ["new"]


def test_a_thread_that_waits_can_be_woken(watcher: SegmentWatcher) -> None:
    assert woken_by(watcher, watcher.wake) == []
    watcher.wake()
    assert watcher.wait(LONG_S) == [], "also if it was woken before it waited"


def test_a_store_that_lost_its_segment_is_not_followed_in_silence(world: World) -> None:
    world.store.segments.raise_high(SEGMENT, Position(1, 1))
    world.client.delete(world.key("birth"))
    with pytest.raises(StoreRolledBackError):
        SegmentWatcher(world.store.event_feed(), [SEGMENT])


def test_a_watcher_that_nobody_closed_gives_its_connection_back(world: World) -> None:
    pool = world.client.connection_pool
    locked = in_use(pool)
    watcher = SegmentWatcher(world.store.event_feed(), [SEGMENT], recheck_ms=FOR_EVER_MS)
    watcher.poll()  # which is due at first
    watcher.poll()
    assert len(in_use(pool) - locked) == 1
    del watcher
    gc.collect()
    assert in_use(pool) <= locked


def test_many_commits_lose_no_wake_up(world: World) -> None:
    seen: list[str] = []
    count = 60
    store = world.another_process().store

    def follow() -> None:
        with SegmentWatcher(store.event_feed(), [SEGMENT], recheck_ms=FOR_EVER_MS) as watcher:
            while len(seen) < count and watcher.wait(SOON_S):
                seen[:] = world.visible()

    reader = threading.Thread(target=follow)
    reader.start()
    for number in range(count):
        world.commit(txn := world.open(), world.write(txn, str(number)))
    reader.join()
    assert seen == [str(number) for number in range(count)]
