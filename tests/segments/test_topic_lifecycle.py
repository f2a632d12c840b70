"""A topic is created, used and deleted, and nothing of one life reaches into the next (INV-12)."""

from __future__ import annotations

from typing import Any

import pytest
import redis

import pulsar_txn_spark
from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.engine.topic_writers import TopicWriters, Written
from pulsar_txn_spark.errors import (
    CommitStateUnknownError,
    PulsarTxnError,
    SegmentLogUnavailableError,
    SegmentNotFoundError,
    TopicExistsError,
    TopicNotFoundError,
    TopologyConflictError,
    TransactionAbortedError,
)
from pulsar_txn_spark.position import EARLIEST
from pulsar_txn_spark.segments.catalog import Topics
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.retention import Retention
from pulsar_txn_spark.segments.scaler import Scaler
from pulsar_txn_spark.segments.scaling import Decision, ScalingPolicy
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import Topology
from pulsar_txn_spark.spark.source.topics import check_source
from pulsar_txn_spark.store.records import Code, CursorStart, EndedBy, TxnId, TxnState
from pulsar_txn_spark.txn.coordinator import TransactionCoordinator
from tests.models.segment_histories import Reader, Task, record_batch

TOPIC = TopicName.parse("topic://public/default/short-lived")
NAME = str(TOPIC)
OTHER_TOPIC = TopicName.parse("topic://public/default/other")
LATE = CursorStart(EARLIEST)


@pytest.fixture
def run(run: Components) -> Components:
    run.topics.changes.patience_s = 0.0
    return run


def write(run: Components, *values: int) -> Task:
    """Write rows in a transaction that stays open."""
    task = Task(run, f"nonce-{values[0]}")
    task.writers.append(TOPIC, record_batch([(f"key-{n}", n) for n in values]))
    task.writers.finish()
    return task


def commit(run: Components, *values: int) -> None:
    task = write(run, *values)
    task.commit(task.writers.finish())


def visible(run: Components) -> list[int]:
    """Return what a new reader finds in the topic that is there now."""
    reader = Reader(run, TOPIC)
    reader.read_all()
    return sorted(value for values in reader.found.values() for value in values)


def matching(run: Components, redis_path: str) -> list[str]:
    """Return the topics of a query by a pattern; it has to load."""
    check_source({"store.path": redis_path, "topicsPattern": ".*short-lived.*"})
    return pulsar_txn_spark.Admin({"store.path": redis_path}).list_topics()


def keys(client: redis.Redis, pattern: str) -> list[str]:
    found: Any = client.keys(pattern)
    return sorted(key.decode() for key in found)


class Killed(BaseException):
    """Stands for SIGKILL."""


class Mortal:
    """Passes calls on; the process dies before or after the n-th one that changes something.

    What the last one was is in ``last``.
    """

    CHANGES = frozenset(
        {
            *("swap", "add_topic", "remove_topic", "prepare", "fence", "purge"),
            *("create", "delete", "seal", "adopt"),
        }
    )

    def __init__(self, inner: object, plan: list[int], *, after: bool = False) -> None:
        self._inner, self._plan, self._after = inner, plan, after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name in ("meta", "topics", "segments"):
            return Mortal(found, self._plan, after=self._after)
        if name not in self.CHANGES:
            return found

        def call(*args: Any, **named: Any) -> Any:
            self._plan[0] -= 1
            if self._plan[0] == 0 and not self._after:
                raise Killed
            result = found(*args, **named)
            if self._plan[0] == 0:
                raise Killed
            return result

        return call


def mortal(run: Components, nth: int, *, after: bool) -> Topics:
    """Return the topics as a process sees them that dies at its n-th change."""

    def end(txn: TxnId, cause: str) -> None:
        run.coordinator.abort(txn, EndedBy.ADMIN, cause=cause)

    plan = [nth]
    store: Any = Mortal(run.store, plan, after=after)
    log: Any = Mortal(run.log, plan, after=after)
    return Topics(store, log, None, end)


def once(monkeypatch: pytest.MonkeyPatch, holder: object, name: str, first: Any) -> None:
    """Let something happen just before the next call of a method."""
    real, armed = getattr(holder, name), [True]

    def call(*args: Any, **named: Any) -> Any:
        if armed and armed.pop():
            first()
        return real(*args, **named)

    monkeypatch.setattr(holder, name, call)


