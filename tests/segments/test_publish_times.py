"""The first entry since a time is found although producers' clocks differ."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from pulsar_txn_spark.segments.publish_times import (
    CLOCK_SKEW_MS,
    SCANNED_ENTRIES,
    first_published_at,
)

BEGIN = 1_000_000


@example(steps=[(5, 0), (0, 5), (5, 0)], time_ms=BEGIN + 3)
@given(
    st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, CLOCK_SKEW_MS)), max_size=60),
    st.integers(BEGIN - 20_000, BEGIN + 100_000),
)
def test_times_that_are_out_of_order_by_less_than_the_skew_hide_no_entry(
    steps: list[tuple[int, int]], time_ms: int
) -> None:
    clock, published = BEGIN, []
    for step, late in steps:
        clock += step
        published.append(clock - late)
    expected = next((n for n, at in enumerate(published) if at >= time_ms), len(published))
    assert first_published_at(len(published), published.__getitem__, time_ms) == expected


@given(st.lists(st.none() | st.integers(0, 10), max_size=30), st.integers(0, 11))
def test_an_entry_without_a_time_is_never_the_first(steps: list[int | None], time_ms: int) -> None:
    published: list[int | None] = []
    clock = 0
    for step in steps:
        clock += step or 0
        published.append(None if step is None else clock)
    found = first_published_at(len(published), published.__getitem__, time_ms)
    known = [n for n, at in enumerate(published) if at is not None and at >= time_ms]
    assert found >= min(known, default=len(published))
    if None not in published:
        assert found == min(known, default=len(published))


def test_a_search_looks_at_a_bounded_number_of_entries() -> None:
    looked_at = 0

    def published_ms(number: int) -> int:
        nonlocal looked_at
        looked_at += 1
        return BEGIN + number // 10_000  # 10,000 entries in a millisecond

    assert first_published_at(10**7, published_ms, BEGIN + 500) == 500 * 10_000
    assert looked_at < SCANNED_ENTRIES + 100
