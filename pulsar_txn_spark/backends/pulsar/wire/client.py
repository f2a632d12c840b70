"""Connections of a process: which broker serves a topic, and one connection to each of them."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeAlias, TypeVar

from pulsar_txn_spark.backends.pulsar.errors import TRANSIENT, translate
from pulsar_txn_spark.backends.pulsar.known_topics import KnownTopics
from pulsar_txn_spark.backends.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandLookupTopic,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadata,
)
from pulsar_txn_spark.backends.pulsar.receipt_ledger import InFlight
from pulsar_txn_spark.backends.pulsar.shared_clients import SharedClients
from pulsar_txn_spark.backends.pulsar.wire.connection import Connection, RefusedError
from pulsar_txn_spark.backends.pulsar.wire.idle_feeds import IdleFeeds
from pulsar_txn_spark.backends.pulsar.wire.idle_producers import IdleProducers
from pulsar_txn_spark.backends.pulsar.wire.settings import (
    Address,
    ConnectionSettings,
    parse_addresses,
)
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.errors import OptionError, SegmentLogError
from pulsar_txn_spark.segments.log import SegmentRef

_Result = TypeVar("_Result")
_Where: TypeAlias = tuple[Address, str | None]
"""An address, and ``host:port`` of the broker behind it if it is a proxy's."""

RETRIED = frozenset(
    {
        "BrokerMetadataError",
        "BrokerPersistenceError",
        "ConnectError",
        "ConsumerBusy",
        "Disconnected",
        "ProducerBusy",
        "ServiceUnitNotReady",
        "Timeout",
        "TooManyLookupRequestException",
    }
)
"""Results that another try may not give again, within the time that there is."""

_REDIRECTS = 20  # more than a cluster that agrees with itself ever gives
_REDIRECT, _CONNECT = 0, 1  # of a CommandLookupTopicResponse; 2 = failed
_SUCCESS = 0  # of a CommandPartitionedTopicMetadataResponse
_FIRST_PAUSE_SECONDS = 0.02
_LAST_PAUSE_SECONDS = 0.5


class Backoff:
    """Pauses between tries, up to a deadline.

    Parameters
    ----------
    timeout_s : float
        From now on.
    """

    def __init__(self, timeout_s: float) -> None:
        self._deadline = time.monotonic() + timeout_s
        self._pause = _FIRST_PAUSE_SECONDS

    @property
    def left_s(self) -> float:
        """Return how much time is left, 0 if none."""
        return max(0.0, self._deadline - time.monotonic())

    def retry(self, attempt: Callable[[], _Result]) -> _Result:
        """Return what `attempt` returns, called again after a pause where it is refused.

        Raises
        ------
        RefusedError
            The last one, if another try makes no sense or there is no time for it.
        """
        while True:
            try:
                return attempt()
            except RefusedError as refused:
                if refused.result not in RETRIED or self.left_s <= self._pause:
                    raise
            time.sleep(self._pause)
            self._pause = min(2 * self._pause, _LAST_PAUSE_SECONDS)


