"""Drivers and tasks under Pulsar's own transactions, on a broker in this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from pulsar_txn_spark.backends.pulsar.wire.batch import decode
from pulsar_txn_spark.backends.pulsar.wire.client import WireClient
from pulsar_txn_spark.backends.pulsar.wire.coordinator import ASSIGNMENT, WireCoordinators
from pulsar_txn_spark.backends.pulsar.wire.frames import decode_entry
from pulsar_txn_spark.backends.pulsar.wire.settings import ConnectionSettings
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.engine import native_sink
from pulsar_txn_spark.engine.native_sink import NativeBatch, NativeSink
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import Segment, Topology
from pulsar_txn_spark.txn.batch import SinkRules
from pulsar_txn_spark.txn.native_history import CommittedBatch, Decision, Record, decide
from tests.support.fake_pulsar import FakePulsar

TOPIC = TopicName.of_any_domain("persistent://public/default/t")
PARTITIONS = [
    SegmentRef(f"{TOPIC}-partition-{n}", str(TOPIC), f"{TOPIC}-partition-{n}") for n in (0, 1)
]
SCALABLE_TOPIC = TopicName.of_any_domain("scalable://public/default/t")
SEGMENTS = [
    SegmentRef(
        f"segment://public/default/t/{d}", str(SCALABLE_TOPIC), f"segment://public/default/t/{d}"
    )
    for d in ("0000-7fff-0", "8000-ffff-1")
]
QUERY = "query"
TASKS = 2


class Admin:
    """What the control topic asks of the admin API."""

    def __init__(self) -> None:
        self.marks: dict[str, dict[str, str]] = {}
        self.calls: list[str] = []
        self.kept = EARLIEST
        self.segments = 1  # of a scalable control topic

    def properties(self, topic: str) -> dict[str, str] | None:
        return self.marks.get(topic)

    def create_topic(self, topic: str) -> None:
        self.marks[topic] = {}

    def set_properties(self, topic: str, properties: dict[str, str]) -> None:
        self.calls.append("mark")
        self.marks[topic].update(properties)

    def scalable_topic(self, name: str) -> dict[str, Any] | None:
        if name not in self.marks:
            return None
        segments: dict[str, Any] = {str(number): {} for number in range(self.segments)}
        return {"properties": self.marks[name], "segments": segments}

    def create_scalable_topic(self, name: str, properties: dict[str, str]) -> None:
        self.calls.append("create")
        self.marks[name] = dict(properties)

    def acknowledged_by(self, _topic: str, _name: str) -> Position:
        return self.kept

    def move_subscription(self, _topic: str, _name: str, to: Position) -> None:
        self.kept = Position(to.ledger, to.entry - 1)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: self.calls.append(name)


class World:
    """A broker, a sink on it, and a reader that sees what is committed."""

    patience_s = 5.0
    topic = TOPIC
    partitions: list[SegmentRef] = PARTITIONS

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broker = FakePulsar(partitions={ASSIGNMENT: 1}, deduplicates=False, scalable={})
        self.coordinator = self.broker.coordinator
        self.config = PulsarConfig(self.broker.url, "http://x")
        self.admin = Admin()
        self._clients: list[WireClient] = []
        monkeypatch.setattr(native_sink, "_connections", self._connect)
        self.control = self.sink()._control.name

    def _connect(self, config: PulsarConfig, *, scalable: bool = False) -> Any:
        settings = replace(ConnectionSettings.of(config), operation_s=self.patience_s, connect_s=2)
        client = WireClient(settings)
        self._clients.append(client)
        segments = tuple(
            Segment(ref, number * 32_768, number * 32_768 + 32_767)
            for number, ref in enumerate(self.partitions)
        )
        topology = Topology(self.topic, "", segments, len(segments), "pulsar")
        topics = SimpleNamespace(layout=lambda _topic: topology, check_access=lambda _ref: None)
        admin, any_topics = cast("Any", self.admin), cast("Any", topics)
        coordinators = WireCoordinators(client, scalable=scalable)
        return native_sink._Connections(client, admin, coordinators, any_topics)

    def sink(self) -> NativeSink:
        """Return what a new driver or worker has."""
        return NativeSink(self.config, "public/default", "s", scalable=self.topic.scalable)

    def write(self, batch: NativeBatch, task: int, attempt: str, *values: bytes) -> bool:
        writer = self.sink().writer(batch, task, attempt)
        try:
            rows = {"value": list(values), "key": list(values)}
            writer.append(self.topic, pa.RecordBatch.from_pydict(rows))
            writer.finish()
        finally:
            writer.close()
        return writer.wrote

    def values_of(self, number: int) -> list[bytes]:
        return [b"%d-%d" % (number, task) for task in range(TASKS)]

    def begin_and_write(self, number: int) -> tuple[NativeSink, NativeBatch]:
        sink = self.sink()
        batch = sink.begin(60_000)
        assert decide("s", batch.last, QUERY, number, SinkRules()) is Decision.WRITE
        for task in range(TASKS):
            self.write(batch, task, f"a{task}", b"%d-%d" % (number, task))
        return sink, batch

    def commit(self, sink: NativeSink, batch: NativeBatch, number: int) -> None:
        sink.close_batch(batch, {task: f"a{task}" for task in range(TASKS)})
        sink.commit(batch, CommittedBatch(QUERY, number))

    def drive(self, number: int) -> None:
        self.commit(*self.begin_and_write(number), number)

    def last(self) -> CommittedBatch | None:
        """Return what a new driver finds."""
        sink = self.sink()
        batch = sink.begin(60_000)
        sink.abort(batch)
        return batch.last

    def committed(self) -> Counter[bytes]:
        """Return what a consumer sees."""
        found: Counter[bytes] = Counter()
        for ref in self.partitions:
            topic = self.broker.topic(ref.log_name)
            for at, (body, messages) in enumerate(topic.entries):
                txn = topic.txns.get(at)
                if self.coordinator.hides(ref.log_name, txn):
                    break
                if self.coordinator.shows(txn):
                    found.update(
                        decode(bytes(decode_entry(body)[1]), messages)["value"].to_pylist()
                    )
        return found

    def records(self) -> list[tuple[Record, tuple[int, int] | None]]:
        """Return what stands in the control topic, with the transaction that it is part of."""
        topic = self.broker.topic(self.control)
        return [
            (Record.decode(value), topic.txns.get(at))
            for at, (body, messages) in enumerate(topic.entries)
            for value in decode(bytes(decode_entry(body)[1]), messages)["value"].to_pylist()
        ]

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.broker.close()


class ScalableWorld(World):
    """The same with a scalable topic of Pulsar 5."""

    topic = SCALABLE_TOPIC
    partitions = SEGMENTS
