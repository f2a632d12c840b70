"""What pulsar-client writes we read, and what we write Java and pulsar-client read.

What Java writes is read in test_java_interop.py. docs/interop.md has the table of both.
"""

from __future__ import annotations

import base64
import json
import random
import shutil
import uuid
from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta

import pulsar as pulsar_client
import pytest
from pulsar.schema import Integer, JsonSchema, Record, String, StringSchema

from integration.java.test_java_interop import BINARY_KEY, decoded, run_java
from integration.support.admin_rest import AdminRest, path_of
from integration.support.gated import QUIET
from pulsar_txn_spark.backends.pulsar.log import PulsarSegmentLog
from pulsar_txn_spark.backends.pulsar.passthrough import COMPRESSION_TYPES
from pulsar_txn_spark.config import PulsarConfig, as_pairs
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.spark.datasource import PulsarTxnDataSource
from pulsar_txn_spark.testing.pulsar_server import Broker
from tests.contract.segment_log import EVERY_KIND_OF_ROW, Row, table, write

pytestmark = pytest.mark.skipif(
    shutil.which("mvn") is None,
    reason="there is no 'mvn' on the PATH to fetch Pulsar's client with",
)
TRANSPORTS = ("wire", "client")
EVENT_TIME = 1_700_000_000_123
COMPRESSIONS = {
    "NONE": pulsar_client.CompressionType.NONE,
    "LZ4": pulsar_client.CompressionType.LZ4,
    "ZLIB": pulsar_client.CompressionType.ZLib,
    "ZSTD": pulsar_client.CompressionType.ZSTD,
    "SNAPPY": pulsar_client.CompressionType.SNAPPY,
}
FLIGHT = {"name": "grüße", "number": 7}
TEXT = b"again and again " * 50


class Flight(Record):  # type: ignore[misc]
    """As in Consume.java."""

    name = String()
    number = Integer()


@pytest.fixture(scope="module")
def plain(pulsar: Broker) -> Iterator[pulsar_client.Client]:
    client = pulsar_client.Client(pulsar.service_url, logger=QUIET)
    yield client
    client.close()


# --- pulsar-client writes, we read ----------------------------------------------------------------


@pytest.fixture
def topic(api: AdminRest) -> str:
    name = f"persistent://public/default/{uuid.uuid4().hex}"
    api("PUT", path_of(name))
    return name


@pytest.fixture(params=TRANSPORTS)
def options(
    request: pytest.FixtureRequest, pulsar: Broker, embedded: dict[str, str], topic: str
) -> dict[str, str]:
    where = {"service.url": pulsar.service_url, "admin.url": pulsar.admin_url, "topic": topic}
    return {**embedded, **where, "transport": request.param}


def rows_of(options: dict[str, str]) -> list[Row]:
    """Read a topic as the tasks of a query do."""
    source = PulsarTxnDataSource(options)
    reader = source.reader(source.schema())
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    rows = [row for batch in batches for row in batch.to_pylist()]  # type: ignore[union-attr]
    return [
        (
            row["value"],
            row["__key"],
            None if row["__eventTime"] is None else round(row["__eventTime"].timestamp() * 1000),
            dict(row["__messageProperties"] or []),
        )
        for row in rows
    ]


@pytest.mark.parametrize("compression", COMPRESSION_TYPES)
@pytest.mark.parametrize("batched", [True, False], ids=["batched", "single"])
def test_what_python_writes_is_read(
    plain: pulsar_client.Client,
    topic: str,
    options: dict[str, str],
    compression: str,
    batched: bool,
) -> None:
    producer = plain.create_producer(
        topic,
        compression_type=COMPRESSIONS[compression],
        batching_enabled=batched,
        batching_max_publish_delay_ms=1000,
        block_if_queue_full=True,
    )
    rows: list[Row] = [(b"%d" % n, b"key-%d" % n, None, {}) for n in range(20)]
    rows += [
        (TEXT, None, None, {}),
        (b"\x00\xff\x80", "schlüssel".encode(), EVENT_TIME, {"a": "1", "ü": "日本"}),
    ]
    rows.insert(3, (b"", b"k", None, {}))
    for number, (value, key, time, properties) in enumerate(rows):
        producer.send_async(
            value,
            lambda *_: None,
            partition_key=None if key is None else key.decode(),
            event_timestamp=time,
            properties=properties,
            ordering_key="o" if number % 7 == 3 else None,
        )
    producer.flush()
    if options["transport"] == "client" and compression == "ZLIB" and not batched:
        del rows[3]  # pulsar-client takes nothing for damage: docs/interop.md says so
    assert rows_of(options) == rows


