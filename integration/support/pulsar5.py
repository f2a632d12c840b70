"""A broker of Pulsar 5 with its scalable topics, as a client without Spark uses them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pyarrow as pa

from integration.support.admin_rest import AdminRest
from pulsar_txn_spark.backends.pulsar.scalable_topic_log import segments_of
from pulsar_txn_spark.backends.pulsar.txn_bits import TxnBits
from pulsar_txn_spark.backends.pulsar.wire.client import CLIENTS
from pulsar_txn_spark.backends.pulsar.wire.coordinator import Ended, WireCoordinators
from pulsar_txn_spark.backends.pulsar.wire.producer import WireSegmentWriter, WireWriterSettings
from pulsar_txn_spark.backends.pulsar.wire.scalable import look_up
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import Segment, hash_of
from pulsar_txn_spark.testing.pulsar_server import Broker

VERSION = "5.0.0-M1"


class Pulsar5:
    """Scalable topics of a broker, and transactions of its coordinators.

    Parameters
    ----------
    broker : Broker
    """

    def __init__(self, broker: Broker) -> None:
        self.config = PulsarConfig(broker.service_url, broker.admin_url)
        self.admin = AdminRest(broker.admin_url)
        self.client = CLIENTS.acquire(self.config)
        self.coordinators = WireCoordinators(self.client, scalable=True)

    def topic(self, segments: int = 1) -> TopicName:
        """Create a scalable topic that no other test has."""
        name = f"public/default/five-{uuid.uuid4().hex[:8]}"
        self.admin("PUT", f"scalable/{name}?numInitialSegments={segments}")
        return TopicName.of_any_domain(f"scalable://{name}")

    def segments(self, topic: TopicName) -> tuple[Segment, ...]:
        """Return a topic's segments as the broker knows them now."""
        return segments_of(topic, look_up(self.client, topic.pulsar_name))

    def change(self, topic: TopicName, what: str, *numbers: int) -> None:
        """Split or merge segments."""
        self.admin("POST", f"scalable/{topic.path}/{what}/{'/'.join(map(str, numbers))}")

    def begin(self) -> TxnBits:
        """Begin a transaction."""
        return self.coordinators.begin("test", 60_000)

    def end(self, txn: TxnBits, *, commit: bool) -> Ended:
        """End a transaction."""
        return self.coordinators.end(txn, commit=commit)

    def produce(self, topic: TopicName, *values: str, txn: TxnBits | None = None) -> None:
        """Write rows, each to the segment that owns its key, which is its value's first letter."""
        owners: dict[str, tuple[Segment, list[bytes]]] = {}
        for value in values:
            owner = owner_of(value[:1], self.segments(topic))
            owners.setdefault(owner.ref.id, (owner, []))[1].append(value.encode())
        for owner, own in owners.values():
            self.produce_to(owner, own, txn)

    def produce_to(self, segment: Segment, values: Sequence[bytes], txn: TxnBits | None) -> None:
        """Write one entry to a segment."""
        writer = WireSegmentWriter(
            segment.ref,
            f"five-{uuid.uuid4().hex}",
            self.client,
            WireWriterSettings(timeout_s=10.0),
            before_report=lambda _last: None,
            bits=txn,
            native=txn is not None,
        )
        try:
            keys = [value[:1] for value in values]
            writer.append(pa.RecordBatch.from_pydict({"value": list(values), "key": keys}))
            writer.flush()
        finally:
            writer.close()

    def close(self) -> None:
        """Let go of the connections."""
        self.admin.close()
        CLIENTS.release(self.config)


def owner_of(key: str, segments: Sequence[Segment]) -> Segment:
    """Return the active segment that owns a key, as Pulsar's client for Java routes it."""
    key_hash = hash_of(key.encode())
    (owner,) = (s for s in segments if not s.sealed and s.hash_start <= key_hash <= s.hash_end)
    return owner
