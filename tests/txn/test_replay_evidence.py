"""What tells a replay of a committed batch from other data under the same batch id (INV-15)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from pulsar_txn_spark.errors import FencedError, TransactionConflictError
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.spark.checkpoint import LocalCheckpoint, wants_fingerprint
from pulsar_txn_spark.spark.rows import READ_SCHEMA
from pulsar_txn_spark.spark.sink import writers as sink_module
from pulsar_txn_spark.spark.sink.fingerprint import MODULUS, InputRows, fingerprint_of
from pulsar_txn_spark.spark.sink.writers import PulsarTxnWriter
from pulsar_txn_spark.spark.source import stream as source_module
from pulsar_txn_spark.spark.source.offsets import SourceOffset
from pulsar_txn_spark.spark.source.stream import PulsarTxnStreamReader
from pulsar_txn_spark.spark.versions import ReadAllAvailable
from pulsar_txn_spark.store.metadata_pb2 import Outcome, Pointer, TaskWrite
from pulsar_txn_spark.txn.batch import BatchKey
from pulsar_txn_spark.txn.pending_ack import PlannedRange, ReadPlan
from pulsar_txn_spark.txn.replay_evidence import Compared, EvidenceRule, PlannedBatch
from pulsar_txn_spark.txn.sweeper import Sweeper
from tests.support.scenario import SEGMENT, World
from tests.support.sink_calls import QUERY, SCHEMA, Spark

OWN = json.dumps(SourceOffset("uuid", "1").to_json())
ELSEWHERE = json.dumps(SourceOffset("uuid of another store", "1").to_json())
FILES = '{"logOffset":0}'


class Checkpoint:
    """The part of Spark's checkpoint that tells what was planned."""

    def __init__(self, root: Path, query: str = QUERY) -> None:
        self.root = root
        (root / "offsets").mkdir(parents=True)
        (root / "metadata").write_text(json.dumps({"id": query}))

    def plan(self, batch: int, planned_at: int, *sources: str) -> None:
        lines = ["v1", json.dumps({"batchTimestampMs": planned_at}), *(sources or (FILES,))]
        (self.root / "offsets" / str(batch)).write_text("\n".join(lines))

    def copied(self, to: Path) -> Checkpoint:
        other = Checkpoint(to)
        for file in (self.root / "offsets").iterdir():
            (to / "offsets" / file.name).write_bytes(file.read_bytes())
        return other


@pytest.fixture
def spark(redis_path: str, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Spark:
    return Spark(redis_path, monkeypatch)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path / "checkpoint")


def run(spark: Spark, batch: int, *values: str, at: Checkpoint | None = None) -> None:
    """Run a micro-batch in a run of its own, on a checkpoint that can be read or on none."""
    spark.execution += 1
    spark.batch = batch
    if at is None:
        spark.options.pop("checkpointlocation", None)
    else:
        spark.options["checkpointlocation"] = str(at.root)
    spark.micro_batch(*values)


# --- a source of another kind -----------------------------------------------------------------


def test_other_rows_of_a_foreign_source_do_not_pass_for_a_replay(spark: Spark) -> None:
    # The checkpoint was restored one batch older; the file source plans batch 0 anew.
    run(spark, 0, "a", "b")
    for other in (["c", "d"], ["a", "b", "c"], ["a"], []):
        with pytest.raises(TransactionConflictError, match="with other input"):
            run(spark, 0, *other)
    assert spark.visible() == Counter("ab")
    run(spark, 0, "b", "a")
    run(spark, 1, "c")
    assert spark.visible() == Counter("abc")


def test_a_batch_that_was_planned_anew_on_a_restored_checkpoint_is_no_replay(
    spark: Spark, checkpoint: Checkpoint
) -> None:
    checkpoint.plan(0, 1000)
    run(spark, 0, "a", "b", at=checkpoint)
    checkpoint.plan(0, 2000)
    with pytest.raises(TransactionConflictError, match="planned it anew"):
        run(spark, 0, "c", "d", at=checkpoint)
    assert spark.visible() == Counter("ab")


