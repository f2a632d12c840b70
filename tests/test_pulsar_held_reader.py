"""A broker that holds readers back is noticed: silence is not the end of a range."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from pulsar_txn_spark.errors import SegmentLogUnavailableError
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.pulsar_admin import TransactionState
from pulsar_txn_spark.segments.pulsar_log import PulsarSegmentLog

SEGMENT = SegmentRef("s", "topic://public/default/t", "persistent://public/default/s")
END = Position(3, 2)


def read_with(monkeypatch: pytest.MonkeyPatch, max_read: Position | None) -> list[Any]:
    """Read a range of which the broker shows nothing."""
    log = PulsarSegmentLog.__new__(PulsarSegmentLog)
    admin = mock.Mock()
    state = None if max_read is None else TransactionState("Ready", max_read, 1)
    admin.settled_transactions_of.return_value = state
    feed = mock.Mock()
    feed.next_entry.return_value = None
    log._admin = admin
    for name in ("_check_process", "_check_exists", "_check_whole"):
        monkeypatch.setattr(log, name, mock.Mock())
    log._transport = mock.Mock()
    log._transport.feed.return_value = feed
    log._transport.rows.return_value.batches.return_value = []
    found = log.read(
        SEGMENT,
        EARLIEST,
        END,
        visible=lambda _writer, _position: True,
        columns=frozenset({"value"}),
        max_rows=10,
    )
    return list(found)


def test_rows_that_the_broker_holds_back_are_not_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SegmentLogUnavailableError, match=r"nobody read beyond 3:0.*Nothing was"):
        read_with(monkeypatch, Position(3, 0))


@pytest.mark.parametrize("max_read", [END, Position(4, -1), None])
def test_a_range_of_which_nothing_is_to_be_seen_ends(
    monkeypatch: pytest.MonkeyPatch, max_read: Position | None
) -> None:
    assert read_with(monkeypatch, max_read) == []
