"""Plain consumers of gated topics: they know nothing of transactions.

They listen from before the first row on. So a row that was shown before its transaction was
decided is found, too. The job's kills leave such rows aborted, and the batch comes again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

import pulsar

from demo.proof import Message
from pulsar_txn_spark import Admin
from pulsar_txn_spark.errors import PulsarTxnError

_SUBSCRIPTION = "plain-consumers"
_WAIT_MS = 200
_PATIENCE_SECONDS = 60.0  # 300,000 rows take some seconds
_QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn)

_Place = tuple[int, int, int]
_FIRST: _Place = (-1, -1, -1)


class PlainConsumerError(PulsarTxnError):
    """A plain consumer failed, or does not receive what its broker says is there."""


class PlainConsumers:
    """Plain consumers of all segments of gated topics; a context manager.

    Parameters
    ----------
    options : Mapping[str, str]
        Where store and broker are.
    topics : iterable of str
        Gated topics; their segments are not to change.
    patience_s : float
        Bound on the time between two messages at the end.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        topics: Iterable[str],
        *,
        patience_s: float = _PATIENCE_SECONDS,
    ) -> None:
        self._client = pulsar.Client(options["service.url"], logger=_QUIET)
        admin = Admin(options)
        self._consumers = [
            _SegmentConsumer(self._client, topic, segment.ref.log_name, patience_s)
            for topic in topics
            for segment in admin.find_topic(topic).active
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for consumer in self._consumers:
            consumer.end()
        self._client.close()

    def received(self) -> list[Message]:
        """Return what has come until now; the messages of one segment in their order."""
        return [message for consumer in self._consumers for message in consumer.received()]

    def outputs(self) -> Mapping[str, Sequence[Message]]:
        """Wait until all is received that the broker has for its consumers, and return it.

        Returns
        -------
        mapping
            Topic → its messages; those of one segment in the order in which they came.

        Raises
        ------
        PlainConsumerError
            If a consumer failed, or does not receive what its broker says is there.
        """
        received: dict[str, list[Message]] = {}
        for consumer in self._consumers:
            received.setdefault(consumer.topic, []).extend(consumer.all())
        return received


class _SegmentConsumer:
    """One consumer, in a thread of its own."""

    def __init__(self, client: pulsar.Client, topic: str, segment: str, patience_s: float) -> None:
        self.topic = topic
        self._segment = segment
        self._patience_s = patience_s
        self._messages: list[Message] = []
        self._seen = _FIRST
        self._failure: Exception | None = None
        self._draining, self._ended = threading.Event(), threading.Event()
        self._consumer = client.subscribe(
            segment, _SUBSCRIPTION, initial_position=pulsar.InitialPosition.Earliest
        )
        self._thread = threading.Thread(target=self._run, name="plain-consumer", daemon=True)
        self._thread.start()

    def all(self) -> Sequence[Message]:
        """Return everything, once it is here."""
        self._draining.set()
        self._thread.join()
        if self._failure is not None:
            raise PlainConsumerError(f"the consumer of {self._segment} failed: {self._failure}")
        return self._messages

    def received(self) -> Sequence[Message]:
        """Return what has come until now."""
        return tuple(self._messages)

    def end(self) -> None:
        """End the thread, whatever it has received."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._receive()
        except Exception as failure:  # noqa: BLE001 - raised where the messages are asked for
            self._failure = failure

    def _receive(self) -> None:
        came = time.monotonic()
        while not self._ended.is_set():
            try:
                self._note(self._consumer.receive(_WAIT_MS))
                came = time.monotonic()
            except pulsar.Timeout:
                if not self._draining.is_set():
                    came = time.monotonic()
                elif self._seen >= (last := _place(self._consumer.get_last_message_id())):
                    return
                elif time.monotonic() - came > self._patience_s:
                    raise PlainConsumerError(
                        f"the broker's last message is {last}, but {self._seen} was the last that "
                        f"came, and nothing more within {self._patience_s:g} s"
                    ) from None

    def _note(self, message: pulsar.Message) -> None:
        place = _place(message.message_id())
        if place <= self._seen:
            return  # after a lost connection, a broker sends again what was not acknowledged
        self._seen = place
        self._messages.append((message.partition_key() or None, message.data()))


def _place(message: pulsar.MessageId) -> _Place:
    """Return what orders the messages of a segment: ledger, entry, place in the batch."""
    return message.ledger_id(), message.entry_id(), message.batch_index()
