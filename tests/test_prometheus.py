"""Metrics: the documents' names, true figures, bounded labels, and an endpoint that serves them."""

from __future__ import annotations

import json
import re
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from pulsar_txn_spark import metrics, prometheus, serve_metrics
from pulsar_txn_spark.engine.components import Components, open_components
from pulsar_txn_spark.errors import (
    OptionError,
    SegmentNotFoundError,
    StoreUnavailableError,
    TransactionAbortedError,
)
from pulsar_txn_spark.metrics import METRICS, Counters, Kind
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.position import EARLIEST, MessagePosition, Position
from pulsar_txn_spark.segments.log import RangeSize, SegmentRef
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.store.ack_ranges import AckInterval
from pulsar_txn_spark.store.metadata_pb2 import Outcome, TaskWrite
from pulsar_txn_spark.store.records import EndedBy, OpLogSettings, SubscriptionRef, TxnId, TxnState
from pulsar_txn_spark.txn.batch import BatchKey
from pulsar_txn_spark.txn.health import stuck_participants, tc_states
from pulsar_txn_spark.txn.pending_ack import CLIENT_OWNER, MetadataPendingAckStore
from tests.support.scenario import OTHER_SEGMENT, SEGMENT, Loss, Txn, World, ack, load_scripts
from tools.metrics_page import main, page

ROOT = Path(__file__).parents[1]
TOPIC = TopicName.parse("metered")
OPS = "pulsar_txn_metadata_store"


@pytest.fixture
def serving() -> Iterator[None]:
    yield
    prometheus.stop_serving()


def samples(run: Components) -> dict[str, float]:
    """Scrape once, and return what was exported: name, and labels but for the cluster's."""
    found: dict[str, float] = {}
    for family in prometheus.StoreMetrics(run).families():
        for sample in family.samples:
            labels = [v for k, v in sample.labels.items() if k not in ("cluster", "coordinator_id")]
            key = "|".join([sample.name, *labels])
            found[key] = found.get(key, 0.0) + sample.value
    return found


def value(run: Components, name: str, *labels: str) -> float:
    return samples(run)["|".join([name, *labels])]


# -- names ---------------------------------------------------------------------------------------

PIP_471 = {
    "pulsar_txn_metadata_store_op_writes_total": Kind.COUNTER,
    "pulsar_txn_metadata_store_header_cas_total": Kind.COUNTER,
    "pulsar_txn_metadata_store_index_query_seconds": Kind.HISTOGRAM,
    "pulsar_txn_metadata_store_outstanding_op_records": Kind.GAUGE,
}
PIP_160 = {
    "pulsar_txn_tc_log_records_count_per_entry": Kind.HISTOGRAM,
    "pulsar_txn_tc_batched_log_entry_size_bytes": Kind.HISTOGRAM,
    "pulsar_txn_tc_batched_log_olderst_record_delay_time_seconds": Kind.HISTOGRAM,
    "pulsar_txn_tc_batched_log_triggering_count_by_records": Kind.NAMED_COUNTER,
    "pulsar_txn_tc_batched_log_triggering_count_by_size": Kind.NAMED_COUNTER,
    "pulsar_txn_tc_batched_log_triggering_count_by_delay_time": Kind.NAMED_COUNTER,
    "pulsar_pending_ack_batched_log_records_count_per_entry": Kind.HISTOGRAM,
    "pulsar_pending_ack_batched_log_entry_size_bytes": Kind.HISTOGRAM,
    "pulsar_pending_ack_batched_log_olderst_record_delay_time_seconds": Kind.HISTOGRAM,
    "pulsar_pending_ack_batched_log_triggering_count_by_records": Kind.NAMED_COUNTER,
    "pulsar_pending_ack_batched_log_triggering_count_by_size": Kind.NAMED_COUNTER,
    "pulsar_pending_ack_batched_log_triggering_count_by_delay_time": Kind.NAMED_COUNTER,
}
PIP_373 = {"pulsar_broker_using_txn_topics_count": Kind.GAUGE}


