"""Random histories of topics that are created, used, deleted and created again, all at once.

Each process runs the real code on the real embedded log; it stops before every command on the
store and every call of the log, and may die there (:mod:`tests.models.interleaving`).
What must hold:

- a topology belongs to one life of its topic, until that is deleted;
- a reader sees rows of committed transactions only;
- a transaction that commits has written to one life of each topic, which is not deleted yet;
- a live topic is listed, and has every committed row of its life, each once;
- a deleted topic leaves nothing but the mark that shuts its segments.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pulsar_txn_spark.backends.embedded.log import EmbeddedSegmentLog
from pulsar_txn_spark.client.transaction import _Header
from pulsar_txn_spark.config import StoreConfig
from pulsar_txn_spark.engine.components import Components, assemble
from pulsar_txn_spark.engine.topic_writers import TopicWriters, Written, winners_of
from pulsar_txn_spark.errors import (
    DataLossError,
    OptionError,
    PulsarTxnError,
    SegmentNotFoundError,
    TopicExistsError,
    TopicNotFoundError,
    TopologyConflictError,
    TransactionError,
)
from pulsar_txn_spark.position import EARLIEST
from pulsar_txn_spark.segments.retention import RETENTION_PROPERTY, Retention
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import SegmentState, TopicState, Topology
from pulsar_txn_spark.store.metadata_pb2 import Outcome
from pulsar_txn_spark.store.records import AckRequest, Code, EndedBy, TxnId
from pulsar_txn_spark.store.redis.connection import connect
from pulsar_txn_spark.store.redis.store import RedisStore
from pulsar_txn_spark.txn.pending_ack import MetadataPendingAckStore
from pulsar_txn_spark.txn.sweeper import SweepReport
from tests.models.interleaving import Died, GatedClient, Process, Scheduler, steps_of
from tests.models.segment_histories import Reader, Task, record_batch
from tests.support.scenario import keys_of, load_scripts

TOPICS = [TopicName.parse("lives"), TopicName.parse("lives"), TopicName.parse("other")]
"""Drawn from: most of what happens, happens to one of them."""

NAPS = {
    **dict.fromkeys(("catalog_remove", "txn_end", "log append", "log flush"), 0.5),
    **dict.fromkeys(("topology_cas", "catalog_add", "topic_property"), 0.2),
    **dict.fromkeys(("seg_fence", "seg_pin", "topic_lease", "log create", "log delete"), 0.1),
}
"""How often a process falls asleep before these: a deletion has many steps, and must get on."""

PLAIN = TxnId(0, 0)
"""Stands for no transaction."""

UNNUMBERED = TxnId(0, -1)
"""Stands for a transaction that has not begun, as far as its task knows."""


class World:
    """What the harness sees: the store and the log without gates."""

    def __init__(self, config: StoreConfig) -> None:
        self.client: Any = connect(config)
        self.log: Any = None
        store = RedisStore(self.client)
        self.run = assemble(store, EmbeddedSegmentLog(self.client, store.raise_last_seen))


class GatedWriter:
    """A segment's writer that stops before each call."""

    def __init__(self, process: Process, writer: Any) -> None:
        self._process, self._writer = process, writer

    def append(self, rows: Any) -> None:
        self._process.wait("log append")
        self._writer.append(rows)

    def flush(self) -> Any:
        self._process.wait("log flush")
        if self._process.dies():
            raise Died
        return self._writer.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


class GatedLog:
    """A process's way to the embedded log, which stops before each call, and may be its last."""

    UNGATED = frozenset({"backend", "at_once", "close"})

    def __init__(self, process: Process, log: EmbeddedSegmentLog) -> None:
        self._process, self._log = process, log

    def writer(self, segment: Any, name: str) -> GatedWriter:
        self._process.wait("log writer")
        return GatedWriter(self._process, self._log.writer(segment, name))

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._log, name)
        if name in self.UNGATED:
            return found

        def call(*args: Any, **named: Any) -> Any:
            self._process.wait(f"log {name}")
            if self._process.dies():
                raise Died
            result = found(*args, **named)
            if self._process.dies():
                raise Died
            return result

        return call


