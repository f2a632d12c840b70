"""Whatever happens to a topic's segments: no row lost or doubled, keys in order, ranges tile."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping

import pytest
from hypothesis import given, settings

from pulsar_txn_spark.engine.components import Components, open_components
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.segments.topic_name import TopicName
from tests.models.segment_histories import DRAWN, History, Move, moves

EXAMPLES = int(os.environ.get("HISTORIES", "30"))


def require_histories(run: Components, options: Mapping[str, str]) -> None:
    numbers = itertools.count()

    @settings(DRAWN, max_examples=EXAMPLES)
    @given(made=moves(30, 60))
    def check(made: list[Move]) -> None:
        topic = TopicName.parse(f"history-{next(numbers)}")
        run.topics.create(topic, 2)
        History(run, options, topic).play(made)

    check()


def test_in_every_history_each_row_is_read_once_and_each_key_in_order(
    redis_path: str, run: Components
) -> None:
    require_histories(run, {"store.path": redis_path})


@pytest.mark.long
def test_in_every_history_on_a_cluster_each_row_is_read_once_and_each_key_in_order(
    cluster: str,
) -> None:
    options = {"store.url": cluster}
    require_histories(open_components(Options(options, Use.CONNECT)), options)
