"""Keeps producers open for the next writer of their topics.

Each transaction has writers of its own, whose names are in their entries. A producer of that name
would cost a broker a request for each of them. With deduplication, the broker would keep the name
for six hours or more, too. So a writer of a transaction takes a producer that waits here, and gives
it back once all of its entries have receipts.

The entries of one producer have ascending sequence ids, whichever writers they are of.
"""

from __future__ import annotations

from pulsar_txn_spark.backends.pulsar.wire.idle_pool import IdlePool, Item


class IdleProducers(IdlePool[Item]):
    """The producers of a client that wait: of a topic as many as were in use at once."""

    def take(self, topic: str) -> Item | None:
        """Return a producer of a topic that waits no longer, None if there is none."""
        while (producer := self._take(topic)) is not None:
            if producer.can_wait():
                return producer
            producer.leave()
        return None
