"""What a thread of a ``foreachBatch`` function knows of its batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame

from pulsar_txn_spark.spark.context import BATCH_ID, QUERY_ID, ROOT_EXECUTION
from pulsar_txn_spark.spark.local_properties import LocalProperties


class Context:
    """The properties of one thread."""

    def __init__(self, **properties: str) -> None:
        self.properties = properties
        self.applicationId = "app"

    def getLocalProperty(self, key: str) -> str | None:  # noqa: N802 - the name of Spark
        return self.properties.get(key)

    def setLocalProperty(self, key: str, value: str | None) -> None:  # noqa: N802 - the name of Spark
        if value is None:
            self.properties.pop(key, None)
        else:
            self.properties[key] = value


def batch_of(query: str, batch: int, execution: int) -> dict[str, str]:
    return {QUERY_ID: query, BATCH_ID: str(batch), ROOT_EXECUTION: str(execution)}


class Micro:
    """A micro-batch whose session gives the properties of the thread that asks."""

    def __init__(self, context: Context) -> None:
        self.activated = 0
        self.sparkSession: Any = SimpleNamespace(
            _sc=context,
            _jvm=None,
            _jsparkSession=None,
            _get_j_spark_session_class=lambda _: SimpleNamespace(setActiveSession=self._activate),
        )

    def _activate(self, _: object) -> None:
        self.activated += 1


def within(caller: dict[str, str], other: dict[str, str]) -> tuple[dict[str, str], Context]:
    """Return what another thread has within the block, and its properties after the block."""
    properties = LocalProperties(cast("DataFrame", Micro(Context(**caller))))
    thread = Context(**other)
    with properties.in_this_thread(cast("DataFrame", Micro(thread))):
        seen = dict(thread.properties)
    return seen, thread


def test_a_thread_without_properties_has_those_of_the_batch_within_the_block() -> None:
    own = batch_of("q", 7, 3)
    seen, thread = within(own, {"other": "x"})
    assert seen == {**own, "other": "x"}
    assert thread.properties == {"other": "x"}


def test_a_pool_s_thread_writes_for_this_batch_and_not_for_the_one_that_it_was_made_in() -> None:
    own = batch_of("q", 7, 3)
    for stale in (batch_of("q", 6, 2), batch_of("another", 7, 3), {QUERY_ID: "q"}):
        seen, thread = within(own, stale)
        assert seen == own
        assert thread.properties == stale


def test_what_the_batch_does_not_have_is_taken_away_within_the_block() -> None:
    own = batch_of("q", 7, 3)
    del own[ROOT_EXECUTION]
    stale = batch_of("q", 6, 2)
    seen, thread = within(own, stale)
    assert seen == own
    assert thread.properties == stale


def test_the_thread_of_the_batch_is_left_as_it_is() -> None:
    own = Context(**batch_of("q", 7, 3))
    micro = Micro(own)
    properties = LocalProperties(cast("DataFrame", micro))
    with properties.in_this_thread(cast("DataFrame", micro)):
        assert own.properties == batch_of("q", 7, 3)
    assert micro.activated == 0


def test_outside_of_a_stream_a_thread_is_left_as_it_is() -> None:
    stale = batch_of("q", 6, 2)
    assert within({}, stale)[0] == stale


def test_a_block_that_fails_leaves_the_thread_as_it_was() -> None:
    properties = LocalProperties(cast("DataFrame", Micro(Context(**batch_of("q", 7, 3)))))
    thread = Context(**batch_of("q", 6, 2))
    with (
        pytest.raises(ValueError, match="fails"),
        properties.in_this_thread(cast("DataFrame", Micro(thread))),
    ):
        raise ValueError("fails")
    assert thread.properties == batch_of("q", 6, 2)