def test_a_replay_by_the_same_plan_may_have_other_rows(
    spark: Spark, checkpoint: Checkpoint
) -> None:
    # A query that is not deterministic: what is written is what was committed.
    checkpoint.plan(0, 1000)
    run(spark, 0, "random 1", at=checkpoint)
    run(spark, 0, "random 2", "random 3", at=checkpoint)
    assert spark.visible() == Counter(["random 1"])


def test_of_two_drivers_on_copies_of_one_checkpoint_one_goes_on_and_nothing_is_lost(
    spark: Spark, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    checkpoint.plan(0, 1000)
    run(spark, 0, "a", at=checkpoint)
    copy = checkpoint.copied(tmp_path / "copy")
    run(spark, 0, "a", at=copy)  # both know it as done
    checkpoint.plan(1, 2000)
    copy.plan(1, 2001)
    run(spark, 1, "b", at=checkpoint)
    with pytest.raises(TransactionConflictError, match="a copy that went its own way"):
        run(spark, 1, "b", "c", at=copy)
    checkpoint.plan(2, 3000)
    run(spark, 2, "c", at=checkpoint)
    assert spark.visible() == Counter("abc")


def test_a_copy_that_went_through_a_batch_elsewhere_is_fenced_in_the_next(
    spark: Spark, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    # In batch 1 the copy's function wrote nothing here, so it was compared with nothing.
    checkpoint.plan(0, 1000)
    run(spark, 0, "a", at=checkpoint)
    copy = checkpoint.copied(tmp_path / "copy")
    checkpoint.plan(1, 2000)
    copy.plan(1, 2001)
    run(spark, 1, "b", at=checkpoint)
    copy.plan(2, 3001)
    with pytest.raises(FencedError, match="the two went different ways"):
        run(spark, 2, "b", at=copy)
    assert spark.visible() == Counter("ab")
    checkpoint.plan(2, 3000)
    run(spark, 2, "c", at=checkpoint)
    assert spark.visible() == Counter("abc")


def test_a_lineage_is_known_after_failed_attempts_and_when_headers_are_gone(
    spark: Spark, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    checkpoint.plan(0, 1000)
    run(spark, 0, "a", at=checkpoint)
    other = Checkpoint(tmp_path / "other")
    other.plan(0, 1001)
    Sweeper(spark.run.coordinator, lambda _: None, retention_ms=0).sweep()
    for at in (checkpoint, other):
        at.plan(1, 2000)
    for _ in range(2):  # the first attempt leaves a pointer that names batch 1, ABORTED
        with pytest.raises(FencedError, match="the two went different ways"):
            run(spark, 1, "b", at=other)
    run(spark, 1, "b", at=checkpoint)
    assert spark.visible() == Counter("ab")


def test_where_the_checkpoint_was_readable_once_and_is_not_now_nothing_is_guessed(
    spark: Spark, checkpoint: Checkpoint
) -> None:
    checkpoint.plan(0, 1000)
    run(spark, 0, "a", at=checkpoint)
    with pytest.raises(TransactionConflictError, match="no fingerprint that could be compared"):
        run(spark, 0, "a")
    spark.options["replayEvidence"] = "none"
    run(spark, 0, "a")
    assert spark.visible() == Counter("a")


def test_where_the_checkpoint_is_readable_only_now_the_rows_decide(
    spark: Spark, checkpoint: Checkpoint
) -> None:
    run(spark, 0, "a")
    checkpoint.plan(0, 1000)
    with pytest.raises(TransactionConflictError, match="another fingerprint"):
        run(spark, 0, "b", at=checkpoint)
    run(spark, 0, "a", at=checkpoint)
    assert spark.visible() == Counter("a")


def test_a_checkpoint_that_loses_the_running_batch_stops_it(
    spark: Spark, checkpoint: Checkpoint
) -> None:
    with pytest.raises(TransactionConflictError, match="expected in the checkpoint"):
        run(spark, 0, "a", at=checkpoint)
    assert spark.visible() == Counter()


def test_the_checkpoint_of_another_query_says_nothing(spark: Spark, tmp_path: Path) -> None:
    other = Checkpoint(tmp_path / "other", query="another query")
    other.plan(0, 1000)
    run(spark, 0, "a", at=other)
    with pytest.raises(TransactionConflictError, match="another fingerprint"):
        run(spark, 0, "b", at=other)


def test_a_batch_that_an_older_version_committed_is_compared_by_its_ranges_only(
    spark: Spark, redis_client: redis.Redis
) -> None:
    run(spark, 0, "a")
    pointer = Pointer.FromString(spark.run.store.sinks.read_pointer(QUERY, QUERY).own)
    client: Any = redis_client
    [key] = client.keys(f"*:txn:{pointer.txn_id}")
    outcome = Outcome.FromString(client.hget(key, "outcome"))
    outcome.ClearField("evidence")
    client.hset(key, "outcome", outcome.SerializeToString())
    run(spark, 0, "b")
    assert spark.visible() == Counter("a")


def test_a_replay_is_fenced_where_another_driver_has_gone_on_meanwhile(world: World) -> None:
    batch(world, planned("one", foreign=True))
    replay = world.batches.begin(KEY, "the second driver")
    batch(world, planned("one", foreign=True), key=BatchKey("sink", QUERY, 1))
    Sweeper(world.coordinator, lambda _: None, retention_ms=0).sweep()
    task = TaskWrite(partition=0, txn_id=replay.txn.key, rows=99)
    with pytest.raises(FencedError, match="went on to batch 1"):
        world.batches.commit(
            replay, [[task]], "run", acknowledge=True, rule=planned("other", foreign=True)
        )


# --- the option -------------------------------------------------------------------------------


def test_rows_compares_the_rows_even_of_the_same_plan(spark: Spark, checkpoint: Checkpoint) -> None:
    spark.options["replayEvidence"] = "rows"
    checkpoint.plan(0, 1000)
    run(spark, 0, "a", at=checkpoint)
    with pytest.raises(TransactionConflictError, match="another fingerprint"):
        run(spark, 0, "b", at=checkpoint)
    checkpoint.plan(0, 2000)
    run(spark, 0, "a", at=checkpoint)  # planned anew with the same rows
    checkpoint.plan(1, 3000)
    run(spark, 1, "b", at=checkpoint)  # and its lineage is the sink's from then on
    assert spark.visible() == Counter("ab")


def test_offsets_needs_offsets(spark: Spark, checkpoint: Checkpoint) -> None:
    spark.options["replayEvidence"] = "offsets"
    with pytest.raises(TransactionConflictError, match="replayEvidence=offsets compares"):
        run(spark, 0, "a")
    checkpoint.plan(0, 1000)
    run(spark, 0, "a", at=checkpoint)
    run(spark, 0, "b", at=checkpoint)
    checkpoint.plan(0, 2000)
    with pytest.raises(TransactionConflictError, match="planned it anew"):
        run(spark, 0, "a", at=checkpoint)


@pytest.mark.parametrize(
    "compared, readable, replay, wanted",
    [
        ("auto", False, False, True),
        ("auto", True, False, False),
        ("auto", True, True, True),
        ("rows", True, False, True),
        ("offsets", False, True, False),
        ("none", False, True, False),
    ],
)
def test_a_fingerprint_is_made_only_where_it_may_be_needed(
    compared: str, readable: bool, replay: bool, wanted: bool
) -> None:
    options = Options({"replayEvidence": compared}, Use.WRITE | Use.STREAM)
    found = wants_fingerprint(
        options, query=QUERY, readable=QUERY if readable else "", replay=replay
    )
    assert found is wanted
    assert not wants_fingerprint(options, query="", readable="", replay=False), "a batch write"


# --- sources of ours, and both ----------------------------------------------------------------

KEY = BatchKey("sink", QUERY, 0)


def planned(digest: str, *, foreign: bool | None = None) -> EvidenceRule:
    return EvidenceRule(planned=lambda _: PlannedBatch(digest.encode(), foreign))


NOT_READABLE = EvidenceRule()


def batch(
    world: World,
    rule: EvidenceRule,
    *plans: str,
    rows: int = 3,
    fingerprint: int | None = None,
    end: int = 10,
    key: BatchKey = KEY,
    between: Callable[[], None] = lambda: None,
) -> None:
    """Run a batch that reads by plans (`name` is the segment's), in a run of its own.

    Something may happen `between` its begin and its commit.
    """
    execution_id = f"run-{world.store.meta.next_source_epoch()}"
    for name in plans:
        ranges = (PlannedRange(f"{SEGMENT}/{name}", EARLIEST, Position(1, end)),)
        plan = ReadPlan(f"{name} {execution_id}", 1, "", execution_id, ranges)
        world.store.queries.register_plan(key.query, str(key.batch), plan.source, plan.serialize())
    attempt = world.batches.begin(key, f"nonce {execution_id}")
    task = TaskWrite(partition=0, txn_id=attempt.txn.key)
    if not attempt.replay:
        task = world.write_batch(attempt, "row")
    between()
    task.rows = rows
    if fingerprint is not None:
        task.fingerprint = fingerprint
    world.batches.commit(attempt, [[task]], execution_id, acknowledge=True, rule=rule)


def test_a_batch_of_our_sources_that_was_planned_anew_with_the_same_ranges_is_a_replay(
    world: World,
) -> None:
    batch(world, planned("one", foreign=False), "s")
    batch(world, planned("two", foreign=False), "s", rows=4)
    with pytest.raises(TransactionConflictError, match="other ranges"):
        batch(world, planned("three", foreign=False), "s", end=11)


@pytest.mark.parametrize("plans", [(), ("s",)])
def test_a_replay_is_compared_with_what_was_committed_although_a_sweep_takes_the_header(
    world: World, monkeypatch: pytest.MonkeyPatch, plans: tuple[str, ...]
) -> None:
    sweeper = Sweeper(world.another_process().coordinator, lambda _: None, retention_ms=-1)
    read_pointer, swept = world.store.sinks.read_pointer, []

    def read_then_swept(sink: str, query: str) -> Any:
        found = read_pointer(sink, query)
        swept.append(sweeper.sweep().headers_removed)
        return found

    def sweep_after_the_next_read() -> None:
        monkeypatch.setattr(world.store.sinks, "read_pointer", read_then_swept)

    batch(world, NOT_READABLE, *plans, fingerprint=7)
    with pytest.raises(TransactionConflictError, match="another fingerprint"):
        batch(world, NOT_READABLE, *plans, fingerprint=8, between=sweep_after_the_next_read)
    assert sum(swept) == 1
    batch(world, NOT_READABLE, *plans, fingerprint=7)


def test_a_replay_of_the_same_ranges_is_accepted_although_a_sweep_takes_the_header(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeper = Sweeper(world.another_process().coordinator, lambda _: None, retention_ms=-1)
    read_pointer = world.store.sinks.read_pointer

    def read_then_swept(sink: str, query: str) -> Any:
        found = read_pointer(sink, query)
        sweeper.sweep()
        return found

    rule = planned("one", foreign=False)
    batch(world, rule, "s")
    batch(
        world,
        rule,
        "s",
        between=lambda: monkeypatch.setattr(world.store.sinks, "read_pointer", read_then_swept),
    )
    assert not world.client.keys("*:txn:*")


def test_equal_ranges_do_not_vouch_for_a_foreign_source_beside_ours(world: World) -> None:
    batch(world, planned("one", foreign=True), "s")
    with pytest.raises(TransactionConflictError, match="planned it anew, with a source"):
        batch(world, planned("two", foreign=True), "s", rows=4)
    batch(world, planned("one", foreign=True), "s", rows=4)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_equal_ranges_do_not_vouch_for_a_source_on_another_store(
    spark: Spark, checkpoint: Checkpoint, elsewhere: bool
) -> None:
    # The checkpoint was restored one batch older. Spark plans batch 0 anew: alike on the sink's
    # store, further on the other.
    uuid = spark.run.store.identity.uuid
    sources = [json.dumps(SourceOffset(uuid, "1").to_json()), *[ELSEWHERE] * elsewhere]

    def replay(*values: str) -> None:
        run_id = f"app/{spark.execution + 1}"
        ranges = (PlannedRange(f"{SEGMENT}/s", EARLIEST, Position(1, 10)),)
        plan = ReadPlan(f"source of {run_id}", 1, "", run_id, ranges)
        spark.run.store.queries.register_plan(QUERY, "0", plan.source, plan.serialize())
        run(spark, 0, *values, at=checkpoint)

    checkpoint.plan(0, 1000, *sources)
    replay("a", "b")
    replay("a", "b")
    checkpoint.plan(0, 2000, *sources)
    if elsewhere:
        with pytest.raises(TransactionConflictError, match="planned it anew, with a source"):
            replay("a", "b", "c")
        with pytest.raises(TransactionConflictError, match="no fingerprint"):
            replay("a", "c")
        checkpoint.plan(0, 1000, *sources)
    replay("a", "b")
    assert spark.visible() == Counter("ab")


def test_where_nobody_knows_the_sources_the_rows_decide_beside_the_ranges(world: World) -> None:
    batch(world, NOT_READABLE, "s", fingerprint=7)
    with pytest.raises(TransactionConflictError, match="another fingerprint"):
        batch(world, NOT_READABLE, "s", fingerprint=8)
    with pytest.raises(TransactionConflictError, match="other ranges"):
        batch(world, NOT_READABLE, "s", end=11, fingerprint=7)
    batch(world, NOT_READABLE, "s", fingerprint=7)


def test_with_offsets_the_ranges_vouch_for_a_query_that_is_not_deterministic(world: World) -> None:
    rule = EvidenceRule(Compared.OFFSETS)
    batch(world, rule, "s")
    batch(world, rule, "s", rows=4)
    with pytest.raises(TransactionConflictError, match="other ranges"):
        batch(world, rule, "s", end=11)


def test_with_none_the_ranges_of_our_sources_are_compared_and_nothing_else(world: World) -> None:
    rule = EvidenceRule(Compared.NONE)
    batch(world, rule, "s")
    batch(world, rule, "s", rows=4)
    with pytest.raises(TransactionConflictError, match="other ranges"):
        batch(world, rule, "s", end=11)


@pytest.mark.parametrize("first", [("s",), ("s", "t")])
def test_a_side_that_adaptive_execution_cancelled_in_one_run_does_not_stop_the_replay(
    world: World, first: tuple[str, ...]
) -> None:
    # Its tasks never ran, so that its plan was registered in one run and not in the other.
    second = ("s",) if len(first) == 2 else ("s", "t")
    batch(world, planned("one", foreign=False), *first)
    batch(world, planned("one", foreign=False), *second)
    other = BatchKey("other", "other query", 0)
    batch(world, NOT_READABLE, *first, fingerprint=7, key=other)
    batch(world, NOT_READABLE, *second, fingerprint=7, key=other)
    with pytest.raises(TransactionConflictError, match="another fingerprint"):
        batch(world, NOT_READABLE, *second, fingerprint=8, key=other)
    with pytest.raises(TransactionConflictError, match="other ranges"):
        batch(world, NOT_READABLE, "u", fingerprint=7, key=other)


# --- the checkpoint ---------------------------------------------------------------------------


def test_a_local_checkpoint_is_found_as_spark_names_it(checkpoint: Checkpoint) -> None:
    checkpoint.plan(0, 1000)
    root = str(checkpoint.root)
    for location in (root, f"file:{root}", f"file://{root}"):
        found = LocalCheckpoint.at(location)
        assert found is not None
        assert found.query == QUERY
        assert found.planned(0, "uuid") is not None
        assert found.planned(1, "uuid") is None
    for elsewhere in (None, f"hdfs://host{root}", f"s3a:/{root}", f"{root}/elsewhere"):
        assert LocalCheckpoint.at(elsewhere) is None


@pytest.mark.parametrize(
    "sources, foreign",
    [
        ([OWN], False),
        ([json.dumps({**json.loads(OWN), "from": {}})], False),
        ([OWN, "-"], False),
        ([OWN, FILES], True),
        ([OWN, ELSEWHERE], True),
        (['{"v":1,"store":"uuid","topics":{}}'], True),
        (['{"v":1}'], True),
        (["7"], True),
        (["{"], True),
    ],
)
def test_a_foreign_source_is_told_by_its_offset(
    checkpoint: Checkpoint, sources: list[str], foreign: bool
) -> None:
    checkpoint.plan(0, 1000, *sources)
    found = LocalCheckpoint.at(str(checkpoint.root))
    assert found is not None
    plan = found.planned(0, "uuid")
    assert plan is not None
    assert plan.foreign is foreign


def test_a_format_of_spark_that_is_not_known_tells_nothing_of_sources(
    checkpoint: Checkpoint,
) -> None:
    (checkpoint.root / "offsets" / "0").write_text(f"v9\n{{}}\n{OWN}")
    found = LocalCheckpoint.at(str(checkpoint.root))
    assert found is not None
    plan = found.planned(0, "uuid")
    assert plan is not None
    assert plan.foreign is None


def test_offsets_that_cannot_be_read_stop_a_batch_and_are_not_taken_for_missing(
    spark: Spark, checkpoint: Checkpoint
) -> None:
    checkpoint.plan(0, 1000)
    run(spark, 0, "a", at=checkpoint)
    # The lineage of batch 1 must not go unchecked.
    checkpoint.plan(1, 2000)
    (checkpoint.root / "offsets" / "0").unlink()
    (checkpoint.root / "offsets" / "0").mkdir()
    with pytest.raises(TransactionConflictError, match="offsets of batch 0 cannot be read"):
        run(spark, 1, "b", at=checkpoint)
    assert spark.visible() == Counter("a")


# --- the fingerprint --------------------------------------------------------------------------

text = st.none() | st.binary(max_size=20) | st.binary(min_size=250, max_size=270)
props = st.none() | st.dictionaries(st.text(max_size=3), st.none() | st.text(max_size=9))
row = st.tuples(text, text, st.none() | st.integers(0, 2**62), props, st.text(max_size=3))


def columns(rows: list[tuple[object, ...]]) -> tuple[pa.RecordBatch, pa.Array]:
    kinds = [pa.binary(), pa.binary(), pa.int64(), pa.map_(pa.string(), pa.string())]
    names = ["value", "key", "event_time_ms", "properties"]
    arrays = [pa.array([_plain(item[n]) for item in rows], kind) for n, kind in enumerate(kinds)]
    topics = pa.array([item[4] for item in rows], pa.string())
    return pa.RecordBatch.from_arrays(arrays, names=names), topics


def _plain(cell: object) -> object:
    return list(cell.items()) if isinstance(cell, dict) else cell


@given(st.lists(row, max_size=12), st.randoms(use_true_random=False), st.integers(0, 12))
def test_a_fingerprint_does_not_depend_on_the_order_nor_on_the_tasks(
    rows: list[tuple[object, ...]], random: object, cut: int
) -> None:
    whole = fingerprint_of(*columns(rows))
    mixed = list(rows)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    parts = [fingerprint_of(*columns(part)) for part in (mixed[:cut], mixed[cut:])]
    assert sum(parts) % MODULUS == whole
    values, topics = columns(mixed)
    sliced = [
        fingerprint_of(values.slice(0, cut), topics.slice(0, cut)),
        fingerprint_of(values.slice(cut), topics.slice(cut)),
    ]
    assert sum(sliced) % MODULUS == whole


@given(st.lists(row, min_size=1, max_size=6), row)
def test_another_row_has_another_fingerprint(
    rows: list[tuple[object, ...]], other: tuple[object, ...]
) -> None:
    changed = [other, *rows[1:]]
    same = sorted(map(repr, changed)) == sorted(map(repr, rows))
    equal = fingerprint_of(*columns(changed)) == fingerprint_of(*columns(rows))
    assert equal == same
    assert fingerprint_of(*columns([*rows, rows[0]])) != fingerprint_of(*columns(rows))


def test_neighbouring_columns_and_rows_do_not_run_together() -> None:
    def of(*rows: tuple[bytes | None, bytes | None]) -> int:
        values, keys = zip(*rows, strict=True)
        arrays = [pa.array(values, pa.binary()), pa.array(keys, pa.binary())]
        return fingerprint_of(pa.RecordBatch.from_arrays(arrays, names=["value", "key"]))

    variants = [
        of((b"a", b"b")),
        of((b"b", b"a")),
        of((b"ab", b"")),
        of((b"", b"ab")),
        of((b"ab", None)),
        of((None, b"ab")),
        of((b"ab\0", b"")),
        of((b"", b""), (b"ab", b"")),
        of((b"a", b"c"), (b"b", b"d")),
        of((b"a", b"d"), (b"b", b"c")),
    ]
    assert len(set(variants)) == len(variants)


def test_rows_are_counted_without_a_fingerprint() -> None:
    counted = InputRows(fingerprint=False)
    counted.skip(pa.record_batch([["a", "b"]], ["value"]))
    assert (counted.count, counted.fingerprint) == (2, None)


# --- the names of attempts --------------------------------------------------------------------


class Driver:
    """One life of a driver whose application's id is the same in every life (spark.app.id)."""

    def __init__(self, spark: Spark, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (source_module, sink_module):
            monkeypatch.setattr(module, "driver_name", lambda: name)
        # Spark counts executions from 0 in every life: so the task's own facts repeat.
        spark.execution = 0
        self.spark = spark
        path = spark.options["store.path"]
        given = {"store.path": path, "topic": "in", "startingOffsets": "earliest"}
        given["subscription"] = "s"
        self.reader = PulsarTxnStreamReader(given, READ_SCHEMA)
        self.start = self.reader.initialOffset()

    def read(self, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
        """Read one micro-batch in tasks."""
        found: list[str] = []
        for number, partition in enumerate(self.reader.partitions(start, end)):
            self.spark.partition = number
            for rows in self.reader.read(partition):
                found += [value.decode() for value in rows.column("value").to_pylist()]
        return found

    def write(self, *values: str) -> None:
        """Write as `df.write` in foreachBatch does: once in a run."""
        writer = PulsarTxnWriter(self.spark.options, SCHEMA, overwrite=False)
        writer.commit([self.spark.task(writer, 0, *values)])


def test_a_replay_is_no_second_write_where_the_application_has_a_fixed_id(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.run.topics.create(TopicName.parse("in"), 1)
    first = Driver(spark, "jvm 1", monkeypatch)
    first.write("a")
    with pytest.raises(TransactionConflictError, match="was written already"):
        first.write("a")
    Driver(spark, "jvm 2", monkeypatch).write("a")
    assert spark.visible() == Counter("a")


def test_plans_of_a_dead_driver_do_not_count_where_the_application_has_a_fixed_id(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = TopicName.parse("in")
    spark.run.topics.create(topic, 1)
    segment = spark.run.topics.require(topic).active[0].ref
    for value in ("a", "b"):
        writer = spark.run.log.writer(segment, f"plain {value}")
        writer.append(pa.record_batch([pa.array([value.encode()])], names=["value"]))
        last = writer.flush().last
        assert last is not None
        spark.run.store.segments.raise_high(segment.id, last)
        writer.close()
    first = Driver(spark, "jvm 1", monkeypatch)
    end = first.reader.latestOffset(first.start, ReadAllAvailable())
    assert first.read(first.start, end) == ["a", "b"]  # and then its process dies
    second = Driver(spark, "jvm 2", monkeypatch)
    values = second.read(first.start, end)
    spark.micro_batch(*values)
    assert spark.visible() == Counter("ab")
    [cursor] = spark.run.store.subscriptions.read_cursors([segment.id], "s")
    assert cursor is not None
    assert cursor.position == last
