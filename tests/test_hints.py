"""A hint leads to what helps: each was given by somebody who followed a wrong one."""

from __future__ import annotations

import logging
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
import redis
from pyspark.sql.types import StructType

from pulsar_txn_spark import Admin
from pulsar_txn_spark.client.message import Row
from pulsar_txn_spark.config import StoreConfig
from pulsar_txn_spark.errors import OptionError, SchemaError, StoreUnavailableError
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.segments.log import checked_event_times, checked_properties
from pulsar_txn_spark.spark.rows import (
    EVENT_TIME,
    KEY,
    PROPERTIES,
    VALUE,
    check_writable,
    to_row_batch,
)
from pulsar_txn_spark.spark.source.batch import PulsarTxnReader
from pulsar_txn_spark.spark.source.stream import PulsarTxnStreamReader
from pulsar_txn_spark.spark.source.topics import check_source
from pulsar_txn_spark.store.redis.connection import connect

READ = Use.READ | Use.STREAM

# -- options of others -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key,hint",
    [
        ("maxOffsetsPerTrigger", "use 'maxMessagesPerTrigger'"),
        ("subscribePattern", "use 'topicsPattern'"),
        ("subscribe", "use 'topic' or 'topics'"),
        ("predefinedSubscription", "use 'subscription'"),
        ("kafka.bootstrap.servers", "use 'service.url'"),
        ("minOffsetsPerTrigger", "use 'minMessagesPerTrigger'"),
        ("startingTime", "use 'startingTimestamp' or 'startingOffsetsByTimestamp'"),
        ("endingTime", "use 'endingTimestamp' or 'endingOffsetsByTimestamp'"),
    ],
)
def test_an_option_of_another_connector_is_refused_with_what_stands_for_it(
    key: str, hint: str
) -> None:
    with pytest.raises(OptionError) as caught:
        Options({key: "1"}, READ)
    assert hint in str(caught.value)
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    "text,size",
    [("10MiB", 10 << 20), ("1KiB", 1024), ("2GiB", 2 << 30), ("3TiB", 3 << 40), ("4gb", 4 << 30)],
)
def test_a_size_has_the_units_that_a_topics_retention_has(text: str, size: int) -> None:
    assert Options({"maxBytesPerTrigger": text}, READ).get("maxBytesPerTrigger") == size


# -- the store -------------------------------------------------------------------------------------


@contextmanager
def answering(reply: bytes) -> Iterator[int]:
    """Listen, give each connection one answer, and close it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(100)
                    connection.sendall(reply)

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def refused(config: StoreConfig) -> str:
    with pytest.raises(StoreUnavailableError) as caught:
        connect(config)
    return str(caught.value)


def test_an_unknown_database_is_no_wrong_password(redis_path: str, redis_client: object) -> None:
    path = Path(redis_path) / "redis.sock"
    error = refused(StoreConfig(url=f"unix://{path}?db=99"))
    assert "has no database 99" in error
    assert "password" not in error


def test_tls_to_a_plain_port_names_tls() -> None:
    with answering(b"-ERR unknown command\r\n") as port:
        for scheme in ("rediss", "rediss+cluster"):
            error = refused(StoreConfig(url=f"{scheme}://127.0.0.1:{port}", timeout_ms=2000))
            assert "does not speak TLS there: use redis://" in error


def test_a_plain_connection_to_a_port_that_wants_tls_names_tls() -> None:
    with answering(b"") as port:
        error = refused(StoreConfig(url=f"redis://127.0.0.1:{port}", timeout_ms=2000))
        assert "If the server expects TLS on that port, use rediss://" in error


def test_a_folder_that_cannot_be_used_is_not_called_store_url(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    error = refused(StoreConfig(path=str(file / "store")))
    assert "'store.path'" in error
    assert "'store.url'" not in error


# -- offsets and patterns --------------------------------------------------------------------------


@pytest.fixture
def topic(redis_path: str, redis_client: redis.Redis) -> str:
    name = f"topic://public/default/{secrets.token_hex(4)}"
    Admin({"store.path": redis_path}).create_topic(name, segments=1)
    return name


@pytest.mark.parametrize("by_id", [False, True])
@pytest.mark.parametrize("key", ["startingOffsets", "endingOffsets"])
def test_an_offset_beyond_the_end_is_refused_by_a_batch(
    redis_path: str, topic: str, key: str, by_id: bool
) -> None:
    [segment] = Admin({"store.path": redis_path}).find_topic(topic).segments
    name = segment.ref.id if by_id else segment.descriptor
    offsets = f'{{"{topic}": {{"{name}": "7:7"}}}}'
    given = {"store.path": redis_path, "topic": topic, key: offsets}
    with pytest.raises(OptionError, match=rf"^{key} name 7:7 in segment 0000-ffff-0"):
        PulsarTxnReader(given, StructType()).partitions()


def test_an_offset_beyond_the_end_is_refused_by_a_stream(redis_path: str, topic: str) -> None:
    offsets = f'{{"{topic}": {{"0000-ffff-0": "7:7"}}}}'
    given = {"store.path": redis_path, "topic": topic, "startingOffsets": offsets}
    with pytest.raises(OptionError, match=r"^startingOffsets name 7:7 in segment 0000-ffff-0"):
        PulsarTxnStreamReader(given, StructType()).initialOffset()


def test_a_pattern_that_matches_nothing_warns_once_and_names_what_there_is(
    redis_path: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"store.path": redis_path, "topicsPattern": "nobody-.*"}
    with caplog.at_level(logging.WARNING):
        check_source(given)
    (warning,) = [r.getMessage() for r in caplog.records if "topicsPattern" in r.getMessage()]
    assert "'nobody-.*' matches no topic" in warning
    assert topic in warning
    caplog.clear()
    check_source({**given, "topicsPattern": ".*"})
    assert not caplog.records


# -- what a message cannot hold --------------------------------------------------------------------


@pytest.mark.parametrize("name", [VALUE, KEY])
def test_a_column_that_is_there_twice_is_refused_before_the_first_row(name: str) -> None:
    schema = StructType().add(VALUE, "string").add(KEY, "string").add(name, "binary")
    with pytest.raises(SchemaError, match=f"has 2 columns '{name}'"):
        check_writable(schema, default_topic=True)


MAPS = pa.map_(pa.string(), pa.string())


def test_a_property_without_a_value_is_refused_in_the_row_that_has_it() -> None:
    given = pa.array([[("a", "1")], [("b", None)], None, []], MAPS)
    rows = pa.record_batch([pa.array([b"v"] * 4), given], names=[VALUE, PROPERTIES])
    with pytest.raises(SchemaError, match="property 'b' of a row has the value null"):
        to_row_batch(rows)
    assert to_row_batch(rows.slice(0, 1)).num_rows == 1
    assert to_row_batch(rows.slice(2, 2)).num_rows == 2
    assert checked_properties(given.slice(4)).to_pylist() == []


def test_an_event_time_before_1970_is_refused() -> None:
    times = pa.array([None, datetime(1969, 12, 31, tzinfo=UTC)], pa.timestamp("us", tz="UTC"))
    rows = pa.record_batch([pa.array([b"v"] * 2), times], names=[VALUE, EVENT_TIME])
    with pytest.raises(SchemaError, match=r"not negative .* found -86400000"):
        to_row_batch(rows)
    assert to_row_batch(rows.slice(0, 1)).num_rows == 1
    assert len(checked_event_times(pa.array([], pa.int64()))) == 0
    with pytest.raises(SchemaError, match="expected a time since 1970"):
        Row.of(b"v", None, None, datetime(1969, 12, 31, tzinfo=UTC))
