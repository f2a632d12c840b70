"""How rows get to Pulsar's topics and back: through ``pulsar-client``, or our own wire protocol."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pyarrow as pa

from pulsar_txn_spark.backends.pulsar.known_topics import KnownTopics
from pulsar_txn_spark.backends.pulsar.txn_bits import TxnBits
from pulsar_txn_spark.backends.pulsar.wire.settings import ConnectionSettings, client_needed
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.log import SegmentRef, SegmentWriter

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

    @property
    def first(self) -> Position | None:
        """Return where a message begins that was put together out of several entries."""
        ...


class Feed(Protocol):
    """Entries of one segment in order."""

    def next_entry(self, previous: Position) -> Entry | None:
        """Return the entry after `previous`, None if the broker has none."""
        ...

    def look_up_again(self, previous: Position) -> None:
        """Go on behind `previous` at the broker that a new lookup names, if the transport can."""
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

    drops_chunks: bool
    """Whether messages in chunks, and what cannot be unpacked, may be dropped without a word."""

    creates_missing: bool
    """Whether a broker may create the topic that a feed is opened of."""

    opens_ahead: bool
    """Whether several feeds may be open at once that fetch little before they are read."""

    def check_access(self, segment: SegmentRef, service_url: str) -> None:
        """Raise unless the broker answers for the topic."""
        ...

    def partitions(self, topic: str, ask_admin: Callable[[str], int | None]) -> int | None:
        """Return how many partitions a topic has, 0 = it has none, None = there is no topic.

        `ask_admin` is asked where this way would create the topic.
        """
        ...

    def writer(
        self,
        segment: SegmentRef,
        name: str,
        before_report: Callable[[Position], None],
        bits: TxnBits | None = None,
        *,
        gated: bool = False,
    ) -> SegmentWriter:
        """Open a writer of that name; its entries carry the transaction bits, if there are any.

        Where the brokers gate the segment, an entry takes keys of one group only, if the transport
        can do that.
        """
        ...

    def known_topics(self, segment: SegmentRef) -> KnownTopics | None:
        """Return what was learned since the connection to the topic's broker was opened.

        None if there is no such connection, or nobody knows of it.
        """
        ...

    def feed(self, segment: SegmentRef, start: Position, *, entries: int = 0) -> Feed:
        """Open a reader of what comes after `start`.

        A short range has at most `entries`; of it a reader fetches one entry until it is read, and
        nothing behind the range. Not all ways can do that.
        """
        ...

    def rows(self, segment: SegmentRef, columns: frozenset[str], max_rows: int) -> Rows:
        """Return what makes record batches of a feed's entries."""
        ...

    def release(self) -> None:
        """Give the connections back."""
        ...


def open_transport(
    config: PulsarConfig,
    receiver_queue: Callable[[SegmentRef, Position], int],
    max_message_bytes: Callable[[], int],
) -> Transport:
    """Open the transport of a configuration; what the other one needs is not even imported.

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
        If an option is unknown, refused or malformed, or the transport cannot serve it.
    """
    if choose(config) == "wire":
        from pulsar_txn_spark.backends.pulsar.wire.transport import WireTransport

        return WireTransport(config)
    from pulsar_txn_spark.backends.pulsar.library.transport import ClientTransport

    return ClientTransport(config, receiver_queue, max_message_bytes)


def choose(config: PulsarConfig) -> str:
    """Return ``wire`` or ``client``: ``auto`` is wire unless an option needs the client.

    Raises
    ------
    OptionError
        If an option is unknown, refused or malformed, or wire is asked for and cannot serve it.
    """
    chosen, reason = choose_and_say(config)
    _LOG.info("transport %s: %s", chosen, reason)
    return chosen


def choose_and_say(config: PulsarConfig) -> tuple[str, str]:
    """Return the transport, as :func:`choose` does, and why it is that one."""
    if config.transport == "wire":
        ConnectionSettings.of(config)
        return "wire", "the option 'transport' says so"
    if config.transport == "client":
        return "client", "the option 'transport' says so"
    reason = client_needed(config)
    if reason is None:
        return "wire", "no option needs pulsar-client"
    return "client", f"only pulsar-client has {reason}"
