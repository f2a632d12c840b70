"""Events of a server that is no primary any more."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
import redis

from pulsar_txn_spark.config import StoreConfig
from pulsar_txn_spark.errors import StoreError, StoreUnavailableError, StoreUnsafeError
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.store.redis import event_feed
from pulsar_txn_spark.store.redis.connection import connect
from pulsar_txn_spark.store.redis.event_feed import RedisEventFeed
from pulsar_txn_spark.store.redis.store import RedisStore
from tests.support.redis_servers import (
    SlotMove,
    StartRedis,
    demote,
    fail_over,
    promote,
    start_cluster,
    start_replicated_cluster,
    until,
    url_of,
)

SEGMENT = "s"
TAG = f"seg:{SEGMENT}"
EVENTS = f"{{{TAG}}}:events"
TAGS = [f"seg:s{number}" for number in range(20)]
"""Enough for each server of a cluster to have some."""
PATIENCE_S = 20


@pytest.fixture
def port(start_redis: StartRedis) -> int:
    return start_redis()


@pytest.fixture
def store(port: int) -> RedisStore:
    store = RedisStore(connect(url_of(port)))
    store.segments.prepare([SEGMENT])
    return store


@pytest.fixture
def feed(store: RedisStore) -> Iterator[RedisEventFeed]:
    with closing(store.event_feed()) as feed:
        feed.follow([TAG])
        yield feed


def await_reply(feed: RedisEventFeed) -> None:
    """Wait until the server has answered the read that stands there; leave the answer unread."""
    (read,) = feed._reads
    readable, _, _ = select.select([event_feed._socket_of(read.connection)], [], [], PATIENCE_S)
    assert readable


def goes_on(port: int, store: RedisStore, feed: RedisEventFeed) -> bool:
    """Tell whether a loss is an event, a replica refused, and a primary followed again."""
    assert feed.wait(PATIENCE_S) == {TAG}
    with pytest.raises(StoreUnsafeError, match="is a replica"):
        feed.wait(PATIENCE_S)
    promote(port)
    assert feed.wait(0) == set()
    store.segments.raise_high(SEGMENT, Position(1, 1))
    return feed.wait(PATIENCE_S) == {TAG}


def test_a_read_that_stands_at_a_primary_breaks_when_it_becomes_a_replica(
    port: int, store: RedisStore, feed: RedisEventFeed
) -> None:
    assert feed.wait(0) == set()
    demote(port)
    assert goes_on(port, store, feed)


def test_a_server_that_became_a_replica_between_two_reads_is_left_after_a_silence(
    port: int, store: RedisStore, feed: RedisEventFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "_BLOCK_MS", 10)
    assert feed.wait(0) == set()
    await_reply(feed)
    demote(port)  # no read stands: Redis closes nothing
    assert goes_on(port, store, feed)


def test_a_primary_without_events_is_followed_on(
    store: RedisStore, feed: RedisEventFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "_BLOCK_MS", 10)
    assert feed.wait(0) == set()
    for _ in range(3):
        await_reply(feed)
        assert feed.wait(0) == set()
    store.segments.raise_high(SEGMENT, Position(1, 1))
    assert feed.wait(PATIENCE_S) == {TAG}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[event_feed._Read]:
    """Collect the reads that are sent."""
    found: list[event_feed._Read] = []
    send = RedisEventFeed._send

    def noted(feed: RedisEventFeed, read: event_feed._Read, connection: Any) -> None:
        found.append(read)
        send(feed, read, connection)

    monkeypatch.setattr(RedisEventFeed, "_send", noted)
    return found


def waited(feed: RedisEventFeed, seconds: float) -> set[str]:
    """Return the tags that a thread is told of that waits again and again."""
    deadline, found = time.monotonic() + seconds, set()
    while (left := deadline - time.monotonic()) > 0:
        found |= feed.wait(left)
    return found


def test_a_user_who_may_not_read_events_is_told_so_and_does_not_ask_without_end(
    port: int, sent: list[event_feed._Read], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "_PAUSE_S", 3_600.0)
    with redis.Redis(port=port) as plain:
        plain.execute_command("ACL", "SETUSER", "u", "on", ">p", "~*", "+@all", "-xread")
        store = RedisStore(connect(StoreConfig(url=f"redis://u:p@127.0.0.1:{port}")))
        store.segments.prepare([SEGMENT])
        with closing(store.event_feed()) as feed:
            feed.follow([TAG])
            with pytest.raises(StoreError, match="XREAD"):
                feed.wait(PATIENCE_S)
            assert feed.wait(0.1) == set()
            [read] = sent
            read.not_before = 0.0  # the pause is over
            store.segments.raise_high(SEGMENT, Position(1, 1))
            plain.execute_command("ACL", "SETUSER", "u", "+xread")
            assert feed.wait(PATIENCE_S) == {TAG}, "it is in the next read"


@pytest.mark.slow
def test_a_read_whose_slot_moves_is_sent_a_handful_of_times_and_misses_nothing(
    start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch, sent: list[event_feed._Read]
) -> None:
    monkeypatch.setattr(event_feed, "_BLOCK_MS", 50)
    monkeypatch.setattr(event_feed, "_PAUSE_S", 0.5)
    first = start_cluster(start_redis, nodes=2)
    store = RedisStore(connect(StoreConfig(url=f"redis+cluster://127.0.0.1:{first}")))
    store.segments.prepare([SEGMENT])
    store.segments.raise_high(SEGMENT, Position(1, 1))
    other: Any = redis.RedisCluster(host="127.0.0.1", port=first)
    with closing(store.event_feed()) as feed, closing(other):
        feed.follow([TAG])
        assert feed.wait(0) == set()
        move = SlotMove(other, EVENTS)
        move.take(EVENTS)  # from now on its server names the other one, which does not have it yet
        assert feed.wait(PATIENCE_S) == {TAG}
        sent.clear()
        waited(feed, 2)
        assert 1 <= len(sent) <= 5
        move.finish()
        other.xadd(EVENTS, {"type": "new-data"})
        monkeypatch.setattr(event_feed, "_BLOCK_MS", 5_000)
        sent.clear()
        assert TAG in waited(feed, 2)
        assert 1 <= len(sent) <= 5
        assert waited(feed, 1) == set(), "it stands where the slot is now"
        other.xadd(EVENTS, {"type": "new-data"})
        assert feed.wait(PATIENCE_S) == {TAG}


@pytest.mark.slow
def test_events_of_a_cluster_are_followed_on_although_their_server_is_gone_for_good(
    start_redis: StartRedis,
) -> None:
    first, second = start_replicated_cluster(start_redis)
    store = RedisStore(connect(StoreConfig(url=f"redis+cluster://127.0.0.1:{first}")))
    store.segments.prepare([SEGMENT])
    with closing(store.event_feed()) as feed:
        feed.follow([TAG])
        assert feed.wait(0) == set()
        with redis.Redis(port=first) as primary:
            primary.execute_command("WAIT", "1", "0")
            fail_over(primary, second)
        assert feed.wait(PATIENCE_S) == {TAG}
        with pytest.raises(StoreUnavailableError, match="events cannot be followed"):
            feed.wait(0)  # nobody has asked where the slot is now
        until(lambda: answers(store))
        assert feed.wait(0) == set()
        store.segments.raise_high(SEGMENT, Position(1, 1))
        assert feed.wait(PATIENCE_S) == {TAG}


@pytest.mark.slow
def test_a_server_of_a_cluster_that_failed_over_is_found_again_without_any_command_to_it(
    start_redis: StartRedis,
) -> None:
    first, second = start_replicated_cluster(start_redis, nodes=2)
    client: Any = connect(StoreConfig(url=f"redis+cluster://127.0.0.1:{first}"))
    ours, theirs = (
        next(tag for tag in TAGS if (server_of(client, tag) == first) is failing)
        for failing in (False, True)
    )
    store = RedisStore(client)
    store.segments.prepare([ours.removeprefix("seg:"), theirs.removeprefix("seg:")])
    with closing(store.event_feed()) as feed:
        feed.follow([ours, theirs])
        assert feed.wait(0) == set()
        with redis.Redis(port=first) as primary:
            primary.execute_command("WAIT", "1", "0")
            fail_over(primary, second)
        assert feed.wait(PATIENCE_S) == {theirs}
        until(lambda: goes_through(feed))
        store.segments.raise_high(ours.removeprefix("seg:"), Position(1, 1))
        assert feed.wait(PATIENCE_S) == {ours}
        with redis.Redis(port=second) as replica:
            replica.xadd(f"{{{theirs}}}:events", {"type": "new-data"})
        assert feed.wait(PATIENCE_S) == {theirs}


def server_of(client: Any, tag: str) -> int:
    """Return the port of the server that has a tag, as a cluster's client knows it."""
    port: int = client.get_node_from_key(f"{{{tag}}}:events").port
    return port


def goes_through(feed: RedisEventFeed) -> bool:
    """Tell whether events can be followed."""
    with suppress(StoreUnavailableError):
        feed.wait(0)
        return True
    return False


def answers(store: RedisStore) -> bool:
    """Tell whether the store can be read."""
    with suppress(StoreUnavailableError):
        store.segments.gates([SEGMENT])
        return True
    return False
