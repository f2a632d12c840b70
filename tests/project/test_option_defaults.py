"""A default of an option stands in the table, and nowhere else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsar_txn_spark.options import OPTIONS, Use
from tools.options_page import default_text

PACKAGE = Path(__file__).parents[2] / "pulsar_txn_spark"
KEYS = {option.key for option in OPTIONS}


def _lookup(node: ast.AST) -> str | None:
    """Return the option that a call looks up."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    first = node.args[0] if node.args else None
    named = first.value if isinstance(first, ast.Constant) else None
    # The settings of the library for Pulsar have names of their own, none with a capital or a dot.
    return named if node.func.attr in {"get", "explicit"} and named in KEYS else None


def _own_defaults(source: str) -> Iterator[str]:
    """Yield the lookups that name a value for an option that is not given.

    An empty text, no number and an empty set only say "nothing" in another type.
    """
    for node in ast.walk(ast.parse(source)):
        if (key := _lookup(node)) and isinstance(node, ast.Call) and len(node.args) > 1:
            yield f"{key} at line {node.lineno}"
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
            key = _lookup(node.values[0])
            for other in node.values[1:] if key else ():
                if (isinstance(other, ast.Constant) and other.value) or (
                    isinstance(other, ast.Call) and _lookup(other) is None
                ):
                    yield f"{key} at line {node.lineno}"


def test_no_call_site_names_a_default_of_its_own() -> None:
    found = {
        str(path.relative_to(PACKAGE)): own
        for path in sorted(PACKAGE.rglob("*.py"))
        if "options" in path.read_text(encoding="utf-8")
        and (own := list(_own_defaults(path.read_text(encoding="utf-8"))))
    }
    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        'options.get("txn.timeoutMs", 60_000)',
        'options.get("failOnDataLoss") or True',
        'options.get("endingOffsets") or Offsets("latest")',
        'self._options.explicit("metrics.host") or "127.0.0.1"',
    ],
)
def test_a_default_at_a_call_site_would_be_found(source: str) -> None:
    assert len(list(_own_defaults(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        'options.get("subscription") or ""',
        'options.get("topics") or [options.get("topic")]',
        'settings.get("transport_name", "wire")',
    ],
)
def test_saying_nothing_in_another_type_is_no_default(source: str) -> None:
    assert list(_own_defaults(source)) == []


def test_every_default_is_on_the_page() -> None:
    page = (PACKAGE.parent / "docs" / "options.md").read_text(encoding="utf-8")
    rows = {row.split("`")[1]: row.split(" | ") for row in page.splitlines() if row[:3] == "| `"}
    defaults = {o.key: default_text(o.default_for(Use.READ | Use.STREAM)) for o in OPTIONS}
    assert defaults["txn.timeoutMs"] == "60000"
    for key, text in defaults.items():
        if text:
            assert text in rows[key][1], key
