"""The embedded segment log, beyond what the contract suite of all backends asks for."""

from __future__ import annotations

import gc
import pickle
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_txn_spark.backends import entry_codec
from pulsar_txn_spark.backends.embedded.log import EmbeddedSegmentLog
from pulsar_txn_spark.errors import (
    DataLossError,
    MessageTooLargeError,
    SchemaError,
    SegmentLogError,
    SegmentLogUnavailableError,
    SegmentNotFoundError,
    SegmentSealedError,
    UnverifiedReceiptError,
)
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import (
    READ_SCHEMA,
    ROW_SCHEMA,
    LogRange,
    RangeSize,
    SegmentLog,
    SegmentRef,
    Visible,
)
from tests.support.connections import in_use
from tests.support.round_trips import round_trips

SEGMENT = SegmentRef("s1", "topic://public/default/flights", "s1")
EVERY_COLUMN = frozenset(READ_SCHEMA.names)


@pytest.fixture
def log(redis_client: redis.Redis) -> EmbeddedSegmentLog:
    log = EmbeddedSegmentLog(redis_client)
    log.create(SEGMENT)
    return log


def everything(_writer: str, _position: Position) -> bool:
    return True


def rows(*values: bytes | None) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.binary())], names=["value"])


def write(log: SegmentLog, *values: bytes, name: str = "w", segment: SegmentRef = SEGMENT) -> None:
    """Write each value as an entry of its own."""
    writer = log.writer(segment, name)
    for value in values:
        writer.append(rows(value))
        writer.flush()
    writer.close()


def values(
    log: SegmentLog,
    start: Position = EARLIEST,
    end: Position | None = None,
    visible: Visible = everything,
    max_rows: int = 1000,
) -> list[bytes]:
    batches = log.read(
        SEGMENT,
        start,
        log.last_confirmed(SEGMENT) if end is None else end,
        visible=visible,
        columns=frozenset({"value"}),
        max_rows=max_rows,
    )
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def at(entry: int) -> Position:
    return Position(1, entry)


def test_every_column_comes_back_as_it_was_written(log: EmbeddedSegmentLog) -> None:
    written = pa.record_batch(
        [
            pa.array([b"a", None, b"c"]),
            pa.array([b"k", b"", None]),
            pa.array([7, None, -1]),
            pa.array([[("p", "q")], [], None], pa.map_(pa.string(), pa.string())),
        ],
        schema=ROW_SCHEMA,
    )
    writer = log.writer(SEGMENT, "w")
    writer.append(written)
    receipt = writer.flush()
    writer.close()
    (read,) = log.read(
        SEGMENT, EARLIEST, at(0), visible=everything, columns=EVERY_COLUMN, max_rows=10
    )
    assert read.schema == READ_SCHEMA
    assert read.select(ROW_SCHEMA.names).to_pylist() == written.to_pylist()
    assert read.column("batch_index").to_pylist() == [0, 1, 2]
    assert set(read.column("batch_size").to_pylist()) == {3}
    assert set(read.column("ledger").to_pylist()) == {1}
    assert set(read.column("entry").to_pylist()) == {0}
    assert read.column("publish_time_ms")[0].as_py() > 1_600_000_000_000
    assert (receipt.first, receipt.last, receipt.messages) == (at(0), at(0), 3)


def test_only_the_asked_for_columns_come_in_the_order_of_the_schema(
    log: EmbeddedSegmentLog,
) -> None:
    write(log, b"a")
    columns = frozenset({"entry", "key", "value"})
    (read,) = log.read(SEGMENT, EARLIEST, at(0), visible=everything, columns=columns, max_rows=10)
    assert read.schema.names == ["value", "key", "entry"]
    assert read.to_pylist() == [{"value": b"a", "key": None, "entry": 0}]


def test_a_read_without_columns_still_counts_rows(log: EmbeddedSegmentLog) -> None:
    write(log, b"a", b"b")
    batches = log.read(
        SEGMENT, EARLIEST, at(1), visible=everything, columns=frozenset(), max_rows=1
    )
    assert [batch.num_rows for batch in batches] == [1, 1]