@pytest.mark.parametrize(
    "document,names", [("PIP-471", PIP_471), ("PIP-160", PIP_160), ("PIP-373", PIP_373)]
)
def test_the_metrics_of_a_document_have_its_names_and_types(
    document: str, names: dict[str, Kind]
) -> None:
    assert {m.name: m.kind for m in METRICS if m.source == document} == names


def test_pip_160_asks_for_these_buckets() -> None:
    records, size, delay = (
        metrics.BY_NAME[name]
        for name in list(PIP_160)[:3]
    )  # fmt: skip
    assert records.buckets == (10, 50, 100, 200, 500, 1000)
    assert size.buckets == (128, 512, 1024, 2048, 4096, 16384, 102_400, 1_048_576)
    assert delay.buckets == (0.001, 0.005, 0.01)


def test_every_metric_of_the_table_is_exported_and_nothing_else(run: Components) -> None:
    run.topics.create(TOPIC, 1)
    families = {f.name: f for f in prometheus.StoreMetrics(run).families()}
    expected = {
        m.name.removesuffix("_total") if m.kind is Kind.COUNTER else m.name for m in METRICS
    }
    assert families.keys() == expected
    for metric in METRICS:
        plain = metric.name if metric.kind is not Kind.HISTOGRAM else f"{metric.name}_bucket"
        family = families[
            metric.name.removesuffix("_total") if metric.kind is Kind.COUNTER else metric.name
        ]
        assert any(sample.name == plain for sample in family.samples), metric.name
        assert family.documentation == metric.meaning


def test_the_page_of_metrics_is_up_to_date() -> None:
    written = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert written == page(), "run: python -m tools.metrics_page docs/metrics.md"


def test_every_metric_is_documented_once_with_a_meaning_and_a_remedy() -> None:
    rows = [line.split("|") for line in page().splitlines() if line.startswith("| `pulsar_")]
    rows = [row for row in rows if "(" not in row[1]]  # where metrics are served is a table, too
    assert sorted(row[1].strip(" `") for row in rows) == sorted(m.name for m in METRICS)
    for metric in METRICS:
        assert metric.meaning.endswith(".")
        assert metric.remedy.endswith(".")


def test_the_page_is_written_to_a_file_or_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "metrics.md")]) == 0
    assert (tmp_path / "metrics.md").read_text(encoding="utf-8") == page()
    assert main([]) == 0
    assert capsys.readouterr().out == page()


def exported_names() -> set[str]:
    names = set()
    for metric in METRICS:
        if metric.kind is Kind.HISTOGRAM:
            names |= {f"{metric.name}_{suffix}" for suffix in ("bucket", "sum", "count")}
        else:
            names.add(metric.name)
    return names


def test_the_dashboard_asks_for_no_metric_and_no_label_that_is_not_exported() -> None:
    text = (ROOT / "conf" / "grafana-dashboard.json").read_text(encoding="utf-8")
    queries = [
        target["expr"]
        for panel in json.loads(text)["panels"]
        for target in panel.get("targets", ())
    ]
    assert queries
    asked = {name for query in queries for name in re.findall(r"pulsar_\w+", query)}
    assert asked <= exported_names()
    shown = {m.name for m in METRICS if any(name.startswith(m.name) for name in asked)}
    assert shown == {m.name for m in METRICS}, "a metric that no panel shows"
    for query in queries:
        for by, inner in re.findall(r"max by \(([\w,]+)\) \((?:rate\()?(pulsar_\w+)", query):
            metric = next(m for m in METRICS if inner.startswith(m.name))
            known = {"cluster", "le", *metric.labels}
            # A sum over coordinators of what has no such label is the thing itself.
            assert set(by.split(",")) - {"coordinator_id"} <= known, query


# -- figures -------------------------------------------------------------------------------------


