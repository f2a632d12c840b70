"""Interleaves processes command by command, in an order that a seed draws.

Every process is a coroutine (a greenlet) that runs the real code. Each stops before every command
on the store and every access to the log until it is its turn. On the way a command may get lost,
take effect without an answer, arrive a second time much later, or be the last thing its process
does.
"""

from __future__ import annotations

import random
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

from greenlet import getcurrent, greenlet
from redis import RedisCluster
from redis.exceptions import TimeoutError as RedisTimeoutError

from pulsar_txn_spark.position import Position
from pulsar_txn_spark.store.redis.scripts import MERGED
from pulsar_txn_spark.store.redis.store import RedisStore
from tests.support.scenario import SCRIPTS, MemoryLog, World

DEATH = 0.006
LOST_REPLY = 0.01
LOST_REQUEST = 0.005
COPY = 0.1  # of the requests that change something, so many arrive a second time
EVENT = 0.06  # of the turns, so many go to the network or the clock instead of to a process
READ_ONLY = (
    "_read",
    "_list",
    "_staged",
    "_of_nonce",
    "_identity",
    "_lowest_open",
    "_newest",
)


class Died(BaseException):
    """The process was killed. Not an Exception: nobody may handle it."""


class Process:
    """One process: it stops before every command until the scheduler lets it go on."""

    def __init__(
        self, scheduler: Scheduler, name: str, body: Callable[[Process], None], *, mortal: bool
    ) -> None:
        self.name = name
        self.scheduler = scheduler
        self.random = scheduler.random
        self.mortal = mortal
        self.error: BaseException | None = None
        # Some are a hundred times slower than others: those are the zombies and late helpers.
        self.speed = self.random.choice([0.01, 0.1, 1.0, 1.0])
        self.given_up = False  # there are no turns any more: the clauses that clean up get none
        self._body = body
        self._greenlet = greenlet(self._run, parent=scheduler.main)
        self.world = scheduler.enter(self)

    def _run(self) -> None:
        try:
            self._body(self)
        except Died:
            self.scheduler.note(self, "died")
        except BaseException as error:  # noqa: BLE001 - raised again by the scheduler
            self.error = error
        self.scheduler.ended(self)

    def resume(self) -> None:
        """Let it go on until it stops again, or ends."""
        self._greenlet.switch()

    def wait(self, what: str) -> None:
        """Stop until it is this process's turn again."""
        if self.given_up:
            raise Died
        self.scheduler.about_to(self, what)
        self.scheduler.main.switch()
        self.scheduler.note(self, what)

    def dies(self) -> bool:
        return self.mortal and self.scheduler.chaos and self.random.random() < DEATH


def steps_of(
    name: str, args: tuple[Any, ...], reply: list[Any]
) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """Yield the steps that a script has taken: name, arguments and reply of each."""
    own = list(args[1 + int(args[0]) :])
    if name not in MERGED:
        yield name, own, reply
        return
    at = 1
    for answer in reply[1:]:
        step, count = own[at], int(own[at + 2])
        yield step, own[at + 3 : at + 3 + count], answer
        at += 3 + count


class GatedClient:
    """A client of the store whose every command waits for its turn, on a bad network."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._scheduler = process.scheduler

    def evalsha(self, sha: str, *args: Any) -> Any:
        process, scheduler = self._process, self._scheduler
        name = SCRIPTS[sha]
        process.wait(name)
        draw = process.random.random
        changes = not name.endswith(READ_ONLY)
        if scheduler.chaos and changes and draw() < COPY:
            scheduler.on_the_way.append((name, sha, args))
        if process.dies() or (scheduler.chaos and draw() < LOST_REQUEST):
            if process.mortal and draw() < 0.5:
                raise Died
            raise RedisTimeoutError("the request was lost")
        reply = scheduler.deliver(name, sha, args)
        if process.dies():
            raise Died
        if scheduler.chaos and draw() < LOST_REPLY:
            raise RedisTimeoutError("the reply was lost")
        return reply

    def pipeline(self, *, transaction: bool) -> GatedPipeline:
        assert not transaction
        return GatedPipeline(self)


class GatedPipeline:
    """Not atomic, so whatever is in it is interleaved as well."""

    def __init__(self, client: GatedClient) -> None:
        self._client = client
        self._calls: list[tuple[Any, ...]] = []

    def evalsha(self, *args: Any) -> None:
        self._calls.append(args)

    def execute(self, *, raise_on_error: bool) -> list[Any]:
        assert not raise_on_error
        return [self._client.evalsha(*call) for call in self._calls]


class GatedLog(MemoryLog):
    """A process's way to the log; ``trimmed`` is what retention has deleted."""

    def __init__(self, process: Process, log: MemoryLog) -> None:
        super().__init__()
        self.entries = log.entries
        self._process = process

    def append(self, segment: str, writer: str, value: str) -> Position:
        self._process.wait(f"append {writer}")
        if self._process.dies():
            raise Died
        # Not last_confirmed: the receipt of an entry names that entry.
        self.entries[segment].append((writer, value))
        position = Position(1, len(self.entries[segment]) - 1)
        if self._process.dies():
            raise Died
        return position

    def last_confirmed(self, segment: str) -> Position:
        self._process.wait("last_confirmed")
        return super().last_confirmed(segment)