# -- a topic that is half deleted (finding 1) ------------------------------------------------------


@pytest.mark.parametrize("exist_ok", [False, True])
def test_a_half_deleted_topic_never_comes_back_under_its_old_segment_ids(
    run: Components, monkeypatch: pytest.MonkeyPatch, exist_ok: bool
) -> None:
    before = run.topics.create(TOPIC, 2)
    commit(run, 1, 2, 3, 4)
    abandoned = write(run, 5, 6, 7, 8)
    with monkeypatch.context() as patch:
        real = run.log.delete
        deleted: list[object] = []

        def delete(segment: Any) -> None:
            real(segment)
            deleted.append(segment)
            if len(deleted) == 2:
                raise Killed

        patch.setattr(run.log, "delete", delete)
        with pytest.raises(Killed):
            run.topics.delete(TOPIC)
    after = run.topics.create(TOPIC, 2, exist_ok=exist_ok)
    assert not {s.ref.id for s in before.segments} & {s.ref.id for s in after.segments}
    task = write(run, 9, 10, 11, 12)
    assert visible(run) == [], "the transaction is open"
    task.commit(task.writers.finish())
    assert visible(run) == [9, 10, 11, 12]
    header = run.store.transactions.read(abandoned.txn)
    assert header is not None
    assert header.state is TxnState.ABORTED


def test_a_topic_is_out_of_use_before_anything_of_it_goes(
    run: Components, monkeypatch: pytest.MonkeyPatch, redis_path: str
) -> None:
    topology = run.topics.create(TOPIC, 1)
    commit(run, 1)
    asked: list[str] = []

    def append_a_row() -> None:
        TopicWriters(run, lambda _: "w", None, 0).append(TOPIC, record_batch([("k", 1)]))

    def look() -> None:
        for ask in (
            lambda: run.topics.require(TOPIC),
            append_a_row,
            lambda: run.topics.changes.split(TOPIC, "0"),
            lambda: run.topics.changes.finish(
                run.topics.changes.await_or_finish(
                    topology.with_planned(topology.active, [0x8000], "late")
                )
            ),
            lambda: pulsar_txn_spark.Admin({"store.path": redis_path}).set_retention(
                NAME, size="0B"
            ),
        ):
            with pytest.raises(TopicNotFoundError, match="is being deleted"):
                ask()
            asked.append("refused")
        assert run.topics.names() == []
        assert run.store.topics.lease(NAME, "me", 1000).code is Code.ABSENT

    once(monkeypatch, run.log, "delete", look)
    run.topics.delete(TOPIC)
    assert len(asked) == 5
    with pytest.raises(TopicNotFoundError, match="there is none yet"):
        run.topics.require(TOPIC)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("by", ["delete", "create", "sweep"])
def test_a_deletion_that_died_at_any_step_is_finished_by_whoever_comes_by(
    run: Components, redis_client: redis.Redis, redis_path: str, after: bool, by: str
) -> None:
    passages = 0
    for nth in range(1, 30):
        before = run.topics.create(TOPIC, 2)
        commit(run, 4 * nth, 4 * nth + 1)
        run.topics.changes.split(TOPIC, "0")
        try:
            mortal(run, nth, after=after).delete(TOPIC)
        except Killed:
            passages += 1
        else:
            assert run.topics.lifecycle.read(TOPIC) is None
            break
        begun = nth > 1 or after
        assert (run.topics.find(TOPIC) is None) is begun, "out of use, or not begun"
        if by == "sweep" and begun:
            assert run.sweeper(0).sweep().stuck == ()
        elif by == "create" and begun:
            fresh = run.topics.create(TOPIC, 1)
            assert fresh.instance_id != before.instance_id
            assert visible(run) == []
            assert matching(run, redis_path) == [NAME]
            run.topics.delete(TOPIC)
        elif run.topics.lifecycle.read(TOPIC) is not None:
            run.topics.delete(TOPIC)
        assert run.topics.lifecycle.read(TOPIC) is None
        assert run.topics.names() == []
        assert run.store.meta.list_topics() == []
        left = {key.rpartition("}:")[2] for key in keys(redis_client, "{seg:*")}
        assert left == {"birth"}
    assert passages >= 10


