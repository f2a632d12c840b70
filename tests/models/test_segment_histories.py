"""Whatever happens to a topic's segments: no row lost or doubled, keys in order, ranges tile."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from pulsar_txn_spark.engine.components import Components, open_components
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.segments.topic_name import TopicName
from tests.models.segment_histories import History, Move, moves

EXAMPLES = int(os.environ.get("HISTORIES", "30"))
# To make a failing history smaller takes minutes: it is for whoever looks for the cause.
PHASES = tuple(Phase) if os.environ.get("SHRINK") else (Phase.explicit, Phase.generate)


def require_histories(run: Components, options: Mapping[str, str]) -> None:
    numbers = itertools.count()

    @settings(max_examples=EXAMPLES, phases=PHASES, suppress_health_check=list(HealthCheck))
    @given(made=moves(30, 60))
    def check(made: list[Move]) -> None:
        topic = TopicName.parse(f"history-{next(numbers)}")
        run.topics.create(topic, 2)
        history = History(run, options, topic)
        try:
            for move in made:
                history.go(move)
            history.finish()
        finally:
            history.close()

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
