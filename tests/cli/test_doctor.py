"""The doctor finds what is wrong, says what to do, and fails; it is content where all is well."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import redis
from typer.testing import CliRunner

from pulsar_txn_spark.backends.pulsar.admin_api import TransactionState
from pulsar_txn_spark.backends.pulsar.subscription_expiry import Expiry
from pulsar_txn_spark.cli import doctor, main
from pulsar_txn_spark.cli.doctor import Finding, Level, examine
from pulsar_txn_spark.cli.format_lookup import Lookup
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.engine.components import open_components
from pulsar_txn_spark.errors import (
    EnvironmentTooOldError,
    OptionError,
    SegmentLogUnavailableError,
    SegmentNotFoundError,
)
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.position import EARLIEST
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import Segment, Topology
from pulsar_txn_spark.store.records import TxnId, TxnState
from pulsar_txn_spark.store.redis.durability import Problem, ServerFacts
from pulsar_txn_spark.store.redis.store import RedisStore
from pulsar_txn_spark.txn.batch import BatchKey, SinkRules
from pulsar_txn_spark.txn.health import tc_states
from tests.support.scenario import SEGMENT, Txn, World


@pytest.fixture(autouse=True)
def no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "require_java", lambda: None)
    monkeypatch.setattr(doctor, "look_up", lambda: Lookup("python", "PYSPARK_PYTHON", visible=True))


@pytest.fixture
def given(redis_path: str, redis_client: redis.Redis) -> dict[str, str]:
    return {"store.path": redis_path}


def wrong(found: list[Finding]) -> list[Finding]:
    return [one for one in found if one.level is not Level.OK]


def only(found: list[Finding], check: str) -> Finding:
    (one,) = wrong(found)
    assert one.check == check
    assert one.remedy, "a finding without a remedy"
    return one


@contextmanager
def setting(client: redis.Redis, name: str, value: str) -> Iterator[None]:
    before = client.config_get(name)[name]
    assert before is not None
    client.config_set(name, value)
    try:
        yield
    finally:
        client.config_set(name, before)


def test_a_healthy_installation_has_no_findings(given: dict[str, str]) -> None:
    found = examine(given)
    assert wrong(found) == []
    assert {one.check for one in found} >= {
        "package",
        "Python and PySpark",
        "Java",
        "metadata store",
        "Redis durability",
        "stuck participants",
        "oldest open transaction",
        "sweeps",
        "collection of headers",
        "dropped writers",
        "Pulsar",
    }


# -- the metadata store --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name,value,remedy",
    [
        ("appendfsync", "everysec", "CONFIG SET appendfsync always"),
        ("no-appendfsync-on-rewrite", "yes", "CONFIG SET no-appendfsync-on-rewrite no"),
        ("maxmemory-policy", "allkeys-lru", "CONFIG SET maxmemory-policy noeviction"),
    ],
)
def test_a_redis_that_may_lose_what_it_acknowledged_is_found_though_it_is_accepted(
    given: dict[str, str], redis_client: redis.Redis, name: str, value: str, remedy: str
) -> None:
    with setting(redis_client, name, value):
        one = only(examine({**given, "STORE.acceptDataLoss": "true"}), "Redis durability")
    assert one.level is Level.ERROR
    assert name in one.found
    assert value in one.found
    assert remedy in one.remedy


def test_a_redis_that_is_nearly_full_is_found(
    given: dict[str, str], redis_client: redis.Redis
) -> None:
    redis_client.set("filler", b"x" * 16_000_000)  # beside it connections and scripts are little
    used = redis_client.info("memory")["used_memory"]
    with setting(redis_client, "maxmemory", str(100 * used)):
        assert "Redis memory" not in {finding.check for finding in examine(given)}
    with setting(redis_client, "maxmemory", str(used + used // 8)):
        one = only(examine(given), "Redis memory")
    assert one.level is Level.WARNING
    assert re.search(r": (8\d|9\d) % of maxmemory", one.found)
    assert "pulsar-txn sweep" in one.remedy


def test_settings_that_are_only_vouched_for_are_found(
    given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def verify(_: object, config: object) -> ServerFacts:
        asked.append(config)
        return ServerFacts((), (), (Problem("could not be read", "allow it", True),))

    monkeypatch.setattr(doctor, "verify", verify)
    only(examine({**given, "store.assumeDurable": "true"}), "Redis durability")
    assert [(c.accept_data_loss, c.assume_durable) for c in asked] == [(True, False)]  # type: ignore[attr-defined]


def test_a_store_that_cannot_be_reached_is_one_finding_without_the_password() -> None:
    one = only(examine({"store.url": "redis://me:hunter2@127.0.0.1:1/0"}), "metadata store")
    assert "127.0.0.1:1" in one.found
    assert "hunter2" not in one.found + one.remedy


def test_a_wrong_option_is_an_error_and_no_finding() -> None:
    with pytest.raises(OptionError, match="did you mean"):
        examine({"store.pth": "x"})


def test_a_java_that_is_too_old_is_found(
    given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def old() -> None:
        raise EnvironmentTooOldError("Java 11 is too old")

    monkeypatch.setattr(doctor, "require_java", old)
    assert "Java 11" in only(examine(given), "Java").found


# -- transactions --------------------------------------------------------------------------------


def test_a_decision_that_is_pending_in_a_segment_names_both(
    given: dict[str, str], world: World
) -> None:
    txn = world.open()
    world.decide(txn, world.write(txn, "a"))
    assert wrong(examine(given)) == [], "it was decided only now"
    index = f"{{tc{txn.id.tc}}}:idx:txn-unmaterialized"
    world.client.zincrby(index, -61_000, txn.id.key)
    one = only(examine(given), "stuck participants")
    assert SEGMENT in one.found
    assert str(txn.id) in one.found
    assert "pulsar-txn sweep" in one.remedy
    assert world.state(txn) is TxnState.COMMITTED
    assert world.pinned(), "the doctor changes nothing"


def test_a_transaction_that_is_open_for_long_is_found_with_the_command_that_ends_it(
    given: dict[str, str], world: World
) -> None:
    txn = world.open()
    key = f"{{tc{txn.id.tc}}}:txn:{txn.id.key}"
    world.client.hincrby(key, "created_ms", -11 * 60_000)
    one = only(examine(given), "oldest open transaction")
    assert f"{txn.id} is open for 11 min" in one.found
    assert f"pulsar-txn txn abort '{txn.id}'" in one.remedy


def test_a_lease_that_is_long_over_tells_that_no_sweep_runs(
    given: dict[str, str], world: World
) -> None:
    world.expire(world.open())
    assert "sweep --every" in only(examine(given), "sweeps").remedy


def test_headers_that_pile_up_are_found(
    given: dict[str, str], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "BACKLOG", 0)
    world.abort(world.open())
    assert "1 decided headers" in only(examine(given), "collection of headers").found


def test_a_header_that_stays_for_a_pointer_is_named_until_its_query_comes_back(
    given: dict[str, str], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> str:
        found = examine(given)
        assert wrong(found) == [], "it is in nobody's way"
        return next(one.found for one in found if one.check == "headers held by pointers")

    def dies(*_: object, **__: object) -> bool:
        raise KeyboardInterrupt

    def age(txn: TxnId) -> None:
        index = f"{{tc{txn.tc}}}:idx:txn-by-final-state"
        world.client.zincrby(index, -601_000, f"ABORTED|{txn.key}")

    late = SinkRules(first_batch=7)
    named = world.batches.begin(BatchKey("other", "q", 0), "other")
    world.abort(Txn(named.txn, named.nonce))
    age(named.txn)
    assert told() == "none", "its pointer names it, and a sweep tells it the decision"
    with monkeypatch.context() as death:
        death.setattr(world.store.scripts, "_single_steps", True)
        death.setattr(world.store.sinks, "swap_pointer", dies)
        with pytest.raises(KeyboardInterrupt):
            world.batches.begin(BatchKey("a-sink", "a-query", 7), "nonce", rules=late)
    [txn] = [state.oldest_open[0] for state in tc_states(world.store) if state.oldest_open]
    world.expire(txn)
    sweeper = open_components(Options(given, Use.CONNECT)).sweeper(0)
    assert str(txn) in str(sweeper.sweep().stuck)
    assert told() == "none", "its attempt may be at it"
    age(txn)
    assert f"{txn} of sink a-sink" in told()
    # A batch of before does not tell that the attempt's write must fail; the one behind does.
    for batch in (7, 8):
        world.run_batch(BatchKey("a-sink", "a-query", batch), f"n{batch}", "row", rules=late)
    assert told() == "none"
    assert sweeper.sweep().stuck == ()
    assert world.store.transactions.read(txn) is None


def test_a_split_that_is_half_done_is_found_and_a_sweep_mends_it(given: dict[str, str]) -> None:
    run = open_components(Options(given, Use.CONNECT))
    topic = TopicName.parse("halfway")
    topology = run.topics.create(topic, 1)
    planned = run.topics.require(topic).with_planned(topology.active, [0x8000], "dead operator")
    run.store.topics.swap(str(topic), topology.version, planned.serialize())
    found = only(examine(given), "changes of segments")
    assert str(topic) in found.found
    assert "pulsar-txn sweep" in found.remedy
    run.sweeper().sweep()
    assert wrong(examine(given)) == []


def test_a_segment_with_many_dropped_writers_is_found(
    given: dict[str, str], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "DROPPED_WRITERS", 0)
    topics = open_components(Options(given, Use.CONNECT)).topics
    segment = topics.create(TopicName.parse("often-failed"), 1).segments[0].ref.id
    txn = world.open()
    world.admit(txn, segment=segment)
    world.abort(txn)
    assert segment in only(examine(given), "dropped writers").found


# -- Pulsar --------------------------------------------------------------------------------------


class FakeAdmin:
    """What the doctor asks of the admin API."""

    version = "4.0.7"
    status = "Enabled"
    error: Exception | None = None
    expires_after_min: int | None = 0

    def __init__(self, config: PulsarConfig) -> None:
        assert config.admin_url

    def broker_version(self) -> str:
        return self.version

    buffer = "pulsar_txn_spark"
    silent = False

    def settled_transactions_of(self, topic: str) -> TransactionState:
        if self.silent:
            raise SegmentLogUnavailableError("it does not say")
        return TransactionState("Ready", EARLIEST, 0, self.buffer)

    def deduplication_status(self, topic: str) -> str:
        if self.error is not None:
            raise self.error
        return self.status

    def subscription_expiry(self, topic: str) -> Expiry:
        assert topic.startswith("persistent://a/b/")
        return Expiry("a/b", self.expires_after_min, "the namespace a/b")

    def close(self) -> None: ...


PULSAR = {"service.url": "pulsar://127.0.0.1:1", "admin.url": "http://127.0.0.1:2"}


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> type[FakeAdmin]:
    class Admin(FakeAdmin):
        pass

    monkeypatch.setattr(doctor, "PulsarAdmin", Admin)
    refs = [SegmentRef(f"s{i}", "topic://a/b/c", f"persistent://a/b/c--{i}") for i in range(3)]
    segments = tuple(Segment(ref, number, number) for number, ref in enumerate(refs))
    topology = Topology(TopicName.parse("topic://a/b/c"), "instance", segments, 3, "pulsar")
    monkeypatch.setattr(doctor, "_topologies", lambda _: [topology])
    return Admin


def test_deduplication_that_is_on_everywhere_is_well(
    given: dict[str, str], admin: type[FakeAdmin]
) -> None:
    found = examine({**given, **PULSAR})
    assert wrong(found) == []
    assert "on for all of 3 segments" in [one.found for one in found]


def test_deduplication_that_is_off_is_found_for_each_segment(
    given: dict[str, str], admin: type[FakeAdmin]
) -> None:
    admin.status = "Disabled"
    found = wrong(examine({**given, **PULSAR}))
    assert [one.check for one in found] == ["Pulsar deduplication"] * 3
    assert "set-deduplication-status -e persistent://a/b/c--0" in found[0].remedy


def test_a_segment_whose_topic_is_gone_is_found(
    given: dict[str, str], admin: type[FakeAdmin]
) -> None:
    admin.error = SegmentNotFoundError("it is not there")
    assert len(wrong(examine({**given, **PULSAR}))) == 3


def test_a_broker_without_the_plug_in_is_found_where_it_is_to_gate(
    given: dict[str, str],
    admin: type[FakeAdmin],
    monkeypatch: pytest.MonkeyPatch,
    redis_client: redis.Redis,
) -> None:
    checked = "gating brokers"
    shown = [one.found for one in examine({**given, **PULSAR}) if one.check == checked]
    assert shown == ["no topic is gated"]
    [plain] = doctor._topologies(RedisStore(redis_client))
    gated = replace(plain, gate_store="a1b2")
    monkeypatch.setattr(doctor, "_topologies", lambda _: [plain, gated])
    shown = [one.found for one in examine({**given, **PULSAR}) if one.check == checked]
    assert shown == ["the plug-in gates all of 3 segments"]
    admin.buffer = "Single"
    found = wrong(examine({**given, **PULSAR}))
    assert [one.check for one in found] == [checked] * 3
    assert "nobody can write there" in found[0].found
    admin.silent = True
    assert "pulsarTxnSparkStoreUrl" in only(examine({**given, **PULSAR}), checked).remedy


@pytest.mark.parametrize(
    "minutes, level", [(5, Level.ERROR), (None, Level.WARNING)], ids=["expires", "unknown"]
)
def test_subscriptions_that_expire_or_may_do_so_are_found_once_for_each_namespace(
    given: dict[str, str], admin: type[FakeAdmin], minutes: int | None, level: Level
) -> None:
    check = "subscription expiration"
    assert [one.level for one in examine({**given, **PULSAR}) if one.check == check] == [Level.OK]
    admin.expires_after_min = minutes
    one = only(examine({**given, **PULSAR}), check)
    assert one.level is level
    assert one.remedy == "pulsar-admin namespaces set-subscription-expiration-time -t 0 a/b"


def test_a_pulsar_that_is_too_old_or_does_not_answer_is_found(
    given: dict[str, str], admin: type[FakeAdmin]
) -> None:
    admin.version = "3.0.4"
    assert only(examine({**given, **PULSAR}), "Pulsar").remedy == "upgrade to 4.0 or newer"
    admin.version = "5.0.0-M1"
    assert wrong(examine({**given, **PULSAR})) == []
    admin.error = SegmentLogUnavailableError("no answer")
    assert "admin.url" in only(examine({**given, **PULSAR}), "Pulsar").remedy


# -- the command ---------------------------------------------------------------------------------


def test_the_command_fails_if_anything_was_found_and_only_then(
    given: dict[str, str], world: World
) -> None:
    args = ["doctor", "--json", "-o", f"store.path={given['store.path']}"]
    result = CliRunner().invoke(main.app, args, catch_exceptions=False)
    assert result.exit_code == 0
    assert {row["level"] for row in json.loads(result.output)} == {"ok"}
    world.expire(world.open())
    result = CliRunner().invoke(main.app, args, catch_exceptions=False)
    assert result.exit_code == 1
    (row,) = [row for row in json.loads(result.output) if row["level"] != "ok"]
    assert row.keys() == {"check", "level", "found", "remedy"}
    result = CliRunner().invoke(main.app, [a for a in args if a != "--json"])
    assert result.exit_code == 1
    assert "warning" in result.output
