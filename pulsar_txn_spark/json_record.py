"""Records as JSON: those with a version, and those whose fields may become more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeGuard, TypeVar

Record = TypeVar("Record")


def has_version(tree: object, version: int) -> TypeGuard[Mapping[str, Any]]:
    """Tell whether a JSON document is an object of a version, which stands in its field ``v``."""
    value = tree.get("v") if isinstance(tree, Mapping) else None
    return type(value) is int and value == version


def of_tree(kind: type[Record], tree: Mapping[str, Any]) -> Record:
    """Return a dataclass instance from its fields; those that a later version has added are left.

    Parameters
    ----------
    kind : type
        A dataclass.
    tree : mapping of str to object
        A JSON object.
    """
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in tree.items() if name in known})
