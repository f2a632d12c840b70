"""What is wrong is said before anything is written, in words that tell what to do."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import pulsar_txn_spark
from integration.support.spark import FORMAT, NO_PANDAS_3, Lab, failure, until
from pulsar_txn_spark import BatchTransaction, TransactionalSink, transactional
from pulsar_txn_spark.errors import (
    OptionError,
    SegmentLogUnavailableError,
    StoreUnavailableError,
    TopicExistsError,
    TopicNotFoundError,
)
from pulsar_txn_spark.store.redis import connection, server
from pulsar_txn_spark.testing.pulsar_server import Broker

pytestmark = pytest.mark.filterwarnings(NO_PANDAS_3)

SECRET = "s3cr3t-word"

# -- options of a source ---------------------------------------------------------------------------

READING: dict[str, tuple[dict[str, str], list[str]]] = {
    "unknown": ({"topik": "t"}, ["unknown option 'topik'", "did you mean 'topic'?"]),
    "unknown-near-nothing": ({"topic": "t", "colour": "red"}, ["unknown option", "Known are"]),
    "no-topic": ({}, ["no topic to read", "'topic', 'topics' or 'topicsPattern'"]),
    "topic-and-topics": ({"topic": "t", "topics": "t,u"}, ["'topic' and 'topics'", "drop one"]),
    "topics-and-pattern": ({"topics": "t", "topicsPattern": ".*"}, ["may not be given together"]),
    "topic-twice": ({"topics": "t,t"}, ["each topic once"]),
    "topic-name": ({"topic": "a/b"}, ["malformed topic name 'a/b'", "topic://tenant/namespace"]),
    "topic-domain": (
        {"topic": "persistent://public/default/t", "subscription": "s"},
        [
            "TransactionDomainError",
            "of the domain persistent://",
            "Leave the option 'subscription'",
        ],
    ),
    "topic-of-pulsar-without-pulsar": (
        {"topic": "persistent://public/default/t"},
        ["one of Pulsar's own, but there is no Pulsar", "give service.url"],
    ),
    "topic-absent": (
        {"topic": "never-created"},
        ["TopicNotFoundError", "topic://public/default/never-created", "create_topic"],
    ),
    "pattern": ({"topicsPattern": "flights-["}, ["is no regular expression"]),
    "offsets-word": ({"topic": "t", "startingOffsets": "newest"}, ["'latest'", "or JSON like"]),
    "offsets-json": ({"topic": "t", "startingOffsets": '{"t": '}, ["or JSON like", "line 1"]),
    "offsets-position": (
        {"topic": "t", "startingOffsets": '{"t": {"0000-ffff-0": "12"}}'},
        ["'ledger:entry'", "found '12'"],
    ),
    "starting-without-subscription": (
        {"topic": "t", "startingOffsets": "subscription"},
        ["needs the option 'subscription'", "is for streams"],
    ),
    "subscription": ({"topic": "t", "subscription": "a b"}, ["'subscription'", "without space"]),
    "limit-zero": ({"topic": "t", "maxMessagesPerTrigger": "0"}, ["whole number from 1", "'0'"]),
    "limit-text": ({"topic": "t", "minPartitions": "many"}, ["whole number", "'many'"]),
    "size": ({"topic": "t", "maxBytesPerTrigger": "2 pounds"}, ["'maxBytesPerTrigger'", "64m"]),
    "boolean": ({"topic": "t", "failOnDataLoss": "perhaps"}, ["true or false", "'perhaps'"]),
    "timeout": ({"topic": "t", "txn.timeoutMs": "10"}, ["'txn.timeoutMs'", "from 1000"]),
    "for-writing": ({"topic": "t", "sinkId": "s"}, ["'sinkId' means nothing here", "for writing"]),
    "admin-missing": (
        {"topic": "t", "service.url": "pulsar://127.0.0.1:6650"},
        ["'admin.url' is missing", "http://localhost:8080"],
    ),
    "service-missing": ({"topic": "t", "admin.url": "http://127.0.0.1:1"}, ["'service.url' is"]),
    "service-scheme": (
        {"topic": "t", "service.url": "http://127.0.0.1:1", "admin.url": "http://127.0.0.1:1"},
        ["'service.url'", "pulsar://"],
    ),
    "pulsar-without-pulsar": (
        {"topic": "t", "pulsar.client.authToken": SECRET},
        ["pulsar.client.", "'service.url' is not given"],
    ),
    "store-scheme": (
        {"topic": "t", "store.url": f"http://u:{SECRET}@h/"},
        ["'store.url'", "redis"],
    ),
    "store-malformed": (
        {"topic": "t", "store.url": f"redis://:{SECRET}@127.0.0.1:port"},
        ["store.url"],
    ),
    "store-twice": (
        {"topic": "t", "store.url": f"redis://:{SECRET}@h"},
        ["'store.path'", "drop one"],
    ),
    "store-unreachable": (
        {"topic": "t", "store.url": f"redis://:{SECRET}@127.0.0.1:1"},
        ["StoreUnavailableError", "127.0.0.1:1"],
    ),
}
OWN_STORE = ("store-scheme", "store-malformed", "store-unreachable")


@pytest.mark.parametrize("case", READING)
def test_a_source_is_refused_when_it_is_loaded(
    spark: SparkSession, embedded: dict[str, str], case: str
) -> None:
    given, words = READING[case]
    store = {} if case in OWN_STORE else embedded
    reader = spark.readStream.format(FORMAT).options(**store).options(**given)
    error = failure(reader.load)
    assert [word for word in words if word not in error] == []
    assert SECRET not in error


def test_a_batch_knows_what_is_for_streams_only(lab: Lab) -> None:
    topic = lab.topic()
    limited = lab.read(topic, maxMessagesPerTrigger=5)
    assert "means nothing here" in failure(limited.collect)
    subscribed = lab.read(topic, startingOffsets="subscription", subscription="s")
    assert "'subscription' means nothing here" in failure(subscribed.collect)


def test_what_means_nothing_on_a_stream_is_said_in_few_lines(lab: Lab) -> None:
    topic, out = lab.topic(), lab.topic()
    wrong = lab.source(topic, endingOffsets="latest")
    with pytest.raises(PySparkException) as caught:
        lab.drain(lab.sink(wrong, out, lab.checkpoint()))
    message = str(caught.value).partition("=== Streaming Query ===")[0]
    assert "'endingOffsets' means nothing here" in message
    assert "UnboundLocalError" not in message
    assert len(message.splitlines()) <= 12

    @transactional(lab.options)
    def process(df: DataFrame, _: int, txn: BatchTransaction) -> None:
        txn.write(df.select("value"), topic="never-created")

    lab.produce(topic, "a")
    query = lab.source(topic).writeStream.foreachBatch(process)
    with pytest.raises(PySparkException) as caught:
        lab.drain(query.option("checkpointLocation", str(lab.checkpoint("function"))))
    lines = str(caught.value).partition("=== Streaming Query ===")[0].splitlines()
    assert "TopicNotFoundError: topic topic://public/default/never-created" in "".join(lines)
    assert len(lines) <= 24


def test_an_error_is_few_lines_with_its_message_among_the_last(lab: Lab) -> None:
    with pytest.raises(PySparkException) as caught:
        lab.read(lab.topic(), topik="t")
    lines = str(caught.value).strip().splitlines()
    assert len(lines) <= 6
    assert "did you mean 'topic'?" in lines[-2]


# -- what is to be written -------------------------------------------------------------------------

WRITING: dict[str, tuple[str, dict[str, str], list[str]]] = {
    "no-value": ("1L AS id, 'x' AS payload", {}, ["no column 'value'", "id, payload", "to_json"]),
    "value-type": ("7 AS value", {}, ["'value' is of type int", "string or binary"]),
    "key-type": ("'v' AS value, 7 AS __key", {}, ["'__key' is of type int", "string or binary"]),
    "topic-type": ("'v' AS value, 7 AS __topic", {}, ["'__topic' is of type int", "string"]),
    "time-type": ("'v' AS value, '2013' AS __eventTime", {}, ["'__eventTime'", "timestamp"]),
    "properties-type": (
        "'v' AS value, map('a', 1) AS __messageProperties",
        {},
        ["'__messageProperties' is of type map<string,int>", "map<string,string>"],
    ),
    "stray-column": ("'v' AS value, 1 AS id", {}, ["column 'id' that has no place", "Drop it"]),
    "no-topic": ("'v' AS value", {"topic": ""}, ["no topic to write to", "'__topic'"]),
    "absent-topic": ("'v' AS value", {"topic": "never-created"}, ["does not exist"]),
    "for-reading": ("'v' AS value", {"startingOffsets": "latest"}, ["means nothing", "reading"]),
    "unknown": ("'v' AS value", {"sinkid2": "x"}, ["did you mean 'sinkId'?"]),
    "sink-id": ("'v' AS value", {"sinkId": "a|b"}, ["'sinkId'", "'|'"]),
    "transactions": ("'v' AS value", {"transactions": "maybe"}, ["'transactions'", "'maybe'"]),
}


@pytest.mark.parametrize("case", WRITING)
def test_a_dataframe_is_refused_before_its_first_row(lab: Lab, case: str) -> None:
    columns, given, words = WRITING[case]
    topic = lab.topic()
    df = lab.spark.sql(f"SELECT {columns}")
    to = {"topic": topic, **given}
    error = failure(lambda: lab.write(df, to.pop("topic") or None, **to))
    assert [word for word in words if word not in error] == []
    assert lab.physical(topic).rows == 0


def test_a_stream_is_refused_before_its_first_row(lab: Lab) -> None:
    source, out = lab.topic(), lab.topic()
    lab.produce(source, "a")
    df = lab.source(source)
    nowhere = lab.sink(df, None, lab.checkpoint("nowhere"))
    assert "give the option 'topic', or a column '__topic'" in failure(lambda: lab.drain(nowhere))
    numbers = lab.sink(df.selectExpr("length(value) AS value"), out, lab.checkpoint("type"))
    assert "'value' is of type int" in failure(lambda: lab.drain(numbers))
    complete = lab.sink(df.groupBy("value").count().select("value"), out, lab.checkpoint("mode"))
    error = failure(lambda: lab.drain(complete.outputMode("complete")))
    assert "cannot be overwritten" in error
    batch = lab.frame("a").write.format(FORMAT).options(**lab.options).option("topic", out)
    assert "append" in failure(batch.mode("overwrite").save)
    assert lab.physical(out).rows == 0


def test_a_function_for_foreach_batch_is_refused_when_it_is_made(lab: Lab) -> None:
    topic = lab.topic()
    with pytest.raises(OptionError, match="did you mean 'topic'"):
        TransactionalSink({**lab.options, "topik": topic})
    with pytest.raises(TopicNotFoundError, match="never-created"):
        TransactionalSink({**lab.options, "topic": "never-created"})
    with pytest.raises(OptionError, match="true or false"):
        transactional({**lab.options, "transactions": "maybe"})
    for make in (TransactionalSink, transactional):
        with pytest.raises(OptionError, match="transactions=false has no meaning"):
            make({**lab.options, "topic": topic, "transactions": "false"})
    with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1:1"):
        TransactionalSink({"store.url": "redis://127.0.0.1:1"})


def test_topics_are_created_on_purpose_and_once(lab: Lab) -> None:
    topic = lab.topic(2)
    with pytest.raises(TopicExistsError, match="2 segments"):
        pulsar_txn_spark.Admin(lab.options).create_topic(topic, segments=2)
    with pytest.raises(OptionError, match="expected 1 to"):
        pulsar_txn_spark.Admin(lab.options).create_topic(topic + "-none", segments=0)
    with pytest.raises(TopicNotFoundError, match="does not exist"):
        pulsar_txn_spark.Admin(lab.options).delete_topic(topic + "-none")
    with pytest.raises(OptionError, match="expected 'earliest', 'latest', 'here', a time"):
        pulsar_txn_spark.Admin(lab.options).reset_subscription(topic, "s", to="yesterday")


# -- servers that cannot be used -------------------------------------------------------------------


@pytest.fixture
def strict_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give the socket of a server that wants a password and would lose what it acknowledged."""
    folder = tmp_path_factory.mktemp("r")
    path = folder / "s"
    process = subprocess.Popen(
        [
            *(server.find_server_binary(), "--port", "0", "--unixsocket", str(path)),
            *("--requirepass", SECRET, "--save", "", "--appendonly", "no", "--dir", str(folder)),
        ],
        stdout=subprocess.DEVNULL,
    )
    until(path.exists)
    yield str(path)
    process.terminate()
    process.wait(timeout=30)