@pytest.mark.parametrize("null_value", [rows(None, None), rows(None).slice(0, 1)])
def test_rows_whose_values_are_all_null_come_back_as_nulls(
    log: EmbeddedSegmentLog, null_value: pa.RecordBatch
) -> None:
    writer = log.writer(SEGMENT, "w")
    writer.append(null_value)
    writer.flush()
    writer.close()
    assert values(log) == [None] * null_value.num_rows


def test_small_row_batches_of_different_columns_share_an_entry(log: EmbeddedSegmentLog) -> None:
    writer = log.writer(SEGMENT, "w")
    writer.append(rows(b"a"))
    writer.append(pa.record_batch([pa.array([b"b"]), pa.array([b"k"])], names=["value", "key"]))
    writer.append(rows())
    receipt = writer.flush()
    writer.close()
    assert (receipt.entries, receipt.messages) == (1, 2)
    (read,) = log.read(
        SEGMENT, EARLIEST, at(0), visible=everything, columns=frozenset({"key"}), max_rows=9
    )
    assert read.column("key").to_pylist() == [None, b"k"]


def test_a_large_row_batch_is_split_into_entries_of_at_most_a_mebibyte(
    log: EmbeddedSegmentLog,
) -> None:
    payload = [b"%06d" % i + b"x" * 994 for i in range(5000)]
    writer = log.writer(SEGMENT, "w")
    writer.append(rows(*payload))
    receipt = writer.flush()
    writer.close()
    assert receipt.entries == 5
    assert receipt.messages == 5000
    assert receipt.bytes / receipt.entries < entry_codec.ENTRY_BYTES * 1.02
    assert values(log) == payload


def test_many_small_row_batches_are_gathered_until_an_entry_is_worth_it(
    log: EmbeddedSegmentLog,
) -> None:
    writer = log.writer(SEGMENT, "w")
    for _ in range(1200):
        writer.append(rows(b"x" * 1000))
    receipt = writer.flush()
    writer.close()
    assert receipt.entries == 3
    assert receipt.messages == 1200


def test_a_second_flush_without_rows_in_between_reports_nothing(log: EmbeddedSegmentLog) -> None:
    writer = log.writer(SEGMENT, "w")
    writer.append(rows(b"a"))
    writer.flush()
    again = writer.flush()
    writer.close()
    assert (again.first, again.last, again.entries, again.bytes) == (None, None, 0, 0)


def test_a_message_at_the_limit_is_taken_and_one_above_is_refused(log: EmbeddedSegmentLog) -> None:
    limit = entry_codec.MAX_MESSAGE_BYTES
    writer = log.writer(SEGMENT, "w")
    writer.append(rows(b"x" * limit))
    writer.flush()
    with pytest.raises(MessageTooLargeError, match=str(limit + 1)):
        writer.append(rows(b"small", b"x" * (limit + 1)))
    writer.close()
    assert [len(value) for value in values(log)] == [limit]


