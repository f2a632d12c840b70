"""Messages in several chunks, of which a range holds only the last ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from pulsar_txn_spark.backends.pulsar.pulsar_pb2 import MessageMetadata
from pulsar_txn_spark.backends.pulsar.wire import reader
from pulsar_txn_spark.backends.pulsar.wire.reader import EntryRows, WireEntry
from pulsar_txn_spark.errors import SegmentLogError
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.log import SegmentRef

SEGMENT = SegmentRef("s1", "topic://public/default/t", "persistent://public/default/s1")


def chunk(at: int, number: int, payload: bytes, uuid: str = "p-0") -> WireEntry:
    metadata = MessageMetadata(
        producer_name="p",
        sequence_id=0,
        publish_time=1,
        uuid=uuid,
        num_chunks_from_msg=3,
        chunk_id=number,
        total_chunk_msg_size=3 * len(payload),
    )
    return WireEntry(Position(7, at), metadata, payload)


def rows_of(log: Sequence[WireEntry]) -> EntryRows:
    def entries(start: Position, end: Position) -> Iterator[WireEntry]:
        return (entry for entry in log if start < entry.position < end)

    return EntryRows(frozenset({"value"}), 100, SEGMENT, entries)


def read(log: Sequence[WireEntry], start: int, end: int) -> list[bytes]:
    rows = rows_of(log)
    for entry in log:
        if Position(7, start) < entry.position <= Position(7, end):
            rows.add(entry)
    return [
        value for batch in rows.batches(everything=True) for value in batch.column(0).to_pylist()
    ]


@pytest.mark.parametrize("cut", range(-1, 5))
def test_chunks_of_a_message_that_was_never_whole_join_no_other_message(cut: int) -> None:
    """A producer that dies and starts again under its name may use an id twice."""
    old = [chunk(0, 0, b"old 0 "), chunk(1, 1, b"old 1 ")]
    new = [chunk(2, 0, b"new 0 "), chunk(3, 1, b"new 1 "), chunk(4, 2, b"new 2")]
    log = old + new
    assert read(log, -1, cut) + read(log, cut, 4) == [b"new 0 new 1 new 2"]


def test_a_last_chunk_that_was_sent_again_costs_no_look_at_the_whole_topic() -> None:
    # A client whose receipt was lost with the connection, on a topic without deduplication.
    plain = [
        WireEntry(Position(7, at), MessageMetadata(producer_name="q"), b"v") for at in range(500)
    ]
    chunks = [chunk(500 + n, number, b"%d" % number) for n, number in enumerate((0, 1, 2, 2, 2))]
    log, looked_from = plain + chunks, []

    def entries(start: Position, end: Position) -> Iterator[WireEntry]:
        looked_from.append(start)
        return (entry for entry in log if start < entry.position < end)

    for first, expected in ((500, [b"012"]), (503, [])):
        rows = EntryRows(frozenset({"value"}), 100, SEGMENT, entries)
        for entry in log[first:]:
            rows.add(entry)
        found = [value for batch in rows.batches(everything=True) for value in batch.column(0)]
        assert [value.as_py() for value in found] == expected
    assert min(looked_from) > Position(7, 450)
    assert len(looked_from) == 2, "once for each range"


def test_what_is_read_again_of_a_message_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_PAYLOAD_BYTES", 100)
    log = [chunk(0, 0, b"a" * 60), chunk(1, 1, b"b" * 60), chunk(2, 2, b"c")]
    with pytest.raises(SegmentLogError, match="exceeds 100 bytes"):
        rows_of(log)._look_back(log[2])


def test_what_is_kept_of_messages_that_are_never_whole_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader, "MAX_PAYLOAD_BYTES", 100)
    log = [
        chunk(0, 0, b"a" * 30, "wanted"),
        *(chunk(1 + n, 0, b"x" * 30, f"orphan-{n}") for n in range(20)),
        chunk(21, 1, b"b" * 30, "wanted"),
        chunk(22, 2, b"c" * 30, "wanted"),
    ]
    rows, most = rows_of(log), 0
    for entry in log:
        rows.add(entry)
        most = max(most, sum(len(p) for kept in rows._chunks.values() for p in kept.parts))
    assert most <= 100
    [batch] = rows.batches(everything=True)
    assert batch.column(0).to_pylist() == [b"a" * 30 + b"b" * 30 + b"c" * 30]
