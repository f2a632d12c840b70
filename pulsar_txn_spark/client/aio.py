"""The client for ``asyncio``: the same transactions, producers and consumers, awaited.

::

    from pulsar_txn_spark.client import aio

    async with await aio.connect({"store.url": "redis://localhost:6379"}) as service:
        invoices = await service.producer("invoices")
        async with service.new_txn() as txn:
            await invoices.send("3 apples", key="alice", txn=txn)

Each call runs on a thread of the client, so that the event loop waits for nothing. What is sent in
a transaction is queued, and goes to a thread together with the commit. A transaction of a few rows
needs a thread once.

A call that was begun goes on if the task that awaits it is cancelled. So if a commit was cancelled,
the transaction may be committed: commit again, or ask :meth:`AsyncTransaction.status`.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext, suppress
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from pulsar_txn_spark.backports import Self
from pulsar_txn_spark.client import session
from pulsar_txn_spark.client.consumer import Consumer, InitialPosition
from pulsar_txn_spark.client.message import Message, MessageId, Row
from pulsar_txn_spark.client.producer import Producer
from pulsar_txn_spark.client.session import Client
from pulsar_txn_spark.client.timeouts import require_wait
from pulsar_txn_spark.client.transaction import BYTES_GATHERED, ROWS_GATHERED, Transaction
from pulsar_txn_spark.errors import (
    AlreadyClosedError,
    OptionError,
    ReceiveTimeoutError,
    TransactionConflictError,
)
from pulsar_txn_spark.options import default_of
from pulsar_txn_spark.store.records import TxnId
from pulsar_txn_spark.txn.coordinator import TxnStatus

__all__ = ["AsyncClient", "AsyncConsumer", "AsyncProducer", "AsyncTransaction", "connect"]

THREADS = 32
"""Calls of a client that wait for store and log at the same time, unless told otherwise."""

_LONGEST_RECEIVE_MS = 1_000  # so long at most a thread waits for what nobody awaits any more
_DEFAULT_LEASE_MS: int = default_of("txn.timeoutMs")
_Result = TypeVar("_Result")
_Made = TypeVar("_Made", Producer, Consumer)


async def connect(
    options: Mapping[str, str] | None = None, *, threads: int = THREADS
) -> AsyncClient:
    """Connect to a store and a log; see :func:`pulsar_txn_spark.client.connect`.

    Parameters
    ----------
    options : mapping of str to str, optional
    threads : int
        So many calls wait for store and log at the same time, at least 1. Each consumer has one
        thread more.
    """
    if threads < 1:
        raise OptionError(f"threads: expected at least 1, found {threads}")
    pool = _Threads(threads, "pulsar-txn-client", "the client is closed: connect anew")
    try:
        client = await pool.run(partial(session.connect, options))
    except BaseException:
        pool.close()
        raise
    return AsyncClient(client, pool)


class _Threads:
    """Threads that make the calls of one client, or of one consumer."""

    def __init__(self, count: int, name: str, is_closed: str) -> None:
        self._is_closed = is_closed
        self._pool = ThreadPoolExecutor(count, name)
        self._pid = os.getpid()
        self._closed = False
        self._beginning = threading.Lock()  # held for moments only

    @property
    def closed(self) -> bool:
        """Whether no call can be begun any more."""
        return self._closed

    def begin(self, call: Callable[[], _Result]) -> asyncio.Future[_Result]:
        """Begin a call.

        Raises
        ------
        AlreadyClosedError
        RuntimeError
            If no thread could be started. The call is not made then, not later either.
        """
        if self._closed:
            raise AlreadyClosedError(self._is_closed)
        if os.getpid() != self._pid:
            raise AlreadyClosedError(
                f"the client was opened in process {self._pid}, this is {os.getpid()}: a fork has "
                "none of its threads. Connect after the fork"
            )
        wanted = [call]

        def run() -> _Result:
            with self._beginning:  # a thread may take it before it is known to be begun
                made = wanted.pop()
            return made()

        with self._beginning:
            try:
                return asyncio.get_running_loop().run_in_executor(self._pool, run)
            except BaseException:
                # The pool may have queued it all the same; its next thread must find nothing to do.
                wanted.clear()
                raise

    async def run(self, call: Callable[[], _Result]) -> _Result:
        """Await a call; it goes on if its task is cancelled."""
        return await asyncio.shield(self.begin(call))

    def close(self) -> None:
        """Begin nothing more; what was begun goes on."""
        self._closed = True
        self._pool.shutdown(wait=False)


def _begin_closing(close: Callable[[], None]) -> asyncio.Future[None]:
    """Begin to close something, on a thread of its own: others may be busy, or shut down."""
    pool = ThreadPoolExecutor(1, "pulsar-txn-closing")
    closing = asyncio.get_running_loop().run_in_executor(pool, close)
    pool.shutdown(wait=False)
    return closing


def _close_made(making: asyncio.Future[_Made]) -> None:
    """Close what was made for a task that was cancelled."""
    if making.exception() is None:
        _begin_closing(making.result().close)


class _AsyncClosing(ABC):
    """What is closed by ``close()``, or at the end of an ``async with`` block."""

    @abstractmethod
    async def close(self) -> None:
        """Close it; idempotent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class AsyncClient(_AsyncClosing):
    """A :class:`~pulsar_txn_spark.client.Client` for one event loop; made by :func:`connect`."""

    def __init__(self, client: Client, pool: _Threads) -> None:
        self._client = client
        self._pool = pool
        # Weak: those that are closed or dropped must not stay, with their messages.
        self._consumers: weakref.WeakSet[AsyncConsumer] = weakref.WeakSet()

    def new_txn(self, timeout_ms: int = _DEFAULT_LEASE_MS) -> AsyncTransaction:
        """Open a transaction; see :meth:`Client.new_txn`. Nothing is sent."""
        return AsyncTransaction(self._client.new_txn(timeout_ms), self._pool)

    async def producer(self, topic: str) -> AsyncProducer:
        """Make a producer; see :meth:`Client.producer`."""
        return AsyncProducer(await self._make(partial(self._client.producer, topic)), self._pool)

    async def consumer(
        self,
        topics: str | Sequence[str],
        subscription: str,
        initial_position: InitialPosition | str = InitialPosition.EARLIEST,
    ) -> AsyncConsumer:
        """Subscribe; see :meth:`Client.consumer`."""
        call = partial(self._client.consumer, topics, subscription, initial_position)
        consumer = AsyncConsumer(await self._make(call), self._pool)
        self._consumers.add(consumer)
        return consumer

    async def _make(self, call: Callable[[], _Made]) -> _Made:
        making = self._pool.begin(call)
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(_close_made)
            raise

    async def close(self) -> None:
        """Abort open transactions, and close producers and consumers; idempotent."""
        for consumer in list(self._consumers):
            consumer.stop()
        self._pool.close()
        # Begun before anything is awaited: it goes on if its task is cancelled.
        await asyncio.shield(_begin_closing(self._client.close))


