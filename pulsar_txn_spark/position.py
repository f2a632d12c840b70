"""Positions in a segment, and the intervals that are made of them.

A position names an entry of a segment's log: the ledger, the entry in that ledger, and
(for a message inside a batch entry) the batch index. Ledger and entry order as integers.
All ranges of this package are *left-open and right-closed*, ``(start, end]``: ``start`` is the
last entry that is not part of the range, ``end`` the last that is. A managed ledger can roll
over at any entry, so "the next position" cannot be computed, "everything after this one" can.
"""

from __future__ import annotations

from typing import NamedTuple

_WIDTH = 20  # digits of 2**64-1: zero-padded members sort in a Redis lexical order as numbers do


class Position(NamedTuple):
    """An entry of a segment, ordered by ledger and entry.

    Parameters
    ----------
    ledger : int
        Ledger id, 64 bit; -1 stands before every ledger.
    entry : int
        Entry id in the ledger, 64 bit; -1 stands before the ledger's first entry.
    """

    ledger: int
    entry: int

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read ``"ledger:entry"``.

        Raises
        ------
        ValueError
            If the text is not of that form.
        """
        ledger, separator, entry = text.partition(":")
        if not separator:
            raise ValueError(f"expected a position as 'ledger:entry', found {text!r}")
        position = cls(int(ledger), int(entry))
        if position.ledger < -1 or position.entry < -1:
            raise ValueError(f"expected a position of at least -1:-1, found {text!r}")
        return position

    def padded(self) -> str:
        """Return a form that sorts as text the way positions sort as numbers."""
        # -1 (before everything) becomes 0, so that no sign has to be compared as text.
        return f"{self.ledger + 1:0{_WIDTH}d}:{self.entry + 1:0{_WIDTH}d}"

    @classmethod
    def from_padded(cls, text: str) -> Position:
        """Invert :meth:`padded`."""
        ledger, entry = text.split(":")
        return cls(int(ledger) - 1, int(entry) - 1)


EARLIEST = Position(-1, -1)
"""Before every entry: as ``start`` of a range it means "from the first entry on"."""
