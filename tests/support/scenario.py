"""A small world for the tests of the transaction core: a real store, a log in memory, no Spark."""

from __future__ import annotations

import secrets
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from importlib import resources
from typing import Any, TypeAlias

import redis
from redis.exceptions import TimeoutError as RedisTimeoutError

from pulsar_txn_spark.config import StoreConfig
from pulsar_txn_spark.errors import StoreError
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.store.metadata_pb2 import Outcome, TaskWrite, Winner
from pulsar_txn_spark.store.protocol import MetadataStore
from pulsar_txn_spark.store.records import (
    AckRequest,
    CursorAnswer,
    CursorStart,
    EndedBy,
    TxnHeader,
    TxnId,
    TxnState,
)
from pulsar_txn_spark.store.redis import scripts
from pulsar_txn_spark.store.redis.connection import connect
from pulsar_txn_spark.store.redis.store import RedisStore
from pulsar_txn_spark.txn.batch import Attempt, BatchKey, BatchTransactions, SinkRules
from pulsar_txn_spark.txn.coordinator import TransactionCoordinator, as_record
from pulsar_txn_spark.txn.pending_ack import MetadataPendingAckStore
from pulsar_txn_spark.txn.transaction_buffer import (
    MetadataTransactionBuffer,
    ReadableRange,
    writer_name,
)

SEGMENT = "public/default/t/aaaaaaaa/0000-7fff-0"
OTHER_SEGMENT = "public/default/t/aaaaaaaa/8000-ffff-1"
TIMEOUT_MS = 60_000


class MemoryLog:
    """The least that a segment log has to do: number entries, and remember who wrote them."""

    def __init__(self) -> None:
        self.entries: dict[str, list[tuple[str, str]]] = defaultdict(list)

    def append(self, segment: str, writer: str, value: str) -> Position:
        self.entries[segment].append((writer, value))
        return self.last_confirmed(segment)

    def last_confirmed(self, segment: str) -> Position:
        count = len(self.entries[segment])
        return Position(1, count - 1) if count else EARLIEST

    def read(
        self, segment: str, start: Position, end: Position, visible: Callable[[str, Position], bool]
    ) -> list[str]:
        numbered = [(Position(1, i), *entry) for i, entry in enumerate(self.entries[segment])]
        return [v for at, writer, v in numbered if start < at <= end and visible(writer, at)]


@dataclass(frozen=True)
class Txn:
    """A transaction and the nonce by which this test owns it."""

    id: TxnId
    nonce: str


