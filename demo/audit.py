"""What physically lies in a segment's log, beside what a reader is shown of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from pulsar_txn_spark.backends.pulsar.admin_api import PulsarAdmin
from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import SegmentLog, SegmentRef, Visible
from pulsar_txn_spark.segments.topic_name import TopicName

_BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class Audit:
    """The contents of one or several segments' logs; counts of messages, and of entries.

    Parameters
    ----------
    rows : int
        Messages that lie in the log.
    aborted_rows, aborted_entries : int
        Those of them that no reader is ever shown.
    aborted_writers : frozenset of str
        Who left them behind.
    """

    rows: int = 0
    aborted_rows: int = 0
    aborted_entries: int = 0
    aborted_writers: frozenset[str] = frozenset()

    def __add__(self, other: Audit) -> Audit:
        return Audit(
            self.rows + other.rows,
            self.aborted_rows + other.aborted_rows,
            self.aborted_entries + other.aborted_entries,
            self.aborted_writers | other.aborted_writers,
        )


class Entry(NamedTuple):
    """An entry of a log: where it lies, who wrote it, and how many messages it holds."""

    position: Position
    writer: str
    rows: int


Hidden = Callable[[Container[Position]], Iterable[Entry]]
"""Gives what a log does not show, but for the positions that it has shown."""


def audit(
    log: SegmentLog, segment: SegmentRef, visible: Visible, hidden: Hidden = lambda _: ()
) -> Audit:
    """Read all that lies in a segment, the invisible too, and sort it by what `visible` says.

    Parameters
    ----------
    log : SegmentLog
    segment : SegmentRef
    visible : callable
        What decides for a reader of this segment now.
    hidden : callable
        What the log itself shows to nobody.
    """
    writers: dict[Position, str] = {}

    def note(writer: str, position: Position) -> bool:
        writers[position] = writer
        return True

    rows: Counter[Position] = Counter()
    for batch in log.read(
        segment,
        EARLIEST,
        log.last_confirmed(segment),
        visible=note,
        columns=frozenset({"ledger", "entry"}),
        max_rows=_BATCH_ROWS,
    ):
        counted = (
            pa.Table.from_batches([batch])
            .group_by(["ledger", "entry"])
            .aggregate([([], "count_all")])
        )
        for row in counted.to_pylist():
            rows[Position(row["ledger"], row["entry"])] += row["count_all"]
    for entry in hidden(rows):
        writers[entry.position] = entry.writer
        rows[entry.position] = entry.rows
    aborted = [position for position in rows if not visible(writers[position], position)]
    return Audit(
        rows.total(),
        sum(rows[position] for position in aborted),
        len(aborted),
        frozenset(writers[position] for position in aborted),
    )


def hidden_by_broker(admin: PulsarAdmin, topic: str, shown: Container[Position]) -> Iterator[Entry]:
    """Yield the entries of a gated segment that its broker sends to nobody.

    Pulsar's admin API shows them, one at a time.
    """
    for ledger in admin.managed_ledger(topic).ledgers:
        for entry in range(ledger.entries):
            position = Position(ledger.id, entry)
            if position not in shown:
                header = admin.entry_header(topic, position)
                yield Entry(position, header.producer, header.messages)


def in_order(
    components: Components, topic: TopicName
) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Yield key and value of every committed row, so that a key's rows come as they were written.

    Parents stand before their children in a topology, and a key's rows lie in one segment at a
    time.
    """
    for segment in components.topics.require(topic).readable:
        ref = segment.ref
        confirmed = components.log.last_confirmed(ref)
        [readable] = components.buffer.readable(
            [ref.id], {ref.id: confirmed}.__getitem__, [EARLIEST]
        )
        for batch in components.log.read(
            ref,
            components.log.trimmed_to(ref),
            readable.end,
            visible=readable.visibility,
            columns=frozenset({"key", "value"}),
            max_rows=_BATCH_ROWS,
        ):
            names = batch.schema.names
            keys, values = (
                batch.column(names.index(name)).to_pylist() for name in ("key", "value")
            )
            yield from zip(keys, values, strict=True)
