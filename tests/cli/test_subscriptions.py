"""``pulsar-txn subscription``: subscriptions are listed, described, reset and deleted."""

from __future__ import annotations

from typer.testing import CliRunner

from pulsar_txn_spark.cli import main
from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.position import EARLIEST, MessagePosition, Position
from pulsar_txn_spark.store.ack_ranges import AckInterval
from pulsar_txn_spark.store.records import EndedBy, SubscriptionRef
from pulsar_txn_spark.txn.pending_ack import CLIENT_OWNER, MetadataPendingAckStore
from tests.support.command_line import call, screen


def test_a_subscription_is_listed_described_and_reset(
    option: str, topic: str, run: Components
) -> None:
    (segment,) = call("topic", "create", topic, "--segments", "1", "-o", option)
    run.store.subscriptions.claim_cursor(segment["segment"], "sub", "a-query", 1, EARLIEST)
    assert call("subscription", "list", topic, "-o", option) == [{"subscription": "sub"}]
    (row,) = call("subscription", "describe", topic, "sub", "-o", option)
    assert (row["query"], row["cursor"], row["backlog messages"]) == ("a-query", "-1:-1", 0)
    (moved,) = call("subscription", "reset", topic, "sub", "--to", "latest", "--yes", "-o", option)
    (row,) = call("subscription", "describe", topic, "sub", "-o", option)
    assert (moved["segment"], moved["to"]) == (row["segment"], row["cursor"])
    assert (row["query"], row["generation"]) == ("", 2)


def test_a_subscription_is_reset_to_a_time_and_to_nothing_else_by_that_option(
    option: str, topic: str, run: Components
) -> None:
    (segment,) = call("topic", "create", topic, "--segments", "1", "-o", option)
    run.store.subscriptions.claim_cursor(segment["segment"], "sub", "a-query", 1, EARLIEST)
    for time in ("2026-01-31T08:00:00Z", "1769846400000"):
        reset = ("subscription", "reset", topic, "sub", "--to-time", time, "--yes", "-o", option)
        (moved,) = call(*reset)
        assert moved["to"] == "-1:-1"
    for wrong, why in (
        (["--to-time", "latest"], "--to-time: expected milliseconds since 1970"),
        (["--to-time", "0", "--to", "here"], "by --to, or by --to-time"),
        ([], "by --to, or by --to-time"),
    ):
        arguments = ["subscription", "reset", topic, "sub", *wrong, "--yes", "-o", option]
        refused = CliRunner().invoke(main.app, arguments, env={"COLUMNS": "200"})
        assert refused.exit_code == 2
        assert why in refused.output


def test_a_subscription_shows_what_is_acknowledged_behind_its_cursor_and_who_locks_what(
    option: str, topic: str, run: Components
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


def test_a_subscription_is_deleted(option: str, topic: str, run: Components) -> None:
    (segment,) = call("topic", "create", topic, "--segments", "1", "-o", option)
    run.store.subscriptions.claim_cursor(segment["segment"], "sub", "a-query", 1, EARLIEST)
    deleted = call("subscription", "delete", topic, "sub", "--yes", "-o", option)
    assert deleted == [{"subscription": "sub", "state": "deleted"}]
    assert call("subscription", "list", topic, "-o", option) == []


def test_a_subscription_takes_a_line_for_each_segment_at_80_columns(option: str, busy: str) -> None:
    lines = screen("subscription", "describe", busy, "sub", "-o", option)
    assert lines[0] == f"sub of {busy}: clients, generation 1"
    assert len(lines) == 1 + 4 + 8
    body = "\n".join(lines[4:])
    assert "-1:-1" not in body
    assert "start" in body
    assert "2147483647" not in body