class AsyncTransaction:
    """A :class:`~pulsar_txn_spark.client.Transaction`; made by :meth:`AsyncClient.new_txn`.

    As a context manager it is committed at the end of the block, and aborted if an exception, or a
    cancellation, leaves it. What is done in it is done in the order of the calls, also of those
    whose tasks were cancelled.
    """

    def __init__(self, txn: Transaction, pool: _Threads) -> None:
        self._txn = txn
        self._pool = pool
        self._queued: list[Callable[[], None]] = []
        self._queued_bytes = 0
        self._begun: asyncio.Future[None] | None = None  # the latest call that does something
        self._ending = False

    @property
    def ended(self) -> bool:
        """Whether it is known here to be committed or aborted."""
        return self._txn.ended

    def __repr__(self) -> str:
        return f"Async{self._txn!r}"

    async def id(self) -> TxnId:
        """Return the transaction's id; see :attr:`Transaction.id`."""
        return await self._pool.run(lambda: self._txn.id)

    async def status(self) -> TxnStatus:
        """Look up what has become of it; see :meth:`Transaction.status`."""
        return await self._pool.run(self._txn.status)

    async def flush(self) -> None:
        """Wait until everything that was sent so far lies in the log, invisible."""
        await self._after_queued(self._txn.flush)

    async def commit(self) -> None:
        """Let everything that was sent and acknowledged count; see :meth:`Transaction.commit`."""
        self._ending = True
        await self._after_queued(self._txn.commit)

    async def abort(self) -> None:
        """Take everything back; see :meth:`Transaction.abort`."""
        self._ending = True
        self._queued.clear()
        if self._txn.ended and self._pool.closed:
            await self._end_without_pool(self._txn.abort)
        else:
            await self._in_turn(self._txn.abort)

    async def queue(self, send: Callable[[Transaction], None], size: int) -> None:
        """Queue what sends a message of so many bytes; :meth:`AsyncProducer.send` calls it."""
        self._txn.require_open()
        if self._ending:
            raise TransactionConflictError(
                f"{self!r} takes nothing more: its commit or abort was begun. Begin a new one"
            )
        self._queued.append(partial(send, self._txn))
        self._queued_bytes += size
        if len(self._queued) >= ROWS_GATHERED or self._queued_bytes >= BYTES_GATHERED:
            await self._after_queued(lambda: None)

    async def acknowledge(self, call: Callable[[Transaction], None]) -> None:
        """Acknowledge something in it; :meth:`AsyncConsumer.acknowledge` calls it."""

        def run() -> None:
            # Its task may be cancelled, so that nobody sees the error.
            with self._txn.whole():
                call(self._txn)

        await self._in_turn(run)

    async def _after_queued(self, call: Callable[[], None]) -> None:
        queued, self._queued, self._queued_bytes = self._queued, [], 0

        def run() -> None:
            self._send(queued)
            call()

        await self._in_turn(run)

    def _send(self, queued: Iterable[Callable[[], None]]) -> None:
        """Hand over what was queued; without all of it, nothing is committed."""
        with self._txn.whole():
            for send in queued:
                send()

    async def _in_turn(self, call: Callable[[], None]) -> None:
        """Await a call that is begun when the one before has ended.

        That one may go on although its task was cancelled: no commit overtakes what it sends.
        """
        before = self._begun
        if before is None or before.done():
            begun = self._begin(call)
        else:
            # No task: whoever cancels all tasks of the loop would cancel this call, and commit.
            begun = asyncio.get_running_loop().create_future()
            before.add_done_callback(partial(self._begin_next, call, begun))
        self._begun = begun
        begun.add_done_callback(_noted)
        await asyncio.shield(begun)

    def _begin_next(
        self, call: Callable[[], None], begun: asyncio.Future[None], _: asyncio.Future[None]
    ) -> None:
        """Begin a call whose turn has come; it ends as what stands for it."""
        try:
            running = self._begin(call)
        except BaseException as error:
            begun.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            running.add_done_callback(partial(_end_as, begun))

    def _begin(self, call: Callable[[], None]) -> asyncio.Future[None]:
        try:
            return self._pool.begin(call)
        except AlreadyClosedError:
            raise  # the client aborts it as it closes; in a fork it is its parent's
        except BaseException as error:  # no thread could be started; an interrupt, too
            self._txn.fail(error)  # what was queued is gone with the call
            raise

    async def _end_without_pool(self, call: Callable[[], None]) -> None:
        """Await what ends it once more; not on the loop, as whoever ended it may be at work."""
        ending = _begin_closing(call)
        ending.add_done_callback(_noted)
        await asyncio.shield(ending)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ending = True
        queued, self._queued = self._queued, []
        if self._txn.ended and self._pool.closed:
            await self._end_without_pool(partial(self._txn.__exit__, kind, error, trace))
            return

        def end() -> None:
            if error is None:
                try:
                    self._send(queued)
                except BaseException as failed:
                    self._txn.__exit__(type(failed), failed, failed.__traceback__)
                    raise
            self._txn.__exit__(kind, error, trace)

        # A client that is closed aborts it by itself, and the block's own error says more.
        with nullcontext() if error is None else suppress(AlreadyClosedError):
            await self._in_turn(end)