class WireClient:
    """Connections of one configuration; of the process that made it alone.

    Parameters
    ----------
    settings : ConnectionSettings
        How to connect.
    """

    def __init__(self, settings: ConnectionSettings) -> None:
        self.settings = settings
        self.in_flight = InFlight()
        """What all writers of this client have without a receipt."""
        self.idle_feeds: IdleFeeds[Any] = IdleFeeds()
        """Readers that wait for the next range of their segments."""
        self.idle_producers: IdleProducers[Any] = IdleProducers()
        """Producers that wait for the next writer of their topics."""
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._connections: dict[_Where, Connection] = {}
        self._openings: dict[_Where, Future[Connection]] = {}
        self._failed_at: dict[_Where, float] = dict.fromkeys(
            ((address, None) for address in settings.addresses), 0.0
        )
        """When an address of ``service.url`` could not be connected to, 0 = it could."""
        self._located: dict[str, _Where] = {}
        self._pid = os.getpid()

    def next_number(self) -> int:
        """Return a number for a producer or consumer, unique on all connections."""
        return next(self._numbers)

    def connection_of(self, topic: str, timeout_s: float) -> Connection:
        """Return a connection to the broker that serves the topic.

        Raises
        ------
        RefusedError
            If there is none; the caller may try again.
        """
        known = self._located.get(topic)
        if known is None:
            known = self._locate(topic, timeout_s)
            self._located[topic] = known
        try:
            return self._connect(*known)
        except RefusedError:
            self.forget(topic)
            raise

    def known_topics(self, topic: str) -> KnownTopics | None:
        """Return what was learned since the connection to the topic's broker was opened.

        None if there is no such connection now; none is opened.
        """
        where = self._located.get(topic)
        with self._lock:
            connection = None if where is None else self._connections.get(where)
        return connection.known_topics if connection is not None and connection.usable else None

    def connection_to(self, url: str) -> Connection:
        """Return a connection to the broker at a URL that another broker gave.

        Raises
        ------
        RefusedError
            If it cannot be reached.
        """
        try:
            (address,) = parse_addresses(url)
        except (OptionError, ValueError):
            raise RefusedError("LookupError", f"a broker gave {url!r}") from None
        return self._connect(address)

    def check_access(self, topic: str) -> None:
        """Connect to the broker that serves the topic, trying again for the usual time.

        Raises
        ------
        RefusedError
            If that fails.
        """
        backoff = Backoff(self.settings.operation_s)
        backoff.retry(lambda: self.connection_of(topic, backoff.left_s))

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has, 0 = it has none; never creates the topic.

        Any broker can tell. Tried again for the usual time.

        Raises
        ------
        RefusedError
            With the result ``TopicNotFound`` if there is no such topic, and
            ``UnsupportedVersionError`` if the broker does not know the request (PIP-344).
        """
        backoff = Backoff(self.settings.operation_s)

        def attempt() -> int:
            return self._ask_partitions(self.any_connection(), topic, backoff.left_s)

        return backoff.retry(attempt)

    def max_message_bytes(self) -> int:
        """Return the largest message that brokers take.

        Raises
        ------
        RefusedError
            If none of them can be reached.
        """
        return self.any_connection().max_message_bytes

    def forget(self, topic: str) -> None:
        """Look the topic up again the next time: it is not where it was."""
        self._located.pop(topic, None)

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            closing = list(self._connections.values())
            self._connections.clear()
            self._openings.clear()  # whoever opens one now closes it
        if self._pid == os.getpid():
            for connection in closing:
                connection.close()

    def _connect(self, address: Address, behind_proxy: str | None = None) -> Connection:
        key = (address, behind_proxy)
        mine: Future[Connection] | None = None
        try:
            with self._lock:
                connection = self._connections.get(key)
                if connection is not None and connection.usable:
                    return connection
                opening = self._openings.get(key)
                if opening is None:
                    mine = self._openings[key] = Future()
            if mine is None:
                assert opening is not None
                return self._opened_by_another(opening)
            # Outside of the lock: a broker that does not answer keeps nobody from the others.
            return self._note_opened(key, mine, Connection(self.settings, address, behind_proxy))
        except BaseException as failed:  # whoever waits for it must not do so for ever
            if mine is not None and not mine.done():
                self._note_failure(key, mine, failed)
            raise

    @staticmethod
    def _opened_by_another(opening: Future[Connection]) -> Connection:
        try:
            return opening.result()
        except RefusedError as refused:  # each thread raises one of its own
            raise RefusedError(refused.result, refused.detail) from None

    def _note_failure(self, key: _Where, mine: Future[Connection], failed: BaseException) -> None:
        with self._lock:
            if self._openings.get(key) is mine:
                del self._openings[key]
            if key in self._failed_at:
                self._failed_at[key] = time.monotonic()
        # Who is interrupted here is so alone.
        known = isinstance(failed, Exception)
        mine.set_exception(failed if known else RefusedError("ConnectError", "interrupted"))

    def _note_opened(
        self, key: _Where, mine: Future[Connection], connection: Connection
    ) -> Connection:
        with self._lock:
            wanted = self._openings.get(key) is mine
            if wanted:
                del self._openings[key]
                # Brokers may come back under other addresses: what has ended keeps its memory.
                ended = [known for known, it in self._connections.items() if not it.usable]
                for known in ended:
                    del self._connections[known]
                self._connections[key] = connection
                if key in self._failed_at:
                    self._failed_at[key] = 0.0
        if wanted:
            mine.set_result(connection)
            return connection
        connection.close()
        closed = RefusedError("Disconnected", "the client was closed meanwhile")
        mine.set_exception(closed)
        raise closed

    def any_connection(self) -> Connection:
        """Return a connection to one of the addresses of ``service.url``.

        One that is open will do; else an address that failed last is tried last.

        Raises
        ------
        RefusedError
            If none of them can be reached.
        """
        with self._lock:
            for where in self._failed_at:
                connection = self._connections.get(where)
                if connection is not None and connection.usable:
                    return connection
            in_turn = sorted(self._failed_at, key=self._failed_at.__getitem__)
        failure = RefusedError("ConnectError")
        for where in in_turn:
            try:
                return self._connect(*where)
            except RefusedError as refused:
                failure = refused
        raise failure

    def _locate(self, topic: str, timeout_s: float) -> _Where:
        broker, authoritative = self.any_connection(), False
        for _ in range(_REDIRECTS):
            answer = self._look_up(broker, topic, authoritative, timeout_s)
            url = answer.brokerServiceUrlTls if self.settings.tls else answer.brokerServiceUrl
            if not url:
                raise RefusedError("ServiceUnitNotReady", "the broker that has it is not known")
            try:
                (address,) = parse_addresses(url)
            except (OptionError, ValueError):
                raise RefusedError("LookupError", f"a lookup gave {url!r}") from None
            # A proxy passes on what it gets; the broker behind it cannot be reached from here.
            where = (
                (broker.address, str(address))
                if answer.proxy_through_service_url
                else (address, None)
            )
            if answer.response == _CONNECT:
                return where
            broker, authoritative = self._connect(*where), answer.authoritative
        # They may take each other for the leader for as long as it changes.
        raise RefusedError("ServiceUnitNotReady", f"{_REDIRECTS} brokers passed the lookup on")

    def _look_up(
        self, broker: Connection, topic: str, authoritative: bool, timeout_s: float
    ) -> CommandLookupTopicResponse:
        def make(number: int) -> BaseCommand:
            lookup = CommandLookupTopic(topic=topic, request_id=number, authoritative=authoritative)
            if self.settings.listener_name is not None:
                lookup.advertised_listener_name = self.settings.listener_name
            return BaseCommand(type=BaseCommand.LOOKUP, lookupTopic=lookup)

        answer = broker.request(make, timeout_s).lookupTopicResponse
        if answer.response not in (_REDIRECT, _CONNECT):
            raise RefusedError.of(answer.error, answer.message)
        return answer

    def _ask_partitions(self, broker: Connection, topic: str, timeout_s: float) -> int:
        if not broker.asks_without_creating:
            raise RefusedError(
                "UnsupportedVersionError", f"{broker.address} would create the topic"
            )

        def make(number: int) -> BaseCommand:
            request = CommandPartitionedTopicMetadata(
                topic=topic, request_id=number, metadata_auto_creation_enabled=False
            )
            return BaseCommand(type=BaseCommand.PARTITIONED_METADATA, partitionMetadata=request)

        answer = broker.request(make, timeout_s).partitionMetadataResponse
        if answer.response != _SUCCESS:
            raise RefusedError.of(answer.error, answer.message)
        return answer.partitions


def explain(refused: RefusedError, doing: str, segment: SegmentRef) -> SegmentLogError:
    """Return the error that a refusal stands for; see :func:`~..errors.translate`."""
    # Busy: the name is still open on a connection that the broker takes for alive.
    result = "Retryable" if refused.result in RETRIED - TRANSIENT else refused.result
    return translate(result, doing, segment, refused.detail)


def _new(config: PulsarConfig) -> WireClient:
    return WireClient(ConnectionSettings.of(config))


def _close(client: WireClient) -> None:
    with contextlib.suppress(RefusedError):
        client.close()


CLIENTS = SharedClients(_new, _close)
