"""The transport through Pulsar's binary protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from pulsar_txn_spark.backends.pulsar.errors import translate
from pulsar_txn_spark.backends.pulsar.known_topics import KnownTopics
from pulsar_txn_spark.backends.pulsar.txn_bits import TxnBits
from pulsar_txn_spark.backends.pulsar.wire import client as wire_client
from pulsar_txn_spark.backends.pulsar.wire.connection import RefusedError
from pulsar_txn_spark.backends.pulsar.wire.producer import WireSegmentWriter, WireWriterSettings
from pulsar_txn_spark.backends.pulsar.wire.reader import (
    EntryRows,
    WireEntry,
    WireEntryFeed,
    WireReaderSettings,
)
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.redaction import redacted
from pulsar_txn_spark.segments.log import TRANSACTIONAL_WRITER, SegmentRef, SegmentWriter


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

    drops_chunks = False
    creates_missing = False
    opens_ahead = True

    def __init__(self, config: PulsarConfig) -> None:
        self._config = config
        self._writer_settings = WireWriterSettings.of(config)
        self._reader_settings = WireReaderSettings.of(config)
        self._client = wire_client.CLIENTS.acquire(config)

    def check_access(self, segment: SegmentRef, service_url: str) -> None:
        """Look the topic up and connect; see the Protocol."""
        try:
            self._client.check_access(segment.log_name)
        except RefusedError as refused:
            doing = f"reach {redacted(service_url)} for"
            raise translate(refused.result, doing, segment, refused.detail) from None

    def partitions(self, topic: str, ask_admin: Callable[[str], int | None]) -> int | None:
        """Ask any broker; see the Protocol."""
        try:
            return self._client.partitions(topic)
        except RefusedError as refused:
            if refused.result == "TopicNotFound":
                return None
            if refused.result == "UnsupportedVersionError":
                return ask_admin(topic)
            segment = SegmentRef(topic, topic, topic)
            raise translate(
                refused.result, "ask for the partitions of", segment, refused.detail
            ) from None

    def writer(
        self,
        segment: SegmentRef,
        name: str,
        before_report: Callable[[Position], None],
        bits: TxnBits | None = None,
        *,
        gated: bool = False,
    ) -> SegmentWriter:
        """Open a producer; see the Protocol."""
        return WireSegmentWriter(
            segment,
            name,
            self._client,
            self._writer_settings,
            before_report=before_report,
            bits=bits,
            gated=gated,
            shared=name.startswith(TRANSACTIONAL_WRITER),
        )

    def known_topics(self, segment: SegmentRef) -> KnownTopics | None:
        """Return what was learned since then; see the Protocol."""
        return self._client.known_topics(segment.log_name)

    def feed(self, segment: SegmentRef, start: Position, *, entries: int = 0) -> WireEntryFeed:
        """Open a reader, or take one that waits for this range; see the Protocol."""
        waiting: WireEntryFeed | None = None
        if entries:
            waiting = self._client.idle_feeds.take(segment.log_name, start)
        if waiting is not None:
            waiting.go_on(start, entries)
            return waiting
        return WireEntryFeed(segment, start, self._client, self._reader_settings, entries=entries)

    def rows(self, segment: SegmentRef, columns: frozenset[str], max_rows: int) -> EntryRows:
        """See the Protocol."""
        return EntryRows(columns, max_rows, segment, partial(self._entries, segment))

    def _entries(self, segment: SegmentRef, start: Position, end: Position) -> Iterator[WireEntry]:
        """Yield the entries between two positions, both excluded."""
        feed = self.feed(segment, start)
        try:
            previous = start
            while (entry := feed.next_entry(previous)) is not None and entry.position < end:
                previous = entry.position
                yield entry
        finally:
            feed.close()

    def release(self) -> None:
        """Give the connections back."""
        wire_client.CLIENTS.release(self._config)
