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
        self._client, self._topic, self._subscription = client, topic, subscription
        self._timeout_s = client.settings.operation_s
        self._lost: RefusedError | None = None
        backoff = Backoff(self._timeout_s)
        self._number, self._connection = backoff.retry(lambda: self._open(backoff.left_s))

    def _open(self, timeout_s: float) -> tuple[int, Connection]:
        """Subscribe once; return the consumer's number and its connection."""
        # A new number each time: what is still on its way for the old one concerns nobody.
        consumer = self._client.next_number()
        connection = self._client.connection_of(self._topic, timeout_s)
        self._lost = None
        connection.add_consumer(consumer, self)
        try:
            connection.request(
                lambda number: BaseCommand(
                    type=BaseCommand.SUBSCRIBE,
                    subscribe=CommandSubscribe(
                        topic=self._topic,
                        subscription=self._subscription,
                        subType=_EXCLUSIVE,
                        consumer_id=consumer,
                        request_id=number,
                        durable=True,
                        initialPosition=_FROM_THE_BEGINNING,
                        force_topic_creation=False,
                    ),
                ),
                timeout_s,
            )
        except RefusedError:
            # A broker that answers too late has subscribed, and would refuse everybody else.
            self._leave(consumer, connection)
            raise
        return consumer, connection

    def _leave(self, consumer: int, connection: Connection) -> None:
        connection.remove(consumer)
        connection.tell(
            lambda number: BaseCommand(
                type=BaseCommand.CLOSE_CONSUMER,
                close_consumer=CommandCloseConsumer(consumer_id=consumer, request_id=number),
            )
        )
        self._client.forget(self._topic)

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
        backoff = Backoff(self._timeout_s)

        def attempt() -> Position:
            if self._lost is not None:
                self._number, self._connection = self._open(backoff.left_s)
            try:
                return self._ask(backoff.left_s)
            except RefusedError as lost:
                # The topic may have moved to another broker since it was subscribed to.
                self._leave(self._number, self._connection)
                self._lost = lost
                raise

        return backoff.retry(attempt)

    def _ask(self, timeout_s: float) -> Position:
        answer = self._connection.request(
            lambda number: BaseCommand(
                type=BaseCommand.GET_LAST_MESSAGE_ID,
                getLastMessageId=CommandGetLastMessageId(
                    consumer_id=self._number, request_id=number
                ),
            ),
            timeout_s,
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
