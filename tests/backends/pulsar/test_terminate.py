"""A topic counts as sealed when the cluster has stored it, whatever a broker says before."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from pulsar_txn_spark.backends.pulsar import admin_api
from pulsar_txn_spark.backends.pulsar.admin_api import PulsarAdmin
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.errors import SegmentLogError, SegmentLogUnavailableError
from pulsar_txn_spark.position import Position

TOPIC = "persistent://public/default/s1"


@dataclass
class Broker:
    """A broker of one topic, as 4.0.7 terminates it: first in its memory, then in the metadata.

    Parameters
    ----------
    in_memory, stored : bool
        Where the topic is terminated.
    store_fails : int
        So many times the metadata take nothing.
    behind : list
        Ledgers that got entries although the topic was terminated.
    end : tuple of int
        What the metadata name as the end.
    says : str
        What is said of the last entry by whoever is asked, which may have lost the topic.
    """

    in_memory: bool = False
    stored: bool = False
    store_fails: int = 0
    behind: list[dict[str, int]] = field(default_factory=list)
    end: tuple[int, int] = (3, 1)
    says: str = "3:1"
    asked: list[str] = field(default_factory=list)

    def answer(self, method: str, path: str, *_: Any, **__: Any) -> Any:
        what = path.rpartition("/")[2]
        self.asked.append(what)
        if what == "terminate":
            self._terminate()
        elif what == "unload":
            self.in_memory = self.stored
        elif what == "internal-info":
            ledgers = [{"ledgerId": 2, "entries": 7}, {"ledgerId": 3, "entries": 2}]
            if self.end[0] > 3:
                ledgers.append({"ledgerId": self.end[0]})
            known: dict[str, Any] = {"version": 3, "ledgers": ledgers}
            if self.stored:
                known["terminatedPosition"] = {"ledgerId": self.end[0], "entryId": self.end[1]}
            return SimpleNamespace(data=json.dumps(known).encode())
        elif what == "internalStats":
            ledgers = [{"ledgerId": 3, "entries": 2, "size": 9}, *self.behind]
            stats = {
                "lastConfirmedEntry": self.says,
                "ledgers": ledgers,
                "currentLedgerSize": 0,
                "entriesAddedCounter": 0,
            }
            return SimpleNamespace(data=json.dumps(stats).encode())
        else:
            raise AssertionError(method, path)
        return SimpleNamespace(data=b"")

    def _terminate(self) -> None:
        if self.in_memory:
            return  # "an already terminated managed ledger"
        self.in_memory = True
        self.stored = self.store_fails <= 0
        self.store_fails -= 1


def admin_of(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> PulsarAdmin:
    admin = PulsarAdmin(PulsarConfig("pulsar://x:1", "http://x:2"))
    monkeypatch.setattr(admin, "_call", broker.answer)
    monkeypatch.setattr(admin_api, "_SEAL_PAUSES_S", (0.0,) * 5)
    return admin


def test_a_topic_is_sealed_where_its_end_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    assert admin_of(broker, monkeypatch).terminate(TOPIC) == Position(3, 1)
    assert broker.asked == ["terminate", "unload", "internal-info", "internalStats"]


def test_one_that_is_sealed_in_the_memory_of_a_broker_alone_is_sealed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody else's request failed, or is under way, and this one was answered at once."""
    broker = Broker(in_memory=True)
    assert admin_of(broker, monkeypatch).terminate(TOPIC) == Position(3, 1)
    assert broker.stored
    assert broker.asked.count("terminate") == 2


@pytest.mark.parametrize("end", [(3, 1), (4, -1)], ids=["an entry", "a last ledger without any"])
def test_a_topic_ends_where_the_metadata_say_and_not_where_a_broker_does(
    end: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that lost the topic without knowing it tells of fewer entries than there are."""
    broker = Broker(end=end, says="3:0")
    assert admin_of(broker, monkeypatch).terminate(TOPIC) == Position(3, 1)


def test_one_whose_end_is_never_stored_is_not_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(store_fails=1_000)
    with pytest.raises(SegmentLogUnavailableError, match="has not stored that"):
        admin_of(broker, monkeypatch).terminate(TOPIC)
    assert not broker.stored


def test_entries_that_were_acknowledged_behind_the_end_are_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = Broker(behind=[{"ledgerId": 4, "entries": 1, "size": 5}])
    with pytest.raises(SegmentLogError, match="acknowledged entries up to 4:0"):
        admin_of(broker, monkeypatch).terminate(TOPIC)
