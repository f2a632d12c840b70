"""A ledger that its bookies recovered shorter than what was acknowledged in it (INV-11)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from pulsar_txn_spark.backends.pulsar.log import PulsarSegmentLog
from pulsar_txn_spark.backends.pulsar.wire.connection import wire_id
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.errors import DataLossError
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.log import SegmentRef
from tests.support import fake_pulsar
from tests.support.fake_admin_api import LEDGER, FakeAdminApi, fake_admin_api
from tests.support.fake_pulsar import FakePulsar

SEGMENT = SegmentRef("s1", "topic://public/default/t", "persistent://public/default/s1")
WRITTEN, LEFT = 7, 6  # entries of the first ledger


class Lossy:
    """A segment whose first ledger has lost its last entry; an entry in another ledger follows."""

    def __init__(self, broker: FakePulsar, api: FakeAdminApi) -> None:
        self.log = PulsarSegmentLog(PulsarConfig(broker.url, api.url, transport="wire"))
        api.create(SEGMENT)
        writer = self.log.writer(SEGMENT, "w")
        for number in range(WRITTEN):
            writer.append(pa.record_batch({"value": pa.array([b"%d" % number], pa.binary())}))
            self.acknowledged = writer.flush().last
        writer.close()
        # The broker's last entry is the first one of the next ledger from now on: see `mapped`.

    def stats(self) -> dict[str, Any]:
        ledgers = [(LEDGER, LEFT, 600), (LEDGER + 1, 0, 0)]
        return {
            "lastConfirmedEntry": f"{LEDGER + 1}:0",
            "currentLedgerSize": 100,
            "entriesAddedCounter": 1,
            "ledgers": [{"ledgerId": id_, "entries": n, "size": size} for id_, n, size in ledgers],
        }

    def read(self, start: Position, end: Position) -> list[int]:
        batches = self.log.read(
            SEGMENT,
            start,
            end,
            visible=lambda _name, _position: True,
            columns=frozenset({"value"}),
            max_rows=100,
        )
        return [int(value) for batch in batches for value in batch.column(0).to_pylist()]


@pytest.fixture
def lossy(broker: FakePulsar, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lossy]:
    with fake_admin_api() as api:
        lossy = Lossy(broker, api)
        answer = api.answer
        monkeypatch.setattr(
            api,
            "answer",
            lambda name, what: lossy.stats() if what == "internalStats" else answer(name, what),
        )

        def mapped(ledger: int, entry: int) -> Any:
            moved = ledger == LEDGER and entry >= LEFT
            return wire_id(ledger + 1, entry - LEFT) if moved else wire_id(ledger, entry)

        monkeypatch.setattr(fake_pulsar, "wire_id", mapped)
        yield lossy
        lossy.log.close()


def test_acknowledged_rows_that_a_closed_ledger_lacks_are_never_passed_over(lossy: Lossy) -> None:
    assert lossy.acknowledged == Position(LEDGER, WRITTEN - 1)
    with pytest.raises(DataLossError, match=r"ledger 7 was closed at 7:5.*Nothing was skipped"):
        lossy.read(Position(LEDGER, 2), Position(LEDGER, WRITTEN - 1))


def test_what_is_left_of_a_closed_ledger_is_read(lossy: Lossy) -> None:
    [snapshot] = lossy.log.snapshot_each([SEGMENT])
    end = snapshot.last_up_to(Position(LEDGER, WRITTEN - 1))
    assert end == Position(LEDGER, LEFT - 1)
    assert lossy.read(Position(LEDGER, 2), end) == [3, 4, 5]
