"""The ``foreachBatch`` sinks: functions of a micro-batch whose writes are one transaction."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import overload

from pyspark.sql import DataFrame

from pulsar_txn_spark.engine.components import open_components
from pulsar_txn_spark.errors import OptionError
from pulsar_txn_spark.spark.error_boundary import plain_call, plain_errors
from pulsar_txn_spark.spark.sink.batch_transaction import BatchTransaction, transaction_options


@plain_errors
class TransactionalSink:
    """A ``foreachBatch`` sink: each micro-batch is one transaction.

    Works in every output mode, update mode included.

    Parameters
    ----------
    options : mapping of str to str
        Options of the sink, as for ``format("pulsar_txn")``.

    Raises
    ------
    OptionError, TopicNotFoundError, StoreUnavailableError, SegmentLogUnavailableError
        If an option is wrong, the topic does not exist, or Redis or Pulsar cannot be used. The
        sink checks this before the query starts, but for topics that only ``__topic`` names.

    Examples
    --------
    >>> sink = TransactionalSink({"topic": "topic://public/default/out"})  # doctest: +SKIP
    >>> df.writeStream.foreachBatch(sink).start()  # doctest: +SKIP
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        parsed = transaction_options(options)
        self._options = parsed
        topic = parsed.get("topic")
        self._name = f"foreachBatch/{topic or '*'}"
        components = open_components(parsed)
        if topic is not None:
            components.topics.check_access(components.topics.require(topic))

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write one micro-batch."""
        with BatchTransaction(self._options, batch_id, df, self._name) as txn:
            txn.write(df)


Function = Callable[[DataFrame, int, BatchTransaction], None]
BatchFunction = Callable[[DataFrame, int], None]


@overload
def transactional(options: Function) -> BatchFunction: ...
@overload
def transactional(
    options: Mapping[str, str] | None = None,
) -> Callable[[Function], BatchFunction]: ...
def transactional(
    options: Mapping[str, str] | Function | None = None,
) -> Callable[[Function], BatchFunction] | BatchFunction:
    """Turn a function into a ``foreachBatch`` function whose writes are one transaction.

    Parameters
    ----------
    options : mapping of str to str, optional
        Options of the sink. Without them, as ``@transactional`` alone, all is embedded.

    Returns
    -------
    callable
        Decorator of a function ``(df, batch_id, txn)``, which calls ``txn.write(df, topic=...)``
        for each of its outputs.

    Raises
    ------
    OptionError
        If an option is wrong, before the query starts. The first micro-batch connects: importing
        the module with the function does not. Also if the function is asynchronous or a generator,
        or has no name while there is no `sinkId`.
    """
    if callable(options):
        return transactional({})(options)
    parsed = transaction_options(options or {})

    def decorate(function: Function) -> BatchFunction:
        _require_plain(function)
        name = "" if parsed.get("sinkId") else _default_name(function)

        @plain_call
        @functools.wraps(function)
        def process(df: DataFrame, batch_id: int) -> None:
            with BatchTransaction(parsed, batch_id, df, name) as txn:
                function(df, batch_id, txn)

        return process

    return decorate


def _require_plain(function: Callable[..., object]) -> None:
    """Refuse a function whose call returns before its body runs: its batch would be empty."""
    while isinstance(function, functools.partial):
        function = function.func
    for called in (function, type(function).__call__):
        if (
            inspect.iscoroutinefunction(called)
            or inspect.isgeneratorfunction(called)
            or inspect.isasyncgenfunction(called)
        ):
            raise OptionError(
                f"transactional takes no async function and no generator ({function!r}): its body "
                "would not run, and an empty batch would be committed. Give a plain function"
            )


def _default_name(function: Function) -> str:
    """Return what the default id of a function's sink is made of."""
    name: str | None = getattr(function, "__qualname__", None)
    if name is None:
        raise OptionError(
            f"transactional got a {type(function).__name__}, which has no name that could be the "
            "sink's. Give a function that has one, or the option sinkId"
        )
    return f"function/{name}".replace("<locals>", "locals")
