"""The table of mutations fits the code and the tests; ``make mutants`` carries it out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("found", MUTATIONS, ids=lambda m: m.name.replace(" ", "-"))
def test_every_safeguard_that_is_listed_is_there_once_and_has_its_test(found: Mutation) -> None:
    for edit in found.edits:
        text = (ROOT / edit.file).read_text(encoding="utf-8")
        assert text.count(edit.old) == 1, f"{edit.file} has changed: {edit.old!r}"
        assert edit.new != edit.old
    for killer in found.killers:
        file, _, test = killer.partition("::")
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8")


def test_mutations_have_names_of_their_own() -> None:
    assert len({found.name for found in MUTATIONS}) == len(MUTATIONS)
