"""Segments that change, on a real broker: random histories, and topics that are terminated."""

from __future__ import annotations

import itertools
import os

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from pulsar_txn_spark.errors import SegmentSealedError
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.pulsar_server import Broker
from pulsar_txn_spark.runtime import Runtime, runtime
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.topic_writer import Written
from pulsar_txn_spark.txn.batch import new_nonce
from tests.segment_histories import History, Move, Rows, Task, moves, record_batch

_numbers = itertools.count()


@pytest.fixture(params=["client", "wire"], ids=["pulsar-client", "pulsar-wire"])
def run(request: pytest.FixtureRequest, pulsar: Broker, embedded: dict[str, str]) -> Runtime:
    options = {
        **embedded,
        "service.url": pulsar.service_url,
        "admin.url": pulsar.admin_url,
        "transport": request.param,
    }
    return runtime(Options(options, Use.CONNECT))


def new_topic(run: Runtime, segments: int) -> TopicName:
    topic = TopicName.parse(f"changing-{os.getpid()}-{next(_numbers)}")
    run.topics.create(topic, segments)
    return topic


def write(task: Task, topic: TopicName, rows: Rows) -> list[Written]:
    task.writers.append(topic, record_batch(rows))
    return task.writers.finish()


def test_in_a_few_histories_each_row_is_read_once_and_each_key_in_order(run: Runtime) -> None:
    # A child is a new topic, which takes the broker a second: few histories, and short ones. What
    # fails is not made smaller, which would take minutes.
    @settings(
        max_examples=3,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(made=moves(10, 16))
    def check(made: list[Move]) -> None:
        history = History(run, new_topic(run, 2))
        for move in made:
            history.go(move)
        history.finish()

    check()


def test_a_topic_that_is_terminated_amid_a_batch_gets_a_successor(run: Runtime) -> None:
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
    history = History(run, topic)
    task = Task(run, new_nonce())
    task.commit(write(task, topic, rows))
    for key, value in rows:
        history.committed[key].append(value)
    history.finish()
