"""SQL: topics as tables and views, and what Spark lets through of each statement."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.query import StreamingQuery

from integration.support.spark import (
    FORMAT,
    NO_PANDAS_3,
    Lab,
    ended,
    fails_once,
    failure,
    forget_last_commit,
    on_value,
    recreate_topics,
)

pytestmark = pytest.mark.filterwarnings(NO_PANDAS_3)

PAGE = Path(__file__).parents[2] / "docs" / "sql.md"
SECRET = "hunter2"
_numbers = itertools.count()


@dataclass
class Sql:
    """Statements in a database of the test's own, with the options of its store."""

    lab: Lab

    def __call__(self, statement: str) -> list[Row]:
        """Run a statement; what it reads or writes lies in the test's store."""
        path = self.lab.options["store.path"]
        statement = statement.replace("OPTIONS (", f"OPTIONS (store.path '{path}', ")
        statement = statement.replace("WITH (", f"WITH (`store.path` = '{path}', ")
        return self.lab.spark.sql(statement).collect()

    def table(self, name: str, segments: int = 1, options: str = "") -> str:
        """Make a topic and a table of it; return the topic."""
        topic = self.lab.topic(segments)
        self(f"CREATE TABLE {name} USING {FORMAT} OPTIONS (topic '{topic}'{options})")
        return topic

    def insert(self, table: str, *values: str) -> None:
        """Write values by INSERT."""
        rows = ", ".join(f"(CAST('{value}' AS BINARY))" for value in values)
        self(f"INSERT INTO {table} (value) VALUES {rows}")

    def values(self, table: str) -> list[str]:
        """Return the values that a SELECT shows, sorted."""
        return sorted(row[0] for row in self(f"SELECT string(value) FROM {table}"))

    def refused(self, statement: str) -> str:
        """Return the error of a statement."""
        return failure(lambda: self(statement))


@pytest.fixture
def sql(lab: Lab) -> Iterator[Sql]:
    """Give statements in a new database."""
    name = f"test_{next(_numbers)}"
    before = lab.spark.catalog.currentDatabase()
    lab.spark.sql(f"CREATE DATABASE {name}")
    lab.spark.catalog.setCurrentDatabase(name)
    yield Sql(lab)
    lab.spark.catalog.setCurrentDatabase(before)
    lab.spark.sql(f"DROP DATABASE {name} CASCADE")


@pytest.fixture
def view(lab: Lab) -> Iterator[str]:
    """Give the name of a temporary view, which is dropped."""
    name = f"view_{next(_numbers)}"
    yield name
    lab.spark.catalog.dropTempView(name)


# -- the page --------------------------------------------------------------------------------------


def blocks(language: str) -> list[str]:
    """Return the snippets of the page in a language."""
    text = PAGE.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_the_snippets_of_the_page_run(sql: Sql, tmp_path: Path) -> None:
    lab = sql.lab
    recreate_topics(lab.options, "flights", "bookings", "results")
    secrets = tmp_path / "production.properties"
    secrets.write_text("store.timeoutMs=9000\n")
    statements = [
        statement.replace("/etc/pulsar-txn/production.properties", str(secrets))
        for block in blocks("sql")
        for statement in block.split(";")
        if statement.strip()
    ]
    answers = [[tuple(row) for row in sql(statement)] for statement in statements]
    try:
        shown = [answer for answer in answers if answer]
        assert shown == [
            [("AA", "20")],  # of the table
            [(0,)],  # behind the end
            [('{"delay":5}',)],  # of the view
            [("AA", "20"), ("UA", "5")],  # of the view of the table
        ]
        [code] = blocks("python")
        code = code.replace('"checkpoint"', repr(str(tmp_path / "checkpoint")))
        names: dict[str, Any] = {"spark": lab.spark}
        code = code.replace("readStream", 'readStream.option("startingOffsets", "earliest")')
        code = code.replace(".writeStream", ".writeStream.options(**options)")
        sql(f"CREATE TABLE results USING {FORMAT} OPTIONS (topic 'results')")
        exec(compile(code, str(PAGE), "exec"), {**names, "options": lab.options}, names)
        names["query"].processAllAvailable()
        names["query"].stop()
        assert sql.values("results") == ['{"delay":20}', '{"delay":5}']
    finally:
        lab.spark.catalog.dropTempView("arrivals")


# -- CREATE TABLE ----------------------------------------------------------------------------------


