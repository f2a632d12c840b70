"""Histories of a gated topic that are drawn, and what plain consumers have to see of them.

Several transactions write at once, and attempts of them that lose. Meanwhile segments are split,
merged and sealed. Clients that know no segments are told of each new one, and observe all of them.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from integration.support.observed_topic import ObservedTopic, routed
from integration.support.observers import ByKey, SourceObserver, by_key
from pulsar_txn_spark.client import Transaction
from pulsar_txn_spark.engine.topic_writers import TopicWriters
from pulsar_txn_spark.segments.topology import Segment, Topology

KEYS = "abcdefgh"
OPEN_AT_ONCE = 3


@dataclass(eq=False)
class Begun:
    """A transaction, and its attempts that will lose."""

    txn: Transaction
    losers: list[TopicWriters] = field(default_factory=list)
    committed: bool | None = None  # None while it is open


@dataclass(frozen=True)
class Sent:
    """A row in the log; outside of transactions it has none."""

    key: str
    value: str
    begun: Begun | None
    loses: bool

    @property
    def blocks(self) -> bool:
        """Whether nothing may be seen from here on."""
        return self.begun is not None and self.begun.committed is None

    @property
    def counts(self) -> bool:
        return self.begun is None or (self.begun.committed is True and not self.loses)


class RandomHistory:
    """One history of a topic, which begins with one segment.

    One move comes after the other. So it is known where each row lies, and what is visible.
    """

    def __init__(self, topic: ObservedTopic, drawn: random.Random) -> None:
        self._topic = topic
        self._drawn = drawn
        # pulsar-client needs half a minute for a sealed segment of which it gets to see nothing.
        topic.source = SourceObserver(topic.gated.options, topic.topic, ("wire",))
        self._numbers = itertools.count()
        self._topology: Topology = topic.admin.find_topic(topic.topic)
        self._open: list[Begun] = []
        self._sent: list[Sent] = []
        self._logs: dict[str, list[Sent]] = {topic.segment: []}  # in the order of their creation
        self._made: list[str] = []

    def run(self) -> None:
        """Make all moves, in an order that is drawn; in the end all that was committed is seen."""
        moves = [move for move, times in MOVES.items() for _ in range(times)]
        self._drawn.shuffle(moves)
        try:
            for move in moves:
                move(self)
            while self._open:
                self._drawn.choice((self.commit, self.abort))()
            self.compare()
        except BaseException as error:
            error.add_note("\n".join(self._made))
            raise
        self._require_lineage()

    def _require_lineage(self) -> None:
        """See that who reads segments one after the other gets each key in order."""
        followed = [sent for log in self._logs.values() for sent in log]
        for key in KEYS:
            assert [s for s in followed if s.key == key] == [s for s in self._sent if s.key == key]

    # -- transactions ----------------------------------------------------------------------------

    def _one_open(self) -> Begun:
        """Draw an open transaction, or begin one."""
        if not self._open or (len(self._open) < OPEN_AT_ONCE and self._drawn.random() < 0.5):
            self._open.append(Begun(self._topic.begin()))
            return self._open[-1]
        return self._drawn.choice(self._open)

    def _row(self, begun: Begun | None, *, loses: bool = False) -> tuple[str, Sequence[str]]:
        """Draw a value and keys that get it, and note where these rows are going to lie."""
        keys = sorted(self._drawn.sample(KEYS, self._drawn.randint(1, len(KEYS))))
        value = str(next(self._numbers))
        for segment, own in routed(self._topology, keys).items():
            rows = [Sent(key, value, begun, loses) for key in own]
            self._logs[segment] += rows
            self._sent += rows
        self._note("loser" if loses else "row", value, *keys, begun)
        return value, keys

    def _note(self, what: str, *about: object) -> None:
        shown = (one.txn if isinstance(one, Begun) else one for one in about)
        self._made.append(" ".join(map(str, (what, *shown))))

    def write(self) -> None:
        begun = self._one_open()
        value, keys = self._row(begun)
        self._topic.send(begun.txn, value, keys=keys)

    def write_outside(self) -> None:
        value, keys = self._row(None)
        self._topic.send(None, value, keys=keys)

    def write_as_a_loser(self) -> None:
        begun = self._one_open()
        if not begun.losers or self._drawn.random() < 0.3:
            begun.losers.append(self._topic.other_attempt(begun.txn))
        value, keys = self._row(begun, loses=True)
        self._topic.write(self._drawn.choice(begun.losers), value, keys)

    def commit(self) -> None:
        begun = self._ending()
        begun.txn.commit()
        begun.committed = True
        self._note("committed", begun)

    def abort(self) -> None:
        begun = self._ending()
        begun.txn.abort()
        begun.committed = False
        self._note("aborted", begun)

    def _ending(self) -> Begun:
        if not self._open:
            self.write()
        return self._open.pop(self._drawn.randrange(len(self._open)))

    # -- segments --------------------------------------------------------------------------------

    def split(self) -> None:
        one = self._drawn.choice(self._topology.active)
        width = one.hash_end + 1 - one.hash_start
        at = one.hash_start + width * self._drawn.randint(1, 7) // 8
        admin, topic = self._topic.admin, self._topic.topic
        self._change([one], lambda: admin.split_segment(topic, one.descriptor, at=at))

    def merge(self) -> None:
        active = self._topology.active
        if len(active) == 1:
            self.split()
            return
        first = self._drawn.randrange(len(active) - 1)
        parents = active[first : first + 2]
        admin, topic = self._topic.admin, self._topic.topic
        self._change(
            parents, lambda: admin.merge_segments(topic, [one.descriptor for one in parents])
        )

    def seal(self) -> None:
        one = self._drawn.choice(self._topology.active)
        admin, topic = self._topic.admin, self._topic.topic
        self._change([one], lambda: admin.seal_segment(topic, one.descriptor))

    def _change(self, parents: Sequence[Segment], change: Callable[[], Topology]) -> None:
        """Change segments in an open transaction, and let everybody observe the new ones."""
        if not self._open:
            self.write()
        self._topic.seal(*(one.ref.log_name for one in parents))
        self._topology = change()
        for segment in (one.ref.log_name for one in self._topology.active):
            if segment not in self._logs:
                self._logs[segment] = []
                self._topic.watch(segment)
        self._note("now", *(one.descriptor for one in self._topology.active))

    # -- what is seen ----------------------------------------------------------------------------

    def compare(self) -> None:
        """See that all observers see what is visible now.

        A broker blocks consumers at the first row of an open transaction. A pin blocks them where
        the last commit before it ended. This package goes by pins, and so do brokers that have
        loaded a segment anew, as sealing does: they may show less until all is decided.
        """
        active = {one.ref.log_name for one in self._topology.active}
        expected: dict[str, ByKey] = {}
        most: dict[str, ByKey] = {}
        for segment, log in self._logs.items():
            is_exact = segment in active or not any(sent.blocks for sent in log)
            (expected if is_exact else most)[segment] = visible(log)
        self._note("seen", expected, most)
        self._topic.see(expected, most=most, source=not self._open)


MOVES: dict[Callable[[RandomHistory], None], int] = {
    RandomHistory.write: 10,
    RandomHistory.write_as_a_loser: 4,
    RandomHistory.write_outside: 1,
    RandomHistory.commit: 3,
    RandomHistory.abort: 2,
    RandomHistory.split: 2,
    RandomHistory.merge: 1,
    RandomHistory.seal: 1,
    RandomHistory.compare: 2,
}
"""How often each of them comes in a history."""


def visible(log: Sequence[Sent]) -> ByKey:
    """Return what consumers of a segment see: what is committed in front of what is open."""
    decided = itertools.takewhile(lambda sent: not sent.blocks, log)
    return by_key((sent.key, sent.value) for sent in decided if sent.counts)
