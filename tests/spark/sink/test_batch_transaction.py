"""Several writes of a ``foreachBatch`` function, in one transaction."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest
import redis
from pyspark.sql import DataFrame

from pulsar_txn_spark.errors import (
    BatchNotRecordedError,
    CommitStateUnknownError,
    OptionError,
    StoreUnavailableError,
    TopicNotFoundError,
    TransactionAbortedError,
    TransactionConflictError,
)
from pulsar_txn_spark.spark import connect as connect_module
from pulsar_txn_spark.spark.context import BATCH_ID, QUERY_ID, TaskFacts
from pulsar_txn_spark.spark.sink.batch_transaction import BatchTransaction
from pulsar_txn_spark.spark.sink.writers import PulsarTxnWriter
from pulsar_txn_spark.store.records import EndedBy, TxnId, TxnState
from tests.support.frames import WritableFrame
from tests.support.sink_calls import QUERY, SCHEMA, Spark, attempt_ids


@pytest.fixture
def spark(redis_path: str, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Spark:
    return Spark(redis_path, monkeypatch)


class Frame(WritableFrame):
    """A DataFrame that a scope can write: it calls the sink in the thread that saves it."""

    def __init__(self, spark: Spark, *values: str, after: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._spark, self._values, self._after = spark, values, after

    def limit(self, _: int) -> Frame:
        return Frame(self._spark)

    def selectExpr(self, *_: str) -> Self:  # noqa: N802 - as PySpark has it
        return self

    def save(self) -> None:
        writer = PulsarTxnWriter(self.given, SCHEMA, overwrite=False)
        result = self._spark.task(writer, 0, *self._values)
        if self._after is not None:
            self._after()
        writer.commit([result])


def scope(spark: Spark, name: str = "function/f") -> BatchTransaction:
    return BatchTransaction(spark.options, spark.batch, frame(spark), name)


def frame(spark: Spark, *values: str, after: Callable[[], None] | None = None) -> DataFrame:
    return cast("DataFrame", Frame(spark, *values, after=after))


def fail() -> None:
    raise RuntimeError("the job fails after its tasks have published")


def test_all_writes_of_a_scope_are_one_transaction(spark: Spark) -> None:
    with scope(spark) as txn:
        txn.write(frame(spark, "a"))
        txn.write(frame(spark, "b"))
        assert spark.visible() == Counter()
    assert spark.visible() == Counter("ab")


def test_a_scope_that_lost_its_lease_writes_no_more(spark: Spark) -> None:
    txn = scope(spark)
    with pytest.raises(TransactionAbortedError, match="nothing more is written"), txn:  # noqa: PT012 - the block is what ends the scope
        txn.write(frame(spark, "a"))
        id_ = spark.run.store.transactions.of_nonce(txn._shard, txn._nonce)
        assert id_ is not None
        spark.run.coordinator.abort(id_, EndedBy.ADMIN, cause="an administrator did")
        with pytest.raises(TransactionAbortedError) as caught:
            txn._lease.beat()
        txn._lease.lost(caught.value)
        txn.write(frame(spark, "b"))
    assert list(txn._declared) == ["#1"], "the second one was not begun"
    assert spark.visible() == Counter()


def test_a_scope_extends_the_lease_of_its_transaction_or_of_what_it_has_staged(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched: list[str] = []
    monkeypatch.setattr(
        spark.run.store.stages, "touch", lambda _, nonce, **__: touched.append(nonce)
    )
    with scope(spark) as txn:
        txn._lease.beat()
        assert touched == [], "there is nothing to be kept yet"
        txn._declared["declared"] = 1
        txn._lease.beat()
        assert touched == [txn._nonce]
        del txn._declared["declared"]
        txn.write(frame(spark, "a"))
        id_ = spark.run.store.transactions.of_nonce(txn._shard, txn._nonce)
        assert id_ is not None
        header = spark.run.store.transactions.read(id_)
        assert header is not None
        txn._lease.beat()
        later = spark.run.store.transactions.read(id_)
        assert later is not None
        assert later.deadline_ms > header.deadline_ms
        assert touched == [txn._nonce]


def test_a_scope_that_raises_leaves_nothing(spark: Spark) -> None:
    def write_and_fail() -> None:
        with scope(spark) as txn:
            txn.write(frame(spark, "a"))
            fail()

    with pytest.raises(RuntimeError):
        write_and_fail()
    assert spark.visible() == Counter()
    assert [
        gate.pins for gate in spark.run.store.segments.gates([r.id for r in spark.segments()])
    ] == [
        (),
        (),
    ]


def test_a_write_whose_error_was_swallowed_keeps_the_scope_from_committing(spark: Spark) -> None:
    def swallow() -> None:
        with scope(spark) as txn:
            txn.write(frame(spark, "a"))
            with pytest.raises(RuntimeError):
                txn.write(frame(spark, "b", after=fail))

    with pytest.raises(TransactionConflictError, match="its error was swallowed"):
        swallow()
    assert spark.visible() == Counter()


def test_of_a_slot_that_failed_and_ran_again_only_the_second_run_counts(spark: Spark) -> None:
    with scope(spark) as txn:
        with pytest.raises(RuntimeError):
            txn.write(frame(spark, "first run", after=fail), slot="out")
        txn.write(frame(spark, "second run"), slot="out")
    assert spark.visible() == Counter(["second run"])


def test_a_slot_that_ran_well_and_then_failed_does_not_commit(spark: Spark) -> None:
    # The result of the first run is staged, but the last that the user's code saw is a failure.
    def run_again_and_fail() -> None:
        with scope(spark) as txn:
            txn.write(frame(spark, "first run"), slot="out")
            with pytest.raises(RuntimeError):
                txn.write(frame(spark, "second run", after=fail), slot="out")

    with pytest.raises(TransactionConflictError, match="did not succeed"):
        run_again_and_fail()
    assert spark.visible() == Counter()


def test_a_run_of_a_slot_that_ends_after_the_next_has_begun_is_refused(spark: Spark) -> None:
    with scope(spark) as txn:

        def run_again() -> None:
            txn.write(frame(spark, "second run"), slot="out")

        with pytest.raises(TransactionConflictError, match="was run again"):
            txn.write(frame(spark, "first run", after=run_again), slot="out")
    assert spark.visible() == Counter(["second run"])


def test_a_success_that_is_seen_late_does_not_hide_the_failure_of_a_later_run(
    spark: Spark,
) -> None:
    # Two threads run one slot: the first is done, but slow to return; the second then fails.
    def both() -> None:
        with scope(spark) as txn:
            first = Frame(spark, "first run")
            save = first.save

            def save_and_let_the_other_fail() -> None:
                save()
                with pytest.raises(RuntimeError):
                    txn.write(frame(spark, "second run", after=fail), slot="out")

            first.save = save_and_let_the_other_fail  # type: ignore[method-assign]
            txn.write(cast("DataFrame", first), slot="out")

    with pytest.raises(TransactionConflictError, match="did not succeed"):
        both()
    assert spark.visible() == Counter()


@pytest.mark.parametrize("name", ["write-1", "write-2", "1", "2"])
def test_a_write_without_a_slot_is_no_run_of_a_slot_of_any_name(spark: Spark, name: str) -> None:
    with scope(spark) as txn:
        txn.write(frame(spark, "a"), slot=name)
        txn.write(frame(spark, "b"))
        txn.write(frame(spark, "c"))
    assert spark.visible() == Counter("abc")


def test_writes_without_a_slot_are_counted_apart_from_the_slots(spark: Spark) -> None:
    with scope(spark) as txn:
        txn.write(frame(spark, "a"))
        txn.write(frame(spark, "b"), slot="named")
        txn.write(frame(spark, "c"))
        assert list(txn._declared) == ["#1", "named", "#2"]
    assert spark.visible() == Counter("abc")


@pytest.mark.parametrize("name", ["#1", "#", "a/1", "/", 1])
def test_a_slot_name_that_could_be_another_writes_is_refused(spark: Spark, name: Any) -> None:
    with scope(spark) as txn:
        txn.write(frame(spark, "a"), slot="a")
        with pytest.raises(OptionError, match=r"is not allowed.*another name"):
            txn.write(frame(spark, "b"), slot=name)
        txn.write(frame(spark, "c"))
    assert spark.visible() == Counter("ac"), "the refused one was not declared"


def test_a_replayed_scope_writes_nothing(spark: Spark) -> None:
    for execution in range(2):
        spark.execution = execution
        with scope(spark) as txn:
            txn.write(frame(spark, "a"))
            txn.write(frame(spark, "b"))
    assert spark.visible() == Counter("ab")


def state_of(spark: Spark, txn: BatchTransaction) -> TxnState | None:
    """Return the state of a scope's transaction, None if it has none."""
    id_ = spark.run.store.transactions.of_nonce(txn._shard, txn._nonce)
    header = None if id_ is None else spark.run.store.transactions.read(id_)
    return None if header is None else header.state


