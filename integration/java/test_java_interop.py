"""What Pulsar's own Java client writes, in every shape it has, both transports read."""

from __future__ import annotations

import base64
import shutil
import subprocess
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from integration.support.java_client import java_program
from pulsar_txn_spark.backends.pulsar.log import PulsarSegmentLog
from pulsar_txn_spark.backends.pulsar.native_topic_log import PulsarTopicLog
from pulsar_txn_spark.config import PulsarConfig, as_pairs
from pulsar_txn_spark.errors import DataLossError, SegmentLogError
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.spark.rows import (
    READ_SCHEMA,
    RowOrigin,
    needed_columns,
    to_spark_batches,
)
from pulsar_txn_spark.testing.pulsar_server import Broker
from tests.contract.segment_log import Row, as_rows, read

pytestmark = pytest.mark.skipif(
    shutil.which("mvn") is None or shutil.which("openssl") is None,
    reason="there is no 'mvn' on the PATH to fetch Pulsar's client with, or no 'openssl'",
)
TOPICS = ("batched", "keybatched", "single", "chunked", "transactions", "encrypted")
FOREIGN = "foreign"
SCHEMAS = ("string", "int64", "json", "avro", "keyvalue")
NATIVE = (FOREIGN, *(f"schema-{name}" for name in SCHEMAS))
"""Native topics; the others are segments."""
SOON_S = 20.0  # with one question after another that is never answered, it took minutes
ROW_COLUMNS = frozenset({"value", "key", "event_time_ms", "properties"})
ID_FIELD = READ_SCHEMA["__messageId"]
BINARY_KEY = b"\xff\x00\x80\x07"


def everything(_writer: str, _position: Position) -> bool:
    return True


@dataclass(frozen=True)
class Written:
    """What the Java client wrote: rows by topic, in order, and how to decrypt them."""

    segments: dict[str, SegmentRef]
    rows: dict[str, list[Row]]
    private_key: Path
    public_key: Path


def decoded(text: str) -> bytes | None:
    return None if text == "-" else base64.b64decode(text[1:])