def test_create_table_checks_options_and_topic_and_leaves_nothing_where_it_fails(sql: Sql) -> None:
    topic = sql.lab.topic()
    create = f"CREATE TABLE t USING {FORMAT} OPTIONS"
    assert "did you mean 'topic'" in sql.refused(f"{create} (topik '{topic}')")
    assert "TopicNotFoundError" in sql.refused(f"{create} (topic 'never-created')")
    assert "no topic to read" in sql.refused(f"CREATE TABLE t USING {FORMAT}")
    assert sql("SHOW TABLES") == []
    # What Spark adds for a table is no option; a property is none either.
    sql(f"{create} (topic '{topic}') COMMENT 'flights' TBLPROPERTIES ('team' = 'x')")
    assert "topic" in sql("DESCRIBE t")[3]["comment"]
    error = failure(lambda: sql.lab.read(topic, owner="me"))
    assert "unknown option 'owner'" in error


def test_drop_table_and_replace_leave_the_topic_and_its_rows(sql: Sql) -> None:
    topic, other = sql.table("t"), sql.lab.topic()
    sql.insert("t", "a")
    sql(f"CREATE OR REPLACE TABLE t USING {FORMAT} OPTIONS (topic '{other}')")
    assert sql.values("t") == []
    sql("DROP TABLE t")
    assert sql("SHOW TABLES") == []
    assert sql.lab.visible(topic) == ["a"]
    sql(f"CREATE TABLE t USING {FORMAT} OPTIONS (topic '{topic}')")
    assert sql.values("t") == ["a"]


def test_describe_and_show_create_table_show_the_options(sql: Sql) -> None:
    topic = sql.table("t", options=", metadata.columns '__segment'")
    sql.insert("t", "a")
    comments = {row["col_name"]: row["comment"] for row in sql("DESCRIBE t")}
    assert topic in comments.pop("__messageId")
    assert not any(comments.values())
    [[statement]] = sql("SHOW CREATE TABLE t")
    assert topic in statement
    sql("DROP TABLE t")
    sql(f"{statement} USING {FORMAT}")
    assert sql.values("t") == ["a"]


def test_a_table_with_a_list_of_columns_is_read_and_written_with_the_options_of_the_query(
    sql: Sql,
) -> None:
    topic = sql.lab.topic()
    sql(f"CREATE TABLE t (value STRING, __key STRING) USING {FORMAT} OPTIONS (topic '{topic}')")
    for statement in ("SELECT * FROM t", "INSERT INTO t VALUES ('a', 'k')"):
        assert "SELECT * FROM t WITH (topic = '...')" in sql.refused(statement)
    sql(f"INSERT INTO t WITH (topic = '{topic}') VALUES ('a', 'k')")
    assert [tuple(row) for row in sql(f"SELECT * FROM t WITH (topic = '{topic}')")] == [("a", "k")]
    assert [(r["value"], r["key"]) for r in sql.lab.rows(topic)] == [(b"a", b"k")]
    sql(f"CREATE TABLE colours (colour STRING) USING {FORMAT}")
    error = sql.refused(f"SELECT * FROM colours WITH (topic = '{topic}')")
    assert "no column 'colour'" in error


def test_a_column_that_alter_table_adds_is_refused_by_its_name(sql: Sql) -> None:
    sql.table("t")
    sql("ALTER TABLE t ADD COLUMN colour STRING")
    assert "no column 'colour'" in sql.refused("SELECT * FROM t")


# -- INSERT ----------------------------------------------------------------------------------------


def test_an_insert_is_one_transaction_also_where_a_task_is_tried_again(
    sql: Sql, view: str, tmp_path: Path
) -> None:
    topic = sql.table("t", segments=2)
    values = [str(number) for number in range(10)]
    frame = on_value(sql.lab.frame(*values, partitions=2), "7", fails_once(tmp_path / "failed"))
    frame.createOrReplaceTempView(view)
    sql(f"INSERT INTO t (value) SELECT CAST(value AS BINARY) FROM {view}")
    assert (tmp_path / "failed").exists()
    assert sql.values("t") == sql.lab.visible(topic) == values


def test_an_insert_that_fails_writes_nothing(sql: Sql, view: str) -> None:
    topic = sql.table("t")
    sql.lab.frame(*"abc").createOrReplaceTempView(view)
    columns = (
        f"SELECT CAST(value AS BINARY), if(value = 'c', raise_error('no c'), NULL) FROM {view}"
    )
    assert "no c" in sql.refused(f"INSERT INTO t (value, __key) {columns}")
    assert sql.values("t") == sql.lab.visible(topic) == []


