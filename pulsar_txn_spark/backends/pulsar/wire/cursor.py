"""A durable subscription over the wire: where it stands, and acknowledging up to a position.

The admin API does the same for topics that it knows; segments of scalable topics it does not.
"""

from __future__ import annotations

from types import TracebackType

from pulsar_txn_spark.backends.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandAck,
    CommandCloseConsumer,
    CommandGetLastMessageId,
    CommandMessage,
    CommandSubscribe,
)
from pulsar_txn_spark.backends.pulsar.wire.client import Backoff, WireClient
from pulsar_txn_spark.backends.pulsar.wire.connection import (
    Connection,
    RefusedError,
    positive_id,
    wire_id,
)
from pulsar_txn_spark.backends.pulsar.wire.frames import encode_command
from pulsar_txn_spark.backports import Self
from pulsar_txn_spark.position import Position

_EXCLUSIVE = 0
_CUMULATIVE = 1
_FROM_THE_BEGINNING = 1


class WireCursor:
    """A durable subscription, which is created at the beginning; a context manager.

    Nobody else may use it at the same time. Nothing is delivered to it.

    Parameters
    ----------
    client : WireClient
        Whose connections to use.
    topic : str
    subscription : str

    Raises
    ------
    RefusedError
        If it cannot be opened, or somebody else has it open.
    """

    def __init__(self, client: WireClient, topic: str, subscription: str) -> None:
        self._number = client.next_number()
        self._timeout_s = client.settings.operation_s
        self._lost: RefusedError | None = None
        backoff = Backoff(self._timeout_s)

        def attempt() -> Connection:
            connection = client.connection_of(topic, backoff.left_s)
            connection.add_consumer(self._number, self)
            try:
                connection.request(
                    lambda number: BaseCommand(
                        type=BaseCommand.SUBSCRIBE,
                        subscribe=CommandSubscribe(
                            topic=topic,
                            subscription=subscription,
                            subType=_EXCLUSIVE,
                            consumer_id=self._number,
                            request_id=number,
                            durable=True,
                            initialPosition=_FROM_THE_BEGINNING,
                            force_topic_creation=False,
                        ),
                    ),
                    backoff.left_s,
                )
            except RefusedError:
                connection.remove(self._number)
                client.forget(topic)
                raise
            return connection

        self._connection = backoff.retry(attempt)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def position(self) -> Position:
        """Return the position up to which everything is acknowledged.

        Raises
        ------
        RefusedError
        """
        if self._lost is not None:
            raise self._lost
        answer = self._connection.request(
            lambda number: BaseCommand(
                type=BaseCommand.GET_LAST_MESSAGE_ID,
                getLastMessageId=CommandGetLastMessageId(
                    consumer_id=self._number, request_id=number
                ),
            ),
            self._timeout_s,
        ).getLastMessageIdResponse
        return Position(*positive_id(answer.consumer_mark_delete_position))

    def acknowledge(self, up_to: Position) -> None:
        """Acknowledge everything up to a position, which is included.

        Raises
        ------
        RefusedError
        """
        ack = CommandAck(
            consumer_id=self._number, ack_type=_CUMULATIVE, message_id=[wire_id(*up_to)]
        )
        self._connection.post([encode_command(BaseCommand(type=BaseCommand.ACK, ack=ack))])

    def close(self) -> None:
        """Let go of the subscription, which stays; a lost connection is no error."""
        try:
            self._connection.request(
                lambda number: BaseCommand(
                    type=BaseCommand.CLOSE_CONSUMER,
                    close_consumer=CommandCloseConsumer(
                        consumer_id=self._number, request_id=number
                    ),
                ),
                self._timeout_s,
            )
        except RefusedError as lost:
            self.on_lost(lost)
        self._connection.remove(self._number)

    def on_message(self, delivery: CommandMessage, body: bytes) -> None:
        """Take an entry: there is none, as none was asked for."""

    def on_end(self) -> None:
        """Know that the topic is sealed, which says nothing here."""

    def on_lost(self, why: RefusedError) -> None:
        """Know that nothing more will come."""
        self._lost = why
