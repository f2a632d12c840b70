"""What CREATE TABLE hands over, and what a table in Spark's catalog keeps of it."""

from __future__ import annotations

import json

import pytest

from pulsar_txn_spark.errors import OptionError
from pulsar_txn_spark.options import (
    Options,
    Use,
    created_options,
    fitting,
    from_comment,
    to_comment,
)

ADDED = {
    "provider": "pulsar_txn",
    "owner": "me",
    "location": "file:/warehouse/t",
    "path": "file:/warehouse/t",
    "is_managed_location": "true",
    "external": "true",
    "comment": "flights",
    "collation": "UTF8_BINARY",
}
SECRET = "hunter2"


def test_the_options_of_create_table_are_those_that_spark_hands_over_twice() -> None:
    named = {"topic": "t", "store.path": "/x", "topik": "t"}
    doubles = {f"option.{key}": text for key, text in named.items()}
    assert created_options({**ADDED, "team": "a", **named, **doubles}) == named
    assert created_options({**ADDED, "team": "a"}) == {}
    assert created_options({**ADDED, "option.path": "/x", "path": "/x"}) == {}


def test_what_spark_reserves_for_tables_is_no_option_elsewhere() -> None:
    assert created_options({"topic": "t"}) is None
    assert created_options({"topic": "t", "provider": "kafka"}) is None
    for key in ADDED.keys() - {"path"}:
        with pytest.raises(OptionError, match=f"unknown option '{key}'"):
            Options({"topic": "t", key: ADDED[key]}, Use.READ)


@pytest.mark.parametrize(
    "key,text",
    [
        ("store.password", SECRET),
        ("store.url", f"redis://me:{SECRET}@h"),
        ("store.url", f"redis://h?password={SECRET}"),
        ("admin.url", f"http://me:{SECRET}@h"),
        ("pulsar.client.authparams", f"token:{SECRET}"),
    ],
)
def test_a_table_keeps_no_secret(key: str, text: str) -> None:
    with pytest.raises(OptionError, match=r"'options\.file'") as caught:
        to_comment({"topic": "t", key: text})
    assert SECRET not in str(caught.value)


def test_a_table_keeps_its_options() -> None:
    options = {"topic": "t", "store.url": "redis://h:1", "service.url": "pulsar://h:6650"}
    assert from_comment(to_comment(options)) == options


@pytest.mark.parametrize(
    "record",
    [
        json.dumps({"version": 2, "options": {}}),
        json.dumps({"version": 1}),
        json.dumps({"version": 1, "options": ["topic"]}),
        "[]",
        "no JSON",
    ],
)
def test_a_comment_that_this_release_has_not_written_is_refused(record: str) -> None:
    with pytest.raises(OptionError, match="Drop the table and create it again"):
        from_comment(f"pulsar_txn {record}")


def test_a_comment_of_a_user_keeps_no_options() -> None:
    assert from_comment("") is None
    assert from_comment("the message's id") is None


def test_a_table_serves_reads_and_writes_of_streams_and_batches() -> None:
    options = {"topic": "t", "subscription": "s", "sinkid": "w", "pulsar.client.x": "1", "typo": ""}
    both = {"topic", "pulsar.client.x", "typo"}
    assert fitting(options, Use.READ | Use.STREAM).keys() == both | {"subscription"}
    assert fitting(options, Use.READ | Use.BATCH).keys() == both
    assert fitting(options, Use.WRITE | Use.BATCH).keys() == both | {"sinkid"}
