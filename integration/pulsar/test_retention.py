"""Retention on a real Pulsar: the broker itself removes what nobody needs."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pyarrow as pa
import pytest

from integration.pulsar.test_log import PREFIX, log_of
from integration.support.admin_rest import AdminRest, path_of
from integration.support.spark import until
from pulsar_txn_spark.backends.pulsar.log import (
    INTERNAL_SUBSCRIPTION,
    TRIM_PROPERTY,
    PulsarSegmentLog,
)
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.engine.components import Components, open_components
from pulsar_txn_spark.errors import DataLossError, SegmentLogError, SegmentNotFoundError
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import Segment, SegmentState
from pulsar_txn_spark.testing.pulsar_server import Broker
from tests.contract.segment_log import Harness, numbered, positions, read_values, write
from tests.support.scenario import put_cursor

TIMEOUT_S = 60


@pytest.fixture
def harness(pulsar: Broker) -> Iterator[Harness]:
    config = PulsarConfig(pulsar.service_url, pulsar.admin_url)
    harness = Harness(PulsarSegmentLog(config), PREFIX, 5 * 1024 * 1024 + 1)
    yield harness
    harness.close()


def forget_names(api: AdminRest, segment: SegmentRef) -> None:
    """Switch deduplication off: its cursor holds data too, until its next snapshot in 2 minutes."""
    api("POST", f"{path_of(segment.log_name)}/deduplicationEnabled", False)


def write_ledgers(
    harness: Harness, api: AdminRest, segment: SegmentRef, count: int
) -> list[Position]:
    """Write two entries into each of so many ledgers, and return all of their positions."""
    for ledger in range(count):
        write(harness.log, segment, f"w{ledger}", *(numbered(n, n + 1) for n in (0, 1)))
        if ledger < count - 1:
            api.unload(segment.log_name)
    found = positions(harness.log, segment)
    assert len({position.ledger for position in found}) == count
    return found


def trimmed(harness: Harness, segment: SegmentRef, up_to: Position) -> Position:
    """Trim as sweeps do, until the broker has done its part."""
    deadline = time.monotonic() + TIMEOUT_S
    while (gone := harness.log.trim(segment, up_to)) < up_to:
        assert gone <= up_to
        assert time.monotonic() < deadline, gone
        time.sleep(0.2)  # the broker removes ledgers in the background, and tells nobody
    return gone


def test_the_broker_removes_the_ledgers_that_were_given_up_and_no_other(
    harness: Harness, api: AdminRest, pulsar: Broker
) -> None:
    segment, log = harness.segment(), harness.log
    entries = write_ledgers(harness, api, segment, 5)
    forget_names(api, segment)
    assert log.trim(segment, entries[0]) == EARLIEST, "a ledger goes whole"
    assert trimmed(harness, segment, entries[3]) == entries[3]

    ledgers = [
        one["ledgerId"]
        for one in api("GET", f"{path_of(segment.log_name)}/internalStats")["ledgers"]
    ]
    assert entries[0].ledger not in ledgers
    assert entries[4].ledger in ledgers
    # A reader that stands at the cut has lost nothing, whichever process it is in.
    fresh = log_of(pulsar)
    for reader in (log, fresh):
        assert reader.trimmed_to(segment) == entries[3]
        assert read_values(reader, segment, entries[3], entries[9]) == [b"0", b"1"] * 3
        with pytest.raises(DataLossError, match="deleted before it was read"):
            read_values(reader, segment, entries[2], entries[9])
    fresh.close()
    # The next trim goes on from there; the last ledger with data stays.
    assert trimmed(harness, segment, entries[5]) == entries[5]
    assert trimmed(harness, segment, entries[7]) == entries[7]
    assert log.trim(segment, entries[9]) == entries[7]
    assert read_values(log, segment, entries[7], entries[9]) == [b"0", b"1"]
    found = api("GET", f"{path_of(segment.log_name)}/properties")
    next_ledgers = {entries[6].ledger, entries[8].ledger}
    assert {name for name in found if name.startswith(TRIM_PROPERTY)} == {
        f"{TRIM_PROPERTY}.{segment.id}.{ledger}" for ledger in next_ledgers
    }


def test_nothing_counts_as_gone_before_the_broker_has_removed_it(
    harness: Harness, api: AdminRest
) -> None:
    # Dropped writers go with the data (INV-5): so a trim that was only begun is none.
    segment, log = harness.segment(), harness.log
    path = path_of(segment.log_name)
    entries = write_ledgers(harness, api, segment, 3)
    api("PUT", f"{path}/subscription/another", {"ledgerId": -1, "entryId": -1})  # holds all
    assert log.trim(segment, entries[3]) == EARLIEST
    assert log.trimmed_to(segment) == EARLIEST
    assert read_values(log, segment, EARLIEST, entries[5]) == [b"0", b"1"] * 3
    # The one that was begun is finished before another one begins.
    assert log.trim(segment, entries[1]) == EARLIEST
    forget_names(api, segment)
    api("DELETE", f"{path}/subscription/another")
    deadline = time.monotonic() + TIMEOUT_S
    while log.trim(segment, entries[1]) < entries[3]:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    internal = api("GET", f"{path}/internalStats")["cursors"][INTERNAL_SUBSCRIPTION]
    # The broker names the same place in two ways: an entry, or the start of the next ledger.
    assert entries[3] <= Position.parse(internal["markDeletePosition"]) < entries[4]


def settle_policies(api: AdminRest, path: str) -> None:
    """Wait until the policies that were set before hold: they come in the order of changes."""
    marked = int(time.time())
    api("POST", f"{path}/maxConsumers", marked)
    until(lambda: api("GET", f"{path}/maxConsumers?applied=true") == marked)


def test_no_ledger_goes_where_the_subscription_that_keeps_them_was_deleted(
    harness: Harness, api: AdminRest
) -> None:
    segment, log = harness.segment(), harness.log
    path = path_of(segment.log_name)
    entries = write_ledgers(harness, api, segment, 3)
    forget_names(api, segment)
    api("DELETE", f"{path}/subscription/{INTERNAL_SUBSCRIPTION}")
    with pytest.raises(SegmentLogError, match="was deleted, or has expired"):
        log.trim(segment, entries[1])
    settle_policies(api, path)
    api("POST", f"{path}/trim")
    assert read_values(log, segment, EARLIEST, entries[5]) == [b"0", b"1"] * 3
    # A sweep creates it again, and the next one trims no further than it may.
    with pytest.raises(SegmentLogError, match="It was created again"):
        log.protect_each([segment])
    log.protect_each([segment])
    assert trimmed(harness, segment, entries[1]) == entries[1]
    assert read_values(log, segment, entries[1], entries[5]) == [b"0", b"1"] * 2
    # From here on the subscription alone keeps them: once it is gone, the broker does again.
    api("DELETE", f"{path}/subscription/{INTERNAL_SUBSCRIPTION}")
    with pytest.raises(SegmentLogError, match="It was created again"):
        log.protect_each([segment])
    settle_policies(api, path)
    assert api("GET", f"{path}/retention?applied=true")["retentionTimeInMinutes"] == -1


@pytest.fixture
def run(pulsar: Broker, embedded: dict[str, str]) -> Components:
    options = {**embedded, "service.url": pulsar.service_url, "admin.url": pulsar.admin_url}
    return open_components(Options(options, Use.CONNECT))


def test_a_segment_that_a_subscription_of_pulsars_own_has_not_read_is_kept(
    run: Components, api: AdminRest
) -> None:
    topic = TopicName.parse(f"kept-{uuid.uuid4().hex[:8]}")
    run.topics.create(topic, 1)
    ref = run.topics.require(topic).segment("0").ref
    writer = run.log.writer(ref, "plain")
    writer.append(pa.record_batch([pa.array([b"old", b"older"])], names=["value"]))
    writer.flush()
    writer.close()
    api("PUT", f"{path_of(ref.log_name)}/subscription/billing", {"ledgerId": -1, "entryId": -1})
    run.topics.changes.split(topic, "0")
    run.store.topics.change_property(
        str(topic), "__retention", '{"time_ms": 0, "size_bytes": null}'
    )
    assert run.log.backlogs_of_others(ref) == ["billing"]
    assert run.sweeper(0).sweep().segments_deleted == 0
    api("POST", f"{path_of(ref.log_name)}/subscription/billing/skip_all")
    assert run.log.backlogs_of_others(ref) == []
    assert run.sweeper(0).sweep().segments_deleted == 1
    run.topics.delete(topic)


def test_a_drained_segment_is_deleted_on_the_broker_and_its_children_are_not(
    run: Components, api: AdminRest
) -> None:
    topic = TopicName.parse(f"kept-{uuid.uuid4().hex[:8]}")
    run.topics.create(topic, 1)

    def segment(number: int) -> Segment:
        return run.topics.require(topic).segment(str(number))

    def append(number: int, value: bytes) -> None:
        writer = run.log.writer(segment(number).ref, "plain")
        writer.append(pa.record_batch([pa.array([value])], names=["value"]))
        writer.flush()
        writer.close()

    append(0, b"old")
    run.topics.changes.split(topic, "0")
    append(1, b"young")
    end = segment(0).sealed_at
    assert end is not None
    run.store.subscriptions.claim_cursor(segment(0).ref.id, "sub", "q", 1, EARLIEST)
    run.store.topics.change_property(
        str(topic), "__retention", '{"time_ms": 0, "size_bytes": null}'
    )
    assert run.sweeper(0).sweep().segments_deleted == 0, "the subscription has not read it"
    put_cursor(run.store, segment(0).ref.id, "sub", end)
    run.store.subscriptions.delete_cursor(segment(0).ref.id, "sub")
    run.store.subscriptions.claim_cursor(segment(0).ref.id, "sub", "q", 1, end)
    report = run.sweeper(0).sweep()
    assert report.segments_deleted == 1
    assert [why for why in report.stuck if str(topic) in why] == []
    assert segment(0).state is SegmentState.DELETED
    with pytest.raises(SegmentNotFoundError):
        run.log.last_confirmed(segment(0).ref)
    names = api("GET", "persistent/public/default")
    assert segment(0).ref.log_name not in names
    assert run.store.subscriptions.names(segment(1).ref.id) == ["sub"]
    last = run.log.last_confirmed(segment(1).ref)
    assert read_values(run.log, segment(1).ref, EARLIEST, last) == [b"young"]
    run.topics.delete(topic)