def test_decisions_are_counted_with_their_result_by_the_step_that_makes_them(
    run: Components, world: World
) -> None:
    cas = "pulsar_txn_metadata_store_header_cas_total"
    txn = world.open()
    world.commit(txn, world.write(txn, "a"))
    world.abort(txn)  # too late
    other = world.open()
    world.store.transactions.end(other.id, TxnState.COMMITTED, b"", EndedBy.OWNER, "another owner")
    world.store.transactions.end(other.id, TxnState.ABORTED, b"", EndedBy.EXPIRED)
    world.store.transactions.end(TxnId(0, 4711), TxnState.ABORTED, b"", EndedBy.FENCE)
    world.store.flush_counters()
    found = samples(run)
    assert [found[f"{cas}|{result}"] for result in ("ok", "conflict", "reject")] == [1, 1, 3]
    assert found["pulsar_txn_commits_total"] == 1


@pytest.mark.parametrize(
    "by,cause",
    [
        (EndedBy.OWNER, "owner"),
        (EndedBy.FENCE, "newer-attempt"),
        (EndedBy.EXPIRED, "lease-over"),
        (EndedBy.ADMIN, "administrator"),
    ],
)
def test_an_abort_is_counted_by_its_cause(
    run: Components, world: World, by: EndedBy, cause: str
) -> None:
    txn = world.open()
    world.expire(txn)
    for _ in range(2):  # the second one finds it decided
        world.coordinator.abort(txn.id, by, nonce=txn.nonce, cause="of a test")
    found = samples(run)
    counted = {
        c: found[f"pulsar_txn_aborts_total|{c}"] for c in metrics.VALUES[metrics.Label.CAUSE]
    }
    assert counted == {c: float(c == cause) for c in counted}


def test_op_records_are_counted_once_and_are_outstanding_until_they_are_collected(
    run: Components, world: World
) -> None:
    written, outstanding = f"{OPS}_op_writes_total", f"{OPS}_outstanding_op_records"
    txn = world.open()
    world.lose({"txn_op": [Loss.REPLY]})
    world.coordinator.append_ops(txn.id, txn.nonce, {"a": b"1", "b": b"2"})
    world.mend()
    world.coordinator.append_ops(txn.id, txn.nonce, {"b": b"2", "c": b"3"})
    found = samples(run)
    assert (found[written], found[outstanding]) == (3, 3)
    world.commit(txn)
    world.store.op_log.forget(txn.id, txn.nonce)
    found = samples(run)
    assert (found[written], found[outstanding]) == (3, 0)


def test_op_records_that_were_gathered_are_counted_like_any_other(
    run: Components, world: World
) -> None:
    world.coordinator.ops.configure(OpLogSettings(enabled=True, max_records=4, max_delay_ms=10_000))
    one = world.open()
    same_shard = (n for n in map(str, range(10_000)) if world.coordinator.shard(n) == one.id.tc)
    other = world.open(next(same_shard))
    world.lose({"txn_op_batch": [Loss.REPLY]})
    mine = world.coordinator.ops.submit(one.id, one.nonce, {"a": b"1", "b": b"2", "c": b"3"})
    world.coordinator.append_ops(other.id, other.nonce, {"a": b"1"})
    mine.result()
    world.mend()
    found = samples(run)
    assert (found[f"{OPS}_op_writes_total"], found[f"{OPS}_outstanding_op_records"]) == (4, 4)
    world.commit(one)
    world.store.op_log.forget(one.id, one.nonce)
    found = samples(run)
    assert (found[f"{OPS}_op_writes_total"], found[f"{OPS}_outstanding_op_records"]) == (4, 1)
    world.store.flush_counters()
    found = samples(run)
    assert found["pulsar_txn_tc_log_records_count_per_entry_count"] == 1
    assert found["pulsar_txn_tc_log_records_count_per_entry_sum"] == 4


