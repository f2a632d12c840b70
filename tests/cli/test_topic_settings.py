"""``pulsar-txn topic``: properties, retention and scaling are set and shown."""

from __future__ import annotations

from typer.testing import CliRunner

from pulsar_txn_spark.cli import main
from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import Topology
from tests.support.command_line import call, screen


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


def test_retention_of_a_topic_that_is_being_adopted_is_set_and_shows_no_segment_yet(
    run: Components, option: str
) -> None:
    topic = TopicName.parse("topic://public/default/adopted")
    logs = ["persistent://public/default/old-partition-0"]
    run.topics.lifecycle.begin(lambda: Topology.plan_adoption(topic, logs, 2, "embedded"))
    command = ["topic", "retention", str(topic), "--size", "1GiB", "-o", option]
    result = CliRunner().invoke(main.app, command)
    assert result.exit_code == 0
    assert "needed from" in " ".join(result.output.split())


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


def test_retention_takes_a_line_for_each_segment_at_80_columns(option: str, busy: str) -> None:
    lines = screen("topic", "retention", busy, "-o", option)
    assert len([line for line in lines if "│ active │" in line]) == 8
