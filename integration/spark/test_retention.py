"""Queries and retention: what a query may still ask for stays, and what went leaves no trace."""

from __future__ import annotations

from pathlib import Path

from integration.support.spark import Lab, failure, forget_last_commit, until
from pulsar_txn_spark import Admin
from pulsar_txn_spark.position import EARLIEST
from pulsar_txn_spark.segments.topology import Segment, SegmentState
from pulsar_txn_spark.txn.sweeper import SweepReport


def keep_nothing(lab: Lab, topic: str) -> None:
    """Let rows go that no subscription needs: any sweep in the store may delete them."""
    Admin(lab.options).set_retention(topic, size="0")


def keep_everything(lab: Lab, topic: str) -> None:
    Admin(lab.options).set_retention(topic)


def sweep(lab: Lab) -> SweepReport:
    report = lab.run.sweeper(0).sweep()
    # Other tests leave topics of the other backend in the store, which these options do not reach.
    assert [why for why in report.stuck if "lives on the backend" not in why] == []
    return report


def segment(lab: Lab, topic: str, number: int) -> Segment:
    return lab.run.topics.require(lab.name(topic)).segment(str(number))


def is_deleted(lab: Lab, topic: str, number: int) -> bool:
    """Sweep, and tell whether a segment is gone. A query's own sweep may have deleted it first."""
    sweep(lab)
    return segment(lab, topic, number).state is SegmentState.DELETED


def newest_offset(checkpoint: Path) -> str:
    files = [file for file in (checkpoint / "offsets").iterdir() if file.name.isdigit()]
    return max(files, key=lambda file: int(file.name)).read_text(encoding="utf-8")


def test_a_batch_that_is_replayed_finds_its_rows_and_they_go_after_the_next_one(lab: Lab) -> None:
    source, out = lab.topic(), lab.topic()
    lab.produce(source, "a", "b")
    query = lab.sink(
        lab.source(source, subscription="s", startingOffsets="subscription"), out, lab.checkpoint()
    )
    lab.drain(query)
    keep_nothing(lab, source)
    first = lab.end(source)
    assert lab.cursor(source, "s") == first
    sweep(lab)
    ref = lab.segments(source)[0]
    assert lab.run.log.trimmed_to(ref) == EARLIEST
    forget_last_commit(lab.checkpoint())
    lab.drain(query)
    assert lab.visible(out) == ["a", "b"]
    lab.produce(source, "c")
    lab.drain(query)
    sweep(lab)
    assert lab.run.log.trimmed_to(ref) == first
    assert lab.visible(out) == ["a", "b", "c"]


def test_a_query_goes_on_when_the_segments_that_it_has_read_are_deleted(lab: Lab) -> None:
    source, out = lab.topic(), lab.topic()
    keep_nothing(lab, source)
    lab.produce(source, "a")
    lab.run.topics.changes.split(lab.name(source), "0")
    until(lambda: is_deleted(lab, source, 0))  # no subscription has asked for it yet
    keep_everything(lab, source)
    for number in (0, 1):
        lab.produce(source, f"child {number}", segment=number)
    query = lab.sink(
        lab.source(source, subscription="s", startingOffsets="subscription"), out, lab.checkpoint()
    )
    lab.drain(query)
    keep_nothing(lab, source)
    assert lab.visible(out) == ["child 0", "child 1"]

    lab.run.topics.changes.split(lab.name(source), "1")
    parent = segment(lab, source, 1)
    lab.produce(source, "grandchild")
    assert parent.descriptor in newest_offset(lab.checkpoint())
    assert not is_deleted(lab, source, 1), "Spark may read its last batch again"
    lab.drain(query)
    lab.produce(source, "more")
    lab.drain(query)
    until(lambda: is_deleted(lab, source, 1))
    for number in (0, 1):
        lab.produce(source, f"end {number}", segment=number)
    lab.drain(query)
    lab.drain(query)
    expected = ["child 0", "child 1", "end 0", "end 1", "grandchild", "more"]
    assert lab.visible(out) == expected
    assert parent.descriptor not in newest_offset(lab.checkpoint())


def test_a_query_without_a_subscription_is_told_what_was_deleted_before_it_came(lab: Lab) -> None:
    source, out = lab.topic(), lab.topic()
    lab.produce(source, "a")
    lab.drain(lab.sink(lab.source(source), out, lab.checkpoint()))
    lab.produce(source, "lost")
    lab.run.topics.changes.split(lab.name(source), "0")
    lab.produce(source, "kept")
    keep_nothing(lab, source)
    sweep(lab)
    error = failure(lambda: lab.drain(lab.sink(lab.source(source), out, lab.checkpoint())))
    assert "DataLossError" in error
    assert "deleted by retention" in error
    assert lab.visible(out) == ["a"]