def test_an_insert_writes_where_its_own_table_says_whatever_it_reads(sql: Sql) -> None:
    here, there = sql.table("here"), sql.table("there")
    sql.insert("here", "a", "b")
    sql("INSERT INTO there (value, __key) SELECT value, __key FROM here")
    nulls = ", ".join(["NULL"] * 5)
    sql(f"INSERT INTO there SELECT value, __key, {nulls} FROM here WHERE value = X'61'")
    sql("INSERT INTO there BY NAME SELECT value FROM here WHERE value = X'61'")
    assert sql.lab.visible(there) == ["a", "a", "a", "b"]
    error = sql.refused("INSERT INTO there SELECT * FROM here")
    assert "'__messageId', which a message gets only" in error
    assert (sql.lab.visible(here), sql.lab.physical(there).rows) == (["a", "b"], 4)


def test_keys_times_and_properties_are_written_by_name(sql: Sql) -> None:
    sql.table("t", options=", metadata.columns '__segment,__position'")
    sql(
        "INSERT INTO t (value, __messageProperties, __eventTime, __key) "
        "VALUES (X'61', map('p', 'q'), timestamp'2020-01-01 00:00:00', X'6b')"
    )
    [row] = sql(
        "SELECT value, __key, __eventTime = timestamp'2020-01-01 00:00:00' AS at, "
        "__messageProperties AS properties, __segment FROM t"
    )
    assert (bytes(row["value"]), bytes(row["__key"]), row["at"]) == (b"a", b"k", True)
    assert (row["properties"], row["__segment"]) == ({"p": "q"}, "0000-ffff-0")


@pytest.mark.parametrize(
    "statement,words",
    [
        ("INSERT OVERWRITE t (value) VALUES (X'61')", "cannot be overwritten"),
        ("TRUNCATE TABLE t", "does not support truncates"),
        ("DELETE FROM t WHERE true", "does not support deletes"),
        ("UPDATE t SET value = X'62'", "does not support UPDATE"),
        ("INSERT INTO t VALUES (X'61')", "not enough data columns"),
        ("INSERT INTO t (value) VALUES ('text')", "CANNOT_SAFELY_CAST"),
        ("INSERT INTO t (value, __publishTime) VALUES (X'61', now())", "'__publishTime', which"),
    ],
)
def test_what_a_topic_cannot_do_is_refused_and_changes_nothing(
    sql: Sql, statement: str, words: str
) -> None:
    topic = sql.table("t")
    sql.insert("t", "kept")
    assert words in sql.refused(statement)
    assert sql.lab.visible(topic) == ["kept"]


def test_create_table_as_select_is_refused_in_sql_and_leaves_no_table(sql: Sql) -> None:
    topic = sql.lab.topic()
    error = sql.refused(
        f"CREATE TABLE t USING {FORMAT} OPTIONS (topic '{topic}') AS SELECT X'61' value"
    )
    assert "CREATE TABLE AS SELECT" in error
    assert sql("SHOW TABLES") == []
    frame = sql.lab.spark.sql("SELECT 'a' AS value")
    frame.writeTo("t").using(FORMAT).options(**sql.lab.options, topic=topic).create()
    assert sql.lab.visible(topic) == ["a"]


def test_a_dataframe_is_appended_to_a_table_by_the_names_of_its_columns(sql: Sql) -> None:
    topic = sql.table("t")
    frame = sql.lab.spark.sql("SELECT X'61' AS value")
    frame.writeTo("t").append()
    frame.write.format(FORMAT).mode("append").saveAsTable("t")
    assert sql.lab.visible(topic) == ["a", "a"]
    # Whoever forgets the topic of a copy does not write it where it comes from.
    copy = sql.lab.spark.table("t").write.format(FORMAT).mode("append")
    assert "'__messageId', which" in failure(copy.save)
    assert sql.lab.visible(topic) == ["a", "a"]


# -- SELECT ----------------------------------------------------------------------------------------


def test_each_select_reads_what_is_committed_when_it_is_planned(sql: Sql, view: str) -> None:
    topic = sql.table("t")
    sql("CREATE VIEW anew AS SELECT value FROM t")
    create = f"TEMPORARY VIEW {view} (value STRING) USING {FORMAT} OPTIONS (topic '{topic}')"
    sql(f"CREATE {create}")
    seen = []
    for value in "ab":
        sql.insert("t", value)
        seen += [sql.values(name) for name in ("t", "anew", view)]
    # Spark plans a temporary view once.
    assert seen == [["a"], ["a"], ["a"], ["a", "b"], ["a", "b"], ["a"]]
    sql(f"INSERT INTO {view} VALUES ('c')")
    sql(f"CREATE OR REPLACE {create}")
    assert sql.values(view) == sql.values("t") == ["a", "b", "c"]