def pins(spark: Spark) -> list[Any]:
    gates = spark.run.store.segments.gates([segment.id for segment in spark.segments()])
    return [pin for gate in gates for pin in gate.pins]


def test_a_scope_whose_commit_is_refused_aborts_its_transaction_at_once(spark: Spark) -> None:
    # No checkpoint can be read here, so that the commit refuses to go by Spark's offsets.
    spark.options["replayEvidence"] = "offsets"
    txn = scope(spark)
    before: list[Any] = []
    df = frame(spark, "a", after=lambda: before.extend(pins(spark)))
    with pytest.raises(TransactionConflictError, match="replayEvidence=offsets") as caught, txn:
        txn.write(df)
    assert before != []
    assert state_of(spark, txn) is TxnState.ABORTED
    assert pins(spark) == [], "no reader has to wait for the end of the lease"
    assert not hasattr(caught.value, "__notes__")


def test_a_scope_that_writes_nothing_and_cannot_commit_aborts_its_transaction(
    spark: Spark,
) -> None:
    spark.options["replayEvidence"] = "offsets"
    txn = BatchTransaction(spark.options, 0, silent(spark), "function/f")
    with pytest.raises(TransactionConflictError, match="replayEvidence=offsets"), txn:
        pass
    assert state_of(spark, txn) is TxnState.ABORTED


