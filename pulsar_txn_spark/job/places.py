"""Which line of a TOML file says what: :mod:`tomllib` does not tell."""

from __future__ import annotations

import re
from collections.abc import Sequence

Path = tuple[str | int, ...]
"""Such as ``("source", 1, "topic")``: the key `topic` of the second ``[[source]]``."""

_NAME = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_KEY = rf"{_NAME}(?:\s*\.\s*{_NAME})*"
_HEADER = re.compile(rf"\s*(\[\[?)\s*({_KEY})\s*\]\]?")
_PAIR = re.compile(rf"\s*({_KEY})\s*=\s*(.*)")
_QUOTES = ('"""', "'''")


class Places:
    """The lines of a file's tables and keys, counted from 1.

    Parameters
    ----------
    text : str
        Valid TOML.
    """

    def __init__(self, text: str) -> None:
        self._lines: dict[Path, int] = {}
        self._contents: dict[Path, int] = {}
        self._tables: dict[Path, int] = {}
        self._read(text)

    def line(self, path: Sequence[str | int]) -> int | None:
        """Return the line of a key, else that of the nearest table around it."""
        for length in range(len(path), 0, -1):
            line = self._lines.get(tuple(path[:length]))
            if line is not None:
                return line
        return None

    def content(self, path: Sequence[str | int]) -> int | None:
        """Return the line on which the text of a key begins."""
        return self._contents.get(tuple(path), self.line(path))

    def _read(self, text: str) -> None:
        table: Path = ()
        closing: str | None = None
        for number, line in enumerate(text.splitlines(), 1):
            if closing is not None:
                closing = None if closing in line else closing
                continue
            header, pair = _HEADER.match(line), _PAIR.match(line)
            if header is not None:
                table = self._opened(header[2], several=header[1] == "[[")
                self._lines.setdefault(table, number)
            elif pair is not None:
                path = (*table, *_names(pair[1]))
                for length in range(len(table) + 1, len(path) + 1):
                    self._lines.setdefault(path[:length], number)
                quotes = next((marks for marks in _QUOTES if pair[2].startswith(marks)), None)
                rest = pair[2][len(_QUOTES[0]) :] if quotes else ""
                if quotes is not None and quotes not in rest:
                    closing = quotes
                    self._contents[path] = number + (not rest.strip())

    def _opened(self, key: str, *, several: bool) -> Path:
        *parents, last = _names(key)
        path: Path = ()
        for name in parents:
            path = (*path, name)
            if path in self._tables:
                path = (*path, self._tables[path])
        path = (*path, last)
        if several:
            self._tables[path] = self._tables.get(path, -1) + 1
            path = (*path, self._tables[path])
        return path


def _names(key: str) -> list[str]:
    return [name.strip("\"'") for name in re.findall(_NAME, key)]
