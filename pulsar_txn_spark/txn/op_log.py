"""Operation records, one by one or gathered into entries (PIP-160).

Gathered, records of any transactions of one TC become one entry, written in one step::

    entry:      magic (2 bytes) | version (2 bytes) | BatchedOpRecords
    reference:  magic (2 bytes) | version (2 bytes) | OpReference    in each transaction's own list

Magic and version are those of Pulsar's own transaction log. No protobuf message begins with these
bytes, so that a reader tells both forms apart, record by record. Gathering may be switched on
and off at any time. An entry goes with the last transaction that has a record in it.

A caller gets its answer when its record is stored, never before. So the crash points are few:

=============================  =================================================================
the process dies               what is there, and who repairs it
=============================  =================================================================
while records are gathered     none of them is stored, and nobody was told that one is
while the entry is written     all of them or none: it is one step of the store
before the callers are told    all of them; a caller that asks again stores its record once more,
                               under the same name, which a reader counts once
the transaction is over        a record of it is refused, those of others in the entry are kept
=============================  =================================================================
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from google.protobuf.message import DecodeError

from pulsar_txn_spark import steps
from pulsar_txn_spark.backports import StrEnum
from pulsar_txn_spark.errors import PulsarTxnError, StoreCorruptError, TransactionError
from pulsar_txn_spark.steps import Step
from pulsar_txn_spark.store.metadata_pb2 import BatchedOpRecords, OpReference
from pulsar_txn_spark.store.protocol import OpLogStore
from pulsar_txn_spark.store.records import (
    OpGroup,
    OpLogSettings,
    OpsAnswer,
    RawOps,
    TxnAnswer,
    TxnId,
)

MAGIC = b"\x0e\x01"
"""As a protobuf tag: field 1 of wire type 6, which there is none of."""
VERSION = b"\x00\x01"
_PREFIX = MAGIC + VERSION
_BATCH = "batch:"  # begins the name of a reference among a transaction's records
_ROOM = 4  # so many entries' worth of records may wait; whoever brings more waits, too


class Trigger(StrEnum):
    """Why an entry was written."""

    RECORDS = "records"
    SIZE = "size"
    DELAY = "delay"
    FORCE = "force"
    """Gathering was switched off or the log was closed, or a record fills an entry by itself."""


class OpLogObserver(Protocol):
    """Is told of every entry that was stored; called from the thread that wrote it."""

    def batch_stored(
        self, tc: int, trigger: Trigger, records: int, size: int, oldest_waited_s: float
    ) -> None:
        """Count an entry: its records, its bytes, and how long its oldest record had waited."""
        ...


@dataclass(frozen=True, slots=True)
class OpAddress:
    """Where an operation record is.

    Parameters
    ----------
    txn : TxnId
    entry : str
        Name of the entry; of a record that was written by itself, its own name.
    batch_index, batch_size : int
        Its place in the entry, from 0; and how many records that has.
    """

    txn: TxnId
    entry: str
    batch_index: int
    batch_size: int


@dataclass(frozen=True, slots=True)
class StoredOp:
    """An operation record as a reader finds it."""

    name: str
    record: bytes
    address: OpAddress


def read_ops(store: OpLogStore, txn: TxnId) -> list[StoredOp]:
    """Read a transaction's operation records, whichever way they were written, by name.

    Raises
    ------
    StoreCorruptError
        If a batch is missing or damaged, or was written by a later version of this package.
    """
    raw = store.read(txn)
    records: dict[str, StoredOp] = {}
    for name, value in raw.records.items():
        if not value.startswith(MAGIC):
            records[name] = StoredOp(name, value, OpAddress(txn, name, 0, 1))
            continue
        for stored in _referred(txn, name.removeprefix(_BATCH), value, raw):
            records[stored.name] = stored
    return [records[name] for name in sorted(records)]


def _referred(txn: TxnId, entry: str, reference: bytes, raw: RawOps) -> list[StoredOp]:
    try:
        wanted = OpReference.FromString(_payload(txn, reference))
        items = BatchedOpRecords.FromString(_payload(txn, raw.batches[entry])).items
    except (DecodeError, KeyError) as error:
        raise _corrupt(txn, f"batch {entry} is damaged ({error})") from error
    if len(items) != wanted.batch_size:
        raise _corrupt(txn, f"batch {entry} has {len(items)} records, expected {wanted.batch_size}")
    stored = []
    for index in wanted.batch_index:
        item = items[index] if index < len(items) else None
        if item is None or item.txn_id != txn.key:
            raise _corrupt(txn, f"record {index} of batch {entry} is not of this transaction")
        address = OpAddress(txn, entry, index, len(items))
        stored.append(StoredOp(item.name, item.record, address))
    return stored


def _payload(txn: TxnId, value: bytes) -> bytes:
    if value[: len(_PREFIX)] == _PREFIX:
        return value[len(_PREFIX) :]
    if value.startswith(MAGIC):
        version = int.from_bytes(value[len(MAGIC) : len(_PREFIX)], "big")
        raise _corrupt(
            txn, f"format version {version}, expected 1: use the version that wrote them"
        )
    raise _corrupt(txn, "a batch that is referred to is missing")


def _corrupt(txn: TxnId, what: str) -> StoreCorruptError:
    return StoreCorruptError(f"the operation records of transaction {txn}: {what}")


@dataclass(slots=True)
class _Request:
    """What one caller asked for; done when each of its records is stored."""

    done: Future[tuple[OpAddress, ...]]
    left: int
    addresses: list[OpAddress] = field(default_factory=list)
    error: BaseException | None = None

    def settle(self, address: OpAddress | None, error: BaseException | None) -> None:
        self.left -= 1
        self.error = self.error or error
        if address is not None:
            self.addresses.append(address)
        if self.left == 0:
            if self.error is not None:
                self.done.set_exception(self.error)
            else:
                self.done.set_result(tuple(self.addresses))


@dataclass(frozen=True, slots=True)
class _Pending:
    """A record that waits to be gathered."""

    txn: TxnId
    nonce: str
    name: str
    record: bytes
    since: float
    request: _Request


class OpLog:
    """Writes operation records, gathered where the TC's settings say so. For any thread.

    Parameters
    ----------
    store : OpLogStore
    require_open : callable
        Raises unless an answer says that a transaction was OPEN under the caller's nonce.
    observer : OpLogObserver, optional
    """

    def __init__(
        self,
        store: OpLogStore,
        require_open: Callable[[TxnId, TxnAnswer], None],
        observer: OpLogObserver | None = None,
    ) -> None:
        self._store = store
        self._require_open = require_open
        self.observer = observer
        self._own: OpLogSettings | None = None
        self._lock = threading.Lock()
        self._shards: dict[int, _Shard] = {}

    def configure(self, settings: OpLogSettings | None) -> None:
        """Let this process go by settings of its own; None = by those in the store."""
        with self._lock:
            self._own = settings
            for shard in self._shards.values():
                shard.configure(settings)

    def append(self, txn: TxnId, nonce: str, ops: Mapping[str, bytes]) -> tuple[OpAddress, ...]:
        """Store named records, and return once they are stored, with their places.

        Raises
        ------
        TransactionAbortedError, TransactionConflictError, FencedError, TransactionNotFoundError
            If the transaction is not OPEN under this nonce.
        StoreUnavailableError
            If the store did not answer: asking again stores each record once.
        """
        return self.submit(txn, nonce, ops).result()

    def submit(
        self, txn: TxnId, nonce: str, ops: Mapping[str, bytes]
    ) -> Future[tuple[OpAddress, ...]]:
        """Like :meth:`append`, without waiting; it waits only where too many are ahead."""
        for name, record in ops.items():
            if record.startswith(MAGIC) or name.startswith(_BATCH):
                raise ValueError(f"not an operation record: {name!r} would be taken for a batch")
        return self._shard(txn.tc).submit(txn, nonce, ops, self._write_single)

    def _shard(self, tc: int) -> _Shard:
        with self._lock:
            shard = self._shards.get(tc)
            if shard is None:
                shard = self._shards[tc] = _Shard(tc, self._write)
                shard.configure(self._own)
        return shard

    def gathers(self, tc: int) -> bool:
        """Tell whether the records of a TC are gathered into entries, as far as is known here."""
        return self._shard(tc).gathers

    def learn(self, tc: int, settings: OpLogSettings | None) -> None:
        """Go by what the store says of a TC."""
        self._shard(tc).learn(settings)

    def close(self) -> None:
        """Write what was gathered, and end the threads."""
        with self._lock:
            shards = list(self._shards.values())
            self._shards.clear()
        for shard in shards:
            shard.close()

    # -- writing -----------------------------------------------------------------------------

    def _write_single(
        self, txn: TxnId, nonce: str, ops: Mapping[str, bytes]
    ) -> tuple[tuple[OpAddress, ...], OpLogSettings | None]:
        answer = self._store.append(txn, nonce, ops)
        self._require_open(txn, answer.answers[0])
        return tuple(OpAddress(txn, name, 0, 1) for name in ops), answer.settings

    def _write(self, tc: int, batch: Sequence[_Pending], trigger: Trigger) -> OpsAnswer | None:
        """Store an entry, and tell each caller; an error goes to the callers, too."""
        entry = secrets.token_hex(8)
        owners: dict[tuple[TxnId, str], list[int]] = {}
        packed = BatchedOpRecords()
        for index, record in enumerate(batch):
            packed.items.add(txn_id=record.txn.key, name=record.name, record=record.record)
            owners.setdefault((record.txn, record.nonce), []).append(index)
        groups = [
            OpGroup(txn, nonce, _PREFIX + _reference(indices, len(batch)), len(indices))
            for (txn, nonce), indices in owners.items()
        ]
        value = _PREFIX + packed.SerializeToString(deterministic=True)
        waited_s = time.monotonic() - batch[0].since
        try:
            with steps.at(Step.OP_BATCH):
                result = self._store.append_batch(tc, entry, value, groups)
        except Exception as error:  # noqa: BLE001 - each caller gets it, and the thread goes on
            for record in batch:
                record.request.settle(None, error)
            return None
        for ((txn, _), indices), answer in zip(owners.items(), result.answers, strict=True):
            refusal = self._refusal(txn, answer)
            for index in indices:
                address = OpAddress(txn, entry, index, len(batch))
                batch[index].request.settle(None if refusal else address, refusal)
        if self.observer is not None:
            with suppress(Exception):  # who counts must not stop who writes
                self.observer.batch_stored(tc, trigger, len(batch), len(value), waited_s)
        return result

    def _refusal(self, txn: TxnId, answer: TxnAnswer) -> TransactionError | None:
        try:
            self._require_open(txn, answer)
        except TransactionError as error:
            return error
        return None


def _reference(indices: Sequence[int], size: int) -> bytes:
    reference = OpReference(batch_index=indices, batch_size=size)
    return reference.SerializeToString(deterministic=True)


_Single = Callable[
    [TxnId, str, Mapping[str, bytes]], tuple[tuple[OpAddress, ...], OpLogSettings | None]
]


class _Shard:
    """The records of one TC that wait, and the thread that writes them."""

    def __init__(
        self, tc: int, write: Callable[[int, Sequence[_Pending], Trigger], OpsAnswer | None]
    ) -> None:
        self._tc = tc
        self._write = write
        self._changed = threading.Condition()
        self._waiting: deque[_Pending] = deque()
        self._bytes = 0
        self._own: OpLogSettings | None = None
        self._settings = OpLogSettings()
        self._closing = False
        self._thread: threading.Thread | None = None

    def configure(self, own: OpLogSettings | None) -> None:
        with self._changed:
            self._own = own
            self._settings = own or OpLogSettings()
            self._changed.notify_all()

    @property
    def gathers(self) -> bool:
        with self._changed:
            return self._settings.enabled

    def learn(self, settings: OpLogSettings | None) -> None:
        """Go by what the store's last answer says."""
        with self._changed:
            if self._own is None:
                self._settings = settings or OpLogSettings()
                self._changed.notify_all()

    def submit(
        self, txn: TxnId, nonce: str, ops: Mapping[str, bytes], single: _Single
    ) -> Future[tuple[OpAddress, ...]]:
        done: Future[tuple[OpAddress, ...]] = Future()
        if not ops:
            done.set_result(())
            return done
        with self._changed:
            gathered = self._settings.enabled and not self._closing
            if gathered:
                self._gather(txn, nonce, ops, done)
        if not gathered:
            try:
                addresses, settings = single(txn, nonce, ops)
            except PulsarTxnError as error:
                done.set_exception(error)
                return done
            self.learn(settings)
            done.set_result(addresses)
        return done

    def _gather(
        self,
        txn: TxnId,
        nonce: str,
        ops: Mapping[str, bytes],
        done: Future[tuple[OpAddress, ...]],
    ) -> None:
        request = _Request(done, len(ops))
        for name, record in ops.items():
            while self._waiting and self._full():
                self._changed.wait()
            if self._thread is None:
                self._start()
            pending = _Pending(txn, nonce, name, record, time.monotonic(), request)
            self._waiting.append(pending)
            self._bytes += len(record)
            if len(self._waiting) == 1 or self._due():
                self._changed.notify_all()

    def _start(self) -> None:
        thread = threading.Thread(
            target=self._run, name=f"pulsar-txn-op-log-{self._tc}", daemon=True
        )
        thread.start()
        # Not before: one that did not start would be taken for one that runs.
        self._thread = thread

    def _full(self) -> bool:
        return (
            len(self._waiting) >= _ROOM * self._settings.max_records
            or self._bytes >= _ROOM * self._settings.max_bytes
        )

    def _due(self) -> Trigger | None:
        """Tell whether, and why, an entry is to be written now."""
        if len(self._waiting) >= self._settings.max_records:
            return Trigger.RECORDS
        if self._bytes >= self._settings.max_bytes:
            large = len(self._waiting[0].record) >= self._settings.max_bytes
            return Trigger.FORCE if large else Trigger.SIZE
        if self._waiting and (self._closing or not self._settings.enabled):
            return Trigger.FORCE
        if self._waiting and self._wait_s() <= 0:
            return Trigger.DELAY
        return None

    def _wait_s(self) -> float:
        return self._waiting[0].since + self._settings.max_delay_ms / 1000 - time.monotonic()

    def _run(self) -> None:
        while True:
            with self._changed:
                while (trigger := self._due()) is None:
                    if self._closing:
                        self._thread = None
                        return
                    self._changed.wait(self._wait_s() if self._waiting else None)
                batch = self._cut()
                self._changed.notify_all()  # there is room again
            result = self._write(self._tc, batch, trigger)
            if result is not None:
                self.learn(result.settings)

    def _cut(self) -> list[_Pending]:
        """Take the oldest records that fit into one entry, at least one."""
        batch: list[_Pending] = []
        size = 0
        while self._waiting and len(batch) < self._settings.max_records:
            length = len(self._waiting[0].record)
            if batch and size + length > self._settings.max_bytes:
                break
            batch.append(self._waiting.popleft())
            size += length
        self._bytes -= size
        return batch

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()
