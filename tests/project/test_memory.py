"""The tests' files go to memory only where they fit and where programs run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.memory import in_memory

TOO_MUCH = 1 << 62


def test_a_folder_with_space_is_taken(tmp_path: Path) -> None:
    assert in_memory(tmp_path, 1)


def test_a_folder_that_is_absent_or_too_small_is_not_taken(tmp_path: Path) -> None:
    assert not in_memory(tmp_path / "absent", 1)
    assert not in_memory(tmp_path, TOO_MUCH)


def test_a_folder_from_which_no_program_runs_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = list(os.statvfs(tmp_path))
    found[8] |= os.ST_NOEXEC  # f_flag
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(found))
    assert not in_memory(tmp_path, 1)