def test_an_aggregated_entry_is_counted_by_what_triggered_it(run: Components) -> None:
    counts = metrics.OpLogCounts(run.store.counters)
    for trigger in ("records", "size", "delay", "force"):
        counts.batch_stored(2, trigger, records=51, size=2000, oldest_waited_s=0.004)
    found = samples(run)
    for name in list(PIP_160)[:3]:
        assert found[f"{name}_count"] == 4
    assert found["pulsar_txn_tc_log_records_count_per_entry_bucket|50"] == 0
    assert found["pulsar_txn_tc_log_records_count_per_entry_bucket|100"] == 4
    assert found["pulsar_txn_tc_batched_log_entry_size_bytes_sum"] == 8000
    delay = "pulsar_txn_tc_batched_log_olderst_record_delay_time_seconds"
    assert found[f"{delay}_bucket|0.005"] == 4
    assert found[f"{delay}_sum"] == pytest.approx(0.016)
    for name in list(PIP_160)[3:6]:
        assert found[name] == 1, "one of each; what was forced has none of these triggers"


def test_acknowledgements_of_spark_and_cumulative_ones_are_counted(run: Components) -> None:
    acks = MetadataPendingAckStore(run.coordinator)
    batch = run.coordinator.new_txn("batch")
    ranges = [
        replace(ack(EARLIEST, Position(1, 4)), segment=segment)
        for segment in (SEGMENT, OTHER_SEGMENT)
    ]
    assert acks.acknowledge(batch, "batch", 60_000, ranges) == ranges
    where = SubscriptionRef(SEGMENT, "clients", CLIENT_OWNER)
    acks.claim(where, EARLIEST)
    whole = AckInterval(MessagePosition.whole(EARLIEST), MessagePosition.whole(Position(1, 4)))
    txn = run.coordinator.new_txn("client")
    acks.acknowledge_cumulative(txn, "client", 60_000, where, whole)
    run.coordinator.commit(batch, "batch", Outcome())
    run.coordinator.commit(txn, "client", Outcome())
    found = samples(run)
    records = "pulsar_pending_ack_batched_log_records_count_per_entry"
    assert (found[f"{records}_count"], found[f"{records}_sum"]) == (3, 3)
    assert found["pulsar_pending_ack_batched_log_entry_size_bytes_sum"] > 3 * 40


def test_the_bounds_of_buckets_are_exact(run: Components) -> None:
    run.store.counters.add({"pulsar_txn_micro_batch_bytes|1.04858e+06": 2})  # as it was once called
    run.store.counters.observe(metrics.BATCH_BYTES, 1_048_576)
    found = samples(run)
    bounds = [
        name.rpartition("|")[2] for name in found if name.startswith(metrics.BATCH_BYTES.name)
    ]
    bounds = [bound for bound in bounds if bound[:1].isdigit()]
    assert bounds == [str(1 << shift) for shift in (10, 14, 18, 20, 22, 24, 26, 28, 30)]
    assert found["pulsar_txn_micro_batch_bytes_bucket|262144"] == 0
    assert found["pulsar_txn_micro_batch_bytes_bucket|1048576"] == 3


def test_acknowledgements_are_counted_by_the_steps_that_place_them(run: Components) -> None:
    acks = MetadataPendingAckStore(run.coordinator)
    where = SubscriptionRef(SEGMENT, "sub", CLIENT_OWNER)
    acks.claim(where, EARLIEST)
    ends = [MessagePosition.whole(Position(1, entry)) for entry in range(600)]
    ends.insert(0, MessagePosition.whole(EARLIEST))
    intervals = [AckInterval(*pair) for pair in pairwise(ends)]
    txn = run.coordinator.new_txn("nonce")
    acks.acknowledge_individual(txn, "nonce", 60_000, where, intervals[:599])
    assert acks.acknowledge_now(where, intervals[599:]) == []
    run.coordinator.commit(txn, "nonce", Outcome())
    found = samples(run)
    records = "pulsar_pending_ack_batched_log_records_count_per_entry"
    assert (found[f"{records}_count"], found[f"{records}_sum"]) == (3, 600)
    assert (found[f"{records}_bucket|10"], found[f"{records}_bucket|1000"]) == (1, 3)
    assert found["pulsar_pending_ack_batched_log_entry_size_bytes_sum"] > 600 * 40
    assert found["pulsar_pending_ack_batched_log_olderst_record_delay_time_seconds_sum"] == 0
    triggers = {
        name.rpartition("_by_")[2]: found[name]
        for name in found
        if name.startswith("pulsar_pending_ack_batched_log_triggering")
    }
    assert triggers == {"records": 1, "size": 0, "delay_time": 0}


