"""Batches of few rows are joined before Spark gets them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_txn_spark.errors import DataLossError
from pulsar_txn_spark.spark.source import task
from pulsar_txn_spark.spark.source.task import joined_small

FEW, MANY = 3, task._SMALL_ROWS


def batches_of(sizes: list[int]) -> list[pa.RecordBatch]:
    numbers = iter(range(sum(sizes)))
    return [
        pa.RecordBatch.from_pydict(
            {"n": pa.array([next(numbers) for _ in range(size)], pa.int64())}
        )
        for size in sizes
    ]


@given(st.lists(st.sampled_from([0, 1, FEW, 700, MANY, MANY + 1]), max_size=12))
def test_rows_stay_in_order_and_no_two_small_batches_follow_each_other(sizes: list[int]) -> None:
    found = list(joined_small(iter(batches_of(sizes))))
    values = [n for batch in found for n in batch.column("n").to_pylist()]
    assert values == list(range(sum(sizes)))
    small = [batch.num_rows < MANY for batch in found]
    assert not any(left and right for left, right in pairwise(small))


def test_a_batch_of_many_rows_is_handed_over_as_it_is() -> None:
    [few, many] = batches_of([FEW, MANY])
    found = list(joined_small(iter([few, many])))
    assert found[1] is many


def test_small_batches_of_large_rows_are_not_gathered_without_end() -> None:
    large = pa.RecordBatch.from_pydict({"n": [b"x" * task._SMALL_BYTES]})
    asked: list[int] = []

    def rows() -> Iterator[pa.RecordBatch]:
        for number in range(5):
            asked.append(number)
            yield large

    assert next(joined_small(rows())).num_rows == 1
    assert asked == [0]


def test_an_error_behind_small_batches_is_raised() -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield from batches_of([FEW])
        raise DataLossError("gone")

    with pytest.raises(DataLossError, match="gone"):
        list(joined_small(rows()))