class TopicScheduler(Scheduler):
    """Gives each process a runtime of its own."""

    world: Any

    def about_to(self, process: Process, what: str) -> None:
        # Any process may fall asleep before a change, and find another world when it wakes.
        asleep = self.random.random() < NAPS.get(what, 0.0)
        process.speed = self.random.choice([0.003, 0.02, 0.1]) if asleep else 1.0

    def enter(self, process: Process) -> Components:
        client = self.world.client
        store = RedisStore(client)
        gated: Any = GatedClient(process)
        self.choose_way(store)
        store.scripts.client = gated
        log: Any = GatedLog(process, EmbeddedSegmentLog(client, store.raise_last_seen))
        run = assemble(store, log)
        changes = run.topics.changes
        # Whoever began a change may be dead, and these processes cannot wait for events.
        changes.await_or_finish = changes.finish  # type: ignore[method-assign]
        return run


class OpeningTask:
    """One task whose transaction begins with its first rows, as that of a client does."""

    def __init__(self, run: Components, nonce: str) -> None:
        self.run = run
        self.header = _Header(run, 60_000, "")
        self.header.nonce = self.header._random = nonce  # drawn from the seed
        self.writers = TopicWriters(
            run,
            lambda generation: self.header.writer(generation, self.header.id),
            self.header.admit,
            0,
            expect=self.header.expect,
        )

    def commit(self, written: list[Written]) -> None:
        """Commit what the task has written."""
        header = self.header
        assert header.id is not None
        self.writers.close()
        self.run.coordinator.commit(
            header.id, header.nonce, Outcome(winners=winners_of(written)), intents=header.intents
        )

    def give_up(self, cause: str) -> None:
        """Abort what there is to be aborted; of the rest, the lease ends."""
        self.writers.close()
        if self.header.id is not None:
            self.run.coordinator.abort(
                self.header.id, EndedBy.OWNER, nonce=self.header.nonce, cause=cause
            )


class LifeReader(Reader):
    """Reads one life of a topic."""

    def __init__(self, run: Components, topic: TopicName) -> None:
        super().__init__(run, topic)
        self.life = run.topics.require(topic)

    def topology(self) -> Topology:
        self.life = self._run.topics.lifecycle.reread(self.life, "it was read")
        return self.life