def _end_as(begun: asyncio.Future[None], running: asyncio.Future[None]) -> None:
    """Let a future end as the call for which it stands."""
    if (error := running.exception()) is None:
        begun.set_result(None)
    else:
        begun.set_exception(error)


def _noted(call: asyncio.Future[Any]) -> None:
    """Spare the log an error that nobody awaits any more: whoever comes next hears of it."""
    if not call.cancelled():
        call.exception()


class AsyncProducer(_AsyncClosing):
    """A :class:`~pulsar_txn_spark.client.Producer`; made by :meth:`AsyncClient.producer`."""

    def __init__(self, producer: Producer, pool: _Threads) -> None:
        self._producer = producer
        self._pool = pool

    @property
    def topic(self) -> str:
        """Full name of the topic."""
        return self._producer.topic

    async def send(
        self,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: datetime | None = None,
        txn: AsyncTransaction | None = None,
    ) -> None:
        """Send a message; see :meth:`Producer.send`. In a transaction it is only queued."""
        row = Row.of(value, key, properties, event_time)
        send = partial(
            self._producer.send, value, key=key, properties=row.properties, event_time=event_time
        )
        if txn is None:
            await self._pool.run(send)
        else:
            await txn.queue(lambda own: send(txn=own), row.size)

    async def close(self) -> None:
        """Let go of its connections. Idempotent.

        A transaction in which something is queued fails then.
        """
        close = self._producer.close
        # Behind what was begun before, where there are threads for it.
        closing = _begin_closing(close) if self._pool.closed else self._pool.begin(close)
        await asyncio.shield(closing)


