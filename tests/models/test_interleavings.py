"""Random interleavings of everything that may happen at once, checked against the invariants.

Drivers and their rivals, tasks that lose and go on as zombies, late helpers, readers, sweeps, and
clients that acknowledge single messages; the real code, one command at a time, on a network that
loses and repeats. A query has several sinks, some of which get other names on the way; a function
writes outside of a scope, and its failed writes are aborted by their nonce; other queries take a
sink over; of some batches Spark needs no row; the store loses its tail behind a checkpoint. Each
run is drawn from its seed alone.
In the environment, ``INTERLEAVINGS`` says how many runs there are, ``INTERLEAVINGS_FROM`` how many
come before them, and ``INTERLEAVING_SEED`` asks for a single one.
"""

from __future__ import annotations

import copy
import os
import secrets
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from pulsar_txn_spark.config import StoreConfig
from pulsar_txn_spark.errors import (
    AcknowledgementConflictError,
    BatchNotRecordedError,
    CommitStateUnknownError,
    StoreUnavailableError,
    TransactionConflictError,
    TransactionError,
)
from pulsar_txn_spark.position import EARLIEST, MessagePosition, Position
from pulsar_txn_spark.store.ack_ranges import AckInterval
from pulsar_txn_spark.store.metadata_pb2 import Outcome, TaskWrite, Winner
from pulsar_txn_spark.store.records import CursorStart, EndedBy, SubscriptionRef, TxnId, TxnState
from pulsar_txn_spark.store.redis import connection, scripts, server
from pulsar_txn_spark.txn.batch import Attempt, BatchKey, SinkRules
from pulsar_txn_spark.txn.coordinator import as_position, as_record
from pulsar_txn_spark.txn.participants import write_intent
from pulsar_txn_spark.txn.pending_ack import (
    CLIENT_OWNER,
    PlannedRange,
    ReadPlan,
    require_claimed,
)
from pulsar_txn_spark.txn.read_progress import ReadProgress, claimed_by
from pulsar_txn_spark.txn.sweeper import SegmentEnds, Sweeper
from pulsar_txn_spark.txn.transaction_buffer import txn_of_writer, writer_name
from tests.models.interleaving import Died, Process, Scheduler, steps_of
from tests.models.side_by_side import Lane, SideBySide
from tests.support.scenario import OTHER_SEGMENT, SEGMENT, TIMEOUT_MS, World, keys_of, load_scripts

RUNS = int(os.environ.get("INTERLEAVINGS", "288"))
SKIPPED = int(os.environ.get("INTERLEAVINGS_FROM", "0"))
RUNS_ON_CLUSTER = int(os.environ.get("INTERLEAVINGS", "100"))
BLOCKS = 4
FIRST_SEED = 20_261_121
OUTPUT = (SEGMENT, OTHER_SEGMENT)
INPUT = "public/default/in/bbbbbbbb/0000-ffff-0"
BATCHES, PARTITIONS, ROWS, DRIVERS = 3, 2, 2, 5
QUERY, SUBSCRIPTION = "query", "sub"
SIBLINGS = ("first", "second")  # sinks that are written in every batch
PLAIN = "plain"  # one that a function writes by itself, in some of them
SHARED = "shared"  # one that several queries use, one after the other
SERVICES = "public/default/services/dddddddd/0000-ffff-0"  # what clients write to
INBOX = SubscriptionRef("public/default/inbox/cccccccc/0000-ffff-0", "clients", CLIENT_OWNER)
TRUTH = (
    "decisions",
    "committed",
    "names",
    "owners",
    "read",
    "position",
    "trimmed",
    "claims",
    "normal",
    "perhaps",
)
"""What of a model is about store and log, so that it goes with them."""
MESSAGES, IN_ENTRY = 12, 3  # what clients acknowledge, one by one and up to one


