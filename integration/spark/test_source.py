"""The source: where it starts and ends, what it reads, and what it never shows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import functions as f

from integration.support.spark import (
    FORMAT,
    NO_PANDAS_3,
    Lab,
    Meeting,
    ended,
    failure,
    on_value,
    until,
    until_the_clock_moves,
)
from pulsar_txn_spark import Admin
from pulsar_txn_spark.position import EARLIEST, Position

pytestmark = pytest.mark.filterwarnings(NO_PANDAS_3)


def descriptors(lab: Lab, topic: str) -> list[str]:
    """Return what names each segment within its topic."""
    return [segment.id.rpartition("/")[2] for segment in lab.segments(topic)]


def offsets(lab: Lab, topic: str, *positions: Position | str) -> str:
    """Write offsets as the options take them, one for each segment."""
    names = descriptors(lab, topic)
    return json.dumps({topic: dict(zip(names, map(str, positions), strict=False))})


def published(lab: Lab, topic: str) -> dict[str, int]:
    """Return when each value of a topic was published, in milliseconds."""
    rows = lab.read(topic).selectExpr("string(value)", "unix_millis(__publishTime)").collect()
    return {row[0]: row[1] for row in rows}


# -- where it starts and ends ----------------------------------------------------------------------


def test_a_stream_starts_where_it_is_told(lab: Lab) -> None:
    source, earliest, latest, behind = (lab.topic() for _ in range(4))
    lab.produce_each(source, "a", "b")
    after_a = Position(1, 0)
    queries = {
        earliest: "earliest",
        latest: "latest",
        behind: offsets(lab, source, after_a),
    }
    writers = [
        lab.sink(lab.source(source, startingOffsets=start), out, lab.checkpoint(start[:6]))
        for out, start in queries.items()
    ]
    for writer in writers:
        lab.drain(writer)
    assert [lab.visible(out) for out in queries] == [["a", "b"], [], ["b"]]
    lab.produce(source, "c")
    # The checkpoint says where to go on, whatever the option says.
    lab.drain(writers[1])
    assert lab.visible(latest) == ["c"]


def test_a_subscription_says_where_a_stream_starts(lab: Lab) -> None:
    source, out = lab.topic(), lab.topic()
    lab.produce_each(source, "a", "b")
    # There is none yet, so a new query starts at the latest position, as every stream does.
    lab.drain(
        lab.sink(
            lab.source(source, subscription="s", startingOffsets="latest"), out, lab.checkpoint("1")
        )
    )
    lab.produce(source, "c")
    lab.drain(
        lab.sink(
            lab.source(source, subscription="s", startingOffsets="latest"), out, lab.checkpoint("1")
        )
    )
    assert lab.visible(out) == ["c"]
    lab.produce(source, "d")
    Admin(lab.options).reset_subscription(source, "s", to="here")
    misplaced = lab.sink(lab.source(source, subscription="s"), out, lab.checkpoint("2"))
    error = failure(lambda: lab.drain(misplaced))
    assert "startingOffsets='subscription'" in error
    assert "reset" in error
    resumed = lab.source(source, subscription="s", startingOffsets="subscription")
    lab.drain(lab.sink(resumed, out, lab.checkpoint("3")))
    assert lab.visible(out) == ["c", "d"]


def test_a_batch_reads_between_its_offsets(any_lab: Lab) -> None:
    lab = any_lab
    source = lab.topic(2)
    ends = [EARLIEST]
    for value in ("a", "b", "c"):
        lab.produce(source, value)
        ends.append(lab.end(source))
    lab.produce(source, "z", segment=1)
    assert lab.values(source) == ["a", "b", "c", "z"]
    assert lab.values(source, startingOffsets="latest") == []
    start, end = (offsets(lab, source, ends[i]) for i in (1, 2))
    assert lab.values(source, startingOffsets=start) == ["b", "c", "z"]
    assert lab.values(source, startingOffsets=start, endingOffsets=end) == ["b", "z"]
    beyond = offsets(lab, source, Position(ends[3].ledger, ends[3].entry + 5))
    error = failure(lambda: lab.values(source, endingOffsets=beyond))
    assert "endingOffsets" in error
    assert "only up to" in error
    unknown = json.dumps({source: {"0000-1234-9": "1:1"}})
    error = failure(lambda: lab.values(source, startingOffsets=unknown))
    assert "0000-1234-9" in error
    assert "0000-7fff-0" in error


def test_available_now_ends_with_what_was_there_at_its_start(lab: Lab) -> None:
    source, out = lab.topic(), lab.topic()
    lab.produce_each(source, "a", "stop", "b")
    with Meeting() as meeting:
        df = on_value(lab.source(source, maxMessagesPerTrigger=2), "stop", meeting.point())
        query = lab.sink(df, out, lab.checkpoint()).trigger(availableNow=True).start()
        meeting.wait()
        lab.produce(source, "too late")
        meeting.release()
        ended(query)
    assert lab.visible(out) == ["a", "b", "stop"]


def test_rows_say_where_they_stand_and_a_time_says_where_reading_starts_and_ends(
    any_lab: Lab,
) -> None:
    lab = any_lab
    source = lab.topic(2)
    for number, value in enumerate("abc"):
        lab.produce(source, value, segment=number % 2)
        until_the_clock_moves()
    columns = "__position,__producerName,__segment,__topicPartition"
    rows = lab.read(source, **{"metadata.columns": columns}).orderBy("__publishTime").collect()
    assert [bytes(row["value"]) for row in rows] == [b"a", b"b", b"c"]
    assert [row["__segment"] for row in rows] == [descriptors(lab, source)[n % 2] for n in range(3)]
    assert rows[0]["__position"] < rows[2]["__position"]
    assert len({row["__topicPartition"] for row in rows}) == 2
    assert all(row["__producerName"] for row in rows)
    times = [round(row["__publishTime"].timestamp() * 1000) for row in rows]
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    assert lab.values(source, startingTimestamp=times[1], **latest) == ["b", "c"]
    assert lab.values(source, endingTimestamp=times[1]) == ["a"]
    middle = lab.values(source, startingTimestamp=times[1], endingTimestamp=times[2], **latest)
    assert middle == ["b"]
    error = failure(lambda: lab.values(source, startingTimestamp=times[2] + 1))
    assert "no message was published at or after the starting time in 2 segments" in error


def test_a_stream_starts_at_a_time_that_each_segment_has_reached(any_lab: Lab) -> None:
    lab = any_lab
    source, out = lab.topic(2), lab.topic()
    for number, value in enumerate("abc"):
        until_the_clock_moves()
        lab.produce(source, value, segment=number % 2)
    late = {"startingTimestamp": published(lab, source)["c"], "subscription": "s"}
    error = failure(lambda: lab.drain(lab.sink(lab.source(source, **late), out, lab.checkpoint())))
    assert "no message was published at or after the starting time in 1 segments" in error
    assert descriptors(lab, source)[1] in error
    assert "startingOffsetsByTimestampStrategy=latest" in error
    lab.produce(source, "d", segment=1)
    lab.drain(lab.sink(lab.source(source, **late), out, lab.checkpoint()))
    assert lab.visible(out) == ["c", "d"]
    lab.produce(source, "e")
    # The checkpoint says where to go on, whatever the option says.
    lab.drain(lab.sink(lab.source(source, startingTimestamp=0), out, lab.checkpoint()))
    assert lab.visible(out) == ["c", "d", "e"]


def test_a_stream_starts_at_a_time_of_its_own_in_each_topic_and_segment(lab: Lab) -> None:
    both, late, out = lab.topic(2), lab.topic(), lab.topic()
    for number, value in enumerate("abcd"):
        until_the_clock_moves()
        lab.produce(both, value, segment=number % 2)
    lab.produce(late, "x")
    times = published(lab, both)
    by_segment = dict(zip(descriptors(lab, both), (times["c"], times["b"]), strict=True))
    named = json.dumps({both: by_segment, late: times["d"] + 3_600_000})
    options = {
        "startingOffsetsByTimestamp": named,
        "startingOffsetsByTimestampStrategy": "latest",
        "topics": f"{both},{late}",
    }
    writer = lab.sink(lab.source(None, **options), out, lab.checkpoint())
    lab.drain(writer)
    assert lab.visible(out) == ["b", "c", "d"]
    lab.produce(late, "y")
    lab.drain(writer)
    assert lab.visible(out) == ["b", "c", "d", "y"]


# -- which topics ----------------------------------------------------------------------------------


def test_a_pattern_finds_a_topic_that_is_created_while_the_query_runs(lab: Lab) -> None:
    out, first = lab.topic(name="out"), lab.topic(name="flights-a")
    stem = first.rpartition("a-")[0].rpartition("/")[2]
    suffix = first.rpartition("a-")[2].partition("-")[0]
    lab.produce(first, "a")
    df = lab.source(None, topicsPattern=f"public/default/{stem}[ab]-{suffix}-\\d+")
    query = lab.sink(df, out, lab.checkpoint()).start()
    lab.wait_for(out, ["a"])
    second = lab.topic(2, name="flights-b")
    other = lab.topic(name="flights-c")
    lab.produce(other, "other")
    lab.produce(second, "b", segment=1)
    lab.produce(first, "c")
    lab.wait_for(out, ["a", "b", "c"])
    query.stop()
    lab.drain(lab.sink(df, out, lab.checkpoint()))
    assert lab.visible(out) == ["a", "b", "c"]
    both = lab.read(None, topics=f"{first},{other}").selectExpr("string(value)", "__topic")
    assert sorted(map(tuple, both.collect())) == [("a", first), ("c", first), ("other", other)]


def test_a_topic_of_a_pattern_that_is_deleted_stops_a_query_unless_it_may_skip(lab: Lab) -> None:
    kept, gone = lab.topic(name="pair-kept"), lab.topic(name="pair-gone")
    strict, lenient = lab.topic(name="out"), lab.topic(name="out")
    lab.produce(kept, "a")
    lab.produce(gone, "b")
    queries = [
        lab.sink(
            lab.source(None, topicsPattern="public/default/pair-.*", failOnDataLoss=fails),
            out,
            lab.checkpoint(fails),
        ).start()
        for out, fails in ((strict, "true"), (lenient, "false"))
    ]
    for out in (strict, lenient):
        lab.wait_for(out, ["a", "b"])
    Admin(lab.options).delete_topic(gone)
    error = failure(lambda: ended(queries[0]))
    assert "DataLossError" in error
    assert gone in error
    assert "failOnDataLoss=false" in error
    lab.produce(kept, "c")
    lab.wait_for(lenient, ["a", "b", "c"])
    # One that was created again is a new one.
    Admin(lab.options).create_topic(gone, segments=1)
    lab.produce(gone, "d")
    lab.wait_for(lenient, ["a", "b", "c", "d"])
    queries[1].stop()
    assert lab.visible(strict) == ["a", "b"]


# -- how much at a time ----------------------------------------------------------------------------


def test_a_trigger_waits_for_messages_unless_nothing_more_can_come(lab: Lab) -> None:
    source, out = lab.topic(), lab.topic()
    lab.produce(source, "a")
    df = lab.source(source, minMessagesPerTrigger=3)
    query = lab.sink(df, out, lab.checkpoint()).start()
    lab.wait_for(out, ["a"])
    lab.produce_each(source, *"bcd")
    lab.wait_for(out, list("abcd"))
    # Spark tells the progress after the commit.
    until(lambda: [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]] == [1, 3])
    query.stop()
    lab.produce(source, "e")
    lab.drain(lab.sink(df, out, lab.checkpoint()))
    assert lab.visible(out) == list("abcde")


def test_a_trigger_takes_no_more_than_its_limit_and_the_progress_shows_the_lag(lab: Lab) -> None:
    source, out = lab.topic(), lab.topic()
    lab.produce_each(source, *"abcde")

    def sizes(**limit: object) -> tuple[list[int], list[Any]]:
        name = next(iter(limit))
        query = lab.drain(lab.sink(lab.source(source, **limit), out, lab.checkpoint(name)))
        progress = [p for p in query.recentProgress if p["numInputRows"]]
        return [p["numInputRows"] for p in progress], [p["sources"][0] for p in progress]

    rows, sources = sizes(maxMessagesPerTrigger=2)
    assert rows == [2, 2, 1]
    (descriptor,) = descriptors(lab, source)
    ends, latest = (
        [json.loads(s[key])["topics"][source]["segments"][descriptor]["p"] for s in sources]
        for key in ("endOffset", "latestOffset")
    )
    assert ends == ["1:1", "1:3", "1:4"]
    assert latest == ["1:4"] * 3
    lags = [json.loads(s["latestOffset"])["lag"] for s in sources]
    assert [lag["maxMessagesBehindLatest"] for lag in lags] == [3, 1, 0]
    lab.produce_each(source, "f")
    assert sizes(maxBytesPerTrigger="1b")[0] == [1] * 6
    assert sizes(maxBytesPerTrigger="1g", maxMessagesPerTrigger=4)[0] == []
    assert lab.visible(out) == sorted(["a", "b", "c", "d", "e"] * 2 + ["f"])


def test_as_many_tasks_read_whole_segments_as_there_are_cores(lab: Lab) -> None:
    source, out = lab.topic(8), lab.topic()
    rows = [(str(number), f"key-{number % 32}") for number in range(200)]
    lab.write(lab.spark.createDataFrame(rows, "value string, __key string"), source)
    assert lab.read(source).rdd.getNumPartitions() == 2  # MASTER
    assert lab.read(source, maxPartitions=1).rdd.getNumPartitions() == 1
    keyed = lab.stream(source).select("value", "__key")
    lab.drain(lab.sink(keyed, out, lab.checkpoint()))
    assert lab.visible(out) == sorted(value for value, _ in rows)


def test_a_long_range_is_split_so_that_several_tasks_read_it(any_lab: Lab) -> None:
    source = any_lab.topic()
    values = [f"{number:03d}" for number in range(40)]
    for start in range(0, 40, 10):
        any_lab.produce(source, *values[start : start + 10])
    assert any_lab.read(source).rdd.getNumPartitions() == 1
    split = any_lab.read(source, minPartitions=4).select(
        f.col("value").cast("string"), f.spark_partition_id().alias("part")
    )
    rows = split.collect()
    assert sorted(row["value"] for row in rows) == values
    assert len({row["part"] for row in rows}) in (3, 4)


# -- what a row is ---------------------------------------------------------------------------------


def test_a_query_passes_keys_times_and_properties_on(any_lab: Lab) -> None:
    lab = any_lab
    source, out = lab.topic(2), lab.topic(3)
    lab.write(
        lab.spark.createDataFrame(
            [("a", "k", 1_357_043_415_123, {"p": "q"}), ("b", None, None, None)],
            "value string, __key string, __eventTime long, __messageProperties map<string,string>",
        ),
        source,
    )
    df = (
        lab.stream(source)
        .select("value", "__key", "__eventTime", "__messageProperties")
        .where("__publishTime > timestamp'2020-01-01' and length(__messageId) > 0")
    )
    lab.drain(lab.sink(df, out, lab.checkpoint()))
    written, passed = (
        sorted(lab.rows(topic), key=lambda row: str(row["value"])) for topic in (source, out)
    )
    assert passed == written
    assert passed[0]["event_time_ms"] == 1_357_043_415_123


def test_a_schema_may_select_among_the_columns(lab: Lab) -> None:
    source = lab.topic(2)
    lab.produce(source, "a", "b")
    assert lab.read(source).count() == 2
    assert lab.read(source).select("__topic").distinct().collect() == [(source,)]
    schema = "__messageId binary, value binary"
    loaded = lab.spark.read.format(FORMAT).schema(schema).options(**lab.options)
    rows = loaded.option("topic", source).load().collect()
    assert [tuple(row.asDict()) for row in rows] == [("__messageId", "value")] * 2
    assert len({row["__messageId"] for row in rows}) == 2
    wrong = lab.spark.read.format(FORMAT).schema("value int").options(**lab.options)
    error = failure(lambda: wrong.option("topic", source).load().collect())
    assert "no column 'value' of type int" in error
    assert "from_json" in error


# -- what it never shows ---------------------------------------------------------------------------


def test_a_reader_sees_nothing_of_an_open_transaction_and_never_of_an_aborted_one(
    any_lab: Lab,
) -> None:
    lab = any_lab
    source, out = lab.topic(), lab.topic()
    lab.produce(source, "a")
    committed, aborted = lab.open_txn(source, "committed"), lab.open_txn(source, "aborted")
    lab.produce(source, "z")
    writer = lab.sink(lab.source(source), out, lab.checkpoint())
    lab.drain(writer)
    assert lab.visible(out) == ["a"]
    committed.commit()
    # The other one began before, so it may have written anywhere behind "a".
    assert lab.values(source) == ["a"]
    aborted.abort()
    lab.drain(writer)
    assert lab.visible(out) == ["a", "committed", "z"]
    assert lab.values(source) == ["a", "committed", "z"]
    assert lab.physical(source).aborted_rows == 1


def test_a_transaction_whose_driver_is_dead_blocks_readers_no_longer_than_its_lease(
    lab: Lab,
) -> None:
    source, out = lab.topic(), lab.topic()
    lab.open_txn(source, "never", timeout_ms=1000)
    lab.produce(source, "a")
    query = lab.sink(lab.source(source), out, lab.checkpoint()).start()
    lab.wait_for(out, ["a"])
    query.stop()
    assert lab.visible(source) == ["a"]


def test_trimmed_data_is_an_error_unless_the_query_may_skip_it(lab: Lab) -> None:
    source, out = lab.topic(), lab.topic()
    lab.produce(source, "a")
    lab.drain(lab.sink(lab.source(source), out, lab.checkpoint()))
    lab.produce_each(source, "b", "c", "d")
    lab.trim(source, Position(1, 2))
    error = failure(lambda: lab.drain(lab.sink(lab.source(source), out, lab.checkpoint())))
    assert "DataLossError" in error
    assert "failOnDataLoss=false" in error
    assert "retention" in error
    assert lab.visible(out) == ["a"]
    lenient = lab.source(source, failOnDataLoss="false")
    lab.drain(lab.sink(lenient, out, lab.checkpoint()))
    assert lab.visible(out) == ["a", "d"]
    # "Earliest" is what is still there; a position that is not is an error.
    assert lab.values(source) == ["d"]
    gone = offsets(lab, source, Position(1, 0))
    assert "has been deleted" in failure(lambda: lab.values(source, startingOffsets=gone))
    assert lab.values(source, startingOffsets=gone, failOnDataLoss="false") == ["d"]


# -- acknowledging without a sink of ours ----------------------------------------------------------


def test_a_query_with_another_sink_acknowledges_once_spark_has_committed(lab: Lab) -> None:
    source = lab.topic()
    lab.produce(source, "a")
    df = lab.source(source, subscription="s", startingOffsets="subscription")
    writer = df.writeStream.format("noop").option("checkpointLocation", str(lab.checkpoint()))
    lab.drain(writer)
    assert lab.cursor(source, "s") == EARLIEST
    read = lab.end(source)
    lab.produce(source, "b")
    lab.drain(writer)
    assert lab.cursor(source, "s") == read