def test_the_size_of_a_message_counts_its_key_and_properties() -> None:
    limit = entry_codec.MAX_MESSAGE_BYTES
    half = b"x" * (limit // 2)
    properties = pa.array([[], [("k" * 9, half.decode())]], pa.map_(pa.string(), pa.string()))
    batch = pa.record_batch([pa.array([b"", half]), properties], names=["value", "properties"])
    with pytest.raises(MessageTooLargeError, match=str(limit + 9)):
        list(entry_codec.split(batch.slice(1)))
    # The first row is small: a slice must not be charged for what lies outside of it.
    assert len(list(entry_codec.split(batch.slice(0, 1)))) == 1


@given(
    sizes=st.lists(st.integers(0, 400_000), min_size=1, max_size=30),
    skip=st.integers(0, 5),
)
def test_slices_tile_the_rows_and_exceed_the_limit_by_one_message_at_most(
    sizes: list[int], skip: int
) -> None:
    batch = rows(*[bytes([i]) * size for i, size in enumerate(sizes)]).slice(skip)
    pieces = list(entry_codec.split(batch))
    rebuilt = [value for piece in pieces for value in piece.column("value").to_pylist()]
    assert rebuilt == batch.column("value").to_pylist()
    if batch.num_rows:
        assert all(piece.num_rows for piece in pieces)
        assert max(piece.nbytes for piece in pieces) <= entry_codec.ENTRY_BYTES + 400_000 + 200


@pytest.mark.parametrize("value", [b"", None])
def test_rows_without_a_byte_are_written_however_many_there_are(
    log: EmbeddedSegmentLog, value: bytes | None
) -> None:
    count = 300_000
    writer = log.writer(SEGMENT, "w")
    writer.append(pa.record_batch([pa.array([value] * count, pa.binary())], names=["value"]))
    receipt = writer.flush()
    writer.close()
    assert receipt.messages == count
    assert values(log) == [value] * count


def test_a_column_that_no_message_has_is_refused(log: EmbeddedSegmentLog) -> None:
    writer = log.writer(SEGMENT, "w")
    with pytest.raises(SchemaError, match="'ordering_key'"):
        writer.append(pa.record_batch([pa.array([b"x"])], names=["ordering_key"]))
    writer.close()


def test_an_entry_of_another_format_version_is_refused() -> None:
    payload = entry_codec.encode(rows(b"a"))
    with pytest.raises(SegmentLogError, match="version 2"):
        entry_codec.decode(b"\x02" + payload[1:], 1)
    with pytest.raises(SegmentLogError, match="Expected an entry of 2 messages, found 1"):
        entry_codec.decode(payload, 2)


def test_reading_does_not_copy_the_values() -> None:
    payload = entry_codec.encode(rows(b"a" * 1000))
    allocated = pa.total_allocated_bytes()
    decoded = entry_codec.decode(payload, 1)
    assert pa.total_allocated_bytes() == allocated
    assert decoded.column("value").to_pylist() == [b"a" * 1000]


def test_a_segment_that_was_not_created_is_not_conjured_up(redis_client: redis.Redis) -> None:
    log = EmbeddedSegmentLog(redis_client)
    with pytest.raises(SegmentNotFoundError, match="s1"):
        write(log, b"a")
    with pytest.raises(SegmentNotFoundError):
        log.last_confirmed(SEGMENT)
    with pytest.raises(SegmentNotFoundError):
        log.measure(SEGMENT, EARLIEST, EARLIEST)
    with pytest.raises(SegmentNotFoundError):
        log.seal(SEGMENT)
    with pytest.raises(SegmentNotFoundError):
        log.trim(SEGMENT, at(0))
    with pytest.raises(SegmentNotFoundError):
        values(log, end=at(0))
    assert redis_client.keys("*") == []


def test_a_writer_that_outlives_its_segment_writes_nothing(
    log: EmbeddedSegmentLog, redis_client: redis.Redis
) -> None:
    writer = log.writer(SEGMENT, "w")
    writer.append(rows(b"a"))
    log.delete(SEGMENT)
    with pytest.raises(SegmentNotFoundError):
        writer.flush()
    writer.close()
    assert redis_client.keys("*") == []


def test_creating_again_keeps_the_entries_and_deleting_again_is_no_error(
    log: EmbeddedSegmentLog,
) -> None:
    write(log, b"a")
    log.create(SEGMENT)
    assert values(log) == [b"a"]
    log.delete(SEGMENT)
    log.delete(SEGMENT)


def test_a_sealed_segment_takes_no_more_entries_and_tells_its_last_position(
    log: EmbeddedSegmentLog,
) -> None:
    writer = log.writer(SEGMENT, "w")
    writer.append(rows(b"a"))
    writer.flush()
    assert log.seal(SEGMENT) == at(0)
    assert log.seal(SEGMENT) == at(0)
    writer.append(rows(b"b"))
    with pytest.raises(SegmentSealedError):
        writer.flush()
    with pytest.raises(SegmentLogError, match="new name"):
        writer.append(rows(b"c"))
    writer.close()
    with pytest.raises(SegmentSealedError):
        write(log, b"d", name="another")
    assert log.last_confirmed(SEGMENT) == at(0)
    assert values(log) == [b"a"]


def test_sealing_an_empty_segment_answers_earliest(log: EmbeddedSegmentLog) -> None:
    assert log.seal(SEGMENT) == EARLIEST


def test_no_entry_is_appended_after_the_seal_however_many_writers_race(
    log: EmbeddedSegmentLog,
) -> None:
    acknowledged: list[Position] = []
    started = threading.Barrier(4)

    def write_until_sealed(name: str) -> None:
        writer = log.writer(SEGMENT, name)
        started.wait()
        try:
            while True:
                writer.append(rows(name.encode()))
                last = writer.flush().last
                assert last is not None
                acknowledged.append(last)
        except SegmentSealedError:
            writer.close()

    threads = [threading.Thread(target=write_until_sealed, args=(f"w{i}",)) for i in range(3)]
    for thread in threads:
        thread.start()
    started.wait()
    while log.last_confirmed(SEGMENT) < at(20):
        pass
    end = log.seal(SEGMENT)
    for thread in threads:
        thread.join()
    assert sorted(acknowledged) == [at(i) for i in range(end.entry + 1)]
    assert log.last_confirmed(SEGMENT) == end


def test_invisible_entries_are_skipped_and_asked_about_once_each(log: EmbeddedSegmentLog) -> None:
    write(log, b"a", name="kept")
    write(log, b"b", b"c", name="dropped")
    write(log, b"d", name="kept")
    asked: list[tuple[str, Position]] = []

    def visible(writer: str, position: Position) -> bool:
        asked.append((writer, position))
        return writer != "dropped"

    assert values(log, visible=visible) == [b"a", b"d"]
    assert asked == [("kept", at(0)), ("dropped", at(1)), ("dropped", at(2)), ("kept", at(3))]


def test_a_range_leaves_out_its_start_and_includes_its_end(log: EmbeddedSegmentLog) -> None:
    write(log, b"a", b"b", b"c", b"d")
    assert values(log, at(0), at(2)) == [b"b", b"c"]
    assert values(log, at(2), at(2)) == []
    assert values(log, EARLIEST, EARLIEST) == []
    assert values(log, Position(1, -1), at(0)) == [b"a"]


@pytest.mark.parametrize("max_rows", [1, 3, 1024, 2500, 10_000])
def test_batches_hold_at_most_max_rows_in_the_order_written(
    log: EmbeddedSegmentLog, max_rows: int
) -> None:
    writer = log.writer(SEGMENT, "w")
    expected: list[bytes] = []
    for size in (1, 2, 2000, 5, 1023, 1, 3000):
        chunk = [b"%d" % (len(expected) + i) for i in range(size)]
        expected += chunk
        writer.append(rows(*chunk))
        writer.flush()
    writer.close()
    batches = list(
        log.read(
            SEGMENT,
            EARLIEST,
            at(6),
            visible=everything,
            columns=frozenset({"value"}),
            max_rows=max_rows,
        )
    )
    assert max(batch.num_rows for batch in batches) <= max_rows
    assert [v for batch in batches for v in batch.column("value").to_pylist()] == expected


def test_more_entries_than_one_scan_or_one_fetch_takes_are_read_whole(
    log: EmbeddedSegmentLog,
) -> None:
    writer = log.writer(SEGMENT, "w")
    expected: list[bytes] = []
    for i in range(1100):
        value = b"%d" % i + b"x" * (600_000 if i % 100 == 0 else 10)
        expected.append(value)
        writer.append(rows(value))
        writer.flush()
    writer.close()
    assert values(log) == expected


def numbered(count: int) -> list[SegmentRef]:
    return [SegmentRef(f"n{i}", "topic://public/default/flights", f"n{i}") for i in range(count)]


def each(log: EmbeddedSegmentLog, ranges: list[LogRange]) -> list[list[bytes]]:
    return [
        [value for batch in batches for value in batch.column("value").to_pylist()]
        for batches in log.read_each(ranges, columns=frozenset({"value"}), max_rows=100)
    ]


def test_short_ranges_are_read_in_one_round_trip(
    log: EmbeddedSegmentLog, redis_client: redis.Redis
) -> None:
    segments = numbered(40)
    for segment in segments:
        log.create(segment)
        write(log, segment.id.encode(), b"aborted", b"last", segment=segment)
    ranges = [LogRange(one, EARLIEST, at(2), lambda _, where: where != at(1)) for one in segments]
    expected = [[one.id.encode(), b"last"] for one in segments]
    assert each(log, ranges[:1]) == expected[:1]  # the server has the script now
    with round_trips(redis_client) as trips:
        assert each(log, ranges) == expected
    assert trips.total == 1
    with round_trips(redis_client) as trips:
        assert each(log, ranges[:1]) == expected[:1]
    assert trips.total == 1


def test_ranges_of_any_length_are_read_whole_and_in_order(log: EmbeddedSegmentLog) -> None:
    segments = numbered(70)
    for number, segment in enumerate(segments):
        log.create(segment)
        size = 300_000 if number % 7 == 0 else 10
        write(log, *[b"%d" % i + b"x" * size for i in range(number % 5)], segment=segment)
    ranges = [LogRange(one, EARLIEST, log.last_confirmed(one), everything) for one in segments]
    alone = [
        [
            value
            for batch in log.read(
                one.segment,
                one.start,
                one.end,
                visible=everything,
                columns=frozenset({"value"}),
                max_rows=100,
            )
            for value in batch.column("value").to_pylist()
        ]
        for one in ranges
    ]
    assert [len(found) for found in alone] == [number % 5 for number in range(70)]
    assert each(log, ranges) == alone


def test_of_several_ranges_the_one_that_lacks_something_is_reported(
    log: EmbeddedSegmentLog, redis_client: redis.Redis
) -> None:
    segments = numbered(4)
    for segment in segments:
        log.create(segment)
        write(log, b"a", b"b", b"c", segment=segment)
    ranges = [LogRange(one, EARLIEST, at(2), everything) for one in segments]
    log.trim(segments[1], at(0))
    with pytest.raises(DataLossError, match=r"n1 .*removed by retention"):
        each(log, ranges)
    assert each(log, ranges[2:]) == [[b"a", b"b", b"c"]] * 2
    redis_client.xdel("{seg:n2}:log", "1-1")
    with pytest.raises(DataLossError, match=r"n2 .*he server has lost data"):
        each(log, ranges[2:])
    log.delete(segments[3])
    with pytest.raises(SegmentNotFoundError):
        each(log, [ranges[0], ranges[3]])


def test_trimmed_data_is_reported_and_never_skipped(log: EmbeddedSegmentLog) -> None:
    write(log, b"a", b"b", b"c", b"d")
    assert log.trimmed_to(SEGMENT) == EARLIEST
    assert log.trim(SEGMENT, at(1)) == at(1)
    assert log.trimmed_to(SEGMENT) == at(1)
    assert log.trim(SEGMENT, at(0)) == at(1)
    with pytest.raises(DataLossError, match="removed by retention"):
        values(log, at(0), at(3))
    assert values(log, at(1), at(3)) == [b"c", b"d"]
    assert log.last_confirmed(SEGMENT) == at(3)


def test_data_that_is_trimmed_while_it_is_read_is_reported(log: EmbeddedSegmentLog) -> None:
    write(log, *[b"%d" % i + b"x" * 2_000_000 for i in range(6)])
    batches = log.read(
        SEGMENT,
        EARLIEST,
        at(5),
        visible=everything,
        columns=frozenset({"value"}),
        max_rows=1,
    )
    next(iter(batches))
    log.trim(SEGMENT, at(4))
    with pytest.raises(DataLossError, match="removed by retention"):
        list(batches)


def test_trimming_more_than_there_is_keeps_the_numbering(log: EmbeddedSegmentLog) -> None:
    write(log, *[b"%d" % i for i in range(300)])
    assert log.trim(SEGMENT, at(10_000)) == at(299)
    assert log.last_confirmed(SEGMENT) == at(299)
    assert log.measure(SEGMENT, EARLIEST, at(299)) == RangeSize(0, 0, 0, exact=True)
    write(log, b"next")
    assert log.last_confirmed(SEGMENT) == at(300)
    assert values(log, at(299)) == [b"next"]
    assert log.measure(SEGMENT, at(299), at(300)).messages == 1


def test_an_entry_that_the_server_lost_is_reported(
    log: EmbeddedSegmentLog, redis_client: redis.Redis
) -> None:
    write(log, b"a", b"b", b"c")
    redis_client.xdel("{seg:s1}:log", "1-1")
    with pytest.raises(DataLossError, match="he server has lost data"):
        values(log)
    redis_client.xdel("{seg:s1}:log-index", "1-1")
    with pytest.raises(DataLossError, match="he server has lost data"):
        values(log)


def test_an_end_that_the_log_does_not_reach_is_reported(log: EmbeddedSegmentLog) -> None:
    write(log, b"a")
    with pytest.raises(DataLossError, match="ends at 1:0"):
        values(log, end=at(1))


def test_a_position_of_another_backend_is_reported(log: EmbeddedSegmentLog) -> None:
    with pytest.raises(DataLossError, match="another backend"):
        values(log, end=Position(4711, 0))


def test_measuring_is_exact_between_any_two_positions(log: EmbeddedSegmentLog) -> None:
    writer = log.writer(SEGMENT, "w")
    sizes = []
    for i in range(1, 8):
        writer.append(rows(*[b"x"] * i))
        sizes.append(writer.flush().bytes)
    writer.close()
    log.trim(SEGMENT, at(1))
    for start in range(1, 7):
        for end in range(start, 7):
            assert log.measure(SEGMENT, at(start), at(end)) == RangeSize(
                entries=end - start,
                messages=sum(range(start + 2, end + 2)),
                bytes=sum(sizes[start + 1 : end + 1]),
                exact=True,
            )


@settings(deadline=None, max_examples=50)  # each example waits for some syncs of the disk
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=12),
    start=st.integers(-1, 12),
    length=st.integers(0, 13),
    max_messages=st.one_of(st.none(), st.integers(0, 40)),
    parts=st.integers(1, 6),
)
def test_limits_and_splits_agree_with_a_plain_count(
    redis_path: str,
    sizes: list[int],
    start: int,
    length: int,
    max_messages: int | None,
    parts: int,
) -> None:
    client = redis.Redis(unix_socket_path=f"{redis_path}/redis.sock")
    client.flushall()
    log = EmbeddedSegmentLog(client)
    log.create(SEGMENT)
    writer = log.writer(SEGMENT, "w")
    for size in sizes:
        writer.append(rows(*[b"x"] * size))
        writer.flush()
    writer.close()
    first = min(start, len(sizes) - 1)
    last = min(first + length, len(sizes) - 1)
    begin, end = (at(n) if n >= 0 else EARLIEST for n in (first, last))

    reached = log.limit(SEGMENT, begin, end, max_messages, None)
    fitting = first
    while fitting < last and (
        max_messages is None or sum(sizes[first + 1 : fitting + 2]) <= max_messages
    ):
        fitting += 1
    expected = min(max(fitting, first + 1), last)
    assert reached == (at(expected) if expected >= 0 else EARLIEST)

    ends = log.split(SEGMENT, begin, end, parts)
    assert len(ends) <= parts
    if first < last:
        assert ends[-1] == end
        assert [begin, *ends] == sorted({begin, *ends})
    else:
        assert ends == []
    client.close()