class World:
    """What one process sees of one store and one log.

    Parameters
    ----------
    path : str
        Folder of an embedded server.
    log : MemoryLog, optional
        A new one by default.
    client : redis.Redis or what looks like it, optional
        To use instead of one of that server.
    """

    def __init__(self, path: str, log: MemoryLog | None = None, client: Any = None) -> None:
        self.path = path
        self._given = client
        # Typed by nobody: tests look at raw keys with it, and redis-py's types fit no such use.
        self.client: Any = client if client is not None else connect(StoreConfig(path=path))
        self.store = RedisStore(self.client)
        self.log = log if log is not None else MemoryLog()
        self.coordinator = TransactionCoordinator(self.store)
        self.buffer = MetadataTransactionBuffer(self.coordinator)
        self.acks = MetadataPendingAckStore(self.coordinator)
        self.batches = BatchTransactions(self.coordinator, TIMEOUT_MS)

    def lose(
        self,
        losses: Mapping[str, Sequence[Fault | None]] | None = None,
        always: Mapping[str, Fault] | None = None,
    ) -> LossyClient:
        """Put a bad network between this process and the store."""
        lossy = LossyClient(self.client, losses, always)
        self.store.scripts.client = lossy  # type: ignore[assignment]
        return lossy

    def mend(self) -> None:
        """Take the bad network away."""
        self.store.scripts.client = self.client

    def another_process(self) -> World:
        """Return the same store and log, as a process sees them that remembers nothing."""
        return World(self.path, self.log, self._given)

    # -- transactions ------------------------------------------------------------------------

    def open(self, nonce: str | None = None, timeout_ms: int = TIMEOUT_MS) -> Txn:
        nonce = nonce or secrets.token_hex(8)
        return Txn(self.coordinator.new_txn(nonce, timeout_ms=timeout_ms), nonce)

    def admit(self, txn: Txn, task: int = 0, segment: str = SEGMENT) -> str:
        """Let a task write, and return its writer's name."""
        writer = writer_name(txn.id, task, "abcd")
        self.buffer.admit(txn.id, txn.nonce, TIMEOUT_MS, writer, [segment])
        return writer

    def write(self, txn: Txn, *values: str, task: int = 0, segment: str = SEGMENT) -> Winner:
        """Write as one task does, and return what it reports."""
        writer = self.admit(txn, task, segment)
        last = [self.log.append(segment, writer, value) for value in values][-1]
        return Winner(segment=segment, writer=writer, last=as_record(last))

    def commit(self, txn: Txn, *winners: Winner) -> None:
        self.coordinator.commit(txn.id, txn.nonce, Outcome(winners=winners))

    def decide(self, txn: Txn, *winners: Winner) -> None:
        """Decide for COMMITTED and die before anything of it is materialized."""
        record = Outcome(winners=winners).SerializeToString(deterministic=True)
        self.store.transactions.end(txn.id, TxnState.COMMITTED, record, EndedBy.OWNER, txn.nonce)

    def abort(self, txn: Txn) -> None:
        self.coordinator.abort(txn.id, EndedBy.OWNER, nonce=txn.nonce, cause="the test says so")

    def header(self, txn: Txn | TxnId) -> TxnHeader:
        found = self.store.transactions.read(txn.id if isinstance(txn, Txn) else txn)
        assert found is not None
        return found

    def state(self, txn: Txn | TxnId) -> TxnState:
        return self.header(txn).state

    def expire(self, txn: Txn | TxnId) -> None:
        """Let the lease be over by the store's clock."""
        found = txn.id if isinstance(txn, Txn) else txn
        self.client.hset(f"{{tc{found.tc}}}:txn:{found.key}", "deadline_ms", "1")
        self.client.zadd(f"{{tc{found.tc}}}:idx:txn-by-deadline", {found.key: 1})

    # -- segments ----------------------------------------------------------------------------

    def key(self, name: str, segment: str = SEGMENT) -> str:
        return f"{{seg:{segment}}}:{name}"

    def pinned(self, segment: str = SEGMENT) -> list[str]:
        """Return the writers that block readers, lowest bound first."""
        return [pin.writer for pin in self.store.segments.gates([segment])[0].pins]

    def dropped(self, segment: str = SEGMENT) -> dict[str, Position]:
        return dict(self.store.segments.gates([segment])[0].dropped)

    def readable(
        self, segment: str = SEGMENT, start: Position = EARLIEST, *, asks_log: bool = True
    ) -> ReadableRange:
        """Tell how far a reader may go; one that does not ask the log goes by what was reported."""
        if asks_log:
            return self.buffer.readable([segment], self.log.last_confirmed, [start])[0]
        return self.buffer.readable([segment], lambda _: EARLIEST, [start], by_reports=True)[0]

    def visible(
        self, segment: str = SEGMENT, start: Position = EARLIEST, *, asks_log: bool = True
    ) -> list[str]:
        """Return what a reader from `start` on sees now."""
        found = self.readable(segment, start, asks_log=asks_log)
        return self.log.read(segment, start, found.end, found.visibility)

    # -- batches and acknowledgements --------------------------------------------------------

    def write_batch(self, attempt: Attempt, *values: str, segment: str = SEGMENT) -> TaskWrite:
        """Write as the only task of a batch does."""
        winner = self.write(Txn(attempt.txn, attempt.nonce), *values, segment=segment)
        return TaskWrite(partition=0, txn_id=attempt.txn.key, winners=[winner])

    def run_batch(
        self,
        key: BatchKey,
        nonce: str,
        *values: str,
        run: str = "run",
        rules: SinkRules = SinkRules(),  # noqa: B008 - frozen
    ) -> Attempt:
        """Begin, write and commit; a replay writes nothing."""
        attempt = self.batches.begin(key, nonce, run, rules)
        tasks: Sequence[TaskWrite] = [TaskWrite(partition=0, txn_id=attempt.txn.key)]
        if not attempt.replay:
            tasks = [self.write_batch(attempt, *values)]
        self.batches.commit(attempt, [tasks], run, acknowledge=True)
        return attempt


