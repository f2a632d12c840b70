"""A native topic becomes the beginning of a segmented one."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

import pulsar_txn_spark
from pulsar_txn_spark import client
from pulsar_txn_spark.backends.pulsar.admin_api import TransactionState
from pulsar_txn_spark.backends.pulsar.ledgers import ManagedLedger
from pulsar_txn_spark.backends.pulsar.log import (
    ADOPTED_PROPERTY,
    CREATED_PROPERTY,
    INTERNAL_SUBSCRIPTION,
    ORIGIN_PROPERTY,
    SEGMENT_PROPERTY,
    TRIM_PROPERTY,
    PulsarSegmentLog,
)
from pulsar_txn_spark.backends.pulsar.subscription_expiry import Expiry
from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.engine.topic_writers import TopicWriters
from pulsar_txn_spark.errors import (
    OptionError,
    SegmentLogError,
    SegmentLogUnavailableError,
    SegmentNotFoundError,
    TopicExistsError,
    TopicNotFoundError,
)
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.reading_order import ReadingOrder
from pulsar_txn_spark.segments.retention import RETENTION_PROPERTY, Retention
from pulsar_txn_spark.segments.topic_lifecycle import remove_logs
from pulsar_txn_spark.segments.topic_name import TopicName, native_topic
from pulsar_txn_spark.segments.topology import HASH_SPACE, Segment, SegmentState, Topology
from pulsar_txn_spark.spark.source import topics
from pulsar_txn_spark.spark.source.batch import PulsarTxnReader
from pulsar_txn_spark.store.protocol import EventFeed
from tests.models.segment_histories import Task, record_batch
from tests.support.streaming import SCHEMA, StreamingQuery

SOURCE = TopicName.of_any_domain("persistent://public/default/old")
TOPIC = TopicName.parse("topic://public/default/old")
LOGS = [f"{SOURCE}-partition-{n}" for n in range(3)]


# -- the topology ----------------------------------------------------------------------------------


def test_adopted_partitions_are_parents_of_every_child_and_take_no_rows() -> None:
    topology = Topology.plan_adoption(TOPIC, LOGS, 2, "pulsar")
    parents, children = topology.segments[:3], topology.segments[3:]
    assert [p.ref.log_name for p in parents] == LOGS
    assert {(p.hash_start, p.hash_end) for p in parents} == {(0, HASH_SPACE - 1)}
    assert topology.active == ()
    assert topology.readable == (), "they are no segments yet"
    everybody = tuple(p.ref.id for p in parents)
    assert all(child.parents == everybody for child in children)
    assert all(p.children == tuple(c.ref.id for c in children) for p in parents)
    [change] = topology.unfinished
    done = topology.with_done(change, dict.fromkeys(everybody, Position(6, 1)))
    done.require_tiling()
    assert [s.descriptor for s in done.active] == ["0000-7fff-3", "8000-ffff-4"]
    assert Topology.parse(0, done.serialize()) == done


def test_children_wait_for_all_partitions_that_were_adopted() -> None:
    topology = Topology.plan_adoption(TOPIC, LOGS, 2, "pulsar")
    [change] = topology.unfinished
    end = Position(6, 1)
    done = topology.with_done(change, {p.ref.id: end for p in change.parents})
    names = [p.descriptor for p in change.parents]
    assert ReadingOrder.of(done, {}).released == set(names)
    assert ReadingOrder.of(done, dict.fromkeys(names[:2], end)).released == {names[2]}
    drained = ReadingOrder.of(done, dict.fromkeys(names, end))
    assert drained.released == {s.descriptor for s in done.active}


# -- the steps, on logs of this process ------------------------------------------------------------


class Partitions:
    """Which partitions Pulsar has."""

    def __init__(self, logs: Sequence[str]) -> None:
        self.logs = logs

    def topology(self, topic: TopicName) -> Topology:
        segments = tuple(
            Segment(SegmentRef(name, str(topic), name), 0, HASH_SPACE - 1) for name in self.logs
        )
        return Topology(topic, "", segments, len(segments), "pulsar")

    def refuse_scalable(self, topic: TopicName) -> None:
        pass


@pytest.fixture
def run(run: Components, monkeypatch: pytest.MonkeyPatch) -> Components:
    monkeypatch.setattr(run.topics, "_pulsar_topics", Partitions(LOGS))
    # The embedded log goes by ids, which are made by the plan: its logs come into being with it.
    plan, create = Topology.plan_adoption, run.log.create

    def with_data(topic: TopicName, logs: Sequence[str], segments: int, backend: str) -> Topology:
        topology = plan(topic, logs, segments, backend)
        for number, segment in enumerate(topology.segments[: len(logs)]):
            create(segment.ref)
            write(run, segment.ref, f"old-{number}")
        return topology

    monkeypatch.setattr(Topology, "plan_adoption", with_data)
    return run


def write(run: Components, segment: SegmentRef, value: str) -> None:
    writer = run.log.writer(segment, "somebody")
    writer.append(pa.record_batch([pa.array([value.encode()])], names=["value"]))
    writer.flush()
    writer.close()


def read_in_order(run: Components) -> list[list[str]]:
    """Return what each micro-batch reads, from the beginning."""
    at: dict[str, Position] = {}
    batches = []
    for _ in range(2):
        topology = run.topics.require(TOPIC)
        released = ReadingOrder.of(topology, at).released
        batch = []
        for segment in topology.readable:
            if segment.descriptor in released:
                end = run.log.last_confirmed(segment.ref)
                start = at.get(segment.descriptor, EARLIEST)
                for found in run.log.read(
                    segment.ref,
                    start,
                    end,
                    visible=lambda _writer, _position: True,
                    columns=frozenset({"value"}),
                    max_rows=10,
                ):
                    batch += [value.decode() for value in found.column(0).to_pylist()]
                at[segment.descriptor] = end
        batches.append(sorted(batch))
    return batches


def test_the_data_of_all_partitions_is_read_before_anything_new(run: Components) -> None:
    topology = run.topics.adopt(SOURCE, TOPIC, 2)
    assert [s.state for s in topology.segments] == [SegmentState.SEALED] * 3 + [
        SegmentState.ACTIVE
    ] * 2
    write(run, topology.active[0].ref, "new")
    assert read_in_order(run) == [["old-0", "old-1", "old-2"], ["new"]]
    assert str(TOPIC) in run.store.meta.list_topics()


def test_as_many_segments_take_over_as_there_were_partitions(run: Components) -> None:
    assert len(run.topics.adopt(SOURCE, TOPIC).active) == len(LOGS)


class DiesError(SegmentLogUnavailableError):
    """The operator's process ends here."""