def test_a_byte_limit_is_kept_but_one_entry_is_always_taken(log: EmbeddedSegmentLog) -> None:
    write(log, *[b"x" * 1000 for _ in range(10)])
    one = log.measure(SEGMENT, at(0), at(1)).bytes
    assert log.limit(SEGMENT, EARLIEST, at(9), None, 1) == at(0)
    assert log.limit(SEGMENT, EARLIEST, at(9), None, one * 3) == at(2)
    assert log.limit(SEGMENT, EARLIEST, at(9), 2, one * 3) == at(1)
    assert log.limit(SEGMENT, EARLIEST, at(9), None, one * 100) == at(9)


def test_a_split_balances_the_bytes(log: EmbeddedSegmentLog) -> None:
    write(log, *[b"x" * 1000 for _ in range(8)])
    assert log.split(SEGMENT, EARLIEST, at(7), 4) == [at(1), at(3), at(5), at(7)]
    assert log.split(SEGMENT, EARLIEST, at(7), 1) == [at(7)]
    log.trim(SEGMENT, at(5))
    assert log.split(SEGMENT, EARLIEST, at(4), 4) == [at(4)], "a range that is gone stays a range"


def test_a_lost_connection_fails_the_writer_for_good(
    log: EmbeddedSegmentLog, redis_client: redis.Redis
) -> None:
    writer = log.writer(SEGMENT, "w")
    writer.append(rows(b"a"))
    writer.flush()
    redis_client.client_pause(60_000, all=False)  # else its reply might be there already
    try:
        writer.append(rows(b"b" * 600_000))  # in flight
        connection: Any = log._lanes.by_pool[redis_client.connection_pool]._live()
        connection._sock.shutdown(socket.SHUT_RDWR)
        with pytest.raises(SegmentLogUnavailableError):
            writer.flush()
    finally:
        redis_client.client_unpause()
    with pytest.raises(SegmentLogError, match="new name"):
        writer.flush()
    assert writer.acknowledged().entries == 1
    writer.close()
    assert values(log)[:1] == [b"a"]


