"""A broker of Pulsar 5 in this process, with one scalable topic, its coordinator and its log."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from pulsar_txn_spark.backends.pulsar import scalable_topic_log
from pulsar_txn_spark.backends.pulsar.pulsar_pb2 import SegmentInfoProto
from pulsar_txn_spark.backends.pulsar.scalable_topic_log import ScalableTopicLog
from pulsar_txn_spark.backends.pulsar.txn_bits import TxnBits
from pulsar_txn_spark.backends.pulsar.wire.client import CLIENTS
from pulsar_txn_spark.backends.pulsar.wire.coordinator import WireCoordinators
from pulsar_txn_spark.backends.pulsar.wire.producer import WireSegmentWriter, WireWriterSettings
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topic_name import TopicName
from tests.support.fake_pulsar import FakePulsar

TOPIC = TopicName.of_any_domain("scalable://public/default/t")
PATIENCE_S = 0.05


def segment(
    number: int, start: int, end: int, parents: Sequence[int] = (), children: Sequence[int] = ()
) -> SegmentInfoProto:
    return SegmentInfoProto(
        segment_id=number,
        hash_start=start,
        hash_end=end,
        state=1 if children else 0,
        parent_ids=parents,
        child_ids=children,
        created_at_ms=1000 + number,
    )


class ScalableTopicWorld:
    """A broker with one scalable topic, its coordinator and a log that reads it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(scalable_topic_log, "_POLL_SECONDS", PATIENCE_S)
        monkeypatch.setattr(scalable_topic_log, "_LATE_SECONDS", 0.2)
        self.broker = FakePulsar(scalable={}, last_ids_move=False)
        self.become(segment(0, 0, 65_535))
        self.config = PulsarConfig(self.broker.url, "http://127.0.0.1:1")
        self.client = CLIENTS.acquire(self.config)
        self.coordinators = WireCoordinators(self.client, scalable=True)
        self.log = ScalableTopicLog(self.config, patience_s=PATIENCE_S, topology_s=0.0)

    def become(self, *segments: SegmentInfoProto) -> None:
        """Let the topic have these segments."""
        assert self.broker.scalable is not None
        self.broker.scalable[TOPIC.pulsar_name] = list(segments)

    def ref(self, number: int = 0) -> SegmentRef:
        return self.log.topology(TOPIC).segments[number].ref

    def write(self, ref: SegmentRef, *values: str, txn: TxnBits | None = None) -> None:
        if txn is not None:
            self.coordinators.add_partitions(txn, [ref.log_name])
        writer = WireSegmentWriter(
            ref,
            "w",
            self.client,
            WireWriterSettings(),
            before_report=lambda _last: None,
            bits=txn,
            native=txn is not None,
        )
        for value in values:
            writer.append(pa.RecordBatch.from_pydict({"value": [value.encode()]}))
            writer.flush()
        writer.close()

    def split(self) -> None:
        """Seal the first segment, which gets two children."""
        self.broker.topic("segment://public/default/t/0000-ffff-0").terminated = True
        self.become(
            segment(0, 0, 65_535, children=[1, 2]),
            segment(1, 0, 32_767, parents=[0]),
            segment(2, 32_768, 65_535, parents=[0]),
        )

    def prune(self, number: int) -> None:
        """Delete a segment from the topology, as the brokers do without asking anybody."""
        assert self.broker.scalable is not None
        segments = self.broker.scalable[TOPIC.pulsar_name]
        for left in segments:
            for ids in (left.parent_ids, left.child_ids):
                if number in ids:
                    ids.remove(number)
        self.become(*(left for left in segments if left.segment_id != number))

    def close(self) -> None:
        self.log.close()
        CLIENTS.release(self.config)
        CLIENTS.close_idle()
        self.broker.close()

    def read(
        self, ref: SegmentRef, start: Position = EARLIEST, end: Position | None = None
    ) -> list[str]:
        batches = self.log.read(
            ref,
            start,
            self.log.last_confirmed(ref) if end is None else end,
            visible=lambda _writer, _position: True,
            columns=frozenset({"value"}),
            max_rows=10,
        )
        return [value.decode() for batch in batches for value in batch.column(0).to_pylist()]
