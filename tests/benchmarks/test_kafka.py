"""How the sides of the comparison with Kafka are put together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import data, kafka
from benchmarks.measure import Result, SideError

_ROWS = 2_000_000


def _side(seconds: float, failing_at: int = 0) -> Callable[[int], kafka.Run]:
    runs = 0

    def run(rows: int) -> kafka.Run:
        nonlocal runs
        runs += 1
        if runs == failing_at:
            raise SideError("it died")
        if rows == _ROWS:
            return kafka.Run(seconds, {"broker": 3.0, "client": 5.0})
        return kafka.Run(1.0, {"client": 0.5})

    return run


def _compared(
    sides: dict[str, Callable[[int], kafka.Run]], dropped: list[str]
) -> dict[tuple[str, str], list[Result]]:
    results: dict[tuple[str, str], list[Result]] = {}
    for rows in kafka.compared(
        sides, _ROWS, 3, lambda *_: None, lambda _, side, error: dropped.append(f"{side}: {error}")
    ):
        for row in rows:
            results.setdefault((row.case, row.side), []).append(row)
    return results


def test_processor_time_is_told_for_a_million_rows_and_by_kind_of_process() -> None:
    results = _compared({kafka.OURS: _side(4), kafka.FLINK: _side(2)}, [])

    assert [(r.median, r.ratio_to, r.ratio) for r in results[kafka.CASE, kafka.OURS]] == [
        (500_000, kafka.FLINK, 0.5)
    ]
    [whole] = results[f"{kafka.CASE}_cpu", kafka.FLINK]
    assert (whole.median, whole.runs, whole.first) == (4.0, (4.0, 4.0, 4.0), 4.0)
    assert results[f"{kafka.CASE}_cpu", f"{kafka.FLINK}, broker"][0].median == 1.5
    assert results[f"{kafka.CASE}_cpu", f"{kafka.FLINK}, client"][0].median == 2.5
    assert results[f"{kafka.CASE}_cpu_of_4_rows", kafka.FLINK][0].median == 0.5


def test_a_kind_of_process_that_did_nothing_in_a_run_has_a_zero_there() -> None:
    turns = iter([{"a": 1.0}, {"a": 1.0}, {"a": 1.0, "b": 2.0}, {"a": 1.0}] * 2)
    results = _compared({kafka.FLINK: lambda _: kafka.Run(1.0, next(turns))}, [])

    assert results[f"{kafka.CASE}_cpu", f"{kafka.FLINK}, b"][0].runs == (1.0, 0.0, 1.0)
    assert (f"{kafka.CASE}_cpu_of_4_rows", f"{kafka.FLINK}, b") not in results


def test_a_side_that_fails_is_left_out_of_all_cases() -> None:
    dropped: list[str] = []
    results = _compared({kafka.OURS: _side(4), kafka.FLINK: _side(2, failing_at=3)}, dropped)

    assert dropped == [f"{kafka.FLINK}: it died"]
    assert {side.partition(",")[0] for _, side in results} == {kafka.OURS}


@pytest.mark.parametrize("rows", [4, 101])
def test_kafka_gets_the_rows_of_the_input(tmp_path: Path, rows: int) -> None:
    data.write_input(tmp_path / "in", rows)

    packed = kafka.packed(tmp_path / "in").read_bytes()

    expected = [
        key + value
        for part in sorted((tmp_path / "in").iterdir())
        for key, value in zip(
            *(data.load(str(part)).column(name).to_pylist() for name in ("key", "value")),
            strict=True,
        )
    ]
    assert len(packed) == rows * (12 + data.VALUE_BYTES)
    assert packed == b"".join(expected)
