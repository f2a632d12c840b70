"""``pulsar_txn_spark.testing.pulsar_server``: a broker that is not there is not passed over."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from pathlib import Path
from typing import Any, Self

import pytest

from pulsar_txn_spark.testing import pulsar_server
from pulsar_txn_spark.testing.pulsar_server import PulsarServerError, main
from tests.support.pages import ROOT, snippet

RECORD = "import sys; open(sys.argv[1], 'w').write(' '.join(sys.argv[2:])); sys.exit(7)"


class FakeServer:
    """Comes up, or fails as the real one does."""

    made: dict[str, Any]
    failure: PulsarServerError | None
    stopped: bool
    service_url = "pulsar://127.0.0.1:1"
    admin_url = "http://127.0.0.1:2"

    def __init__(self, **given: Any) -> None:
        type(self).made = given

    def __enter__(self) -> Self:
        if self.failure is not None:
            raise self.failure
        return self

    def __exit__(self, *_: object) -> None:
        type(self).stopped = True


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeServer]:
    FakeServer.failure, FakeServer.stopped = None, False
    monkeypatch.setattr(pulsar_server, "PulsarServer", FakeServer)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return FakeServer


def test_a_command_runs_with_the_brokers_urls_and_its_exit_code_is_kept(
    fake: type[FakeServer], tmp_path: Path
) -> None:
    record = tmp_path / "record"
    command = [sys.executable, "-c", RECORD, str(record)]
    assert main(["--startup-timeout", "5", "--run", *command]) == 7
    assert record.read_text() == f"service.url={fake.service_url} admin.url={fake.admin_url}"
    assert fake.made["startup_timeout_s"] == 5
    assert fake.stopped


def test_the_command_of_the_page_runs_the_example(
    fake: type[FakeServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = snippet("docs/deployment.md", "python -m pulsar_txn_spark.testing.pulsar_server")
    python, _, module, *arguments = shlex.split(line)
    assert module == pulsar_server.__name__
    program = tmp_path / python
    program.write_text('#!/bin/sh\necho "$@" > "$0.record"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert main(arguments) == 0
    example, *options = (tmp_path / "python.record").read_text().split()
    assert (ROOT / example).is_file()
    assert options == [f"service.url={fake.service_url}", f"admin.url={fake.admin_url}"]


def test_a_broker_gates_by_the_store_that_is_named(fake: type[FakeServer]) -> None:
    command = [sys.executable, "-c", "pass"]
    assert main(["--shim", "redis://127.0.0.1:6379", "--run", *command]) == 0
    assert fake.made["store_url"] == "redis://127.0.0.1:6379"
    assert main(["--run", *command]) == 0
    assert fake.made["store_url"] is None


def test_no_command_runs_without_a_broker_and_the_failure_is_one_line(
    fake: type[FakeServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.failure = PulsarServerError(
        "the Pulsar broker did not answer within 5 s (refused); the end of its log:\nline 1\nline 2"
    )
    record = tmp_path / "record"
    assert main(["--run", sys.executable, "-c", RECORD, str(record)]) == 1
    assert not record.exists()
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert line.startswith("error: the Pulsar broker did not answer within 5 s (refused); the end")
    log = Path(line.rpartition(" ")[2])
    assert log.read_text() == "line 1\nline 2"
    log.unlink()


def test_without_a_command_the_urls_are_printed(
    fake: type[FakeServer], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading.Event, "wait", lambda *_: True)
    assert main([]) == 0
    assert capsys.readouterr().out == (
        f"service.url={fake.service_url}\nadmin.url={fake.admin_url}\n"
    )
    assert fake.stopped


def test_a_command_that_is_not_there_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--run", "no-such-program"]) == 1
    assert "no-such-program does not run" in capsys.readouterr().err


def test_a_broker_that_is_too_slow_names_the_option(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.undo()
    server = pulsar_server.PulsarServer(startup_timeout_s=0)
    server._folder, server._ports = tmp_path, [1, 2, 3]
    server.log_path.write_text("its log")
    with pytest.raises(PulsarServerError, match=r"within 0 s .*--startup-timeout.*\nits log"):
        server._await_ready()
