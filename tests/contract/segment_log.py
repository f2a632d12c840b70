"""The contract of every backend of the segment log, as one suite.

A backend's test module makes a subclass of :class:`SegmentLogContract` with a fixture `harness`.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_txn_spark.errors import (
    MessageTooLargeError,
    SchemaError,
    SegmentLogError,
    SegmentNotFoundError,
    SegmentSealedError,
)
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import (
    READ_SCHEMA,
    ROW_SCHEMA,
    Appended,
    LogRange,
    RangeSize,
    Receipt,
    SegmentLog,
    SegmentRef,
    SegmentWriter,
    Visible,
)

EVERY_COLUMN = frozenset(READ_SCHEMA.names)
Row = tuple[bytes | None, bytes | None, int | None, dict[str, str]]
"""value, key, event time, properties"""


EVERY_KIND_OF_ROW: list[Row] = [
    (b"value", b"key", 1_700_000_000_000, {"a": "1", "b": ""}),
    (None, None, None, {}),
    (b"", None, 1, {}),
    (None, b"tombstone", None, {}),
    (b"\x00\xff" * 10, "schlüssel".encode(), 2**53 + 1, {"ü": "日本"}),
]


class SealableLog(SegmentLog, Protocol):
    """What the suite asks of a backend beyond the Protocol."""

    def seal(self, segment: SegmentRef) -> Position: ...


@dataclass
class Harness:
    """A backend under test, and what it cannot do."""

    log: SealableLog
    log_name_prefix: str
    too_large_bytes: int
    any_key: bool = True  # keys may be empty or arbitrary bytes
    segments: list[SegmentRef] = field(default_factory=list)

    def absent(self) -> SegmentRef:
        name = uuid.uuid4().hex
        return SegmentRef(name, "topic://public/default/t", self.log_name_prefix + name)

    def segment(self) -> SegmentRef:
        segment = self.absent()
        self.log.create(segment)
        self.segments.append(segment)
        return segment

    def close(self) -> None:
        for segment in self.segments:
            self.log.delete(segment)
        self.log.close()


def everything(_writer: str, _position: Position) -> bool:
    return True


def nothing(_writer: str, _position: Position) -> bool:
    return False


def table(rows: Iterable[Row]) -> pa.RecordBatch:
    listed = [(*row[:3], list(row[3].items()) or None) for row in rows]
    columns = list(zip(*listed, strict=True)) or [()] * 4
    arrays = [
        pa.array(list(column), kind.type) for column, kind in zip(columns, ROW_SCHEMA, strict=True)
    ]
    return pa.record_batch(arrays, schema=ROW_SCHEMA)


def values(*found: bytes | None) -> pa.RecordBatch:
    return pa.record_batch([pa.array(found, pa.binary())], names=["value"])


def numbered(start: int, stop: int) -> pa.RecordBatch:
    return values(*(b"%d" % number for number in range(start, stop)))


def write(log: SegmentLog, segment: SegmentRef, name: str, *batches: pa.RecordBatch) -> Receipt:
    """Write the batches through one writer, one flush each, and sum the receipts up."""
    writer = log.writer(segment, name)
    receipts = []
    for batch in batches:
        writer.append(batch)
        receipts.append(writer.flush())
    writer.close()
    return Receipt(
        receipts[0].first,
        receipts[-1].last,
        sum(receipt.entries for receipt in receipts),
        sum(receipt.messages for receipt in receipts),
        sum(receipt.bytes for receipt in receipts),
    )


def last_of(receipt: Receipt) -> Position:
    assert receipt.last is not None
    return receipt.last


def read(
    log: SegmentLog,
    segment: SegmentRef,
    start: Position = EARLIEST,
    end: Position | None = None,
    *,
    visible: Visible = everything,
    columns: frozenset[str] = EVERY_COLUMN,
    max_rows: int = 10_000,
) -> list[dict[str, Any]]:
    end = log.last_confirmed(segment) if end is None else end
    found: list[dict[str, Any]] = []
    for batch in log.read(segment, start, end, visible=visible, columns=columns, max_rows=max_rows):
        assert 0 < batch.num_rows <= max_rows
        found += batch.to_pylist()
    return found


def read_values(log: SegmentLog, segment: SegmentRef, *range_: Position, **how: Any) -> list[bytes]:
    return [row["value"] for row in read(log, segment, *range_, **how)]


def as_rows(found: Iterable[dict[str, Any]]) -> list[Row]:
    return [
        (row["value"], row["key"], row["event_time_ms"], dict(row["properties"] or []))
        for row in found
    ]


def read_whole(log: SegmentLog, segment: SegmentRef, start: Position, end: Position) -> list[bytes]:
    return read_values(log, segment, start, end)


def positions(log: SegmentLog, segment: SegmentRef) -> list[Position]:
    found = {Position(row["ledger"], row["entry"]): None for row in read(log, segment)}
    return list(found)


class SegmentLogContract:
    """What holds for every backend."""

    # --- creating and deleting ------------------------------------------------------------------

    def test_creating_a_segment_again_keeps_what_is_in_it(self, harness: Harness) -> None:
        segment = harness.segment()
        write(harness.log, segment, "w", values(b"kept"))
        harness.log.create(segment)
        assert read_values(harness.log, segment) == [b"kept"]

    def test_a_new_segment_is_empty(self, harness: Harness) -> None:
        segment = harness.segment()
        assert harness.log.last_confirmed(segment) == EARLIEST
        assert harness.log.trimmed_to(segment) == EARLIEST
        assert harness.log.measure(segment, EARLIEST, EARLIEST) == RangeSize(0, 0, 0, True)
        assert read(harness.log, segment) == []

    # --- trimming -------------------------------------------------------------------------------

    def test_no_more_is_trimmed_than_was_given_up(self, harness: Harness) -> None:
        segment, log = harness.segment(), harness.log
        write(log, segment, "w", *(numbered(n, n + 1) for n in range(4)))
        entries = positions(log, segment)
        assert log.trim(segment, EARLIEST) == EARLIEST
        gone = log.trim(segment, entries[1])
        assert gone <= entries[1]
        assert log.trimmed_to(segment) <= entries[1]
        assert read_values(log, segment, entries[1], entries[3]) == [b"2", b"3"]
        assert log.last_confirmed(segment) == entries[3]

    def test_what_was_published_before_a_moment_is_found(self, harness: Harness) -> None:
        segment, log = harness.segment(), harness.log
        assert log.published_before(segment, 1 << 60) == EARLIEST
        write(log, segment, "w", values(b"a"), values(b"b"))
        first, last = positions(log, segment)
        published = [row["publish_time_ms"] for row in read(log, segment)]
        assert log.published_before(segment, 1 << 60) == last
        assert log.published_before(segment, published[0]) == EARLIEST
        assert log.published_before(segment, published[1]) in (EARLIEST, first)

    def test_the_position_at_a_time_lies_before_the_first_entry_since_then(
        self, harness: Harness
    ) -> None:
        segment, log = harness.segment(), harness.log
        assert log.position_at(segment, 0) is None
        for number in range(6):
            write(log, segment, f"writer {number % 2}", numbered(number, number + 1))
        entries = [
            (Position(row["ledger"], row["entry"]), row["publish_time_ms"])
            for row in read(log, segment)
        ]
        times = {published for _, published in entries}
        for time_ms in {0} | times | {published + 1 for published in times}:
            first = next((n for n, (_, at) in enumerate(entries) if at >= time_ms), None)
            found = log.position_at(segment, time_ms)
            if first is None:
                assert found is None
            else:
                assert found == (entries[first - 1][0] if first else EARLIEST)
        assert log.position_at(segment, max(times) + 1) is None

    def test_what_was_appended_is_counted(self, harness: Harness) -> None:
        segment, log = harness.segment(), harness.log
        assert log.appended(segment) == Appended(0, 0)
        write(log, segment, "w", numbered(0, 10), numbered(10, 15))
        found = log.appended(segment)
        assert found.messages == 15
        assert found.bytes > 15

    def test_a_missing_segment_is_reported_and_never_conjured_up(self, harness: Harness) -> None:
        segment, log = harness.absent(), harness.log
        for _ in range(2):  # the first attempt must not have created it
            with pytest.raises(SegmentNotFoundError):
                _append_and_flush(log.writer(segment, "w"), values(b"x"))
            with pytest.raises(SegmentNotFoundError):
                log.last_confirmed(segment)
            with pytest.raises(SegmentNotFoundError):
                log.trimmed_to(segment)
            with pytest.raises(SegmentNotFoundError):
                read(log, segment, EARLIEST, Position(1, 1))
            with pytest.raises(SegmentNotFoundError):
                log.seal(segment)

    def test_deleting_a_segment_removes_it_and_deleting_an_absent_one_does_no_harm(
        self, harness: Harness
    ) -> None:
        segment = harness.segment()
        write(harness.log, segment, "w", values(b"x"))
        harness.log.delete(segment)
        harness.log.delete(segment)
        with pytest.raises(SegmentNotFoundError):
            _append_and_flush(harness.log.writer(segment, "w2"), values(b"x"))
        with pytest.raises(SegmentNotFoundError):
            harness.log.last_confirmed(segment)

    # --- rows -----------------------------------------------------------------------------------

    def test_every_column_null_and_empty_value_comes_back_as_it_was_written(
        self, harness: Harness
    ) -> None:
        segment = harness.segment()
        write(harness.log, segment, "w", table(EVERY_KIND_OF_ROW))
        assert as_rows(read(harness.log, segment)) == EVERY_KIND_OF_ROW

    def test_keys_that_are_empty_or_no_text_come_back_or_are_refused(
        self, harness: Harness
    ) -> None:
        for key in (b"", b"\xff\xfe"):
            segment = harness.segment()
            row: Row = (b"v", key, None, {})
            if harness.any_key:
                write(harness.log, segment, "w", table([row]))
                assert as_rows(read(harness.log, segment)) == [row]
            else:
                with pytest.raises(SchemaError):
                    write(harness.log, segment, "w", table([row]))

    def test_an_absent_column_reads_as_null(self, harness: Harness) -> None:
        segment = harness.segment()
        write(harness.log, segment, "w", values(b"v"))
        assert as_rows(read(harness.log, segment)) == [(b"v", None, None, {})]

    def test_batches_with_different_columns_can_follow_each_other(self, harness: Harness) -> None:
        segment = harness.segment()
        writer = harness.log.writer(segment, "w")
        writer.append(values(b"1"))
        writer.append(table([(b"2", b"k", 5, {"p": "q"})]))
        writer.append(values(b"3"))
        assert writer.flush().messages == 3
        writer.close()
        assert as_rows(read(harness.log, segment)) == [
            (b"1", None, None, {}),
            (b"2", b"k", 5, {"p": "q"}),
            (b"3", None, None, {}),
        ]

    def test_only_the_columns_that_were_asked_for_are_produced(self, harness: Harness) -> None:
        segment = harness.segment()
        write(harness.log, segment, "w", table([(b"v", b"k", 1, {})]))
        end = harness.log.last_confirmed(segment)
        for columns in ({"value"}, {"batch_index", "key"}, {"entry", "ledger"}, EVERY_COLUMN):
            (batch,) = harness.log.read(
                segment,
                EARLIEST,
                end,
                visible=everything,
                columns=frozenset(columns),
                max_rows=10,
            )
            expected = pa.schema([one for one in READ_SCHEMA if one.name in columns])
            assert batch.schema.equals(expected)

    def test_positions_and_batch_indexes_name_each_row_once(self, harness: Harness) -> None:
        segment = harness.segment()
        write(harness.log, segment, "w", *(numbered(0, count) for count in (1, 2, 7)))
        found = read(harness.log, segment)
        names = [(row["ledger"], row["entry"], max(row["batch_index"], 0)) for row in found]
        assert names == sorted(set(names))
        for row in found:
            if row["batch_size"]:
                assert 0 <= row["batch_index"] < row["batch_size"]
            else:
                assert row["batch_index"] == -1
        assert all(row["publish_time_ms"] > 1_600_000_000_000 for row in found)

    def test_each_row_names_its_writer(self, harness: Harness) -> None:
        segment, log = harness.segment(), harness.log
        write(log, segment, "v", numbered(0, 2))
        write(log, segment, "w", numbered(2, 5))
        found = read(log, segment, columns=frozenset({"value", "producer_name"}))
        assert [row["producer_name"] for row in found] == ["v", "v", "w", "w", "w"]

    def test_no_batch_holds_more_rows_than_asked_for(self, harness: Harness) -> None:
        segment = harness.segment()
        write(harness.log, segment, "w", numbered(0, 10), numbered(10, 13))
        expected = [b"%d" % number for number in range(13)]
        for max_rows in (1, 3, 10, 1000):
            assert read_values(harness.log, segment, max_rows=max_rows) == expected

    # --- writers --------------------------------------------------------------------------------

    def test_one_writers_rows_are_read_in_the_order_written(self, harness: Harness) -> None:
        segment, log = harness.segment(), harness.log
        writer = log.writer(segment, "w")
        last, messages = EARLIEST, 0
        for flush in range(3):
            for part in range(20):
                start = flush * 2000 + part * 100
                writer.append(numbered(start, start + 100))
            receipt = writer.flush()
            assert receipt.first is not None
            assert receipt.last is not None
            assert last < receipt.first <= receipt.last
            last, messages = receipt.last, messages + receipt.messages
        writer.close()
        assert messages == 6000
        assert read_values(log, segment) == [b"%d" % number for number in range(6000)]

    def test_the_last_confirmed_position_covers_every_receipt(self, harness: Harness) -> None:
        segment, log = harness.segment(), harness.log
        writer = log.writer(segment, "w")
        for number in range(5):
            writer.append(numbered(number, number + 1))
            receipt = writer.flush()
            assert log.last_confirmed(segment) == receipt.last
        writer.close()

    def test_the_last_positions_of_many_segments_come_in_their_order(
        self, harness: Harness
    ) -> None:
        segments, log = [harness.segment() for _ in range(6)], harness.log
        for number, segment in enumerate(segments):
            for _ in range(number):
                write(log, segment, "w", values(b"x"))
        expected = [log.last_confirmed(segment) for segment in segments]
        assert [snapshot.last_confirmed for snapshot in log.snapshot_each(segments)] == expected
        assert [
            snapshot.last_confirmed for snapshot in log.snapshot_each(segments[3:4])
        ] == expected[3:4]
        assert log.snapshot_each([]) == []
        with pytest.raises(SegmentNotFoundError):
            log.snapshot_each([segments[0], harness.absent()])

    def test_a_snapshot_says_what_single_questions_would(self, harness: Harness) -> None:
        segment, log = harness.segment(), harness.log
        write(log, segment, "w", *[values(b"x") for _ in range(3)])
        [snapshot] = log.snapshot_each([segment])
        end = snapshot.last_confirmed
        assert snapshot.trimmed_to() == log.trimmed_to(segment)
        assert snapshot.measure(EARLIEST, end) == log.measure(segment, EARLIEST, end)
        limited = snapshot.limit(EARLIEST, end, 1, None)
        assert limited == log.limit(segment, EARLIEST, end, 1, None)
        write(log, segment, "later", values(b"y"))
        assert snapshot.last_confirmed == end < log.last_confirmed(segment)

    def test_a_flush_without_rows_reports_nothing(self, harness: Harness) -> None:
        segment = harness.segment()
        writer = harness.log.writer(segment, "w")
        assert writer.flush() == Receipt(None, None, 0, 0, 0)
        writer.append(values())
        assert writer.flush() == Receipt(None, None, 0, 0, 0)
        writer.append(values(b"x"))
        assert writer.flush().messages == 1
        assert writer.flush() == Receipt(None, None, 0, 0, 0)
        writer.close()
        assert read_values(harness.log, segment) == [b"x"]

    def test_two_writers_interleave_and_each_keeps_its_order(self, harness: Harness) -> None:
        segment, log = harness.segment(), harness.log
        writers = {name: log.writer(segment, name) for name in ("a", "b")}
        for number in range(10):
            for name, writer in writers.items():
                writer.append(values(b"%s%d" % (name.encode(), number)))
                writer.flush()
        for writer in writers.values():
            writer.close()
        found = read_values(log, segment)
        assert len(found) == 20
        for name in ("a", "b"):
            own = [value for value in found if value.startswith(name.encode())]
            assert own == [b"%s%d" % (name.encode(), number) for number in range(10)]
            only = read_values(log, segment, visible=lambda who, _, name=name: who == name)
            assert only == own

    def test_closing_without_a_flush_leaves_a_prefix_and_a_usable_segment(
        self, harness: Harness
    ) -> None:
        segment, log = harness.segment(), harness.log
        writer = log.writer(segment, "w")
        writer.append(numbered(0, 1000))
        writer.close()
        write(log, segment, "w2", values(b"next"))
        found = read_values(log, segment)
        assert found[-1] == b"next"
        assert found[:-1] == [b"%d" % number for number in range(len(found) - 1)]

    def test_a_message_that_is_too_large_is_refused_with_its_size(self, harness: Harness) -> None:
        segment, log = harness.segment(), harness.log
        writer = log.writer(segment, "w")
        with pytest.raises(MessageTooLargeError, match=r"\d{7}"):
            _append_and_flush(writer, values(b"small", b"x" * harness.too_large_bytes))
        with pytest.raises(SegmentLogError):  # of no use any more
            _append_and_flush(writer, values(b"more"))
        writer.close()
        write(log, segment, "w2", values(b"fits"))
        assert read_values(log, segment)[-1] == b"fits"

    def test_large_messages_below_the_limit_are_taken(self, harness: Harness) -> None:
        segment, log = harness.segment(), harness.log
        batch = values(*(bytes([number]) * 700_000 for number in range(12)))
        assert write(log, segment, "w", batch).messages == 12
        assert read_values(log, segment) == batch.column(0).to_pylist()

    # --- visibility and ranges ------------------------------------------------------------------

    def test_visible_is_asked_once_per_entry_with_its_writer_and_position(
        self, harness: Harness
    ) -> None:
        segment, log = harness.segment(), harness.log
        write(log, segment, "a", numbered(0, 50))
        write(log, segment, "b", numbered(50, 100), numbered(100, 150))
        asked: list[tuple[str, Position]] = []

        def visible(writer: str, position: Position) -> bool:
            asked.append((writer, position))
            return position < asked[-1][1] or writer == "b"

        assert len(read(log, segment, visible=visible)) == 100
        assert [writer for writer, _ in asked] == ["a", "b", "b"]
        assert [position for _, position in asked] == positions(log, segment)

    def test_a_writer_can_be_visible_up_to_a_position_only(self, harness: Harness) -> None:
        segment, log = harness.segment(), harness.log
        writer = log.writer(segment, "w")
        writer.append(values(b"in"))
        bound = writer.flush().last
        assert bound is not None
        writer.append(values(b"out"))
        writer.flush()
        writer.close()
        found = read_values(log, segment, visible=lambda _, position: position <= bound)
        assert found == [b"in"]

    def test_a_tail_of_invisible_entries_does_not_block_the_reader(self, harness: Harness) -> None:
        segment, log = harness.segment(), harness.log
        write(log, segment, "a", values(b"seen"))
        write(log, segment, "b", numbered(0, 500), numbered(0, 500))
        assert read_values(log, segment, visible=lambda who, _: who == "a") == [b"seen"]
        assert read_values(log, segment, visible=nothing) == []

    def test_a_range_leaves_out_its_start_and_includes_its_end(self, harness: Harness) -> None:
        segment, log = harness.segment(), harness.log
        write(log, segment, "w", *(numbered(part * 3, part * 3 + 3) for part in range(5)))
        ends = [EARLIEST, *positions(log, segment)]
        assert len(ends) == 6
        for first, start in enumerate(ends):
            for last, end in enumerate(ends):
                expected = [b"%d" % number for number in range(first * 3, last * 3)]
                assert read_values(log, segment, start, end) == expected
                size = log.measure(segment, start, end)
                assert size.entries == max(0, last - first)
                if size.exact:
                    assert size.messages == len(expected)

    def test_ranges_of_many_segments_are_read_as_each_would_be_by_itself(
        self, harness: Harness
    ) -> None:
        log, wanted, expected = harness.log, [], []
        for number in range(12):
            segment, start = harness.segment(), EARLIEST
            if number % 4:
                start = last_of(write(log, segment, "before", values(b"no")))
            written = [b"%d-%d" % (number, part) for part in range(number % 3 + 1)]
            write(log, segment, "w", *[values(value) for value in written])
            dropped = last_of(write(log, segment, "dropped", values(b"never")))
            write(log, segment, "behind", values(b"not yet"))
            end = start if number == 7 else dropped
            wanted.append(LogRange(segment, start, end, lambda who, _: who == "w"))
            expected.append([] if number == 7 else written)
        for ranges in (wanted, wanted[:1], []):
            read_each = log.read_each(ranges, columns=frozenset({"value"}), max_rows=100)
            found = [
                [row["value"] for b in batches for row in b.to_pylist()] for batches in read_each
            ]
            assert found == expected[: len(ranges)]

    def test_a_range_can_begin_or_end_beside_an_entry(self, harness: Harness) -> None:
        segment, log = harness.segment(), harness.log
        receipt = write(log, segment, "w", values(b"1"), values(b"2"))
        assert receipt.first is not None
        before = Position(receipt.first.ledger, receipt.first.entry - 1)
        assert read_values(log, segment, before) == [b"1", b"2"]
        assert read_values(log, segment, Position(receipt.first.ledger, -1)) == [b"1", b"2"]

    def test_the_parts_of_a_split_tile_the_range(self, harness: Harness) -> None:
        segment, log = harness.segment(), harness.log
        write(log, segment, "w", *(numbered(part * 4, part * 4 + 4) for part in range(9)))
        entries = positions(log, segment)
        for start, end in ((EARLIEST, entries[-1]), (entries[1], entries[7])):
            inside = [entry for entry in entries if start < entry <= end]
            for parts in (1, 2, 3, 9, 100):
                ends = log.split(segment, start, end, parts)
                assert ends[-1] == end
                assert 1 <= len(ends) <= min(parts, len(inside))
                assert set(ends) <= set(inside)
                assert ends == sorted(set(ends))
                tiled = [
                    value
                    for low, high in zip([start, *ends], ends, strict=False)
                    for value in read_values(log, segment, low, high)
                ]
                assert tiled == read_values(log, segment, start, end)
        assert len(log.split(segment, EARLIEST, entries[-1], 3)) == 3

    def test_limits_are_kept_to_the_entry_and_at_least_one_is_taken(self, harness: Harness) -> None:
        segment, log = harness.segment(), harness.log
        write(log, segment, "w", *(numbered(part * 4, part * 4 + 4) for part in range(9)))
        entries = positions(log, segment)
        end = entries[-1]
        assert log.limit(segment, EARLIEST, end, None, None) == end
        assert log.limit(segment, EARLIEST, end, 36, None) == end
        assert log.limit(segment, EARLIEST, end, 10**9, 10**9) == end
        assert log.limit(segment, EARLIEST, end, 8, None) == entries[1]
        assert log.limit(segment, EARLIEST, end, 11, None) == entries[1]
        assert log.limit(segment, EARLIEST, end, 1, None) == entries[0]
        assert log.limit(segment, EARLIEST, end, None, 1) == entries[0]
        assert log.limit(segment, entries[5], end, 4, None) == entries[6]
        # By steps one gets to the end, whatever the limit is.
        start, steps = EARLIEST, 0
        while start < end:
            start, previous = log.limit(segment, start, end, 5, 10**6), start
            assert start > previous
            steps += 1
        assert steps == 9

    def test_a_measured_range_holds_what_was_written(self, harness: Harness) -> None:
        segment, log = harness.segment(), harness.log
        small = write(log, segment, "w", numbered(0, 100), numbered(100, 200))
        size = log.measure(segment, EARLIEST, log.last_confirmed(segment))
        assert (size.entries, size.messages, size.exact) == (small.entries, 200, True)
        write(log, segment, "v", *(numbered(0, 100) for _ in range(10)))
        size = log.measure(segment, EARLIEST, log.last_confirmed(segment))
        assert size.entries == small.entries + 10
        assert size.messages == 1200
        assert size.bytes > 0

    # --- sealing --------------------------------------------------------------------------------

    def test_a_sealed_segment_refuses_new_writers_and_stays_readable(
        self, harness: Harness
    ) -> None:
        segment, log = harness.segment(), harness.log
        receipt = write(log, segment, "w", values(b"before"))
        assert log.seal(segment) == receipt.last
        assert log.seal(segment) == receipt.last
        with pytest.raises(SegmentSealedError):
            _append_and_flush(log.writer(segment, "late"), values(b"late"))
        assert log.last_confirmed(segment) == receipt.last
        assert read_values(log, segment) == [b"before"]

    def test_what_was_sent_is_acknowledged_by_the_next_flush(self, harness: Harness) -> None:
        segments, log = [harness.segment(), harness.segment()], harness.log
        writers = [log.writer(segment, "w") for segment in segments]
        for writer in writers:
            writer.send()  # nothing
            writer.append(values(b"a", b"b"))
        for writer in writers:
            writer.send()
        assert [writer.flush().messages for writer in writers] == [2, 2]
        assert [writer.flush().messages for writer in writers] == [0, 0]
        for segment, writer in zip(segments, writers, strict=True):
            writer.close()
            assert read_values(log, segment) == [b"a", b"b"]

    def test_of_several_segments_the_ends_are_told_at_once(self, harness: Harness) -> None:
        segments, log = [harness.segment(), harness.segment()], harness.log
        write(log, segments[0], "w", values(b"a"))
        ends = [log.last_confirmed(segment) for segment in segments]
        assert [snapshot.last_confirmed for snapshot in log.snapshot_each(segments)] == ends
        assert log.trimmed_to_of_each(segments) == [EARLIEST, EARLIEST]
        with pytest.raises(SegmentNotFoundError):
            log.trimmed_to_of_each([segments[0], harness.absent()])

    def test_an_empty_segment_can_be_sealed(self, harness: Harness) -> None:
        segment, log = harness.segment(), harness.log
        assert log.seal(segment) == EARLIEST
        assert log.last_confirmed(segment) == EARLIEST
        assert read(log, segment) == []

    def test_an_open_writer_learns_that_the_segment_was_sealed(self, harness: Harness) -> None:
        segment, log = harness.segment(), harness.log
        writer = log.writer(segment, "w")
        writer.append(values(b"before"))
        writer.flush()
        log.seal(segment)
        with pytest.raises(SegmentSealedError):
            _append_and_flush(writer, values(b"after"))
        with pytest.raises(SegmentLogError):  # of no use any more
            _append_and_flush(writer, values(b"after"))
        writer.close()
        assert read_values(log, segment) == [b"before"]

    def test_nothing_is_acknowledged_past_the_seal_however_writers_race_it(
        self, harness: Harness
    ) -> None:
        segment, log = harness.segment(), harness.log
        acknowledged: list[bytes] = []
        started = threading.Barrier(3)

        def keep_writing(name: bytes) -> None:
            writer = log.writer(segment, name.decode())
            writer.append(values(name))
            writer.flush()
            acknowledged.append(name)
            started.wait(30)
            for number in range(100_000):
                value = b"%s-%d" % (name, number)
                try:
                    _append_and_flush(writer, values(value))
                except SegmentSealedError:
                    break
                acknowledged.append(value)
            else:
                raise AssertionError("the seal was never noticed")
            writer.close()

        threads = [threading.Thread(target=keep_writing, args=(name,)) for name in (b"a", b"b")]
        for thread in threads:
            thread.start()
        started.wait(30)
        end = log.seal(segment)
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert log.last_confirmed(segment) == end
        assert set(acknowledged) <= set(read_values(log, segment, EARLIEST, end))

    # --- size and concurrency -------------------------------------------------------------------

    def test_two_hundred_thousand_rows_in_one_batch_come_back_in_order(
        self, harness: Harness
    ) -> None:
        segment, log = harness.segment(), harness.log
        count = 200_000
        batch = pa.record_batch(
            {
                "value": pa.array([b"%0100d" % number for number in range(count)]),
                "key": pa.array([b"%d" % (number % 100) for number in range(count)]),
            }
        )
        receipt = write(log, segment, "w", batch)
        assert receipt.messages == count
        read_back = pa.Table.from_batches(
            log.read(
                segment,
                EARLIEST,
                log.last_confirmed(segment),
                visible=everything,
                columns=frozenset({"value", "key"}),
                max_rows=10_000,
            )
        )
        assert read_back.equals(pa.Table.from_batches([batch]))

    def test_a_reader_sees_whole_prefixes_while_a_writer_goes_on(self, harness: Harness) -> None:
        segment, log = harness.segment(), harness.log
        done = threading.Event()
        failures: list[BaseException] = []

        def keep_writing() -> None:
            try:
                writer = log.writer(segment, "w")
                for part in range(50):
                    writer.append(numbered(part * 200, part * 200 + 200))
                    if part % 5 == 0:
                        writer.flush()
                writer.flush()
                writer.close()
            except BaseException as failure:
                failures.append(failure)
                raise
            finally:
                done.set()

        thread = threading.Thread(target=keep_writing)
        thread.start()
        start, found, last_round = EARLIEST, [], False
        while not last_round:
            last_round = done.is_set()
            end = log.last_confirmed(segment)
            assert end >= start
            found += read_values(log, segment, start, end)
            start = end
        thread.join()
        assert not failures
        assert found == [b"%d" % number for number in range(10_000)]

    def test_an_abandoned_read_does_no_harm(self, harness: Harness) -> None:
        segment, log = harness.segment(), harness.log
        write(log, segment, "w", numbered(0, 5000), numbered(5000, 10_000))
        half_read = log.read(
            segment,
            EARLIEST,
            log.last_confirmed(segment),
            visible=everything,
            columns=frozenset({"value"}),
            max_rows=10,
        )
        assert next(half_read).num_rows == 10
        del half_read
        assert len(read_values(log, segment)) == 10_000

    def test_whatever_is_written_in_whatever_pieces_is_read_back(self, harness: Harness) -> None:
        segment, log = harness.segment(), harness.log
        text = st.text(st.characters(exclude_categories=["Cs"]))
        keys = st.binary(max_size=20) if harness.any_key else text.filter(bool).map(str.encode)
        rows: st.SearchStrategy[Row] = st.tuples(
            st.none() | st.binary(max_size=300),
            st.none() | keys,
            st.none() | st.integers(1, 2**63 - 1),
            st.dictionaries(text, text, max_size=3),
        )

        @settings(max_examples=40, deadline=None)
        @given(
            batches=st.lists(st.tuples(st.lists(rows, max_size=8), st.booleans()), max_size=5),
            max_rows=st.integers(1, 9),
        )
        def check(batches: list[tuple[list[Row], bool]], max_rows: int) -> None:
            start = log.last_confirmed(segment)
            writer = log.writer(segment, uuid.uuid4().hex)
            for batch, flushed in batches:
                writer.append(table(batch))
                if flushed:
                    writer.flush()
            writer.flush()
            writer.close()
            expected = [row for batch, _ in batches for row in batch]
            assert as_rows(read(log, segment, start, max_rows=max_rows)) == expected

        check()


def _append_and_flush(writer: SegmentWriter, rows: pa.RecordBatch) -> Receipt:
    writer.append(rows)
    return writer.flush()
