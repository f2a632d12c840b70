"""The wire transport on a real broker whose connections are cut and whose topics move."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from integration.support.admin_rest import AdminRest
from integration.support.cutting_proxy import Cut, CuttingProxy, at
from pulsar_txn_spark.backends.pulsar.log import PulsarSegmentLog
from pulsar_txn_spark.backends.pulsar.pulsar_pb2 import BaseCommand
from pulsar_txn_spark.config import PulsarConfig, as_pairs
from pulsar_txn_spark.errors import (
    SegmentLogError,
    SegmentSealedError,
    UnverifiedReceiptError,
)
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import SegmentRef, SegmentWriter
from pulsar_txn_spark.testing.pulsar_server import Broker
from tests.contract.segment_log import numbered, read_values

ROWS = 2000
AN_ENTRY = 10
EXPECTED = [b"%d" % number for number in range(ROWS)]


@dataclass
class Bench:
    """A log whose every byte goes through a proxy, and one segment of it."""

    proxy: CuttingProxy
    log: PulsarSegmentLog
    segment: SegmentRef
    admin: AdminRest
    bounds: dict[str, Position] = field(default_factory=dict)
    attempts: int = 0

    def write(self, start: int, stop: int) -> None:
        """Write rows as the layer above does: what has no receipt goes out under a new name."""
        done, last = start, self.attempts + 20
        while done < stop:
            self.attempts += 1
            assert self.attempts < last
            name = f"w{self.attempts}"
            writer = self.log.writer(self.segment, name)
            try:
                for first in range(done, stop, AN_ENTRY):
                    writer.append(numbered(first, min(first + AN_ENTRY, stop)))
                writer.flush()
            except UnverifiedReceiptError:
                pass
            finally:
                receipt = writer.acknowledged()
                writer.close()
            assert receipt.messages % AN_ENTRY == 0
            done += receipt.messages
            if receipt.last is not None:
                self.bounds[name] = receipt.last

    def visible(self, writer: str, position: Position) -> bool:
        return writer in self.bounds and position <= self.bounds[writer]

    def unload(self) -> None:
        self.admin.unload(self.segment.log_name)

    def found(self) -> list[bytes]:
        return read_values(self.log, self.segment, visible=self.visible, max_rows=100)


@pytest.fixture
def bench(pulsar: Broker, api: AdminRest, caplog: pytest.LogCaptureFixture) -> Iterator[Bench]:
    caplog.set_level("INFO")  # a test that fails shows what was lost
    proxy = CuttingProxy(pulsar.service_url)
    # Small entries, and few of them at a time: so there is a middle to cut at.
    config = PulsarConfig(
        proxy.url,
        pulsar.admin_url,
        producer=as_pairs({"batchingMaxMessages": str(AN_ENTRY)}),
        reader=as_pairs({"receiverQueueSize": "100"}),
        transport="wire",
    )
    log = PulsarSegmentLog(config)
    name = uuid.uuid4().hex
    segment = SegmentRef(name, "topic://public/default/t", f"persistent://public/default/{name}")
    log.create(segment)
    yield Bench(proxy, log, segment, api)
    log.delete(segment)
    log.close()
    proxy.close()


def write_on(writer: SegmentWriter, start: int, flush_every: int) -> None:
    """Write without an end, to see what stops it."""
    for entry in range(100_000):
        first = start + entry * AN_ENTRY
        writer.append(numbered(first, first + AN_ENTRY))
        if (entry + 1) % flush_every == 0:
            writer.flush()


@pytest.mark.parametrize(
    "kind", [BaseCommand.SEND, BaseCommand.SEND_RECEIPT], ids=["send", "receipt"]
)
@pytest.mark.parametrize("number", [1, 70])
@pytest.mark.parametrize("cut", ["before", "amid", "after"])
def test_a_connection_cut_amid_sending_loses_and_doubles_nothing(
    bench: Bench, kind: int, number: int, cut: Cut
) -> None:
    bench.proxy.on_frame = at(kind, number, cut)
    bench.write(0, ROWS)
    assert bench.proxy.connections >= 2
    assert bench.found() == EXPECTED


@pytest.mark.parametrize("cut", ["before", "amid", "after"])
@pytest.mark.parametrize("number", [1, 70])
def test_a_connection_cut_amid_reading_loses_and_doubles_nothing(
    bench: Bench, number: int, cut: Cut
) -> None:
    bench.write(0, ROWS)
    before = bench.proxy.connections
    bench.proxy.on_frame = at(BaseCommand.MESSAGE, number, cut)
    assert bench.found() == EXPECTED
    assert bench.proxy.connections == before + 1


def test_cuts_again_and_again_are_got_over_as_long_as_there_is_progress(bench: Bench) -> None:
    cuts = [at(BaseCommand.MESSAGE, number, "amid") for number in range(20, 200, 20)]
    bench.write(0, ROWS)
    before = bench.proxy.connections
    bench.proxy.on_frame = lambda command: next(
        (cut for choose in cuts if (cut := choose(command)) is not None), None
    )
    assert bench.found() == EXPECTED
    assert bench.proxy.connections >= before + 5


def test_a_topic_that_is_unloaded_amid_writing_goes_on_without_loss(bench: Bench) -> None:
    unloading = threading.Thread(target=bench.unload)

    def on_frame(command: BaseCommand) -> Cut:
        if command.type == BaseCommand.SEND and not unloading.ident:
            unloading.start()
        return None

    bench.proxy.on_frame = on_frame
    written = 0
    while written < ROWS or unloading.is_alive():
        bench.write(written, written + ROWS // 10)
        written += ROWS // 10
    assert bench.found() == [b"%d" % number for number in range(written)]


def test_a_writer_at_rest_survives_an_unload(bench: Bench) -> None:
    writer = bench.log.writer(bench.segment, "w")
    for start in (0, 100):
        writer.append(numbered(start, start + 100))
        receipt = writer.flush()
        assert receipt.messages == 100
        bench.unload()
    writer.close()
    assert read_values(bench.log, bench.segment) == EXPECTED[:200]


def test_a_topic_that_is_unloaded_amid_reading_is_read_on(bench: Bench) -> None:
    bench.write(0, ROWS)
    batches = bench.log.read(
        bench.segment,
        EARLIEST,
        bench.log.last_confirmed(bench.segment),
        visible=bench.visible,
        columns=frozenset({"value"}),
        max_rows=100,
    )
    found = next(batches).column(0).to_pylist()
    bench.unload()
    for batch in batches:
        found += batch.column(0).to_pylist()
    assert found == EXPECTED


def test_a_segment_sealed_amid_writing_says_just_what_was_acknowledged(bench: Bench) -> None:
    sealed: list[Position] = []

    def seal() -> None:
        sealed.append(bench.log.seal(bench.segment))

    threads: list[threading.Thread] = []

    def on_frame(command: BaseCommand) -> Cut:
        if command.type == BaseCommand.SEND and command.send.sequence_id == 40:
            threads.append(threading.Thread(target=seal))
            threads[0].start()
        return None

    bench.proxy.on_frame = on_frame
    writer = bench.log.writer(bench.segment, "w1")
    with pytest.raises(SegmentSealedError):
        write_on(writer, 0, 20)
    receipt = writer.acknowledged()
    assert receipt == writer.acknowledged()
    writer.close()
    threads[0].join(30)
    assert receipt.last is not None
    assert receipt.last <= sealed[0]
    assert receipt.messages % AN_ENTRY == 0
    assert receipt.messages >= 20 * AN_ENTRY  # of a flush before the seal
    bench.bounds["w1"] = receipt.last
    expected = [b"%d" % number for number in range(receipt.messages)]
    assert bench.found() == expected, json.dumps([str(receipt), str(sealed[0])])


def test_a_broker_that_is_gone_for_good_fails_the_attempt_in_time(
    pulsar: Broker, bench: Bench
) -> None:
    impatient = PulsarSegmentLog(
        PulsarConfig(
            bench.proxy.url,
            pulsar.admin_url,
            producer=as_pairs({"sendTimeoutMs": "500"}),
            transport="wire",
        )
    )
    writer = impatient.writer(bench.segment, "w")
    writer.append(numbered(0, 10))
    writer.flush()
    bench.proxy.close()
    with pytest.raises(SegmentLogError, match="did not answer"):
        write_on(writer, AN_ENTRY, 1)
    assert writer.acknowledged().messages >= 10
    writer.close()
    impatient.close()