class AsyncConsumer(_AsyncClosing):
    """A :class:`~pulsar_txn_spark.client.Consumer`; made by :meth:`AsyncClient.consumer`.

    One task at a time receives. A message that came for a task that was cancelled meanwhile goes to
    the next one.
    """

    def __init__(self, consumer: Consumer, pool: _Threads) -> None:
        self._consumer = consumer
        self._pool = pool
        is_closed = f"the consumer of subscription {self.subscription!r} is closed: subscribe again"
        self._thread = _Threads(1, "pulsar-txn-consumer", is_closed)
        self._receivers: deque[asyncio.Future[None]] = deque()  # in line; the first is done
        self._receiving: asyncio.Future[Message] | None = None

    @property
    def subscription(self) -> str:
        """Name of the subscription."""
        return self._consumer.subscription

    @property
    def topics(self) -> tuple[str, ...]:
        """Full names of the topics."""
        return self._consumer.topics

    async def receive(self, timeout_ms: int | None = None) -> Message:
        """Return the next message, and wait for it if there is none; see :meth:`Consumer.receive`.

        The time that other tasks receive before counts as well.
        """
        require_wait(timeout_ms)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (timeout_ms / 1000 if timeout_ms is not None else float("inf"))
        timed_out = ReceiveTimeoutError(
            f"subscription {self.subscription!r}: no message within {timeout_ms} ms. That is no "
            "fault: receive again"
        )
        async with self._admitted(None if timeout_ms is None else timeout_ms / 1000) as in_time:
            if not in_time:
                raise timed_out
            if self._receiving is not None:
                self._consumer.hurry()  # it was begun for a task that was cancelled
            started = False  # at least once by this call, so that what is there comes
            while True:
                if self._receiving is None:
                    left_s = max(0.0, deadline - loop.time())
                    if started and left_s <= 0:
                        raise timed_out
                    started = True
                    wait_ms = round(min(left_s * 1000, _LONGEST_RECEIVE_MS))
                    self._receiving = self._thread.begin(partial(self._consumer.receive, wait_ms))
                    self._receiving.add_done_callback(_noted)
                await asyncio.wait({self._receiving})
                receiving, self._receiving = self._receiving, None
                try:
                    message = receiving.result()
                except ReceiveTimeoutError:
                    continue
                # One that came for a cancelled task, before the consumer went back, comes again.
                if not self._consumer.comes_again(message):
                    return message

    @asynccontextmanager
    async def _admitted(self, timeout_s: float | None) -> AsyncIterator[bool]:
        """Wait until no other task receives; yield whether that was in time."""
        admission = asyncio.get_running_loop().create_future()
        self._receivers.append(admission)  # behind those that have waited for it before
        self._admit_first()
        try:
            if not admission.done():
                await asyncio.wait({admission}, timeout=timeout_s)
            yield admission.done()
        finally:
            self._receivers.remove(admission)
            self._admit_first()

    def _admit_first(self) -> None:
        if self._receivers and not self._receivers[0].done():
            self._receivers[0].set_result(None)

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Yield messages, waiting for each, until the consumer is closed."""
        while True:
            try:
                message = await self.receive()
            except AlreadyClosedError:
                return
            yield message

    async def acknowledge(
        self,
        message: Message | MessageId | Iterable[Message | MessageId],
        txn: AsyncTransaction | None = None,
    ) -> None:
        """Acknowledge single messages; see :meth:`Consumer.acknowledge`."""
        await self._acknowledge(partial(self._consumer.acknowledge, message), txn)

    async def acknowledge_cumulative(
        self, message: Message | MessageId, txn: AsyncTransaction | None = None
    ) -> None:
        """Acknowledge up to a message; see :meth:`Consumer.acknowledge_cumulative`."""
        await self._acknowledge(partial(self._consumer.acknowledge_cumulative, message), txn)

    async def _acknowledge(
        self, call: Callable[[Transaction | None], None], txn: AsyncTransaction | None
    ) -> None:
        if txn is None:
            await self._pool.run(partial(call, None))
        else:
            await txn.acknowledge(call)

    async def negative_acknowledge(self, message: Message) -> None:
        """Have a message come again; see :meth:`Consumer.negative_acknowledge`."""
        await self._pool.run(partial(self._consumer.negative_acknowledge, message))

    async def redeliver_unacknowledged(self) -> None:
        """Go back to the cursor; see :meth:`Consumer.redeliver_unacknowledged`."""
        await self._pool.run(self._consumer.redeliver_unacknowledged)

    def stop(self) -> None:
        """Begin to receive nothing more; :meth:`AsyncClient.close` calls it."""
        self._thread.close()

    async def close(self) -> None:
        """Close it; what is not acknowledged comes again to the next consumer. Idempotent."""
        self.stop()
        await asyncio.shield(_begin_closing(self._consumer.close))