def run_java(program: str, *arguments: str) -> str:
    """Run a program of the tests with Pulsar's client; return its output."""
    done = subprocess.run(
        java_program(program, *arguments),
        capture_output=True,
        timeout=240,
        check=False,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def written(pulsar: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    folder = tmp_path_factory.mktemp("java")
    private, public = folder / "private.pem", folder / "public.pem"
    for command in (
        ["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", str(private)],
        ["pkey", "-in", str(private), "-pubout", "-out", str(public)],
    ):
        subprocess.run(["openssl", *command], check=True, capture_output=True)
    prefix = f"persistent://public/default/{uuid.uuid4().hex}-"
    segments = {
        name: SegmentRef(uuid.uuid4().hex, "topic://public/default/t", prefix + name)
        for name in TOPICS
    }
    log = PulsarSegmentLog(PulsarConfig(pulsar.service_url, pulsar.admin_url))
    for segment in segments.values():
        log.create(segment)
    output = run_java("Produce", pulsar.service_url, prefix, str(public))
    rows: dict[str, list[Row]] = defaultdict(list)
    for line in output.splitlines():
        if not line.startswith(prefix):
            continue  # the client's log
        topic, value, key, time, pairs = line.split("\t")
        properties = dict(pair.split("=", 1) for pair in pairs.split(",") if pair)
        row = (decoded(value), decoded(key), int(time) or None, properties)
        rows[topic.removeprefix(prefix)].append(row)
    for native in NATIVE:
        name = prefix + native
        segments[native] = SegmentRef(name, name, name)
    assert set(rows) == set(segments)
    yield Written(segments, rows, private, public)
    for topic in TOPICS:
        log.delete(segments[topic])
    log.close()


@pytest.fixture(params=["wire", "client"])
def log(pulsar: Broker, request: pytest.FixtureRequest) -> Iterator[PulsarSegmentLog]:
    config = PulsarConfig(pulsar.service_url, pulsar.admin_url, transport=request.param)
    log = PulsarSegmentLog(config)
    yield log
    log.close()


@pytest.fixture
def foreign(log: PulsarSegmentLog) -> Iterator[PulsarTopicLog]:
    """Return what reads native topics, by the same transport."""
    found = PulsarTopicLog(log._config)
    yield found
    found.close()


def expected(written: Written, topic: str, log: PulsarSegmentLog) -> list[Row]:
    if log._config.transport == "wire":
        return written.rows[topic]
    # pulsar-client gives a binary key as Pulsar carries it, and does not tell it from a text.
    return [
        (value, base64.b64encode(key) if key == BINARY_KEY else key, time, properties)
        for value, key, time, properties in written.rows[topic]
    ]


def in_any_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (repr(row[:3]), sorted(row[3].items())))


@contextmanager
def refused_if_dropped(log: PulsarSegmentLog, topic: str) -> Iterator[None]:
    """Expect an error where pulsar-client drops a message; the transport ``wire`` reads all.

    pulsar-client drops a message without a payload, outside of a batch, that was compressed by
    ZLIB: its library takes nothing for damage. (A batch of a single message is sent as none.)
    """
    if log._config.transport == "client" and topic in ("single", "keybatched"):
        with pytest.raises(DataLossError, match="the transport 'wire' reads it"):
            yield
    else:
        yield


@pytest.mark.parametrize("topic", ["batched", "single", "chunked", "transactions"])
def test_every_message_is_read_in_order(
    written: Written, log: PulsarSegmentLog, topic: str
) -> None:
    with refused_if_dropped(log, topic):
        assert as_rows(read(log, written.segments[topic])) == expected(written, topic, log)


def test_topics_that_begin_and_end_with_compressed_chunks_are_read_soon(
    written: Written, foreign: PulsarTopicLog
) -> None:
    segment = written.segments[FOREIGN]
    began = time.monotonic()
    end = foreign.last_confirmed(segment)
    assert end == foreign.admin.managed_ledger(segment.log_name).last
    found = list(
        foreign.read(segment, EARLIEST, end, visible=everything, columns=ROW_COLUMNS, max_rows=100)
    )
    rows = [row for batch in found for row in as_rows(batch.to_pylist())]
    assert rows == written.rows[FOREIGN]
    assert foreign.measure(segment, EARLIEST, Position(end.ledger, 1)).entries == 2
    assert time.monotonic() - began < SOON_S


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_value_with_a_schema_is_read_as_the_bytes_that_the_schema_makes(
    written: Written, foreign: PulsarTopicLog, schema: str
) -> None:
    segment = written.segments[f"schema-{schema}"]
    assert as_rows(read(foreign, segment)) == written.rows[f"schema-{schema}"]


def test_a_range_that_begins_within_a_message_gives_it_whole_or_is_refused(
    written: Written, foreign: PulsarTopicLog
) -> None:
    segment = written.segments[FOREIGN]
    end = foreign.last_confirmed(segment)
    wire = foreign._config.transport == "wire"
    for entry in (0, 9, 20):  # the first message has 30 chunks and more, in LZ4
        begun = foreign.read(
            segment,
            Position(end.ledger, entry),
            end,
            visible=everything,
            columns=ROW_COLUMNS,
            max_rows=100,
        )
        if wire:
            rows = [row for batch in begun for row in as_rows(batch.to_pylist())]
            assert rows == written.rows[FOREIGN]
        else:
            with pytest.raises(SegmentLogError, match=r"begins before the range.*'wire'"):
                list(begun)


def test_javas_client_seeks_to_the_ids_of_messages_in_chunks(
    pulsar: Broker, written: Written, foreign: PulsarTopicLog
) -> None:
    segment = written.segments[FOREIGN]
    columns = needed_columns(StructType([ID_FIELD])) | {"value"}
    end = foreign.last_confirmed(segment)
    found = pa.Table.from_batches(
        foreign.read(segment, EARLIEST, end, visible=everything, columns=columns, max_rows=100)
    )
    [rows] = found.combine_chunks().to_batches()
    [shown] = to_spark_batches(
        iter([rows]),
        StructType([ID_FIELD]),
        pa.schema([("__messageId", pa.binary())]),
        RowOrigin("t"),
    )
    ids = [base64.b64encode(one.as_py()).decode() for one in shown.column(0)]
    output = run_java("Seek", pulsar.service_url, segment.log_name, *ids)
    values = [line.split("\t")[1] for line in output.splitlines() if line.startswith("value\t")]
    assert [base64.b64decode(one) for one in values] == rows.column("value").to_pylist()


def test_batches_by_key_are_read_whole(written: Written, log: PulsarSegmentLog) -> None:
    with refused_if_dropped(log, "keybatched"):
        found = in_any_order(as_rows(read(log, written.segments["keybatched"])))
        assert found == in_any_order(expected(written, "keybatched", log))


def test_an_encrypted_message_is_refused_by_wire_and_read_by_the_client(
    pulsar: Broker, written: Written
) -> None:
    wire = PulsarSegmentLog(PulsarConfig(pulsar.service_url, pulsar.admin_url, transport="wire"))
    with pytest.raises(SegmentLogError, match=r"encrypted.*'client'"):
        read(wire, written.segments["encrypted"])
    wire.close()
    crypto = as_pairs(
        {
            "cryptoPublicKeyPath": str(written.public_key),
            "cryptoPrivateKeyPath": str(written.private_key),
        }
    )
    # `auto` finds that out by itself.
    client = PulsarSegmentLog(
        PulsarConfig(pulsar.service_url, pulsar.admin_url, reader=crypto, transport="auto")
    )
    assert as_rows(read(client, written.segments["encrypted"])) == written.rows["encrypted"]
    client.close()
