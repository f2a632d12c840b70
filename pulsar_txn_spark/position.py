"""Positions in a segment, and the intervals that are made of them.

A position names an entry of a segment's log. It has the ledger, the entry in that ledger, and
(for a message inside a batch entry) the batch index. Ledger and entry order as integers.
All ranges of this package are *left-open and right-closed*, ``(start, end]``. ``start`` is the
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

WHOLE_ENTRY = 2**31 - 1
"""Batch index that stands for all messages of an entry, and so for the last one of a batch."""

_INDEX_WIDTH = 10  # digits of 2**31-1


class MessagePosition(NamedTuple):
    """A message of a segment: up to where an acknowledgement reaches.

    The last message of a batch is named by its whole entry (:meth:`of_message`). So a position has
    one name, and whole entries are the positions of :class:`Position`.

    Parameters
    ----------
    ledger : int
        Ledger id.
    entry : int
        Entry id in the ledger.
    batch_index : int
        0-based index in the batch, or :data:`WHOLE_ENTRY`.
    """

    ledger: int
    entry: int
    batch_index: int = WHOLE_ENTRY

    @classmethod
    def of_message(cls, entry: Position, batch_index: int, batch_size: int) -> MessagePosition:
        """Name a message of a batch of `batch_size`.

        Raises
        ------
        ValueError
            If the batch has no such message.
        """
        if not 0 <= batch_index < batch_size:
            raise ValueError(
                f"entry {entry} holds messages 0 to {batch_size - 1}, found index {batch_index}"
            )
        last = batch_index == batch_size - 1
        return cls(entry.ledger, entry.entry, WHOLE_ENTRY if last else batch_index)

    @classmethod
    def whole(cls, entry: Position) -> MessagePosition:
        """Name an entry as a whole."""
        return cls(entry.ledger, entry.entry)

    @property
    def taken_after(self) -> tuple[Position, int]:
        """The last entry that is covered whole, and how many messages of the next one are."""
        if self.batch_index == WHOLE_ENTRY:
            return Position(self.ledger, self.entry), 0
        return Position(self.ledger, self.entry - 1), self.batch_index + 1

    def __repr__(self) -> str:
        return f"MessagePosition({self})"

    def __str__(self) -> str:
        whole = f"{self.ledger}:{self.entry}"
        return whole if self.batch_index == WHOLE_ENTRY else f"{whole}:{self.batch_index}"

    def padded(self) -> str:
        """Return a form that sorts as text the way positions sort.

        A whole entry has the form of :meth:`Position.padded`. A part of an entry is the entry
        before it, and how many messages were taken after that: a prefix sorts first.

        Raises
        ------
        ValueError
            If there is no such message.
        """
        if not 0 <= self.batch_index <= WHOLE_ENTRY:
            raise ValueError(f"expected a batch index from 0 to {WHOLE_ENTRY}, found {self}")
        if self.batch_index < WHOLE_ENTRY and self.entry < 0:
            raise ValueError(f"there is no entry that holds message {self}")
        before, taken = self.taken_after
        return f"{before.padded()}:{taken:0{_INDEX_WIDTH}d}" if taken else before.padded()

    @classmethod
    def from_padded(cls, text: str) -> MessagePosition:
        """Invert :meth:`padded`."""
        ledger, entry, *taken = text.split(":")
        if not taken:
            return cls(int(ledger) - 1, int(entry) - 1)
        return cls(int(ledger) - 1, int(entry), int(taken[0]) - 1)
