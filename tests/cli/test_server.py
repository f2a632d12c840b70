"""``pulsar-txn server``: the embedded server is started, shown and stopped, and only that one."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from typer.testing import CliRunner

from pulsar_txn_spark.cli import main
from pulsar_txn_spark.errors import OptionError, StoreUnavailableError
from pulsar_txn_spark.store.redis import server, server_status
from tests.support.pages import ROOT, snippet


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[str]:
    path = str(tmp_path / "store")
    yield path
    server.stop_server(path)


def call(*args: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(main.app, ["server", *args, "--json"], catch_exceptions=False)
    answer: dict[str, Any] = json.loads(result.stdout)
    return result.exit_code, answer


def test_a_server_is_started_shown_and_stopped(folder: str) -> None:
    code, shown = call("start", "--path", folder)
    assert (code, shown["done"], shown["state"]) == (0, "started", "running")
    with redis.Redis(unix_socket_path=shown["socket"]) as client:
        client.set("key", "value")
        code, status = call("status", "--path", folder)
    assert code == 0
    assert status["pid"] == shown["pid"] == int((Path(folder) / "redis.pid").read_text())
    assert status["path"] == folder
    assert status["version"].split()[0] in ("redis", "valkey")
    assert status["memory_bytes"] > 0
    assert status["aof_bytes"] > 0
    assert (status["persistence"], status["last_write"]) == (
        "append-only file, fsync always",
        "ok",
    )
    assert status["connections"] == 1, "the client's, not the command's own"
    code, shown = call("stop", "--path", folder)
    assert (code, shown["done"], shown["state"], shown["pid"]) == (0, "stopped", "stopped", None)
    assert call("status", "--path", folder)[0] == 3


@pytest.mark.slow
def test_the_commands_of_the_page_run() -> None:
    script = (
        "trap 'echo failed with $?' ERR\n"
        f"pulsar-txn() {{ {sys.executable} -c "
        "'from pulsar_txn_spark.cli.main import main; main()' \"$@\"; }\n"
        + snippet("docs/deployment.md", "pulsar-txn server status")
    )
    elsewhere = {"PULSAR_TXN_SPARK_HOME", "PULSAR_TXN_STORE_PATH", "XDG_DATA_HOME"}
    kept = {name: text for name, text in os.environ.items() if name not in elsewhere}
    with tempfile.TemporaryDirectory() as home:  # a short path, for the socket in it
        ran = subprocess.run(
            ["bash", "-c", script],
            env={**kept, "HOME": home, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        assert not (Path(home) / ".local" / "share" / "pulsar_txn_spark").exists()
    assert ran.returncode == 0, ran.stdout
    # Before it is started, the status is that of a stopped server, and nothing else fails.
    assert ran.stdout.count("failed with 3") == ran.stdout.count("failed with") == 1, ran.stdout


def test_starting_and_stopping_are_idempotent_and_the_data_stays(folder: str) -> None:
    _, first = call("start", "--path", folder)
    with redis.Redis(unix_socket_path=first["socket"]) as client:
        client.set("key", "value")
    code, again = call("start", "--path", folder)
    assert (code, again["done"], again["pid"]) == (0, "already running", first["pid"])
    assert call("stop", "--path", folder)[1]["done"] == "stopped"
    code, again = call("stop", "--path", folder)
    assert (code, again["done"]) == (0, "was not running")
    _, second = call("start", "--path", folder)
    assert second["pid"] != first["pid"]
    with redis.Redis(unix_socket_path=second["socket"]) as client:
        assert client.get("key") == b"value"


def test_the_status_of_a_stopped_server_has_an_exit_code_of_its_own_and_creates_nothing(
    folder: str,
) -> None:
    code, shown = call("status", "--path", folder)
    assert (code, shown["state"]) == (3, "stopped")
    assert not Path(folder).exists()
    code, shown = call("stop", "--path", folder)
    assert (code, shown["done"]) == (0, "was not running")
    assert not Path(folder).exists()


def test_the_folder_comes_from_the_options_too_and_the_path_prevails(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call("start", "-o", f"store.path={folder}")
    monkeypatch.setenv("PULSAR_TXN_STORE_PATH", folder)
    assert call("status")[1]["state"] == "running"
    monkeypatch.delenv("PULSAR_TXN_STORE_PATH")
    monkeypatch.setenv("PULSAR_TXN_STORE_URL", "redis://127.0.0.1:1")
    code, shown = call("status", "--path", folder)
    assert (code, shown["path"]) == (0, folder)


@pytest.mark.parametrize("verb", ["start", "stop", "status"])
def test_a_redis_that_is_not_embedded_is_left_to_its_own_tools(verb: str) -> None:
    args = ["server", verb, "-o", "store.url=redis://me:hunter2@127.0.0.1:1/0"]
    result = CliRunner().invoke(main.app, args)
    assert isinstance(result.exception, OptionError)
    assert "embedded servers only" in str(result.exception)
    assert "hunter2" not in str(result.exception)


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[str]:
    """A server listens on the socket of a folder, and was started by somebody else."""
    folder = tmp_path / "foreign"
    folder.mkdir()
    address = server.socket_path(str(folder))
    command = [server.find_server_binary(), "--port", "0", "--unixsocket", address, "--save", ""]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if "ready to accept connections" in line.lower() or "connections at" in line:
                    break
            yield str(folder)
        finally:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("verb", ["start", "stop"])
def test_a_server_that_was_not_started_for_the_folder_is_neither_used_nor_stopped(
    foreign: str, verb: str
) -> None:
    result = CliRunner().invoke(main.app, ["server", verb, "--path", foreign])
    assert isinstance(result.exception, StoreUnavailableError)
    assert "was not started for this folder" in str(result.exception)
    code, shown = call("status", "--path", foreign)
    assert (code, shown["state"], shown["pid"]) == (4, "foreign", None)
    with redis.Redis(unix_socket_path=server.socket_path(foreign)) as client:
        assert client.ping(), "it still runs"


@pytest.mark.parametrize("verb", ["start", "stop", "status"])
def test_a_path_that_is_no_folder_is_refused(tmp_path: Path, verb: str) -> None:
    path = tmp_path / "file"
    path.touch()
    result = CliRunner().invoke(main.app, ["server", verb, "--path", str(path)])
    assert isinstance(result.exception, StoreUnavailableError)
    assert f"The folder {path} of the embedded store cannot be read" in str(result.exception)


def test_a_folder_that_cannot_be_created_is_refused() -> None:
    result = CliRunner().invoke(main.app, ["server", "start", "--path", "/proc/store"])
    assert isinstance(result.exception, StoreUnavailableError)
    assert "to a folder that this user can write" in str(result.exception)


def test_a_folder_of_another_user_is_refused(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call("start", "--path", folder)
    opened = os.open

    def refuse(path: Any, *args: Any, **named: Any) -> int:
        if Path(path).name == "server.lock":
            raise PermissionError(13, "Permission denied")
        return opened(path, *args, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        result = CliRunner().invoke(main.app, ["server", "stop", "--path", folder])
    assert isinstance(result.exception, StoreUnavailableError)
    assert "belongs to another user" in str(result.exception)
    assert call("status", "--path", folder)[1]["state"] == "running"


def test_a_file_system_without_locks_is_no_running_server(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(folder).mkdir()
    (Path(folder) / "server.lock").touch()

    def refuse(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refuse)
        result = CliRunner().invoke(main.app, ["server", "status", "--path", folder])
    assert isinstance(result.exception, StoreUnavailableError)
    assert "on a file system without flock (No locks available)" in str(result.exception)


def test_a_server_that_hangs_is_shown_as_one_that_does_not_answer(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_PROBE_TIMEOUT_S", 0.05)
    _, shown = call("start", "--path", folder)
    os.kill(shown["pid"], signal.SIGSTOP)
    try:
        code, status = call("status", "--path", folder)
    finally:
        os.kill(shown["pid"], signal.SIGCONT)
    assert (code, status["state"]) == (4, "not answering")


def test_a_server_that_loads_its_data_is_shown_as_such(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = (True, server.Answer.LOADING)
    monkeypatch.setattr(server_status, "examine_server", lambda _: answers)
    code, shown = call("status", "--path", folder)
    assert (code, shown["state"]) == (4, "loading")


def test_a_server_that_ends_behind_its_answer_is_an_error(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = (True, server.Answer.READY)
    monkeypatch.setattr(server_status, "examine_server", lambda _: answers)
    result = CliRunner().invoke(main.app, ["server", "status", "--path", folder])
    assert isinstance(result.exception, StoreUnavailableError)
    assert "answered a PING and then failed" in str(result.exception)


def test_the_status_fits_on_a_screen(folder: str) -> None:
    call("start", "--path", folder)
    result = CliRunner().invoke(
        main.app, ["server", "status", "--path", folder], env={"COLUMNS": "80"}
    )
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= 80
    for part in ("│ state", "running", "KiB", "fsync always"):
        assert part in result.output