def test_what_python_writes_in_batches_by_key_is_read(
    plain: pulsar_client.Client, topic: str, options: dict[str, str]
) -> None:
    producer = plain.create_producer(
        topic,
        batching_enabled=True,
        batching_type=pulsar_client.BatchingType.KeyBased,
        batching_max_publish_delay_ms=1000,
    )
    for number in range(30):
        producer.send_async(b"%d" % number, lambda *_: None, partition_key=f"{number % 3}")
    producer.flush()
    found: dict[bytes | None, list[bytes | None]] = defaultdict(list)
    for value, key, *_ in rows_of(options):
        found[key].append(value)
    assert found == {b"%d" % k: [b"%d" % n for n in range(k, 30, 3)] for k in range(3)}


@pytest.mark.parametrize("compression", COMPRESSION_TYPES)
def test_what_python_writes_in_chunks_is_read(
    plain: pulsar_client.Client, topic: str, options: dict[str, str], compression: str
) -> None:
    producer = plain.create_producer(
        topic, compression_type=COMPRESSIONS[compression], chunking_enabled=True
    )
    large = random.Random(1).randbytes(6_000_000)  # the broker takes 5 MiB at once
    for value in (large, b"small"):
        producer.send(value, partition_key="k")
    assert rows_of(options) == [(large, b"k", None, {}), (b"small", b"k", None, {})]


def test_what_python_writes_with_a_schema_is_read(
    plain: pulsar_client.Client, topic: str, options: dict[str, str]
) -> None:
    plain.create_producer(topic, schema=JsonSchema(Flight)).send(Flight(**FLIGHT))
    [(value, *_)] = rows_of(options)
    assert value is not None
    assert json.loads(value) == FLIGHT


def test_what_python_writes_as_text_is_read(
    plain: pulsar_client.Client, topic: str, options: dict[str, str]
) -> None:
    plain.create_producer(topic, schema=StringSchema()).send("grüße")
    assert rows_of(options) == [("grüße".encode(), None, None, {})]


def test_what_python_has_delayed_is_read_at_once(
    plain: pulsar_client.Client, topic: str, options: dict[str, str]
) -> None:
    plain.create_producer(topic).send(b"later", deliver_after=timedelta(hours=1))
    assert rows_of(options) == [(b"later", None, None, {})]


# --- we write, others read ------------------------------------------------------------------------


class Ours:
    """What we wrote into topics of our own, and what Java has read of it."""

    def __init__(self, pulsar: Broker) -> None:
        self._pulsar = pulsar
        self._logs: list[tuple[PulsarSegmentLog, SegmentRef]] = []
        self.prefix = f"persistent://public/default/{uuid.uuid4().hex}-"
        self.rows: dict[str, list[Row]] = {}
        self.java: dict[str, list[Row]] = defaultdict(list)
        self.flights: list[str] = []

    def create(self, name: str, transport: str, compression: str) -> str:
        """Create a topic that is written with a transport and a compression; return its name."""
        config = PulsarConfig(
            self._pulsar.service_url,
            self._pulsar.admin_url,
            transport=transport,
            producer=as_pairs({"compressionType": compression}),
        )
        log, id_ = PulsarSegmentLog(config), uuid.uuid4().hex
        segment = SegmentRef(id_, "topic://public/default/t", self.prefix + name)
        log.create(segment)
        self._logs.append((log, segment))
        return segment.log_name

    def write(self, topic: str, rows: list[Row]) -> None:
        [(log, segment)] = [found for found in self._logs if found[1].log_name == topic]
        self.rows[topic] = rows
        write(log, segment, "w", table(rows))

    def read_by_java(self, *topics: str) -> None:
        for line in run_java("Consume", self._pulsar.service_url, *topics).splitlines():
            topic, *fields = line.split("\t")
            if len(fields) == 2:
                self.flights.append(line)
            elif topic in self.rows:
                value, key, time, pairs = fields
                properties = dict(pair.split("=", 1) for pair in pairs.split(",") if pair)
                row = (decoded(value), decoded(key), int(time) or None, properties)
                self.java[topic].append(row)

    def close(self) -> None:
        for log, segment in self._logs:
            log.delete(segment)
            log.close()