# -- a topic that is half created (findings 12 and 31) ---------------------------------------------


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("then", ["as before", "other layout", "delete"])
def test_a_creation_that_died_at_any_step_blocks_nothing(
    run: Components, redis_client: redis.Redis, redis_path: str, after: bool, then: str
) -> None:
    passages = 0
    for nth in range(1, 30):
        try:
            mortal(run, nth, after=after).create(TOPIC, 2)
        except Killed:
            passages += 1
        else:
            break
        half = run.topics.lifecycle.read(TOPIC)
        if half is not None and run.topics.find(TOPIC) is None:
            with pytest.raises(TopicNotFoundError, match="Create it again"):
                run.topics.require(TOPIC)
            assert matching(run, redis_path) == []
        elif half is not None:
            assert matching(run, redis_path) == [NAME], "what is live is listed"
        assert run.sweeper(0).sweep().stuck == ()
        if then == "delete" or run.topics.find(TOPIC) is not None:
            if half is not None:
                run.topics.delete(TOPIC)
        else:
            made = run.topics.create(TOPIC, 2 if then == "as before" else 3)
            assert len(made.active) == (2 if then == "as before" else 3)
            commit(run, 4 * nth, 4 * nth + 1)
            assert visible(run) == [4 * nth, 4 * nth + 1]
            assert matching(run, redis_path) == [NAME]
            run.topics.delete(TOPIC)
        assert run.store.meta.list_topics() == []
        left = {key.rpartition("}:")[2] for key in keys(redis_client, "{seg:*")}
        assert left <= {"birth"}
    assert passages >= 6


