"""The control topic of a sink under Pulsar's own transactions, on a broker.

A topic without partitions in the namespace of the sink's topic. A subscription of this package
retains what is needed; :meth:`ControlTopic.trim` lets the rest go. See
:mod:`pulsar_txn_spark.txn.native_history` for the records.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from pulsar_txn_spark.backends.pulsar.admin_api import PulsarAdmin
from pulsar_txn_spark.backends.pulsar.log import INTERNAL_SUBSCRIPTION
from pulsar_txn_spark.backends.pulsar.txn_bits import TxnBits
from pulsar_txn_spark.backends.pulsar.wire.client import WireClient, explain
from pulsar_txn_spark.backends.pulsar.wire.connection import RefusedError
from pulsar_txn_spark.backends.pulsar.wire.cursor import WireCursor
from pulsar_txn_spark.backends.pulsar.wire.producer import WireSegmentWriter, WireWriterSettings
from pulsar_txn_spark.backends.pulsar.wire.reader import (
    EntryRows,
    WireEntry,
    WireEntryFeed,
    WireReaderSettings,
)
from pulsar_txn_spark.errors import OptionError, SegmentLogUnavailableError
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.log import SegmentRef

CONTROL_PROPERTY = "pulsar_txn_spark.sink"
"""Topic property: the sink whose control topic it is. It is set once the topic retains its data."""

_PREFIX = "__pulsar_txn_spark-sink-"  # no source takes such a name for a topic with data
_POLL_SECONDS = 0.02


class ControlTopic:
    """A sink's control topic.

    Parameters
    ----------
    client : WireClient
    admin : PulsarAdmin
    namespace : str
        ``tenant/namespace``.
    sink : str
        The sink's id.
    """

    _asks_last = True

    def __init__(self, client: WireClient, admin: PulsarAdmin, namespace: str, sink: str) -> None:
        digest = hashlib.sha256(sink.encode()).hexdigest()[:32]
        self.name = f"persistent://{namespace}/{_PREFIX}{digest}"
        self._client, self._admin, self._sink = client, admin, sink
        self._segment = SegmentRef(self.name, self.name, self.name)
        self._timeout_s = client.settings.operation_s
        self._ready = False

    def create(self) -> None:
        """Create the topic, with all that keeps its records; idempotent.

        Raises
        ------
        OptionError
            If a topic of that name is another sink's.
        SegmentLogError
        """
        if self._ready:
            return
        properties = self._admin.properties(self.name)
        owner = None if properties is None else properties.get(CONTROL_PROPERTY)
        if owner not in (None, self._sink):
            raise OptionError(
                f"the control topic {self.name} is that of sink {owner!r}, expected "
                f"{self._sink!r}: choose another sinkId"
            )
        if owner is None:
            if properties is None:
                self._admin.create_topic(self.name)
            self._admin.create_subscription(self.name, INTERNAL_SUBSCRIPTION)
            self._admin.keep_all_data(self.name)
            self._admin.retain_nothing(self.name)  # beyond what the subscription needs
            self._admin.set_properties(self.name, {CONTROL_PROPERTY: self._sink})
        else:
            self._admin.require_no_expiry(self.name)
        self._ready = True

    def append(self, record: bytes, txn: TxnBits | None = None) -> Position:
        """Append a record, as part of a transaction or visible at once; return its position.

        Raises
        ------
        SegmentLogError
            If the record may or may not be there, too.
        """
        writer = WireSegmentWriter(
            self._segment,
            f"pulsar-txn-spark-{secrets.token_hex(8)}",
            self._client,
            WireWriterSettings(timeout_s=self._timeout_s),
            before_report=lambda _last: None,
            bits=txn,
            native=txn is not None,
        )
        try:
            writer.append(pa.record_batch({"value": pa.array([record], pa.binary())}))
            last = writer.flush().last
        finally:
            writer.close()
        assert last is not None
        return last

    def kept_from(self) -> Position:
        """Return the position behind which all records are that still count."""
        return self._admin.acknowledged_by(self.name, INTERNAL_SUBSCRIPTION)

    def trim(self, first: Position) -> None:
        """Let go of what lies before a record."""
        self._admin.move_subscription(self.name, INTERNAL_SUBSCRIPTION, first)

    def read(
        self,
        start: Position,
        end: Position,
        take: Callable[[bytes, Position], None],
        blocked: Callable[[], None],
    ) -> None:
        """Hand over the committed records of ``(start, end]`` in order.

        Parameters
        ----------
        start, end : Position
            The last one is that of a record without a transaction, or of a committed one.
        take : Callable
            Gets a record and its position.
        blocked : Callable
            Called, possibly more than once, while an open transaction hides what follows.

        Raises
        ------
        SegmentLogUnavailableError
            If the record at `end` does not show in time.
        """
        feed = WireEntryFeed(
            self._segment,
            start,
            self._client,
            WireReaderSettings(poll_s=_POLL_SECONDS, asks_last=self._asks_last),
        )
        deadline = time.monotonic() + self._timeout_s
        previous = start
        try:
            while previous < end:
                entry = feed.next_entry(previous)
                if entry is None:
                    if time.monotonic() > deadline:
                        raise SegmentLogUnavailableError(
                            f"the control topic {self.name} shows nothing behind {previous}, "
                            f"expected the record at {end}: a transaction is still open in it. "
                            "Nothing was committed; start the query again, and look into the "
                            "broker's log if that does not help"
                        )
                    blocked()
                    continue
                previous = entry.position
                if previous <= end:
                    take(self._value(entry), previous)
        finally:
            feed.close()

    def _value(self, entry: WireEntry) -> bytes:
        rows = EntryRows(frozenset({"value"}), 1, self._segment, lambda *_: iter(()))
        rows.add(entry)
        (batch,) = rows.batches(everything=True)
        (row,) = batch.to_pylist()
        value: bytes = row["value"]
        return value


class ScalableControlTopic(ControlTopic):
    """The control topic of a sink into scalable topics: one of one segment, never split.

    A transaction of scalable topics covers no other topics, and so the records are in one.

    Parameters
    ----------
    client : WireClient
    admin : PulsarAdmin
    namespace : str
        ``tenant/namespace``.
    sink : str
        The sink's id.
    """

    _asks_last = False  # segments of 5.0.0-M1 do not know their last message

    def __init__(self, client: WireClient, admin: PulsarAdmin, namespace: str, sink: str) -> None:
        super().__init__(client, admin, namespace, sink)
        self._topic = self.name.partition("://")[2]
        self.name = f"segment://{self._topic}/0000-ffff-0"
        self._segment = SegmentRef(self.name, self.name, self.name)

    def create(self) -> None:
        """Create the topic, with all that keeps its records; idempotent.

        Raises
        ------
        OptionError
            If a topic of that name is another sink's, or was split.
        SegmentLogError
        """
        if self._ready:
            return
        metadata = self._admin.scalable_topic(self._topic)
        if metadata is None:
            self._admin.create_scalable_topic(self._topic, {CONTROL_PROPERTY: self._sink})
            metadata = self._admin.scalable_topic(self._topic) or {}
        owner = metadata.get("properties", {}).get(CONTROL_PROPERTY)
        if owner != self._sink:
            raise OptionError(
                f"the control topic topic://{self._topic} is that of sink {owner!r}, expected "
                f"{self._sink!r}: choose another sinkId"
            )
        self._admin.never_scale(self._topic)
        segments = metadata.get("segments", {})
        if len(segments) != 1:
            raise OptionError(
                f"the control topic topic://{self._topic} was split: expected one segment, found "
                f"{len(segments)}. Its records have no order any more, so nothing was written; "
                "choose another sinkId, and set sinkFirstBatch to the batch to go on with"
            )
        self._admin.require_no_expiry(self.name)
        self._cursor().close()  # from now on nothing of it is deleted that is not acknowledged
        self._ready = True

    def kept_from(self) -> Position:
        """Return the position behind which all records are that still count."""
        with self._cursor() as cursor, self._explaining("read the cursor of"):
            return cursor.position()

    def trim(self, first: Position) -> None:
        """Let go of what lies before a record, if it does not begin a ledger."""
        if first.entry > 0:
            with self._cursor() as cursor, self._explaining("move the cursor of"):
                cursor.acknowledge(Position(first.ledger, first.entry - 1))

    def _cursor(self) -> WireCursor:
        with self._explaining("open the cursor of"):
            return WireCursor(self._client, self.name, INTERNAL_SUBSCRIPTION)

    @contextmanager
    def _explaining(self, doing: str) -> Iterator[None]:
        try:
            yield
        except RefusedError as refused:
            raise explain(refused, doing, self._segment) from None
