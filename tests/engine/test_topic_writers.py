"""What a writer leaves behind that ends in the middle of a batch."""

from __future__ import annotations

from unittest import mock

import pytest

from pulsar_txn_spark.engine.topic_writers import _Open
from pulsar_txn_spark.errors import FencedError, PulsarTxnError, SegmentLogUnavailableError
from pulsar_txn_spark.segments.log import SegmentRef

SEGMENT = SegmentRef("s1", "topic://public/default/t", "persistent://public/default/s1")


@pytest.mark.parametrize(
    "failing",
    [
        {"flush.side_effect": FencedError("another attempt took over")},
        {"acknowledged.side_effect": SegmentLogUnavailableError("nobody confirms its ledger")},
    ],
    ids=lambda failing: next(iter(failing)),
)
def test_a_writer_that_cannot_say_what_counts_is_closed_as_well(
    failing: dict[str, PulsarTxnError],
) -> None:
    writer = mock.Mock(**failing)
    [error] = failing.values()
    with pytest.raises(type(error)):
        _Open(SEGMENT, "writer", writer).leave()
    writer.close.assert_called_once()
