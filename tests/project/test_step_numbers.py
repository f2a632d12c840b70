"""Docstrings and comments give a step of the protocol the number that the enumeration gives it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pulsar_txn_spark.steps import Step

PACKAGE = Path(__file__).parents[2] / "pulsar_txn_spark"
SOURCES = sorted(path for kind in ("*.py", "*.lua") for path in PACKAGE.rglob(kind))
PROCEDURES = {"adoption", "creation", "deletion", "native", "resend", "retention", "sweep", "trim"}
"""Procedures with steps of their own: their numbers stand behind their names."""
NUMBERS = {str(number): step for number, step in enumerate(Step, 1)}


def wrong_numbers(source: str) -> list[str]:
    """Return the step numbers of a file that are neither a procedure's nor followed by the name."""
    text = " ".join(re.sub(r"^\s*(#|--)\s?", "", line) for line in source.splitlines())
    found = re.finditer(r"(?:(\w+) +)?\b(?P<ref>[Ss]teps? +(\d+)(?:, ([\w-]+))?)", text)
    return [
        match["ref"]
        for match in found
        if (match[1] or "").lower() not in PROCEDURES and NUMBERS.get(match[3]) != match[4]
    ]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_step_has_the_number_of_the_protocol_and_its_name(source: Path) -> None:
    assert wrong_numbers(source.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "comment, wrong",
    [
        ("# Step 2, intent: before", []),
        ("# It goes on with\n# step 9, materialize.", []),
        ("# Retention step 2.", []),
        ("-- Step 3, pin.", []),
        ("# Step 2: the pins.", ["Step 2"]),
        ("# Step 2, pin.", ["Step 2, pin"]),
        ("# Steps 2 to 4.", ["Steps 2"]),
        ("the tag is at step 99, append", ["step 99, append"]),
    ],
)
def test_a_number_that_does_not_fit_is_found(comment: str, wrong: list[str]) -> None:
    assert wrong_numbers(comment) == wrong