class Scheduler:
    """Gives the turns, and does what network, clock and retention do.

    Parameters
    ----------
    seed : int
        Draws everything: a run with the same seed is the same run.
    world : World
        The store, looked at from outside.
    """

    def __init__(self, seed: int, world: World) -> None:
        self.random = random.Random(seed)
        self.world = world
        self.log = world.log
        self.chaos = True
        self.main = getcurrent()  # who runs the processes, and to whom each gives its turn back
        self.on_the_way: list[tuple[str, str, tuple[Any, ...]]] = []
        self.on_reply: Callable[[str, tuple[Any, ...], Any], None] = lambda *_: None
        self.events: list[Callable[[], None]] = [self._arrive]
        self.trace: list[str] = []
        self.ways: Counter[str] = Counter()
        """How many processes took the merged scripts, and how many single steps."""
        self._alive: list[Process] = []

    def enter(self, process: Process) -> Any:
        """Return what a new process sees of the world."""
        world = self.world.another_process()
        world.log = GatedLog(process, self.log)
        self.choose_way(world.store)
        world.store.scripts.client = GatedClient(process)  # type: ignore[assignment]
        return world

    def choose_way(self, store: RedisStore) -> None:
        """Let some processes take single steps, as all do in a cluster."""
        single = self.random.random() < 0.5 or isinstance(store.scripts.client, RedisCluster)
        store.scripts._single_steps = single
        self.ways["single steps" if single else "merged"] += 1

    def spawn(self, name: str, body: Callable[[Process], None], *, mortal: bool = True) -> None:
        process = Process(self, name, body, mortal=mortal)
        self._alive.append(process)

    def run(self) -> None:
        """Give turns until every process has ended; raise what any of them raised."""
        try:
            while self._alive:
                if self.chaos and self.random.random() < EVENT:
                    self.random.choice(self.events)()
                process = self._draw()
                process.resume()
                if process.error is not None:
                    raise process.error
        finally:
            for process in self._alive:
                process.given_up = True

    def _draw(self) -> Process:
        """Return whose turn it is: the quick ones come more often."""
        speeds = list(accumulate([process.speed for process in self._alive]))
        at = bisect(speeds, self.random.random() * speeds[-1], 0, len(speeds) - 1)
        return self._alive[at]

    def ended(self, process: Process) -> None:
        self._alive.remove(process)

    def deliver(self, name: str, sha: str, args: tuple[Any, ...]) -> Any:
        reply = self.world.client.evalsha(sha, *args)
        self.on_reply(name, args, reply)
        return reply

    def _arrive(self) -> None:
        """Let a copy of an earlier request arrive."""
        if self.on_the_way:
            at = self.random.randrange(len(self.on_the_way))
            name, sha, args = self.on_the_way.pop(at)
            self.trace.append(f"network: a copy of {name} arrives")
            self.deliver(name, sha, args)

    def arrive_all(self) -> None:
        while self.on_the_way:
            self._arrive()

    def note_event(self, what: str) -> None:
        self.trace.append(what)

    def about_to(self, process: Process, what: str) -> None:
        """Hear of what a process does when it is its turn again."""

    def note(self, process: Process, what: str) -> None:
        self.trace.append(f"{process.name}: {what}")