def message(number: int) -> MessagePosition:
    """Return the number-th message (from 1) of the inbox; 0 is before all."""
    if number == 0:
        return MessagePosition.whole(EARLIEST)
    entry, index = divmod(number - 1, IN_ENTRY)
    return MessagePosition.of_message(Position(1, entry), index, IN_ENTRY)


def start_of(batch: int) -> Position:
    return Position(1, batch - 1) if batch else EARLIEST


def expected_rows(sink: str, partition: int, batch: int) -> list[str]:
    return [f"{sink}/{batch}/{partition}/{row}" for row in range(ROWS)]


@dataclass
class Snapshot:
    """What is in store and log, and what has come true, at some moment."""

    keys: dict[bytes, bytes]
    entries: dict[str, int]
    truth: dict[str, Any]


class Model:
    """What is true whatever the code believes, and the processes that are let loose on it."""

    def __init__(self, seed: int, world: World) -> None:
        self.scheduler = Scheduler(seed, world)
        self.scheduler.on_reply = self._observe
        self.scheduler.events += [self._expire, self._expire, self._trim, self._remember]
        self.world = world
        self.random = self.scheduler.random
        self.decisions: dict[TxnId, tuple[TxnState, Outcome]] = {}
        self.committed: dict[tuple[str, int], TxnId] = {}  # sink (as the job means it) and batch
        self.commit_log = -1  # the last batch that Spark knows to be done
        self.offset_log = -1  # the last one that it has planned
        self.drivers = self.runs = self.takers = self.looks = 0
        self.siblings = SIBLINGS[: 1 + (self.random.random() < 0.4)]
        self.subscribed = self.random.random() < 0.6
        self.plain = {b for b in range(BATCHES) if self.random.random() < 0.4}
        # No task reads in these, so that nothing is claimed or acknowledged; in the last one does.
        self.unread = {b for b in range(BATCHES - 1) if self.random.random() < 0.4}
        # The names that the sinks have now; the ones that the code has which runs next.
        self.names = {sink: sink for sink in (*self.siblings, PLAIN)}
        self.code = dict(self.names)
        self.meant = {name: sink for sink, name in self.names.items()}
        self.asked_for = False  # whether a sink may have to ask: renamed, or lost
        self.owners: list[str] = []  # queries that have committed to the shared sink, in order
        self.snapshot: Snapshot | None = None
        self.read: dict[str, list[tuple[Position, str]]] = defaultdict(list)
        self.position: dict[str, Position] = dict.fromkeys(OUTPUT, EARLIEST)
        self.trimmed: dict[str, Position] = dict.fromkeys(OUTPUT, EARLIEST)
        self.claims: dict[TxnId, set[int]] = {}  # what a client's transaction acknowledges
        self.normal: set[int] = set()  # acknowledged outside of transactions, for sure
        self.perhaps: set[int] = set()  # the same, by one that heard of no success

    # -- what is true ------------------------------------------------------------------------

    def _observe(self, name: str, args: tuple[object, ...], reply: list[bytes]) -> None:
        for step, own, answer in steps_of(name, args, reply):
            if step == "txn_end" and answer[1] == b"OK":
                self._note_decision(TxnId.parse(str(own[3])), answer)

    def _note_decision(self, txn: TxnId, reply: list[bytes]) -> None:
        assert txn not in self.decisions, f"INV-1: {txn} was decided twice"
        self.decisions[txn] = TxnState(reply[2].decode()), Outcome.FromString(reply[3])
        if self.decisions[txn][0] is TxnState.COMMITTED:
            key = f"{{tc{txn.tc}}}:txn:{txn.key}"
            found = self.world.client.hmget(key, "sink", "query", "batch")
            sink, query, batch = (value.decode() for value in found)
            if batch:  # else it is a client's
                self._note_commit(txn, sink, query, int(batch))

    def _note_commit(self, txn: TxnId, name: str, query: str, batch: int) -> None:
        sink = self.meant.get(name, name)
        if name == SHARED:
            sink = f"{SHARED}.{query}"
            assert query not in self.owners[:-1], f"INV-8: {query} committed after it was fenced"
            self.owners += [query] if query not in self.owners else []
        else:
            self.names[sink] = name
        assert (sink, batch) not in self.committed, f"INV-7: {sink} {batch} was committed twice"
        if sink != PLAIN and batch:
            assert (sink, batch - 1) in self.committed, f"INV-11: {sink} follows a batch it lost"
        self.committed[sink, batch] = txn

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
        self.runs += 1
        world, execution_id = process.world, f"run-{self.runs}"
        source_epoch = world.store.meta.next_source_epoch()
        batch = self.commit_log + 1
        replays = 0.2 if self.code == self.names else 0.6  # after a crash, code is changed in haste
        if self.scheduler.chaos and batch and self.random.random() < replays and not self.lost():
            # Its last entry was lost: the batch is replayed, or fenced by a later one. But not
            # where the store has lost batches as well: who knows it repeats them for all sinks
            # (docs/operations.md), and a replay that dies between two sinks is no such repair.
            batch -= 1
        repeats = batch <= self.offset_log
        while batch < BATCHES:
            if not repeats:
                self.offset_log = max(self.offset_log, batch)
                self.note_progress(process, source_epoch, start_of(batch))
            repeats = False
            self.micro_batch(process, batch, execution_id, source_epoch)
            process.wait("writes its commit log")
            self.commit_log = max(self.commit_log, batch)
            batch += 1

    def micro_batch(
        self, process: Process, batch: int, execution_id: str, source_epoch: int
    ) -> None:
        subscription = SUBSCRIPTION if self.subscribed else ""
        ranges = (PlannedRange(INPUT, start_of(batch), Position(1, batch)),)
        plan = ReadPlan(execution_id, source_epoch, subscription, execution_id, ranges)
        if batch not in self.unread:
            if self.subscribed and self.random.random() < 0.2:
                self.start("another task that reads", lambda p: self.begin_to_read(p, batch, plan))
            self.begin_to_read(process, batch, plan)
        for sink in self.siblings:
            key = BatchKey(self.code[sink], QUERY, batch)
            self.write_batch(process, key, execution_id, SinkRules(), acknowledge=True)
        if batch in self.plain:
            self.write_plainly(process, BatchKey(self.code[PLAIN], QUERY, batch), execution_id)

    def begin_to_read(self, process: Process, batch: int, plan: ReadPlan) -> None:
        """Do what a task does that reads: claim, and move a cursor that was left behind."""
        world, start = process.world, start_of(batch)
        if plan.subscription:
            claim = world.store.subscriptions.claim_cursor(
                INPUT, SUBSCRIPTION, QUERY, plan.source_epoch, start
            )
            require_claimed(SUBSCRIPTION, QUERY, claim)
            assert claim.position is not None
            if claim.position < MessagePosition.whole(start):
                progress = ReadProgress(world.coordinator, TIMEOUT_MS)
                progress.catch_up_with_plan(plan, QUERY, batch, {INPUT: start})
        world.store.queries.register_plan(QUERY, str(batch), plan.source, plan.serialize())

    def note_progress(self, process: Process, source_epoch: int, start: Position) -> None:
        """Do what Spark does when it has planned a batch: tell that the one before is done."""
        world = process.world
        if process.dies():
            raise Died
        [cursor] = world.store.subscriptions.read_cursors([INPUT], SUBSCRIPTION)
        is_own = cursor is not None and claimed_by(cursor, source_epoch)
        if cursor is not None and is_own and cursor.position < start:
            progress = ReadProgress(world.coordinator, TIMEOUT_MS)
            progress.catch_up(SUBSCRIPTION, source_epoch, {INPUT: (cursor, start)})

    def write_batch(
        self,
        process: Process,
        key: BatchKey,
        execution_id: str,
        rules: SinkRules,
        *,
        acknowledge: bool,
    ) -> None:
        world, nonce = process.world, f"{self.random.getrandbits(64):x}"
        attempt: Attempt | None = None
        try:
            tasks = []
            for partition in range(PARTITIONS):
                if self.random.random() < 0.4:
                    self.loser(key, nonce, partition, execution_id, rules)
                attempt = world.batches.begin(key, nonce, execution_id, rules)
                tasks.append(self.task(process, attempt, partition))
            assert attempt is not None
            world.batches.commit(attempt, [tasks], execution_id, acknowledge=acknowledge)
        except TransactionError:
            if self.random.random() < 0.7:
                if attempt is None or self.random.random() < 0.5:
                    world.batches.abort_begun(key, execution_id, "its job failed")
                else:
                    world.batches.abort(attempt, "its job failed")
            raise

    def write_plainly(self, process: Process, key: BatchKey, execution_id: str) -> None:
        """Write as a function does outside of a scope: what fails is aborted by its nonce."""
        world, nonce = process.world, f"{self.random.getrandbits(64):x}"
        rules = SinkRules(every_batch=False)
        try:
            if self.random.random() < 0.3:
                self.loser(key, nonce, 0, execution_id, rules)
            if self.scheduler.chaos and self.random.random() < 0.3:
                raise TransactionConflictError("its job failed before a task of it succeeded")
            tasks = []
            for partition in range(PARTITIONS):
                attempt = world.batches.begin(key, nonce, execution_id, rules)
                tasks.append(self.task(process, attempt, partition))
            world.batches.commit(attempt, [tasks], execution_id, acknowledge=False)
        except CommitStateUnknownError:
            raise  # Spark aborts nothing then
        except TransactionError:
            world.batches.abort_nonce(nonce, "its job failed")
            raise

    def loser(
        self, key: BatchKey, nonce: str, partition: int, execution_id: str, rules: SinkRules
    ) -> None:
        """Start a task attempt that writes the same rows, never reports, and may be very late."""

        def zombie(process: Process) -> None:
            attempt = process.world.batches.begin(key, nonce, execution_id, rules)
            self.task(process, attempt, partition)

        self.start(f"zombie of batch {key.batch} of {key.sink}", zombie)

    def taker(self, process: Process) -> None:
        """Run a new query on the sink that queries share: it takes the sink over."""
        self.takers += 1
        query = f"q{self.takers}"
        for batch in range(2):
            self.runs += 1
            key = BatchKey(SHARED, query, batch)
            self.write_batch(process, key, f"run-{self.runs}", SinkRules(), acknowledge=False)

    def task(self, process: Process, attempt: Attempt, partition: int) -> TaskWrite:
        task = TaskWrite(partition=partition, txn_id=attempt.txn.key)
        if attempt.replay:
            return task
        for segment in self.random.sample(OUTPUT, 2):
            key = attempt.key
            sink = self.meant.get(key.sink, f"{key.sink}.{key.query}")
            rows = expected_rows(sink, partition, key.batch)
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

    # -- clients that write ---------------------------------------------------------------------

    def service(self, process: Process) -> None:
        """Write in a transaction that begins with it, and commit, abort or forget about it."""
        world, nonce = process.world, f"{self.random.getrandbits(64):x}"
        found: list[TxnId] = []
        writer = world.buffer.open(
            nonce, TIMEOUT_MS, "", lambda txn: writer_name(txn, 0, nonce), [SERVICES], found.append
        )
        [txn] = found
        last = world.log.append(SERVICES, writer, "row")
        fate = self.random.random()
        if fate < 0.7:
            winner = Winner(segment=SERVICES, writer=writer, last=as_record(last))
            intents = {write_intent(SERVICES, writer)}
            world.coordinator.commit(txn, nonce, Outcome(winners=[winner]), intents=intents)
        elif fate < 0.9:
            world.coordinator.abort(txn, EndedBy.OWNER, nonce=nonce, cause="changed its mind")

    def check_services(self) -> None:
        """Check that what is visible of services is what they have committed."""
        found = self.world.readable(SERVICES)
        shown = set()
        for position, writer, _ in entries(self.world, SERVICES, EARLIEST, found.end):
            if found.visibility(writer, position):
                self.require_committed(SERVICES, writer, position)
                shown.add(writer)
        assert shown == {
            winner.writer
            for state, outcome in self.decisions.values()
            for winner in outcome.winners
            if state is TxnState.COMMITTED and winner.segment == SERVICES
        }

    # -- clients that acknowledge single messages ----------------------------------------------

    def acknowledged(self) -> set[int]:
        """Return what is acknowledged for good, whether it is materialized or pending."""
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
        for other, locked in self.claims.items():
            if other != txn and other not in self.decisions:
                assert not numbers & locked, f"INV-9: {txn} and {other} hold {numbers & locked}"
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
        state = self.world.store.subscriptions.read_acks(INBOX.segment, INBOX.subscription)
        if state is None:
            return  # no client came so far as to claim it
        assert state.pending == {}, "a message is locked for ever"
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
            found = process.world.readable(segment, start, asks_log=self.asks_log())
            if start != self.position[segment]:
                continue  # another start of this reader was quicker
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
            found = process.world.readable(segment, trimmed, asks_log=self.asks_log())
            if trimmed == self.trimmed[segment]:
                self.compare(segment, trimmed, found.end, found.visibility)
        found = process.world.readable(SERVICES, asks_log=self.asks_log())
        for position, writer, _ in entries(self.world, SERVICES, EARLIEST, found.end):
            if found.visibility(writer, position):
                self.require_committed(SERVICES, writer, position)

    def asks_log(self) -> bool:
        """Tell whether a reader asks the log for its end; every other one goes by the reports."""
        self.looks += 1
        return not self.scheduler.chaos or self.looks % 2 == 0

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
        """Help some transaction, perhaps hours after it was read."""
        known = list(self.decisions)
        if known:
            header = process.world.store.transactions.read(self.random.choice(known))
            if header is not None and header.state is not TxnState.OPEN:
                process.wait("sleeps")
                process.world.coordinator.materialize(header, repeat=True)

    def sweeper(self, process: Process) -> None:
        def ends(segment: str) -> SegmentEnds:
            confirmed = process.world.log.last_confirmed(segment)
            return SegmentEnds(confirmed, self.trimmed.get(segment, EARLIEST))

        Sweeper(process.world.coordinator, ends, retention_ms=0).sweep()

    def start(self, name: str, body: object, *, mortal: bool = True) -> None:
        def run(process: Process) -> None:
            try:
                body(process)  # type: ignore[operator]
            except (TransactionError, BatchNotRecordedError, StoreUnavailableError) as error:
                # Fenced, aborted, unknown, every try lost: what a process has to expect.
                if isinstance(error, BatchNotRecordedError) and not self.asked_for:
                    raise
                if isinstance(error, StoreUnavailableError) and not self.scheduler.chaos:
                    raise
                self.scheduler.note(process, f"ends: {type(error).__name__}: {error}")

        self.scheduler.spawn(name, run, mortal=mortal)

    # -- a run -------------------------------------------------------------------------------

    def run(self) -> None:
        while self.drivers < DRIVERS and self.commit_log < BATCHES - 1:
            self.drivers += 1
            self.deploy()
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
                ("service", self.service, 2),
                ("plain client", self.plain_client, 1),
                ("taker", self.taker, 1),
            ):
                for _ in range(self.random.randrange(most + 1)):
                    self.start(name, body)
            self.scheduler.run()
            if self.snapshot is not None and self.random.random() < 0.4:
                self.lose_the_tail(self.snapshot)
        self.come_to_rest()
        self.check()

    # -- what operators do ----------------------------------------------------------------------

    def deploy(self) -> None:
        """Deploy the job's code; by mistake one of its sinks may have got another name."""
        self.repair()
        self.code = dict(self.names)
        if self.random.random() < 0.3:
            sink = self.random.choice(list(self.code))
            name = f"{sink}-{self.drivers}"
            self.code[sink], self.meant[name] = name, sink
            self.asked_for = True

    def lost(self) -> dict[str, int]:
        """Return the first batch that each sink has lost, of those that Spark has noted as done."""
        found = {}
        for sink in (*self.siblings, PLAIN):
            wanted = self.plain if sink == PLAIN else range(BATCHES)
            gone = [b for b in wanted if b <= self.commit_log and (sink, b) not in self.committed]
            if gone:
                found[sink] = min(gone)
        return found

    def repair(self, *, now: bool = False) -> None:
        """Let Spark run again what the store has lost: at once, if only the operator can tell.

        Of sinks that have lost different batches one goes on before another one asks.
        """
        lost = self.lost()
        told = set(self.siblings) <= lost.keys() and len(set(lost.values())) == 1
        if lost and (now or not told or self.random.random() < 0.5):
            self.commit_log = min(lost.values()) - 1
            self.offset_log = min(self.offset_log, self.commit_log + 1)
        [cursor] = self.world.store.subscriptions.read_cursors([INPUT], SUBSCRIPTION)
        to_read = set(range(self.commit_log + 1, BATCHES)) - self.unread
        start = start_of(min(to_read, default=BATCHES))
        if cursor is not None and not cursor.txn and cursor.position > start:
            # The store lost the subscription as well, and a later batch has claimed it anew.
            self.world.store.subscriptions.reset_cursor(
                INPUT, SUBSCRIPTION, CursorStart(start), cursor
            )

    def _remember(self) -> None:
        if self.snapshot is None and self.random.random() < 0.1:
            client = self.world.client
            names = keys_of(client, "*")
            dumps = client.pipeline(transaction=False)
            for name in names:
                dumps.dump(name)
            self.snapshot = Snapshot(
                dict(zip(names, dumps.execute(), strict=True)),
                {segment: len(found) for segment, found in self.world.log.entries.items()},
                copy.deepcopy({name: getattr(self, name) for name in TRUTH}),
            )

    def lose_the_tail(self, kept: Snapshot) -> None:
        """Start the server again from a file that was cut, which the checkpoint does not know."""
        self.snapshot = None
        self.asked_for = True
        self.scheduler.note_event("the store loses its tail")
        self.scheduler.on_the_way.clear()
        client = self.world.client
        client.flushdb()
        restore = client.pipeline(transaction=False)
        for name, dump in kept.keys.items():
            restore.restore(name, 0, dump)
        restore.execute()
        self.world = self.scheduler.world = self.world.another_process()
        for segment, entries_ in self.world.log.entries.items():
            del entries_[kept.entries.get(segment, 0) :]
        for fact, value in kept.truth.items():
            setattr(self, fact, value)

    def come_to_rest(self) -> None:
        """End the chaos: a driver without a rival succeeds, whatever the others left."""
        self.scheduler.chaos = False
        self.repair(now=True)
        self.code = dict(self.names)
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
            for txn, _ in self.world.store.transactions.list_open(tc, deadline_ms=None, limit=100):
                self.world.expire(txn)

    def check(self) -> None:
        everything = {(sink, batch) for sink in self.siblings for batch in range(BATCHES)}
        everything |= {(PLAIN, batch) for batch in self.plain}
        own = {key for key in self.committed if not key[0].startswith(SHARED)}
        assert own == everything, "each batch was committed to each sink"
        for segment in OUTPUT:
            assert self.position[segment] == self.world.log.last_confirmed(segment)
            [gate] = self.world.store.segments.gates([segment])
            assert all(at <= gate.high for at, _ in self.read[segment]), "a row is not reported"
            rows = [row for _, row in self.read[segment]]
            wanted = [
                row
                for sink, batch in self.committed
                for partition in range(PARTITIONS)
                for row in expected_rows(sink, partition, batch)
            ]
            assert sorted(rows) == sorted(wanted), "each committed row exactly once"
            for partition in range(PARTITIONS):
                for sink in {sink for sink, _ in self.committed}:
                    own_rows = [r for r in rows if r.split("/")[::2] == [sink, str(partition)]]
                    assert own_rows == sorted(own_rows), "INV-10: a partition's rows in their order"
            found = self.world.readable(segment, self.trimmed[segment])
            self.compare(segment, self.trimmed[segment], found.end, found.visibility)
        [cursor] = self.world.store.subscriptions.read_cursors([INPUT], SUBSCRIPTION)
        assert (cursor is not None) == self.subscribed
        assert cursor is None or cursor.position == Position(1, BATCHES - 1), "INV-9"
        self.check_acknowledgements()
        self.check_services()
        assert self.world.client.hlen(f"{{seg:{INPUT}}}:pending-acks:{SUBSCRIPTION}") == 0
        for gate in self.world.store.segments.gates([*OUTPUT, INPUT, SERVICES]):
            assert gate.pins == (), "a pin is left for ever"