def test_a_connection_that_is_lost_while_nothing_is_in_flight_is_replaced(
    log: EmbeddedSegmentLog, redis_client: redis.Redis
) -> None:
    writer = log.writer(SEGMENT, "w")
    writer.append(rows(b"a"))
    writer.flush()
    redis_client.client_kill_filter(_type="normal", skipme=True)
    redis_client.script_flush()
    writer.append(rows(b"b"))
    writer.flush()
    writer.close()
    assert values(log) == [b"a", b"b"]


def test_a_connection_that_was_closed_before_the_receipts_came_is_not_opened_again(
    log: EmbeddedSegmentLog, redis_client: redis.Redis
) -> None:
    # As by close_all() in another thread. redis-py would connect anew without a word, and the
    # receipt of the second entry would be taken for that of the first.
    writer = log.writer(SEGMENT, "w")
    writer.append(rows(b"x" * 600_000))
    redis_client.connection_pool.disconnect()
    with pytest.raises(SegmentLogUnavailableError, match="closed before"):
        writer.append(rows(b"y" * 600_000))
    assert writer.acknowledged().entries == 0
    writer.close()
    assert b"y" * 600_000 not in values(log)


def test_writers_of_a_thread_share_a_connection_and_hold_none_in_between(
    log: EmbeddedSegmentLog, redis_client: redis.Redis
) -> None:
    def connections() -> int:
        return int(redis_client.info("clients")["connected_clients"])

    pool = redis_client.connection_pool
    in_use_before = in_use(pool)  # by whatever this process has left open
    before = connections()
    segments = [SegmentRef(f"many-{n}", SEGMENT.topic, f"many-{n}") for n in range(256)]
    for segment in segments:
        log.create(segment)
    writers = [log.writer(segment, "w") for segment in segments]
    for writer in writers:
        writer.append(rows(b"x" * 600_000))  # more than is gathered: it is sent at once
    assert connections() <= before + 1
    receipts = [writer.flush() for writer in writers]
    assert [receipt.last for receipt in receipts] == [Position(1, 0)] * len(segments)
    assert in_use(pool) <= in_use_before
    for writer in writers:
        writer.close()


