"""A producer as a broker knows it: opened on a connection, of one writer at a time."""

from __future__ import annotations

import contextlib
import secrets
from typing import Protocol

from pulsar_txn_spark.backends.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandCloseProducer,
    CommandProducer,
    CommandSendError,
    CommandSendReceipt,
)
from pulsar_txn_spark.backends.pulsar.wire.client import Backoff, WireClient
from pulsar_txn_spark.backends.pulsar.wire.connection import Connection, RefusedError

SHARED_NAME = "pulsar-txn-spark-"
"""So begins the name of a producer that several writers use, one after the other."""


class ReceiptHandler(Protocol):
    """A writer, as far as its producer has to tell it something."""

    def on_receipt(self, receipt: CommandSendReceipt) -> None:
        """Take a receipt."""
        ...

    def on_error(self, error: CommandSendError) -> None:
        """Take the refusal of an entry."""
        ...


class OpenedProducer:
    """A producer on a topic's broker.

    Parameters
    ----------
    topic : str
        Name of the topic.
    name : str
        The producer's. A broker with deduplication keeps a name's last sequence id for hours.
    client : WireClient
        Whose connections to use.
    native : bool
        Whether it is for Pulsar's own transactions.
    """

    def __init__(self, topic: str, name: str, client: WireClient, *, native: bool = False) -> None:
        self.topic = topic
        self.name = name
        self.last_number = -1
        """Sequence id of the last entry, once the writer that uses it has let go of it."""
        self._client = client
        self._native = native
        self.id = client.next_number()
        """Its number on every connection."""
        self._epoch = -1
        self._connection: Connection | None = None
        self._writer: ReceiptHandler | None = None
        self.lost: RefusedError | None = None
        """By what it was lost; guarded by ``client.in_flight.changed``."""

    @classmethod
    def shared(cls, topic: str, client: WireClient) -> OpenedProducer:
        """Return one under a name of its own, for writers of any name."""
        return cls(topic, SHARED_NAME + secrets.token_hex(8), client)

    @property
    def connection(self) -> Connection:
        """The connection that it was opened on last."""
        assert self._connection is not None, "the producer was never opened"
        return self._connection

    def attach(self, writer: ReceiptHandler) -> None:
        """Let a writer hear of its entries from now on."""
        self._writer = writer

    def detach(self, last_number: int) -> None:
        """Let go of the writer, all entries of which have receipts."""
        self._writer, self.last_number = None, last_number

    def can_wait(self) -> bool:
        """Tell whether another writer may use it, as far as is known."""
        return self.lost is None and self._connection is not None and self._connection.usable

    def open(self, timeout_s: float) -> tuple[str, int]:
        """Open it, or open it again.

        Returns
        -------
        tuple of str, int
            The name that the broker gave it, and the last sequence id stored under it, -1 if none.

        Raises
        ------
        RefusedError
        """
        backoff = Backoff(timeout_s)
        self._epoch += 1

        def attempt() -> tuple[str, int]:
            connection = self._client.connection_of(self.topic, backoff.left_s)
            self._connection = connection
            with self._client.in_flight.changed:
                self.lost = None
            # Before the answer: from then on the producer may be lost.
            connection.add_producer(self.id, self)
            try:
                answer = connection.request(self._create, backoff.left_s)
            except BaseException:  # an interrupt, too: the broker opens it all the same
                self.leave()
                self._client.forget(self.topic)
                raise
            success = answer.producer_success
            return success.producer_name, success.last_sequence_id

        return backoff.retry(attempt)

    def close(self, timeout_s: float) -> None:
        """Close it, and let the broker say all that it has to say of it.

        It is opened again under the same number: a late refusal would be taken for one of the next
        entries.
        """
        self.connection.remove(self.id)
        with contextlib.suppress(RefusedError):  # lost, or gone already: then nothing comes either
            self.connection.request(self._close_command, timeout_s)

    def leave(self) -> None:
        """Let go of it, without waiting for the broker."""
        self.connection.remove(self.id)
        self.connection.tell(self._close_command)

    # --- on the connection's thread -----------------------------------------------------------

    def on_receipt(self, receipt: CommandSendReceipt) -> None:
        """Hand on a receipt."""
        if (writer := self._writer) is not None:
            writer.on_receipt(receipt)

    def on_error(self, error: CommandSendError) -> None:
        """Hand on a refusal."""
        if (writer := self._writer) is not None:
            writer.on_error(error)

    def on_lost(self, why: RefusedError) -> None:
        """Note that it is gone; the writer's own thread opens it again."""
        with self._client.in_flight.changed:
            self.lost = self.lost or why
            self._client.in_flight.changed.notify_all()

    # --- commands -----------------------------------------------------------------------------

    def _create(self, number: int) -> BaseCommand:
        producer = CommandProducer(
            topic=self.topic,
            producer_id=self.id,
            request_id=number,
            producer_name=self.name,
            epoch=self._epoch,
            user_provided_producer_name=True,
        )
        if self._native:
            producer.txn_enabled = True  # the answer comes when the transaction buffer is there
        return BaseCommand(type=BaseCommand.PRODUCER, producer=producer)

    def _close_command(self, number: int) -> BaseCommand:
        closing = CommandCloseProducer(producer_id=self.id, request_id=number)
        return BaseCommand(type=BaseCommand.CLOSE_PRODUCER, close_producer=closing)
