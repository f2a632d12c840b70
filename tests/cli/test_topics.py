"""``pulsar-txn topic``: topics and segments are created, changed, listed and drawn."""

from __future__ import annotations

import contextlib
import io
import json

import pytest
from typer.testing import CliRunner

from pulsar_txn_spark.cli import main
from pulsar_txn_spark.cli.output import error_text
from pulsar_txn_spark.engine.components import open_components
from pulsar_txn_spark.errors import OptionError, TopicNotFoundError
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.segments.topic_name import TopicName
from tests.support.command_line import call, listed, screen


def test_a_topic_is_created_described_listed_and_deleted(option: str, topic: str) -> None:
    created = call("topic", "create", topic, "--segments", "3", "-o", option)
    assert [row["hashes"] for row in created] == ["0000-5554", "5555-aaa9", "aaaa-ffff"]
    assert call("topic", "describe", topic, "-o", option) == created
    assert {"topic": topic, "segments": 3, "rows": 0, "bytes": 0} in call(
        "topic", "list", "-o", option
    )
    deleted = call("topic", "delete", topic, "--yes", "-o", option)
    assert deleted == [{"topic": topic, "state": "deleted"}]
    assert topic not in listed(option)


def test_segments_are_split_merged_and_sealed(option: str, topic: str) -> None:
    call("topic", "create", topic, "--segments", "1", "-o", option)
    split = call("topic", "split", topic, "0", "--at", "4000", "-o", option)
    assert [(row["hashes"], row["state"]) for row in split] == [
        ("0000-ffff", "sealed"),
        ("0000-3fff", "active"),
        ("4000-ffff", "active"),
    ]
    assert split[0]["children"] == ["0000-3fff-1", "4000-ffff-2"]
    assert split[0]["sealed at"] == "-1:-1"
    merged = call("topic", "merge", topic, "0000-3fff-1", "2", "-o", option)
    assert merged[-1]["parents"] == ["0000-3fff-1", "4000-ffff-2"]
    sealed = call("topic", "seal", topic, "3", "-o", option)
    assert [row["state"] for row in sealed] == ["sealed"] * 4 + ["active"]
    # No row has a key yet, so there is no load to cut by: the middle.
    by_load = call("topic", "split", topic, "4", "--by-load", "-o", option)
    assert [row["hashes"] for row in by_load[-2:]] == ["0000-7fff", "8000-ffff"]


def test_a_wrong_cut_is_one_line(option: str, topic: str) -> None:
    call("topic", "create", topic, "--segments", "1", "-o", option)
    for at, message in (("x", "in hex"), ("10000", "cannot cut"), ("0", "cannot cut")):
        with pytest.raises(OptionError, match=message):
            call("topic", "split", topic, "0", "--at", at, "-o", option)


def test_a_topic_is_drawn_also_where_a_segment_has_no_log(option: str, topic: str) -> None:
    call("topic", "create", topic, "--segments", "1", "-o", option)
    run = open_components(Options(dict([option.split("=", 1)]), Use.CONNECT))
    topology = run.topics.require(TopicName.parse(topic))
    planned = topology.with_planned(topology.active, [0x8000], "dead operator")
    version = run.store.topics.swap(topic, topology.version, planned.serialize())
    shown = CliRunner().invoke(main.app, ["topic", "describe", topic, "-o", option])
    assert shown.exit_code == 0
    assert f"version {version}" in shown.output
    for part in ("0000-ffff-0", "├─ 0000-7fff-1", "└─ 8000-ffff-2", "planned"):
        assert part in shown.output


def test_a_store_without_topics_is_named(option: str, redis_path: str) -> None:
    assert listed(option) == set()
    shown = CliRunner().invoke(main.app, ["topic", "list", "-o", option])
    assert (shown.exit_code, shown.output) == (0, f"there is no topic in the store {redis_path}\n")


