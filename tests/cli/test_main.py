"""The command line does what it says, in a table or in JSON, and its errors are one line."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
import urllib.request
from typing import Any

import pytest
import redis
import typer
from typer.testing import CliRunner

import pulsar_txn_spark
from pulsar_txn_spark import client
from pulsar_txn_spark.cli import main
from pulsar_txn_spark.engine.components import Runtime, runtime
from pulsar_txn_spark.errors import (
    OptionError,
    StoreRolledBackError,
    StoreUnavailableError,
    TransactionDomainError,
)
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.position import EARLIEST, MessagePosition, Position
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.store.ack_ranges import AckInterval
from pulsar_txn_spark.store.metadata_pb2 import Outcome
from pulsar_txn_spark.store.protocol import EndedBy, OpLogSettings, SubscriptionRef, TxnId
from pulsar_txn_spark.txn.pending_ack import CLIENT_OWNER, MetadataPendingAckStore
from pulsar_txn_spark.txn.sweeper import Sweeper, SweepReport


@pytest.fixture
def option(redis_path: str, redis_client: redis.Redis) -> str:
    return f"store.path={redis_path}"


@pytest.fixture
def topic() -> str:
    return f"topic://public/default/{secrets.token_hex(4)}"


@pytest.fixture
def run(redis_path: str, redis_client: redis.Redis) -> Runtime:
    return runtime(Options({"store.path": redis_path}, Use.CONNECT))


def call(*args: str) -> Any:
    result = CliRunner().invoke(main.app, [*args, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def listed(option: str) -> set[str]:
    return {row["topic"] for row in call("topic", "list", "-o", option)}


def open_txn(run: Runtime) -> TxnId:
    return run.coordinator.new_txn(secrets.token_hex(4), timeout_ms=60_000, sink="a-sink")


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
    run = runtime(Options(dict([option.split("=", 1)]), Use.CONNECT))
    topology = run.topics.require(TopicName.parse(topic))
    planned = topology.with_planned(topology.active, [0x8000], "dead operator")
    version = run.store.swap_topology(topic, topology.version, planned.serialize())
    shown = CliRunner().invoke(main.app, ["topic", "describe", topic, "-o", option])
    assert shown.exit_code == 0
    assert f"version {version}" in shown.output
    for part in ("0000-ffff-0", "├─ 0000-7fff-1", "└─ 8000-ffff-2", "planned"):
        assert part in shown.output


def test_an_open_transaction_is_listed_shown_and_aborted(option: str, run: Runtime) -> None:
    txn = open_txn(run)
    listed = {row["transaction"]: row for row in call("txn", "list", "-o", option)}
    assert listed[str(txn)]["sink"] == "a-sink"
    assert call("txn", "abort", str(txn), "-o", option) == [
        {"transaction": str(txn), "state": "ABORTED"}
    ]
    shown = call("txn", "show", str(txn), "-o", option)
    assert (shown["state"], shown["cause"]) == ("ABORTED", "an administrator aborted it")
    assert str(txn) not in {r["transaction"] for r in call("txn", "list", "-o", option)}
    assert str(txn) in {r["transaction"] for r in call("txn", "list", "--decided", "-o", option)}


def test_a_subscription_is_listed_described_and_reset(
    option: str, topic: str, run: Runtime
) -> None:
    (segment,) = call("topic", "create", topic, "--segments", "1", "-o", option)
    run.store.claim_cursor(segment["segment"], "sub", "a-query", 1, EARLIEST)
    assert call("subscription", "list", topic, "-o", option) == [{"subscription": "sub"}]
    (row,) = call("subscription", "describe", topic, "sub", "-o", option)
    assert (row["query"], row["cursor"], row["backlog messages"]) == ("a-query", "-1:-1", 0)
    (moved,) = call("subscription", "reset", topic, "sub", "--to", "latest", "--yes", "-o", option)
    (row,) = call("subscription", "describe", topic, "sub", "-o", option)
    assert (moved["segment"], moved["to"]) == (row["segment"], row["cursor"])
    assert (row["query"], row["generation"]) == ("", 2)


def test_a_subscription_shows_what_is_acknowledged_behind_its_cursor_and_who_holds_what(
    option: str, topic: str, run: Runtime
) -> None:
    (segment,) = call("topic", "create", topic, "--segments", "1", "-o", option)
    where = SubscriptionRef(segment["segment"], "sub", CLIENT_OWNER)
    acks = MetadataPendingAckStore(run.coordinator)
    acks.claim(where, EARLIEST)

    def one(entry: int) -> AckInterval:
        return AckInterval(*(MessagePosition.whole(Position(1, at)) for at in (entry - 1, entry)))

    assert acks.acknowledge_now(where, [one(3), one(4)]) == []
    txn = run.coordinator.new_txn("nonce", timeout_ms=60_000)
    acks.acknowledge_individual(txn, "nonce", 60_000, where, [one(8)])
    (row,) = call("subscription", "describe", topic, "sub", "-o", option)
    assert row["acknowledged ranges"] == ["(1:2, 1:4]"]
    assert row["held"] == [f"{txn} (1:7, 1:8]"]
    run.coordinator.abort(txn, EndedBy.ADMIN, cause="a test")
    acks.acknowledge_now(where, [one(entry) for entry in range(10, 60, 2)])
    (row,) = call("subscription", "describe", topic, "sub", "-o", option)
    assert (len(row["acknowledged ranges"]), row["held"]) == (26, [])
    shown = CliRunner().invoke(main.app, ["subscription", "describe", topic, "sub", "-o", option])
    assert "and 6 more" in " ".join(shown.output.replace("│", " ").split())


def test_an_administrator_who_is_too_late_is_told_so(
    option: str, run: Runtime, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    txn = run.coordinator.new_txn("nonce", timeout_ms=60_000)
    run.coordinator.commit(txn, "nonce", Outcome())
    monkeypatch.setattr("sys.argv", ["pulsar-txn", "txn", "abort", str(txn), "-o", option])
    with pytest.raises(SystemExit) as exit_:
        main.main()
    assert exit_.value.code == 1
    assert "was committed before" in capsys.readouterr().err
    lost = open_txn(run)
    for _ in range(2):
        (row,) = call("txn", "abort", str(lost), "-o", option)
        assert row["state"] == "ABORTED"


def test_properties_are_set_and_removed_but_for_the_systems_own(option: str, topic: str) -> None:
    call("topic", "create", topic, "-o", option)
    assert call("topic", "set-property", topic, "team", "a", "-o", option) == [
        {"property": "__contains_txn_messages", "value": "false"},
        {"property": "team", "value": "a"},
    ]
    call("topic", "remove-property", topic, "team", "-o", option)
    assert call("topic", "properties", topic, "-o", option) == [
        {"property": "__contains_txn_messages", "value": "false"}
    ]


def test_the_gathering_of_operation_records_is_shown_and_changed(option: str, run: Runtime) -> None:
    shown = call("op-log", "show", "-o", option)
    assert [row["coordinator"] for row in shown] == list(range(run.store.identity.coordinators))
    assert {row["enabled"] for row in shown} == {False}
    args = ("--on", "--max-records", "100", "--max-delay-ms", "2", "-o", option)
    for row in call("op-log", "set", *args):
        assert row["enabled"]
        assert (row["max_records"], row["max_bytes"], row["max_delay_ms"]) == (100, 1 << 22, 2)
    assert run.store.read_op_log(3) == OpLogSettings(True, 100, 1 << 22, 2)
    for switch, enabled in (("--off", False), ("--on", True)):
        call("op-log", "set", switch, "-o", option)
        # What was not named stays as it was.
        assert run.store.read_op_log(3) == OpLogSettings(enabled, 100, 1 << 22, 2)
    call("op-log", "set", "--off", "--max-bytes", "4096", "-o", option)
    assert run.store.read_op_log(0) == OpLogSettings(False, 100, 4096, 2)


def test_a_sweep_collects_what_is_decided(option: str, run: Runtime) -> None:
    txn = open_txn(run)
    call("txn", "abort", str(txn), "-o", option)
    report = call("sweep", "--retention-ms", "0", "-o", option)
    assert report["headers_removed"] >= 1
    assert run.store.read_txn(txn) is None


def test_retention_is_set_and_shown_with_what_it_would_do(option: str, topic: str) -> None:
    call("topic", "create", topic, "--segments", "1", "--retention-time", "12h", "-o", option)
    shown = call("topic", "retention", topic, "-o", option)
    assert (shown["time_ms"], shown["size_bytes"]) == (12 * 3_600_000, None)
    [segment] = shown["segments"]
    assert (segment["state"], segment["held by"], segment["will be"]) == ("active", [], "")
    shown = call("topic", "retention", topic, "--size", "1GiB", "-o", option)
    assert (shown["time_ms"], shown["size_bytes"]) == (None, 1 << 30)
    result = CliRunner().invoke(main.app, ["topic", "retention", topic, "-o", option])
    assert "what was read is kept up to 1GiB" in result.output
    shown = call("topic", "retention", topic, "--size", "forever", "-o", option)
    assert (shown["time_ms"], shown["size_bytes"]) == (None, None)


def test_scaling_is_off_and_a_dry_run_says_what_it_would_do(option: str, topic: str) -> None:
    call("topic", "create", topic, "--segments", "1", "-o", option)
    assert not call("topic", "scaling", topic, "-o", option)["enabled"]
    assert call("sweep", "--scale", "-o", option)["scaling"] == []
    args = ("--on", "--rows-per-s", "7", "--min-segments", "1", "--max-segments", "4")
    shown = call("topic", "scaling", topic, *args, "-o", option)
    assert (shown["enabled"], shown["rows_per_s"], shown["skew"]) == (True, 7, 4.0)
    report = call("sweep", "--scale", "--dry-run", "-o", option)
    assert report.keys() == {"scaling"}, "nothing else is done"
    [row] = report["scaling"]
    assert (row["topic"], row["do"], row["failed"]) == (topic, "nothing", "")
    assert "it takes two looks" in row["why"]
    result = CliRunner().invoke(main.app, ["sweep", "--scale", "--dry-run", "-o", option])
    assert "nothing was" in " ".join(result.output.split())


def test_a_subscription_is_deleted(option: str, topic: str, run: Runtime) -> None:
    (segment,) = call("topic", "create", topic, "--segments", "1", "-o", option)
    run.store.claim_cursor(segment["segment"], "sub", "a-query", 1, EARLIEST)
    deleted = call("subscription", "delete", topic, "sub", "--yes", "-o", option)
    assert deleted == [{"subscription": "sub", "state": "deleted"}]
    assert call("subscription", "list", topic, "-o", option) == []


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
        "sweep",
        "doctor",
    }
    assert commands().keys() >= asked


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_command_speaks_json_takes_options_and_explains_itself(name: str) -> None:
    command = commands()[name]
    flags = {flag for parameter in command.params for flag in parameter.opts}
    assert {"--json", "--option", "-o"} <= flags
    assert command.help


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


def test_sweeps_go_on_with_metrics_until_they_are_told_to_stop(option: str, run: Runtime) -> None:
    txn = open_txn(run)
    run.coordinator.abort(txn, EndedBy.ADMIN, cause="a test")
    code = "from pulsar_txn_spark.cli.main import main; main()"
    args = ["sweep", "--every", "0.1", "--retention-ms", "0", "--metrics-port", "0", "--json"]
    with subprocess.Popen(
        [sys.executable, "-c", code, *args, "-o", option],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            assert process.stdout is not None
            announced = process.stderr.readline()
            assert announced.startswith("metrics at http://127.0.0.1:")
            first, second = (json.loads(process.stdout.readline()) for _ in range(2))
            assert (first["headers_removed"], second["headers_removed"]) == (1, 0)
            with urllib.request.urlopen(announced.split()[-1], timeout=10) as answer:
                assert b"pulsar_txn_store_up" in answer.read()
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0


def test_a_sweep_that_cannot_reach_the_store_is_tried_again_and_a_wrong_store_ends_it(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes: list[Exception | None] = [
        StoreUnavailableError("nobody there"),
        None,
        StoreRolledBackError("another store"),
    ]

    def sweep(_: Sweeper) -> SweepReport:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome
        return SweepReport()

    monkeypatch.setattr(Sweeper, "sweep", sweep)
    result = CliRunner().invoke(main.app, ["sweep", "--every", "0.1", "--json", "-o", option])
    assert "nobody there; the next try is in 0.1 s" in result.stderr
    assert len(result.stdout.splitlines()) == 1
    assert isinstance(result.exception, StoreRolledBackError)
    assert outcomes == []


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


def test_a_transaction_that_only_pulsar_knows_is_one_of_the_other_kind(
    option: str, run: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run.topics, "pulsar_knows", lambda most, least: (most, least) == (0, 77))
    result = CliRunner().invoke(main.app, ["txn", "abort", "(0,77)", "-o", option])
    assert isinstance(result.exception, TransactionDomainError)
    assert "leastSigBits=77" in str(result.exception)
    own = open_txn(run)
    assert call("txn", "abort", str(own), "-o", option)[0]["state"] == "ABORTED"


def test_tables_show_the_same_for_people(option: str, topic: str) -> None:
    call("topic", "create", topic, "-o", option)
    result = CliRunner().invoke(main.app, ["topic", "describe", topic, "-o", option])
    assert result.exit_code == 0
    assert topic in result.output
    assert "active" in result.output


# -- hints -----------------------------------------------------------------------------------------


def test_an_error_names_the_commands_own_subcommands_and_no_calls_of_python(
    option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["pulsar-txn", "topic", "describe", "nobody", "-o", option])
    with pytest.raises(SystemExit):
        main.main()
    shown = capsys.readouterr().err
    assert "'pulsar-txn topic create'" in shown
    assert "pulsar_txn_spark." not in shown


def test_each_method_of_admin_is_named_by_a_command_that_there_is() -> None:
    subcommands = {"sweep --every 30 --metrics-port PORT"}
    for group in main.app.registered_groups:
        assert group.typer_instance is not None
        for command in group.typer_instance.registered_commands:
            subcommands.add(f"{group.name} {command.name}")
    assert set(main._COMMANDS.values()) <= subcommands
    methods = {name for name in vars(pulsar_txn_spark.Admin) if not name.startswith("_")}
    assert {*methods, "serve_metrics"} == set(main._COMMANDS)
    for text in ("Admin(options).delete_topic(t)", "Admin.delete_topic"):
        assert main.in_commands(f"see pulsar_txn_spark.{text}.") == (
            "see 'pulsar-txn topic delete'."
        )


def test_the_version_is_printed() -> None:
    result = CliRunner().invoke(main.app, ["--version"])
    assert result.output == f"pulsar-txn {pulsar_txn_spark.__version__}\n"


def test_a_shell_can_complete_the_command() -> None:
    result = CliRunner().invoke(
        main.app, ["--show-completion"], env={"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    )
    assert "No such option" not in result.output


# -- screens ---------------------------------------------------------------------------------------


def screen(*args: str) -> list[str]:
    result = CliRunner().invoke(main.app, list(args), env={"COLUMNS": "80"}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    lines: list[str] = result.output.splitlines()
    assert max(map(len, lines)) <= 80
    return lines


@pytest.fixture
def busy(option: str, topic: str) -> str:
    """Give a topic of eight segments with a subscription of a client."""
    given = {"store.path": option.partition("=")[2]}
    pulsar_txn_spark.Admin(given).create_topic(topic, segments=8)
    with client.connect(given) as connected:
        producer = connected.producer(topic)
        for number in range(80):
            producer.send(f"value {number}", key=f"k{number}")
        producer.flush()
        with connected.consumer(topic, "sub") as consumer:
            messages = [consumer.receive(timeout_ms=5_000) for _ in range(30)]
            consumer.acknowledge([*messages[:5], *messages[7:9]])
    return topic


def test_a_subscription_takes_a_line_for_each_segment_at_80_columns(option: str, busy: str) -> None:
    lines = screen("subscription", "describe", busy, "sub", "-o", option)
    assert lines[0] == f"sub of {busy}: clients, generation 1"
    assert len(lines) == 1 + 4 + 8
    body = "\n".join(lines[4:])
    assert "-1:-1" not in body
    assert "start" in body
    assert "2147483647" not in body


def test_topics_are_listed_with_their_rows_and_bytes(option: str, busy: str) -> None:
    (row,) = [row for row in call("topic", "list", "-o", option) if row["topic"] == busy]
    assert (row["segments"], row["rows"]) == (8, 80)
    assert row["bytes"] > 80 * len("value 1")
    (line,) = [line for line in screen("topic", "list", "-o", option) if busy in line]
    assert "│ 80 " in line
    assert "KiB │" in line


def test_retention_takes_a_line_for_each_segment_at_80_columns(option: str, busy: str) -> None:
    lines = screen("topic", "retention", busy, "-o", option)
    assert len([line for line in lines if "│ active │" in line]) == 8


def test_a_sweep_shows_what_it_has_done_in_words(option: str, run: Runtime) -> None:
    assert screen("sweep", "-o", option) == ["swept: there was nothing to do"]
    txn = open_txn(run)
    run.coordinator.abort(txn, EndedBy.ADMIN, cause="a test")
    lines = screen("sweep", "--retention-ms", "0", "-o", option)
    assert any("headers removed │ 1" in line for line in lines)


def test_sweeps_in_a_row_print_only_what_they_have_done(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = [SweepReport(), SweepReport(aborted=1, stuck=("(0,1): away",)), SweepReport()]

    def sweep(_: Sweeper) -> SweepReport:
        if len(reports) == 1:
            signal.raise_signal(signal.SIGTERM)
        return reports.pop(0)

    monkeypatch.setattr(Sweeper, "sweep", sweep)
    (line,) = screen("sweep", "--every", "0.1", "--scale", "-o", option)
    assert line.endswith(" swept: aborted 1; stuck: (0,1): away")


def test_a_position_of_a_whole_entry_does_not_show_the_number_that_stands_for_it() -> None:
    assert repr(MessagePosition(1, 2)) == "MessagePosition(1:2)"
    assert repr(MessagePosition(1, 2, 3)) == "MessagePosition(1:2:3)"
