"""PIP-373: a segment that no transaction ever wrote to costs its readers nothing."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest
import redis

import pulsar_txn_spark
from pulsar_txn_spark.backends.pulsar.known_topics import KnownTopic
from pulsar_txn_spark.backends.pulsar.log import PulsarSegmentLog
from pulsar_txn_spark.engine.components import Components, open_components
from pulsar_txn_spark.errors import (
    NotAllowedError,
    SegmentLogError,
    SegmentLogUnavailableError,
    TopicNotFoundError,
)
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.log import CONTAINS_TXN, TRANSACTIONAL_WRITER, SegmentRef
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.store.records import TxnId
from pulsar_txn_spark.txn.transaction_buffer import writer_name
from tests.support.scenario import OTHER_SEGMENT, SEGMENT, TIMEOUT_MS, World

TOPIC = "topic://public/default/t"


@pytest.fixture
def options(redis_path: str, redis_client: redis.Redis) -> dict[str, str]:
    return {"store.path": redis_path}


@pytest.fixture
def run(options: dict[str, str]) -> Components:
    return open_components(Options(options, Use.CONNECT))


def contains(world: World, segment: str) -> bool:
    return world.store.segments.gates([segment])[0].contains_txn


def test_the_mark_is_there_before_the_first_transactional_entry(world: World) -> None:
    world.store.segments.raise_high(SEGMENT, Position(1, 1))
    assert not contains(world, SEGMENT), "a write outside of transactions is none"
    world.admit(world.open())
    assert contains(world, SEGMENT)
    assert not contains(world, OTHER_SEGMENT)


def test_the_mark_stays_when_the_transaction_aborts(world: World) -> None:
    world.write(txn := world.open(), "a")
    world.abort(txn)
    assert contains(world, SEGMENT)


def test_a_reader_of_a_segment_without_the_mark_fetches_no_transaction_state(world: World) -> None:
    def calls() -> dict[str, int]:
        stats = world.client.info("commandstats")
        return {
            name: stats.get(f"cmdstat_{name}", {}).get("calls", 0)
            for name in ("hexists", "hgetall", "zrange")
        }

    segments = [f"{SEGMENT}{i}" for i in range(5)]
    world.store.segments.gates(segments)
    before = calls()
    assert all(
        gate.pins == () and gate.dropped == {} for gate in world.store.segments.gates(segments)
    )
    assert {name: n - before[name] for name, n in calls().items()} == {
        "hexists": 5,
        "hgetall": 0,
        "zrange": 0,
    }


def test_users_read_the_property_and_may_not_change_it(
    options: dict[str, str], run: Components
) -> None:
    admin = pulsar_txn_spark.Admin(options)
    topology = admin.create_topic(TOPIC, segments=2)
    assert admin.topic_properties(TOPIC) == {CONTAINS_TXN: "false"}
    for forbidden in (
        lambda: admin.set_topic_property(TOPIC, CONTAINS_TXN, "true"),
        lambda: admin.remove_topic_property(TOPIC, CONTAINS_TXN),
    ):
        with pytest.raises(NotAllowedError, match=CONTAINS_TXN):
            forbidden()
    assert admin.topic_properties(TOPIC) == {CONTAINS_TXN: "false"}
    txn = run.coordinator.new_txn("nonce")
    run.buffer.admit(txn, "nonce", TIMEOUT_MS, "w", [topology.segments[1].ref.id])
    assert admin.topic_properties(TOPIC) == {CONTAINS_TXN: "true"}


def test_users_have_properties_of_their_own_which_go_with_the_topic(
    options: dict[str, str], run: Components
) -> None:
    admin = pulsar_txn_spark.Admin(options)
    with pytest.raises(TopicNotFoundError):
        admin.set_topic_property(TOPIC, "team", "a")
    admin.create_topic(TOPIC)
    admin.set_topic_property(TOPIC, "team", "a")
    admin.set_topic_property(TOPIC, "team", "b")
    assert admin.topic_properties(TOPIC)["team"] == "b"
    assert run.topics.find(TopicName.parse(TOPIC)) is not None
    admin.delete_topic(TOPIC)
    admin.create_topic(TOPIC)
    assert "team" not in admin.topic_properties(TOPIC)
    admin.set_topic_property(TOPIC, "team", "c")
    assert admin.remove_topic_property(TOPIC, "team")
    assert not admin.remove_topic_property(TOPIC, "team")


def test_a_log_tells_a_transactions_writer_by_its_name() -> None:
    assert writer_name(TxnId(1, 2), 3, "r").startswith(TRANSACTIONAL_WRITER)


class FakeAdmin:
    def __init__(self, refusal: SegmentLogError | None = None) -> None:
        self.sets: list[tuple[str, Mapping[str, str]]] = []
        self._refusal = refusal

    def set_properties(self, topic: str, properties: Mapping[str, str]) -> None:
        self.sets.append((topic, properties))
        if self._refusal is not None:
            raise self._refusal


@pytest.mark.parametrize(
    "refusal",
    [
        SegmentLogError("cannot set properties: the broker answers 405 (not allowed)"),
        SegmentLogUnavailableError("the admin API refuses us (403)"),
        SegmentLogUnavailableError("the broker answers 500"),
    ],
    ids=str,
)
def test_a_broker_that_keeps_the_property_to_itself_stops_no_write(
    refusal: SegmentLogError, caplog: pytest.LogCaptureFixture
) -> None:
    log = PulsarSegmentLog.__new__(PulsarSegmentLog)
    admin = FakeAdmin(refusal)
    segment = SegmentRef("id", TOPIC, "persistent://public/default/x")
    log._admin = admin  # type: ignore[assignment]
    known = KnownTopic(0.0, None, gated=False, contains_txn="")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            log._mark_contains_txn(segment, known)
    assert len(admin.sets) == 1, "it is asked once"
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "found,sets,warnings",
    [("", 1, 0), ("false", 1, 0), ("true", 0, 0), ("TRUE", 0, 0), ("a user's", 0, 1)],
)
def test_the_topics_property_is_set_once_and_a_users_stays_unchanged(
    found: str, sets: int, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    log = PulsarSegmentLog.__new__(PulsarSegmentLog)
    admin = FakeAdmin()
    log._admin = admin  # type: ignore[assignment]
    segment = SegmentRef("id", TOPIC, "persistent://public/default/x")
    known = KnownTopic(0.0, None, gated=False, contains_txn=found)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            log._mark_contains_txn(segment, known)
    assert admin.sets == [(segment.log_name, {CONTAINS_TXN: "true"})] * sets
    assert len(caplog.records) == warnings