def test_a_scope_that_is_interrupted_while_it_commits_aborts_its_transaction(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    txn = scope(spark)

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(txn._components.coordinator, "commit", interrupt)
    with pytest.raises(KeyboardInterrupt), txn:
        txn.write(frame(spark, "a"))
    assert state_of(spark, txn) is TxnState.ABORTED
    assert (pins(spark), spark.visible()) == ([], Counter())


def test_a_replay_that_is_refused_aborts_nothing_but_its_own_nonce(spark: Spark) -> None:
    with scope(spark) as first:
        first.write(frame(spark, "a"))
    spark.execution += 1
    second = scope(spark)
    with pytest.raises(TransactionConflictError, match="with other input") as caught, second:
        second.write(frame(spark, "b"))
    assert not hasattr(caught.value, "__notes__")
    assert state_of(spark, second) is TxnState.ABORTED, "no task of it can begin any more"
    assert state_of(spark, first) is TxnState.COMMITTED
    assert spark.visible() == Counter("a")


def test_a_commit_whose_state_is_unknown_is_not_called_aborted_if_it_took_effect(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    txn = scope(spark)
    commit = txn._components.coordinator.commit
    unknown = CommitStateUnknownError("the reply was lost")

    def commit_and_lose_the_reply(*given: Any, **named: Any) -> None:
        commit(*given, **named)
        raise unknown

    monkeypatch.setattr(txn._components.coordinator, "commit", commit_and_lose_the_reply)
    with pytest.raises(CommitStateUnknownError) as caught, txn:
        txn.write(frame(spark, "a"))
    assert caught.value is unknown
    (note,) = caught.value.__notes__
    assert "is COMMITTED: all of it is visible" in note
    assert (state_of(spark, txn), spark.visible()) == (TxnState.COMMITTED, Counter("a"))


def test_a_commit_whose_state_is_unknown_and_did_not_take_effect_is_aborted(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    txn = scope(spark)

    def lose_the_request(*_: object, **__: object) -> None:
        raise CommitStateUnknownError("no reply came")

    with monkeypatch.context() as patched:
        patched.setattr(txn._components.coordinator, "commit", lose_the_request)
        with pytest.raises(CommitStateUnknownError), txn:
            txn.write(frame(spark, "a"))
    assert (state_of(spark, txn), pins(spark)) == (TxnState.ABORTED, [])
    spark.execution += 1
    with scope(spark) as again:
        again.write(frame(spark, "a"))
    assert spark.visible() == Counter("a")


@pytest.mark.parametrize("fails", ["function", "commit"])
def test_an_abort_that_fails_is_noted_at_the_error_that_led_to_it(
    spark: Spark, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    spark.options["replayEvidence"] = "offsets"
    txn = scope(spark)

    def refuse(*_: object, **__: object) -> TxnState:
        raise StoreUnavailableError("the store is away.")

    monkeypatch.setattr(txn._components.coordinator, "abort", refuse)
    expected = RuntimeError if fails == "function" else TransactionConflictError
    after = fail if fails == "function" else None
    with pytest.raises(expected) as caught, txn:
        txn.write(frame(spark, "a", after=after))
    (note,) = caught.value.__notes__
    assert "the abort of batch 0 failed, too: the store is away." in note
    assert "COMMITTED" not in note


# --- writes that come late, from threads and from tasks of jobs that were cancelled ----------


def raise_in(txn: BatchTransaction) -> None:
    with pytest.raises(RuntimeError), txn:
        fail()


def commit_in(txn: BatchTransaction) -> None:
    with txn:
        pass


def replay_in(spark: Spark, txn: BatchTransaction) -> None:
    with scope(spark) as first:
        first.write(frame(spark, "a"))
    spark.execution += 1
    with txn:
        txn.write(frame(spark, "a"))


def open_transactions(spark: Spark) -> list[TxnId]:
    store = spark.run.store
    return [
        txn
        for tc in range(store.identity.coordinators)
        for txn, _ in store.transactions.list_open(tc, deadline_ms=None, limit=9)
    ]


@pytest.mark.parametrize("every_batch", ["true", "false"])
@pytest.mark.parametrize("end", ["raised", "committed", "replayed"])
def test_a_write_behind_the_end_of_a_scope_is_refused(
    spark: Spark, end: str, every_batch: str
) -> None:
    spark.options["everyBatch"] = every_batch
    txn = scope(spark)
    if end == "replayed":
        replay_in(spark, txn)
    else:
        {"raised": raise_in, "committed": commit_in}[end](txn)
    before = spark.visible(), state_of(spark, txn)
    with pytest.raises(TransactionConflictError, match=r"batch 0 is over: .* Join the function's"):
        txn.write(frame(spark, "late"))
    assert open_transactions(spark) == []
    assert (spark.visible(), state_of(spark, txn)) == before


def test_a_write_while_the_scope_commits_is_refused(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    txn = scope(spark)
    finish = txn._finish

    def write_and_finish(*given: Any) -> None:
        with pytest.raises(TransactionConflictError, match="batch 0 is over"):
            txn.write(frame(spark, "late"))
        finish(*given)

    monkeypatch.setattr(txn, "_finish", write_and_finish)
    with txn:
        txn.write(frame(spark, "a"))
    assert spark.visible() == Counter("a")


def test_a_write_whose_job_ends_behind_the_end_of_the_scope_does_not_seem_to_count(
    spark: Spark,
) -> None:
    txn = scope(spark).__enter__()
    late = Frame(spark, "late")
    save = late.save

    def save_and_let_the_function_return() -> None:
        save()
        with pytest.raises(TransactionConflictError, match="its thread was not joined"):
            txn.__exit__(None, None, None)

    late.save = save_and_let_the_function_return  # type: ignore[method-assign]
    with pytest.raises(TransactionConflictError, match="batch 0 is over"):
        txn.write(cast("DataFrame", late))
    assert (state_of(spark, txn), spark.visible()) == (TxnState.ABORTED, Counter())


def test_a_scope_takes_writes_only_once_it_has_begun_and_begins_once(spark: Spark) -> None:
    txn = scope(spark)
    with pytest.raises(TransactionConflictError, match=r"has not begun.*Write within 'with"):
        txn.write(frame(spark, "a"))
    assert state_of(spark, txn) is None
    commit_in(txn)
    with pytest.raises(TransactionConflictError, match="has begun before"):
        commit_in(txn)


class CancelledFrame(Frame):
    """A DataFrame whose job fails before its first task has begun."""

    def save(self) -> None:
        self.writer = PulsarTxnWriter(self.given, SCHEMA, overwrite=False)
        fail()


def late_task(spark: Spark) -> Callable[[], object]:
    """Return a task of a scope that was aborted before the task has begun."""
    df = CancelledFrame(spark, "late")
    with pytest.raises(RuntimeError), scope(spark) as txn:
        txn.write(cast("DataFrame", df))
    return lambda: spark.task(df.writer, 0, "late")


def test_a_late_task_of_a_scope_that_raised_begins_no_transaction(spark: Spark) -> None:
    begin = late_task(spark)
    with pytest.raises(TransactionAbortedError):
        begin()
    assert open_transactions(spark) == []


def test_a_late_task_of_a_scope_that_raised_does_not_end_the_next_attempt(spark: Spark) -> None:
    begin = late_task(spark)
    spark.execution += 1
    with scope(spark) as again:
        again.write(frame(spark, "a"))
        with pytest.raises(TransactionAbortedError, match="its function raised RuntimeError"):
            begin()
    assert spark.visible() == Counter("a")


@pytest.mark.parametrize("notices", ["lease", "header"])
def test_a_scope_that_somebody_else_has_aborted_says_so(spark: Spark, notices: str) -> None:
    txn = scope(spark)
    said = {"lease": "an administrator did", "header": r"before its commit \(its lease was over\)"}
    with pytest.raises(TransactionAbortedError, match=said[notices]), txn:  # noqa: PT012 - the block is what ends the scope
        txn.write(frame(spark, "a"))
        id_ = spark.run.store.transactions.of_nonce(txn._shard, txn._nonce)
        assert id_ is not None
        spark.run.coordinator.abort(id_, EndedBy.ADMIN, cause="its lease was over")
        if notices == "lease":
            txn._lease.lost(TransactionAbortedError("an administrator did"))


def test_a_write_whose_transaction_is_aborted_before_it_is_staged_says_so(spark: Spark) -> None:
    txn = scope(spark)

    def abort() -> None:
        id_ = spark.run.store.transactions.of_nonce(txn._shard, txn._nonce)
        assert id_ is not None
        spark.run.coordinator.abort(id_, EndedBy.ADMIN, cause="its lease was over")

    with pytest.raises(TransactionAbortedError, match="its lease was over"), txn:
        txn.write(frame(spark, "a", after=abort))


def test_a_staged_write_that_is_gone_from_an_open_transaction_is_no_abort(spark: Spark) -> None:
    txn = scope(spark)
    with pytest.raises(TransactionConflictError, match="is not in the store") as caught, txn:  # noqa: PT012 - the block is what ends the scope
        txn.write(frame(spark, "a"))
        spark.run.store.stages.touch(txn._shard, txn._nonce, ended=True)
    assert not isinstance(caught.value, TransactionAbortedError)


def test_a_second_scope_of_one_name_in_one_run_is_no_replay(spark: Spark) -> None:
    with scope(spark) as txn:
        txn.write(frame(spark, "a"))
    with pytest.raises(TransactionConflictError, match="was written already"), scope(spark) as txn:
        txn.write(frame(spark, "b"))


def test_a_second_scope_of_one_name_is_refused_in_each_replay_too(spark: Spark) -> None:
    for spark.execution in range(3):  # the first commits, the others replay
        with scope(spark) as txn:
            txn.write(frame(spark, "a"))
        with (
            pytest.raises(TransactionConflictError, match="was written already"),
            scope(spark) as t,
        ):
            t.write(frame(spark, "b"))
    assert spark.visible() == Counter("a")


def test_a_scope_that_failed_in_a_replay_may_run_again(spark: Spark) -> None:
    for spark.execution in range(2):
        with contextlib.suppress(RuntimeError), scope(spark) as txn:
            txn.write(frame(spark, "a", after=fail))
        with scope(spark) as txn:
            txn.write(frame(spark, "a"))
    assert spark.visible() == Counter("a")


def test_an_empty_scope_of_a_sink_that_is_written_sometimes_leaves_no_transaction(
    spark: Spark,
) -> None:
    spark.options["everyBatch"] = "false"
    with scope(spark):
        pass
    assert open_transactions(spark) == []
    for tc in range(spark.run.store.identity.coordinators):
        assert spark.run.store.transactions.list_final(tc, limit=9) == []


# --- one sink under two names, siblings, and what is left behind ------------------------------


def test_a_renamed_function_does_not_write_a_committed_batch_again(spark: Spark) -> None:
    with scope(spark) as txn:
        txn.write(frame(spark, "a", "b"))
    spark.execution += 1  # Spark has not noted the batch as done
    renamed = scope(spark, "function/renamed")
    with pytest.raises(TransactionConflictError, match="sinkId=query/function/f"), renamed as txn:
        txn.write(frame(spark, "a", "b"))
    assert spark.visible() == Counter("ab")
    spark.options["sinkId"] = "query/function/f"
    spark.execution += 1
    with scope(spark, "function/renamed") as txn:
        txn.write(frame(spark, "a", "b"))
    assert spark.visible() == Counter("ab")


@pytest.mark.parametrize("batch", [0, 1])
def test_a_sink_that_moves_from_format_to_a_function_does_not_write_a_batch_again(
    spark: Spark, batch: int
) -> None:
    for spark.batch in range(batch + 1):
        spark.execution += 1
        spark.micro_batch("a")
    spark.execution += 1
    with pytest.raises((TransactionConflictError, BatchNotRecordedError)), scope(spark) as txn:
        txn.write(frame(spark, "a"))
    assert spark.visible() == Counter({"a": batch + 1})
    spark.options["sinkId"] = "another"
    with pytest.raises((TransactionConflictError, BatchNotRecordedError)):
        spark.micro_batch("a")
    spark.options["sinkId"] = QUERY
    with scope(spark) as txn:
        txn.write(frame(spark, "a"))
    assert spark.visible() == Counter({"a": batch + 1})


def test_siblings_of_a_batch_go_on_after_a_crash_between_them(spark: Spark) -> None:
    with scope(spark, "function/first") as txn:
        txn.write(frame(spark, "a"))
    spark.execution += 1
    for name, value in (("function/first", "a"), ("function/second", "b")):
        with scope(spark, name) as txn:
            txn.write(frame(spark, value))
    assert spark.visible() == Counter("ab")
    spark.batch += 1
    spark.execution += 1
    for name in ("function/second", "function/first"):  # the order matters for new ones only
        with scope(spark, name) as txn:
            txn.write(frame(spark, "c"))
    assert spark.visible() == Counter("abcc")


def test_siblings_whose_order_changes_between_attempts_are_asked_for(spark: Spark) -> None:
    with scope(spark, "function/first") as txn:
        txn.write(frame(spark, "a"))
    spark.execution += 1
    second = scope(spark, "function/second")
    with pytest.raises(TransactionConflictError, match="sinkFirstBatch=0"), second as txn:
        txn.write(frame(spark, "b"))
    spark.options["sinkFirstBatch"] = "0"
    spark.execution += 1
    for name, value in (("function/second", "b"), ("function/first", "a")):
        with scope(spark, name) as txn:
            txn.write(frame(spark, value))
    assert spark.visible() == Counter("ab")


def test_a_function_that_writes_nothing_records_its_batch(spark: Spark) -> None:
    for spark.batch in range(3):
        spark.execution += 1
        with scope(spark) as txn:
            if spark.batch != 1:
                txn.write(frame(spark, str(spark.batch)))
    assert spark.visible() == Counter("02")


class Context:
    """What Spark Classic keeps with the thread that calls a function."""

    applicationId = "app"  # noqa: N815 - as PySpark has it

    def __init__(self, spark: Spark) -> None:
        self._spark = spark

    def getLocalProperty(self, key: str) -> str | None:  # noqa: N802 - as PySpark has it
        known = {QUERY_ID: QUERY, BATCH_ID: str(self._spark.batch)}
        return known.get(key, str(self._spark.execution))


def silent(spark: Spark) -> DataFrame:
    """Return a micro-batch of Spark Classic, which tells the function its query."""
    df = frame(spark)
    df.sparkSession = SimpleNamespace(_sc=Context(spark))  # type: ignore[misc,assignment]
    return df


def test_a_function_that_writes_nothing_records_its_batch_on_the_driver(spark: Spark) -> None:
    with scope(spark) as txn:
        txn.write(frame(spark, "a"))
    spark.batch, spark.execution = 1, 1
    for spark.execution in (1, 2):  # the second is its replay
        with BatchTransaction(spark.options, 1, silent(spark), "function/f"):
            pass
    spark.batch, spark.execution = 2, 3
    with scope(spark) as txn:
        txn.write(frame(spark, "c"))
    assert spark.visible() == Counter("ac")


def test_a_function_that_swallows_the_error_of_its_scope_is_found_out(spark: Spark) -> None:
    def swallow() -> None:
        with scope(spark) as txn:
            txn.write(frame(spark, "a"))
            fail()

    with contextlib.suppress(RuntimeError):
        swallow()
    spark.batch, spark.execution = 1, 1
    with pytest.raises(BatchNotRecordedError, match="swallowed"), scope(spark) as txn:
        txn.write(frame(spark, "b"))
    spark.options["everyBatch"] = "false"
    with scope(spark) as txn:
        txn.write(frame(spark, "b"))
    assert spark.visible() == Counter("b")


# --- Spark Connect: each write is a root SQL execution, and no task knows its query ----------


class ConnectFrame(Frame):
    """A DataFrame of Spark Connect."""

    sparkSession: Any = SimpleNamespace(  # noqa: N815 - as PySpark has it
        streams=SimpleNamespace(active=[SimpleNamespace(id=QUERY)])
    )

    def save(self) -> None:
        self._spark.execution += 1
        super().save()


@pytest.fixture
def connect(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spark]:
    """Return Spark whose tasks know what they know under Spark Connect."""

    def facts() -> TaskFacts:
        return TaskFacts("", -1, f"app/{spark.execution}", spark.partition, next(attempt_ids))

    monkeypatch.setattr(TaskFacts, "of_task", facts)
    start_query()
    yield spark
    start_query()


def start_query() -> None:
    """Do as if Spark started the query again: its function gets a process of its own."""
    connect_module._names.clear()


def connect_frame(spark: Spark, *values: str) -> DataFrame:
    return cast("DataFrame", ConnectFrame(spark, *values))


def connect_scope(spark: Spark, name: str = "function/f") -> BatchTransaction:
    return BatchTransaction(spark.options, spark.batch, connect_frame(spark), name)


def write_in_connect(spark: Spark, name: str, *values: str) -> None:
    with connect_scope(spark, name) as txn:
        for value in values:
            txn.write(connect_frame(spark, value))


def test_connect_all_writes_of_a_scope_are_one_transaction_that_is_replayed(connect: Spark) -> None:
    for _ in range(2):
        start_query()
        write_in_connect(connect, "function/f", "a", "b")
    assert connect.visible() == Counter("ab")


@pytest.mark.parametrize("batch", [0, 1])
def test_connect_a_second_scope_of_one_name_in_one_batch_is_no_replay(
    connect: Spark, batch: int
) -> None:
    for connect.batch in range(batch):
        write_in_connect(connect, "function/f", "before")
    connect.batch = batch
    write_in_connect(connect, "function/f", "a")
    with pytest.raises(TransactionConflictError, match="was written already"):
        write_in_connect(connect, "function/f", "b")
    assert connect.visible() == Counter({"before": batch, "a": 1})


def test_connect_siblings_commit_batch_0_and_are_replayed(connect: Spark) -> None:
    for _ in range(2):
        start_query()
        write_in_connect(connect, "function/first", "a")
        write_in_connect(connect, "function/second", "b")
    assert connect.visible() == Counter("ab")


def test_connect_siblings_go_on_after_a_crash_between_them(connect: Spark) -> None:
    write_in_connect(connect, "function/first", "a")
    start_query()
    write_in_connect(connect, "function/first", "a")
    write_in_connect(connect, "function/second", "b")
    assert connect.visible() == Counter("ab")


def test_connect_a_renamed_function_does_not_write_a_committed_batch_again(connect: Spark) -> None:
    write_in_connect(connect, "function/f", "a")
    start_query()
    with pytest.raises(TransactionConflictError, match="sinkId=query/function/f"):
        write_in_connect(connect, "function/renamed", "a")
    assert connect.visible() == Counter("a")


def test_connect_a_scope_inside_another_does_not_abort_it(connect: Spark) -> None:
    with connect_scope(connect, "function/outer") as outer:
        outer.write(connect_frame(connect, "a"))
        write_in_connect(connect, "function/inner", "b")
        assert state_of(connect, outer) is TxnState.OPEN
        outer.write(connect_frame(connect, "c"))
    assert connect.visible() == Counter("abc")


def test_connect_what_an_earlier_run_left_open_in_another_scope_is_aborted(connect: Spark) -> None:
    dead = connect_scope(connect, "function/outer").__enter__()
    dead._leases.end(dead._lease)
    dead.write(connect_frame(connect, "a"))
    start_query()
    write_in_connect(connect, "function/inner", "b")
    assert state_of(connect, dead) is TxnState.ABORTED


def test_connect_a_batch_in_which_a_function_writes_nothing_is_replayed_on_the_same_server(
    connect: Spark,
) -> None:
    write_in_connect(connect, "function/f", "a")
    connect.batch = 1
    for _ in range(3):  # Spark has not recorded it as done
        start_query()
        write_in_connect(connect, "function/f")
    connect.batch = 2
    write_in_connect(connect, "function/f", "c")
    assert connect.visible() == Counter("ac")


def test_connect_a_second_scope_that_writes_nothing_is_no_replay_either(connect: Spark) -> None:
    write_in_connect(connect, "function/f")
    with pytest.raises(TransactionConflictError, match="was written already"):
        write_in_connect(connect, "function/f")


def test_connect_a_second_scope_of_one_name_is_refused_in_each_replay_too(connect: Spark) -> None:
    for value in ("a", None):  # also one that writes nothing
        for _ in range(3):
            start_query()
            write_in_connect(connect, "function/f", *filter(None, [value]))
            with pytest.raises(TransactionConflictError, match="was written already"):
                write_in_connect(connect, "function/f", "b")
        connect.batch += 1
    assert connect.visible() == Counter("a")


def staged(spark: Spark) -> list[Any]:
    return sorted(spark.run.store.scripts.client.keys("*:stage:*"))


def test_what_a_scope_has_staged_goes_with_it_whatever_its_end(spark: Spark) -> None:
    for execution in range(2):  # the second is a replay
        spark.execution = execution
        with scope(spark) as txn:
            txn.write(frame(spark, "a"))
        assert staged(spark) == []

    def fail_before_the_transaction_begins() -> None:
        with scope(spark, "function/other") as txn:
            txn.write(frame(spark, "a"), topic="topic://public/default/missing")

    with pytest.raises(TopicNotFoundError):
        fail_before_the_transaction_begins()
    assert staged(spark) == []


def test_what_a_dead_scope_has_staged_is_swept_after_a_day(spark: Spark) -> None:
    store = spark.run.store
    for nonce in ("dead", "alive", "begun"):
        store.stages.declare_attempt(1, nonce, "slot", 1)
    store.transactions.create(
        tc=1, nonce="begun", owner="", sink="", query="", batch="", timeout_ms=60_000, intents=[]
    )
    store.scripts.client.zadd("{tc1}:idx:stages", {"dead": 1, "alive": 1, "begun": 1})
    store.stages.touch(1, "alive")
    assert spark.run.sweeper(60_000).sweep().stages_removed == 1
    assert staged(spark) == [b"{tc1}:stage:alive", b"{tc1}:stage:begun"]