def test_the_time_of_index_queries_is_observed_by_index(run: Components, world: World) -> None:
    world.store.segments.gates([SEGMENT, OTHER_SEGMENT])
    world.store.subscriptions.read_cursors([SEGMENT], "sub")
    world.store.transactions.list_open(0, deadline_ms=None, limit=1)
    world.store.transactions.list_final(0, limit=1)
    world.store.flush_counters()
    found = samples(run)
    for index in metrics.VALUES[metrics.Label.INDEX]:
        assert found[f"pulsar_txn_metadata_store_index_query_seconds_count|{index}"] == 1
        assert found[f"pulsar_txn_metadata_store_index_query_seconds_sum|{index}"] > 0


def batch(world: World, number: int, *tasks: TaskWrite, fail: bool = False) -> None:
    attempt = world.batches.begin(BatchKey("sink", "query", number), f"nonce-{number}")
    for task in tasks:
        task.txn_id = attempt.txn.key
    if fail:
        world.abort(Txn(attempt.txn, attempt.nonce))
    world.batches.commit(attempt, [list(tasks)], "run", acknowledge=True)


def test_what_tasks_and_commit_have_done_is_counted_for_each_committed_batch_once(
    run: Components, world: World
) -> None:
    counters = Counters()
    counters.count(metrics.TC_LOG_BY_SIZE, "1", amount=7)
    first = TaskWrite(
        partition=0, messages=30, bytes=5000, round_trips=4, counters=counters.drain()
    )
    second = TaskWrite(partition=1, messages=12, bytes=2000, round_trips=5)
    load_scripts(world.client)  # else a first call of one is two round trips
    batch(world, 0, first, second)
    batch(world, 1, TaskWrite(partition=0, messages=1, bytes=1, round_trips=1))
    with pytest.raises(TransactionAbortedError):
        batch(world, 2, TaskWrite(partition=0, messages=999, bytes=999), fail=True)
    found = samples(run)
    for metric, total in ((metrics.BATCH_MESSAGES, 43), (metrics.BATCH_BYTES, 7001)):
        assert found[f"{metric.name}_count"] == 2
        assert found[f"{metric.name}_sum"] == total
    assert found[f"{metrics.BATCH_MESSAGES.name}_bucket|1"] == 1
    assert found[f"{metrics.BATCH_MESSAGES.name}_bucket|100"] == 2
    assert found["pulsar_txn_tc_batched_log_triggering_count_by_size"] == 7
    # Beside those of its tasks a commit made two: it looked for plans, and decided.
    assert found[f"{metrics.BATCH_ROUND_TRIPS.name}_sum"] == (4 + 5 + 2) + (1 + 2)


def test_a_replay_counts_no_batch_but_keeps_what_its_tasks_have_counted(
    run: Components, world: World
) -> None:
    batch(world, 0, TaskWrite(partition=0, messages=3))
    again = world.batches.begin(BatchKey("sink", "query", 0), "another nonce")
    assert again.replay
    counters = {f"{metrics.ACK_LOG_BY_SIZE.name}": 2}
    task = TaskWrite(partition=0, txn_id=again.txn.key, counters=counters)
    world.batches.commit(again, [[task]], "run", acknowledge=True)
    world.store.flush_counters()
    found = samples(run)
    assert found[f"{metrics.BATCH_MESSAGES.name}_count"] == 1
    assert found[metrics.ACK_LOG_BY_SIZE.name] == 2


def test_what_a_refused_decision_would_have_delivered_is_kept_for_the_next(
    run: Components, world: World
) -> None:
    txn = world.open()
    world.store.counters.count(metrics.ACK_LOG_BY_SIZE, amount=5)
    world.store.transactions.end(txn.id, TxnState.COMMITTED, b"", EndedBy.OWNER, "another owner")
    assert value(run, metrics.ACK_LOG_BY_SIZE.name) == 0
    world.commit(txn)
    assert value(run, metrics.ACK_LOG_BY_SIZE.name) == 5
    world.store.flush_counters()
    assert value(run, metrics.ACK_LOG_BY_SIZE.name) == 5