def test_a_thread_that_ends_with_appends_in_flight_gives_its_connection_back(
    log: EmbeddedSegmentLog, redis_client: redis.Redis
) -> None:
    pool = redis_client.connection_pool
    in_use_before = in_use(pool)

    def append() -> None:
        log.writer(SEGMENT, "w").append(rows(b"x" * 600_000))
        assert len(in_use(pool) - in_use_before) == 1

    with ThreadPoolExecutor(1) as thread:
        thread.submit(append).result()
    gc.collect()
    assert in_use(pool) <= in_use_before


def test_one_writers_refusal_is_not_anothers(log: EmbeddedSegmentLog) -> None:
    other = SegmentRef("s2", SEGMENT.topic, "s2")
    log.create(other)
    sealed, open_ = log.writer(SEGMENT, "w"), log.writer(other, "w")
    log.seal(SEGMENT)
    sealed.append(rows(b"x" * 600_000))
    open_.append(rows(b"y" * 600_000))
    assert open_.flush().entries == 1  # reads what was said to the other one as well
    with pytest.raises(SegmentSealedError):
        sealed.append(rows(b"z" * 600_000))
    assert sealed.acknowledged().entries == 0
    sealed.close()
    open_.append(rows(b"y"))
    assert open_.flush().last == Position(1, 1)
    open_.close()


