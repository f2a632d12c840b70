"""Random interleavings of everything that may happen at once, checked against the invariants.

Drivers and their rivals, tasks that lose and go on as zombies, late helpers, readers, sweeps, and
clients that acknowledge single messages; the real code, one command at a time, on a network that
loses and repeats. Each run is drawn from its seed alone. ``INTERLEAVINGS`` in the environment asks
for more runs, ``INTERLEAVING_SEED`` for one.
"""

from __future__ import annotations

import os
import secrets
from collections import defaultdict
from collections.abc import Iterator

import pytest

from pulsar_txn_spark.errors import AcknowledgementConflictError, TransactionError
from pulsar_txn_spark.position import EARLIEST, MessagePosition, Position
from pulsar_txn_spark.store import redis_store
from pulsar_txn_spark.store.ack_state import AckInterval
from pulsar_txn_spark.store.metadata_pb2 import Outcome, TaskWrite, Winner
from pulsar_txn_spark.store.protocol import EndedBy, SubscriptionRef, TxnId, TxnState
from pulsar_txn_spark.txn.batch import Attempt, BatchKey
from pulsar_txn_spark.txn.buffer import txn_of_writer, writer_name
from pulsar_txn_spark.txn.coordinator import as_position, as_record
from pulsar_txn_spark.txn.pending_ack import (
    CLIENT_OWNER,
    PlannedRange,
    ReadPlan,
    require_claimed,
)
from pulsar_txn_spark.txn.sweeper import SegmentEnds, Sweeper
from tests.interleaving import Process, Scheduler
from tests.scenario import OTHER_SEGMENT, SEGMENT, TIMEOUT_MS, World

RUNS = int(os.environ.get("INTERLEAVINGS", "72"))
BLOCKS = 8
FIRST_SEED = 20_261_121
OUTPUT = (SEGMENT, OTHER_SEGMENT)
INPUT = "public/default/in/bbbbbbbb/0000-ffff-0"
BATCHES, PARTITIONS, ROWS, DRIVERS = 3, 2, 2, 5
SINK, QUERY, SUBSCRIPTION = "sink", "query", "sub"
INBOX = SubscriptionRef("public/default/inbox/cccccccc/0000-ffff-0", "clients", CLIENT_OWNER)
MESSAGES, IN_ENTRY = 12, 3  # what clients acknowledge, one by one and up to one


def message(number: int) -> MessagePosition:
    """Return the number-th message (from 1) of the inbox; 0 is before all."""
    if number == 0:
        return MessagePosition.whole(EARLIEST)
    entry, index = divmod(number - 1, IN_ENTRY)
    return MessagePosition.of_message(Position(1, entry), index, IN_ENTRY)


def expected_rows(partition: int, batch: int) -> list[str]:
    return [f"{batch}/{partition}/{row}" for row in range(ROWS)]


