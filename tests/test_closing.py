"""Closing: once, whoever does it and how."""

from __future__ import annotations

import pytest

from pulsar_txn_spark.client.consumer import Consumer
from pulsar_txn_spark.client.producer import Producer
from pulsar_txn_spark.client.session import Client
from pulsar_txn_spark.closing import Closing
from pulsar_txn_spark.engine.topic_writers import TopicWriters
from pulsar_txn_spark.prometheus import MetricsServer
from pulsar_txn_spark.txn.watcher import SegmentWatcher


class Door(Closing):
    def __init__(self) -> None:
        self.closed: list[bool] = []

    def _close(self) -> None:
        self.closed.append(self._closed)


def test_it_is_closed_once_and_says_so_before() -> None:
    door = Door()
    assert not door._closed
    door.close()
    door.close()
    assert door.closed == [True]


def test_the_end_of_a_block_closes_it_also_by_an_error() -> None:
    with Door() as door:
        assert door.closed == []
    assert door.closed == [True]
    with pytest.raises(ZeroDivisionError), Door() as door:
        raise ZeroDivisionError
    assert door.closed == [True]


def test_what_was_closed_in_its_block_is_not_closed_again() -> None:
    with Door() as door:
        door.close()
    assert door.closed == [True]


@pytest.mark.parametrize(
    "kind", [Client, Producer, Consumer, TopicWriters, SegmentWatcher, MetricsServer]
)
def test_what_owns_connections_is_closed_in_this_one_way(kind: type) -> None:
    assert issubclass(kind, Closing)
    for name in ("__enter__", "__exit__"):
        assert getattr(kind, name) is getattr(Closing, name)
