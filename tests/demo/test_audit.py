from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pyarrow as pa

from demo.audit import Audit, Entry, audit, hidden_by_broker
from pulsar_txn_spark.backends.pulsar.admin_api import EntryHeader
from pulsar_txn_spark.backends.pulsar.ledgers import Ledger, ManagedLedger
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import SegmentRef, Visible

SEGMENT = SegmentRef("s", "topic://public/default/t", "log")


class FakeLog:
    """As much of a segment log as an audit reads: entries of (position, writer, rows)."""

    backend = "fake"

    def __init__(self, *entries: tuple[Position, str, int]) -> None:
        self._entries = entries

    def last_confirmed(self, segment: SegmentRef) -> Position:
        return max((position for position, _, _ in self._entries), default=EARLIEST)

    def read(
        self,
        segment: SegmentRef,
        start: Position,
        end: Position,
        *,
        visible: Visible,
        columns: frozenset[str],
        max_rows: int,
    ) -> Iterator[pa.RecordBatch]:
        assert columns == {"ledger", "entry"}
        for position, writer, rows in self._entries:
            if start < position <= end and visible(writer, position):
                # In two batches: an entry's rows need not come at once.
                for part in (rows // 2, rows - rows // 2):
                    yield pa.record_batch(
                        {"ledger": [position.ledger] * part, "entry": [position.entry] * part},
                        schema=pa.schema([("ledger", pa.int64()), ("entry", pa.int64())]),
                    )


LOG = FakeLog(
    (Position(1, 0), "committed", 10),
    (Position(1, 1), "aborted", 7),
    (Position(2, 0), "committed", 5),
    (Position(2, 1), "half", 3),
    (Position(2, 2), "half", 4),
    (Position(2, 3), "aborted", 1),
)


def visible(writer: str, position: Position) -> bool:
    return writer != "aborted" and not (writer == "half" and position > Position(2, 1))


def test_an_audit_counts_what_no_reader_is_shown() -> None:
    found = audit(LOG, SEGMENT, visible)  # type: ignore[arg-type]
    assert found == Audit(30, 12, 3, frozenset({"aborted", "half"}))


def test_an_audit_counts_what_the_log_itself_hides() -> None:
    hidden = [Entry(Position(2, 4), "aborted", 8), Entry(Position(3, 0), "lost", 2)]
    found = audit(LOG, SEGMENT, lambda w, p: w != "lost" and visible(w, p), lambda _: hidden)  # type: ignore[arg-type]
    assert found == Audit(40, 22, 5, frozenset({"aborted", "half", "lost"}))


def test_the_entries_that_a_broker_hides_are_found_by_its_admin_api() -> None:
    headers = {
        Position(1, 1): EntryHeader(True, "", 0, 1, messages=4, producer="lost"),
        Position(5, 0): EntryHeader(True, "", 0, 1, messages=1, producer="late"),
    }
    ledgers = (Ledger(1, 2, 100), Ledger(5, 1, 100))
    admin = SimpleNamespace(
        managed_ledger=lambda _: ManagedLedger(1, ledgers, Position(5, 0), 3),
        entry_header=lambda _, position: headers[position],
    )
    assert list(hidden_by_broker(admin, "t", {Position(1, 0)})) == [  # type: ignore[arg-type]
        Entry(Position(1, 1), "lost", 4),
        Entry(Position(5, 0), "late", 1),
    ]


def test_audits_of_segments_add_up() -> None:
    found = audit(LOG, SEGMENT, visible)  # type: ignore[arg-type]
    assert found + Audit(1, 1, 1, frozenset({"x"})) == Audit(
        31, 13, 4, frozenset("x") | found.aborted_writers
    )


def test_an_empty_log_holds_nothing() -> None:
    assert audit(FakeLog(), SEGMENT, visible) == Audit()  # type: ignore[arg-type]
