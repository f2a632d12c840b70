"""Scalable topics of Pulsar 5 as they are read, against a broker in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulsar_txn_spark.backends.pulsar.scalable_topic_log import ScalableTopicLog
from pulsar_txn_spark.backends.pulsar.wire.client import CLIENTS
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.errors import (
    DataLossError,
    OptionError,
    SegmentLogUnavailableError,
    TopicNotFoundError,
    TransactionDomainError,
)
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.reading_order import ReadingOrder
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import SegmentState
from tests.support.fake_pulsar import LEDGER, FakePulsar
from tests.support.scalable_world import TOPIC, segment
from tests.support.scalable_world import ScalableTopicWorld as World


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World(monkeypatch)
    yield world
    world.close()


def test_segments_are_named_as_pulsar_does_and_by_the_time_of_their_creation(world: World) -> None:
    world.split()
    parent, first, second = world.log.layout(TOPIC).segments

    assert parent.ref.log_name == "segment://public/default/t/0000-ffff-0"
    assert parent.descriptor == "0000-ffff-0@1000"
    assert parent.ref.topic == str(TOPIC) == "scalable://public/default/t"
    assert (first.parents, second.parents) == ((parent.ref.id,), (parent.ref.id,))
    assert parent.children == (first.ref.id, second.ref.id)
    assert (second.hash_start, second.hash_end) == (32_768, 65_535)


def test_only_what_was_delivered_counts_as_readable(world: World) -> None:
    ref = world.ref()
    assert world.log.last_confirmed(ref) == EARLIEST
    world.write(ref, "a", "b")
    assert world.log.last_confirmed(ref) == Position(LEDGER, 1)
    txn = world.coordinators.begin("x", 1000)
    world.write(ref, "c", txn=txn)
    world.write(ref, "d")
    assert world.log.last_confirmed(ref) == Position(LEDGER, 1)
    assert world.read(ref) == ["a", "b"]
    world.coordinators.end(txn, commit=True)
    assert world.log.last_confirmed(ref) == Position(LEDGER, 3)
    assert world.read(ref) == ["a", "b", "c", "d"]


def test_a_new_log_finds_what_lies_before_an_open_transaction(world: World) -> None:
    ref = world.ref()
    world.write(ref, *map(str, range(20)))
    txn = world.coordinators.begin("x", 1000)
    world.write(ref, "open", txn=txn)
    found = EARLIEST
    for _ in range(5):  # each goes on where the one before it has stopped
        found = world.log.last_confirmed(ref)
    assert found == Position(LEDGER, 19)


def test_an_aborted_row_at_the_end_holds_nobody_back(world: World) -> None:
    ref = world.ref()
    world.write(ref, "a")
    txn = world.coordinators.begin("x", 1000)
    world.write(ref, "b", txn=txn)
    world.coordinators.end(txn, commit=False)
    assert world.read(ref) == ["a"]
    world.write(ref, "c")
    assert world.read(ref) == ["a", "c"]


def test_children_are_released_when_nothing_is_open_in_the_parent(world: World) -> None:
    ref = world.ref()
    world.write(ref, "a")
    txn = world.coordinators.begin("x", 1000)
    world.write(ref, "b", txn=txn)
    world.split()
    topology = world.log.topology(TOPIC)
    parent = topology.segments[0]
    assert (parent.state, parent.sealed_at) == (SegmentState.SEALED, None)
    read = {parent.descriptor: world.log.last_confirmed(ref)}
    assert ReadingOrder.of(topology, read).released == {parent.descriptor}
    world.coordinators.end(txn, commit=True)
    topology = world.log.topology(TOPIC)
    parent, *children = topology.segments
    assert parent.sealed_at == Position(LEDGER, 1)
    assert ReadingOrder.of(topology, read).released == {parent.descriptor}
    read = {parent.descriptor: parent.sealed_at}
    assert ReadingOrder.of(topology, read).released == {child.descriptor for child in children}


@pytest.mark.parametrize("visible", [0, 1])
def test_a_sealed_segment_ends_although_its_last_rows_were_aborted(
    world: World, visible: int
) -> None:
    ref = world.ref()
    world.write(ref, *["a"][:visible])
    txn = world.coordinators.begin("x", 1000)
    world.write(ref, "b", "c", txn=txn)
    world.split()
    world.coordinators.end(txn, commit=False)
    parent = world.log.topology(TOPIC).segments[0]
    assert parent.sealed_at == (Position(LEDGER, 0) if visible else EARLIEST)
    assert world.read(ref, end=parent.sealed_at) == ["a"][:visible]
    assert world.read(ref, end=Position(LEDGER, 2)) == ["a"][:visible], "the broker says it ends"


def test_a_segment_that_is_called_sealed_and_is_not_yet_has_no_end(world: World) -> None:
    ref = world.ref()
    world.write(ref, "a")
    world.split()
    world.broker.topic(ref.log_name).terminated = False
    assert world.log.topology(TOPIC).segments[0].sealed_at is None


def test_limits_cut_by_entries_and_always_get_on(world: World) -> None:
    ref = world.ref()
    world.write(ref, *"abcdef")
    end = world.log.last_confirmed(ref)
    assert world.log.limit(ref, EARLIEST, end, None, None) == end
    assert world.log.limit(ref, EARLIEST, end, 2, None) == Position(LEDGER, 1)
    assert world.log.limit(ref, Position(LEDGER, 1), end, 2, None) == Position(LEDGER, 3)
    assert world.log.limit(ref, EARLIEST, end, None, 1) == Position(LEDGER, 0)
    assert world.log.limit(ref, EARLIEST, end, 100, None) == end
    size = world.log.measure(ref, Position(LEDGER, 1), end)
    assert (size.entries, size.messages, size.exact) == (4, 4, False)
    assert world.log.measure(ref, end, end).entries == 0
    assert world.log.split(ref, EARLIEST, end, 3) == [
        Position(LEDGER, 1),
        Position(LEDGER, 3),
        end,
    ]
    assert world.log.split(ref, EARLIEST, end, 100)[-1] == end


def test_what_an_earlier_ledger_had_may_be_gone_and_is_not_skipped(world: World) -> None:
    ref = world.ref()
    world.write(ref, "a")
    end = world.log.last_confirmed(ref)
    assert world.log.trimmed_to(ref) == Position(LEDGER, -1)
    with pytest.raises(DataLossError, match="may be gone"):
        world.read(ref, Position(LEDGER - 1, 5), end)
    assert world.read(ref, EARLIEST, end) == ["a"], "from the beginning means whatever there is"


def test_a_row_that_is_due_and_does_not_come_is_an_error(world: World) -> None:
    ref = world.ref()
    world.write(ref, "a")
    with pytest.raises(SegmentLogUnavailableError, match="shows nothing behind 7:0"):
        world.read(ref, end=Position(LEDGER, 1))


def test_a_topic_that_is_not_there_or_not_scalable_is_refused(world: World) -> None:
    other = TopicName.of_any_domain("scalable://public/default/other")
    with pytest.raises(TopicNotFoundError, match="no scalable topic topic://public/default/other"):
        world.log.topology(other)
    legacy = segment(0, 0, 65_535)
    legacy.legacy_topic_name = "persistent://public/default/t"
    world.become(legacy)
    with pytest.raises(TransactionDomainError, match="ordinary topic"):
        world.log.topology(TOPIC)


def test_brokers_before_pulsar_5_are_named_as_the_reason(world: World) -> None:
    older = FakePulsar()
    log = ScalableTopicLog(PulsarConfig(older.url, "http://127.0.0.1:1"))
    try:
        with pytest.raises(OptionError, match="brokers of Pulsar 5"):
            log.topology(TOPIC)
    finally:
        log.close()
        CLIENTS.close_idle()
        older.close()
    with pytest.raises(OptionError, match="need the transport 'wire'"):
        ScalableTopicLog(PulsarConfig(world.broker.url, "http://x", transport="client"))


@pytest.mark.parametrize("change", ["create", "adopt", "delete", "seal", "appended"])
def test_nothing_but_a_native_sink_changes_such_a_topic(world: World, change: str) -> None:
    with pytest.raises(TransactionDomainError):
        getattr(world.log, change)(world.ref())
    with pytest.raises(TransactionDomainError):
        world.log.trim(world.ref(), EARLIEST)
    with pytest.raises(TransactionDomainError):
        world.log.writer(world.ref(), "w")
    with pytest.raises(TransactionDomainError):
        world.log.published_before(world.ref(), 0)
