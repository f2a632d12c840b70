"""Where a Pulsar topic's entries are: arithmetic on its ledgers, without any I/O.

Entries are numbered from 0 without holes within a ledger, and ledgers are ordered by id. So the
lengths of the ledgers give the number of entries in a range. Their bytes are estimated by each
ledger's mean, their messages by a mean that the caller supplies.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pulsar_txn_spark.position import EARLIEST, Position


class Ledger(NamedTuple):
    """A ledger that holds entries: how many, and their bytes as stored."""

    id: int
    entries: int
    bytes: int

    @property
    def last(self) -> Position:
        """Return the position of its last entry."""
        return Position(self.id, self.entries - 1)


class Piece(NamedTuple):
    """Entries `first` to `last` (both included) of one ledger, and their estimated bytes."""

    ledger: int
    first: int
    last: int
    bytes: float

    @property
    def entries(self) -> int:
        """Return how many they are."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class ManagedLedger:
    """The ledgers of a topic at one moment.

    Parameters
    ----------
    first_ledger : int
        Lowest ledger that is still there, also when it holds nothing; -1 if there is none.
    ledgers : tuple of Ledger
        Those that hold entries, ascending.
    last : Position
        The last entry that was ever acknowledged, EARLIEST if there was none.
    added_since_load : int
        Entries added since the broker loaded the topic.
    last_ledger : int
        Highest ledger, also when it holds nothing yet; -1 if there is none.
    empty : frozenset of int
        Those that hold nothing.
    is_open : bool
        Whether the broker says that the highest ledger takes entries.
    """

    first_ledger: int
    ledgers: tuple[Ledger, ...]
    last: Position
    added_since_load: int
    last_ledger: int = -1
    empty: frozenset[int] = frozenset()
    is_open: bool = False

    @classmethod
    def of(cls, stats: Mapping[str, Any]) -> ManagedLedger:
        """Read the answer of the admin API's ``internalStats``."""
        lac = Position.parse(stats["lastConfirmedEntry"])
        by_id = {
            int(ledger["ledgerId"]): Ledger(
                int(ledger["ledgerId"]), int(ledger["entries"]), int(ledger["size"])
            )
            for ledger in stats["ledgers"]
        }
        # The open ledger is listed with 0 entries until it is closed.
        listed = by_id.get(lac.ledger)
        if listed is not None and listed.entries <= lac.entry:
            size = max(listed.bytes, int(stats["currentLedgerSize"]))
            by_id[lac.ledger] = Ledger(lac.ledger, lac.entry + 1, size)
        ledgers = tuple(by_id[number] for number in sorted(by_id) if by_id[number].entries)
        if lac.entry < 0:
            # In a new ledger that is still empty: the last entry is in one before it.
            lac = Position(ledgers[-1].id, ledgers[-1].entries - 1) if ledgers else EARLIEST
        return cls(
            first_ledger=min(by_id, default=-1),
            ledgers=ledgers,
            last=lac,
            added_since_load=int(stats["entriesAddedCounter"]),
            last_ledger=max(by_id, default=-1),
            empty=frozenset(by_id) - {ledger.id for ledger in ledgers},
            is_open=stats.get("state") == "LedgerOpened",
        )

    def knows(self, position: Position) -> bool:
        """Tell whether a reader of this topic can stand there; False if it has read another one.

        Within a cluster ids of ledgers only grow, and ledgers with entries go from the beginning
        on. So that of an entry is there, or lies before the first one. An empty one is replaced
        whenever the topic is loaded. One that is sealed goes on without it.
        """
        if self.last_ledger < 0 or position.ledger < self.first_ledger:
            return True
        if position.entry < 0:
            return position.ledger <= self.last_ledger or not self.is_open
        return position.ledger in self.empty or any(
            ledger.id == position.ledger for ledger in self.ledgers
        )

    def contains(self, position: Position) -> bool:
        """Tell whether an entry is in one of the ledgers that are there."""
        return any(
            ledger.id == position.ledger and 0 <= position.entry < ledger.entries
            for ledger in self.ledgers
        )

    def reaches(self, position: Position) -> bool:
        """Tell whether the topic is known up to a position that was its end at some time.

        A broker that has lost the topic to another one may know less of it for a while. Where all
        ledgers are gone, or that of the position, nothing tells such a broker from others.
        """
        if position.entry < 0 or self.last_ledger < 0:
            return self.knows(position)
        return position <= self.last or position.ledger < self.first_ledger

    def settled(self, position: Position) -> Position:
        """Return the same place as far forward as it has a name.

        After the last entry of a ledger that was closed that is before the first one of the ledger
        that follows. When the closed ledger is gone, this place can still be told from a loss.
        Nobody knows then which ledger followed it, and with how many entries it ended.
        """
        if self.ledgers and position == self.last and self.last_ledger > position.ledger:
            return Position(self.last_ledger, -1)
        return position

    def last_up_to(self, position: Position) -> Position:
        """Return `position`, or the last entry before it if its ledger ends there for good.

        A ledger that others with entries follow is closed: what lies behind its end never comes.
        Bookies that lose entries make a broker close one before entries that it had acknowledged.
        Of ledgers that were trimmed nothing is said.
        """
        if position.entry < 0 or not self.first_ledger <= position.ledger < self.last.ledger:
            return position
        before = [ledger.last for ledger in self.ledgers if ledger.id <= position.ledger]
        last = max(before, default=Position(self.first_ledger, -1))
        return min(last, position)

    @property
    def entries(self) -> int:
        """Return how many entries there are."""
        return sum(ledger.entries for ledger in self.ledgers)

    def pieces(self, start: Position, end: Position) -> list[Piece]:
        """Return what is in ``(start, end]``, ledger by ledger, empty pieces left out."""
        pieces = []
        for at in range(bisect_left(self.ledgers, (start.ledger,)), len(self.ledgers)):
            ledger = self.ledgers[at]
            if ledger.id > end.ledger:
                break
            first = start.entry + 1 if ledger.id == start.ledger else 0
            last = ledger.entries - 1
            if ledger.id == end.ledger:
                last = min(last, end.entry)
            if first <= last:
                share = (last - first + 1) / ledger.entries
                pieces.append(Piece(ledger.id, first, last, ledger.bytes * share))
        return pieces