@pytest.mark.parametrize("step", ["create", "adopt", "seal", "add_topic"])
@pytest.mark.parametrize("times", [0, 1])
def test_an_adoption_that_was_left_half_done_is_continued_when_asked_again(
    run: Components, monkeypatch: pytest.MonkeyPatch, step: str, times: int
) -> None:
    holder: Any = run.store.meta if step == "add_topic" else run.log
    real, calls = getattr(holder, step), 0

    def dying(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > times:
            raise DiesError(step)
        return real(*args, **named)

    with monkeypatch.context() as patch:
        patch.setattr(holder, step, dying)
        if step == "add_topic" and times:
            run.topics.adopt(SOURCE, TOPIC, 2)
        else:
            with pytest.raises(DiesError):
                run.topics.adopt(SOURCE, TOPIC, 2)
    first = run.topics.lifecycle.read(TOPIC)
    assert first is not None
    done = run.topics.adopt(SOURCE, TOPIC, 2)
    assert done.instance_id == first.instance_id
    assert read_in_order(run)[0] == ["old-0", "old-1", "old-2"]
    assert str(TOPIC) in run.store.meta.list_topics()


def test_a_writer_that_meets_a_half_done_adoption_finishes_it(
    run: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(run.log, "seal", mock.Mock(side_effect=DiesError))
        with pytest.raises(DiesError):
            run.topics.adopt(SOURCE, TOPIC, 2)
    writers = TopicWriters(run, lambda _: "w", None, 0)
    writers.append(TOPIC, pa.record_batch([pa.array([b"new"])], names=["value"]))
    writers.finish()
    writers.close()
    assert read_in_order(run) == [["old-0", "old-1", "old-2"], ["new"]]


@pytest.mark.parametrize("step", ["adopt", "seal"])
def test_a_topic_that_is_deleted_while_it_is_adopted_gives_all_back_and_is_not_sealed(
    run: Components, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Whoever deletes it gives back what is adopted by then."""
    real, sealed, given_back = run.log.adopt, mock.Mock(), mock.Mock()
    monkeypatch.setattr(run.log, "seal", sealed)
    monkeypatch.setattr(run.log, "give_back", given_back)
    calls: list[SegmentRef] = []

    def deleted_beside(segment: SegmentRef) -> None:
        calls.append(segment)
        if len(calls) == (1 if step == "adopt" else len(LOGS)):
            topology = run.topics.lifecycle.read(TOPIC)
            assert topology is not None
            run.topics.lifecycle.end(topology)
            given_back.reset_mock()
        real(segment)

    monkeypatch.setattr(run.log, "adopt", deleted_beside)
    with pytest.raises(TopicNotFoundError, match="was deleted while"):
        run.topics.adopt(SOURCE, TOPIC, 2)
    assert not sealed.called
    assert [call.args[0].log_name for call in given_back.call_args_list] == LOGS
    left = [[ref.log_name for ref in call.kwargs["others"]] for call in given_back.call_args_list]
    assert left == [LOGS[1:], LOGS[2:], []]


def test_retention_gives_one_partition_back_and_leaves_the_others_policies(
    run: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.topics.adopt(SOURCE, TOPIC, 2)
    run.store.topics.change_property(
        str(TOPIC), RETENTION_PROPERTY, Retention(size_bytes=0).serialize()
    )
    given_back = mock.Mock()
    monkeypatch.setattr(run.log, "give_back", given_back)
    run.retention().sweep(lambda _: None)
    assert [call.args[0].log_name for call in given_back.call_args_list] == LOGS
    left = [[ref.log_name for ref in call.kwargs["others"]] for call in given_back.call_args_list]
    assert left == [LOGS[1:], LOGS[2:], []]


def refused(segment: SegmentRef) -> None:
    if segment.log_name == LOGS[1]:
        raise SegmentLogError("1 producers are connected. Nothing was sealed")


def test_an_adoption_that_is_refused_is_not_begun(
    run: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next sweep would seal what the operator was told is not sealed."""
    with monkeypatch.context() as patch:
        patch.setattr(run.log, "check_adoptable", refused)
        with pytest.raises(SegmentLogError, match="are connected") as told:
            run.topics.adopt(SOURCE, TOPIC, 2)
    assert not hasattr(told.value, "__notes__")
    assert run.topics.lifecycle.read(TOPIC) is None
    assert run.topics.names() == []
    sealed = mock.Mock()
    monkeypatch.setattr(run.log, "seal", sealed)
    run.sweeper().sweep()
    assert not sealed.called


def test_a_refusal_of_an_adoption_that_was_begun_says_how_to_take_it_back(
    run: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run.log, "adopt", refused)
    with pytest.raises(SegmentLogError, match="are connected") as told:
        run.topics.adopt(SOURCE, TOPIC, 2)
    [note] = told.value.__notes__
    assert f"'pulsar-txn topic delete {TOPIC}' takes it back" in note


@pytest.fixture
def pending(run: Components, redis_path: str, monkeypatch: pytest.MonkeyPatch) -> Components:
    """Begin an adoption that cannot go on."""
    with monkeypatch.context() as patch:
        patch.setattr(run.log, "seal", mock.Mock(side_effect=DiesError))
        with pytest.raises(DiesError):
            run.topics.adopt(SOURCE, TOPIC, 2)
    return run


def test_whoever_reads_a_topic_whose_adoption_cannot_go_on_is_told_and_gets_no_empty_result(
    pending: Components, redis_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"store.path": redis_path, "topic": str(TOPIC)}
    monkeypatch.setattr(pending.log, "adopt", refused)
    monkeypatch.setattr(pending.topics.changes, "adoption_patience_s", 0.0)
    with pytest.raises(SegmentLogError, match="are connected"):
        PulsarTxnReader(options, SCHEMA).partitions()
    with pytest.raises(SegmentLogError, match="are connected"):
        StreamingQuery(pending, redis_path, "q", topic=str(TOPIC)).reader.initialOffset()
    with (
        client.connect({"store.path": redis_path}) as connected,
        pytest.raises(SegmentLogError, match="are connected"),
    ):
        connected.consumer(str(TOPIC), "s")


def test_an_adoption_that_cannot_go_on_stops_no_query_whose_pattern_it_matches(
    pending: Components,
    redis_path: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pattern = {"topicsPattern": ".*/(old|other)", "startingOffsets": "earliest"}
    with monkeypatch.context() as patch:
        patch.setattr(pending.topics, "matching", lambda _: [])
        reader = StreamingQuery(pending, redis_path, "q", **pattern)
        reader.run_all()
    other = TopicName.parse("other")
    pending.topics.create(other, 1)
    task = Task(pending, "w")
    task.writers.append(other, record_batch([("k", 1)]))
    task.commit(task.writers.finish())
    with monkeypatch.context() as patch:
        patch.setattr(pending.log, "adopt", refused)
        # As Spark does when the query starts again: it loads the source, then polls it.
        topics.check_source({"store.path": redis_path, **pattern})
        patch.setattr(topics, "CHANGE_GRACE_PERIOD_S", 0.0)
        reader.restart()
        reader.run_all()
        reader.run_all()
        assert reader.values == [1]
        [warning] = [r.getMessage() for r in caplog.records if "is not read yet" in r.getMessage()]
        assert "are connected" in warning
    options = Options({"store.path": redis_path, **pattern}, Use.READ | Use.STREAM)
    source = topics.SourceTopics(options, pending)
    assert str(TOPIC) not in source.topologies(waits=False), "whoever adopts it has time"
    monkeypatch.setattr(topics, "CHANGE_GRACE_PERIOD_S", 0.0)
    assert str(TOPIC) in source.topologies(waits=False)


def test_whoever_reads_a_topic_that_is_being_adopted_finishes_it(
    pending: Components, redis_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending.topics.changes, "adoption_patience_s", 0.0)
    options = {"store.path": redis_path, "topic": str(TOPIC)}
    assert PulsarTxnReader(options, SCHEMA).partitions()
    assert not pending.topics.require(TOPIC).unfinished


class Turns:
    """Events of a store, of which the next comes when somebody has done something."""

    def __init__(self, feed: EventFeed, act: Callable[[], object]) -> None:
        self.follow, self.wake, self.close = feed.follow, feed.wake, feed.close
        self._act = act

    def wait(self, timeout_s: float) -> set[str]:
        assert timeout_s > 1, "an adoption on Pulsar takes seconds"
        self._act()
        return set()


def meanwhile(run: Components, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let somebody do something while a reader waits for a change of segments."""
    feed = run.store.event_feed
    monkeypatch.setattr(run.store, "event_feed", lambda: Turns(feed(), act))


@pytest.mark.parametrize("reader", ["source", "client"])
def test_a_reader_without_rights_waits_for_whoever_adopts_a_topic(
    pending: Components, redis_path: str, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    create = pending.log.create

    def adopted_by_its_operator() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(pending.log, "create", create)
            pending.topics.adopt(SOURCE, TOPIC, 2)

    meanwhile(pending, monkeypatch, adopted_by_its_operator)
    monkeypatch.setattr(pending.log, "create", mock.Mock(side_effect=DiesError("403")))
    options = {"store.path": redis_path}
    if reader == "source":
        options["topicsPattern"] = f"{TOPIC}.*"
        assert PulsarTxnReader(options, SCHEMA).partitions()
    else:
        with client.connect(options) as connected:
            connected.consumer(str(TOPIC), "s").close()


def test_a_topic_whose_adoption_is_taken_back_matches_no_pattern(
    pending: Components, redis_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending.topics.create(TopicName.parse("topic://public/default/other"), 1)
    meanwhile(pending, monkeypatch, lambda: pending.topics.delete(TOPIC))
    options = {"store.path": redis_path, "topicsPattern": "topic://public/default/.*"}
    PulsarTxnReader(options, SCHEMA).partitions()
    assert pending.topics.lifecycle.read(TOPIC) is None


def test_a_topic_is_adopted_again_behind_a_deletion_that_died(
    pending: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = set(LOGS)

    def claimed(segment: SegmentRef) -> None:
        if segment.log_name in claims:
            raise SegmentLogError("it belongs to another segment")

    monkeypatch.setattr(pending.log, "check_adoptable", claimed)
    with monkeypatch.context() as patch:
        patch.setattr(pending.log, "give_back", mock.Mock(side_effect=DiesError))
        with pytest.raises(DiesError):
            pending.topics.delete(TOPIC)

    def given_back(segment: SegmentRef, *, others: Sequence[SegmentRef] = ()) -> None:
        claims.discard(segment.log_name)

    monkeypatch.setattr(pending.log, "give_back", given_back)
    assert len(pending.topics.adopt(SOURCE, TOPIC, 2).active) == 2


@pytest.mark.parametrize("subscription", [{}, {"subscription": "s"}])
def test_a_query_that_starts_at_latest_while_a_topic_is_adopted_reads_nothing_old(
    pending: Components,
    redis_path: str,
    monkeypatch: pytest.MonkeyPatch,
    subscription: dict[str, str],
) -> None:
    meanwhile(pending, monkeypatch, lambda: pending.topics.adopt(SOURCE, TOPIC, 2))
    latest = StreamingQuery(
        pending, redis_path, "q", topic=str(TOPIC), startingOffsets="latest", **subscription
    )
    assert len(latest.reader.initialOffset()["topics"][str(TOPIC)]["segments"]) == len(LOGS) + 2
    latest.run_all()
    assert latest.values == []


def test_a_topic_that_is_there_adopts_nothing_more(run: Components) -> None:
    run.topics.create(TOPIC, 2)
    with pytest.raises(TopicExistsError, match=f"has not adopted {SOURCE}"):
        run.topics.adopt(SOURCE, TOPIC)
    other = replace_name(TOPIC, "adopted")
    run.topics.adopt(SOURCE, other)
    with pytest.raises(TopicExistsError, match=f"but {SOURCE}"):
        run.topics.adopt(replace_name(SOURCE, "another"), other)


def replace_name(name: TopicName, to: str) -> TopicName:
    return name._replace(name=to)


@pytest.mark.parametrize("domain", ["topic", "scalable"])
def test_only_a_native_topic_is_adopted(redis_path: str, domain: str) -> None:
    with pytest.raises(OptionError, match="expected a native topic"):
        pulsar_txn_spark.Admin({"store.path": redis_path}).adopt_topic(
            f"{domain}://public/default/old", str(TOPIC)
        )


# -- the topic on Pulsar ---------------------------------------------------------------------------

REF = SegmentRef("public/default/old/3f2a/0000-ffff-0", str(TOPIC), LOGS[0])
OTHER = SegmentRef("public/default/x/1/0000-ffff-0", str(TOPIC), LOGS[0])


class Admin:
    """The admin API of a broker with one topic; notes what is done to it."""

    def __init__(self) -> None:
        self.properties_of: dict[str, str] | None = {}
        self.producing: list[str] = []
        self.state: TransactionState | None = None
        self.subscribed: list[str] = []
        self.done: list[str] = []
        self.last = Position(6, 7)
        self.deduplication = "Enabled"
        self.expires_after_min = 0
        self.keeps_all = False

    def properties(self, _topic: str) -> dict[str, str] | None:
        return None if self.properties_of is None else dict(self.properties_of)

    def set_properties(self, _topic: str, marks: Mapping[str, str]) -> None:
        assert self.properties_of is not None
        self.done.append("mark")
        self.properties_of |= marks

    def remove_property(self, _topic: str, name: str) -> None:
        assert self.properties_of is not None
        self.done.append(f"remove {name}")
        self.properties_of.pop(name, None)

    def deduplication_status(self, _topic: str) -> str:
        return self.deduplication

    def producers(self, _topic: str) -> list[str]:
        return self.producing

    def settled_transactions_of(self, _topic: str) -> TransactionState | None:
        return self.state

    def managed_ledger(self, _topic: str) -> ManagedLedger:
        stats = {
            "lastConfirmedEntry": str(self.last),
            "currentLedgerSize": 80,
            "entriesAddedCounter": 8,
            "ledgers": [{"ledgerId": 6, "entries": 8, "size": 80}],
        }
        return ManagedLedger.of(stats)

    def subscriptions(self, _topic: str) -> list[str]:
        return self.subscribed

    def create_subscription(self, _topic: str, name: str) -> None:
        self.done.append("hold the data")
        if name not in self.subscribed:
            self.subscribed.append(name)

    def delete_subscription(self, _topic: str, name: str) -> None:
        self.done.append("let the data go")
        if name in self.subscribed:
            self.subscribed.remove(name)

    def keep_all_data(self, _topic: str) -> None:
        self.done.append("policies")
        self.keeps_all = True

    def retain_all(self, _topic: str) -> None:
        self.keeps_all = True

    def forget_policies(self, _topic: str) -> None:
        self.done.append("forget policies")
        self.keeps_all = False

    def subscription_expiry(self, _topic: str) -> Expiry:
        return Expiry("public/default", self.expires_after_min, "the broker")

    def partitions(self, _topic: str) -> int:
        return 0

    def terminate(self, _topic: str) -> Position:
        self.done.append("seal")
        return self.last

    def delete_topic(self, _topic: str) -> None:
        self.done.append("delete")
        self.properties_of = None


@pytest.fixture
def admin() -> Admin:
    return Admin()


@pytest.fixture
def log(admin: Admin) -> PulsarSegmentLog:
    found = PulsarSegmentLog.__new__(PulsarSegmentLog)
    found._admin = admin  # type: ignore[assignment]
    found._known, found._means, found._per_entry = {}, {}, {}
    found._header_budget = mock.Mock()
    found._transport = mock.Mock()
    found._lock = mock.MagicMock()
    return found


def test_a_topics_data_is_retained_before_it_counts_as_a_segment(
    log: PulsarSegmentLog, admin: Admin
) -> None:
    log.adopt(REF)
    assert admin.done == ["mark", "hold the data", "policies", "mark"]
    assert admin.properties_of == {
        SEGMENT_PROPERTY: REF.id,
        ADOPTED_PROPERTY: REF.id,
        ORIGIN_PROPERTY: "-1:-1,6",
    }
    log.adopt(REF)


def test_a_topic_that_was_written_without_deduplication_is_told_of(
    log: PulsarSegmentLog, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    log.adopt(REF)
    assert caplog.text == ""
    admin.deduplication = "Disabled"
    log.adopt(REF)
    assert "stays in it twice" in caplog.text


def test_a_topic_with_producers_is_not_adopted(log: PulsarSegmentLog, admin: Admin) -> None:
    admin.producing = ["p-1"]
    with pytest.raises(SegmentLogError, match=r"1 producers are connected \(p-1\)"):
        log.adopt(REF)
    with pytest.raises(SegmentLogError, match=r"1 producers are connected \(p-1\)"):
        log.check_adoptable(REF)
    admin.producing = []
    log.check_adoptable(REF)
    assert admin.done == []


@pytest.mark.parametrize(
    "state",
    [TransactionState("Ready", Position(6, 7), 1), TransactionState("Ready", Position(6, 2), 0)],
)
def test_a_topic_with_an_open_transaction_of_pulsars_own_is_not_adopted(
    log: PulsarSegmentLog, admin: Admin, state: TransactionState
) -> None:
    # Sealed, it would take no marker any more: the transaction could never end (seen on 4.0.7).
    admin.state = state
    with pytest.raises(SegmentLogError, match=r"they could never end\. Nothing was sealed"):
        log.adopt(REF)
    assert admin.done == []
    admin.state = TransactionState("Ready", Position(6, 7), 0)
    log.adopt(REF)


def test_a_topic_of_another_segment_is_not_adopted(log: PulsarSegmentLog, admin: Admin) -> None:
    admin.properties_of = {SEGMENT_PROPERTY: "public/default/x/1/0000-ffff-0"}
    with pytest.raises(SegmentLogError, match="belongs to segment public/default/x"):
        log.adopt(REF)


def test_of_two_that_adopt_one_topic_the_one_who_was_overwritten_is_told(
    log: PulsarSegmentLog, admin: Admin
) -> None:
    set_properties = admin.set_properties

    def overwritten(topic: str, marks: Mapping[str, str]) -> None:
        set_properties(topic, marks)
        set_properties(topic, dict.fromkeys(marks, OTHER.id))

    admin.set_properties = overwritten  # type: ignore[assignment,method-assign]
    with pytest.raises(SegmentLogError, match="belongs to segment public/default/x"):
        log.adopt(REF)
    assert admin.subscribed == []
    log.give_back(REF)
    assert admin.properties_of == {ADOPTED_PROPERTY: OTHER.id}


def test_a_topic_that_is_gone_is_not_adopted(log: PulsarSegmentLog, admin: Admin) -> None:
    admin.properties_of = None
    with pytest.raises(SegmentNotFoundError, match="it is not there"):
        log.adopt(REF)


def test_an_adopted_topic_is_given_back_and_never_deleted(
    log: PulsarSegmentLog, admin: Admin
) -> None:
    admin.properties_of = {"team": "a"}
    log.adopt(REF)
    admin.properties_of |= {f"{TRIM_PROPERTY}.{id_}.6": "5:1,6" for id_ in (REF.id, OTHER.id)}
    admin.done.clear()
    log.delete(REF)
    assert admin.done == []
    log.give_back(REF)
    not_a_segment = f"remove {SEGMENT_PROPERTY}"
    assert admin.done[:3] == [not_a_segment, "let the data go", "forget policies"]
    assert admin.done[-1] == f"remove {ADOPTED_PROPERTY}"
    assert admin.properties_of == {"team": "a"}
    admin.done.clear()
    log.give_back(REF)  # again, after everything was taken from it
    assert admin.done == []


def test_policies_stay_while_another_partition_is_a_segment(
    log: PulsarSegmentLog, admin: Admin
) -> None:
    log.adopt(REF)
    admin.done.clear()
    neighbour = SegmentRef("id-1", REF.topic, f"{REF.log_name}-1")
    ask = admin.properties
    for claims, done in (
        ({ADOPTED_PROPERTY: neighbour.id}, False),
        ({ADOPTED_PROPERTY: OTHER.id}, False),
        ({}, True),
        (None, True),
    ):
        known = dict.fromkeys([neighbour.log_name], claims)
        with mock.patch.object(admin, "properties", lambda t, of=known: of.get(t, ask(t))):
            log.give_back(REF, others=[neighbour])
        assert ("forget policies" in admin.done) is done
        assert (admin.properties_of, admin.subscribed) == ({}, [])
        log.adopt(REF)
        admin.done.clear()


class DeadError(Exception):
    """The process ends here."""


class PartitionedAdmin:
    """The admin API of a broker with a partitioned topic, whose partitions share their policies."""

    def __init__(self) -> None:
        self.of: dict[str, Admin] = {}
        self.policies: set[str] = set()

    def keep_all_data(self, topic: str) -> None:
        self.policies.add(native_topic(topic))

    retain_all = keep_all_data

    def partitions(self, topic: str) -> int:
        return sum(native_topic(name) == topic for name in self.of)

    def forget_policies(self, topic: str) -> None:
        self.policies.discard(native_topic(topic))

    def __getattr__(self, call: str) -> Callable[..., Any]:
        return lambda topic, *more: getattr(self.of.setdefault(topic, Admin()), call)(topic, *more)


@pytest.mark.parametrize("claimed", [0, 1, 2, 3])
def test_an_adoption_that_was_left_half_done_leaves_no_policy_behind(
    log: PulsarSegmentLog, claimed: int
) -> None:
    partitions = PartitionedAdmin()
    log._admin = partitions  # type: ignore[assignment]
    adopted = [s for s in Topology.plan_adoption(TOPIC, LOGS, 2, "pulsar").segments if s.adopted]
    died = returned = 0
    while died == returned:  # it dies at each step of the return, which is begun again
        partitions.of.clear()
        for segment in adopted[:claimed]:
            log.adopt(segment.ref)
        assert bool(partitions.policies) is (claimed > 0)
        died += dies(partitions, TAKEN, returned, lambda: remove_logs(log, adopted))
        claims = [a for a in partitions.of.values() if ADOPTED_PROPERTY in (a.properties_of or {})]
        assert bool(partitions.policies) or len(claims) <= 1
        remove_logs(log, adopted)
        assert partitions.policies == set()
        assert all(a.properties_of == {} and not a.subscribed for a in partitions.of.values())
        returned += 1
    assert died >= 4 * claimed


CALLS = ("set_properties", "create_subscription", "keep_all_data")
TAKEN = ("delete_subscription", "forget_policies", "remove_property")


def dies(
    admin: Admin | PartitionedAdmin, calls: Sequence[str], after: int, act: Callable[[], None]
) -> bool:
    """Act, and die at the call that comes behind so many of these; False if there are fewer."""
    left = after

    def dying(real: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any) -> None:
            nonlocal left
            if left == 0:
                raise DeadError
            left -= 1
            real(*args)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in calls:
            patch.setattr(admin, name, dying(getattr(admin, name)))
        try:
            act()
        except DeadError:
            return True
    return False


def interleave(
    admin: Admin | PartitionedAdmin, act: Callable[[], object], meanwhile: Mapping[int, Any]
) -> bool:
    """Act, and do something else before some of its calls; False if there are fewer calls."""
    ahead = dict(meanwhile)
    number, busy = 0, False

    def interrupted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            nonlocal number, busy
            if not busy:
                busy = True
                ahead.pop(number, lambda: None)()
                busy, number = False, number + 1
            return real(*args)

        return call

    reads = ("properties", "subscriptions", "subscription_expiry")
    with pytest.MonkeyPatch.context() as patch:
        for name in (*CALLS, *TAKEN, *reads, "retain_all"):
            patch.setattr(admin, name, interrupted(getattr(admin, name)))
        with contextlib.suppress(SegmentLogError):
            act()
    return not ahead


def sweep(log: PulsarSegmentLog) -> None:
    with contextlib.suppress(SegmentLogError):
        log.protect_each([REF])


@pytest.mark.parametrize(
    "subscribed, expires_after_min",
    [(True, 0), (False, 0), (True, 5)],
    ids=["there", "gone", "expiring"],
)
@pytest.mark.parametrize("is_amid", [True, False], ids=["sweep-inside", "return-inside"])
def test_a_sweep_beside_a_return_leaves_neither_a_subscription_nor_a_policy_behind(
    log: PulsarSegmentLog,
    admin: Admin,
    subscribed: bool,
    expires_after_min: int,
    is_amid: bool,
) -> None:
    acts = [lambda: log.give_back(REF), lambda: sweep(log)]
    outer, inner = acts if is_amid else acts[::-1]
    for number in itertools.count():
        admin.properties_of, admin.subscribed, admin.expires_after_min = {"team": "a"}, [], 0
        log.adopt(REF)
        admin.subscribed *= subscribed
        admin.expires_after_min = expires_after_min
        if not interleave(admin, outer, {number: inner}):
            break
        assert (admin.properties_of, admin.subscribed) == ({"team": "a"}, [])
        assert not admin.keeps_all
    assert number >= (6 if is_amid else 2)


def test_a_sweep_takes_nothing_from_who_adopts_a_topic_that_was_given_back_meanwhile(
    log: PulsarSegmentLog, admin: Admin
) -> None:
    def adopt_anew() -> None:
        log.adopt(OTHER)
        admin.done.clear()

    disturbed = set()
    for returned, adopted in itertools.combinations(range(12), 2):
        admin.properties_of, admin.subscribed = {}, []
        log.adopt(REF)
        admin.subscribed = []
        others = {returned: lambda: log.give_back(REF), adopted: adopt_anew}
        if not interleave(admin, lambda: sweep(log), others):
            continue
        assert admin.properties_of[ADOPTED_PROPERTY] == OTHER.id
        assert (admin.subscribed, admin.keeps_all) == ([INTERNAL_SUBSCRIPTION], True)
        if "let the data go" in admin.done:
            disturbed.add(adopted)
    assert len(disturbed) == 1, "who comes between the last look and what follows it"


def test_a_sweep_beside_the_return_of_one_partition_leaves_the_policies_to_the_next_one(
    log: PulsarSegmentLog,
) -> None:
    partitions = PartitionedAdmin()
    log._admin = partitions  # type: ignore[assignment]
    first, second = (
        SegmentRef(f"id-{number}", REF.topic, f"{REF.log_name}-partition-{number}")
        for number in range(2)
    )
    for number in itertools.count():
        partitions.of.clear()
        log.adopt(first)
        log.adopt(second)
        partitions.of[first.log_name].subscribed = []
        others = {number: lambda: log.give_back(first, others=[second])}
        if not interleave(partitions, lambda: log._protect(first), others):
            break
        assert partitions.of[first.log_name].subscribed == []
        assert partitions.policies
        log.give_back(second, others=[first])
        assert partitions.policies == set()
    assert number > 4


def test_an_adoption_or_a_return_that_died_at_any_step_lets_no_topic_be_deleted(
    log: PulsarSegmentLog, admin: Admin
) -> None:
    deaths = 0
    for adopted in range(len(CALLS) + 2):
        for returned in range(8):
            admin.properties_of, admin.subscribed = {"team": "a"}, []
            deaths += dies(admin, CALLS, adopted, lambda: log.adopt(REF))
            deaths += dies(admin, TAKEN, returned, lambda: log.give_back(REF))
            log.delete(REF)
            log.give_back(REF)
            assert "delete" not in admin.done
            assert (admin.properties_of, admin.subscribed) == ({"team": "a"}, [])
    assert deaths > 40


def test_a_topic_that_was_given_back_is_not_sealed(log: PulsarSegmentLog, admin: Admin) -> None:
    log.adopt(REF)
    log._check_exists(REF)
    log.give_back(REF)
    log._known[REF] = mock.Mock()  # another process has given it back
    with pytest.raises(SegmentNotFoundError):
        log.seal(REF)
    assert "seal" not in admin.done


def test_a_segment_that_was_created_is_deleted_also_half_created(
    log: PulsarSegmentLog, admin: Admin
) -> None:
    admin.properties_of = {SEGMENT_PROPERTY: REF.id}
    log.delete(REF)
    assert admin.done == ["delete"]
    admin.properties_of, admin.subscribed = {}, [INTERNAL_SUBSCRIPTION]
    log.delete(REF)
    assert admin.done == ["delete"] * 2
    admin.properties_of, admin.subscribed = {CREATED_PROPERTY: REF.id}, []
    log.delete(REF)
    assert admin.done == ["delete"] * 3
    admin.properties_of, admin.subscribed = {CREATED_PROPERTY: "another"}, [INTERNAL_SUBSCRIPTION]
    log.delete(REF)
    admin.properties_of = {SEGMENT_PROPERTY: "another"}
    log.delete(replace(REF, id="public/default/old/3f2a/0000-ffff-1"))
    assert admin.done == ["delete"] * 3
