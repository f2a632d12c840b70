"""Options: every wrong one is refused before the query starts, and says what would be right."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pulsar_txn_spark.config import StoreConfig
from pulsar_txn_spark.errors import OptionError, TransactionDomainError
from pulsar_txn_spark.options import (
    OPTIONS,
    Offsets,
    Option,
    Options,
    Use,
    documented,
    table,
)
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.store.redis.endpoint import parse_endpoint
from pulsar_txn_spark.store.redis.server import server_folder
from tools.options_page import default_text

READ = Use.READ | Use.STREAM
READ_BATCH = Use.READ | Use.BATCH
WRITE = Use.WRITE | Use.STREAM
WRITE_BATCH = Use.WRITE | Use.BATCH
PULSARS = "persistent://public/default/t"
PULSAR = {"service.url": "pulsar://localhost:6650", "admin.url": "http://localhost:8080"}

SECRETS = {
    "store.password": "hunter2",
    "store.url": "redis://me:hunter2@host:6379",
    "pulsar.client.authParams": "token:hunter2",
    **PULSAR,
}

# --- the table --------------------------------------------------------------------------------


def test_every_option_stands_in_the_table_once() -> None:
    keys = [option.key.lower() for option in OPTIONS]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("option", documented(), ids=lambda o: o.key)
def test_every_documented_option_explains_itself_in_a_sentence(option: Option) -> None:
    assert option.help.endswith(".")
    assert option.use


@pytest.mark.parametrize("option", OPTIONS, ids=lambda o: o.key)
def test_conflicts_name_options_that_exist(option: Option) -> None:
    known = {o.key for o in OPTIONS}
    assert set(option.conflicts) <= known - {option.key}


@pytest.mark.parametrize(
    "option", [o for o in OPTIONS if default_text(o.default)], ids=lambda o: o.key
)
def test_a_default_is_a_value_that_the_option_takes(option: Option) -> None:
    for use in (READ, READ_BATCH, WRITE, WRITE_BATCH, WRITE_BATCH | Use.SCOPE):
        default = option.default_for(use)
        assert option.parse(default_text(default)) == default


@pytest.mark.parametrize("option", OPTIONS, ids=lambda o: o.key)
@pytest.mark.parametrize("use", [READ, READ_BATCH, WRITE, WRITE_BATCH, Use.CONNECT])
def test_what_is_not_given_is_as_the_table_has_it(option: Option, use: Use) -> None:
    options = Options({}, use)
    assert options.get(option.key) == option.default_for(use)
    assert options.explicit(option.key) is None


def test_the_table_is_where_a_default_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = {"store.timeoutMs": 77, "store.acceptDataLoss": True, "transport": "wire"}
    for key, value in changed.items():
        option = table.BY_KEY[key.lower()]
        monkeypatch.setitem(table.BY_KEY, key.lower(), replace(option, default=value))
    options = Options(PULSAR, WRITE)
    assert (options.store.timeout_ms, options.store.accept_data_loss) == (77, True)
    assert options.pulsar is not None
    assert options.pulsar.transport == "wire"


def test_an_option_that_is_not_in_the_table_cannot_be_asked_for() -> None:
    for look_up in (Options({}, READ).get, Options({}, READ).explicit):
        with pytest.raises(KeyError):
            look_up("txn.timeout")


@pytest.mark.parametrize(
    "use,given,expected",
    [
        (WRITE, {}, True),
        (WRITE_BATCH, {}, False),
        (WRITE_BATCH | Use.SCOPE, {}, True),
        (WRITE_BATCH, {"__scope": "[]"}, True),
        (WRITE_BATCH, {"__scope": "[]", "everyBatch": "false"}, False),
        (WRITE_BATCH, {"everyBatch": "true"}, True),
    ],
)
def test_a_sink_is_written_in_every_batch_but_by_a_write_of_its_own_in_foreach_batch(
    use: Use, given: dict[str, str], expected: bool
) -> None:
    assert Options(given, use).get("everyBatch") is expected


# --- handing on -------------------------------------------------------------------------------


def test_options_are_pickled_whole_and_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        **SECRETS,
        "topics": f"t,{PULSARS}2",
        "startingOffsets": '{"t": {"s": "1:2"}}',
        "domain.overrides": "public/default=topic",
        "txn.timeoutMs": "5000",
    }
    options = Options(given, READ)
    pickled = pickle.dumps(options)
    monkeypatch.setattr(Options, "__init__", None)
    copied = pickle.loads(pickled)
    assert copied == options
    assert hash(copied) == hash(options)
    assert (copied.store, copied.pulsar, copied.domains) == (
        options.store,
        options.pulsar,
        options.domains,
    )
    for option in OPTIONS:
        assert copied.get(option.key) == options.get(option.key)
    assert "hunter2" not in repr(copied)


def test_options_for_another_use_are_not_the_same() -> None:
    assert Options({}, READ) != Options({}, WRITE)
    assert Options({"topic": "t"}, READ) != Options({"topic": "u"}, READ)
    assert Options({}, READ) != {}


def test_options_are_handed_on_without_those_of_the_endpoint() -> None:
    options = Options({"METRICS.PORT": "0", "metrics.host": "::1", "topic": "t"}, WRITE_BATCH)
    rest = options.without_endpoint()
    assert rest.raw == {"topic": "t"}
    assert rest.explicit("metrics.port") is None
    assert rest.explicit("metrics.host") is None
    assert rest.get("topic") == options.get("topic")
    assert options.get("metrics.port") == 0, "what it was made from stays as it is"


# --- names and cases --------------------------------------------------------------------------


def test_options_are_matched_without_regard_to_case() -> None:
    options = Options({"MAXMESSAGESPERTRIGGER": "5", "topic": "t"}, READ)
    assert options.get("maxMessagesPerTrigger") == 5


@pytest.mark.parametrize(
    "wrong,right",
    [
        ("topik", "topic"),
        ("maxMessagePerTrigger", "maxMessagesPerTrigger"),
        ("startingoffset", "startingOffsets"),
        ("serviceUrl", "service.url"),
        ("sink.id", "sinkId"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_one(wrong: str, right: str) -> None:
    with pytest.raises(OptionError, match=f"did you mean '{right}'"):
        Options({wrong: "x"}, READ)


def test_an_option_like_no_other_is_refused_with_all_that_there_are() -> None:
    with pytest.raises(OptionError, match=r"unknown option 'zzz'\. Known are store\.url, "):
        Options({"zzz": "x"}, READ)


@pytest.mark.parametrize(
    "key,value,use",
    [
        ("sinkId", "s", READ),
        ("transactions", "false", READ),
        ("subscription", "s", WRITE),
        ("maxMessagesPerTrigger", "1", READ_BATCH),
        ("endingOffsets", "latest", READ),
        ("subscription", "s", READ_BATCH),
        ("topics", "t", WRITE),
        ("topic", "t", Use.CONNECT),
    ],
)
def test_an_option_that_means_nothing_here_is_refused(key: str, value: str, use: Use) -> None:
    with pytest.raises(OptionError, match=f"option '{key}' means nothing here"):
        Options({key: value}, use)


def test_connecting_takes_the_options_of_store_and_pulsar() -> None:
    options = Options({"store.path": "/x", **PULSAR}, Use.CONNECT)
    assert options.store == StoreConfig(path="/x")


@pytest.mark.parametrize("use", [READ, READ_BATCH, WRITE, WRITE_BATCH, Use.READ])
def test_what_spark_adds_by_itself_is_let_through(use: Use) -> None:
    Options({"path": "p", "checkpointLocation": "/c"}, use)
    assert "path" not in {option.key for option in documented()}


# --- conflicts ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given,pair",
    [
        ({"topic": "t", "topics": "t,u"}, "'topic' and 'topics'"),
        ({"topic": "t", "topicsPattern": "t.*"}, "'topic' and 'topicsPattern'"),
        ({"topics": "t", "topicsPattern": "t.*"}, "'topics' and 'topicsPattern'"),
        ({"store.url": "redis://h", "store.path": "/x"}, "'store.url' and 'store.path'"),
    ],
)
def test_options_that_exclude_each_other_are_refused(given: dict[str, str], pair: str) -> None:
    for order in (given, dict(reversed(list(given.items())))):
        with pytest.raises(OptionError, match=f"{pair} may not be given together"):
            Options(order, READ)


WITH_PORT = {"metrics.port": "0", "metrics.host": "::1"}
WITH_TLS = {"store.url": "rediss://h", "store.tls.verifyHost": "false"}
CREDENTIALS = {"store.username": "me", "store.password": "hunter2"}


@pytest.mark.parametrize(
    "given,needed",
    [
        ({"store.password": "hunter2"}, "'store.url' is missing"),
        ({"store.username": "me"}, "'store.url' is missing"),
        ({"transport": "auto"}, "'service.url' is missing"),
        ({"metrics.host": "::1"}, "'metrics.port' is missing"),
        ({"store.url": "redis://h", "store.tls.verifyHost": "true"}, "is not rediss://"),
        ({"store.url": "unix:///r", "store.tls.verifyHost": "false"}, "is not rediss://"),
        ({"sinkId": "s", "transactions": "false"}, "transactions=false"),
        ({"replayEvidence": "rows", "transactions": "false"}, "transactions=false"),
    ],
)
def test_an_option_that_means_nothing_beside_the_others_is_refused(
    given: dict[str, str], needed: str
) -> None:
    for order in (given, dict(reversed(list(given.items())))):
        with pytest.raises(OptionError, match=f"means nothing here.*{needed}") as refused:
            Options(order, WRITE)
        assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "given",
    [
        {"store.url": "redis://h", **CREDENTIALS},
        {"store.path": "/x", **CREDENTIALS},
        {"transport": "wire", **PULSAR},
        WITH_PORT,
        WITH_TLS,
        {**WITH_TLS, "store.url": "rediss+cluster://h"},
        {"store.path": "/x", "store.tls.verifyHost": "false"},
        {"sinkId": "s", "replayEvidence": "rows", "transactions": "true"},
    ],
)
def test_an_option_is_taken_beside_what_it_needs(given: dict[str, str]) -> None:
    Options(given, WRITE)


def test_a_topic_and_a_path_are_not_both_named() -> None:
    for key in ("topic", "topics", "topicsPattern"):
        with pytest.raises(OptionError, match=f"'{key}' says what is read.*drop the path"):
            Options({"path": "events", key: "t"}, READ)
    with pytest.raises(OptionError, match="drop the path"):
        Options({"path": "events", "topic": "t"}, WRITE)


def test_pulsar_needs_both_of_its_addresses() -> None:
    with pytest.raises(OptionError, match=r"'admin\.url' is missing"):
        Options({"service.url": PULSAR["service.url"]}, READ)
    with pytest.raises(OptionError, match=r"'service\.url' is missing"):
        Options({"admin.url": PULSAR["admin.url"]}, READ)


@pytest.mark.parametrize("kind", ["client", "producer", "reader", "admin"])
def test_pulsars_own_options_are_passed_through_to_pulsar_only(kind: str) -> None:
    given = {f"pulsar.{kind}.someSetting": "v"}
    config = Options({**PULSAR, **given}, READ).pulsar
    assert config is not None
    assert dict(getattr(config, kind)) == {"somesetting": "v"}
    with pytest.raises(OptionError, match=r"is for Pulsar, but 'service\.url' is not given"):
        Options(given, READ)


def test_without_a_service_url_the_segments_live_in_the_embedded_log() -> None:
    assert Options({}, READ).pulsar is None


# --- values -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key,value,expected",
    [
        ("topic", " t ", TopicName("public", "default", "t")),
        ("topics", "t, a/b/u,", [TopicName.parse("t"), TopicName.parse("a/b/u")]),
        ("maxMessagesPerTrigger", "9007199254740992", 1 << 53),
        ("maxBytesPerTrigger", "64m", 64 << 20),
        ("maxBytesPerTrigger", "512 k", 512 << 10),
        ("maxBytesPerTrigger", "1G", 1 << 30),
        ("maxBytesPerTrigger", "1048576", 1 << 20),
        ("failOnDataLoss", "FALSE", False),
        ("startingOffsets", "Earliest", Offsets("earliest", {})),
        ("store.url", "unix:///run/r.sock", "unix:///run/r.sock"),
        ("store.url", "redis+cluster://a:1,b:2", "redis+cluster://a:1,b:2"),
        ("txn.timeoutMs", "60000", 60000),
    ],
)
def test_a_value_is_understood(key: str, value: str, expected: object) -> None:
    assert Options({key: value}, READ).get(key) == expected


@pytest.mark.parametrize(
    "key,value,expected",
    [
        ("topic", "", "malformed topic name"),
        ("topic", "segment://public/default/t", "expected topic://"),
        ("domain.overrides", "public/default", "tenant/namespace=domain"),
        ("domain.overrides", "public=topic", "tenant/namespace=domain"),
        (
            "domain.overrides",
            "public/default=segment",
            "domain being topic, persistent or scalable",
        ),
        ("domain.overrides", "a/b=topic, a/b=persistent", "one domain for a/b"),
        ("domain.overrides", " , ", "tenant/namespace=domain"),
        ("topics", " , ", "topic names with commas"),
        ("topics", "t,public/default/t", "each topic once"),
        ("maxMessagesPerTrigger", "0", "a whole number from 1 to"),
        ("maxMessagesPerTrigger", "1.5", "a whole number"),
        ("maxMessagesPerTrigger", "many", "a whole number"),
        ("minPartitions", "-1", "a whole number from 1"),
        ("maxPartitions", "0", "a whole number from 1"),
        ("maxBytesPerTrigger", "0", "a size of at least one byte"),
        ("maxBytesPerTrigger", "12x", "a size"),
        ("maxBytesPerTrigger", "-1m", "a size"),
        ("failOnDataLoss", "no", "true or false"),
        ("failOnDataLoss", "", "true or false"),
        ("store.path", "  ", "a text that is not empty"),
        ("service.url", "localhost:6650", "a URL that begins with pulsar:// or pulsar\\+ssl://"),
        ("service.url", "pulsar://", "a URL that begins with pulsar://"),
        ("admin.url", "pulsar://h", "http:// or https://"),
        ("store.timeoutMs", "1", "a whole number from 10 to"),
        ("txn.timeoutMs", "999", "a whole number from 1000 to"),
        ("subscription", "", "a name of 1 to 200 characters"),
        ("subscription", "a|b", "a name of 1 to 200 characters"),
        ("subscription", "a b", "a name of 1 to 200 characters"),
        ("subscription", "a/b", "a name of 1 to 200 characters"),
        ("subscription", "x" * 201, "a name of 1 to 200 characters"),
        ("startingOffsets", "now", "'latest' or 'earliest' or 'subscription' or JSON"),
    ],
)
def test_a_malformed_value_is_refused_with_what_was_expected(
    key: str, value: str, expected: str
) -> None:
    with pytest.raises(OptionError, match=f"option '{key}': .*{expected}"):
        Options({key: value}, READ)


@pytest.mark.parametrize("sink", ["", "a|b", "a b", "a{b", "a}b", "x" * 201])
def test_a_sink_id_holds_nothing_that_the_store_uses_as_a_separator(sink: str) -> None:
    with pytest.raises(OptionError, match="option 'sinkId'"):
        Options({"sinkId": sink}, WRITE)
    assert Options({"sinkId": "team/job-1:out"}, WRITE).get("sinkId") == "team/job-1:out"


# --- offsets in JSON ------------------------------------------------------------------------------


def test_offsets_are_given_by_topic_and_segment() -> None:
    text = '{"topic://public/default/t": {"0000-7fff-0": "12:345", "8000-ffff-1": "earliest"}}'
    found: Offsets = Options({"startingOffsets": text}, READ).get("startingOffsets")
    assert found.word == "latest"
    assert found.positions == {
        "topic://public/default/t": {"0000-7fff-0": Position(12, 345), "8000-ffff-1": EARLIEST}
    }


def test_a_topics_short_name_will_do_in_offsets() -> None:
    found: Offsets = Options({"startingOffsets": '{"t": {"s": "1:2"}}'}, READ).get(
        "startingOffsets"
    )
    assert found.positions == {"topic://public/default/t": {"s": Position(1, 2)}}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '"latest"',
        "17",
        '{"t": "1:2"}',
        '{"t": {"s": 17}}',
        '{"t": {"s": "17"}}',
        '{"t": {"s": "a:b"}}',
        '{"t": {"s": "-5:0"}}',
        '{"t": {"s": null}}',
        '{"a/b": {"s": "1:2"}}',
        "{}",
        '{"t": {}}',
    ],
)
def test_malformed_offsets_are_refused(text: str) -> None:
    for key, use in (("startingOffsets", READ), ("endingOffsets", READ_BATCH)):
        with pytest.raises(OptionError, match=f"option '{key}'"):
            Options({key: text}, use)


# --- secrets --------------------------------------------------------------------------------------


def test_secrets_are_never_shown() -> None:
    options = Options(SECRETS, READ)
    assert "hunter2" not in repr(options)
    assert "hunter2" not in repr(options.store)
    assert "hunter2" not in repr(options.pulsar)
    assert "pulsar://localhost:6650" in repr(options)


def test_a_malformed_secret_is_refused_without_being_repeated() -> None:
    for value in ("http://me:hunter2@host", "hunter2"):
        with pytest.raises(OptionError) as caught:
            Options({"store.url": value}, READ)
        assert "hunter2" not in str(caught.value)


def test_options_make_the_configuration_of_the_store() -> None:
    options = Options(
        {
            "store.url": "rediss://h:1",
            "store.username": "me",
            "store.password": "pw",
            "store.tls.caFile": "ca.pem",
            "store.tls.certFile": "cert.pem",
            "store.tls.keyFile": "key.pem",
            "store.tls.verifyHost": "false",
            "store.acceptDataLoss": "true",
            "store.assumeDurable": "true",
            "store.timeoutMs": "100",
        },
        WRITE,
    )
    assert options.store == StoreConfig(
        url="rediss://h:1",
        username="me",
        password="pw",
        tls_ca_file="ca.pem",
        tls_cert_file="cert.pem",
        tls_key_file="key.pem",
        tls_verify_host=False,
        accept_data_loss=True,
        assume_durable=True,
        timeout_ms=100,
    )
    assert Options({}, WRITE).store == StoreConfig(path=str(server_folder(None)))


@pytest.mark.parametrize("given", [{"store.path": "./5"}, {"store.path": "~/5"}, {}])
def test_the_embedded_server_s_folder_is_one_wherever_the_options_go(
    given: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor has another working folder, another home and another environment."""
    for name in ("PULSAR_TXN_SPARK_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    driver, executor = tmp_path / "driver", tmp_path / "executor"
    for folder in (driver, executor):
        folder.mkdir()
    monkeypatch.chdir(driver)
    monkeypatch.setenv("HOME", str(driver))
    options = Options(given, WRITE)
    pickled = pickle.dumps(options)
    monkeypatch.chdir(executor)
    monkeypatch.setenv("HOME", str(executor))
    expected = "5" if given else ".local/share/pulsar_txn_spark"
    there = pickle.loads(pickled)
    assert parse_endpoint(there.store).folder == str(driver / expected)
    if given:  # what is parsed once more, as by the writes of a foreachBatch
        again = Options(options.raw, WRITE)
        assert again.store.path == options.get("store.path") == str(driver / expected)


@pytest.mark.parametrize(
    "folder", ["None", "null", "5", "true", " none ", "redis://h:1", "http://h"]
)
def test_a_folder_that_was_not_meant_as_one_is_refused(folder: str) -> None:
    with pytest.raises(OptionError, match=r"'store\.path': expected a folder"):
        Options({"store.path": folder}, WRITE)


@pytest.mark.parametrize("key", ["store.path", "store.url", "topic"])
def test_an_option_without_a_value_is_refused(key: str) -> None:
    given: dict[str, Any] = {key: None}
    with pytest.raises(OptionError, match=rf"option '{key}' has no value \(None\)"):
        Options(given, WRITE)


def test_a_folder_named_by_a_number_or_a_path_object_is_taken() -> None:
    given: dict[str, Any] = {"store.path": Path("/data/5")}
    assert Options({"store.path": "./5"}, WRITE).get("store.path") == str(Path("5").absolute())
    assert Options(given, WRITE).get("store.path") == "/data/5"


@pytest.mark.parametrize("use", [WRITE, Use.WRITE | Use.BATCH])
def test_an_option_that_would_mix_the_transactions_of_both_domains_is_refused(use: Use) -> None:
    with pytest.raises(TransactionDomainError, match=r"^option 'topic': .*none spans both"):
        Options({"topic": PULSARS}, use)


@pytest.mark.parametrize("use", [Use.READ | Use.STREAM, Use.READ | Use.BATCH])
def test_a_source_takes_topics_of_both_domains(use: Use) -> None:
    found = Options({"topics": f"topic://a/b/c,{PULSARS}"}, use).get("topics")
    assert [str(name) for name in found] == ["topic://a/b/c", PULSARS]
    assert [name.segmented for name in found] == [True, False]


def test_a_scalable_topic_has_a_domain_of_its_own_and_pulsars_name_only_for_pulsar() -> None:
    name = TopicName.of_any_domain("scalable://a/b/c")
    assert (name.scalable, name.segmented, name.pulsar_name) == (True, False, "topic://a/b/c")
    assert TopicName.of_any_domain(PULSARS).pulsar_name == PULSARS
    by_namespace = {"topic": "topic://a/b/c", "domain.overrides": "a/b=scalable"}
    assert Options(by_namespace, Use.READ | Use.STREAM).get("topic") == name
    urls = {"service.url": "pulsar://h", "admin.url": "http://h"}
    sink = Options(by_namespace | urls | {"transactions": "native"}, Use.WRITE | Use.STREAM)
    assert sink.get("topic") == name
    with pytest.raises(TransactionDomainError, match="write a stream with") as refused:
        Options({"topic": str(name)}, WRITE)
    assert "adopt" not in str(refused.value)


def test_a_namespace_overrides_the_domain_of_its_topics_and_of_no_others() -> None:
    given = {
        "domain.overrides": "public/default=topic, public/old=persistent",
        "topics": f"{PULSARS},topic://public/old/u,public/old/v,persistent://public/other/w,x",
    }
    found = Options(given, READ).get("topics")
    assert [str(name) for name in found] == [
        "topic://public/default/t",
        "persistent://public/old/u",
        "persistent://public/old/v",
        "persistent://public/other/w",
        "topic://public/default/x",
    ]


def test_an_override_counts_for_sinks_and_for_offsets_as_well() -> None:
    adopted = {"domain.overrides": "public/default=topic", "topic": PULSARS}
    assert str(Options(adopted, WRITE).get("topic")) == "topic://public/default/t"
    with pytest.raises(TransactionDomainError, match="none spans both"):
        Options({"domain.overrides": "public/default=persistent", "topic": "t"}, WRITE)
    offsets = {"startingOffsets": json.dumps({PULSARS: {"t": "1:2"}})}
    assert Options({**adopted, **offsets}, READ).get("startingOffsets").positions == {
        "topic://public/default/t": {"t": Position(1, 2)}
    }


def test_two_names_that_an_override_makes_one_are_refused() -> None:
    given = {"domain.overrides": "public/default=topic", "topics": f"{PULSARS},t"}
    with pytest.raises(OptionError, match="each topic once"):
        Options(given, READ)


def test_columns_on_request_are_named_in_any_case_and_each_once() -> None:
    given = {"topic": "t", "metadata.columns": " __POSITION, __segment "}
    assert Options(given, READ).get("metadata.columns") == ("__position", "__segment")
    assert Options({"topic": "t"}, READ_BATCH).get("metadata.columns") == ()
    for wrong in ("", "value", "__segment,__segment", "__offset"):
        with pytest.raises(OptionError, match=r"metadata.columns.*__topicPartition"):
            Options({"topic": "t", "metadata.columns": wrong}, READ)


# --- times ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, expected",
    [
        ("1767225600000", 1_767_225_600_000),
        ("0", 0),
        (" 2026-01-01T00:00:00Z ", 1_767_225_600_000),
        ("2026-01-01T01:00:00.5+01:00", 1_767_225_600_500),
    ],
)
def test_a_time_is_milliseconds_or_iso_8601_with_a_zone(text: str, expected: int) -> None:
    assert Options({"topic": "t", "startingTimestamp": text}, READ).get("startingTimestamp") == (
        expected
    )
    by_topic = json.dumps({"t": text.strip(), PULSARS: {"t-partition-0": expected}})
    given = {"topic": "t", "endingOffsetsByTimestamp": by_topic}
    times = Options(given, READ_BATCH).get("endingOffsetsByTimestamp")
    assert times.of("topic://public/default/t", "0000-ffff-0") == expected
    assert times.of(PULSARS, "t-partition-0") == expected
    assert times.of(PULSARS, "t-partition-1") is None
    assert times.of("topic://public/default/u", "0000-ffff-0") is None


