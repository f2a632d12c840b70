"""The benchmarks' own arithmetic: what they report is what they measured."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from benchmarks import bare_log, data
from benchmarks.measure import (
    Result,
    Results,
    Series,
    SideError,
    compare,
    in_pairs,
    interleave,
    write_json,
)
from benchmarks.micro_batch import ONE_ROW, Shape, Steps, stepped
from benchmarks.own_spark import OwnSpark
from benchmarks.peer import SIDE as JVM
from benchmarks.peer import PeerError
from benchmarks.processes import Crew
from benchmarks.revisions import Compared, Figures, compare_pairs, read_figures
from benchmarks.throughput import Bench


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


def test_paired_runs_are_compared_with_each_other() -> None:
    series = {"a": Series("ms", 9, [2, 30, 8]), "b": Series("ms", 9, [1, 10, 2])}

    rows = in_pairs("case", series, {"a": ("b",)})

    assert [(r.side, r.median, r.ratio_to, r.ratio) for r in rows] == [
        ("a", 8, "b", 3.0),
        ("b", 2, None, None),
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


def test_the_connector_that_fails_midway_loses_its_own_side_alone(tmp_path: Path) -> None:
    target = tmp_path / "bench.json"
    results, dropped = Results(target), list[tuple[str, str, str]]()
    bench = Bench(
        spark=cast("SparkSession", None),
        crew=cast("Crew", None),
        folder=tmp_path,
        input_folder=tmp_path,
        parts=[],
        rows=1,
        repetitions=3,
        report=lambda *_: None,
        drop=lambda case, side, error: dropped.append((case, side, str(error))),
    )

    results.add(bench.run_case("before", {"ours": lambda: 1.0, JVM: lambda: 2.0}, {}))
    found = bench.run_case(
        "failing", {"ours": _ours_of(8), JVM: _failing_at(3)}, {"ours": (JVM, "other")}
    )
    results.add(found)

    assert [(row.side, row.runs, row.ratio_to) for row in found] == [("ours", (2, 3, 4), None)]
    assert dropped == [("failing", JVM, "it died")]
    written = [(row["case"], row["side"]) for row in json.loads(target.read_text())]
    assert ("before", JVM) in written
    assert ("failing", "ours") in written
    assert ("failing", JVM) not in written
    ours = "ours", _ours_of(40)
    [alone] = bench.run_pairs("failing pairs", ours, (JVM, _failing_at(3)))
    assert len(alone.runs) == 9
    assert alone.ratio is None
    assert dropped[1:] == [("failing pairs", JVM, "it died")]
    paired = bench.run_pairs("pairs", ours, (JVM, lambda: 1.0))
    assert [(row.ratio_to, row.ratio) for row in paired] == [(JVM, 16.0), (None, None)]


def _ours_of(count: int) -> Callable[[], float]:
    figures = iter(range(1, count))
    return lambda: next(figures)


def _failing_at(run: int) -> Callable[[], float]:
    runs = iter(range(1, run + 1))

    def side() -> float:
        if next(runs) == run:
            raise PeerError("it died")
        return 1.0

    return side


def test_a_side_that_fails_between_micro_batches_is_left_out() -> None:
    class Stepper:
        def __init__(self, left: int) -> None:
            self._left = left

        def step(self, shape: Shape) -> Mapping[str, int]:
            assert shape is ONE_ROW
            self._left -= 1
            if not self._left:
                raise PeerError("it died")
            return {"triggerExecution": 7}

    @contextmanager
    def query(left: int) -> Iterator[Steps]:
        yield Stepper(left)

    dropped: list[tuple[str, str]] = []
    measured, phases = stepped(
        {"a": lambda: query(-1), JVM: lambda: query(4), "b": lambda: query(-1)},
        [ONE_ROW],
        2,
        lambda *_: None,
        lambda case, side, _: dropped.append((case, side)),
    )

    assert dropped == [(ONE_ROW.case, JVM)]
    assert {side: series.runs for side, series in measured[ONE_ROW].items()} == {
        "a": [7] * 4,
        "b": [7] * 4,
    }
    assert set(phases) == {"a", "b"}


def test_a_job_whose_process_dies_fails_its_side_and_starts_anew() -> None:
    job = OwnSpark("false", {}, os.environ, PeerError)

    for _ in range(2):
        with pytest.raises(PeerError, match="source failed: its process has ended"):
            job.ask("source", topic="any")


def test_an_error_of_ours_is_not_passed_over() -> None:
    def side() -> float:
        raise RuntimeError("rows were lost")

    with pytest.raises(RuntimeError, match="lost"):
        interleave({"a": side}, 3, "ms", lambda *_: None, lambda *_: None)


def test_a_failing_side_stops_a_case_that_cannot_do_without_it() -> None:
    with pytest.raises(SideError):
        interleave({"a": _failing_at(2)}, 3, "ms", lambda *_: None)


def test_the_file_of_results_is_replaced_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "bench.json"
    results = Results(target)
    results.add([Result("case", "a", "ms", 1.0, (1.0,))])
    before = target.read_text()

    def broken(*_: object, **__: object) -> str:
        raise OSError("no room")

    monkeypatch.setattr(Path, "write_text", broken)
    with pytest.raises(OSError, match="no room"):
        results.add([Result("case", "b", "ms", 1.0, (1.0,))])

    assert target.read_text() == before


def test_the_log_alone_changes_values_as_the_job_does() -> None:
    values = pa.array([b"abc", b"d", b"", None])

    assert bare_log.turned(values).to_pylist() == [b"bca", b"d", b"", None]


def test_revisions_are_compared_pair_by_pair_where_every_run_has_a_figure() -> None:
    def measured(sink: float, **others: float) -> Figures:
        return {
            ("sink", "exactly-once"): ("rows/s", sink),
            **{(case, "null"): ("ms", figure) for case, figure in others.items()},
        }

    pairs = [(measured(100), measured(110, look=1)), (measured(200), measured(180, look=1))]

    assert compare_pairs(pairs) == [
        Compared("sink", "exactly-once", "rows/s", base=150, head=145, ratios=(1.1, 0.9))
    ]


def test_figures_of_a_revision_are_the_medians_that_it_has_written(tmp_path: Path) -> None:
    target = tmp_path / "bench.json"
    write_json(target, compare("case", {"a": Series("ms", 9, [4, 5, 9])}, {}))

    assert read_figures(target)["case", "a"] == ("ms", 5)
