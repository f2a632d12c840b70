"""Random lives of subscriptions: made, read, reset, handed over and deleted at any moment.

Beside them rows are written to two topics, segments change, everything is trimmed that nobody
needs, and drivers die: between any two steps of a batch, in the middle of a start, or behind the
decision of a transaction that they do not live to complete. An actor may also act in between two
requests of another one, and between a start that dies and its next attempt. What each *stretch* of
a subscription (from its start or reset to its next reset or deletion) must deliver, once, and what
it must not deliver, a model says.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
import redis

from pulsar_txn_spark import client
from pulsar_txn_spark.admin import Admin, CursorMove
from pulsar_txn_spark.client import Consumer
from pulsar_txn_spark.engine.components import Components, open_components
from pulsar_txn_spark.errors import (
    AcknowledgementConflictError,
    ReceiveTimeoutError,
    TopologyConflictError,
)
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.retention import Retention, RetentionSweep
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.store.records import Code, EndedBy
from pulsar_txn_spark.store.redis.merged import RedisMergedSteps
from pulsar_txn_spark.store.redis.segments import RedisSegmentStore
from pulsar_txn_spark.store.redis.subscriptions import RedisSubscriptionStore
from pulsar_txn_spark.txn.coordinator import TransactionCoordinator
from pulsar_txn_spark.txn.sweeper import SweepReport
from pulsar_txn_spark.txn.transaction_buffer import Visibility
from tests.models.segment_histories import Task, record_batch
from tests.segments.test_retention import Crash, Dying
from tests.support.streaming import Killed, StreamingQuery

TOPICS = tuple(TopicName.parse(name) for name in ("left", "right"))
STEPS = 40
HISTORIES = int(os.environ.get("HISTORIES", "10"))
KEYS, MOST_SEGMENTS, MOST_QUERIES = 5, 4, 3
BESIDE = (
    "create_cursors",
    "claim_cursor",
    "claim_cursors",
    "ask_and_register",
    "reset_cursor",
    "delete_cursor",
    "mark_trimmed",
    "inherit_cursor",
    "retire",
    "place_acks",
    "acknowledge",
)
"""Requests before which another actor may act."""


class Stretch:
    """What one subscription delivers from its start or reset on.

    Parameters
    ----------
    must : set of int
        Values that have to be delivered; those that are committed later are added.
    must_not : set of int
    """

    def __init__(self, must: set[int], must_not: set[int]) -> None:
        self.must, self.must_not = must, must_not
        self.begun: set[int] = set()  # topics in which its start died behind the last cursor
        self.readers: list[Reader] = []

    def require(self, *, whole: bool) -> None:
        delivered = [value for reader in self.readers for value in reader.values()]
        twice = [value for value, count in Counter(delivered).items() if count > 1]
        assert not twice, f"delivered twice: {twice}"
        assert not self.must_not & set(delivered), "from before its start"
        for reader in self.readers:
            reader.require_order()
        if whole:
            assert not self.must - set(delivered), "lost"


class Reader:
    """Somebody who reads for a subscription."""

    dead = False

    def values(self) -> list[int]:
        raise NotImplementedError

    def read(self, dies: str) -> bool:
        """Read on; tell whether there was anything."""
        raise NotImplementedError

    def leave(self) -> None:
        self.dead = True

    def require_order(self) -> None:
        last: dict[tuple[int, int], int] = {}
        for value in self.values():
            key = value % len(TOPICS), value // len(TOPICS) % KEYS
            assert last.get(key, -1) < value, f"rows of {key} are out of order"
            last[key] = value


class QueryReader(Reader):
    def __init__(self, query: StreamingQuery) -> None:
        self.query = query

    def values(self) -> list[int]:
        return self.query.values

    def read(self, dies: str) -> bool:
        if dies != "pending":
            return self.query.trigger(dies)
        # It dies right behind the decision of its transaction.
        with mock.patch.object(TransactionCoordinator, "materialize", side_effect=Killed):
            try:
                return self.query.trigger()
            except Killed:
                self.query.restart()
                # The batch is committed: what it read is what the sink has.
                if len(self.query.output) == self.query.committed and self.query.found is not None:
                    self.query.output.append(self.query.found)
                raise


class ClientReader(Reader):
    def __init__(self, service: client.Client, consumer: Consumer) -> None:
        self.service, self.consumer = service, consumer
        self.committed: list[int] = []

    def values(self) -> list[int]:
        return self.committed

    def read(self, dies: str) -> bool:
        received: list[client.Message] = []
        with contextlib.suppress(ReceiveTimeoutError):
            received.extend(self.consumer.receive(timeout_ms=0) for _ in range(7))
        if not received:
            return False
        if dies:
            self.consumer.redeliver_unacknowledged()
            raise Killed
        with self.service.new_txn() as txn:
            for message in received:
                self.consumer.acknowledge(message, txn)
        self.committed += [int(m.value or b"") for m in received]
        return True

    def leave(self) -> None:
        super().leave()
        self.consumer.close()


class History:
    def __init__(self, path: str, seed: int) -> None:
        self.path, self.random = path, random.Random(seed)
        self.options = {"store.path": path}
        self.run: Components = open_components(Options(self.options, Use.CONNECT))
        self.client = client.connect(self.options)
        self.times = random.Random(f"times {seed}")
        self.starts = random.Random(f"starts {seed}")
        self.moments: list[tuple[int, frozenset[int]]] = []  # and what was written before
        self.written: set[int] = set()
        self.number = 0
        self.committed: set[int] = set()
        self.tasks: list[tuple[Task, list[int]]] = []
        self.live: dict[str, Stretch] = {}
        self.beginning: Stretch | None = None
        self.over: list[Stretch] = []
        self.owner: dict[str, Reader | None] = {}
        self.names = iter(range(1_000))
        self.countdown = 0
        self.moves: list[CursorMove] = []
        self.busy: set[str] = set()
        self.deleted: set[str] = set()
        self.handing_over = self.dying = self.start_dies = False
        self.deleted_amid = 0
        for topic in TOPICS:
            self.run.topics.create(topic, 1 + seed % 2)
            retention = Retention(size_bytes=0).serialize()
            self.run.store.topics.change_property(str(topic), "__retention", retention)

    # -- rows and segments ---------------------------------------------------------------------

    def begin(self) -> None:
        if len(self.tasks) < 2:
            self.tasks.append((Task(self.run, f"task-{next(self.names)}"), []))
            self.continue_writing()

    def continue_writing(self) -> None:
        if not self.tasks:
            return
        task, own = self.random.choice(self.tasks)
        for at in self.random.sample(range(len(TOPICS)), self.random.randint(1, len(TOPICS))):
            count = self.random.randint(1, 5)
            values = [len(TOPICS) * (self.number + n) + at for n in range(count)]
            self.number += count
            task.writers.append(TOPICS[at], self.rows(values))
            self.written |= set(values)
            own += values
        task.writers.finish()  # in the log now, so that its order is that of the numbers

    @staticmethod
    def rows(values: list[int]) -> pa.RecordBatch:
        return record_batch([(f"key-{v // len(TOPICS) % KEYS}", v) for v in values])

    def end(self, *, commit: bool = False) -> None:
        if not self.tasks:
            return
        task, own = self.tasks.pop(self.random.randrange(len(self.tasks)))
        if not commit and self.random.random() < 0.3:
            task.writers.close()
            self.run.coordinator.abort(task.txn, EndedBy.OWNER, nonce=task.nonce, cause="a test")
            return
        task.commit(task.writers.finish())
        self.committed |= set(own)
        for stretch in self.live.values():
            stretch.must |= set(own)
        if self.beginning is not None:
            begun = self.beginning.begun
            self.beginning.must |= {value for value in own if value % len(TOPICS) in begun}

    def write(self) -> None:
        self.note_moment()
        self.begin()
        self.end(commit=True)

    def change(self) -> None:
        changes = self.run.topics.changes
        topic = self.random.choice(TOPICS)
        active = self.run.topics.require(topic).active
        one = self.random.randrange(len(active))
        kind = self.random.choice(["split", "merge", "seal"])
        with contextlib.suppress(TopologyConflictError):  # by one in whose middle this is
            if kind == "merge" and one + 1 < len(active):
                changes.merge(topic, [s.descriptor for s in active[one : one + 2]])
            elif kind == "split" and len(active) < MOST_SEGMENTS:
                changes.split(topic, active[one].descriptor)
            else:
                changes.seal(topic, active[one].descriptor)

    # -- sweeps --------------------------------------------------------------------------------

    def sweep(self) -> None:
        sweeper, report = self.run.sweeper(0), SweepReport()
        self.handing_over = True
        done = self.run.retention().sweep(lambda segment: sweeper.settle(segment, report))
        self.handing_over = False
        assert done.failed == {}
        assert report.stuck == ()

    def sweep_and_die(self) -> None:
        plan, after = [self.random.randint(1, 8)], self.random.random() < 0.5
        mortal = RetentionSweep(
            Dying(self.run.store, plan, after=after),
            Dying(self.run.log, plan, after=after),
            self.run.retention()._readable_to,
            "the one that dies",
        )
        self.dying = True
        try:
            mortal.sweep(lambda _: None)
        except Crash:
            for topic in TOPICS:
                self.run.store.topics.change_property(str(topic), "__upkeep", None)
        finally:
            self.dying = False

    def collect(self) -> None:
        assert self.run.sweeper(0).sweep().stuck == ()

    # -- subscriptions -------------------------------------------------------------------------

    def available(self) -> set[int]:
        """Return what is committed and has not been let go by retention."""
        found: set[int] = set()
        for topic in TOPICS:
            for segment in self.run.topics.require(topic).readable:
                if self.run.store.segments.retained([segment.ref.id])[0].retired:
                    continue  # gone, although its log may be there for a moment
                for batch in self.run.log.read(
                    segment.ref,
                    max(self.run.log.trimmed_to(segment.ref), self.marked(segment.ref.id)),
                    self.run.log.last_confirmed(segment.ref),
                    visible=Visibility(),
                    columns=frozenset({"value"}),
                    max_rows=1_000,
                ):
                    found |= {int(row["value"]) for row in batch.to_pylist()}
        return found & self.committed

    def marked(self, segment: str) -> Position:
        """Return up to where retention lets rows go, or a sweeper that died was about to."""
        store: Any = self.run.store
        mark = store.scripts.client.hget(f"{{seg:{segment}}}:state", "trim-to")
        return Position.from_padded(mark.decode()) if mark else EARLIEST

    def note_moment(self) -> None:
        """Note a time after all that was written, and not after what comes."""
        _, begun = self.run.store.transactions.lowest_open(0)
        now = begun
        while now == begun:
            _, now = self.run.store.transactions.lowest_open(0)
        self.moments.append((now, frozenset(self.written)))

    @contextlib.contextmanager
    def stretch(
        self, name: str, start: str, before: frozenset[int] | None = None
    ) -> Iterator[Stretch]:
        """Begin a new stretch around what starts or resets a subscription.

        `before` is what was written before the time that a subscription is reset to.
        """
        since = self.available() - before if before is not None else set[int]()
        before = frozenset(self.committed) if before is None else before
        nothing_open = not self.tasks
        found = Stretch(set(), set())
        yield found
        if start == "earliest":
            found.must |= self.available()
        elif nothing_open:
            # What lies behind an open transaction is not readable yet, and comes later.
            found.must_not = set(before)
        found.must |= since
        if name in self.live:
            self.over.append(self.live[name])
        self.live[name] = found

    def subscribe(self) -> None:
        """Start a query or a client with a new subscription."""
        if len(self.live) >= MOST_QUERIES or self.beginning is not None or self.start_dies:
            return
        again = self.deleted - self.busy
        if again and self.random.random() < 0.5:
            name = self.random.choice(sorted(again))
            self.deleted.remove(name)
        else:
            name = f"sub-{next(self.names)}"
        start = self.random.choice(["earliest", "latest"])
        with self.stretch(name, start) as self.beginning:
            self.owner[name] = self.reader(name, start)
        stretch, self.beginning = self.live[name], None
        stretch.readers.append(self.reader_of(name))

    def reader(self, name: str, start: str) -> Reader:
        self.busy.add(name)
        try:
            if self.random.random() < 0.3:
                first = start if start != "subscription" else "earliest"
                topics = [str(topic) for topic in TOPICS]
                return ClientReader(self.client, self.client.consumer(topics, name, first))
            options = {"topics": ",".join(map(str, TOPICS)), "subscription": name}
            if start != "latest" or self.random.random() < 0.5:
                options["startingOffsets"] = start  # and else that is the default
            if self.random.random() < 0.5:
                options["maxPartitions"] = "1"  # one task reads all segments
            query = StreamingQuery(self.run, self.path, f"q-{next(self.names)}", **options)
            self.die_in_the_start(query, name)
            while True:
                try:
                    query.trigger(self.random.choice(["", "planned", "read"]))
                except Killed:
                    continue
                return QueryReader(query)
        finally:
            self.busy.discard(name)

    def die_in_the_start(self, query: StreamingQuery, name: str) -> None:
        """Let a start die behind some of its cursors, again and again, and others act meanwhile."""
        create_cursors = RedisSubscriptionStore.create_cursors
        for _ in range(self.starts.choice([0, 0, 1, 2, 3])):
            left = self.starts.randint(0, 3)

            def dying(
                store: RedisSubscriptionStore, subscription: str, starts: Any, mark: str = ""
            ) -> Any:
                nonlocal left
                answers = []
                for segment, start in starts.items():
                    if left == 0:
                        raise Killed
                    answers += create_cursors(store, subscription, {segment: start}, mark)
                    left -= answers[-1].code is Code.OK
                return answers

            dies = mock.patch.object(RedisSubscriptionStore, "create_cursors", dying)
            self.start_dies = True
            with dies, contextlib.suppress(Killed):
                query.reader.initialOffset()
            self.start_dies = False
            query.restart()
            if self.beginning is not None:
                self.beginning.begun |= self.known_in(name)
            for act in self.starts.choices([self.write, self.change, self.sweep], k=3):
                act()

    def known_in(self, name: str) -> set[int]:
        """Return the topics with a cursor of a subscription in each of their segments."""
        found = set()
        for at, topic in enumerate(TOPICS):
            ids = [segment.ref.id for segment in self.run.topics.require(topic).readable]
            if all(self.run.store.subscriptions.read_cursors(ids, name)):
                found.add(at)
        return found

    def reader_of(self, name: str) -> Reader:
        found = self.owner[name]
        assert found is not None
        return found

    def pick(self) -> str | None:
        free = [name for name in self.live if name not in self.busy]
        return self.random.choice(free) if free else None

    def read(self) -> None:
        name = self.pick()
        if name is not None and self.owner[name] is not None:
            dies = self.random.choice(["", "", "", "planned", "read", "decided", "pending"])
            self.read_once(name, dies)

    def read_once(self, name: str, dies: str = "") -> bool:
        if dies == "pending":
            self.countdown = 0  # nobody else dies of that
        self.busy.add(name)
        try:
            return self.reader_of(name).read(dies)
        except Killed:
            return True
        finally:
            self.busy.discard(name)

    def reset(self) -> None:
        """Reset a subscription; whoever used it goes, and somebody else comes, now or later."""
        self.note_moment()
        name = self.pick()
        if name is None:
            return
        to = self.random.choice(["here", "here", "earliest", "latest"])
        before, self.moves = self.owner[name], []
        if to == "here" and isinstance(before, ClientReader):
            # It is refused while the cursor stands within an entry.
            while self.read_once(name):
                pass
        if to == "here":
            self.administer(name, lambda topic: self.reset_topic(topic, name, to))
        elif self.times.random() < 0.6:
            self.reset_to_time(name, *self.times.choice(self.moments))
        else:
            with self.stretch(name, to):
                self.administer(name, lambda topic: self.reset_topic(topic, name, to))
        if before is not None:
            self.linger(before)
        self.owner[name] = None
        if self.random.random() < 0.5:
            self.take_over(name)

    def reset_to_time(self, name: str, time_ms: int, written: frozenset[int]) -> None:
        with self.stretch(name, "time", written):
            self.administer(name, lambda topic: self.reset_topic(topic, name, time_ms))

    def rewind(self) -> None:
        """Reset every subscription to a time of late, between rows that all have been read."""
        for name in list(self.live):
            self.write()
            self.write()
            before = self.owner[name]
            self.reset_to_time(name, *self.times.choice(self.moments[-3:]))
            if before is not None:
                self.linger(before)
            self.owner[name] = None

    def reset_topic(self, topic: str, name: str, to: str | int) -> None:
        self.moves += Admin(self.options).reset_subscription(topic, name, to=to)

    def linger(self, reader: Reader) -> None:
        """Let a query that nobody has told go on for a moment."""
        moved = all(move.before != move.after for move in self.moves)
        if moved and isinstance(reader, QueryReader) and self.random.random() < 0.5:
            output = len(reader.values())
            with contextlib.suppress(AcknowledgementConflictError, Killed):
                reader.read("")
            assert len(reader.values()) == output, "it goes on although it was reset"
        reader.leave()

    def take_over(self, name: str) -> None:
        self.owner[name] = self.reader(name, "subscription")
        self.live[name].readers.append(self.reader_of(name))

    def take_over_one(self) -> None:
        name = self.pick()
        if name is not None and self.owner[name] is None:
            self.take_over(name)

    def delete(self) -> None:
        name = self.pick()
        if name is None:
            return
        self.administer(name, lambda topic: Admin(self.options).delete_subscription(topic, name))
        reader = self.owner.pop(name)
        if reader is not None:
            reader.leave()
        self.over.append(self.live.pop(name))
        if not self.dying:  # else nobody takes back what was handed over to a child (operations.md)
            self.deleted.add(name)
        self.deleted_amid += self.handing_over

    def administer(self, name: str, act: Callable[[str], None]) -> None:
        """Nobody who is dead is in the way; and who reads meanwhile is not either, for long."""
        self.busy.add(name)
        alive = self.owner[name]
        if isinstance(alive, QueryReader) and self.random.random() < 0.3:
            self.beside_the_reset = alive
        try:
            for topic in TOPICS:
                act(str(topic))
        finally:
            self.beside_the_reset = None
            self.busy.discard(name)

    beside_the_reset: QueryReader | None = None

    # -- one between two requests of another -----------------------------------------------------

    def between(self) -> None:
        """Perhaps let somebody else act before a request."""
        if self.beside_the_reset is not None:
            reader, self.beside_the_reset = self.beside_the_reset, None
            with contextlib.suppress(Killed, AcknowledgementConflictError):
                reader.read("")
            return
        if self.countdown == 0:
            return
        self.countdown -= 1
        if self.countdown == 0:
            turns = [self.write, self.change, self.read, self.sweep, self.collect, self.begin]
            self.random.choice([*turns, self.delete, self.subscribe])()

    # -- a life --------------------------------------------------------------------------------

    def play(self) -> None:
        turns = [self.write, self.begin, self.continue_writing, self.end, self.change]
        turns += [self.read] * 4 + [self.sweep] * 2 + [self.sweep_and_die, self.collect]
        turns += [self.subscribe] * 2 + [self.reset, self.take_over_one, self.delete]
        for _ in range(STEPS):
            self.countdown = self.random.choice([0, 0, 1, 2, 3, 5])
            self.random.choice(turns)()
            for stretch in self.live.values():
                stretch.require(whole=False)
        self.countdown = 0
        while self.tasks:
            self.end()
        self.rewind()
        for _ in range(2):
            self.write()
            self.sweep()
            for name in self.live:
                if self.owner[name] is None:
                    self.take_over(name)
                while self.read_once(name):
                    pass
        for stretch in self.over:
            stretch.require(whole=False)
        for stretch in self.live.values():
            stretch.require(whole=True)
        self.require_one_owner()
        self.require_deleted()

    def play_starts(self) -> None:
        """Start subscriptions where segments change and go, and read each of them to the end."""
        for _ in range(MOST_QUERIES):
            for _ in range(self.starts.randint(1, 6)):
                self.starts.choice([self.write, self.change])()
            self.subscribe()
        for _ in range(2):
            self.write()
            self.sweep()
            for name in self.live:
                while self.read_once(name):
                    pass
        for stretch in self.live.values():
            stretch.require(whole=True)

    def close(self) -> None:
        for reader in self.owner.values():
            if reader is not None:
                reader.leave()
        self.client.close()

    def require_one_owner(self) -> None:
        """A live subscription has a cursor in each active segment, or in a parent of it."""
        for name in self.live:
            for topic in TOPICS:
                ids = [s.ref.id for s in self.run.topics.require(topic).readable]
                cursors = self.run.store.subscriptions.read_cursors(ids, name)
                owners = {cursor.query for cursor in cursors if cursor is not None}
                assert owners, f"{name} is not known in {topic}"

    def require_deleted(self) -> None:
        """Nothing is left of a deleted subscription, also where a sweep was handing it over."""
        for topic in TOPICS:
            for segment in self.run.topics.require(topic).readable:
                left = self.deleted & set(self.run.store.subscriptions.names(segment.ref.id))
                assert not left, f"{left} of {segment.ref.id}"


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> dict[str, History]:
    """Let the history in play act before the requests that are named above."""
    playing: dict[str, History] = {}

    def hooked(call: Callable[..., Any]) -> Callable[..., Any]:
        def request(*args: Any, **kwargs: Any) -> Any:
            if "now" in playing:
                playing["now"].between()
            return call(*args, **kwargs)

        return request

    for part in (RedisSubscriptionStore, RedisSegmentStore, RedisMergedSteps):
        for name in BESIDE:
            if hasattr(part, name):
                monkeypatch.setattr(part, name, hooked(getattr(part, name)))
    return playing


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_a_subscription_delivers_what_it_must_once_however_often_its_start_dies(
    redis_path: str, redis_client: redis.Redis, seed: int
) -> None:
    history = History(redis_path, seed)
    try:
        history.play_starts()
    finally:
        history.close()


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_each_stretch_of_a_subscription_delivers_what_it_must_once(
    redis_path: str, redis_client: redis.Redis, beside: dict[str, History], seed: int
) -> None:
    history = History(redis_path, seed)
    beside["now"] = history
    try:
        history.play()
    finally:
        del beside["now"]
        history.close()
