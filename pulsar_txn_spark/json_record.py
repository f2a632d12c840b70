"""Records as JSON whose fields may become more: an older version reads what it knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

Record = TypeVar("Record")


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