def test_a_delivery_without_a_reply_counts_at_most_once(run: Components, world: World) -> None:
    for loss, expected in ((Loss.REQUEST, 0), (Loss.REPLY, 3)):
        world.lose({"metrics_add": [loss]})
        world.store.counters.count(metrics.ACK_LOG_BY_RECORDS, amount=3)
        world.store.flush_counters()
        world.mend()
        world.store.flush_counters()
        assert value(run, metrics.ACK_LOG_BY_RECORDS.name) == expected


def test_a_malformed_count_does_not_harm_the_decision_that_it_goes_along_with(
    run: Components, world: World
) -> None:
    txn = world.open()
    field = f"{metrics.COMMITS.name}|{txn.id.tc}"
    world.client.hset(f"{{tc{txn.id.tc}}}:metrics", field, "no number")
    world.store.transactions.end(txn.id, TxnState.COMMITTED, b"", EndedBy.OWNER, txn.nonce)
    assert world.state(txn) is TxnState.COMMITTED


def test_counts_of_another_version_are_passed_over(run: Components, world: World) -> None:
    world.open()
    world.client.hset("{tc0}:metrics", "pulsar_of_tomorrow_total|x", "3")
    assert not any("tomorrow" in name for name in samples(run))


# -- state ---------------------------------------------------------------------------------------


def test_open_transactions_and_the_age_of_the_oldest_are_told(
    run: Components, world: World
) -> None:
    assert value(run, metrics.OPEN.name) == 0
    assert value(run, metrics.OLDEST_OPEN.name) == 0
    old, _ = world.open("nonce-1"), world.open("nonce-2")
    key = f"{{tc{old.id.tc}}}:txn:{old.id.key}"
    created = int(world.client.hget(key, "created_ms"))
    world.client.hset(key, "created_ms", str(created - 90_000))
    found = samples(run)
    assert found[metrics.OPEN.name] == 2
    # The other one may be in another coordinator, and is younger than a second.
    assert 90 <= found[metrics.OLDEST_OPEN.name] < 95


def test_a_header_that_waits_for_a_participant_is_told_until_that_has_materialized(
    run: Components, world: World
) -> None:
    txn = world.open()
    winner, other = world.write(txn, "a"), world.write(txn, "b", segment=OTHER_SEGMENT)
    world.decide(txn, winner, other)
    world.store.segments.materialize(txn.id, TxnState.COMMITTED, [])
    states = tc_states(world.store)
    assert stuck_participants(world.store, states) == [], "its decision is only just made"
    index = f"{{tc{txn.id.tc}}}:idx:txn-unmaterialized"
    world.client.zincrby(index, -61_000, txn.id.key)
    found = samples(run)
    assert found[metrics.STUCK.name] == 2
    assert 61 <= found[metrics.OLDEST_UNMATERIALIZED.name] < 70
    stuck = stuck_participants(world.store, tc_states(world.store))
    assert {(one.txn, one.segment) for one in stuck} == {
        (txn.id, SEGMENT),
        (txn.id, OTHER_SEGMENT),
    }
    world.coordinator.materialize(world.header(txn))
    found = samples(run)
    assert (found[metrics.STUCK.name], found[metrics.OLDEST_UNMATERIALIZED.name]) == (0, 0)
    assert found[metrics.DECIDED.name] == 1


def segment_of(run: Components, number: int = 0) -> SegmentRef:
    return run.topics.require(TOPIC).segments[number].ref


