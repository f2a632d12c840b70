"""The table of docs/interop.md names a test in each cell, or a reason why there is none."""

from __future__ import annotations

import re

import pytest

from tests.project.test_coverage_doc import ROOT, symbols

PAGE = ROOT / "docs" / "interop.md"
SHAPES = (
    "compression",
    "chunks",
    "null values",
    "empty values",
    "binary keys",
    "ordering keys",
    "event time",
    "properties",
    "schema",
    "committed transactions",
    "aborted transactions",
    "open transactions",
)
COLUMNS = 5
LEAST_REASON = len("none: a reason")
TEXT = PAGE.read_text(encoding="utf-8")
TESTS = dict(re.findall(r"^(\d+)\. `([^`]+)`$", TEXT, re.MULTILINE))
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith("| Shape")
]


def test_the_page_has_each_shape() -> None:
    for shape in SHAPES:
        assert [row[0] for row in ROWS if shape in row[0]], shape


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_cell_names_a_test_or_says_why_there_is_none(row: list[str]) -> None:
    assert len(row) == COLUMNS
    for cell in row[1:]:
        if cell.startswith("none: "):
            assert len(cell) > LEAST_REASON
        else:
            numbers = re.findall(r"\((\d+)\)", cell)
            assert numbers, cell
            assert set(numbers) <= TESTS.keys()


def test_each_test_of_the_page_exists_and_is_named_by_a_cell() -> None:
    named = {number for row in ROWS for number in re.findall(r"\((\d+)\)", " ".join(row))}
    assert named == TESTS.keys()
    for test in TESTS.values():
        path, _, name = test.partition("::")
        assert name in symbols(ROOT / path), test
