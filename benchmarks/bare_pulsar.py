"""Bare ``pulsar-client``, used in the fastest way that is known: the yardstick.

Sending: ``send_async`` without a callback, large batches, one flush at the end; nothing verifies a
receipt. Reading: ``batch_receive``. Both use the extension module's own objects, as the segment log
does: the Python layer above them costs another fifth.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import _pulsar
import numpy as np
import pulsar

from benchmarks.data import load
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import Router, Topology, hash_of

_BATCH_MESSAGES = 5000
_BATCH_BYTES = 4 * 1024 * 1024
_BATCH_DELAY_MS = 10
_PENDING_MESSAGES = 50_000
_RECEIVER_MESSAGES = 20_000
_RECEIVE_MS = 100
_PIECE = 10_000  # rows for one topic before the next one gets its turn


@cache
def _client(service_url: str) -> Any:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(service_url, logger=quiet)


def _producers(service_url: str, topics: tuple[str, ...]) -> list[Any]:
    name = f"bench-{secrets.token_hex(6)}"
    return [
        _client(service_url).create_producer(
            topic,
            producer_name=name,
            batching_enabled=True,
            batching_max_messages=_BATCH_MESSAGES,
            batching_max_allowed_size_in_bytes=_BATCH_BYTES,
            batching_max_publish_delay_ms=_BATCH_DELAY_MS,
            max_pending_messages=_PENDING_MESSAGES,
            block_if_queue_full=True,
        )
        for topic in topics
    ]


def _batches(service_url: str, topic: str) -> Iterator[list[Any]]:
    """Yield all messages of a topic, as they come."""
    client = _client(service_url)
    consumer = client.subscribe(
        topic,
        f"bench-{secrets.token_hex(6)}",
        initial_position=pulsar.InitialPosition.Earliest,
        receiver_queue_size=_RECEIVER_MESSAGES,
        batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(_BATCH_MESSAGES, -1, _RECEIVE_MS),
    )
    last = consumer.get_last_message_id()
    end = (last.ledger_id(), last.entry_id(), last.batch_index())
    receive = consumer._consumer.batch_receive  # noqa: SLF001 - see above
    while True:
        messages = list(receive())
        yield messages
        if messages:
            last_id = messages[-1].message_id()
            if (last_id.ledger_id(), last_id.entry_id(), last_id.batch_index()) >= end:
                break
    consumer.unsubscribe()
    consumer.close()


_Rows = tuple[list[bytes], list[str]]


@cache
def _routed(path: str, segments: int) -> tuple[tuple[_Rows, ...], ...]:
    """Return a process's rows as Python objects, in pieces, cut up by topic."""
    table = load(path)
    router = Router(Topology.plan(TopicName.parse("any"), segments, "pulsar"))
    pieces = []
    for batch in table.to_batches(max_chunksize=_PIECE * segments):
        owners = router.route(batch.column("key"), batch.num_rows)
        piece = []
        for segment in range(segments):
            rows = batch.take(np.flatnonzero(owners == segment))
            keys = [key.decode() for key in rows.column("key").to_pylist()]
            piece.append((rows.column("value").to_pylist(), keys))
        pieces.append(tuple(piece))
    return tuple(pieces)


@dataclass(frozen=True, slots=True)
class Send:
    """Send one process's rows, which are routed and turned into Python objects beforehand."""

    service_url: str
    topics: tuple[str, ...]
    path: str

    def prepare(self) -> Callable[[], int]:
        """Load and route the rows, and connect."""
        pieces = _routed(self.path, len(self.topics))
        _client(self.service_url)

        def measured() -> int:
            producers = _producers(self.service_url, self.topics)
            sent = 0
            build = _pulsar.MessageBuilder
            for piece in pieces:
                for producer, (values, keys) in zip(producers, piece, strict=True):
                    send = producer._producer.send_async  # noqa: SLF001 - see above
                    for value, key in zip(values, keys, strict=True):
                        send(build().content(value).partition_key(key).build(), None)
                    sent += len(values)
            for producer in producers:
                producer.flush()
                producer.close()
            return sent

        return measured


@dataclass(frozen=True, slots=True)
class Receive:
    """Read some topics from their beginning to their end: value and key of each message."""

    service_url: str
    topics: tuple[str, ...]

    def prepare(self) -> Callable[[], int]:
        """Connect."""
        _client(self.service_url)

        def measured() -> int:
            return sum(
                len([(message.data(), message.partition_key()) for message in messages])
                for topic in self.topics
                for messages in _batches(self.service_url, topic)
            )

        return measured


@dataclass(frozen=True, slots=True)
class Pass:
    """Read some topics, change each value, and send it on by its key."""

    service_url: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def prepare(self) -> Callable[[], int]:
        """Connect."""
        _client(self.service_url)
        return self._pass_on

    def _pass_on(self) -> int:
        producers = _producers(self.service_url, self.outputs)
        sends = [producer._producer.send_async for producer in producers]  # noqa: SLF001
        topology = Topology.plan(TopicName.parse("any"), len(self.outputs), "pulsar")
        ends = [segment.hash_end for segment in topology.active]
        owners: dict[str, int] = {}
        build = _pulsar.MessageBuilder
        sent = 0
        for topic in self.inputs:
            for messages in _batches(self.service_url, topic):
                for message in messages:
                    value, key = message.data(), message.partition_key()
                    owner = owners.get(key)
                    if owner is None:
                        place = hash_of(key.encode())
                        owner = next(i for i, end in enumerate(ends) if place <= end)
                        owners[key] = owner
                    changed = value[1:] + value[:1]
                    sends[owner](build().content(changed).partition_key(key).build(), None)
                sent += len(messages)
        for producer in producers:
            producer.flush()
            producer.close()
        return sent
