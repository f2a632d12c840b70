"""Headers of entries over the wire: what the broker passes over is hidden, or lost (INV-11)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from pulsar_txn_spark.backends.pulsar.admin_api import EntryHeader
from pulsar_txn_spark.backends.pulsar.entry_headers import EntryHeaders, _header_of
from pulsar_txn_spark.backends.pulsar.pulsar_pb2 import MessageMetadata
from pulsar_txn_spark.backends.pulsar.wire.client import CLIENTS
from pulsar_txn_spark.backends.pulsar.wire.producer import WireSegmentWriter, WireWriterSettings
from pulsar_txn_spark.backends.pulsar.wire.reader import WireEntry
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.errors import SegmentLogUnavailableError
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.log import SegmentRef
from tests.support.fake_pulsar import LEDGER, FakePulsar

TOPIC = "persistent://public/default/t"
SEGMENT = SegmentRef(TOPIC, TOPIC, TOPIC)
PASSED_OVER = Position(LEDGER, 2)
LOST = EntryHeader(hidden=False, message="", chunk=0, chunks=1, there=False)
HIDDEN = EntryHeader(hidden=True, message="", chunk=0, chunks=1)


class Admin:
    """The admin API, which has left one request without an answer."""

    def __init__(self) -> None:
        self.answers: dict[Position, EntryHeader] = {}
        self.asked = 0
        self.now = 0.0  # by the clock of who asks

    def entry_header(self, _topic: str, position: Position) -> EntryHeader:
        self.asked += 1
        if position not in self.answers:
            raise SegmentLogUnavailableError("no answer in 2 s")
        return self.answers[position]


@pytest.fixture
def admin() -> Admin:
    return Admin()


@pytest.fixture
def headers(broker: FakePulsar, admin: Admin) -> Iterator[EntryHeaders]:
    """Give headers of a topic of four entries, which are read over the wire; one never comes."""
    config = PulsarConfig(broker.url, "http://127.0.0.1:1")
    client = CLIENTS.acquire(config)
    writer = WireSegmentWriter(
        SEGMENT, "w", client, WireWriterSettings(), before_report=lambda _: None
    )
    for number in range(4):
        writer.append(pa.record_batch({"value": pa.array([b"%d" % number], pa.binary())}))
        writer.flush()
    writer.close()
    broker.coordinator.known.add((0, 1))  # aborted: readers do not get its entries
    broker.topic(TOPIC).txns[PASSED_OVER.entry] = (0, 1)
    fake: Any = admin
    found = EntryHeaders(config, fake, lambda: admin.now)
    assert found.entry_header(TOPIC, Position(LEDGER, 0)).there
    yield found
    CLIENTS.release(config)


@pytest.mark.parametrize("answer", [LOST, HIDDEN], ids=["lost", "hidden"])
def test_an_entry_that_the_wire_passes_over_is_what_the_admin_api_says(
    headers: EntryHeaders, admin: Admin, answer: EntryHeader
) -> None:
    admin.answers[PASSED_OVER] = answer
    assert headers.entry_header(TOPIC, PASSED_OVER) == answer


def test_an_entry_that_the_wire_passes_over_and_nobody_tells_of_is_not_taken_for_hidden(
    headers: EntryHeaders,
) -> None:
    with pytest.raises(SegmentLogUnavailableError, match="no answer"):
        headers.entry_header(TOPIC, PASSED_OVER)


def test_an_entry_that_comes_over_the_wire_needs_no_admin_api(headers: EntryHeaders) -> None:
    assert headers.entry_header(TOPIC, Position(LEDGER, 3)).producer == "w"


@pytest.mark.parametrize(
    "fields, empty",
    [
        ({"compression": 2, "uncompressed_size": 0}, True),
        ({"compression": 2, "uncompressed_size": 1}, False),
        ({"compression": 2, "uncompressed_size": 0, "num_messages_in_batch": 1}, False),
        ({}, False),
    ],
)
def test_a_message_is_empty_that_is_compressed_to_no_bytes_outside_of_a_batch(
    fields: dict[str, int], empty: bool
) -> None:
    metadata = MessageMetadata(producer_name="w", sequence_id=0, publish_time=1, **fields)  # type: ignore[arg-type]
    assert _header_of(WireEntry(PASSED_OVER, metadata, b"")).empty is empty


def test_an_admin_api_that_left_one_request_unanswered_is_asked_again_some_minutes_later(
    headers: EntryHeaders, admin: Admin
) -> None:
    admin.answers[Position(LEDGER, 3)] = HIDDEN
    admin.now += 60.0
    assert headers.entry_header(TOPIC, Position(LEDGER, 3)).producer == "w"
    assert admin.asked == 1, "only for what it has not answered"
    admin.now += 600.0
    assert headers.entry_header(TOPIC, Position(LEDGER, 3)) == HIDDEN
    assert headers.entry_header(TOPIC, Position(LEDGER, 1)).producer == "w"
    assert admin.asked == 3
    assert headers.entry_header(TOPIC, Position(LEDGER, 3)).producer == "w"
    assert admin.asked == 3, "it has left another one unanswered"
