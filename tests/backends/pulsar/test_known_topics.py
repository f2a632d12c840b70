"""What the tasks of one process remember of a topic, and how long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa
import pytest

from pulsar_txn_spark.backends.pulsar.log import PulsarSegmentLog
from pulsar_txn_spark.backends.pulsar.pulsar_pb2 import BaseCommand
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.errors import SegmentNotFoundError
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.log import Receipt, SegmentRef
from tests.support.fake_admin_api import LEDGER, FakeAdminApi, fake_admin_api
from tests.support.fake_pulsar import FakePulsar

SEGMENT = SegmentRef("s1", "topic://public/default/t", "persistent://public/default/s1")
ROWS = pa.record_batch({"value": pa.array([b"row"], pa.binary())})


@pytest.fixture
def api() -> Iterator[FakeAdminApi]:
    with fake_admin_api() as api:
        api.create(SEGMENT)
        yield api


@contextmanager
def task(broker: FakePulsar, api: FakeAdminApi) -> Iterator[PulsarSegmentLog]:
    """Give the log of a task, which is closed at its end."""
    log = PulsarSegmentLog(PulsarConfig(broker.url, api.url, transport="wire"))
    try:
        yield log
    finally:
        log.close()


def write(log: PulsarSegmentLog) -> Receipt:
    writer = log.writer(SEGMENT, "w")
    try:
        writer.append(ROWS)
        return writer.flush()
    finally:
        writer.close()


def write_in_task(broker: FakePulsar, api: FakeAdminApi) -> int:
    """Write in a task of its own; return how often properties were asked for."""
    before = api.asked["properties"]
    with task(broker, api) as log:
        write(log)
    return api.asked["properties"] - before


def connected(broker: FakePulsar, api: FakeAdminApi) -> None:
    """Let tasks of this process have written: the first one asked before and behind its append."""
    assert [write_in_task(broker, api) for _ in range(3)] == [2, 0, 0]


def test_a_topic_s_properties_serve_the_next_tasks(broker: FakePulsar, api: FakeAdminApi) -> None:
    connected(broker, api)
    assert [write_in_task(broker, api) for _ in range(5)] == [0] * 5


def test_what_was_learned_ends_with_the_connection(broker: FakePulsar, api: FakeAdminApi) -> None:
    connected(broker, api)
    broker.peers[-1].cut()
    first, _, third = (write_in_task(broker, api) for _ in range(3))
    # Noticed before the task begins; or by its writer, whose receipt is of a ledger that is known.
    assert first in (0, 2)
    assert third == 0


def test_what_was_read_on_an_earlier_connection_serves_nobody_else(
    broker: FakePulsar, api: FakeAdminApi
) -> None:
    with task(broker, api) as log:
        write(log)
        write(log)
        broker.peers[-1].cut()
        write(log)  # by what it has read itself
        assert write_in_task(broker, api) == 2


def test_a_new_ledger_of_the_same_topic_is_asked_for_once(
    broker: FakePulsar, api: FakeAdminApi
) -> None:
    connected(broker, api)
    broker.ledger = LEDGER + 1
    assert [write_in_task(broker, api) for _ in range(3)] == [1, 0, 0]


@pytest.mark.parametrize("cut", [False, True], ids=["same connection", "cut"])
@pytest.mark.parametrize("properties", [None, {}, {"pulsar_txn_spark.segment": "another"}])
def test_no_log_that_has_written_before_reports_rows_in_a_topic_that_took_the_name(
    broker: FakePulsar, api: FakeAdminApi, properties: dict[str, str] | None, *, cut: bool
) -> None:
    with task(broker, api) as log:  # a worker of Spark has one for all of its tasks
        for _ in range(3):
            write(log)
        broker.ledger = LEDGER + 1
        api.properties["s1"] = properties
        if cut:
            broker.peers[-1].cut()
        with pytest.raises(SegmentNotFoundError, match=r"expected segment s1.*was deleted"):
            write(log)


@pytest.mark.parametrize("properties", [None, {}, {"pulsar_txn_spark.segment": "another"}])
def test_rows_in_a_topic_that_took_the_name_are_never_reported(
    broker: FakePulsar, api: FakeAdminApi, properties: dict[str, str] | None
) -> None:
    connected(broker, api)
    # Somebody deleted the topic; who connected to it by name had a new one created.
    broker.ledger = LEDGER + 1
    api.properties["s1"] = properties
    with task(broker, api) as log:
        writer = log.writer(SEGMENT, "w")
        writer.append(ROWS)
        with pytest.raises(SegmentNotFoundError, match=r"expected segment s1.*was deleted"):
            writer.flush()
        writer.close()
    with (
        task(broker, api) as log,
        pytest.raises(SegmentNotFoundError, match=r"expected segment s1.*was deleted"),
    ):
        log.writer(SEGMENT, "w")  # the next one does not even connect


def test_another_segment_of_the_same_topic_is_asked_for(
    broker: FakePulsar, api: FakeAdminApi
) -> None:
    connected(broker, api)
    other = replace(SEGMENT, id="s2")
    with task(broker, api) as log, pytest.raises(SegmentNotFoundError, match="the one there"):
        log.writer(other, "w")


def test_a_segment_s_deletion_is_remembered(broker: FakePulsar, api: FakeAdminApi) -> None:
    connected(broker, api)
    with task(broker, api) as log:
        log.writer(SEGMENT, "w").close()
        api.properties["s1"] = None
        log.delete(SEGMENT)
        with pytest.raises(SegmentNotFoundError):
            log.writer(SEGMENT, "w")


def test_a_range_without_a_hole_is_read_without_a_request(
    broker: FakePulsar, api: FakeAdminApi
) -> None:
    with task(broker, api) as log:
        for _ in range(3):
            write(log)
    api.calls()
    with task(broker, api) as log:
        batches = log.read(
            SEGMENT,
            Position(LEDGER, 0),
            Position(LEDGER, 2),
            visible=lambda _name, _position: True,
            columns=frozenset({"value"}),
            max_rows=10,
        )
        assert sum(batch.num_rows for batch in batches) == 2
    assert api.calls() == 0
    # That nobody creates a missing topic, by connecting to it, is left to the broker.
    (subscribe,) = (one.subscribe for one in broker.heard if one.type == BaseCommand.SUBSCRIBE)
    assert not subscribe.force_topic_creation
