"""Who needs one part of the store takes that part, not the whole store (``store/protocol.py``)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "pulsar_txn_spark"
WHOLE = {"MetadataStore", "RedisStore"}
FILES = sorted(
    file
    for file in PACKAGE.rglob("*.py")
    if "redis" not in file.parts and not file.name.endswith("_pb2.py")
)


def stores_of(function: ast.FunctionDef) -> set[str]:
    """Return the parameters that are a whole store."""
    parameters = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    return {
        parameter.arg
        for parameter in parameters
        if parameter.annotation is not None and ast.unparse(parameter.annotation) in WHOLE
    }


def attributes_of(scope: ast.AST, names: set[str]) -> set[str]:
    """Return the attributes in which a scope keeps one of `names`."""
    return {
        ast.unparse(node.targets[0])
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign) and ast.unparse(node.value) in names
    }


def parts_of(scope: ast.AST, names: set[str]) -> set[str]:
    """Return the parts that a scope uses of a store; `*` if it passes the whole store on."""
    parts = set()
    for parent in ast.walk(scope):
        for child in ast.iter_child_nodes(parent):
            if not isinstance(child, ast.Name | ast.Attribute) or ast.unparse(child) not in names:
                continue
            if isinstance(parent, ast.Attribute):
                parts.add(parent.attr)
            elif not isinstance(parent, ast.Assign):
                parts.add("*")
    return parts


def too_wide(tree: ast.Module) -> Iterator[str]:
    """Yield the functions and classes that take a store and use one part of it."""
    for scope in tree.body:
        members = scope.body if isinstance(scope, ast.ClassDef) else [scope]
        for function in members:
            if not isinstance(function, ast.FunctionDef) or not (stores := stores_of(function)):
                continue
            kept = attributes_of(function, stores)
            if any(name.startswith("self.") and not name.startswith("self._") for name in kept):
                continue  # others use it
            parts = parts_of(scope if kept else function, stores | kept)
            if len(parts) == 1 and parts != {"*"}:
                yield f"{function.lineno}: {function.name}: {parts.pop()}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_nobody_takes_the_whole_store_for_one_part_of_it(file: Path) -> None:
    assert list(too_wide(ast.parse(file.read_text(encoding="utf-8")))) == []


def test_a_store_that_is_too_wide_is_noticed() -> None:
    code = """
class A:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store
    def f(self) -> None:
        self._store.topics.read("a")
def f(store: RedisStore) -> None:
    store.meta.list_topics()
def g(store: MetadataStore) -> None:
    store.meta.list_topics()
    f(store)
"""
    assert list(too_wide(ast.parse(code))) == ["3: __init__: topics", "7: f: meta"]