def shapes(transport: str) -> list[Row]:
    rows: list[Row] = [(b"%d" % n, b"key-%d" % n, None, {}) for n in range(20)]
    rows += [*EVERY_KIND_OF_ROW, (TEXT, b"k", EVENT_TIME, {"only": "property"})]
    if transport == "wire":  # pulsar-client takes texts only
        rows.append((b"v", BINARY_KEY, None, {}))
    return rows


@pytest.fixture(scope="module")
def ours(pulsar: Broker, plain: pulsar_client.Client) -> Iterator[Ours]:
    ours = Ours(pulsar)
    for transport in TRANSPORTS:
        for compression in COMPRESSION_TYPES:
            topic = ours.create(f"{transport}-{compression}", transport, compression)
            ours.write(topic, shapes(transport))
        topic = ours.create(f"{transport}-json", transport, "NONE")
        schema = JsonSchema(Flight)
        plain.subscribe(topic, "s", schema=schema).close()  # registers the schema
        ours.write(topic, [(json.dumps(FLIGHT).encode(), b"k", None, {})])
    ours.read_by_java(*(f"json:{name}" if name.endswith("json") else name for name in ours.rows))
    yield ours
    ours.close()


@pytest.mark.parametrize("compression", COMPRESSION_TYPES)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_java_reads_what_we_write(ours: Ours, transport: str, compression: str) -> None:
    topic = f"{ours.prefix}{transport}-{compression}"
    assert ours.java[topic] == ours.rows[topic]


@pytest.mark.parametrize("compression", COMPRESSION_TYPES)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_python_reads_what_we_write(
    ours: Ours, plain: pulsar_client.Client, transport: str, compression: str
) -> None:
    topic = f"{ours.prefix}{transport}-{compression}"
    reader = plain.create_reader(topic, pulsar_client.MessageId.earliest)
    found = []
    while reader.has_message_available():
        message = reader.read_next(20_000)
        time = message.event_timestamp() or None
        found.append((message.data(), message.partition_key(), time, message.properties()))
    reader.close()
    assert found == [
        (value or b"", key_in_python(key), time, properties)
        for value, key, time, properties in ours.rows[topic]
    ]


def key_in_python(key: bytes | None) -> str:
    """Return a key as pulsar-client shows it: a binary one as Pulsar carries it."""
    if key is None:
        return ""
    return base64.b64encode(key).decode() if key == BINARY_KEY else key.decode()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_java_reads_by_a_schema_what_we_write(ours: Ours, transport: str) -> None:
    assert f"{ours.prefix}{transport}-json\tgrüße\t7" in ours.flights


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_python_reads_by_a_schema_what_we_write(
    ours: Ours, plain: pulsar_client.Client, transport: str
) -> None:
    topic = f"{ours.prefix}{transport}-json"
    reader = plain.create_reader(topic, pulsar_client.MessageId.earliest, schema=JsonSchema(Flight))
    flight = reader.read_next(20_000).value()
    reader.close()
    assert {"name": flight.name, "number": flight.number} == FLIGHT
