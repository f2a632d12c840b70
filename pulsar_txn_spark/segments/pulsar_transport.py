"""How rows get to Pulsar's topics and back: through ``pulsar-client``, or our own wire protocol."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pulsar
import pyarrow as pa

from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments import pulsar_client
from pulsar_txn_spark.segments.log import SegmentRef, SegmentWriter
from pulsar_txn_spark.segments.pulsar_errors import translate
from pulsar_txn_spark.segments.pulsar_reader import EntryFeed, RowCollector, reader_settings
from pulsar_txn_spark.segments.pulsar_writer import PulsarSegmentWriter, WriterSettings
from pulsar_txn_spark.segments.wire import client as wire_client
from pulsar_txn_spark.segments.wire.connection import RefusedError
from pulsar_txn_spark.segments.wire.producer import WireSegmentWriter, WireWriterSettings
from pulsar_txn_spark.segments.wire.reader import EntryRows, WireEntryFeed, WireReaderSettings
from pulsar_txn_spark.segments.wire.settings import ConnectionSettings, client_needed

_LOG = logging.getLogger(__name__)


class Entry(Protocol):
    """An entry that was read."""

    @property
    def position(self) -> Position:
        """Return where it stands."""
        ...

    @property
    def producer_name(self) -> str:
        """Return who wrote it."""
        ...


class Feed(Protocol):
    """Entries of one segment in order."""

    def next_entry(self, previous: Position) -> Entry | None:
        """Return the entry after `previous`, None if the broker has none."""
        ...

    def close(self) -> None:
        """Let go of the connection."""
        ...


class Rows(Protocol):
    """Collects entries' rows."""

    def add(self, entry: Any) -> None:
        """Add an entry of the same transport's feed."""
        ...

    def batches(self, *, everything: bool) -> Iterator[pa.RecordBatch]:
        """Yield full batches, and with `everything` the rest too."""
        ...


class Transport(Protocol):
    """One way to a topic's rows; its connections are shared within the process."""

    def reach(self, segment: SegmentRef, service_url: str) -> None:
        """Raise unless the broker answers for the topic."""
        ...

    def writer(
        self, segment: SegmentRef, name: str, before_report: Callable[[], None]
    ) -> SegmentWriter:
        """Open a writer of that name."""
        ...

    def feed(self, segment: SegmentRef, start: Position) -> Feed:
        """Open a reader of what comes after `start`."""
        ...

    def rows(self, segment: SegmentRef, columns: frozenset[str], max_rows: int) -> Rows:
        """Return what makes record batches of a feed's entries."""
        ...

    def release(self) -> None:
        """Give the connections back."""
        ...


class ClientTransport:
    """Through ``pulsar-client``.

    Parameters
    ----------
    config : PulsarConfig
        Options.
    receiver_queue : Callable
        Returns how many messages a reader of a segment may prefetch.
    max_message_bytes : Callable
        Returns the broker's limit, for an error message.

    Raises
    ------
    OptionError
        If an option is unknown, refused or malformed.
    """

    def __init__(
        self,
        config: PulsarConfig,
        receiver_queue: Callable[[SegmentRef, Position], int],
        max_message_bytes: Callable[[], int],
    ) -> None:
        self._config = config
        self._writer_settings = WriterSettings.of(config)
        self._reader_settings = reader_settings(config)
        self._receiver_queue = receiver_queue
        self._max_message_bytes = max_message_bytes
        self._client = pulsar_client.CLIENTS.acquire(config)

    def reach(self, segment: SegmentRef, service_url: str) -> None:
        """Ask for the topic's partitions; see the Protocol."""
        try:
            self._client.get_topic_partitions(segment.log_name)
        except pulsar.PulsarException as failed:
            doing = f"reach {service_url} for"
            raise translate(type(failed).__name__, doing, segment) from failed

    def writer(
        self, segment: SegmentRef, name: str, before_report: Callable[[], None]
    ) -> SegmentWriter:
        """Open a producer; see the Protocol."""
        settings = self._writer_settings
        try:
            producer = self._client.create_producer(
                segment.log_name, producer_name=name, **settings.producer
            )
        except pulsar.PulsarException as failed:
            raise translate(type(failed).__name__, "open a writer of", segment) from failed
        return PulsarSegmentWriter(
            segment,
            producer,
            settings,
            before_report=before_report,
            max_message_bytes=self._max_message_bytes,
        )

    def feed(self, segment: SegmentRef, start: Position) -> EntryFeed:
        """Open a reader; see the Protocol."""
        settings = dict(self._reader_settings)
        if "receiver_queue_size" not in settings:
            settings["receiver_queue_size"] = self._receiver_queue(segment, start)
        # The entry after `start`, or the first one of a later ledger if there is none.
        first = pulsar.MessageId(-1, start.ledger, start.entry + 1, -1)
        if start == EARLIEST:
            first = pulsar.MessageId.earliest
        try:
            reader = self._client.create_reader(
                segment.log_name, first, start_message_id_inclusive=True, **settings
            )
        except pulsar.PulsarException as failed:
            raise translate(type(failed).__name__, "open a reader of", segment) from failed
        return EntryFeed(reader, segment)

    def rows(self, _segment: SegmentRef, columns: frozenset[str], max_rows: int) -> RowCollector:
        """See the Protocol."""
        return RowCollector(columns, max_rows)

    def release(self) -> None:
        """Give the client back."""
        pulsar_client.CLIENTS.release(self._config)


class WireTransport:
    """Through Pulsar's binary protocol.

    Parameters
    ----------
    config : PulsarConfig
        Options.

    Raises
    ------
    OptionError
        If an option is unknown, refused or malformed, or only ``pulsar-client`` can serve it.
    """

    def __init__(self, config: PulsarConfig) -> None:
        self._config = config
        self._writer_settings = WireWriterSettings.of(config)
        self._reader_settings = WireReaderSettings.of(config)
        self._client = wire_client.CLIENTS.acquire(config)

    def reach(self, segment: SegmentRef, service_url: str) -> None:
        """Look the topic up and connect; see the Protocol."""
        try:
            self._client.reach(segment.log_name)
        except RefusedError as refused:
            doing = f"reach {service_url} for"
            raise translate(refused.result, doing, segment, refused.detail) from None

    def writer(
        self, segment: SegmentRef, name: str, before_report: Callable[[], None]
    ) -> SegmentWriter:
        """Open a producer; see the Protocol."""
        return WireSegmentWriter(
            segment, name, self._client, self._writer_settings, before_report=before_report
        )

    def feed(self, segment: SegmentRef, start: Position) -> WireEntryFeed:
        """Open a reader; see the Protocol."""
        return WireEntryFeed(segment, start, self._client, self._reader_settings)

    def rows(self, segment: SegmentRef, columns: frozenset[str], max_rows: int) -> EntryRows:
        """See the Protocol."""
        return EntryRows(columns, max_rows, segment)

    def release(self) -> None:
        """Give the connections back."""
        wire_client.CLIENTS.release(self._config)


def choose(config: PulsarConfig) -> str:
    """Return ``wire`` or ``client``: ``auto`` is wire unless an option needs the client.

    Raises
    ------
    OptionError
        If an option is unknown, refused or malformed, or wire is asked for and cannot serve it.
    """
    if config.transport == "wire":
        ConnectionSettings.of(config)
        return "wire"
    if config.transport == "client":
        return "client"
    reason = client_needed(config)
    chosen = "wire" if reason is None else "client"
    _LOG.info("transport %s: %s", chosen, reason or "no option needs pulsar-client")
    return chosen