def test_an_entry_behind_a_refused_one_is_not_counted(
    log: EmbeddedSegmentLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The bound of a writer is its last receipt: below it there must be no hole.
    writer = log.writer(SEGMENT, "w")
    with monkeypatch.context() as patch:
        patch.setattr(writer, "_digest", "0" * 40)  # the server knows no such script
        writer.append(rows(b"x" * 600_000))
    writer.append(rows(b"y" * 600_000))
    with pytest.raises(SegmentLogUnavailableError):
        writer.flush()
    other = log.writer(SEGMENT, "other")
    other.append(rows(b"z"))
    other.flush()  # reads all that is outstanding
    assert writer.acknowledged().entries == 0
    writer.close()
    other.close()


def test_receipts_that_nobody_read_do_not_reach_the_next_user_of_the_connection(
    log: EmbeddedSegmentLog,
) -> None:
    writer = log.writer(SEGMENT, "w")
    writer.append(rows(b"x" * 600_000))
    writer.close()
    assert log.trimmed_to(SEGMENT) == EARLIEST
    write(log, b"a", name="next")
    assert values(log, visible=lambda writer, _: writer == "next") == [b"a"]


def test_a_receipt_that_does_not_ascend_is_no_receipt(
    log: EmbeddedSegmentLog, redis_client: redis.Redis
) -> None:
    writer = log.writer(SEGMENT, "w")
    writer.append(rows(b"a"))
    writer.flush()
    redis_client.delete("{seg:s1}:log", "{seg:s1}:log-index", "{seg:s1}:log-state")
    log.create(SEGMENT)  # the store was wiped and made anew behind the writer's back
    writer.append(rows(b"b"))
    with pytest.raises(UnverifiedReceiptError):
        writer.flush()
    writer.close()


def test_a_full_server_refuses_the_append_and_says_so(
    log: EmbeddedSegmentLog, limit_memory: Callable[[int], None]
) -> None:
    limit_memory(1 << 20)
    writer = log.writer(SEGMENT, "w")
    writer.append(rows(b"x" * 600_000))
    writer.append(rows(b"x" * 600_000))
    with pytest.raises(SegmentLogUnavailableError, match="maxmemory"):
        writer.flush()
    writer.close()


def test_every_error_survives_pickling_and_names_the_segment(log: EmbeddedSegmentLog) -> None:
    log.seal(SEGMENT)
    with pytest.raises(SegmentSealedError) as caught:
        write(log, b"a")
    again = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(again, SegmentSealedError)
    assert "s1" in str(again)


def test_the_embedded_log_is_a_segment_log(log: EmbeddedSegmentLog) -> None:
    as_protocol: SegmentLog = log
    assert as_protocol.backend == "embedded"
    as_protocol.close()
    assert log.last_confirmed(SEGMENT) == EARLIEST


def test_what_is_sent_is_no_receipt_before_it_is_acknowledged(log: EmbeddedSegmentLog) -> None:
    # High-position is raised to receipts. Above what is acknowledged, a pin would bound nothing.
    writer = log.writer(SEGMENT, "w")
    writer.append(rows(b"x" * 600_000))
    assert writer.acknowledged().last is None
    assert writer.flush().last == Position(1, 0)
    assert writer.acknowledged().last == Position(1, 0)
    writer.close()
