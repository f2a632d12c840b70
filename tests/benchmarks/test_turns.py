"""Revisions and the connector take turns, and no side passes that loses rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from benchmarks.measure import SideError
from benchmarks.own_spark import OwnSpark
from benchmarks.peer import SIDE as JVM
from benchmarks.turns import AGAIN, BASE, HEAD, Side, measure

ROWS = 100


class Spark:
    """Answers as a Spark of its own would, each question in some seconds."""

    def __init__(self, seconds: float, turns: list[str], name: str, rows: int = ROWS) -> None:
        self._seconds, self._turns, self._name, self._rows = seconds, turns, name, rows
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.closed = 0
        self.topics = 0

    def ask(self, do: str, **parameters: str) -> dict[str, Any]:
        self.asked.append((do, parameters))
        if do == "count":
            return {"rows": self._rows}
        self._turns.append(self._name)
        return {"seconds": self._seconds}

    def close(self) -> None:
        self.closed += 1

    @contextmanager
    def topic(self) -> Iterator[str]:
        self.topics += 1
        yield f"{self._name}-{self.topics}"
        self.topics -= 1


@pytest.fixture
def turns() -> list[str]:
    return []


@pytest.fixture
def sparks(turns: list[str]) -> dict[str, Spark]:
    seconds = {BASE: 2.0, HEAD: 1.0, AGAIN: 1.25, JVM: 4.0}
    return {name: Spark(each, turns, name) for name, each in seconds.items()}


def sides_of(sparks: dict[str, Spark]) -> list[Side]:
    numbers = itertools.count()
    return [
        Side(
            name, cast("OwnSpark", spark), spark.topic, lambda: {"subscription": str(next(numbers))}
        )
        for name, spark in sparks.items()
    ]


def test_sides_are_compared_round_by_round_with_new_processes_in_each_block(
    sparks: dict[str, Spark], turns: list[str]
) -> None:
    reported: list[str] = []
    rows = measure(
        "sink_batch", sides_of(sparks), ROWS, 2, 2, lambda side, _: reported.append(side)
    )
    assert {(row.side, row.ratio_to): row.ratio for row in rows} == {
        (BASE, JVM): 2.0,
        (HEAD, BASE): 2.0,
        (HEAD, JVM): 4.0,
        (AGAIN, HEAD): 0.8,
        (AGAIN, BASE): 1.6,
        (JVM, None): None,
    }
    assert {len(row.runs) for row in rows} == {4}, "two blocks of two rounds; the warm-up is none"
    forth, back = list(sparks), list(sparks)[::-1]
    assert turns == (forth + forth + back + forth) * 2
    assert {spark.closed for spark in sparks.values()} == {2}
    assert {spark.topics for spark in sparks.values()} == {0}


def test_what_reads_gets_a_topic_that_was_filled_once(sparks: dict[str, Spark]) -> None:
    (head,) = sides_of({HEAD: sparks[HEAD]})
    measure("pipeline", [head], ROWS, 1, 1, lambda *_: None)
    asked = sparks[HEAD].asked
    assert [do for do, _ in asked] == ["sink_batch", "pipeline", "count", "pipeline", "pipeline"]
    pipelines = [parameters for do, parameters in asked if do == "pipeline"]
    assert {parameters["topic"] for parameters in pipelines} == {f"{HEAD}-1"}
    assert {parameters["output"] for parameters in pipelines} == {f"{HEAD}-2"}
    assert len({parameters["subscription"] for parameters in pipelines}) == len(pipelines)
    assert sparks[HEAD].topics == 0


@pytest.mark.parametrize("case", ["sink_stream", "source"])
def test_a_side_that_loses_rows_ends_the_comparison(case: str, turns: list[str]) -> None:
    sides = sides_of({HEAD: Spark(1.0, turns, HEAD, rows=ROWS - 1)})
    with pytest.raises(SideError, match=f"{HEAD} wrote 99 rows instead of 100"):
        measure(case, sides, ROWS, 1, 1, lambda *_: None)
