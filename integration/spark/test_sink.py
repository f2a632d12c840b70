"""The sink: what it writes where, what becomes visible when, and in which transaction."""

from __future__ import annotations

import datetime as dt
import secrets
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from integration.support.spark import (
    NO_PANDAS_3,
    Lab,
    Meeting,
    ended,
    fails_once,
    failure,
    on_value,
)
from pulsar_txn_spark import BatchTransaction, TransactionalSink, transactional
from pulsar_txn_spark.errors import TransactionConflictError
from pulsar_txn_spark.segments.topology import hash_of
from pulsar_txn_spark.txn.sweeper import BackgroundSweeper

pytestmark = pytest.mark.filterwarnings(NO_PANDAS_3)

WHEN = dt.datetime(2013, 1, 1, 12, 30, 15, 123456, tzinfo=dt.UTC)
WHEN_MS = 1_357_043_415_123


# -- columns ---------------------------------------------------------------------------------------


def test_every_column_comes_back_as_it_was_written(any_lab: Lab) -> None:
    out = any_lab.topic(2)
    df = any_lab.spark.createDataFrame(
        [
            ("value", "key", WHEN, {"p": "1", "q": ""}),
            ("no key", None, None, {}),
            (None, "tombstone", WHEN, None),
            ("", None, None, {"": "empty"}),
        ],
        "value string, __key string, __eventTime timestamp, __messageProperties map<string,string>",
    )
    any_lab.write(df, out)
    read = {row["value"]: row for row in any_lab.read(out).collect()}
    assert set(read) == {b"value", b"no key", None, b""}
    full = read[b"value"]
    assert (full["__key"], full["__topic"]) == (b"key", out)
    assert full["__eventTime"].astimezone(dt.UTC) == WHEN.replace(microsecond=123000)
    assert full["__messageProperties"] == {"p": "1", "q": ""}
    assert (dt.datetime.now() - full["__publishTime"]).total_seconds() < 600  # noqa: DTZ005 — so Spark gives it
    assert len(full["__messageId"]) >= 4
    assert (read[b"no key"]["__key"], read[b"no key"]["__eventTime"]) == (None, None)
    assert not read[b"no key"]["__messageProperties"]
    assert read[None]["__key"] == b"tombstone"
    assert read[b""]["__messageProperties"] == {"": "empty"}


def test_rows_of_a_key_go_to_the_segment_that_owns_its_hash(lab: Lab) -> None:
    out = lab.topic(4)
    df = lab.spark.range(400).selectExpr(
        "cast(cast(id AS string) AS binary) AS value",
        "cast(cast(id % 37 AS string) AS binary) AS __key",
        "timestamp_ntz'2013-01-01 12:30:15.123' AS __eventTime",
    )
    lab.write(df, out)
    lab.write(lab.spark.sql("SELECT 'as number' AS value, 7L AS __eventTime"), out)
    rows = lab.rows(out)
    assert {row["event_time_ms"] for row in rows} == {WHEN_MS, 7}
    segments = lab.run.topics.require(lab.name(out)).active
    found = 0
    for segment in segments:
        keys = [row["key"] for row in lab.rows_of(segment.ref) if row["key"] is not None]
        assert all(segment.hash_start <= hash_of(key) <= segment.hash_end for key in keys)
        found += len(keys)
    assert found == 400
    by_key: dict[bytes, list[int]] = {}
    for row in rows:
        if row["key"] is not None:
            by_key.setdefault(row["key"], []).append(int(row["value"]))
    # Each of the two tasks wrote an ascending half.
    for numbers in by_key.values():
        for half in (range(200), range(200, 400)):
            assert [n for n in numbers if n in half] == sorted(n for n in numbers if n in half)