def test_of_two_that_create_a_topic_at_once_one_has_created_it(
    run: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[Topology] = []
    once(monkeypatch, run.log, "create", lambda: results.append(run.topics.create(TOPIC, 2)))
    with pytest.raises(TopicExistsError):
        run.topics.create(TOPIC, 2)
    assert run.topics.require(TOPIC).instance_id == results[0].instance_id
    commit(run, 1, 2)
    assert visible(run) == [1, 2]


def test_a_creation_whose_topic_is_deleted_meanwhile_leaves_nothing(
    run: Components, monkeypatch: pytest.MonkeyPatch, redis_client: redis.Redis
) -> None:
    once(monkeypatch, run.log, "create", lambda: run.topics.delete(TOPIC))
    with pytest.raises(TopologyConflictError, match="deleted by somebody else"):
        run.topics.create(TOPIC, 2)
    assert not [key for key in keys(redis_client, "{seg:*") if not key.endswith(":birth")]
    assert run.topics.names() == []
    assert run.store.meta.list_topics() == []


def test_a_failed_creation_leaves_nothing_that_blocks_the_next_one(
    run: Components, monkeypatch: pytest.MonkeyPatch, redis_path: str
) -> None:
    away = SegmentLogUnavailableError("the admin API does not answer")

    def fail(*_: object) -> None:
        raise away

    with monkeypatch.context() as patch:
        patch.setattr(type(run.log), "check_access", fail)
        patch.setattr(type(run.log), "create", fail)
        patch.setattr(type(run.log), "delete", fail)
        with pytest.raises(SegmentLogUnavailableError):
            run.topics.create(TOPIC, 2)
        # Nothing is there, so that nothing is needed to delete it, nor to say so.
        with pytest.raises(TopicNotFoundError, match="does not exist"):
            run.topics.delete(TOPIC)
    with monkeypatch.context() as patch:  # now it goes away in the middle
        patch.setattr(type(run.log), "create", fail)
        with pytest.raises(SegmentLogUnavailableError):
            run.topics.create(TOPIC, 2)
    assert matching(run, redis_path) == []
    run.topics.create(TOPIC, 2)  # not even exist_ok
    commit(run, 1, 2)
    assert visible(run) == [1, 2]


def test_a_deletion_beside_a_creation_leaves_no_ghost_in_the_catalogue(
    run: Components, monkeypatch: pytest.MonkeyPatch, redis_path: str
) -> None:
    run.topics.create(TOPIC, 1)

    def create_again() -> None:
        with monkeypatch.context():
            run.topics.create(TOPIC, 1, exist_ok=True)

    once(monkeypatch, run.log, "delete", create_again)
    run.topics.delete(TOPIC)
    there = [NAME] if run.topics.find(TOPIC) is not None else []
    assert matching(run, redis_path) == there


@pytest.mark.parametrize("call", ["meta.topic_stamp", "meta.remove_topic", "topics.delete"])
def test_a_slow_deletion_leaves_the_topic_listed_that_was_created_meanwhile(
    run: Components, monkeypatch: pytest.MonkeyPatch, redis_path: str, call: str
) -> None:
    run.topics.create(TOPIC, 1)

    def others() -> None:
        run.topics.delete(TOPIC)
        run.topics.create(TOPIC, 1)

    part, name = call.split(".")
    once(monkeypatch, getattr(run.store, part), name, others)
    run.topics.delete(TOPIC)
    run.topics.require(TOPIC)
    assert matching(run, redis_path) == [NAME]


def test_a_name_that_is_listed_without_a_topic_disturbs_nobody_and_goes(
    run: Components, redis_path: str
) -> None:
    run.store.meta.add_topic(NAME)  # a request of a creator that was delayed in the network
    check_source({"store.path": redis_path, "topicsPattern": ".*short-lived.*"})
    assert run.store.meta.list_topics() == []
    run.store.meta.add_topic(NAME)
    assert run.topics.names() == []
    assert run.store.meta.list_topics() == []
    run.store.meta.add_topic(NAME)
    run.topics.delete(TOPIC)
    assert run.store.meta.list_topics() == []
    run.store.meta.add_topic(NAME)
    assert run.sweeper(0).sweep().stuck == ()
    assert run.store.meta.list_topics() == []


def test_a_name_is_not_cleaned_away_from_a_topic_that_is_created_at_that_moment(
    run: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.store.meta.add_topic(NAME)
    once(monkeypatch, run.store.meta, "remove_topic", lambda: run.topics.create(TOPIC, 1))
    run.topics.names()
    assert run.topics.names() == [NAME]


# -- what was planned on one life (finding 2) ------------------------------------------------------


def replace_topic(run: Components, segments: int = 1) -> Topology:
    """Delete the topic and create it again, as somebody else does in between; write a row."""
    run.topics.delete(TOPIC)
    created = run.topics.create(TOPIC, segments)
    commit(run, 1000)
    return created


@pytest.mark.parametrize("nth", [1, 2])
def test_a_change_planned_on_a_deleted_topic_does_not_touch_the_next_one(
    run: Components, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    run.topics.create(TOPIC, 1)
    commit(run, 1)
    real, calls = run.store.topics.swap, []

    def swap(*args: Any, **named: Any) -> Any:
        calls.append(args)
        if len(calls) == nth:  # the plan, or the activation
            replace_topic(run)
        return real(*args, **named)

    monkeypatch.setattr(run.store.topics, "swap", swap)
    with pytest.raises((TopicNotFoundError, AssertionError)) as raised:
        run.topics.changes.split(TOPIC, "0")
    assert raised.type is TopicNotFoundError
    now = run.topics.require(TOPIC)
    assert [str(s.state) for s in now.segments] == ["active"]
    assert visible(run) == [1000]


def test_a_slow_deletion_does_not_delete_the_topic_that_was_created_meanwhile(
    run: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.topics.create(TOPIC, 1)
    once(monkeypatch, run.store.topics, "delete", lambda: replace_topic(run))
    run.topics.delete(TOPIC)
    assert visible(run) == [1000]


def test_the_version_of_a_topology_never_comes_twice(run: Components) -> None:
    seen: set[int] = set()
    for _ in range(3):
        created = run.topics.require(run.topics.create(TOPIC, 1).topic)
        split = run.topics.changes.split(TOPIC, created.active[0].ref.id)
        assert not seen & {created.version, split.version}
        seen |= {created.version, split.version}
        run.topics.delete(TOPIC)


def test_a_slow_change_makes_no_log_of_a_topic_that_was_deleted(
    run: Components, monkeypatch: pytest.MonkeyPatch, redis_client: redis.Redis
) -> None:
    topology = run.topics.create(TOPIC, 1)
    planned = topology.with_planned(topology.active, [0x8000], "slow")
    assert run.store.topics.swap(NAME, topology.version, planned.serialize()) is not None
    once(monkeypatch, run.log, "create", lambda: run.topics.delete(TOPIC))
    with pytest.raises(TopicNotFoundError, match="was deleted while a change"):
        run.topics.changes.finish(run.topics.require(TOPIC))
    assert not [key for key in keys(redis_client, "{seg:*") if ":log" in key]


def test_a_log_is_never_made_anew_under_a_used_id(run: Components) -> None:
    [segment] = run.topics.create(TOPIC, 1).segments
    run.topics.delete(TOPIC)
    with pytest.raises(SegmentNotFoundError, match="not made anew"):
        run.log.create(segment.ref)


def test_a_slow_adoption_gives_back_what_it_took_for_a_deleted_topic(
    run: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    laid = Topology.plan_adoption(TOPIC, ["persistent://public/default/old"], 1, "embedded")
    run.log.create(laid.segments[0].ref)
    given_back: list[str] = []
    real = run.log.delete

    def delete(ref: SegmentRef) -> None:
        given_back.append(ref.id)
        real(ref)

    monkeypatch.setattr(run.log, "delete", delete)
    run.store.topics.swap(NAME, 0, laid.serialize(), instance_id=laid.instance_id)
    once(monkeypatch, run.log, "seal", lambda: replace_topic(run))
    with pytest.raises(TopicNotFoundError, match="was deleted while a change"):
        run.topics.changes.finish(run.topics.require(TOPIC))
    assert given_back.count(laid.segments[0].ref.id) == 2, "by the deletion, and by the late one"
    assert visible(run) == [1000]


def test_a_property_that_was_meant_for_a_deleted_topic_is_not_set_on_the_next_one(
    run: Components, monkeypatch: pytest.MonkeyPatch, redis_path: str
) -> None:
    run.topics.create(TOPIC, 1)
    once(monkeypatch, run.store.topics, "change_property", lambda: replace_topic(run))
    with pytest.raises(TopicNotFoundError, match="its property '__retention' was to be changed"):
        pulsar_txn_spark.Admin({"store.path": redis_path}).set_retention(NAME, size="0B")
    assert run.store.topics.read_properties(NAME) == {}


def test_the_retention_of_a_deleted_topic_does_not_trim_the_next_one(
    run: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.topics.create(TOPIC, 1)
    commit(run, 1)
    run.store.topics.change_property(NAME, "__retention", Retention(size_bytes=0).serialize())
    once(monkeypatch, run.store.topics, "lease", lambda: replace_topic(run))
    report = run.retention().sweep(lambda _: None)
    assert (report.trimmed, report.deleted, report.failed) == ([], [], {})
    assert visible(run) == [1000]
    # And once it is leased.
    run.store.topics.change_property(NAME, "__retention", Retention(size_bytes=0).serialize())
    real, calls = run.store.topics.read, []

    def read(topic: str) -> Any:
        calls.append(topic)
        if len(calls) == 2:
            with monkeypatch.context() as patch:
                patch.setattr(run.store.topics, "read", real)
                run.topics.delete(TOPIC)
                run.topics.create(TOPIC, 1)
                commit(run, 2000)
        return real(topic)

    monkeypatch.setattr(run.store.topics, "read", read)
    run.retention().sweep(lambda _: None)
    monkeypatch.setattr(run.store.topics, "read", real)
    assert visible(run) == [2000]


def test_a_scaling_decision_on_a_deleted_topic_does_not_split_the_next_one(
    run: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.topics.create(TOPIC, 1)
    run.store.topics.change_property(NAME, "__scaling", ScalingPolicy().serialize())
    scaler = Scaler(run.store, run.log, run.topics)
    topology = run.topics.require(TOPIC)
    run.topics.delete(TOPIC)
    run.topics.create(TOPIC, 1)
    with pytest.raises(PulsarTxnError, match="has no segment"):
        scaler._apply(topology, Decision(("0000-ffff-0",), "hot"))
    assert len(run.topics.require(TOPIC).segments) == 1


# -- transactions (finding 5) ----------------------------------------------------------------------


def test_a_transaction_does_not_go_on_in_another_topic_of_the_same_name(run: Components) -> None:
    run.topics.create(TOPIC, 1)
    task = Task(run, "torn")
    task.writers.append(TOPIC, record_batch([("a", 1), ("b", 2)]))
    task.writers.finish()
    run.topics.delete(TOPIC)
    run.topics.create(TOPIC, 1)

    def go_on() -> None:
        task.writers.append(TOPIC, record_batch([("a", 3), ("b", 4)]))
        task.commit(task.writers.finish())

    with pytest.raises((TopicNotFoundError, TransactionAbortedError)):
        go_on()
    header = run.store.transactions.read(task.txn)
    assert header is not None
    assert header.state is TxnState.ABORTED
    assert visible(run) == []


def test_rows_without_a_transaction_do_not_go_on_in_another_topic_of_the_same_name(
    run: Components,
) -> None:
    run.topics.create(TOPIC, 1)
    writers = TopicWriters(run, lambda generation: f"ptxs-0-abcr{generation}", None, 0)
    writers.append(TOPIC, record_batch([("a", 1)]))
    writers.finish()
    run.topics.delete(TOPIC)
    run.topics.create(TOPIC, 1)

    def go_on() -> None:
        writers.append(TOPIC, record_batch([("a", 2)]))
        writers.finish()

    with pytest.raises(TopicNotFoundError, match="was deleted while this task wrote to it"):
        go_on()
    assert visible(run) == []


def write_to_both(run: Components) -> tuple[Task, list[Written]]:
    """Write a row to this topic and one to another, in one open transaction."""
    for topic in (TOPIC, OTHER_TOPIC):
        run.topics.create(topic, 1)
    task = Task(run, "to-both")
    for topic in (TOPIC, OTHER_TOPIC):
        task.writers.append(topic, record_batch([("a", 1)]))
    return task, task.writers.finish()


def test_a_commit_does_not_succeed_once_a_topic_that_it_wrote_to_is_deleted(
    run: Components,
) -> None:
    task, written = write_to_both(run)
    run.topics.delete(TOPIC)
    with pytest.raises(TransactionAbortedError, match="short-lived, which it has written to, was"):
        task.commit(written)
    reader = Reader(run, OTHER_TOPIC)
    reader.read_all()
    assert not reader.found


def test_what_was_committed_before_its_topic_was_deleted_stays_committed_elsewhere(
    run: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, written = write_to_both(run)
    # Decided after the deletion has begun, before it gets to this transaction: commit first.
    once(monkeypatch, run.store.segments, "fence", lambda: task.commit(written))
    run.topics.delete(TOPIC)
    reader = Reader(run, OTHER_TOPIC)
    reader.read_all()
    assert dict(reader.found) == {"a": [1]}
    assert run.sweeper(0).sweep().stuck == ()


def test_whoever_reads_a_topic_that_is_being_deleted_meets_no_pin_without_a_header(
    run: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    [segment] = run.topics.create(TOPIC, 1).segments
    write(run, 1)
    looked: list[bool] = []

    def look() -> None:
        for _ in range(3):
            assert run.sweeper(0).sweep().stuck == ()
        end = run.log.last_confirmed(segment.ref)
        [found] = run.buffer.readable([segment.ref.id], lambda _: end, [EARLIEST])
        rows = run.log.read(
            segment.ref,
            EARLIEST,
            found.end,
            visible=found.visibility,
            columns=frozenset({"value"}),
            max_rows=9,
        )
        assert not list(rows), "the row was aborted"
        looked.append(True)

    real = run.log.delete
    with monkeypatch.context() as patch:

        def away(_: SegmentRef) -> None:
            raise SegmentLogUnavailableError("the log is away")

        patch.setattr(run.log, "delete", away)
        with pytest.raises(SegmentLogUnavailableError):
            run.topics.delete(TOPIC)
        patch.setattr(run.topics, "finish_deletions", lambda: (0, {}))
        patch.setattr(run.log, "delete", real)
        look()
    assert looked


# -- what is left (finding 15) ---------------------------------------------------------------------


@pytest.fixture
def used(run: Components) -> Components:
    """Have a topic with everything that a topic can have."""
    run.topics.create(TOPIC, 2)
    run.store.topics.change_property(NAME, "__retention", Retention(time_ms=1).serialize())
    commit(run, 1, 2, 3, 4)
    lost = write(run, 5, 6, 7, 8)
    lost.abort()
    run.topics.changes.split(TOPIC, "0")
    commit(run, 9, 10, 11, 12)
    for segment in run.topics.require(TOPIC).readable:
        run.store.subscriptions.claim_cursor(segment.ref.id, "sub", "q", 1, EARLIEST)
    write(run, 13, 14, 15, 16)  # open
    return run


def test_a_deleted_topic_leaves_one_small_record_for_each_segment(
    used: Components, redis_client: redis.Redis
) -> None:
    segments = [s.ref.id for s in used.topics.require(TOPIC).segments]
    used.topics.delete(TOPIC)
    of_topic = {key for key in keys(redis_client, "*") if key.startswith(("{seg:", "{topic:"))}
    # The seq and what shuts the door; and the seq from which the next version is drawn.
    assert of_topic == {f"{{seg:{s}}}:birth" for s in segments} | {f"{{topic:{NAME}}}:birth"}
    for segment in segments:
        size = redis_client.memory_usage(f"{{seg:{segment}}}:birth")
        assert isinstance(size, int)
        assert size < 400
    assert used.store.meta.list_topics() == []
    assert redis_client.hgetall("{meta}:topic-stamps") == {}


def test_nothing_that_comes_late_brings_anything_of_a_deleted_topic_back(
    used: Components, redis_client: redis.Redis
) -> None:
    [*segments] = [s.ref.id for s in used.topics.require(TOPIC).segments]
    used.topics.delete(TOPIC)
    before = keys(redis_client, "{seg:*")
    late = used.coordinator.new_txn("late", timeout_ms=60_000)
    store = used.store
    for segment in segments:
        assert [a.code for a in store.segments.pin(late, "w", [segment])] == [Code.DELETED]
        assert (
            store.subscriptions.claim_cursor(segment, "late", "q", 9, EARLIEST).code is Code.DELETED
        )
        assert store.subscriptions.reset_cursor(segment, "late", LATE, None).code is Code.DELETED
        store.subscriptions.create_cursors("late", {segment: LATE})
        store.segments.mark_trimmed(segment, EARLIEST)
        store.segments.raise_high(segment, EARLIEST)
        store.subscriptions.inherit_cursor(segment, "late", "q")
        store.subscriptions.delete_cursor(segment, "sub")
        store.segments.close(segment, 0, 5)
        store.segments.purge(segment)
        store.segments.fence([segment])
    assert used.sweeper(0).sweep().stuck == ()
    assert keys(redis_client, "{seg:*") == before


def test_the_headers_of_a_deleted_topics_transactions_are_collected(used: Components) -> None:
    used.topics.delete(TOPIC)
    for _ in range(3):
        assert used.sweeper(0).sweep().stuck == ()
    for tc in range(used.store.identity.coordinators):
        assert used.store.transactions.list_final(tc, limit=9) == []
        assert used.store.transactions.list_open(tc, deadline_ms=None, limit=9) == []


@pytest.mark.parametrize("collected", [True, False])
def test_a_topic_is_deleted_although_the_reply_to_an_abort_is_lost_and_its_header_collected(
    run: Components, monkeypatch: pytest.MonkeyPatch, *, collected: bool
) -> None:
    run.topics.create(TOPIC, 1)
    write(run, 1)
    aborts = TransactionCoordinator.abort

    def lost(coordinator: TransactionCoordinator, txn: TxnId, by: EndedBy, **given: Any) -> None:
        aborts(coordinator, txn, by, **given)
        if collected:
            run.store.transactions.remove(txn)
        raise CommitStateUnknownError("no reply")

    with monkeypatch.context() as patched:
        patched.setattr(TransactionCoordinator, "abort", lost)
        if collected:
            run.topics.delete(TOPIC)
            return
        with pytest.raises(CommitStateUnknownError):
            run.topics.delete(TOPIC)
    run.topics.delete(TOPIC)
