"""The benchmarks' own arithmetic: what they report is what they measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import bare_log, data
from benchmarks.measure import Series, compare, interleave, write_json


def test_sides_take_turns_and_the_first_run_stands_apart() -> None:
    order: list[str] = []
    figures = iter(range(1, 9))

    def side(name: str) -> float:
        order.append(name)
        return next(figures)

    series = interleave({"a": lambda: side("a"), "b": lambda: side("b")}, 3, "ms", lambda *_: None)

    assert order == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert series["a"].first == 1
    assert series["a"].runs == [4, 5, 8]
    assert series["a"].median == 5
    assert series["b"].runs == [3, 6, 7]


def test_a_side_has_a_row_for_each_side_that_it_is_compared_with() -> None:
    series = {"a": Series("ms", 9, [4]), "b": Series("ms", 9, [2]), "c": Series("ms", 9, [8])}

    rows = compare("case", series, {"a": ("b", "c", "never measured")})

    assert [(r.side, r.ratio_to, r.ratio) for r in rows] == [
        ("a", "b", 2.0),
        ("a", "c", 0.5),
        ("b", None, None),
        ("c", None, None),
    ]


def test_json_rows_have_exactly_the_agreed_fields(tmp_path: Path) -> None:
    series = {"a": Series("ms", 9, [4, 5, 6]), "b": Series("ms", 7, [5])}
    target = tmp_path / "bench.json"

    write_json(target, compare("case", series, {"a": ("b", "b")}))

    rows = json.loads(target.read_text())
    assert rows[0] == {
        "case": "case",
        "side": "a",
        "unit": "ms",
        "median": 5,
        "runs": [4, 5, 6],
        "ratio_to": "b",
        "ratio": 1.0,
    }
    assert [(row["side"], row["median"]) for row in rows] == [
        ("a", 5),
        ("a/first-run", 9),
        ("a", 5),
        ("b", 5),
        ("b/first-run", 7),
    ]


@pytest.mark.parametrize("rows", [2, 7, 20_001])
def test_the_input_is_the_same_in_every_run(tmp_path: Path, rows: int) -> None:
    first = data.write_input(tmp_path / "first", rows)
    second = data.write_input(tmp_path / "second", rows)

    tables = [data.load(str(path)) for path in first]
    assert sum(table.num_rows for table in tables) == rows
    assert tables == [data.load(str(path)) for path in second]
    assert {len(v) for t in tables for v in t.column("value").to_pylist()} == {data.VALUE_BYTES}


def test_rows_that_are_routed_beforehand_are_all_there(tmp_path: Path) -> None:
    path = data.write_input(tmp_path, 30_000)[0]

    batches = bare_log.routed(str(path), data.SEGMENTS)

    assert sum(part.num_rows for batch in batches for part in batch) == 15_000
    assert all(len(batch) == data.SEGMENTS for batch in batches)
