"""What brokers keep of acknowledgements in Pulsar's subscriptions: the scripts that they run."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_txn_spark.store.records import Code
from pulsar_txn_spark.store.redis import scripts
from tests.support.scenario import SEGMENT, World

NAME = "a:b{c}"  # Pulsar lets a subscription be named like this
OWNER = f"broker-acks-owner:{NAME}"
RECORDS = f"broker-acks:{NAME}"
TAG = f"seg:{SEGMENT}"


def run(world: World, name: str, keys: list[str], *args: scripts.Arg) -> list[Any]:
    """Run a script; return its code and what comes behind it."""
    reply = world.store.scripts.run(scripts.Call(f"broker_acks_{name}", TAG, keys, list(args)))
    return [scripts.text(one) if isinstance(one, bytes) else one for one in reply[1:]]


def noted(world: World, cursor: str) -> list[Any]:
    return run(world, "note", [OWNER, "broker-subscriptions"], NAME, cursor)


def opened(world: World, cursor: str = "cursor") -> list[Any]:
    return run(world, "open", [OWNER, RECORDS], cursor)


def write(world: World, owner: int, step: int, *args: scripts.Arg) -> list[Any]:
    return run(world, "write", [OWNER, RECORDS], owner, step, *args)


def read(world: World, owner: int) -> list[Any]:
    code, *rest = run(world, "read", [OWNER, RECORDS], owner, "0", 100)
    return [code, *rest[1:]]


@pytest.fixture
def subscription(world: World) -> World:
    assert noted(world, "cursor") == [Code.OK]
    assert opened(world) == [Code.OK, "1"]
    return world


def test_an_owner_writes_and_removes_records(subscription: World) -> None:
    assert write(subscription, 1, 1, 2, "5:1:1", "x", "5:1:2", "y") == [Code.OK]
    assert write(subscription, 1, 2, 1, "5:1", "COMMITTED", "5:1:1") == [Code.OK]
    code, found = read(subscription, 1)
    assert code == Code.OK
    assert set(zip(found[::2], found[1::2], strict=True)) == {
        (b"5:1:2", b"y"),
        (b"5:1", b"COMMITTED"),
    }


def test_a_step_is_taken_once_and_none_is_left_out(subscription: World) -> None:
    write(subscription, 1, 1, 1, "5:1:1", "x")
    assert write(subscription, 1, 2, 0, "5:1:1") == [Code.OK]
    assert write(subscription, 1, 2, 0, "5:1:1") == [Code.ALREADY]
    assert write(subscription, 1, 1, 1, "5:1:1", "x") == ["GAP", "2"]
    assert write(subscription, 1, 4, 1, "5:1:1", "x") == ["GAP", "2"]
    assert read(subscription, 1) == [Code.OK, []]


def test_whoever_opened_it_before_is_fenced(subscription: World) -> None:
    write(subscription, 1, 1, 1, "5:1:1", "x")
    assert opened(subscription) == [Code.OK, "2"]
    assert write(subscription, 1, 2, 0, "5:1:1") == [Code.FENCED]
    assert write(subscription, 1, 1, 1, "5:1:1", "x") == [Code.FENCED]
    assert read(subscription, 1) == [Code.FENCED]
    assert read(subscription, 2) == [Code.OK, [b"5:1:1", b"x"]]
    assert write(subscription, 2, 1, 0, "5:1:1") == [Code.OK]


def test_a_cursor_that_is_known_has_to_be_there(subscription: World) -> None:
    write(subscription, 1, 1, 1, "5:1:1", "x")
    assert opened(subscription, "another") == ["LOST", "cursor"]
    assert read(subscription, 1) == [Code.OK, [b"5:1:1", b"x"]]
    assert noted(subscription, "another") == [Code.OK]
    assert opened(subscription, "another") == [Code.OK, "2"]
    assert read(subscription, 2) == [Code.OK, []]
    assert opened(subscription) == ["LOST", "another"]
    subscription.client.delete(f"{{{TAG}}}:{OWNER}")
    assert opened(subscription, "another") == ["LOST", ""]


def test_an_id_that_is_only_noted_takes_nothing_from_the_owner(subscription: World) -> None:
    write(subscription, 1, 1, 1, "5:1:1", "x")
    assert noted(subscription, "another") == [Code.OK]
    assert noted(subscription, "another") == [Code.ALREADY]
    assert write(subscription, 1, 2, 1, "5:1:2", "y") == [Code.OK]
    assert opened(subscription) == [Code.OK, "2"]
    assert read(subscription, 2) == [Code.OK, [b"5:1:1", b"x", b"5:1:2", b"y"]]


def test_a_late_request_brings_no_earlier_cursor_back(subscription: World) -> None:
    for cursor in ("earlier", "newest", "later"):
        assert noted(subscription, cursor) == [Code.OK]
    assert opened(subscription, "newest") == [Code.OK, "2"]
    write(subscription, 2, 1, 1, "5:1:1", "x")
    assert noted(subscription, "newest") == [Code.ALREADY]
    assert opened(subscription, "earlier") == ["LOST", "newest"]
    assert read(subscription, 2) == [Code.OK, [b"5:1:1", b"x"]]
    assert opened(subscription, "later") == [Code.OK, "3"]  # a cursor may have this id by now


def test_nothing_of_it_is_left_of_a_deleted_segment(subscription: World) -> None:
    write(subscription, 1, 1, 1, "5:1:1", "x")
    segments = subscription.store.segments
    assert segments.purge(SEGMENT).code is Code.OPEN
    subscription.client.hset(f"{{{TAG}}}:birth", "retired", "plain")
    assert write(subscription, 1, 2, 0, "5:1:1") == ["RETIRED"]
    assert opened(subscription) == ["RETIRED"]
    assert noted(subscription, "another") == ["RETIRED"]
    assert segments.purge(SEGMENT).code is Code.OK
    assert subscription.client.keys(f"{{{TAG}}}:broker-*") == []
    assert segments.purge(SEGMENT).code is Code.ALREADY
