"""Headers of single entries: a part of a message, hidden from readers, or how large.

The admin API returns them in about 2 ms, also those of entries that no reader may see. For a chunk
of a compressed message it never answers: the broker fails to unpack the part (seen on 4.0.7). So
the request has a timeout. After one without an answer, a topic's headers are read over the wire
for some minutes. A reader begins at the entry, whose metadata precede the compressed part. An entry
that does not come there is hidden, lost, or late; which of them, the admin API alone can tell.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from pulsar_txn_spark.backends.pulsar import ledgers
from pulsar_txn_spark.backends.pulsar.admin_api import EntryHeader, PulsarAdmin
from pulsar_txn_spark.backends.pulsar.wire.client import CLIENTS
from pulsar_txn_spark.backends.pulsar.wire.connection import RefusedError
from pulsar_txn_spark.backends.pulsar.wire.reader import (
    WireEntry,
    WireEntryFeed,
    WireReaderSettings,
)
from pulsar_txn_spark.backends.pulsar.wire.settings import client_needed
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.errors import SegmentLogUnavailableError
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.log import SegmentRef

_POLL_SECONDS = 0.05  # before the broker is asked whether it has anything for us at all
_WIRE_SECONDS = 10.0
_UNANSWERED_SECONDS = 300.0  # a broker that was slow once answers in 2 ms by then
_PERMITS = 64  # chunks are large, and mostly alone
_ASK_AGAIN_SECONDS = 1.0  # a broker may fail once to read an entry that its bookies have


def look_again(source: PulsarAdmin | EntryHeaders, topic: str, position: Position) -> EntryHeader:
    """Return what an entry is, after another request if the first one has not found it.

    A bookie that restarts is no loss. The broker answers 500 in either case.

    Raises
    ------
    SegmentLogUnavailableError
        If nobody tells it in time.
    """
    header = source.entry_header(topic, position)
    if not header.there:
        time.sleep(_ASK_AGAIN_SECONDS)
        header = source.entry_header(topic, position)
    return header


class EntryHeaders:
    """Heads of entries; safe to use from several threads.

    Parameters
    ----------
    config : PulsarConfig
        URLs and pass-through options.
    admin : PulsarAdmin
        Asked first.
    clock : callable
        Seconds that never run backwards.
    """

    def __init__(
        self,
        config: PulsarConfig,
        admin: PulsarAdmin,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._admin = admin
        self._clock = clock
        # Heads are never encrypted: what only decrypting needs is left out.
        plain = replace(config, producer=(), reader=())
        self._wire = None if client_needed(plain) else plain
        self._unanswered_until: dict[str, float] = {}
        self._max_message_bytes: int | None = None

    def entry_header(self, topic: str, position: Position) -> EntryHeader:
        """Return what an entry is; one that is not there is said to be so.

        Raises
        ------
        SegmentLogUnavailableError
            If nobody tells it in time.
        """
        if self._wire is None:
            return self._admin.entry_header(topic, position)
        if self._clock() >= self._unanswered_until.get(topic, 0.0):
            try:
                return self._admin.entry_header(topic, position)
            except SegmentLogUnavailableError:
                self._unanswered_until[topic] = self._clock() + _UNANSWERED_SECONDS
        header = self._over_the_wire(self._wire, topic, position)
        # What is hidden does not come, nor what is lost, nor any of a late broker: this tells them.
        return self._admin.entry_header(topic, position) if header is None else header

    def between(
        self, topic: str, start: Position, end: Position
    ) -> Iterator[tuple[Position, EntryHeader]]:
        """Yield the headers of the entries between two, both excluded, that readers get to see.

        Raises
        ------
        SegmentLogUnavailableError
            If the broker does not answer in time.
        """
        if self._wire is None:
            managed_ledger = self._admin.managed_ledger(topic)
            for at in ledgers.positions(managed_ledger.pieces(start, end)):
                header = self._admin.entry_header(topic, at)
                if at < end and not header.hidden:
                    yield at, header
            return
        with self._feed(self._wire, topic, start, _PERMITS) as feed:
            entry = feed.next_entry(start)
            while entry is not None and entry.position < end:
                yield entry.position, _header_of(entry)
                entry = feed.next_entry(entry.position)

    def max_message_bytes(self) -> int:
        """Return the broker's ``maxMessageSize``, which it names to everybody who connects."""
        if self._max_message_bytes is None:
            self._max_message_bytes = self._ask_max_message_bytes()
        return self._max_message_bytes

    def _ask_max_message_bytes(self) -> int:
        if self._wire is not None:
            client = CLIENTS.acquire(self._wire)
            try:
                return client.max_message_bytes()
            except RefusedError:  # the admin API may be there all the same
                pass
            finally:
                CLIENTS.release(self._wire)
        return self._admin.max_message_bytes()

    @contextlib.contextmanager
    def _feed(
        self, config: PulsarConfig, topic: str, start: Position, permits: int
    ) -> Iterator[WireEntryFeed]:
        settings = WireReaderSettings(
            max_permits=permits, poll_s=_POLL_SECONDS, timeout_s=_WIRE_SECONDS
        )
        client = CLIENTS.acquire(config)
        try:
            feed = WireEntryFeed(SegmentRef(topic, topic, topic), start, client, settings)
            try:
                yield feed
            finally:
                feed.close()
        finally:
            CLIENTS.release(config)

    def _over_the_wire(
        self, config: PulsarConfig, topic: str, position: Position
    ) -> EntryHeader | None:
        """Return the header of an entry that comes; None if it does not, or one behind it does."""
        before = Position(position.ledger, position.entry - 1)
        with self._feed(config, topic, before, 1) as feed:
            entry = feed.next_entry(before)
        if entry is None or entry.position != position:
            return None
        return _header_of(entry)


def _header_of(entry: WireEntry) -> EntryHeader:
    metadata = entry.metadata
    chunked = metadata.HasField("uuid")
    return EntryHeader(
        hidden=metadata.HasField("marker_type"),
        message=metadata.uuid,
        chunk=metadata.chunk_id if chunked else 0,
        chunks=max(1, metadata.num_chunks_from_msg) if chunked else 1,
        messages=entry.messages,
        bytes=len(entry.payload),
        published_ms=metadata.publish_time,
        producer=entry.producer_name,
        empty=(
            metadata.compression != 0
            and not metadata.uncompressed_size
            and not metadata.HasField("num_messages_in_batch")
        ),
    )
