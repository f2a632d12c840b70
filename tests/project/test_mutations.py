"""The table of mutations fits the code and the tests; ``make mutants`` applies each of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name.replace(" ", "-"))
def test_every_safeguard_that_is_listed_is_there_once_and_has_its_test(mutation: Mutation) -> None:
    for edit in mutation.edits:
        text = (ROOT / edit.file).read_text(encoding="utf-8")
        assert text.count(edit.old) == 1, f"{edit.file} has changed: {edit.old!r}"
        assert edit.new != edit.old
    for killer in mutation.killers:
        file, _, test = killer.partition("::")
        assert f"def {test.partition('[')[0]}(" in (ROOT / file).read_text(encoding="utf-8")


def test_mutations_have_names_of_their_own() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)


def test_a_mutation_is_python_and_names_nothing_that_is_not_there(tmp_path: Path) -> None:
    # Its test would fail for that reason, and say nothing of the safeguard.
    for number, mutation in enumerate(MUTATIONS):
        texts: dict[str, str] = {}
        for edit in mutation.edits:
            text = texts.get(edit.file) or (ROOT / edit.file).read_text(encoding="utf-8")
            texts[edit.file] = text.replace(edit.old, edit.new)
        for file, text in texts.items():
            if file.endswith(".py"):
                copy = tmp_path / f"{number}_{file.replace('/', '_')}"
                copy.write_text(text, encoding="utf-8")
    checked = subprocess.run(
        [
            *(sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--quiet"),
            *("--select", "F821", "--output-format", "concise", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (checked.returncode, checked.stdout) == (0, "")
