"""The writer of the Pulsar backend against a client that misbehaves on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest

from pulsar_txn_spark.backends.pulsar.library.writer import PulsarSegmentWriter, WriterSettings
from pulsar_txn_spark.config import PulsarConfig, as_pairs
from pulsar_txn_spark.errors import (
    MessageTooLargeError,
    SchemaError,
    SegmentLogError,
    SegmentLogUnavailableError,
    SegmentSealedError,
    UnverifiedReceiptError,
)
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.log import ROW_SCHEMA, Receipt, SegmentRef

SEGMENT = SegmentRef("s1", "topic://public/default/t", "persistent://public/default/s1")


@dataclass
class Result:
    name: str


@dataclass
class Id:
    ledger: int
    entry: int
    index: int

    def ledger_id(self) -> int:
        return self.ledger

    def entry_id(self) -> int:
        return self.entry

    def batch_index(self) -> int:
        return self.index


Acknowledge = Callable[[int, int], tuple[str, Id] | None]
"""Entry number and its rows -> what the client tells its last row, None = nothing, ever."""


def faithfully(entry: int, rows: int) -> tuple[str, Id] | None:
    return "Ok", Id(7, entry, rows - 1)


@dataclass
class Client:
    """Behaves as pulsar-client does, except where told otherwise."""

    acknowledge: Acknowledge = faithfully
    refusals: int = 0  # how often a flush is refused, as while the client reconnects
    entries: list[int] = field(default_factory=list)
    rows: int = 0
    waiting: list[Callable[[Any, Any], None]] = field(default_factory=list)
    closed: bool = False

    @property
    def _producer(self) -> Client:
        return self

    def send_async(self, _message: Any, callback: Callable[[Any, Any], None] | None) -> None:
        self.rows += 1
        if callback is not None:
            self.waiting.append(callback)

    def flush_async(self, done: Callable[[Any], None]) -> None:
        if self.refusals:
            self.refusals -= 1
            done(Result("AlreadyClosed"))
            return
        rows, self.rows = self.rows, 0
        callbacks, self.waiting = self.waiting, []
        self.entries.append(rows)
        told = self.acknowledge(len(self.entries) - 1, rows)
        if told is not None:
            for callback in callbacks:
                callback(Result(told[0]), told[1])
            done(Result(told[0]))

    def close(self) -> None:
        self.closed = True


def writer_on(client: Client, max_message_bytes: int = 1234, **options: str) -> PulsarSegmentWriter:
    config = PulsarConfig("pulsar://x", "http://x", producer=as_pairs(options))
    return PulsarSegmentWriter(
        SEGMENT,
        client,
        WriterSettings.of(config),
        before_report=lambda _last: None,
        max_message_bytes=lambda: max_message_bytes,
    )


def rows(count: int, size: int = 10) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([b"x" * size] * count, pa.binary())})


def put_through(writer: PulsarSegmentWriter, batch: pa.RecordBatch) -> Receipt:
    writer.append(batch)
    return writer.flush()


def test_a_flush_sums_the_receipts_up_and_starts_anew() -> None:
    client = Client()
    writer = writer_on(client, batchingMaxMessages="4")
    writer.append(rows(10))
    assert client.entries == [4, 4]  # the rest waits for more
    assert writer.flush() == Receipt(Position(7, 0), Position(7, 2), 3, 10, 100)
    assert client.entries == [4, 4, 2]
    assert writer.flush() == Receipt(None, None, 0, 0, 0)
    for _ in range(5):
        writer.append(rows(1))
    assert writer.flush() == Receipt(Position(7, 3), Position(7, 4), 2, 5, 50)
    writer.close()
    assert client.closed


def test_entries_hold_about_the_bytes_asked_for_and_a_large_row_stands_alone() -> None:
    client = Client()
    writer = writer_on(client, batchingMaxBytes="1000")
    sizes = [100] * 14 + [5000] + [100] * 3
    values = pa.array([b"x" * size for size in sizes], pa.binary())
    writer.append(pa.record_batch({"value": values}))
    writer.flush()
    assert client.entries == [7, 7, 1, 3]


def test_an_entry_that_is_on_its_way_is_no_receipt() -> None:
    # High-position is raised to receipts. Above what is acknowledged, a pin would bound nothing.
    client = Client(acknowledge=lambda _entry, _rows: None)
    writer = writer_on(client, batchingMaxMessages="4")
    writer.append(rows(4))
    assert client.entries == [4]
    assert writer.acknowledged() == Receipt(None, None, 0, 0, 0)
    writer.close()


def test_a_deduplicated_row_is_not_acknowledged() -> None:
    writer = writer_on(Client(lambda _entry, rows: ("Ok", Id(-1, -1, rows - 1))))
    writer.append(rows(3))
    with pytest.raises(UnverifiedReceiptError, match="deduplicated"):
        writer.flush()


@pytest.mark.parametrize("index", [-1, 0, 1, 3])
def test_a_batch_that_did_not_go_whole_is_not_acknowledged(index: int) -> None:
    writer = writer_on(Client(lambda entry, _rows: ("Ok", Id(7, entry, index))))
    writer.append(rows(3))
    with pytest.raises(UnverifiedReceiptError, match="expected a batch of 3 rows"):
        writer.flush()


def test_a_single_row_may_come_back_without_a_batch_index() -> None:
    writer = writer_on(Client(lambda entry, _rows: ("Ok", Id(7, entry, -1))))
    writer.append(rows(1))
    assert writer.flush().messages == 1


def test_a_position_that_does_not_grow_is_not_believed() -> None:
    writer = writer_on(Client(lambda _entry, rows: ("Ok", Id(7, 5, rows - 1))))
    writer.append(rows(1))
    writer.flush()
    writer.append(rows(1))
    with pytest.raises(UnverifiedReceiptError, match="after 7:5"):
        writer.flush()


@pytest.mark.parametrize(
    "result, error",
    [
        ("TopicTerminated", SegmentSealedError),
        ("MessageTooBig", MessageTooLargeError),
        ("Timeout", SegmentLogUnavailableError),
        ("AuthorizationError", SegmentLogUnavailableError),
        ("UnknownError", SegmentLogError),
    ],
)
def test_a_failed_send_fails_the_writer_for_good(result: str, error: type[Exception]) -> None:
    def fail_second(entry: int, rows: int) -> tuple[str, Id] | None:
        return faithfully(entry, rows) if entry == 0 else (result, Id(-1, -1, -1))

    client = Client(fail_second)
    writer = writer_on(client, batchingMaxMessages="2")
    with pytest.raises(error):
        writer.append(rows(6))
    assert len(client.entries) == 2  # nothing was sent after the failure
    for _ in range(2):
        with pytest.raises(error):
            writer.flush()
        with pytest.raises(error):
            writer.append(rows(1))
    writer.close()


def test_the_error_of_a_message_that_is_too_large_names_its_size_and_the_limit() -> None:
    writer = writer_on(Client(lambda _entry, _rows: ("MessageTooBig", Id(-1, -1, 0))))
    writer.append(rows(1, 2000))
    with pytest.raises(MessageTooLargeError, match=r"2032 bytes .* 1234 bytes"):
        writer.flush()


def test_an_entry_that_a_default_bookie_would_not_store_is_refused_before_it_is_sent() -> None:
    limit = 5 * 1024 * 1024
    for size, taken in [(limit - 100, False), (limit - 1024, False), (limit - 1200, True)]:
        client = Client()
        writer = writer_on(client, max_message_bytes=limit)
        if taken:
            assert put_through(writer, rows(1, size)).messages == 1
            continue
        with pytest.raises(MessageTooLargeError, match=rf"{size + 32} bytes .* {limit} bytes"):
            put_through(writer, rows(1, size))
        assert client.entries == []
    # How small it gets is the client's matter.
    compressing = writer_on(Client(), max_message_bytes=limit, compressionType="LZ4")
    assert put_through(compressing, rows(1, 2 * limit)).messages == 1


def test_a_flush_refused_while_the_client_reconnects_is_repeated() -> None:
    client = Client(refusals=3)
    writer = writer_on(client)
    writer.append(rows(5))
    assert writer.flush().messages == 5
    assert client.entries == [5]


def test_a_client_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulsar_txn_spark.backends.pulsar.library.writer._GRACE_SECONDS", 0.0)
    writer = writer_on(Client(lambda _entry, _rows: None), sendTimeoutMs="50")
    writer.append(rows(1))
    with pytest.raises(SegmentLogUnavailableError, match=r"check service\.url"):
        writer.flush()


def test_what_is_in_flight_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulsar_txn_spark.backends.pulsar.library.writer._GRACE_SECONDS", 0.0)
    options = as_pairs({"sendTimeoutMs": "50", "batchingMaxMessages": "1"})
    config = PulsarConfig("pulsar://x", "http://x", producer=options)
    client = Client(lambda _entry, _rows: None)
    writer = PulsarSegmentWriter(
        SEGMENT,
        client,
        replace(WriterSettings.of(config), in_flight_bytes=1000),
        before_report=lambda _last: None,
        max_message_bytes=lambda: 1234,
    )
    with pytest.raises(SegmentLogUnavailableError):
        writer.append(rows(100, 168))
    assert len(client.entries) == 5  # 200 bytes each


def test_nothing_is_reported_if_the_step_before_the_report_fails() -> None:
    def fail(_last: Position) -> None:
        raise SegmentLogUnavailableError("the origin could not be noted")

    client = Client()
    config = PulsarConfig("pulsar://x", "http://x")
    writer = PulsarSegmentWriter(
        SEGMENT, client, WriterSettings.of(config), before_report=fail, max_message_bytes=int
    )
    writer.append(rows(1))
    for _ in range(2):
        with pytest.raises(SegmentLogUnavailableError, match="origin"):
            writer.flush()


def test_a_closed_writer_takes_nothing() -> None:
    writer = writer_on(Client())
    writer.close()
    writer.close()
    with pytest.raises(SegmentLogError, match="closed"):
        writer.append(rows(1))


@pytest.mark.parametrize(
    "column, value, message",
    [
        ("key", b"", "empty key"),
        ("key", b"\xff", "not valid UTF-8"),
        ("event_time_ms", -1, "event time"),
    ],
)
def test_what_pulsar_client_cannot_carry_is_refused(column: str, value: Any, message: str) -> None:
    kind = ROW_SCHEMA.field(column).type
    batch = pa.record_batch(
        {"value": pa.array([b"v", b"v"]), column: pa.array([None, value], kind)}
    )
    client = Client()
    writer = writer_on(client)
    writer.append(batch)
    for _ in range(2):  # also the second time: rows of the batch would be missing
        with pytest.raises(SchemaError, match=message):
            writer.flush()
    assert client.entries == []
