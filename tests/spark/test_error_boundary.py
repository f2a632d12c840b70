"""What Spark calls raises errors of few lines, and PySpark's runner hides none of them."""

from __future__ import annotations

import functools
import pickle
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StringType, StructField, StructType

from pulsar_txn_spark import transactional
from pulsar_txn_spark.errors import OptionError, PulsarTxnError, SchemaError
from pulsar_txn_spark.spark.datasource import PulsarTxnDataSource
from pulsar_txn_spark.spark.error_boundary import plain_call, plain_errors
from pulsar_txn_spark.spark.rows import READ_SCHEMA
from pulsar_txn_spark.spark.versions import ReadAllAvailable, SupportsTriggerAvailableNow

NOWHERE = {"topic": "t", "endingOffsets": "latest", "store.path": "/nowhere"}


def lines_of(call: Callable[[], object]) -> list[str]:
    with pytest.raises(PulsarTxnError) as caught:
        call()
    return "".join(traceback.format_exception(caught.value)).splitlines()


@plain_errors
class Deep:
    """Fails far down, on account of something else."""

    def fail(self) -> None:
        self._further(5)

    def items(self) -> Iterator[int]:
        yield 1
        self._further(5)

    def _further(self, more: int) -> None:
        if more:
            self._further(more - 1)
        try:
            dict[str, int]()["the reason"]
        except KeyError as error:
            raise OptionError("the message") from error


def test_an_error_has_no_frames_of_the_inside_and_its_message_last() -> None:
    for call in (Deep().fail, lambda: list(Deep().items())):
        lines = lines_of(call)
        assert lines[-1].endswith("OptionError: the message")
        assert not any("_further" in line or "KeyError" in line for line in lines)


def test_what_is_not_this_packages_keeps_its_traceback() -> None:
    def fail() -> None:
        raise ZeroDivisionError("a user's")

    with pytest.raises(ZeroDivisionError) as caught:
        plain_call(fail)()
    assert "in fail" in "".join(traceback.format_exception(caught.value))


STREAM_METHODS: dict[str, Callable[[Any], Any]] = {
    "initialOffset": lambda reader: reader.initialOffset(),
    "latestOffset": lambda reader: reader.latestOffset({}, ReadAllAvailable()),
    "getDefaultReadLimit": lambda reader: reader.getDefaultReadLimit(),
    "prepareForTriggerAvailableNow": lambda reader: reader.prepareForTriggerAvailableNow(),
    "reportLatestOffset": lambda reader: reader.reportLatestOffset(),
    "partitions": lambda reader: reader.partitions({}, {}),
    "read": lambda reader: reader.read(None),
    "commit": lambda reader: reader.commit({}),
}


@pytest.mark.parametrize("method", STREAM_METHODS)
def test_a_wrong_option_of_a_stream_is_raised_by_the_readers_first_method(method: str) -> None:
    reader = PulsarTxnDataSource(dict(NOWHERE)).streamReader(READ_SCHEMA)
    assert isinstance(reader, DataSourceStreamReader)
    assert isinstance(reader, SupportsTriggerAvailableNow)
    reader.stop()
    again = pickle.loads(pickle.dumps(reader))
    for one in (reader, again):
        with pytest.raises(OptionError, match="'endingOffsets' means nothing here"):
            STREAM_METHODS[method](one)


def test_a_wrong_schema_of_a_stream_is_raised_by_the_readers_first_method() -> None:
    schema = StructType([StructField("colour", StringType())])
    reader = PulsarTxnDataSource({"topic": "t"}).streamReader(schema)
    with pytest.raises(SchemaError, match="colour"):
        reader.initialOffset()


def test_transactional_works_with_and_without_parentheses(redis_path: str) -> None:
    def process(df: DataFrame, batch_id: int, txn: Any) -> None:
        """Say what it does."""

    for made in (transactional(process), transactional()(process), transactional({})(process)):
        assert callable(made)
        assert made.__name__ == "process"
        assert made.__doc__ == "Say what it does."


async def coroutine(df: DataFrame, batch_id: int, txn: Any) -> None:
    txn.write(df)


def generator(df: DataFrame, batch_id: int, txn: Any) -> Iterator[None]:
    yield txn.write(df)


async def asynchronous_generator(df: DataFrame, batch_id: int, txn: Any) -> AsyncIterator[None]:
    yield txn.write(df)


class Function:
    """A function that is an object."""

    def __call__(self, df: DataFrame, batch_id: int, txn: Any) -> None:
        """Write a micro-batch."""


class AsynchronousFunction:
    """The same, whose body does not run when it is called."""

    async def __call__(self, df: DataFrame, batch_id: int, txn: Any) -> None:
        """Write a micro-batch."""


@pytest.mark.parametrize(
    "function",
    [
        coroutine,
        generator,
        asynchronous_generator,
        functools.partial(coroutine),
        AsynchronousFunction(),
        functools.partial(AsynchronousFunction()),
    ],
)
def test_a_function_whose_body_would_not_run_is_refused(function: Any) -> None:
    for options in ({}, {"sinkId": "sink"}):
        with pytest.raises(OptionError, match="takes no async function and no generator"):
            transactional(options)(function)


@pytest.mark.parametrize("function", [functools.partial(Function()), Function()])
def test_a_function_without_a_name_needs_a_sink_id(function: Any) -> None:
    with pytest.raises(OptionError, match=r"which has no name .*or the option sinkId"):
        transactional(function)
    assert callable(transactional({"sinkId": "sink"})(function))