def positions(pieces: Sequence[Piece]) -> Iterator[Position]:
    """Yield every entry's position, ascending."""
    for piece in pieces:
        for entry in range(piece.first, piece.last + 1):
            yield Position(piece.ledger, entry)


def nth(pieces: Sequence[Piece], number: int) -> Position:
    """Return the position of the entry that is `number`-th (from 1) in the pieces."""
    assert number >= 1, number
    for piece in pieces:
        if number <= piece.entries:
            return Position(piece.ledger, piece.first + number - 1)
        number -= piece.entries
    raise AssertionError(f"{number} entries beyond the last piece")


def entries_within(
    pieces: Sequence[Piece],
    messages_per_entry: float,
    max_messages: int | None,
    max_bytes: int | None,
) -> int:
    """Return how many entries keep within both limits by the estimates, at least 1."""
    messages_left = float("inf") if max_messages is None else float(max_messages)
    bytes_left = float("inf") if max_bytes is None else float(max_bytes)
    taken = 0
    for piece in pieces:
        per_entry = piece.bytes / piece.entries
        fits = float(piece.entries)
        if messages_per_entry > 0:
            fits = min(fits, messages_left // messages_per_entry)
        if per_entry > 0:
            fits = min(fits, bytes_left // per_entry)
        taken += int(fits)
        if fits < piece.entries:
            break
        messages_left -= fits * messages_per_entry
        bytes_left -= fits * per_entry
    return max(taken, 1)


def cut(pieces: Sequence[Piece], parts: int) -> list[int]:
    """Return ascending entry counts that cut the pieces into parts of about equal bytes.

    The last one is the number of entries; each part holds at least one.
    """
    entries = sum(piece.entries for piece in pieces)
    parts = min(parts, entries)
    # Bytes may be 0 in a topic whose size is not known yet: then entries stand for them.
    weight = 1.0 if any(piece.bytes <= 0 for piece in pieces) else None
    weights = [weight or piece.bytes / piece.entries for piece in pieces]
    total = sum(each * piece.entries for each, piece in zip(weights, pieces, strict=True))
    ends: list[int] = []
    before_bytes, before_entries, index = 0.0, 0, 0
    for part in range(1, parts):
        goal = total * part / parts
        while before_bytes + weights[index] * pieces[index].entries < goal:
            before_bytes += weights[index] * pieces[index].entries
            before_entries += pieces[index].entries
            index += 1
        ideal = before_entries + round((goal - before_bytes) / weights[index])
        lowest = (ends[-1] if ends else 0) + 1
        ends.append(max(lowest, min(ideal, entries - (parts - part))))
    return [*ends, entries]