def test_a_store_that_refuses_the_password_or_would_lose_writes_is_refused(
    lab: Lab, strict_redis: str
) -> None:
    def load(**given: str) -> str:
        reader = lab.spark.readStream.format(FORMAT).option("topic", "t")
        given = {"store.url": f"unix://{strict_redis}", **given}
        return failure(reader.options(**given).load)

    refused = load(**{"store.password": "wrong-" + SECRET[::-1]})
    assert "StoreUnavailableError" in refused
    assert "password" in refused
    assert SECRET[::-1] not in refused
    assert "password" in load()
    unsafe = load(**{"store.password": SECRET})
    assert "StoreUnsafeError" in unsafe
    assert "appendonly yes" in unsafe
    assert "store.acceptDataLoss" in unsafe
    assert SECRET not in unsafe
    accepted = load(**{"store.password": SECRET, "store.acceptDataLoss": "true"})
    assert "TopicNotFoundError" in accepted


def test_a_pulsar_that_does_not_answer_is_an_error_that_names_it(lab: Lab) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    options = {
        **lab.options,
        "service.url": f"pulsar://127.0.0.1:{port}",
        "admin.url": f"http://127.0.0.1:{port}",
    }
    with pytest.raises(SegmentLogUnavailableError, match=str(port)):
        pulsar_txn_spark.Admin(options).create_topic("pulsar-is-away", segments=1)


