"""The command line has every command, its errors are one line, and so are those of its output."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import typer
from typer.testing import CliRunner

import pulsar_txn_spark
from pulsar_txn_spark.backports import add_note
from pulsar_txn_spark.cli import main
from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.errors import SegmentLogError
from pulsar_txn_spark.segments.topic_name import TopicName


def commands(command: Any = None, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return every command of the tool by its full name."""
    command = command or typer.main.get_command(main.app)
    found: dict[str, Any] = {}
    for name, child in command.commands.items():
        if hasattr(child, "commands"):
            found |= commands(child, (*path, name))
        else:
            found[" ".join((*path, name))] = child
    return found


def test_the_tool_has_every_command_that_it_was_asked_for() -> None:
    asked = {
        *(f"topic {verb}" for verb in ("create", "list", "describe")),
        *(f"txn {verb}" for verb in ("list", "show", "abort")),
        *(f"subscription {verb}" for verb in ("list", "describe", "reset")),
        *(f"job {verb}" for verb in ("run", "check", "explain", "script")),
        "sweep",
        "doctor",
    }
    assert commands().keys() >= asked


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_command_speaks_json_takes_options_and_explains_itself(name: str) -> None:
    if name == "job script":
        return  # it prints a file
    command = commands()[name]
    flags = {flag for parameter in command.params for flag in parameter.opts}
    assert {"--json", "--option", "-o"} <= flags
    assert command.help


