"""Segments that change, on a real broker: random histories, and topics that are terminated."""

from __future__ import annotations

import itertools
import os

import pytest
from hypothesis import given, settings

from integration.support.admin_rest import AdminRest
from integration.support.quiet_histories import check_quiet_histories
from pulsar_txn_spark.engine.components import Components, open_components
from pulsar_txn_spark.engine.topic_writers import Written
from pulsar_txn_spark.errors import SegmentSealedError
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.segments.scaling import SCALING_PROPERTY, Decision, ScalingPolicy
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import Segment, hash_of
from pulsar_txn_spark.testing.pulsar_server import Broker
from pulsar_txn_spark.txn.batch import new_nonce
from tests.models.segment_histories import (
    DRAWN,
    History,
    Move,
    Rows,
    Task,
    moves,
    record_batch,
)

_numbers = itertools.count()


@pytest.fixture(params=["client", "wire"], ids=["pulsar-client", "pulsar-wire"])
def options(
    request: pytest.FixtureRequest, pulsar: Broker, embedded: dict[str, str]
) -> dict[str, str]:
    return {
        **embedded,
        "service.url": pulsar.service_url,
        "admin.url": pulsar.admin_url,
        "transport": request.param,
    }


@pytest.fixture
def run(options: dict[str, str]) -> Components:
    return open_components(Options(options, Use.CONNECT))


def new_topic(run: Components, segments: int) -> TopicName:
    topic = TopicName.parse(f"changing-{os.getpid()}-{next(_numbers)}")
    run.topics.create(topic, segments)
    return topic


def write(task: Task, topic: TopicName, rows: Rows) -> list[Written]:
    task.writers.append(topic, record_batch(rows))
    return task.writers.finish()


def test_in_a_few_histories_each_row_is_read_once_and_each_key_in_order(
    run: Components, options: dict[str, str]
) -> None:
    # A child is a new topic, which takes the broker a second: few histories, and short ones.
    @settings(DRAWN, max_examples=3)
    @given(made=moves(10, 16))
    def check(made: list[Move]) -> None:
        History(run, options, new_topic(run, 2)).play(made)

    check()


def test_in_quiet_histories_readers_go_on_where_others_have_waited(
    pulsar: Broker, embedded: dict[str, str], api: AdminRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**embedded, "service.url": pulsar.service_url, "admin.url": pulsar.admin_url}
    check_quiet_histories(options, lambda run: new_topic(run, 2), api.unload, monkeypatch)


def test_a_topic_that_is_terminated_amid_a_batch_gets_a_successor(
    run: Components, options: dict[str, str]
) -> None:
    topic = new_topic(run, 1)
    [parent] = run.topics.require(topic).active
    rows = [(f"key-{n % 7}", n) for n in range(4000)]
    task = Task(run, new_nonce())
    task.writers.append(topic, record_batch(rows[:2000]))
    run.log.seal(parent.ref)  # past this package: nothing is planned
    with pytest.raises(SegmentSealedError, match="nobody has planned a successor"):
        write(task, topic, rows[2000:])
    task.abort()
    run.topics.changes.split(topic, parent.descriptor)
    history = History(run, options, topic)
    task = Task(run, new_nonce())
    task.commit(write(task, topic, rows))
    for key, value in rows:
        history.committed[key].append(value)
    history.finish()
    history.close()


@pytest.mark.long
def test_a_topic_is_scaled_by_the_brokers_counters_also_when_they_begin_anew(
    run: Components, api: AdminRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(run, 2)
    policy = ScalingPolicy(
        enabled=True, rows_per_s=100, hot_for_ms=0, split_pause_ms=0, merge_pause_ms=0
    )
    run.store.topics.change_property(str(topic), SCALING_PROPERTY, policy.serialize())
    clock_ms = [1_000_000]
    monkeypatch.setattr(run.store.transactions, "lowest_open", lambda _tc: (1, clock_ms[0]))

    def after_10_s(*, dry_run: bool = False) -> Decision:
        clock_ms[0] += 10_000
        [scaled] = [one for one in run.scaler().sweep(dry_run=dry_run) if one.topic == str(topic)]
        assert scaled.failed == ""
        return scaled.decision

    def load(segment: Segment, rows: int) -> None:
        """Write outside of transactions to one segment, so that the broker counts rows of it."""
        writer = run.log.writer(segment.ref, new_nonce())
        keys = [key for key in (f"key-{n}" for n in range(500)) if owns(segment, key)]
        writer.append(record_batch([(keys[n % len(keys)], n) for n in range(rows)]))
        assert writer.flush().messages == rows
        writer.close()

    def active() -> list[Segment]:
        return list(run.topics.require(topic).active)

    assert after_10_s().what == "nothing"  # the first look
    hot, quiet = active()
    load(hot, 3000)
    load(quiet, 100)
    dry = after_10_s(dry_run=True)
    assert (dry.what, dry.segments) == ("split", (hot.descriptor,))
    assert active() == [hot, quiet]
    load(hot, 3000)
    done = after_10_s()
    assert (done.what, done.segments) == ("split", (hot.descriptor,))
    *children, still = active()
    assert still == quiet
    assert [parent for child in children for parent in child.parents] == [hot.ref.id] * 2
    # A load that is no reason for anything, until the counters have grown.
    assert after_10_s().what == "nothing"
    for _ in range(4):
        for segment in active():
            load(segment, 400)
        assert after_10_s().what == "nothing"
    # The broker counts from when it has loaded the topic.
    for segment in active():
        api.unload(segment.ref.log_name)
    assert after_10_s().what == "nothing"
    for segment in active():
        load(segment, 400)
    assert after_10_s().what == "nothing"
    # And what is hot then is found out by what came in since.
    for segment in active():
        api.unload(segment.ref.log_name)
    load(quiet, 3000)
    assert after_10_s().segments == (quiet.descriptor,)
    run.topics.require(topic).require_tiling()


def owns(segment: Segment, key: str) -> bool:
    return segment.hash_start <= hash_of(key.encode()) <= segment.hash_end