class Model:
    """What is true whatever the code believes, and the processes that are let loose on it."""

    def __init__(self, seed: int, world: World) -> None:
        self.scheduler = Scheduler(seed, world)
        self.scheduler.on_reply = self._observe
        self.scheduler.events += [self._expire, self._expire, self._trim]
        self.world = world
        self.random = self.scheduler.random
        self.decisions: dict[TxnId, tuple[TxnState, Outcome]] = {}
        self.committed: dict[str, TxnId] = {}
        self.commit_log = -1  # the last batch that Spark knows to be done
        self.drivers = 0
        self.read: dict[str, list[tuple[Position, str]]] = defaultdict(list)
        self.position: dict[str, Position] = dict.fromkeys(OUTPUT, EARLIEST)
        self.trimmed: dict[str, Position] = dict.fromkeys(OUTPUT, EARLIEST)
        self.claims: dict[TxnId, set[int]] = {}  # what a client's transaction acknowledges
        self.normal: set[int] = set()  # acknowledged outside of transactions, for sure
        self.perhaps: set[int] = set()  # the same, by one that heard of no success

    # -- what is true ------------------------------------------------------------------------

    def _observe(self, name: str, args: tuple[object, ...], reply: list[bytes]) -> None:
        if name != "txn_end" or reply[1] != b"OK":
            return
        # numkeys, the keys, then the three of the prelude: uuid, epoch, seq.
        txn = TxnId.parse(str(args[1 + int(str(args[0])) + 3]))
        assert txn not in self.decisions, f"INV-1: {txn} was decided twice"
        self.decisions[txn] = TxnState(reply[2].decode()), Outcome.FromString(reply[3])
        if self.decisions[txn][0] is TxnState.COMMITTED:
            batch = self.world.client.hget(f"{{tc{txn.tc}}}:txn:{txn.key}", "batch").decode()
            if not batch:
                return  # a client's
            assert batch not in self.committed, f"INV-7: batch {batch} was committed twice"
            self.committed[batch] = txn

    def require_committed(self, segment: str, writer: str, position: Position) -> None:
        """Nothing dirty is read: the transaction is committed, and names the writer as a winner."""
        txn = txn_of_writer(writer)
        assert txn is not None
        state, outcome = self.decisions.get(txn, (TxnState.OPEN, Outcome()))
        assert state is TxnState.COMMITTED, f"a row of {txn} was read, which is {state}"
        [winner] = [w for w in outcome.winners if (w.segment, w.writer) == (segment, writer)]
        if winner.HasField("bound"):
            assert position <= as_position(winner.bound), "a row behind the bound was read"

    # -- what happens by itself --------------------------------------------------------------

    def _expire(self) -> None:
        """Let the lease of some transaction be over."""
        tc = self.random.randrange(self.world.store.identity.coordinators)
        keys = sorted(self.world.client.zrange(f"{{tc{tc}}}:idx:txn-by-deadline", 0, -1))
        if keys and self.random.random() < 0.3:
            txn = TxnId.parse(self.random.choice(keys).decode())
            self.world.expire(txn)
            self.world.client.zadd(f"{{tc{tc}}}:idx:txn-by-deadline", {txn.key: 1})

    def _trim(self) -> None:
        """Let retention delete what the reader in motion has read."""
        segment = self.random.choice(OUTPUT)
        self.trimmed[segment] = self.position[segment]

    # -- processes ---------------------------------------------------------------------------

    def driver(self, process: Process) -> None:
        world, run_id = process.world, f"run-{self.drivers}"
        incarnation = world.store.next_source_incarnation()
        batch = self.commit_log + 1
        if self.scheduler.chaos and batch and self.random.random() < 0.2:
            batch -= 1  # its last entry was lost: the batch is replayed, or fenced by a later one
        while batch < BATCHES:
            self.micro_batch(process, batch, run_id, incarnation)
            process.wait("writes its commit log")
            self.commit_log = max(self.commit_log, batch)
            batch += 1

    def micro_batch(self, process: Process, batch: int, run_id: str, incarnation: int) -> None:
        world = process.world
        start, end = Position(1, batch - 1) if batch else EARLIEST, Position(1, batch)
        claim = world.store.claim_cursor(INPUT, SUBSCRIPTION, QUERY, incarnation, start)
        require_claimed(SUBSCRIPTION, QUERY, claim)
        ranges = (PlannedRange(INPUT, start, end),)
        plan = ReadPlan(run_id, incarnation, SUBSCRIPTION, run_id, ranges)
        world.store.register_plan(QUERY, str(batch), run_id, plan.serialize())
        key, nonce = BatchKey(SINK, QUERY, batch), f"{self.random.getrandbits(64):x}"
        attempt: Attempt | None = None
        try:
            tasks = []
            for partition in range(PARTITIONS):
                if self.random.random() < 0.4:
                    self.loser(key, nonce, partition)
                attempt = world.batches.begin(key, nonce, run_id)
                tasks.append(self.task(process, attempt, partition))
            assert attempt is not None
            world.batches.commit(attempt, [tasks], run_id, acknowledge=True)
        except TransactionError:
            if attempt is not None and self.random.random() < 0.7:
                world.batches.abort(attempt, "its job failed")
            raise

    def loser(self, key: BatchKey, nonce: str, partition: int) -> None:
        """Start a task attempt that writes the same rows, never reports, and may be very late."""

        def zombie(process: Process) -> None:
            self.task(process, process.world.batches.begin(key, nonce), partition)

        self.start(f"zombie of batch {key.batch}", zombie)

    def task(self, process: Process, attempt: Attempt, partition: int) -> TaskWrite:
        task = TaskWrite(partition=partition, txn_id=attempt.txn.key)
        if attempt.replay:
            return task
        for segment in self.random.sample(OUTPUT, 2):
            rows = expected_rows(partition, attempt.key.batch)
            task.winners.extend(self.write(process, attempt, segment, partition, rows))
        return task

    def write(
        self, process: Process, attempt: Attempt, segment: str, partition: int, rows: list[str]
    ) -> Iterator[Winner]:
        """Append rows; where a receipt is lost, what is left goes out under a new name."""
        world = process.world
        name = writer_name(attempt.txn, partition, f"{self.random.getrandbits(32):x}")
        world.buffer.admit(attempt.txn, attempt.nonce, TIMEOUT_MS, name, [segment])
        last: Position | None = None
        for number, row in enumerate(rows):
            if self.random.random() < 0.15:
                self.in_flight(segment, name, row)
                bound = as_record(last if last is not None else EARLIEST)
                yield Winner(segment=segment, writer=name, bound=bound, last=bound)
                yield from self.write(process, attempt, segment, partition, rows[number:])
                return
            last = world.log.append(segment, name, row)
        assert last is not None
        yield Winner(segment=segment, writer=name, last=as_record(last))

    def in_flight(self, segment: str, name: str, row: str) -> None:
        """Let an append arrive some time or never, of which the writer hears nothing."""
        self.start("append in flight", lambda p: p.world.log.append(segment, name, row) and None)

    # -- clients that acknowledge single messages ----------------------------------------------

    def acknowledged(self) -> set[int]:
        """Return what is acknowledged for good, whether anybody has carried it out or not."""
        committed = (t for t, (state, _) in self.decisions.items() if state is TxnState.COMMITTED)
        return self.normal.union(*(self.claims.get(txn, set()) for txn in committed))

    def client(self, process: Process) -> None:
        """Acknowledge some of what is to be delivered, and commit, abort or forget about it."""
        world = process.world
        world.acks.claim(INBOX, EARLIEST)
        nonce = f"{self.random.getrandbits(64):x}"
        txn = world.coordinator.new_txn(nonce, timeout_ms=TIMEOUT_MS)
        taken = self.claims.setdefault(txn, set())
        try:
            for _ in range(self.random.randrange(1, 3)):
                self.take(world, txn, nonce, taken)
            if self.random.random() < 0.75:
                world.coordinator.commit(txn, nonce, Outcome())
            else:
                world.coordinator.abort(txn, EndedBy.OWNER, nonce=nonce, cause="changed its mind")
        except AcknowledgementConflictError:
            if self.random.random() < 0.7:
                world.coordinator.abort(txn, EndedBy.OWNER, nonce=nonce, cause="a conflict")
            raise

    def take(self, world: World, txn: TxnId, nonce: str, taken: set[int]) -> None:
        state = world.acks.replay(INBOX.segment, INBOX.subscription)
        free = [n for n in range(1, MESSAGES + 1) if state.deliverable(message(n))]
        if not free:
            return
        before = self.acknowledged()
        if self.random.random() < 0.3:
            end = self.random.choice(free)
            interval = AckInterval(state.cursor, message(end))
            world.acks.acknowledge_cumulative(txn, nonce, TIMEOUT_MS, INBOX, interval)
            taken.update(set(range(1, end + 1)) - before)
            return
        numbers = set(self.random.sample(free, min(len(free), self.random.randrange(1, 4))))
        intervals = [AckInterval(message(n - 1), message(n)) for n in numbers]
        world.acks.acknowledge_individual(txn, nonce, TIMEOUT_MS, INBOX, intervals)
        assert not numbers & before, f"INV-9: {numbers & before} acknowledged a second time"
        for other, held in self.claims.items():
            if other != txn and other not in self.decisions:
                assert not numbers & held, f"INV-9: {txn} and {other} hold {numbers & held}"
        taken.update(numbers)

    def plain_client(self, process: Process) -> None:
        """Acknowledge a message outside of transactions."""
        process.world.acks.claim(INBOX, EARLIEST)
        number = self.random.randrange(1, MESSAGES + 1)
        self.perhaps.add(number)
        interval = AckInterval(message(number - 1), message(number))
        if not process.world.acks.acknowledge_now(INBOX, [interval]):
            self.normal.add(number)

    def check_acknowledgements(self) -> None:
        state = self.world.store.read_acks(INBOX.segment, INBOX.subscription)
        if state is None:
            return  # no client came so far as to claim it
        assert state.pending == {}, "a message is held for ever"
        gone = {n for n in range(1, MESSAGES + 1) if not state.deliverable(message(n))}
        sure = self.acknowledged()
        assert sure <= gone <= sure | self.perhaps, f"INV-9: {gone}, expected {sure}"
        reached = next((n - 1 for n in range(1, MESSAGES + 1) if n not in gone), MESSAGES)
        assert state.cursor == message(reached), "the cursor stands before what is not acknowledged"
        pending = f"{{seg:{INBOX.segment}}}:pending-acks:{INBOX.subscription}"
        assert self.world.client.hlen(pending) == 0

    def reader(self, process: Process) -> None:
        """Read on from where the last read ended."""
        for segment in OUTPUT:
            start = self.position[segment]
            found = process.world.readable(segment, start)
            if start != self.position[segment]:
                continue  # another incarnation of this reader was quicker
            for position, writer, row in entries(self.world, segment, start, found.end):
                if found.visibility(writer, position):
                    self.require_committed(segment, writer, position)
                    self.read[segment].append((position, row))
            assert found.end >= start
            self.position[segment] = found.end

    def newcomer(self, process: Process) -> None:
        """Read from the beginning: the same rows in the same order, as far as it gets."""
        for segment in OUTPUT:
            trimmed = self.trimmed[segment]
            found = process.world.readable(segment, trimmed)
            if trimmed == self.trimmed[segment]:
                self.compare(segment, trimmed, found.end, found.visibility)

    def compare(self, segment: str, start: Position, end: Position, visible: object) -> None:
        seen = []
        for position, writer, row in entries(self.world, segment, start, end):
            if visible(writer, position):  # type: ignore[operator]
                self.require_committed(segment, writer, position)
                seen.append((position, row))
        before = [item for item in self.read[segment] if start < item[0] <= end]
        both = min(end, self.position[segment])
        assert [item for item in seen if item[0] <= both] == before

    def helper(self, process: Process) -> None:
        """Help some transaction, perhaps hours after it was looked at."""
        known = list(self.decisions)
        if known:
            header = process.world.store.read_txn(self.random.choice(known))
            if header is not None and header.state is not TxnState.OPEN:
                process.wait("sleeps")
                process.world.coordinator.materialize(header, again=True)

    def sweeper(self, process: Process) -> None:
        def ends(segment: str) -> SegmentEnds:
            confirmed = process.world.log.last_confirmed(segment)
            return SegmentEnds(confirmed, self.trimmed.get(segment, EARLIEST))

        Sweeper(process.world.coordinator, ends, retention_ms=0).sweep()

    def start(self, name: str, body: object, *, mortal: bool = True) -> None:
        def run(process: Process) -> None:
            try:
                body(process)  # type: ignore[operator]
            except TransactionError as error:
                # Fenced, aborted, unknown: what a process has to expect. Nothing else is.
                self.scheduler.note(process, f"ends: {type(error).__name__}: {error}")

        self.scheduler.spawn(name, run, mortal=mortal)

    # -- a run -------------------------------------------------------------------------------

    def run(self) -> None:
        while self.drivers < DRIVERS and self.commit_log < BATCHES - 1:
            self.drivers += 1
            self.start(f"driver {self.drivers}", self.driver)
            if self.random.random() < 0.25:
                self.start("rival", self.driver)
            for _ in range(self.random.randrange(4)):
                self.start("reader", self.reader)
            for name, body, most in (
                ("helper", self.helper, 2),
                ("newcomer", self.newcomer, 2),
                ("sweeper", self.sweeper, 2),
                ("client", self.client, 2),
                ("plain client", self.plain_client, 1),
            ):
                for _ in range(self.random.randrange(most + 1)):
                    self.start(name, body)
            self.scheduler.run()
        self.come_to_rest()
        self.check()

    def come_to_rest(self) -> None:
        """End the chaos: a driver that is left alone gets through, whatever the others left."""
        self.scheduler.chaos = False
        self.expire_all()
        self.drivers += 1
        self.scheduler.spawn("last driver", self.driver, mortal=False)
        self.scheduler.run()
        # Whatever is still on the way arrives when all is over: late heartbeats, too.
        self.scheduler.arrive_all()
        self.expire_all()
        for name, body in (("reader", self.reader), ("sweeper", self.sweeper)):
            self.scheduler.spawn(name, body, mortal=False)
            self.scheduler.run()

    def expire_all(self) -> None:
        for tc in range(self.world.store.identity.coordinators):
            for txn, _ in self.world.store.list_open(tc, deadline_ms=None, limit=100):
                self.world.expire(txn)

    def check(self) -> None:
        assert set(self.committed) == {str(batch) for batch in range(BATCHES)}
        for segment in OUTPUT:
            assert self.position[segment] == self.world.log.last_confirmed(segment)
            rows = [row for _, row in self.read[segment]]
            wanted = [
                row
                for batch in range(BATCHES)
                for partition in range(PARTITIONS)
                for row in expected_rows(partition, batch)
            ]
            assert sorted(rows) == sorted(wanted), "each committed row exactly once"
            for partition in range(PARTITIONS):
                own = [row for row in rows if row.split("/")[1] == str(partition)]
                assert own == sorted(own), "INV-10: a partition's rows in their order"
            found = self.world.readable(segment, self.trimmed[segment])
            self.compare(segment, self.trimmed[segment], found.end, found.visibility)
        [cursor] = self.world.store.read_cursors([INPUT], SUBSCRIPTION)
        assert cursor is not None
        assert cursor.position == Position(1, BATCHES - 1), "INV-9"
        self.check_acknowledgements()
        assert self.world.client.hlen(f"{{seg:{INPUT}}}:pending-acks:{SUBSCRIPTION}") == 0
        for gate in self.world.store.gates([*OUTPUT, INPUT]):
            assert gate.pins == (), "a pin is left for ever"


def entries(
    world: World, segment: str, start: Position, end: Position
) -> Iterator[tuple[Position, str, str]]:
    for number, (writer, row) in enumerate(world.log.entries[segment]):
        if start < Position(1, number) <= end:
            yield Position(1, number), writer, row


def seeds(block: int) -> list[int]:
    only = os.environ.get("INTERLEAVING_SEED")
    if only:
        return [int(only)] if block == 0 else []
    return [FIRST_SEED + block + BLOCKS * number for number in range(RUNS // BLOCKS)]


@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_interleaving_breaks_an_invariant(
    world: World, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(redis_store, "_LOST_REPLY_PAUSE_S", 0.0)
    for seed in seeds(block):
        world.client.flushall()
        model = Model(seed, World(world.path))
        draw = model.random.getrandbits
        monkeypatch.setattr(secrets, "token_hex", lambda size, draw=draw: f"{draw(8 * size):x}")
        try:
            model.run()
        except BaseException as error:
            error.add_note(f"INTERLEAVING_SEED={seed}\n" + "\n".join(model.scheduler.trace[-60:]))
            raise
