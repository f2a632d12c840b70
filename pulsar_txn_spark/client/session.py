"""A client: one connection to a store and a log, and what is made of it."""

from __future__ import annotations

import os
import platform
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pulsar_txn_spark.client.consumer import Consumer, InitialPosition
from pulsar_txn_spark.client.producer import Producer
from pulsar_txn_spark.client.timeouts import lease_ms
from pulsar_txn_spark.client.transaction import Transaction
from pulsar_txn_spark.closing import Closing
from pulsar_txn_spark.engine.components import Components, open_components
from pulsar_txn_spark.engine.lease import Leases
from pulsar_txn_spark.errors import AlreadyClosedError, OptionError
from pulsar_txn_spark.options import Options, Use, default_of, subscription_name
from pulsar_txn_spark.segments.topic_name import Domains

_DEFAULT_LEASE_MS: int = default_of("txn.timeoutMs")
_IS_CLOSED = "the client is closed: connect anew"
_Made = TypeVar("_Made", Transaction, Producer, Consumer)


def connect(options: Mapping[str, str] | None = None) -> Client:
    """Connect to a store and a log.

    Parameters
    ----------
    options : mapping of str to str, optional
        Those by which Spark's source and sink reach the store and Pulsar (docs/options.md); none =
        all embedded.

    Raises
    ------
    OptionError
        If an option is unknown, or not one of connecting.
    StoreUnavailableError, StoreUnsafeError, SegmentLogUnavailableError
    """
    parsed = Options(options or {}, Use.CONNECT)
    return Client(open_components(parsed), parsed.domains)


class Client(Closing):
    """Makes transactions, producers and consumers; close it, or use it as a context manager.

    Any thread may use it. A forked process needs one of its own.
    """

    def __init__(self, components: Components, domains: Domains | None = None) -> None:
        self._components = components
        self._domains = domains or Domains()
        self._pid = os.getpid()
        self._owner = f"{platform.node()}/{self._pid}|client"
        self._leases = Leases()
        self._lock = threading.RLock()  # a signal handler that closes may enter it again
        self._txns: weakref.WeakSet[Transaction] = weakref.WeakSet()
        self._open: weakref.WeakSet[Producer | Consumer] = weakref.WeakSet()

    def new_txn(self, timeout_ms: int = _DEFAULT_LEASE_MS) -> Transaction:
        """Open a transaction. Nothing is sent: the store hears of it once something is done in it.

        Parameters
        ----------
        timeout_ms : int
            Its lease, 1,000 to 86,400,000: so long the others wait for it once this process is
            gone. While it lives, the lease is extended.

        Raises
        ------
        OptionError
            If the lease is no whole number, or out of bounds.
        AlreadyClosedError
        """
        self._require(None)
        txn = Transaction(self._components, self._leases, lease_ms(timeout_ms), self._owner)
        return self._enlist(txn, self._txns)

    def producer(self, topic: str) -> Producer:
        """Make a producer.

        Parameters
        ----------
        topic : str
            ``topic://tenant/namespace/name``, or the name alone (in ``public/default``).

        Raises
        ------
        TopicNotFoundError
            If there is no such topic.
        TransactionDomainError
            If it is a topic of Pulsar's own transactions (``persistent://``).
        OptionError, StoreUnavailableError, AlreadyClosedError
        """
        self._require(None)
        producer = Producer(
            self._components, self._domains.segmented(topic), self._leases, self._require
        )
        return self._enlist(producer, self._open)

    def consumer(
        self,
        topics: str | Sequence[str],
        subscription: str,
        initial_position: InitialPosition | str = InitialPosition.EARLIEST,
    ) -> Consumer:
        """Subscribe.

        One consumer at a time receives for a subscription. A new one takes over from the one
        before, and aborts what that one has acknowledged in open transactions.

        Parameters
        ----------
        topics : str or sequence of str
        subscription : str
        initial_position : InitialPosition
            Where a subscription that is not there yet begins.

        Raises
        ------
        TopicNotFoundError
            If one of the topics is not there.
        AcknowledgementConflictError
            If the subscription belongs to a Spark query.
        FencedError
            If another consumer subscribed later, in this very moment.
        DataLossError
            If messages that were not acknowledged are gone.
        TransactionDomainError
            If it is a topic of Pulsar's own transactions (``persistent://``).
        OptionError, StoreUnavailableError, AlreadyClosedError
        """
        self._require(None)
        names = [topics] if isinstance(topics, str) else list(topics)
        requested = [self._domains.segmented(name) for name in names]
        if not requested or len(set(requested)) != len(requested):
            raise OptionError(f"topics: expected at least one topic, each once, found {requested}")
        try:
            name = subscription_name(subscription)
        except ValueError as error:
            raise OptionError(f"subscription: expected {error}, found {subscription!r}") from error
        try:
            position = InitialPosition(initial_position)
        except ValueError as error:
            words = ", ".join(InitialPosition)
            raise OptionError(
                f"initial_position: expected one of {words}, found {initial_position!r}"
            ) from error
        consumer = Consumer(
            self._components, requested, name, position, self._require, self.new_txn
        )
        return self._enlist(consumer, self._open)

    def _enlist(self, made: _Made, opened: weakref.WeakSet[Any]) -> _Made:
        """Have something closed with the client; at once, if that was closed meanwhile."""
        with self._lock:
            opened.add(made)
        if not self._closed:
            return made
        made.close()  # the end of the client may not have met it
        raise AlreadyClosedError(_IS_CLOSED)

    def _require(self, txn: Transaction | None) -> None:
        """Raise unless the client, and the given transaction of it, can be used here."""
        if self._closed:
            raise AlreadyClosedError(_IS_CLOSED)
        if os.getpid() != self._pid:
            raise AlreadyClosedError(
                f"the client was opened in process {self._pid}, this is {os.getpid()}: a fork "
                "shares its connections with its parent. Connect after the fork"
            )
        if txn is not None and txn not in self._txns:
            raise OptionError(
                f"txn: expected a transaction of this client, found {txn!r}: begin it with the "
                "new_txn() of the client that producer and consumer belong to"
            )

    def close(self) -> None:
        """Abort open transactions, and close producers and consumers; idempotent."""
        if os.getpid() == self._pid:  # a fork's copy has nothing of its own
            super().close()

    def _close(self) -> None:
        with self._lock:
            txns, opened = list(self._txns), list(self._open)
        for txn in txns:
            txn.close()
        for resource in opened:
            resource.close()
