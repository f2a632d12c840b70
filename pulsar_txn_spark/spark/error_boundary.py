"""Errors at the methods that Spark calls: without the frames inside this package.

Spark prints a worker's whole traceback in front of the message. The message of an error of this
package says all that a user needs. The frames are logged at the level DEBUG.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader

from pulsar_txn_spark.errors import PulsarTxnError
from pulsar_txn_spark.spark.versions import SupportsTriggerAvailableNow

_LOG = logging.getLogger(__name__)
_C = TypeVar("_C")
_F = TypeVar("_F", bound=Callable[..., Any])


def plain_errors(cls: type[_C]) -> type[_C]:
    """Let the public methods of a class raise this package's errors without the frames inside."""
    for name, member in list(vars(cls).items()):
        if callable(member) and (name in {"__init__", "__call__"} or not name.startswith("_")):
            setattr(cls, name, plain_call(member))
    return cls


def plain_call(function: _F) -> _F:
    """Let a function, and the iterator that it returns, raise as :func:`plain_errors` says."""

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        try:
            result = function(*args, **named)
        except PulsarTxnError as error:
            _LOG.debug("raised to Spark", exc_info=error)
            raise error.with_traceback(None) from None
        return _plain_items(result) if isinstance(result, Iterator) else result

    return call  # type: ignore[return-value]


def _plain_items(items: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from items
    except PulsarTxnError as error:
        _LOG.debug("raised to Spark", exc_info=error)
        raise error.with_traceback(None) from None


class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises from its first method what is wrong with a source.

    PySpark's runner hides what the constructor of a reader raises behind an UnboundLocalError.

    Parameters
    ----------
    error : PulsarTxnError
        What every method raises.
    """

    def __init__(self, error: PulsarTxnError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Raise."""
        raise self._error.with_traceback(None)

    def latestOffset(self, *_: Any) -> dict[str, Any]:  # noqa: N802
        """Raise."""
        raise self._error.with_traceback(None)

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """Raise."""
        raise self._error.with_traceback(None)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Raise."""
        raise self._error.with_traceback(None)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Raise."""
        raise self._error.with_traceback(None)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Any:  # noqa: ARG002
        """Raise."""
        raise self._error.with_traceback(None)

    def read(self, partition: Any) -> Any:  # noqa: ARG002
        """Raise."""
        raise self._error.with_traceback(None)

    def commit(self, end: dict[str, Any]) -> None:  # noqa: ARG002
        """Raise."""
        raise self._error.with_traceback(None)