@pytest.mark.parametrize(
    "text, why",
    [
        ("2026-01-01T00:00:00", "without a zone it means another moment"),
        ("1767225600", "looks like seconds"),
        ("yesterday", "milliseconds since 1970"),
        ("-1", "milliseconds since 1970"),
    ],
)
def test_a_time_that_is_none_is_refused(text: str, why: str) -> None:
    with pytest.raises(OptionError, match=why):
        Options({"topic": "t", "startingTimestamp": text}, READ)
    for tree in ({"t": text}, {"t": {"0000-ffff-0": text}}):
        given = {"topic": "t", "startingOffsetsByTimestamp": json.dumps(tree)}
        with pytest.raises(OptionError, match=why):
            Options(given, READ)


@pytest.mark.parametrize("text", ["", "{}", "[]", "7", '{"t": null}', '{"t": [1]}'])
def test_times_that_are_no_mapping_by_topic_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"startingOffsetsByTimestamp.*JSON like"):
        Options({"topic": "t", "startingOffsetsByTimestamp": text}, READ)


def test_a_start_is_said_by_one_option() -> None:
    time, times = {"startingTimestamp": "0"}, {"startingOffsetsByTimestamp": '{"t": 0}'}
    for two in (time | times, time | {"startingOffsets": "latest"}):
        with pytest.raises(OptionError, match="may not be given together"):
            Options({"topic": "t"} | two, READ)


def test_times_follow_the_domain_of_their_namespace() -> None:
    given = {
        "topic": PULSARS,
        "domain.overrides": "public/default=topic",
        "startingOffsetsByTimestamp": json.dumps({PULSARS: 0}),
    }
    times = Options(given, READ).get("startingOffsetsByTimestamp")
    assert list(times.by_topic) == ["topic://public/default/t"]
