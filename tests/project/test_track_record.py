"""The track record names only tests that exist, and a commit for each defect."""

from __future__ import annotations

import re

import pytest

from tests.mutation.mutations import MUTATIONS
from tests.project.test_coverage_doc import ROOT, symbols

PAGE = ROOT / "docs" / "internals" / "track-record.md"
CELLS = 5
KNOWN_MUTATIONS = {mutation.name for mutation in MUTATIONS}


def rows() -> list[list[str]]:
    """Return the cells of each row: number, defect, tests or mutations, what was seen, commits."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    split = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [cells for cells in split if cells and cells[0][:1].isdigit()]


ROWS = rows()


def test_the_page_has_rows_and_no_number_twice() -> None:
    numbers = [cells[0] for cells in ROWS]
    assert numbers
    assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize("cells", ROWS, ids=lambda cells: str(cells[0]))
def test_each_row_names_a_commit_and_tests_that_exist(cells: list[str]) -> None:
    assert len(cells) == CELLS
    commits = re.findall(r"`([^`]+)`", cells[4])
    assert commits
    for commit in commits:
        assert re.fullmatch(r"[0-9a-f]{7,40}\^?", commit)
    proofs = re.findall(r"`([^`]+)`", cells[2])
    assert proofs
    for proof in proofs:
        path, colons, name = proof.partition("::")
        if not colons:
            assert proof in KNOWN_MUTATIONS
            continue
        assert (ROOT / path).is_file(), path
        assert name.partition("[")[0].replace("::", ".") in symbols(ROOT / path), proof
