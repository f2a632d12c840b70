"""A look costs the dropped writers of the range that it reads, however many there ever were."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from pulsar_txn_spark.errors import TransactionError
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.store.metadata_pb2 import Winner
from pulsar_txn_spark.store.records import NOWHERE, Code
from pulsar_txn_spark.store.redis import segments
from pulsar_txn_spark.txn.coordinator import as_record
from pulsar_txn_spark.txn.sweeper import SegmentEnds, Sweeper
from pulsar_txn_spark.txn.transaction_buffer import Visibility, writer_name
from tests.support.scenario import SEGMENT, Txn, World

_MANY = 20_000


def behind(position: Position) -> Position:
    return Position(position.ledger, position.entry + 1)


def output_bytes(client: Any) -> int:
    return int(client.info("stats")["total_net_output_bytes"])


def drop_many(world: World) -> Position:
    """Drop writers, sweep, and return the position that all of them lie before."""
    txn = world.open("first")
    world.commit(txn, world.write(txn, "committed"))
    # As a store of an earlier version has them: all in one hash.
    names = {f"ptxn-0-{n}-0-abcd": f"{EARLIEST.padded()}|0:{n}" for n in range(1, _MANY + 1)}
    pipe = world.client.pipeline(transaction=False)
    items = list(names.items())
    for at in range(0, _MANY, 5_000):
        pipe.hset(world.key("dropped"), mapping=dict(items[at : at + 5_000]))
    pipe.execute()
    world.client.set("{tc0}:txn-counter", _MANY + 1)
    end = Position(1, 10_000)
    world.store.segments.raise_high(SEGMENT, end)
    assert world.store.segments.close(SEGMENT, 0, _MANY + 1).code is Code.OK
    world.store.segments.raise_floor(SEGMENT, 0, _MANY + 1, end, EARLIEST)
    return end


def test_a_read_at_the_end_does_not_cost_the_writers_that_were_dropped_before(world: World) -> None:
    end = drop_many(world)
    world.another_process().store.segments.gates([SEGMENT], [(end, behind(end))])
    before = output_bytes(world.client)
    [gate] = world.store.segments.gates([SEGMENT], [(end, behind(end))])
    cost = output_bytes(world.client) - before
    assert cost < 10_000, "INFO itself is most of it"
    assert len(gate.dropped) == 0
    assert gate.floor == {0: _MANY + 1}
    assert gate.all_dropped == _MANY
    assert len(world.store.segments.gates([SEGMENT])[0].dropped) == _MANY
    assert (
        len(world.store.segments.gates([SEGMENT], [(EARLIEST, Position(1, 5))])[0].dropped) == _MANY
    )


def test_a_reader_at_the_end_is_told_of_no_writer_that_was_dropped_before(world: World) -> None:
    end = drop_many(world)
    [found] = world.buffer.readable([SEGMENT], lambda _: behind(end), [end])
    assert len(found.visibility.dropped) == 0


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_DROPPED_IN_A_GROUP", 2)


def aborted(world: World, count: int, row: str = "aborted") -> None:
    for _ in range(count):
        txn = world.open()
        world.write(txn, row)
        world.abort(txn)


def sweep(world: World, deleted: Position = EARLIEST) -> None:
    sweeper = Sweeper(
        world.coordinator,
        lambda segment: SegmentEnds(world.log.last_confirmed(segment), deleted),
        retention_ms=0,
    )
    sweeper.sweep()


@pytest.mark.usefixtures("small_groups")
def test_a_reader_that_is_blocked_is_told_of_the_writers_before_the_pin(world: World) -> None:
    aborted(world, 10)
    txn = world.open()
    world.commit(txn, world.write(txn, "a"))
    sweep(world)
    blocking = world.open()
    world.admit(blocking)
    for _ in range(4):
        aborted(world, 10)
        txn = world.open()
        world.commit(txn, world.write(txn, "behind"))
        sweep(world)
    found = world.readable()
    assert found.blocked_by == (blocking.id,)
    assert 10 <= len(found.visibility.dropped) <= 30
    whole = [(EARLIEST, world.log.last_confirmed(SEGMENT))]
    assert len(world.store.segments.gates([SEGMENT], whole)[0].dropped) == 50, "behind it, too"
    assert world.visible() == ["a"]
    world.abort(blocking)
    assert world.visible() == ["a", *["behind"] * 4]


@pytest.mark.usefixtures("small_groups")
def test_a_read_in_the_middle_costs_the_writers_of_its_range(world: World) -> None:
    for number in range(8):
        aborted(world, 10)
        txn = world.open()
        world.commit(txn, world.write(txn, f"row {number}"))
        sweep(world)
    middle = [(Position(1, 40), Position(1, 46))]
    [gate] = world.store.segments.gates([SEGMENT], middle)
    assert 5 <= len(gate.dropped) <= 40
    assert gate.all_dropped == 80
    assert len(world.store.segments.gates([SEGMENT], [NOWHERE])[0].dropped) <= 20
    assert world.visible() == [f"row {number}" for number in range(8)]
    assert world.log.read(SEGMENT, *middle[0], Visibility(gate.dropped, gate.floor)) == ["row 3"]


@pytest.mark.usefixtures("small_groups")
def test_a_zombie_behind_its_group_is_skipped_without_its_name(world: World) -> None:
    zombie = world.open()
    name = world.admit(zombie)
    world.abort(zombie)
    aborted(world, 40)
    sweep(world)
    start = world.log.last_confirmed(SEGMENT)
    world.log.append(SEGMENT, name, "of a zombie")
    assert name not in world.store.segments.gates([SEGMENT], [(start, behind(start))])[0].dropped
    assert world.visible(start=start) == []
    assert world.visible() == []


@pytest.mark.usefixtures("small_groups")
def test_groups_go_with_the_data_and_with_the_segment(world: World) -> None:
    aborted(world, 40)
    sweep(world)
    assert world.client.keys(world.key("dropped:*"))
    end = world.log.last_confirmed(SEGMENT)
    aborted(world, 1)
    sweep(world, deleted=end)
    assert world.client.keys(world.key("dropped:*")) == []
    assert world.store.segments.gates([SEGMENT])[0].all_dropped <= 8
    aborted(world, 40)
    sweep(world)
    assert world.client.keys(world.key("dropped:*"))
    assert (
        world.store.segments.retire(SEGMENT, world.log.last_confirmed(SEGMENT), []).code is Code.OK
    )
    assert world.store.segments.purge(SEGMENT).code is Code.OK
    assert world.client.keys(world.key("*")) == [world.key("birth").encode()]


@pytest.mark.usefixtures("small_groups")
def test_the_floor_takes_over_from_groups_whose_data_is_gone(world: World) -> None:
    aborted(world, 40)
    sweep(world)
    names = []
    for _ in range(40):
        txn = world.open()
        names.append(world.admit(txn))
        world.abort(txn)
    world.store.segments.raise_high(SEGMENT, world.log.append(SEGMENT, "ptxs-plain", "plain"))
    sweep(world)  # a later group; what waits to become the floor is the first pair
    end = world.log.last_confirmed(SEGMENT)
    aborted(world, 8)
    sweep(world, deleted=end)
    for name in names:
        world.log.append(SEGMENT, name, "of a zombie")
    assert world.visible() == ["plain"]
    assert world.visible(start=end) == []


# --- any history --------------------------------------------------------------------------------


@dataclass
class _History:
    """Transactions and their ends, in any order, and what a reader may see of them."""

    world: World
    draw: random.Random
    open: list[tuple[Txn, str, list[str]]] = field(default_factory=list)
    zombies: list[str] = field(default_factory=list)
    committed: set[str] = field(default_factory=set)
    deleted: Position = EARLIEST
    rows: int = 0

    def begin(self) -> None:
        txn = self.world.open(nonce=f"n{self.draw.random()}")
        self.open.append((txn, self.world.admit(txn), []))

    def append(self) -> None:
        if self.open:
            _, writer, rows = self.draw.choice(self.open)
            rows.append(self._row(writer))

    def append_zombie(self) -> None:
        if self.zombies:
            self._row(self.draw.choice(self.zombies))

    def _row(self, writer: str) -> str:
        self.rows += 1
        self.world.log.append(SEGMENT, writer, str(self.rows))
        return str(self.rows)

    def end(self) -> None:
        if not self.open:
            return
        txn, writer, rows = self.open.pop(self.draw.randrange(len(self.open)))
        self.zombies.append(writer)
        if rows and self.draw.random() < 0.4:
            last = self._position(rows[-1])
            winner = Winner(segment=SEGMENT, writer=writer, last=as_record(last))
            # What it appends from here on is behind its bound.
            winner.bound.CopyFrom(as_record(last))
            self.world.commit(txn, winner)
            self.committed |= set(rows)
        else:
            self.world.abort(txn)

    def _position(self, row: str) -> Position:
        values = [value for _, value in self.world.log.entries[SEGMENT]]
        return Position(1, values.index(row))

    def sweep(self) -> None:
        sweep(self.world, self.deleted)

    def delete_some(self) -> None:
        """Let retention delete a part of what can be read."""
        end = self.world.readable().end
        if self.draw.random() < 0.2 and end > self.deleted:
            self.deleted = Position(1, self.draw.randint(max(0, self.deleted.entry), end.entry))

    def look(self) -> None:
        """Read a range as a micro-batch does, and compare it with the model."""
        end = self.world.readable().end
        if end == EARLIEST or end <= self.deleted:
            return
        low = self.draw.randint(self.deleted.entry, end.entry)
        start = Position(1, low) if low >= 0 else EARLIEST
        end = Position(1, self.draw.randint(max(0, low), end.entry))
        found = self.world.buffer.readable(
            [SEGMENT], lambda _: self.world.log.last_confirmed(SEGMENT), [start]
        )[0]
        [gate] = self.world.store.segments.gates([SEGMENT], [(start, end)])
        entries = self.world.log.entries[SEGMENT]
        expected = [
            value
            for number, (_, value) in enumerate(entries)
            if start < Position(1, number) <= end and value in self.committed
        ]
        seen = self.world.log.read(SEGMENT, start, end, Visibility(gate.dropped, gate.floor))
        assert seen == expected
        assert self.world.log.read(SEGMENT, start, end, found.visibility) == expected
        reported = self.world.readable(start=start, asks_log=False)
        both = min(end, reported.end)
        seen = self.world.log.read(SEGMENT, start, both, reported.visibility)
        assert seen == [value for value in expected if self._position(value) <= both]


@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize("seed", range(12))
def test_any_range_shows_exactly_what_committed(world: World, seed: int) -> None:
    history = _History(world, random.Random(seed))
    actions = [
        history.begin,
        history.begin,
        history.append,
        history.append,
        history.append,
        history.append_zombie,
        history.end,
        history.end,
        history.sweep,
        history.delete_some,
        history.look,
        history.look,
    ]
    for _ in range(150):
        history.draw.choice(actions)()


def test_a_writer_that_is_dropped_below_a_group_belongs_to_it(
    world: World, small_groups: None
) -> None:
    # Pinned before the others, and dropped when their group is there already.
    late = Txn(world.coordinator.new_txn("late-1"), "late-1")
    name = writer_name(late.id, 7, "late")
    del small_groups
    world.buffer.admit(late.id, late.nonce, 60_000, name, [SEGMENT])
    world.log.append(SEGMENT, name, "of the late one")
    aborted(world, 60)
    sweep(world)
    start = world.log.last_confirmed(SEGMENT)
    world.abort(late)
    aborted(world, 60)
    sweep(world)
    [gate] = world.store.segments.gates([SEGMENT], [(EARLIEST, Position(1, 1))])
    assert name in gate.dropped
    assert world.log.read(SEGMENT, EARLIEST, start, Visibility(gate.dropped, gate.floor)) == []
    with pytest.raises(TransactionError):
        world.admit(late)