@pytest.mark.parametrize(
    "command",
    [
        "topic describe flights",
        "topic delete flights --yes",
        "topic split flights 0",
        "topic merge flights 0 1",
        "topic seal flights 0",
        "topic properties flights",
        "topic set-property flights a b",
        "topic remove-property flights a",
        "topic retention flights",
        "topic retention flights --time 7d",
        "topic scaling flights --on",
        "subscription list flights",
        "subscription describe flights s",
        "subscription reset flights s --to earliest",
        "subscription delete flights s --yes",
    ],
)
@pytest.mark.usefixtures("run")
def test_the_error_of_a_missing_topic_names_the_store(
    option: str, redis_path: str, command: str
) -> None:
    result = CliRunner().invoke(main.app, [*command.split(), "-o", option])
    assert isinstance(result.exception, TopicNotFoundError), result.output
    shown = error_text(result.exception)
    assert shown.count(redis_path) == 1, "once"
    assert f"(in the metadata store {redis_path} there is none yet)" in shown


@pytest.mark.parametrize("closed", [("stdin",), ("stdin", "stdout"), ("stdin", "stderr")])
def test_a_question_that_cannot_be_asked_changes_nothing(
    option: str,
    topic: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    closed: tuple[str, ...],
) -> None:
    call("topic", "create", topic, "-o", option)
    monkeypatch.setattr("sys.argv", ["pulsar-txn", "topic", "delete", topic, "-o", option])
    with monkeypatch.context() as patch:
        for name in closed:
            patch.setattr(f"sys.{name}", None)
        with pytest.raises(SystemExit) as ended:
            main.main()
    assert ended.value.code == 1
    if "stderr" not in closed:
        error = capsys.readouterr().err
        assert "\nerror: nobody answered, and nothing was changed" in error
        assert "--yes" in error
    assert topic in listed(option)


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_question_that_nobody_answers_names_the_option_that_does_not_ask(
    option: str, topic: str, monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    call("topic", "create", topic, "-o", option)
    delete = ["pulsar-txn", "topic", "delete", topic, "-o", option]
    monkeypatch.setattr("sys.argv", delete)
    stdin = io.StringIO()
    monkeypatch.setattr(stdin, "isatty", lambda: is_terminal)
    monkeypatch.setattr("sys.stdin", stdin)
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 1
    question, *end = errors.getvalue().splitlines()
    assert question.startswith(f"Delete {topic} with all its data? [y/N]:")
    if is_terminal:  # it was Ctrl-C or Ctrl-D
        assert "--yes" not in errors.getvalue()
    else:
        (error,) = end
        assert error.startswith("error: nobody answered, and nothing was changed")
        assert "--yes" in error
    assert topic in listed(option)


def test_a_question_does_not_end_up_in_the_json(option: str, topic: str) -> None:
    call("topic", "create", topic, "-o", option)
    args = ["topic", "delete", topic, "--json", "-o", option]
    result = CliRunner().invoke(main.app, args, input="n\n")
    assert result.exit_code == 1
    assert result.stdout.strip() == "n", "the runner's echo of what was typed, and no more"
    assert topic in listed(option)
    result = CliRunner().invoke(main.app, args, input="y\n")
    typed, _, document = result.stdout.partition("\n")
    assert typed.strip() == "y"
    assert json.loads(document) == [{"topic": topic, "state": "deleted"}]


def test_tables_show_the_same_for_people(option: str, topic: str) -> None:
    call("topic", "create", topic, "-o", option)
    result = CliRunner().invoke(main.app, ["topic", "describe", topic, "-o", option])
    assert result.exit_code == 0
    assert topic in result.output
    assert "active" in result.output


def test_topics_are_listed_with_their_rows_and_bytes(option: str, busy: str) -> None:
    (row,) = [row for row in call("topic", "list", "-o", option) if row["topic"] == busy]
    assert (row["segments"], row["rows"]) == (8, 80)
    assert row["bytes"] > 80 * len("value 1")
    (line,) = [line for line in screen("topic", "list", "-o", option) if busy in line]
    assert "│ 80 " in line
    assert "KiB │" in line
