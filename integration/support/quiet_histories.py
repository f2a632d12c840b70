"""Random histories of segments that do not change, on a real broker: a few rows at a time.

They try the readers that wait for the next range of their segment. Readers of one process go on in
turn, so that one finds the reader that another one has left, or one that is ahead or behind.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings

from pulsar_txn_spark.backends.pulsar.wire.idle_feeds import IdleFeeds
from pulsar_txn_spark.backends.pulsar.wire.reader import WireEntryFeed
from pulsar_txn_spark.engine.components import Components, open_components
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.topic_name import TopicName
from tests.models.segment_histories import DRAWN, History, Move, quiet_moves

QUIET_HISTORIES = int(os.environ.get("QUIET_HISTORIES", "2"))


class FeedsTaken:
    """Counts what became of the readers that waited."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = Counter[str]()
        take = IdleFeeds[WireEntryFeed].take

        def counted(
            feeds: IdleFeeds[WireEntryFeed], topic: str, start: Position
        ) -> WireEntryFeed | None:
            waiting = topic in feeds._of_topic
            feed = take(feeds, topic, start)
            if feed is not None:
                self.count["skipped" if feed._behind < start else "went on"] += 1
            elif waiting:
                self.count["closed"] += 1
            return feed

        monkeypatch.setattr(IdleFeeds, "take", counted)


def check_quiet_histories(
    given_options: dict[str, str],
    new_topic: Callable[[Components], TopicName],
    unload: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each reader gets each key's committed rows, once and in order; readers did wait meanwhile.

    Parameters
    ----------
    given_options : dict of str to str
        How to reach store and broker.
    new_topic : callable
        Creates a topic.
    unload : callable
        Makes the broker load a topic of Pulsar's again.
    monkeypatch : pytest.MonkeyPatch

    Raises
    ------
    AssertionError
    """
    options = {**given_options, "transport": "wire"}
    run = open_components(Options(options, Use.CONNECT))
    taken = FeedsTaken(monkeypatch)

    @settings(DRAWN, max_examples=QUIET_HISTORIES)
    @given(made=quiet_moves(20))
    def check(made: list[Move]) -> None:
        History(run, options, new_topic(run), unload=unload).play(made)

    check()
    assert min(taken.count[so] for so in ("went on", "skipped", "closed")) >= QUIET_HISTORIES
