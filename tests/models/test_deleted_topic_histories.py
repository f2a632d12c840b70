"""Random lives of topics under a query that reads them by a pattern, and goes on without them.

Topics come, are written to, are deleted and come again, also amid a micro-batch: before its tasks
read, between their reading and the commit, and before a batch is repeated whose driver died. No row
is delivered twice, none of a topic that is there is missing, and nothing stops the query for good.
"""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter
from unittest import mock

import pytest

from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.errors import DataLossError, SegmentNotFoundError
from pulsar_txn_spark.segments.topic_name import TopicName
from tests.models.segment_histories import Task, record_batch
from tests.support.streaming import Killed, StreamingQuery

TOPICS = tuple(TopicName.parse(f"flights-{name}") for name in "abc")
HISTORIES = int(os.environ.get("HISTORIES", "12"))
STEPS = 40


class History:
    def __init__(self, run: Components, path: str, seed: int) -> None:
        self.run, self.random = run, random.Random(seed)
        # As a cluster takes them, every other time.
        run.store.scripts._single_steps = seed % 2 == 1
        self.rows: dict[TopicName, set[int]] = {}  # of the topics that are there
        self.number = 0
        options = {
            "topicsPattern": "public/default/flights-.*",
            "startingOffsets": "earliest",
            "failOnDataLoss": "false",
        }
        if seed % 4 < 3:
            options["subscription"] = "s"
        if self.random.random() < 0.5:
            options["maxPartitions"] = self.random.choice("12")
        if self.random.random() < 0.3:
            options["maxMessagesPerTrigger"] = "2"
        self.query = StreamingQuery(run, path, "q", **options)

    def write(self) -> None:
        task = Task(self.run, f"task-{self.number}")
        for topic in self.random.sample(TOPICS, self.random.randint(1, 2)):
            if topic not in self.rows:
                self.run.topics.create(topic, self.random.randint(1, 2))
                self.rows[topic] = set()
            values = range(self.number, self.number + self.random.randint(1, 4))
            self.number = values.stop
            task.writers.append(topic, record_batch([(f"key-{v}", v) for v in values]))
            self.rows[topic] |= set(values)
        task.commit(task.writers.finish())

    def delete(self) -> None:
        if not self.rows:
            return
        topic = self.random.choice(sorted(self.rows, key=str))
        self.run.topics.delete(topic)
        del self.rows[topic]
        if self.random.random() < 0.3:
            self.run.topics.create(topic, 1)
            self.rows[topic] = set()

    def read(self) -> None:
        dies = self.random.choice(["", "", "planned", "read", "decided"])
        amid = self.random.choice(["", "", "_task", "_sink"])
        try:
            if amid:
                self.read_and_delete(amid, dies)
            else:
                self.query.trigger(dies)
        except Killed:
            pass
        except (DataLossError, SegmentNotFoundError):
            # A task has read what was not there any more: the batch is planned anew.
            assert amid == "_task"
            self.query.restart()

    def read_and_delete(self, amid: str, dies: str) -> None:
        call, first = getattr(self.query, amid), itertools.count()

        def late(*args: object) -> object:
            if next(first) == 0:
                self.delete()
            return call(*args)

        with mock.patch.object(self.query, amid, late):
            self.query.trigger(dies)

    def collect(self) -> None:
        assert self.run.sweeper(0).sweep().stuck == ()

    def play(self) -> None:
        turns = [self.write] * 3 + [self.read] * 5 + [self.delete, self.collect]
        for _ in range(STEPS):
            self.random.choice(turns)()
        self.query.run_all()
        delivered = Counter(self.query.values)
        assert [value for value, count in delivered.items() if count > 1] == []
        missing = {value for own in self.rows.values() for value in own} - set(delivered)
        assert missing == set()
        assert len(self.query.output) == self.query.committed
        self.collect()


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_a_query_goes_on_whatever_topics_are_deleted_under_it(
    run: Components, redis_path: str, seed: int
) -> None:
    History(run, redis_path, seed).play()
