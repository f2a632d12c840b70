"""Prints the requirements of a dependency group of pyproject.toml (PEP 735), one in a line.

    python tools/dependency_group.py dev

pip reads groups by itself from 25.1 on (``--group``), and Python 3.11 brings an older one.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"

Groups = Mapping[str, Sequence[str | Mapping[str, str]]]


def requirements(groups: Groups, name: str, including: tuple[str, ...] = ()) -> list[str]:
    """Return the requirements of a group, with those of the groups that it includes."""
    if name not in groups:
        raise SystemExit(f"there is no dependency group {name!r}; there are: {', '.join(groups)}")
    if name in including:
        raise SystemExit(f"dependency group {name!r} includes itself")
    listed: list[str] = []
    for item in groups[name]:
        if isinstance(item, str):
            listed.append(item)
        else:
            listed += requirements(groups, item["include-group"], (*including, name))
    return listed


if __name__ == "__main__":
    tree = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))
    print("\n".join(requirements(tree["dependency-groups"], sys.argv[1])))