def test_the_lag_of_max_read_position_is_what_lies_between_the_pin_and_the_end(
    run: Components, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.topics.create(TOPIC, 2)
    blocked = segment_of(run)
    txn = world.open()
    world.admit(txn, segment=blocked.id)
    asked: list[tuple[Position, Position]] = []

    def measure(_: object, ref: SegmentRef, start: Position, end: Position) -> RangeSize:
        asked.append((start, end))
        return RangeSize(3, 17, 0, exact=True)

    log = type(run.log)
    monkeypatch.setattr(log, "last_confirmed", lambda _, ref: Position(1, 5))
    monkeypatch.setattr(log, "measure", measure)
    found = samples(run)
    lag = metrics.LAG.name
    assert found[f"{lag}|{TOPIC}|{blocked.id}"] == 17
    assert found[f"{lag}|{TOPIC}|{segment_of(run, 1).id}"] == 0
    assert asked == [(EARLIEST, Position(1, 5))], "a segment without pins costs no request"


def test_a_segment_whose_log_is_gone_does_not_take_the_other_metrics_along(
    run: Components, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.topics.create(TOPIC, 1)
    world.admit(world.open(), segment=segment_of(run).id)

    def gone(_: object, ref: SegmentRef) -> Position:
        raise SegmentNotFoundError(ref.id)

    monkeypatch.setattr(type(run.log), "last_confirmed", gone)
    found = samples(run)
    assert found[metrics.STORE_UP.name] == 1
    assert f"{metrics.LAG.name}|{TOPIC}|{segment_of(run).id}" not in found


def test_dropped_writers_and_topics_with_transactions_are_told(
    run: Components, world: World
) -> None:
    run.topics.create(TOPIC, 1)
    run.topics.create(TopicName.parse("plain"), 1)
    assert value(run, metrics.TXN_TOPICS.name) == 0
    txn = world.open()
    world.admit(txn, segment=segment_of(run).id)
    world.abort(txn)
    found = samples(run)
    assert found[metrics.TXN_TOPICS.name] == 1
    assert found[f"{metrics.DROPPED.name}|{TOPIC}|{segment_of(run).id}"] == 1


def test_no_more_segments_have_samples_than_the_bound_and_those_in_trouble_come_first(
    run: Components, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus, "SHOWN_SEGMENTS", 2)
    run.topics.create(TOPIC, 5)
    world.admit(world.open(), segment=segment_of(run, 4).id)
    found = samples(run)
    shown = [name for name in found if name.startswith(metrics.DROPPED.name)]
    assert len(shown) == 2
    assert f"{metrics.DROPPED.name}|{TOPIC}|{segment_of(run, 4).id}" in shown
    assert found[metrics.LEFT_OUT.name] == 3


def test_a_scrape_scans_no_keys_and_its_cost_does_not_grow_with_transactions(
    run: Components, world: World
) -> None:
    def cost() -> int:
        samples(run)  # tags are initialized on first use
        before = run.store.round_trips
        samples(run)
        return run.store.round_trips - before

    run.topics.create(TOPIC, 3)
    least = cost()
    for number in range(40):
        txn = world.open(f"nonce-{number}")
        if number % 2:
            world.commit(txn, world.write(txn, "x", segment=segment_of(run).id))
    assert cost() == least


# -- the endpoint --------------------------------------------------------------------------------


def fetch(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_the_endpoint_speaks_prometheus_on_loopback(
    redis_path: str, redis_client: redis.Redis, serving: None
) -> None:
    server = serve_metrics({"store.path": redis_path})
    assert server.host == "127.0.0.1"
    found = fetch(server.url)
    assert found["pulsar_txn_store_up"].type == "gauge"
    assert found["pulsar_txn_metadata_store_header_cas"].type == "counter"
    assert found["pulsar_txn_micro_batch_bytes"].type == "histogram"
    named = found["pulsar_txn_tc_batched_log_triggering_count_by_records"]
    assert {sample.name for sample in named.samples} == {named.name}


def test_a_process_has_one_endpoint_and_shows_every_store_there(
    redis_path: str, redis_client: redis.Redis, serving: None, caplog: pytest.LogCaptureFixture
) -> None:
    first = serve_metrics({"store.path": redis_path})
    again = serve_metrics({"store.path": redis_path}, port=1)
    assert again is first
    assert "metrics.port=1 is not used" in caplog.text
    (up,) = fetch(first.url)["pulsar_txn_store_up"].samples
    other = prometheus.StoreMetrics(
        open_components(Options({"store.path": redis_path}, Use.CONNECT))
    )
    first._stores.stores["another"] = other
    families = fetch(first.url)
    assert [s.value for s in families["pulsar_txn_store_up"].samples] == [1, 1]
    assert up.labels["cluster"]


def test_metrics_are_served_again_after_the_endpoint_was_closed(
    redis_path: str, redis_client: redis.Redis, serving: None
) -> None:
    with serve_metrics({"store.path": redis_path}) as first:
        assert fetch(first.url)
    again = serve_metrics({"store.path": redis_path})
    assert fetch(again.url)["pulsar_txn_store_up"].samples


def test_scrapers_that_come_together_cost_as_much_as_one(run: Components) -> None:
    store = prometheus.StoreMetrics(run)
    store.families()
    before = run.store.round_trips
    threads = [threading.Thread(target=store.families) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert run.store.round_trips == before


def test_a_port_that_another_has_is_refused_with_a_way_out(
    redis_path: str, redis_client: redis.Redis, serving: None
) -> None:
    taken = prometheus.MetricsServer("127.0.0.1", 0)
    try:
        ways = r"another process has the port.*metrics\.port or --metrics-port"
        with pytest.raises(OptionError, match=ways):
            serve_metrics({"store.path": redis_path}, port=taken.port)
    finally:
        taken.close()


def test_a_store_that_is_down_is_told_and_makes_up_no_figures(
    run: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*_: object, **__: object) -> None:
        raise StoreUnavailableError("nobody there")

    monkeypatch.setattr(type(run.store.transactions), "tc_state", down)
    assert samples(run) == {metrics.STORE_UP.name: 0}


# -- options -------------------------------------------------------------------------------------


def test_a_sink_without_a_lasting_process_refuses_the_option_and_says_where_it_belongs(
    redis_path: str, redis_client: redis.Redis
) -> None:
    from pyspark.sql.types import StringType, StructField, StructType  # noqa: PLC0415

    from pulsar_txn_spark.spark.sink.writers import PulsarTxnStreamWriter, PulsarTxnWriter  # noqa: PLC0415

    given = {"store.path": redis_path, "topic": "t", "metrics.port": "0"}
    schema = StructType([StructField("value", StringType())])
    for kind in (PulsarTxnStreamWriter, PulsarTxnWriter):
        with pytest.raises(OptionError, match="serve_metrics"):
            kind(given, schema, overwrite=False)


def test_a_foreach_batch_sink_serves_from_the_process_that_makes_it(
    redis_path: str, redis_client: redis.Redis, run: Components, serving: None
) -> None:
    from pulsar_txn_spark import TransactionalSink  # noqa: PLC0415

    run.topics.create(TOPIC, 1)
    sink = TransactionalSink({"store.path": redis_path, "topic": str(TOPIC), "metrics.port": "0"})
    (server,) = prometheus._servers.values()
    assert "pulsar_txn_store_up" in fetch(server.url)
    assert "metrics.port" not in sink._options.raw, "the tasks' writers would refuse it"


def test_a_stream_source_serves_when_it_runs_and_outlives_a_taken_port(
    redis_path: str, redis_client: redis.Redis, run: Components, serving: None
) -> None:
    from pyspark.sql.types import StructType  # noqa: PLC0415

    from pulsar_txn_spark.spark.source.stream import PulsarTxnStreamReader  # noqa: PLC0415

    run.topics.create(TOPIC, 1)
    taken = prometheus.MetricsServer("127.0.0.1", 0)
    given = {"store.path": redis_path, "topic": str(TOPIC), "metrics.port": str(taken.port)}
    source = PulsarTxnStreamReader(given, StructType())
    assert not prometheus._servers, "planning makes one as well"
    offset = source.initialOffset()
    assert not prometheus._servers
    taken.close()
    source.commit(offset)
    (server,) = prometheus._servers.values()
    assert server.port == taken.port
    assert "pulsar_txn_store_up" in fetch(server.url)