def test_all_mentions_of_a_table_in_a_query_take_the_options_of_the_first(sql: Sql) -> None:
    topic, other = sql.table("t"), sql.lab.topic()
    sql.insert("t", "a")
    mentions = [f"SELECT string(value) FROM t WITH (topic = '{name}')" for name in (other, topic)]
    assert [len(sql(mention)) for mention in mentions] == [0, 1]
    assert sql(" UNION ALL ".join(mentions)) == []


def test_a_table_is_read_from_python_as_a_batch_and_as_a_stream(sql: Sql, view: str) -> None:
    spark = sql.lab.spark
    other = sql.lab.topic()
    sql.lab.produce(other, "z")
    sql.table("t", options=", startingOffsets 'earliest', subscription 's'")
    sql.insert("t", "a")

    def values(frame: DataFrame) -> list[str]:
        return [row[0] for row in frame.selectExpr("string(value)").collect()]

    def streamed(frame: DataFrame, name: str) -> list[str]:
        writer = frame.select("value").writeStream.format("memory").queryName(name)
        sql.lab.drain(writer)
        return values(spark.table(name))

    assert values(spark.read.table("t")) == values(spark.table("t")) == ["a"]
    assert values(spark.read.option("topic", other).table("t")) == ["z"]
    assert streamed(spark.readStream.table("t"), view) == ["a"]
    selected = spark.readStream.format(FORMAT).schema("__key STRING, value STRING")
    frame = selected.options(**sql.lab.options, topic=other, startingOffsets="earliest").load()
    assert frame.columns == ["__key", "value"]
    assert streamed(frame, view) == ["z"]


# -- toTable ---------------------------------------------------------------------------------------


def test_to_table_is_exactly_once_and_wants_the_options_of_the_topic(sql: Sql) -> None:
    lab = sql.lab
    sql.table("source", options=", startingOffsets 'earliest', subscription 's'")
    target = sql.table("target")
    sql.insert("source", "a", "b")

    def run(**options: str) -> StreamingQuery:
        stream = lab.spark.readStream.table("source").select("value", "__key")
        writer = stream.writeStream.option("checkpointLocation", str(lab.checkpoint()))
        return ended(writer.options(**options).trigger(availableNow=True).toTable("target"))

    assert "toTable()" in failure(run)
    given = {**lab.options, "topic": target}
    run(**given)
    forget_last_commit(lab.checkpoint())
    run(**given)  # the batch that is in no commit log of Spark's is repeated
    sql.insert("source", "c")
    run(**given)
    assert lab.visible(target) == ["a", "b", "c"]
    assert lab.physical(target).rows == 3, "nothing was written twice and dropped"


# -- secrets ---------------------------------------------------------------------------------------


def test_no_password_is_kept_or_shown(sql: Sql, view: str, tmp_path: Path) -> None:
    topic = sql.table("t")
    nowhere = f"store.url 'redis://me:{SECRET}@127.0.0.1:1'"
    secret = f"{nowhere}, store.password '{SECRET}', topic '{topic}'"
    spark = sql.lab.spark
    kept = failure(lambda: spark.sql(f"CREATE TABLE s USING {FORMAT} OPTIONS ({secret})"))
    assert "'options.file'" in kept
    assert "StoreUnavailableError" in (
        viewed := failure(
            lambda: spark.sql(
                f"CREATE TEMPORARY VIEW {view} USING {FORMAT} OPTIONS ({nowhere}, topic 't')"
            )
        )
    )
    spark.sql(f"CREATE TABLE s (value BINARY) USING {FORMAT} OPTIONS ({secret})")
    shown = [
        tuple(row)
        for statement in ("SHOW CREATE TABLE s", "DESCRIBE EXTENDED s", "SHOW TBLPROPERTIES s")
        for row in sql(statement)
    ]
    queried = sql.refused("SELECT * FROM s")
    assert SECRET not in f"{kept}{viewed}{shown}{queried}"

    file = tmp_path / "connection.properties"
    file.write_text(f"store.path={sql.lab.options['store.path']}\nstore.password={SECRET}\n")
    file.chmod(0o600)
    spark.sql(f"CREATE TABLE f USING {FORMAT} OPTIONS (topic '{topic}', options.file '{file}')")
    spark.sql("INSERT INTO f (value) VALUES (X'61')")
    assert sql.values("f") == ["a"]
    described = str([tuple(row) for row in sql("DESCRIBE EXTENDED f")])
    assert str(file) in described
    assert SECRET not in described + str(spark.table("f").schema.json())