def ack(start: Position, end: Position, **changes: object) -> AckRequest:
    """Return an acknowledgement of ``(start, end]`` for the subscription ``sub``."""
    fields: dict[str, object] = {
        "segment": SEGMENT,
        "subscription": "sub",
        "query": "q",
        "source_epoch": 1,
        "start": start,
        "end": end,
        "sink": "s",
        "batch": "0",
    }
    return AckRequest(**{**fields, **changes})  # type: ignore[arg-type]


class Loss(Enum):
    """What the network does to a request."""

    REQUEST = auto()
    """It never arrives."""
    REPLY = auto()
    """It takes effect, but nobody hears of it."""


Fault: TypeAlias = Loss | StoreError
"""What happens to a request: it is lost, or refused."""


class LossyClient:
    """A client on a bad network.

    Parameters
    ----------
    client : redis.Redis
    losses : mapping of str to list of Loss, StoreError or None
        For each script, what happens to its next calls; then all is well. An error is what the
        store refuses the request with, before it takes effect.
    always : mapping of str to Loss
        For each script (``*``: for all), what happens to every call.
    """

    def __init__(
        self,
        client: redis.Redis,
        losses: Mapping[str, Sequence[Fault | None]] | None = None,
        always: Mapping[str, Fault] | None = None,
    ) -> None:
        self._client = client
        self._losses = {name: list(found) for name, found in (losses or {}).items()}
        self._always = always or {}
        self.calls: Counter[str] = Counter()
        load_scripts(client)  # else the first call would only learn that it is not there

    def evalsha(self, sha: str, *args: Any) -> Any:
        return self._through(SCRIPTS[sha], lambda: self._client.evalsha(sha, *args))

    def eval(self, body: str, *args: Any) -> Any:
        # The fall-back of an EVALSHA that the server did not know, which counted already.
        return self._client.eval(body, *args)

    def pipeline(self, *, transaction: bool) -> LossyPipeline:
        return LossyPipeline(self, self._client.pipeline(transaction=transaction))

    def _through(self, name: str, send: Callable[[], Any]) -> Any:
        self.calls[name] += 1
        loss = self._always.get(name, self._always.get("*"))
        if self._losses.get(name):
            loss = self._losses[name].pop(0)
        if loss is Loss.REQUEST:
            raise RedisTimeoutError("the request was lost")
        if isinstance(loss, StoreError):
            raise loss
        reply = send()
        if loss is Loss.REPLY:
            raise RedisTimeoutError("the reply was lost")
        return reply


class LossyPipeline:
    """Several calls of one script in one round trip; all its replies are lost, or none."""

    def __init__(self, client: LossyClient, pipeline: Any) -> None:
        self._client, self._pipeline, self._name = client, pipeline, ""

    def evalsha(self, sha: str, *args: Any) -> None:
        self._name = SCRIPTS[sha]
        self._pipeline.evalsha(sha, *args)

    def execute(self, *, raise_on_error: bool) -> Any:
        return self._client._through(
            self._name, lambda: self._pipeline.execute(raise_on_error=raise_on_error)
        )


def keys_of(client: Any, pattern: str) -> list[bytes]:
    """Return the keys of a server, or of all servers of a cluster, sorted."""
    everywhere = isinstance(client, redis.RedisCluster)
    where = {"target_nodes": redis.RedisCluster.PRIMARIES} if everywhere else {}
    return sorted(client.keys(pattern, **where))


def load_scripts(client: Any) -> None:
    """Make every script of the store known to the server."""
    bodies = [scripts.script(name)[0] for name in SCRIPTS.values()]
    if isinstance(client, redis.RedisCluster):  # whose pipelines take no such command
        for body in bodies:
            client.script_load(body)
        return
    pipeline = client.pipeline(transaction=False)
    for body in bodies:
        pipeline.script_load(body)
    pipeline.execute()


SCRIPTS = {
    scripts.script(name)[1]: name
    for name in (
        *scripts.MERGED,
        *(
            path.name.removesuffix(".lua")
            for path in (resources.files("pulsar_txn_spark.store.redis") / "lua").iterdir()
            if not path.name.startswith("_")
        ),
    )
}
"""Every script of the store, by its SHA1."""


def put_cursor(
    store: MetadataStore, segment: str, subscription: str, position: Position
) -> CursorAnswer:
    """Put a cursor elsewhere, as an administrator does who has just looked."""
    [seen] = store.subscriptions.read_cursors([segment], subscription)
    return store.subscriptions.reset_cursor(segment, subscription, CursorStart(position), seen)
