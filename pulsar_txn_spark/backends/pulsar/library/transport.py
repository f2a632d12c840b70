"""The transport through ``pulsar-client``."""

from __future__ import annotations

from collections.abc import Callable

import pulsar

from pulsar_txn_spark.backends.pulsar.errors import translate
from pulsar_txn_spark.backends.pulsar.known_topics import KnownTopics
from pulsar_txn_spark.backends.pulsar.library import connections
from pulsar_txn_spark.backends.pulsar.library.reader import EntryFeed, RowCollector, reader_settings
from pulsar_txn_spark.backends.pulsar.library.writer import PulsarSegmentWriter, WriterSettings
from pulsar_txn_spark.backends.pulsar.txn_bits import TxnBits
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.errors import OptionError
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.redaction import redacted
from pulsar_txn_spark.segments.log import SegmentRef, SegmentWriter


class ClientTransport:
    """Through ``pulsar-client``.

    Parameters
    ----------
    config : PulsarConfig
        Options.
    receiver_queue : Callable
        Returns how many messages a reader of a segment may prefetch.
    max_message_bytes : Callable
        Returns the broker's limit.

    Raises
    ------
    OptionError
        If an option is unknown, refused or malformed.
    """

    drops_chunks = True
    creates_missing = True
    opens_ahead = False  # a reader's queue is as large as a reader may ever need

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
        self._client = connections.CLIENTS.acquire(config)

    def check_access(self, segment: SegmentRef, service_url: str) -> None:
        """Ask for the topic's partitions; see the Protocol."""
        try:
            self._client.get_topic_partitions(segment.log_name)
        except pulsar.PulsarException as failed:
            doing = f"reach {redacted(service_url)} for"
            raise translate(type(failed).__name__, doing, segment) from failed

    def partitions(self, topic: str, ask_admin: Callable[[str], int | None]) -> int | None:
        """Ask the admin API: asked by ``pulsar-client``, brokers create what is not there."""
        return ask_admin(topic)

    def writer(
        self,
        segment: SegmentRef,
        name: str,
        before_report: Callable[[Position], None],
        bits: TxnBits | None = None,
        *,
        gated: bool = False,  # noqa: ARG002 - pulsar-client divides rows into entries by itself
    ) -> SegmentWriter:
        """Open a producer; see the Protocol.

        Raises
        ------
        OptionError
            If entries are to carry transaction bits.
        """
        if bits is not None:
            raise OptionError(
                f"segment {segment.id} ({segment.log_name}) is gated by the brokers, and the "
                "transport 'client' cannot write to it in a transaction. Every consumer would see "
                "its rows at once. Nothing was written; set the option 'transport' to 'wire', and "
                "leave out the options that only pulsar-client has"
            )
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

    def known_topics(self, segment: SegmentRef) -> KnownTopics | None:
        """Return None: ``pulsar-client`` does not show its connections; see the Protocol."""
        del segment
        return None

    def feed(
        self,
        segment: SegmentRef,
        start: Position,
        *,
        entries: int = 0,  # noqa: ARG002 - a reader's queue is as large as it is
    ) -> EntryFeed:
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

    def rows(self, segment: SegmentRef, columns: frozenset[str], max_rows: int) -> RowCollector:
        """See the Protocol."""
        return RowCollector(columns, max_rows, segment)

    def release(self) -> None:
        """Give the client back."""
        connections.CLIENTS.release(self._config)