def test_each_row_goes_to_its_own_topic_and_a_null_one_to_the_default(lab: Lab) -> None:
    default, one, two = lab.topic(), lab.topic(2), lab.topic()
    df = lab.spark.createDataFrame(
        [("a", one), ("b", two.removeprefix("topic://")), ("c", None), ("d", one)],
        "value string, __topic string",
    )
    lab.write(df, default)
    assert [lab.visible(topic) for topic in (default, one, two)] == [["c"], ["a", "d"], ["b"]]
    # Without a default a null topic is an error; what was written before it stays invisible.
    assert "'__topic' is null and there is no default" in failure(lambda: lab.write(df))
    unknown = df.selectExpr("value", "coalesce(__topic, 'no-such-topic') AS __topic")
    assert "topic://public/default/no-such-topic does not exist" in failure(
        lambda: lab.write(unknown)
    )
    malformed = df.selectExpr("value", "coalesce(__topic, 'a/b') AS __topic")
    assert "malformed topic name 'a/b'" in failure(lambda: lab.write(malformed))
    assert [lab.visible(topic) for topic in (default, one, two)] == [["c"], ["a", "d"], ["b"]]
    assert lab.physical(one).rows - lab.physical(one).aborted_rows == 2


# -- one write, one transaction --------------------------------------------------------------------


def test_a_batch_write_is_atomic(lab: Lab) -> None:
    out, side = lab.topic(2), lab.topic()
    df = lab.spark.range(0, 2, 1, 2).selectExpr(
        "concat('row ', id) AS value", f"if(id = 0, '{out}', '{side}') AS __topic"
    )

    def burst() -> None:
        raise ValueError("one of two tasks fails")

    assert "one of two tasks fails" in failure(lambda: lab.write(on_value(df, "row 1", burst)))
    assert (lab.visible(out), lab.visible(side)) == ([], [])
    # Its lease is not waited for: the next write is visible at once.
    lab.write(df)
    assert (lab.visible(out), lab.visible(side)) == (["row 0"], ["row 1"])
    lab.write(df.where("false"), out)
    assert lab.visible(out) == ["row 0"]


def test_a_message_that_the_log_does_not_take_fails_its_batch_as_a_whole(any_lab: Lab) -> None:
    out = any_lab.topic()
    small = any_lab.spark.sql("SELECT 'small' AS value")
    large = any_lab.spark.range(1).selectExpr("repeat('x', 6 * 1024 * 1024) AS value")
    error = failure(lambda: any_lab.write(small.union(large), out))
    assert "MessageTooLargeError" in error
    assert any_lab.visible(out) == []
    any_lab.write(small, out)
    assert any_lab.visible(out) == ["small"]


def test_without_transactions_rows_are_visible_at_once_and_twice_after_a_retry(lab: Lab) -> None:
    source, out = lab.topic(2), lab.topic()
    lab.produce(source, "a", "b")
    lab.produce(source, "stop", segment=1)
    with Meeting() as meeting:
        # Two tasks; the one that waits does not keep the other one's rows back.
        df = on_value(lab.source(source), "stop", meeting.point())
        writer = lab.sink(df, out, lab.checkpoint(), transactions="false")
        query = writer.trigger(availableNow=True).start()
        meeting.wait()
        lab.wait_for(out, ["a", "b"])
        meeting.release()
        ended(query)
    assert lab.visible(out) == ["a", "b", "stop"]
    fail = fails_once(lab.folder / "failed")
    lab.write(on_value(lab.read_text(source), "stop", fail), out, transactions="false")
    assert lab.visible(out) == ["a", "a", "b", "b", "stop", "stop"]


def test_a_batch_that_takes_longer_than_the_lease_keeps_it(lab: Lab) -> None:
    source, out = lab.topic(), lab.topic()
    lab.produce(source, "a", "stop")
    with Meeting() as meeting:
        df = on_value(lab.source(source), "stop", meeting.point())
        writer = lab.sink(df, out, lab.checkpoint(), txn__timeoutMs=1000)
        query = writer.trigger(availableNow=True).start()
        meeting.wait()
        # The write task begins when its first rows come, so it may not have begun yet.
        lab.wait_for_lease(query.id, beats=5)
        assert lab.visible(out) == []
        meeting.release()
        ended(query)
    assert lab.visible(out) == ["a", "stop"]


# -- foreachBatch ----------------------------------------------------------------------------------


