from __future__ import annotations

import traceback
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_txn_spark.backports import UTC, add_note, time_from_iso


@pytest.mark.parametrize("zone", ["", "Z", "+00:00", "-0730", "+05:30", "+02"])
@pytest.mark.parametrize("decimals", ["", ".5", ".123", ".123456", ".1234567890"])
@pytest.mark.parametrize("separator", ["T", " "])
def test_a_time_is_read_as_newer_pythons_read_it(zone: str, decimals: str, separator: str) -> None:
    text = f"2026-01-31{separator}08:09:10{decimals}{zone}"
    assert time_from_iso(text) == datetime.fromisoformat(text)


def test_decimals_are_read_from_the_left_and_a_zone_with_its_sign() -> None:
    zone = timezone(-timedelta(hours=7, minutes=30))
    expected = datetime(2026, 1, 31, 8, 9, 10, 500_000, zone)
    assert time_from_iso("2026-01-31T08:09:10.5-0730") == expected
    assert time_from_iso("2026-01-31T08:09:10Z").tzinfo == UTC


@given(st.datetimes(timezones=st.just(UTC) | st.none()))
def test_what_python_prints_is_read_back(time: datetime) -> None:
    assert time_from_iso(time.isoformat()) == time


@pytest.mark.parametrize("text", ["", "now", "2026-01-31T", "2026-13-01T00:00:00Z", "T08:00:00Z"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        time_from_iso(text)


def test_a_note_is_shown_with_its_exception() -> None:
    error = ValueError("first")
    add_note(error, "second")
    error.add_note("third")
    assert "".join(traceback.format_exception_only(error)) == "ValueError: first\nsecond\nthird\n"