def entries(
    world: World, segment: str, start: Position, end: Position
) -> Iterator[tuple[Position, str, str]]:
    for number, (writer, row) in enumerate(world.log.entries[segment]):
        if start < Position(1, number) <= end:
            yield Position(1, number), writer, row


def seeds(block: int) -> range:
    only = os.environ.get("INTERLEAVING_SEED")
    if only:
        return range(int(only), int(only) + (block == 0))
    return range(FIRST_SEED + SKIPPED + block, FIRST_SEED + SKIPPED + RUNS, BLOCKS)


@pytest.fixture(scope="module")
def side_by_side(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SideBySide]:
    """Return databases of a server that writes no file: nothing here is about the disk."""
    path = str(tmp_path_factory.mktemp("redis"))
    server.ensure_server(path)
    client: Any = connection.connect(StoreConfig(path=path))
    client.config_set("appendonly", "no")
    load_scripts(client)
    found = SideBySide(server.socket_path(path))
    yield found
    found.close()
    connection.close_all()
    server.stop_server(path)


def play(seed: int, client: Any, begun: Callable[[Model], None]) -> Counter[str]:
    """Run one model on an empty store; return how many processes took each of the ways."""
    client.flushdb()
    model = Model(seed, World("", client=client))
    begun(model)
    try:
        model.run()
    except BaseException as error:
        error.add_note(f"INTERLEAVING_SEED={seed}\n" + "\n".join(model.scheduler.trace[-60:]))
        raise
    return model.scheduler.ways


