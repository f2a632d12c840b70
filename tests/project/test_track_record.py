"""The track record names only tests that exist, and a commit for each defect."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.mutation.mutations import MUTATIONS
from tests.project.test_coverage_doc import ROOT, symbols
from tools.show_defect import PAGE, Defect, defects

DEFECTS = defects()


def test_the_page_has_rows() -> None:
    assert DEFECTS


def test_no_number_stands_there_twice() -> None:
    numbers = [defect.number for defect in DEFECTS]
    assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.number)
def test_each_row_names_a_commit_and_tests_that_exist(defect: Defect) -> None:
    for commit in (defect.before, defect.tests_of or defect.before):
        assert re.fullmatch(r"[0-9a-f]{7,40}\^?", commit)
    assert defect.tests or defect.mutations
    known = {mutation.name for mutation in MUTATIONS}
    assert known.issuperset(defect.mutations)
    for test in defect.tests:
        path, _, name = test.partition("::")
        file = ROOT / path
        assert file.is_file(), path
        assert name.partition("[")[0].replace("::", ".") in symbols(file), test


def test_a_row_is_read_from_its_cells(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "| # | Defect | Tests | Seen | Commit |\n|---|---|---|---|---|\n"
        "| 7 | a \\| b | `tests/test_a.py::test_b`, `x` | rows lost | `0123abc` |\n",
        encoding="utf-8",
    )
    assert defects(page) == [Defect("7", "0123abc", "", ("tests/test_a.py::test_b",), ("x",))]
    assert PAGE.is_relative_to(ROOT)