@dataclass
class TopicHistory:
    """The actors, what they have done, and what must hold."""

    seed: int
    config: StoreConfig
    actions: int = 6
    committed: set[TxnId] = field(default_factory=set)
    rows: dict[tuple[TxnId, str], list[int]] = field(default_factory=lambda: defaultdict(list))
    lifecycle: dict[tuple[TxnId, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    owner: dict[int, TxnId] = field(default_factory=dict)
    current: dict[str, str] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)
    in_use: set[str] = field(default_factory=set)
    turns: Counter[str] = field(default_factory=Counter)
    versions: dict[str, int] = field(default_factory=dict)
    not_kept: set[str] = field(default_factory=set)
    plain: dict[int, str] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.world = World(self.config)
        world: Any = self.world
        load_scripts(world.client)
        self.scheduler = TopicScheduler(self.seed, world)
        self.scheduler.on_reply = self._observe
        self.committed.add(PLAIN)
        self.random = self.scheduler.random

    # -- the actors ----------------------------------------------------------------------------

    def play(self) -> None:
        """Run the actors side by side, with deaths and a bad network, then look at what is left."""
        for topic in set(TOPICS):
            self.world.run.topics.create(topic, 1)
            found = self.world.run.topics.require(topic)
            self.current[str(topic)] = found.instance_id
            self.versions[str(topic)] = found.version
            self.in_use.add(str(topic))
        actors: list[Callable[[Process], None]] = [
            *(self._create, self._create, self._create, self._delete, self._delete),
            *(self._write, self._write, self._write, self._write, self._change, self._change),
            *(self._write_plainly, self._write_plainly, self._open_and_write, self._open_and_write),
            *(self._read, self._read, self._sweep, self._list, self._keep, self._subscribe),
        ]
        for number, actor in enumerate(actors):
            name = f"{actor.__name__.strip('_')}-{number}"
            self.scheduler.spawn(name, self._again_and_again(actor))
        self.scheduler.run()
        self.scheduler.chaos = False
        self.scheduler.arrive_all()
        self._settle()
        self._look()

    def _again_and_again(self, actor: Callable[[Process], None]) -> Callable[[Process], None]:
        def body(process: Process) -> None:
            for _ in range(self.actions):
                actor(process)

        return body

    def _topic(self) -> TopicName:
        return self.random.choice(TOPICS)

    def _there(self, run: Components) -> TopicName:
        """Return a topic that was there a moment ago, or at least was waited for."""
        for _ in range(10):
            topic = self._topic()
            if run.topics.find(topic) is not None:
                break
        return topic

    def _create(self, process: Process) -> None:
        run: Components = process.world
        try:
            created = run.topics.create(
                self._topic(), self.random.randint(1, 2), exist_ok=self.random.random() < 0.5
            )
        except (TopicExistsError, TopologyConflictError):
            return
        self.done["created"] += 1
        created.require_tiling()

    def _delete(self, process: Process) -> None:
        run: Components = process.world
        if self.random.random() < 0.7:
            process.wait("not yet")
            return
        try:
            run.topics.delete(self._topic())
        except TopicNotFoundError:
            return
        self.done["deleted"] += 1

    def _write(self, process: Process) -> None:
        run: Components = process.world
        task = Task(run, self._nonce())
        topics = {self._there(run), self._there(run)}
        try:
            for _ in range(2):
                for topic in sorted(topics, key=str):
                    self._append(task, topic)
                    written = task.writers.finish()
            if self.random.random() < 0.8:
                task.commit(written)
                self.done["committed"] += 1
            else:
                task.abort()
        except (TopicNotFoundError, TransactionError) as error:
            self.done[f"refused: {type(error).__name__}"] += 1
            task.writers.close()
            with suppress(TransactionError):  # it is decided, and may be collected
                run.coordinator.abort(task.txn, EndedBy.OWNER, nonce=task.nonce, cause=str(error))
        except Died:
            task.writers.close()
            raise

    def _append(self, task: Task, topic: TopicName) -> None:
        first = len(self.owner)
        numbers = list(range(first, first + self.random.randint(1, 3)))
        self.owner |= dict.fromkeys(numbers, task.txn)
        self.rows[task.txn, str(topic)] += numbers
        task.writers.append(topic, record_batch([(f"key-{n}", n) for n in numbers]))

    def _nonce(self) -> str:
        return f"{self.random.getrandbits(64):x}"

    def _open_and_write(self, process: Process) -> None:
        """Write in a transaction that begins with its rows, by a topology of some time ago."""
        run: Components = process.world
        task, topic = OpeningTask(run, self._nonce()), str(topic_ := self._topic())
        first = len(self.owner)
        numbers = list(range(first, first + self.random.randint(1, 3)))
        self.owner |= dict.fromkeys(numbers, UNNUMBERED)

        def opened() -> None:
            assert task.header.id is not None
            self.owner |= dict.fromkeys(numbers, task.header.id)
            self.rows[task.header.id, topic] += numbers

        task.header.opened = opened
        in_use, turns = topic in self.in_use, self.turns[topic]
        try:
            task.writers.append(topic_, record_batch([(f"key-{n}", n) for n in numbers]))
            written = task.writers.finish()
            if self.random.random() < 0.8:
                task.commit(written)
                self.done["opened and committed"] += 1
            else:
                task.give_up("changed its mind")
        except (TopicNotFoundError, TransactionError) as error:
            if isinstance(error, TopicNotFoundError):
                # Of what was there before the transaction has begun, it must know nothing.
                assert not in_use or turns != self.turns[topic], f"{topic} was there all the time"
            self.done[f"refused: {type(error).__name__}"] += 1
            with suppress(TransactionError):
                task.give_up(str(error))
        except Died:
            task.writers.close()
            raise

    def _write_plainly(self, process: Process) -> None:
        """Write outside of transactions: what is acknowledged is there as long as its topic."""
        run: Components = process.world
        name = f"ptxs-0-{self.random.random()}"
        writers = TopicWriters(run, lambda generation: f"{name}r{generation}", None, 0)
        topic = self._there(run)
        try:
            for _ in range(3):
                number = len(self.owner)
                self.owner[number] = PLAIN
                writers.append(topic, record_batch([(f"key-{number}", number)]))
                written = writers.finish()
                lifecycle = {one.segment.id.rsplit("/", 2)[1] for one in written}
                assert len(lifecycle) == 1, f"one writer has written to {lifecycle} of {topic}"
                self.plain[number] = lifecycle.pop()
                process.wait("written")
        except TopicNotFoundError:
            self.done["refused: plain"] += 1
        finally:
            writers.close()

    def _change(self, process: Process) -> None:
        run: Components = process.world
        changes, topic = run.topics.changes, self._there(run)
        try:
            active = run.topics.require(topic).active
            one = self.random.randrange(len(active))
            kind = self.random.choice(["split", "merge", "seal"])
            if kind == "merge" and one + 1 < len(active):
                changes.merge(topic, [s.descriptor for s in active[one : one + 2]])
            elif kind == "split" and len(active) < 3:
                changes.split(topic, active[one].descriptor)
            else:
                changes.seal(topic, active[one].descriptor)
        except (TopicNotFoundError, TopologyConflictError, OptionError):
            return  # deleted, changed by somebody else, or another topic by now
        self.done["changed"] += 1

    def _read(self, process: Process) -> None:
        run: Components = process.world
        try:
            reader = LifeReader(run, self._there(run))
        except TopicNotFoundError:
            return
        try:
            reader.read_all()
        except TopicNotFoundError:
            pass
        except (SegmentNotFoundError, DataLossError, AssertionError):
            # A log goes only after its topic is out of use, or where nothing is kept.
            life = reader.life.instance_id
            if life not in self.not_kept:
                assert not run.topics.lifecycle.alive(reader.life), f"a log of {life} is gone"
        found = [value for values in reader.found.values() for value in values]
        self._require_committed(found)
        self.done["read"] += bool(found)

    def _sweep(self, process: Process) -> None:
        run: Components = process.world
        sweeper = run.sweeper(0)
        try:
            sweeper.sweep()
        except SegmentNotFoundError:
            return  # its topic was deleted while it was looked at
        self.done["swept"] += 1

    def _list(self, process: Process) -> None:
        run: Components = process.world
        run.topics.names()
        for name in run.topics.matching(".*"):
            run.topics.readable_if_there(name)
        self.done["listed"] += 1

    def _keep(self, process: Process) -> None:
        """Say that a topic keeps nothing, which must never be said of another one of its name."""
        run: Components = process.world
        try:
            found = run.topics.require(self._topic())
        except TopicNotFoundError:
            return
        if self.random.random() < 0.6:
            return
        self.not_kept.add(found.instance_id)
        value = Retention(size_bytes=0).serialize()
        name = str(found.topic)
        run.store.topics.change_property(
            name, RETENTION_PROPERTY, value, instance_id=found.instance_id
        )
        self.done["not kept"] += 1

    def _subscribe(self, process: Process) -> None:
        """Acknowledge, as a query does: also of a topic that is deleted meanwhile."""
        run: Components = process.world
        try:
            found = run.topics.require(self._topic())
            for segment in found.readable:
                claimed = run.store.subscriptions.claim_cursor(
                    segment.ref.id, "sub", "q", 1, EARLIEST
                )
                if claimed.code is not Code.OK:
                    return
                end = run.log.last_confirmed(segment.ref)
                [cursor] = run.store.subscriptions.read_cursors([segment.ref.id], "sub")
                if cursor is None or cursor.position >= end:
                    continue
                nonce = self._nonce()
                txn = run.coordinator.new_txn(nonce, timeout_ms=60_000)
                ack = AckRequest(segment.ref.id, "sub", "q", 1, cursor.position, end, "s", "0")
                MetadataPendingAckStore(run.coordinator).acknowledge(txn, nonce, 60_000, [ack])
                run.coordinator.commit(txn, nonce, Outcome())
                self.done["acknowledged"] += 1
        except (TopicNotFoundError, SegmentNotFoundError, TransactionError):
            return

    # -- what must hold at every moment --------------------------------------------------------

    def _observe(self, name: str, args: tuple[Any, ...], reply: Any) -> None:
        if not isinstance(reply, list):
            return
        for step, own, answer in steps_of(name, args, reply):
            values = own[3:]
            if step == "topology_is":
                self._observe_version(topic_of(args), int(values[0]), answer[1] == b"OK")
            elif answer[1] != b"OK":
                continue
            elif step == "topology_cas":
                topic = topic_of(args)
                self.versions[topic] = int(answer[2])
                self._observe_topology(topic, values[1])
            elif step == "txn_end" and str(values[1]) == "COMMITTED":
                self._observe_commit(TxnId.parse(str(values[0])), values[2])

    def _observe_version(self, topic: str, expected: int, passed: bool) -> None:
        found = self.versions[topic]
        assert passed == (expected == found), f"{topic} is of version {found}, known is {expected}"
        self.done[f"{'begun' if passed else 'refused'} by a known topology"] += 1

    def _observe_topology(self, topic: str, record: bytes | str) -> None:
        written = Topology.parse(0, record) if isinstance(record, bytes) else None
        in_use = written is not None and written.state is TopicState.LIVE
        if in_use != (topic in self.in_use):
            self.in_use ^= {topic}
            self.turns[topic] += 1
        if written is None:
            self.over.add(self.current.pop(topic))
            return
        before = self.current.setdefault(topic, written.instance_id)
        assert before == written.instance_id, f"{topic}: {written.instance_id} over {before}"
        assert written.instance_id not in self.over, f"{written.instance_id} has come back"

    def _observe_commit(self, txn: TxnId, record: bytes) -> None:
        self.committed.add(txn)
        for winner in Outcome.FromString(record).winners:
            path, life, _ = winner.segment.rsplit("/", 2)
            self.lifecycle[txn, f"topic://{path}"].add(life)
        for (one, topic), lifecycle in self.lifecycle.items():
            if one == txn:
                assert len(lifecycle) == 1, f"{txn} has written to {lifecycle} of {topic}"
                assert not lifecycle & self.over, f"{txn} commits what was deleted with {topic}"

    def _require_committed(self, found: list[int]) -> None:
        dirty = {str(self.owner[n]) for n in found if self.owner[n] not in self.committed}
        assert not dirty, f"rows of {sorted(dirty)} are visible, which have not committed"

    # -- and in the end ------------------------------------------------------------------------

    def _settle(self) -> None:
        """Let everybody's lease end, and somebody come by who finishes what the dead have left."""
        run = self.world.run
        for tc in range(run.store.identity.coordinators):
            for txn, _ in run.store.transactions.list_open(tc, deadline_ms=None, limit=1000):
                self.world.client.hset(f"{{tc{tc}}}:txn:{txn.key}", "deadline_ms", "1")
                self.world.client.zadd(f"{{tc{tc}}}:idx:txn-by-deadline", {txn.key: 1})
        report: SweepReport | None = None
        for topic in set(TOPICS):  # who looked after them is dead
            run.store.topics.change_property(str(topic), "__upkeep", None)
        for _ in range(3):
            report = run.sweeper(0).sweep()
        assert report is not None
        assert report.stuck == ()

    def _look(self) -> None:
        run = self.world.run
        found = {topic: run.topics.lifecycle.read(topic) for topic in set(TOPICS)}
        states = {str(topic): t.state for topic, t in found.items() if t is not None}
        assert TopicState.DELETING not in states.values(), "a sweep finishes a deletion"
        live = sorted(name for name, state in states.items() if state is TopicState.LIVE)
        assert run.topics.names() == live
        listed = run.store.meta.list_topics()
        assert set(live) <= set(listed) <= set(states), "what is live is listed, and no ghost"
        for topic, topology in found.items():
            if topology is not None and topology.state is TopicState.LIVE:
                self._look_at(topic, topology)
        for topic in set(TOPICS):
            with suppress(TopicExistsError):
                run.topics.create(topic, 1)
            run.topics.delete(topic)
        assert run.store.meta.list_topics() == []
        left = [
            k.decode() for k in keys_of(self.world.client, "{seg:*") if not k.endswith(b":birth")
        ]
        assert not left, "a deleted topic leaves nothing but its segments' marks"

    def _look_at(self, topic: TopicName, topology: Topology) -> None:
        topology.require_tiling()
        assert not topology.unfinished
        if topology.instance_id in self.not_kept:
            return
        assert not any(s.state is SegmentState.DELETED for s in topology.segments)
        reader = LifeReader(self.world.run, topic)
        reader.read_all()
        found = [value for values in reader.found.values() for value in values]
        rows = Counter(value for value in found if self.owner[value] != PLAIN)
        plain = {number for number, life in self.plain.items() if life == topology.instance_id}
        assert plain <= set(found), f"{topic}: {plain - set(found)} were acknowledged"
        expected = Counter(
            number
            for (txn, name), lifecycle in self.lifecycle.items()
            if name == str(topic) and lifecycle == {topology.instance_id}
            for number in self.rows[txn, name]
        )
        assert rows == expected, f"{topic}: {(rows - expected, expected - rows)}"


def topic_of(args: tuple[Any, ...]) -> str:
    """Return the topic whose tag a script has touched first."""
    return str(args[1]).removeprefix("{topic:").partition("}")[0]


def play(seed: int, config: StoreConfig, actions: int = 6) -> TopicHistory:
    """Play one history on an empty store."""
    history = TopicHistory(seed, config, actions)
    try:
        history.play()
    except (Exception, PulsarTxnError) as error:
        error.add_note(f"seed {seed}:\n" + "\n".join(history.scheduler.trace[-60:]))
        raise
    return history