@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_interleaving_breaks_an_invariant(
    side_by_side: SideBySide, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(scripts, "_LOST_REPLY_PAUSE_S", 0.0)
    running: dict[int, Model] = {}
    ways: Counter[str] = Counter()

    def token_hex(size: int) -> str:
        return f"{running[side_by_side.running].random.getrandbits(8 * size):x}"

    def begun(model: Model) -> None:
        running[side_by_side.running] = model

    def run(seed: int, lane: Lane) -> None:
        ways.update(play(seed, lane, begun))

    monkeypatch.setattr(secrets, "token_hex", token_hex)
    chosen = seeds(block)
    side_by_side.run(partial(run, seed) for seed in chosen)
    assert len(chosen) < 2 or len(ways) == 2, "nobody took one of the ways"
    sys.stdout.write(f"{len(chosen)} interleavings, processes by their way: {dict(ways)}\n")


@pytest.mark.long
def test_no_interleaving_breaks_an_invariant_on_a_cluster(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "_LOST_REPLY_PAUSE_S", 0.0)
    client: Any = connection.connect(StoreConfig(url=cluster))
    load_scripts(client)

    def begun(model: Model) -> None:
        draw = model.random.getrandbits
        monkeypatch.setattr(secrets, "token_hex", lambda size: f"{draw(8 * size):x}")

    for seed in range(FIRST_SEED + SKIPPED, FIRST_SEED + SKIPPED + RUNS_ON_CLUSTER):
        assert play(seed, client, begun).keys() == {"single steps"}