def test_update_mode_goes_through_foreach_batch(lab: Lab) -> None:
    source, out = lab.topic(), lab.topic()
    lab.produce_each(source, "a", "b", "a")
    counts = lab.source(source, maxMessagesPerTrigger=2).groupBy("value").count()
    updates = counts.selectExpr("concat(value, '=', count) AS value")
    by_format = lab.sink(updates, out, lab.checkpoint("format")).outputMode("update")
    assert "update" in failure(lambda: lab.drain(by_format)).lower()
    sink = TransactionalSink({**lab.options, "topic": out})
    writer = updates.writeStream.outputMode("update").foreachBatch(sink)
    lab.drain(writer.option("checkpointLocation", str(lab.checkpoint())))
    assert lab.visible(out) == ["a=1", "a=2", "b=1"]


def test_sweeps_run_where_a_scope_commits(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    triggered: list[int] = []
    monkeypatch.setattr(BackgroundSweeper, "trigger", lambda _: triggered.append(1))
    source, out = lab.topic(), lab.topic()
    lab.produce(source, "a")
    sink = TransactionalSink({**lab.options, "topic": out})
    lab.drain(one_batch(lab, source, sink, lab.checkpoint()))
    assert lab.visible(out) == ["a"]
    assert triggered


def one_batch(lab: Lab, source: str, function: Any, checkpoint: Path) -> Any:
    return (
        lab.source(source)
        .writeStream.foreachBatch(function)
        .option("checkpointLocation", str(checkpoint))
    )


def test_the_writes_of_a_function_become_visible_together_or_not_at_all(lab: Lab) -> None:
    source, out, side = lab.topic(), lab.topic(2), lab.topic()
    lab.produce(source, "a")
    fail = fails_once(lab.folder / "failed")

    @transactional(lab.options)
    def process(df: DataFrame, batch: int, txn: BatchTransaction) -> None:
        upper = df.selectExpr("upper(value) AS value")
        # Writes may run side by side; the transaction knows the batch where Spark's threads do not.
        with ThreadPoolExecutor(2) as pool:
            for write in [pool.submit(txn.write, df, out), pool.submit(txn.write, upper, side)]:
                write.result()
        assert (lab.visible(out), lab.visible(side)) == ([], [])
        fail()

    writer = one_batch(lab, source, process, lab.checkpoint())
    assert "failed once" in failure(lambda: lab.drain(writer))
    assert (lab.visible(out), lab.visible(side)) == ([], [])
    lab.drain(writer)
    assert (lab.visible(out), lab.visible(side)) == (["a"], ["A"])
    assert lab.physical(out).aborted_rows == 1


def test_a_write_that_failed_can_be_run_again_in_its_slot_but_not_be_ignored(lab: Lab) -> None:
    source, out = lab.topic(), lab.topic()
    lab.produce(source, "a")
    fail = fails_once(lab.folder / "failed")
    seen: list[str] = []

    def burst() -> None:
        fail()

    @transactional(lab.options)
    def ignore(df: DataFrame, batch: int, txn: BatchTransaction) -> None:
        txn.write(df, out)
        with pytest.raises(Exception, match="no-such-topic"):
            txn.write(df, "no-such-topic")

    error = failure(lambda: lab.drain(one_batch(lab, source, ignore, lab.checkpoint("ignore"))))
    assert "its error was swallowed" in error
    assert lab.visible(out) == []

    @transactional(lab.options)
    def again(df: DataFrame, batch: int, txn: BatchTransaction) -> None:
        try:
            # Both attempts of the task fail, so that the write as a whole does.
            txn.write(
                df.selectExpr(f"raise_error('{secrets.token_hex(2)}') AS value"), out, slot="s"
            )
        except Exception as error:  # noqa: BLE001
            seen.append(str(error))
            txn.write(df, out, slot="s")

    lab.drain(one_batch(lab, source, again, lab.checkpoint("again")))
    assert len(seen) == 1
    assert lab.visible(out) == ["a"]


def test_a_transaction_of_a_batch_is_over_when_its_block_is_left(lab: Lab) -> None:
    out = lab.topic()
    df = lab.frame("a")
    with (
        pytest.raises(TransactionConflictError, match="did not succeed"),
        BatchTransaction(lab.options, 0, df, "test") as txn,
    ):
        txn._declared["never"] = 1
    assert lab.visible(out) == []