def test_an_error_shows_no_password(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for given in (
        ["-o", "store.url=redis://me:hunter2@127.0.0.1:1/0"],
        ["-o", "store.url=redis://127.0.0.1:1/0", "-o", "store.password=hunter2"],
        ["-o", "store.url=http://me:hunter2@somewhere"],
    ):
        monkeypatch.setattr("sys.argv", ["pulsar-txn", "topic", "list", *given])
        with pytest.raises(SystemExit):
            main.main()
        printed = capsys.readouterr()
        assert printed.err.startswith("error: ")
        assert "hunter2" not in printed.err + printed.out


@pytest.mark.parametrize(
    "args, expected",
    [
        (["sweep", "--metrics-port", "0"], "--metrics-port needs --every"),
        (["sweep", "--dry-run"], "--dry-run goes with --scale"),
        (["topic", "retention", "x", "--time", "soon"], "expected a number with one of the units"),
        (["topic", "describe", "not-there"], "topic://public/default/not-there does not exist"),
        (["topic", "create", "persistent://a/b/c"], "expected topic://"),
        (["topic", "create", "x", "--segments", "0"], "expected 1 to 1024 segments, found 0"),
        (["txn", "show", "(0,99999999)"], "has no header"),
        (["topic", "set-property", "x", "__contains_txn_messages", "false"], "cannot be set"),
        (["topic", "remove-property", "x", "__contains_txn_messages"], "cannot be removed"),
        (["op-log", "set", "--on", "--max-records", "0"], "expected 1 to 4096, found 0"),
        (["txn", "show", "nonsense"], "expected a transaction as '(tc,counter)'"),
        (["txn", "show", "(77,1)"], "there is no TC 77"),
        (["txn", "show", "mostSigBits=0, leastSigBits=1"], "a transaction of Pulsar's own"),
        (["txn", "abort", '{"mostSigBits":0,"leastSigBits":1}'], "'pulsar-admin transactions'"),
        (
            ["topic", "create", "x", "-o", "domain.overrides=public/default=persistent"],
            "none spans",
        ),
        (["topic", "list", "-o", "nonsense"], "expected -o KEY=VALUE"),
        (["topic", "list", "-o", "store.pth=x"], "did you mean 'store.path'"),
    ],
)
def test_an_error_is_one_line_on_standard_error(
    option: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    args: list[str],
    expected: str,
) -> None:
    monkeypatch.setattr("sys.argv", ["pulsar-txn", *args, "-o", option])
    with pytest.raises(SystemExit) as exit_:
        main.main()
    printed = capsys.readouterr()
    assert exit_.value.code == 1
    assert printed.err.startswith("error: ")
    assert expected in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_an_error_with_a_note_is_one_line_as_well(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = SegmentLogError("it cannot be adopted at a:key:b")
    add_note(error, "Its adoption was begun")
    monkeypatch.setattr(main, "app", mock.Mock(side_effect=error))
    with pytest.raises(SystemExit):
        main.main()
    assert (
        capsys.readouterr().err
        == "error: it cannot be adopted at a:key:b. Its adoption was begun\n"
    )


def test_the_version_is_printed() -> None:
    result = CliRunner().invoke(main.app, ["--version"])
    assert result.output == f"pulsar-txn {pulsar_txn_spark.__version__}\n"


def test_a_shell_can_complete_the_command() -> None:
    result = CliRunner().invoke(
        main.app, ["--show-completion"], env={"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    )
    assert "No such option" not in result.output


def test_a_terminal_that_knows_ascii_only_ends_no_command_behind_its_work(
    option: str, run: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(shown, encoding="ascii"))
    monkeypatch.setattr("sys.argv", ["pulsar-txn", "topic", "create", "t", "-o", option])
    with pytest.raises(SystemExit) as exit_:
        main.main()
    assert exit_.value.code == 0
    sys.stdout.flush()
    assert b"topic://public/default/t, version" in shown.getvalue()
    assert run.topics.require(TopicName.parse("t")).active


@pytest.mark.parametrize("as_json", [True, False])
def test_a_command_whose_output_is_closed_does_its_work(
    option: str, run: Components, monkeypatch: pytest.MonkeyPatch, *, as_json: bool
) -> None:
    monkeypatch.setattr("sys.stdout", None)
    create = ["pulsar-txn", "topic", "create", "t", "-o", option]
    monkeypatch.setattr("sys.argv", [*create, "--json"] if as_json else create)
    with pytest.raises(SystemExit) as exit_:
        main.main()
    assert exit_.value.code == 0
    assert run.topics.require(TopicName.parse("t")).active


NAME_NULL_STREAMS = """
import json, os, sys
from pulsar_txn_spark.cli import main

def app(_):
    null = os.stat(os.devnull)
    streams = sys.stdin, sys.stdout, sys.stderr
    with open(sys.argv[1], "w") as names:
        json.dump([stream.fileno() > 2 for stream in streams], names)
        names.write("\\n")
        json.dump([os.path.samestat(os.fstat(n), null) for n in range(3)], names)
        names.write("\\n")
        json.dump([os.get_inheritable(n) for n in range(3)], names)
    sys.stderr.flush()

main.app = app
main.main()
"""


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_a_stream_that_is_closed_is_the_null_device_also_for_started_processes(
    closed: tuple[int, ...], tmp_path: Path
) -> None:
    names = tmp_path / "names"
    closing = " ".join(f"{number}>&-" for number in closed)
    command = [sys.executable, "-c", NAME_NULL_STREAMS, str(names)]
    process = subprocess.run(
        ["sh", "-c", f'exec "$@" {closing}', "sh", *command],
        input=b"",
        capture_output=True,
        check=True,
    )
    assert process.stdout + process.stderr == b""
    expected = [number in closed for number in range(3)]
    stands_in, is_null, is_inherited = map(json.loads, names.read_text().splitlines())
    assert stands_in == is_null == expected
    assert is_inherited == [True] * 3


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("args", [["op-log", "show"], ["op-log", "show", "--json"], ["--help"]])
def test_an_output_onto_a_full_disk_is_one_line(
    redis_path: str,
    run: Components,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    args: list[str],
    buffered: bool,
    encoding: str,
) -> None:
    monkeypatch.setenv("PULSAR_TXN_STORE_PATH", redis_path)
    monkeypatch.setattr("sys.argv", ["pulsar-txn", *args])
    with Path("/dev/full").open("w", encoding=encoding) as full:
        full.reconfigure(write_through=not buffered)
        monkeypatch.setattr("sys.stdout", full)
        with pytest.raises(SystemExit) as exit_:
            main.main()
        assert sys.stdout is full
        full.flush()  # as Python does when it ends
    assert exit_.value.code == 1
    expected = "error: the output cannot be written: No space left on device\n"
    assert capsys.readouterr().err == expected


def test_a_reader_that_goes_away_ends_a_command_silently(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["pulsar-txn", "--version"])
    monkeypatch.setattr("sys.stderr", sys.stderr)  # what Typer puts in its place goes again
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe, Path(os.devnull).open("w") as nowhere:
        monkeypatch.setattr("sys.stdout", pipe)
        with pytest.raises(SystemExit) as exit_:
            main.main()
        sys.stdout.flush()  # as Python does when it ends
        os.dup2(nowhere.fileno(), writer)
    assert exit_.value.code == 1
    assert capsys.readouterr().err == ""


def test_a_disk_that_is_full_elsewhere_is_no_matter_of_the_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(main, "app", mock.Mock(side_effect=error))
    with pytest.raises(OSError, match="No space left") as caught:
        main.main()
    assert caught.value is error


def test_a_warning_of_the_log_begins_with_its_level(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["pulsar-txn", "--version"])
    with pytest.raises(SystemExit):
        main.main()
    # As a process has it that sets up no logging, unlike pytest.
    assert logging.lastResort is not None
    record = logging.LogRecord("any", logging.WARNING, "", 0, "%s has a hole", ("h:6379",), None)
    logging.lastResort.handle(record)
    assert capsys.readouterr().err == "warning: h:6379 has a hole\n"
