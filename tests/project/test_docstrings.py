"""A docstring names the parameters that its function or class has, and no others."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(
    file for file in (ROOT / "pulsar_txn_spark").rglob("*.py") if not file.name.endswith("_pb2.py")
)
SECTION = re.compile(r"Parameters\n-+\n(.*?)(?:\n\n\w[^\n]*\n-+\n|\Z)", re.DOTALL)
NAMES = re.compile(r"^((?:\w+)(?:, \w+)*) : ", re.MULTILINE)


def parameters(node: ast.FunctionDef | ast.ClassDef) -> set[str]:
    """Return the parameters of a function, or those that make an object of a class."""
    if isinstance(node, ast.FunctionDef):
        arguments = node.args
        return {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    own = {
        field.target.id
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            own |= parameters(member)
    return own


def stray(text: str) -> list[str]:
    """Return what docstrings of a source name as parameters, though there are none such."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        section, known = SECTION.search(ast.get_docstring(node) or ""), parameters(node)
        if section is None or not known:
            continue
        for names in NAMES.findall(section[1]):
            found += [f"{node.name}: {name}" for name in names.split(", ") if name not in known]
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_each_parameter_that_a_docstring_names_is_there(file: Path) -> None:
    assert stray(file.read_text(encoding="utf-8")) == []


def test_a_parameter_that_is_gone_is_noticed() -> None:
    doc = '"""Do it.\n\n    Parameters\n    ----------\n    a, b : int\n        Both.\n    """'
    assert stray(f"def f(a: int) -> None:\n    {doc}\n") == ["f: b"]