@pytest.mark.parametrize(
    "url, expected",
    [
        ("service.url", "SegmentLogUnavailableError"),
        ("admin.url", "SegmentLogUnreachableError"),
    ],
)
def test_a_pulsar_that_is_gone_is_found_out_before_a_query_starts(
    lab: Lab, pulsar: Broker, url: str, expected: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    right = {**lab.options, "service.url": pulsar.service_url, "admin.url": pulsar.admin_url}
    topic = Lab(lab.spark, right, lab.folder).topic()
    scheme = right[url].partition("://")[0]
    wrong = Lab(lab.spark, {**right, url: f"{scheme}://127.0.0.1:{port}"}, lab.folder)
    quick = {
        "pulsar.client.operationTimeoutMs": "2000",
        "pulsar.client.connectionTimeoutMs": "1000",
    }
    for action in (
        lambda: wrong.stream(topic, **quick),
        lambda: wrong.write(lab.frame("a"), topic, **quick),
    ):
        error = failure(action)
        assert expected in error
        assert str(port) in error
    with pytest.raises(SegmentLogUnavailableError, match=str(port)):
        TransactionalSink({**wrong.options, **quick, "topic": topic})


def test_a_topic_of_one_backend_is_not_looked_for_on_the_other(lab: Lab) -> None:
    topic = lab.topic()
    away = {"service.url": "pulsar://127.0.0.1:1", "admin.url": "http://127.0.0.1:1"}
    error = failure(lambda: lab.stream(topic, **away))
    assert "lives on the backend 'embedded'" in error
    assert "leave service.url and admin.url out" in error


# -- checkpoints that belong elsewhere -------------------------------------------------------------


def test_a_checkpoint_of_another_topic_or_store_is_refused(
    lab: Lab, tmp_path_factory: pytest.TempPathFactory
) -> None:
    source, other, out = lab.topic(), lab.topic(), lab.topic()
    lab.produce(source, "a")
    lab.produce(other, "b")
    lab.drain(lab.sink(lab.source(source), out, lab.checkpoint()))
    error = failure(lambda: lab.drain(lab.sink(lab.source(other), out, lab.checkpoint())))
    assert f"the checkpoint has read topic {source}" in error
    assert "belongs to another query" in error

    elsewhere = Lab(lab.spark, {"store.path": str(tmp_path_factory.mktemp("o"))}, lab.folder)
    try:
        for topic in (source, out):
            pulsar_txn_spark.Admin(elsewhere.options).create_topic(topic, segments=1)
        elsewhere.produce(source, "c")
        writer = elsewhere.sink(elsewhere.source(source), out, lab.checkpoint())
        error = failure(lambda: elsewhere.drain(writer))
        assert "StoreRolledBackError" in error
        assert "the checkpoint belongs to metadata store" in error
    finally:
        connection.close_all()
        server.stop_server(elsewhere.options["store.path"])

    pulsar_txn_spark.Admin(lab.options).delete_topic(source)
    pulsar_txn_spark.Admin(lab.options).create_topic(source, segments=1)
    lab.produce(source, "d")
    error = failure(lambda: lab.drain(lab.sink(lab.source(source), out, lab.checkpoint())))
    assert "deleted and created again" in error
    assert lab.visible(out) == ["a"]


def test_a_checkpoint_with_a_broken_offset_is_refused(lab: Lab) -> None:
    source, out = lab.topic(), lab.topic()
    lab.produce(source, "a")
    writer = lab.sink(lab.source(source), out, lab.checkpoint())
    lab.drain(writer)
    entry = lab.checkpoint() / "offsets" / "0"
    text = entry.read_text(encoding="utf-8")
    (entry.parent / ".0.crc").unlink(missing_ok=True)
    lab.produce(source, "b")
    for broken, words in (
        (text.replace('"v": 1', '"v": 2').replace('"v":1', '"v":2'), "format 2, expected 1"),
        (text.replace("inc", "cni"), "malformed"),
    ):
        assert broken != text
        entry.write_text(broken, encoding="utf-8")
        assert words in failure(lambda: lab.drain(writer))
    entry.write_text(text, encoding="utf-8")
    lab.drain(writer)
    assert lab.visible(out) == ["a", "b"]
