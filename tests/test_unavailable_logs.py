"""Logs that are not available keep no pass from the others, and not for long from its end."""

from __future__ import annotations

import pytest

from pulsar_txn_spark import unavailable_logs
from pulsar_txn_spark.errors import SegmentLogUnavailableError, SegmentLogUnreachableError
from pulsar_txn_spark.unavailable_logs import PATIENCE_S, UnavailableLogs


class Passes:
    """Passes over logs of which some are not available, by a clock of their own."""

    def __init__(self, waits_s: dict[str, float]) -> None:
        self.logs = UnavailableLogs()
        self.waits_s = waits_s
        self.now = 1.0
        self.looked: list[str] = []

    def monotonic(self) -> float:
        """Return the time, which never stands still."""
        self.now += 0.001
        return self.now

    def look(self, name: str) -> str:
        """Look at one; return why it failed."""
        try:
            with self.logs.attempt(name):
                self._ask(name)
        except SegmentLogUnavailableError as error:
            return str(error)
        return ""

    def _ask(self, name: str) -> None:
        self.looked.append(name)
        if name in self.waits_s:
            self.now += self.waits_s[name]
            raise SegmentLogUnavailableError(f"{name} is away")

    def run(self, names: str) -> dict[str, str]:
        """Look at all, as a pass does; return what failed."""
        self.looked = []
        self.logs.begin()
        return {name: why for name in self.logs.in_order(names) if (why := self.look(name))}


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Passes:
    made = Passes({})
    monkeypatch.setattr(unavailable_logs, "time", made)
    made.logs = UnavailableLogs()
    return made


def test_what_failed_the_last_time_comes_last_and_first_again_once_it_works(passes: Passes) -> None:
    passes.waits_s = {"a": 1, "c": 1}
    assert sorted(passes.run("abcd")) == ["a", "c"]
    assert passes.looked == ["a", "b", "c", "d"]
    del passes.waits_s["a"]
    assert sorted(passes.run("abcd")) == ["c"]
    assert passes.looked == ["b", "d", "a", "c"]
    passes.run("abcd")
    assert passes.looked == ["a", "b", "d", "c"]


def test_a_pass_waits_for_a_bounded_time_and_the_next_one_begins_where_it_ended(
    passes: Passes,
) -> None:
    passes.waits_s = dict.fromkeys("abc", 0.6 * PATIENCE_S)
    failed = passes.run("abcde")
    assert passes.looked == ["a", "b"]
    assert "was not looked at, as others were not available for 36 s" in failed["e"]
    assert sorted(passes.run("abcde")) == ["a", "b", "c"]
    assert passes.looked == ["c", "d", "e", "a"]
    passes.run("abcde")
    assert passes.looked == ["d", "e", "b", "c"], "the one that failed longest ago is next"


def test_one_that_has_failed_is_asked_once_in_a_pass(passes: Passes) -> None:
    passes.waits_s = {"a": 1}
    passes.logs.begin()
    assert [passes.look("a"), passes.look("a")] == ["a is away"] * 2
    assert passes.looked == ["a"]


def test_a_server_that_nobody_can_reach_is_no_fault_of_the_one_that_was_asked(
    passes: Passes,
) -> None:
    def ask() -> None:
        with passes.logs.attempt("a"):
            passes.looked.append("a")
            raise SegmentLogUnreachableError("nobody answers")

    for _ in range(2):
        with pytest.raises(SegmentLogUnreachableError):
            ask()
    assert passes.looked == ["a", "a"]


def test_what_is_remembered_is_bounded(passes: Passes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unavailable_logs, "_REMEMBERED", 2)
    passes.waits_s = dict.fromkeys("abc", 1)
    passes.run("abc")
    passes.run("abcd")
    assert passes.looked == ["a", "d", "b", "c"]
