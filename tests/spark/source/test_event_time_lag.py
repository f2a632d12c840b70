"""A source that catches up advances evenly, so that Spark's watermark drops no rows as late."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import hash_of
from tests.models.segment_histories import Task, record_batch
from tests.support.streaming import StreamingQuery

TOPIC = TopicName.parse("in")
HOURS = 24
KEYS = [f"k{number}" for number in range(16)]
DELAY = 2  # hours that a watermark lets rows be late


def write_hour(run: Components, hour: int) -> None:
    """Write the hour itself, once for each key."""
    task = Task(run, f"hour {hour}")
    task.writers.append(TOPIC, record_batch([(key, hour) for key in KEYS]))
    task.commit(task.writers.finish())


def split_first(run: Components) -> None:
    run.topics.changes.split(TOPIC, run.topics.require(TOPIC).active[0].descriptor)


def merge_first(run: Components) -> None:
    first, second, *_ = run.topics.require(TOPIC).active
    run.topics.changes.merge(TOPIC, [first.descriptor, second.descriptor])


@pytest.mark.parametrize(
    "changes",
    [
        {2: split_first},
        {2: split_first, 5: split_first, 9: split_first},
        {2: merge_first},
        {2: split_first, 7: merge_first},
    ],
    ids=["split", "splits", "merge", "split and merge"],
)
@pytest.mark.parametrize("option", ["maxMessagesPerTrigger", "maxBytesPerTrigger"])
def test_no_row_is_late_where_segments_have_changed_within_a_backlog(
    run: Components, redis_path: str, option: str, changes: dict[int, Callable[[Components], None]]
) -> None:
    run.topics.create(TOPIC, 3)
    for hour in range(HOURS):
        if hour in changes:
            changes[hour](run)
        write_hour(run, hour)
    limit = {"maxMessagesPerTrigger": "32", "maxBytesPerTrigger": "1500"}[option]
    query = StreamingQuery(
        run, redis_path, "q", topic=str(TOPIC), startingOffsets="earliest", **{option: limit}
    )
    query.run_all()
    assert sorted(query.values) == sorted(list(range(HOURS)) * len(KEYS))
    watermark = late = 0
    for batch in query.output:
        hours = [value for _, value in batch]
        late += sum(hour < watermark for hour in hours)
        watermark = max(watermark, *(hour - DELAY for hour in hours))
    assert len(query.output) > HOURS // 3, "the limit makes many micro-batches"
    assert late == 0


# -- what cannot be read yet ---------------------------------------------------------------------


class Backlog:
    """Rows in one segment, and more of them behind another one that was split."""

    def __init__(self, run: Components, path: str) -> None:
        self.run, self.begun = run, 0
        run.topics.create(TOPIC, 2)
        self.query = StreamingQuery(
            run,
            path,
            "q",
            topic=str(TOPIC),
            startingOffsets="earliest",
            maxMessagesPerTrigger="20",
        )
        split = run.topics.require(TOPIC).active[0]
        keys = [f"k{number}" for number in range(64)]
        self.split = next(key for key in keys if hash_of(key.encode()) <= split.hash_end)
        self.other = next(key for key in keys if hash_of(key.encode()) > split.hash_end)
        self.write(self.other, 100)

    def write(self, key: str, count: int) -> None:
        for number in range(count):
            task = self.begin(key, number)
            task.commit(task.writers.finish())

    def begin(self, key: str, number: int) -> Task:
        self.begun += 1
        task = Task(self.run, f"task {self.begun}")
        task.writers.append(TOPIC, record_batch([(key, number)]))
        return task

    def grow_behind_split(self) -> None:
        split_first(self.run)
        self.write(self.split, 400)


def test_what_waits_behind_an_open_transaction_takes_no_share_of_a_limit(
    run: Components, redis_path: str
) -> None:
    backlog = Backlog(run, redis_path)
    still_open = backlog.begin(backlog.split, 0)
    still_open.writers.finish()
    backlog.grow_behind_split()
    for _ in range(6):
        backlog.query.trigger()
    assert backlog.query.values == list(range(100))
    still_open.abort()
    backlog.query.run_all()
    assert len(backlog.query.values) == 500


def test_what_came_after_the_start_of_available_now_takes_no_share_of_a_limit(
    run: Components, redis_path: str
) -> None:
    backlog = Backlog(run, redis_path)
    backlog.query.reader.prepareForTriggerAvailableNow()
    backlog.write(backlog.split, 1)
    backlog.grow_behind_split()
    for _ in range(6):
        backlog.query.trigger()
    assert backlog.query.values == list(range(100))
