"""Sending messages to a segmented topic, in transactions and outside of them."""

from __future__ import annotations

import os
import secrets
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime

from pulsar_txn_spark.client.message import Row, as_batch
from pulsar_txn_spark.client.reentry import is_interrupted, refuse_reentry
from pulsar_txn_spark.client.transaction import Transaction
from pulsar_txn_spark.closing import Closing
from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.engine.lease import Lease, Leases
from pulsar_txn_spark.engine.topic_writers import TopicWriters
from pulsar_txn_spark.errors import AlreadyClosedError, PulsarTxnError
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.topic_name import TopicName

_PRESENCE_MS = 60_000  # a quarter of it after a producer was dropped, its writers are closed


class Producer(Closing):
    """Sends messages to one topic; made by :meth:`Client.producer`. Any thread may use it.

    What was sent in open transactions stays in them when it is closed. One that is dropped without
    :meth:`close` lets go of its connections as well, within a quarter of a minute.
    """

    def __init__(
        self,
        components: Components,
        topic: TopicName,
        leases: Leases,
        require: Callable[[Transaction | None], None],
    ) -> None:
        components.topics.require(topic)
        self._components = components
        self._topic = topic
        self._leases = leases
        self._require = require
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._writers: TopicWriters | None = None
        self._dropped: weakref.finalize[..., Producer] | None = None
        # Nothing is to be extended. While it is kept there is a thread, which closes the writers.
        self._presence = Lease(_PRESENCE_MS, lambda: None)
        self._raised: dict[tuple[str, str], Position] = {}
        self._txns_lock = threading.RLock()
        self._txns: weakref.WeakSet[Transaction] = weakref.WeakSet()

    @property
    def topic(self) -> str:
        """Full name of the topic."""
        return str(self._topic)

    def send(
        self,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: datetime | None = None,
        txn: Transaction | None = None,
    ) -> None:
        """Send a message.

        Parameters
        ----------
        value : bytes, str or None
            Text is sent as UTF-8.
        key : bytes, str or None
            Messages of one key stay in order.
        properties : mapping of str to str, optional
        event_time : datetime, optional
            With a time zone; kept to the millisecond.
        txn : Transaction, optional
            With it the message is queued, and becomes visible when the transaction is committed.
            Without it, it lies in the log and is visible when this returns. After an error it may
            lie there as well, so that sending it again may double it.

        Raises
        ------
        SchemaError
            If something is of a type that messages do not have.
        TransactionAbortedError, TransactionConflictError
            If the transaction is over.
        SegmentLogError, StoreError
            If the log or the store does not take it; of this message or of an earlier one that
            was queued. The transaction can then only be aborted.
        AlreadyClosedError
        RuntimeError
            If a signal handler calls it while its thread sends, or uses the transaction.
        """
        row = Row.of(value, key, properties, event_time)
        self._require_open(txn)
        if txn is not None:
            with self._txns_lock:
                self._txns.add(txn)
            txn.append(self._topic, row)
            return
        refuse_reentry(self._lock, "send()")
        try:
            with self._lock:
                self._require_open(None)  # it may have been closed while this waited
                self._send_now(row)
        finally:
            if self._closed:
                self._close()  # a signal handler that closed could not

    def _begin(self) -> TopicWriters:
        random = secrets.token_hex(6)
        writers = TopicWriters(
            self._components,
            lambda topology_generation: f"ptxs-0-{random}r{topology_generation}",
            None,
            secrets.randbelow(1 << 16),
            renews=False,
        )
        self._dropped = weakref.finalize(self, self._leases.forgotten, writers)
        self._dropped.atexit = False
        with suppress(RuntimeError):  # no thread: they are closed with the next one's
            self._leases.keep(self._presence)
        return writers

    def _send_now(self, row: Row) -> None:
        if self._writers is None:
            self._writers = self._begin()
        try:
            self._writers.append(self._topic, as_batch([row]))
            written = self._writers.finish()
        except PulsarTxnError:
            # A writer is of no use after an error: the next message gets a new one, by a new name.
            self._let_go()
            raise
        for written_segment in written:
            last, place = (
                written_segment.receipt.last,
                (written_segment.segment.id, written_segment.writer),
            )
            if last is not None and last != self._raised.get(place):
                self._components.store.segments.raise_high(written_segment.segment.id, last)
                self._raised[place] = last
        if self._writers.has_moved:
            # The message has its receipt: what they have left behind is of use to nobody.
            self._let_go()

    def flush(self) -> None:
        """Wait until all that was sent in open transactions lies in the log, still invisible.

        A commit does it by itself. A transaction that takes nothing more, because something in it
        failed or its commit was begun, is passed over. Same errors as :meth:`send`, of the first
        transaction that fails here, once the others are flushed.
        """
        self._require_open(None)
        with self._txns_lock:
            txns = list(self._txns)
        failed: Exception | None = None
        for txn in txns:
            try:
                txn.flush_if_open()
            except Exception as error:  # noqa: BLE001 - it is raised behind the others
                failed = failed or error
            if txn.ended:
                with self._txns_lock:
                    self._txns.discard(txn)
        try:
            if failed is not None:
                raise failed
        finally:
            del failed  # or error and frame would keep each other, and the transactions

    def _require_open(self, txn: Transaction | None) -> None:
        if self._closed:
            raise AlreadyClosedError(f"the producer of {self._topic} is closed: make a new one")
        self._require(txn)

    def _let_go(self) -> None:
        writers, self._writers = self._writers, None
        self._raised.clear()
        if writers is not None:
            if self._dropped is not None:
                self._dropped.detach()
            self._leases.let_go(self._presence)
            writers.close()

    def close(self) -> None:
        """Let go of its connections; idempotent. In a fork they are its parent's."""
        if os.getpid() == self._pid:
            super().close()

    def _close(self) -> None:
        """Let go of the connections."""
        if not is_interrupted(self._lock):  # else send() does it as it ends
            with self._lock:
                self._let_go()
