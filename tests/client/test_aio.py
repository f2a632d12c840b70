"""The client for asyncio: the same guarantees, and no message lost to a cancelled task."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import redis

from pulsar_txn_spark.client import Message, TxnStatus, aio
from pulsar_txn_spark.client.consumer import Consumer
from pulsar_txn_spark.client.message import Row
from pulsar_txn_spark.client.reader import SubscriptionReader
from pulsar_txn_spark.client.transaction import Transaction
from pulsar_txn_spark.engine.topic_writers import TopicWriters
from pulsar_txn_spark.errors import (
    AlreadyClosedError,
    OptionError,
    ReceiveTimeoutError,
    SchemaError,
    TransactionAbortedError,
    TransactionConflictError,
)
from pulsar_txn_spark.segments.topic_name import TopicName
from tests.client.test_client import Service

PATIENCE_S = 20  # what comes, comes at once: this is how long a failing test takes
TASKS = 40

Scenario = Callable[[aio.AsyncClient], Coroutine[Any, Any, None]]
Run = Callable[[Scenario], None]


@pytest.fixture
def run(redis_path: str) -> Run:
    """Return what runs a scenario in an event loop, with a client that is closed after it."""

    def run_it(scenario: Scenario) -> None:
        async def connected() -> None:
            async with await aio.connect({"store.path": redis_path}, threads=4) as service:
                await asyncio.wait_for(scenario(service), PATIENCE_S)

        asyncio.run(connected())

    return run_it


@pytest.fixture
def service(redis_path: str, redis_client: redis.Redis) -> Iterator[Service]:
    del redis_client  # which begins with an empty store
    opened = Service(redis_path)
    yield opened
    opened.client.close()


async def received(consumer: aio.AsyncConsumer, count: int) -> list[Message]:
    return [await consumer.receive(timeout_ms=5_000) for _ in range(count)]


def values(messages: list[Message]) -> list[bytes | None]:
    return [message.value for message in messages]


def test_what_was_consumed_and_what_was_made_of_it_count_together(
    run: Run, service: Service
) -> None:
    source, target = service.topic(), service.topic(2)
    service.send(source, "a", "b", "c")

    async def scenario(client: aio.AsyncClient) -> None:
        async with (
            await client.consumer(source, "s") as consumer,
            await client.producer(target) as producer,
        ):
            for message in await received(consumer, 2):
                async with client.new_txn() as txn:
                    await producer.send((message.value or b"").upper(), txn=txn)
                    await consumer.acknowledge(message, txn)
                assert txn.ended
                assert await txn.status() is TxnStatus.COMMITTED
            [last] = await received(consumer, 1)
            with pytest.raises(ZeroDivisionError):  # noqa: PT012 — its block fails
                async with client.new_txn() as txn:
                    await producer.send("never", txn=txn)
                    await consumer.acknowledge_cumulative(last, txn)
                    raise ZeroDivisionError
            assert await txn.status() is TxnStatus.ABORTED
            [again] = await received(consumer, 1)
            assert again.message_id == last.message_id
            await consumer.negative_acknowledge(again)
            [again] = await received(consumer, 1)
            await consumer.redeliver_unacknowledged()
            [again] = await received(consumer, 1)
            assert again.message_id == last.message_id
            await consumer.acknowledge(again)

    run(scenario)
    assert sorted(service.visible(target)) == ["A", "B"]


def test_many_tasks_have_a_transaction_each(run: Run, service: Service) -> None:
    topic = service.topic(2)

    async def scenario(client: aio.AsyncClient) -> None:
        producer = await client.producer(topic)

        async def one(number: int) -> None:
            async with client.new_txn() as txn:
                await producer.send(f"{number}-1", key=f"k{number}", txn=txn)
                await txn.flush()
                await producer.send(f"{number}-2", key=f"k{number}", txn=txn)

        await asyncio.gather(*map(one, range(TASKS)))
        await producer.send("plain")

    run(scenario)
    expected = [f"{number}-{part}" for number in range(TASKS) for part in (1, 2)]
    assert sorted(service.visible(topic)) == sorted([*expected, "plain"])


def test_what_fills_the_queue_goes_to_the_log_before_the_commit(run: Run, service: Service) -> None:
    topic = service.topic()

    async def scenario(client: aio.AsyncClient) -> None:
        producer = await client.producer(topic)
        async with client.new_txn() as txn:
            await producer.send(b"x" * 600_000, txn=txn)
            assert txn._queued == []
            await producer.send("y", txn=txn)
            assert len(txn._queued) == 1

    run(scenario)
    assert len(service.visible(topic)) == 2


def test_a_message_that_cannot_be_sent_is_refused_at_once_and_a_failed_send_aborts(
    run: Run, service: Service
) -> None:
    topic = service.topic()

    async def scenario(client: aio.AsyncClient) -> None:
        producer = await client.producer(topic)
        txn = client.new_txn()
        with pytest.raises(SchemaError):
            await producer.send(3, txn=txn)  # type: ignore[arg-type]
        await producer.send("a", txn=txn)
        await txn.abort()
        with pytest.raises(TransactionAbortedError):
            await producer.send("b", txn=txn)
        with pytest.raises(AlreadyClosedError):  # noqa: PT012 — its block fails
            async with client.new_txn() as failed:
                await producer.send("c", txn=failed)
                await producer.close()
        assert await failed.status() is TxnStatus.ABORTED
        assert failed.ended

    run(scenario)
    assert service.visible(topic) == []


def test_a_commit_does_not_overtake_what_a_cancelled_task_was_sending(
    run: Run, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = service.topic()
    reached, go = threading.Event(), threading.Event()
    begun: list[object] = []
    append, begin = Transaction.append, aio._Threads.begin

    def slowly(txn: Transaction, name: TopicName, row: Row) -> None:
        if row.value == b"b":
            reached.set()
            assert go.wait(PATIENCE_S)
        append(txn, name, row)

    def noted(threads: aio._Threads, call: Callable[[], Any]) -> asyncio.Future[Any]:
        begun.append(call)
        return begin(threads, call)

    monkeypatch.setattr(Transaction, "append", slowly)
    monkeypatch.setattr(aio._Threads, "begin", noted)

    async def scenario(client: aio.AsyncClient) -> None:
        producer = await client.producer(topic)
        txn = client.new_txn()
        for value in ("a", "b"):
            await producer.send(value, txn=txn)
        flushing = asyncio.ensure_future(txn.flush())
        assert await asyncio.to_thread(reached.wait, PATIENCE_S)
        flushing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await flushing
        begun.clear()
        committing = asyncio.ensure_future(txn.commit())
        for _ in range(3):
            await asyncio.sleep(0)
        overtaking = list(begun)
        go.set()
        await committing
        assert not overtaking

    run(scenario)
    assert service.visible(topic) == ["a", "b"]


def test_a_transaction_that_lacks_what_was_queued_is_not_committed_by_the_next_try(
    run: Run, service: Service
) -> None:
    topic = service.topic()

    async def scenario(client: aio.AsyncClient) -> None:
        closed, other = await client.producer(topic), await client.producer(topic)
        txn = client.new_txn()
        await closed.send("a", txn=txn)
        await other.send("b", txn=txn)
        await closed.close()
        with pytest.raises(AlreadyClosedError):
            await txn.commit()
        with pytest.raises(TransactionAbortedError, match="something in it failed"):
            await txn.commit()

    run(scenario)
    assert service.visible(topic) == []


def test_a_message_that_came_for_a_cancelled_task_goes_to_the_next_one(
    run: Run, service: Service
) -> None:
    topic = service.topic()

    async def scenario(client: aio.AsyncClient) -> None:
        consumer = await client.consumer(topic, "s")
        waiting = asyncio.ensure_future(consumer.receive())
        await asyncio.sleep(0)
        assert consumer._receiving is not None
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        producer = await client.producer(topic)
        await producer.send("a")
        assert values(await received(consumer, 1)) == [b"a"]
        with pytest.raises(ReceiveTimeoutError, match="no message within 20 ms"):
            await consumer.receive(timeout_ms=20)
        with pytest.raises(OptionError):
            await consumer.receive(timeout_ms=-1)
        with pytest.raises(OptionError, match=r"timeout_ms: .* found '1s' \(str\)"):
            await consumer.receive(timeout_ms="1s")  # type: ignore[arg-type]

    run(scenario)


def test_tasks_that_receive_at_the_same_time_share_the_messages(run: Run, service: Service) -> None:
    topic = service.topic()
    service.send(topic, *map(str, range(TASKS)))

    async def scenario(client: aio.AsyncClient) -> None:
        consumer = await client.consumer(topic, "s")
        found = await asyncio.gather(*(received(consumer, 1) for _ in range(TASKS)))
        assert sorted(m.value or b"" for [m] in found) == sorted(b"%d" % n for n in range(TASKS))

    run(scenario)


def hold(go: threading.Event) -> None:
    assert go.wait(PATIENCE_S)


def test_what_is_sent_while_a_transaction_is_being_ended_is_refused(
    run: Run, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = service.topic()

    async def scenario(client: aio.AsyncClient) -> None:
        producer = await client.producer(topic)
        ends: list[Callable[[aio.AsyncTransaction], Awaitable[None]]] = [
            aio.AsyncTransaction.commit,
            aio.AsyncTransaction.abort,
            lambda txn: txn.__aexit__(None, None, None),
        ]
        for number, end in enumerate(ends):
            txn, go = client.new_txn(), threading.Event()
            await producer.send(f"{number}", txn=txn)
            txn._begun = txn._pool.begin(partial(hold, go))  # an earlier call, which the end awaits
            ending = asyncio.ensure_future(end(txn))
            await asyncio.sleep(0)
            with pytest.raises(TransactionConflictError, match="commit or abort was begun"):
                await producer.send("late", txn=txn)
            go.set()
            await ending

    run(scenario)
    assert service.visible(topic) == ["0", "2"]


def test_a_timeout_holds_while_another_task_waits_for_a_message(run: Run, service: Service) -> None:
    topic = service.topic()

    async def scenario(client: aio.AsyncClient) -> None:
        consumer = await client.consumer(topic, "s")
        waiting = asyncio.ensure_future(consumer.receive())
        await asyncio.sleep(0)
        for timeout_ms in (0, 1):
            with pytest.raises(ReceiveTimeoutError, match=f"within {timeout_ms} ms"):
                await asyncio.wait_for(consumer.receive(timeout_ms=timeout_ms), PATIENCE_S / 2)
        cancelled = asyncio.ensure_future(consumer.receive())
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        service.send(topic, "a", "b")
        assert (await waiting).value == b"a"
        assert values(await received(consumer, 1)) == [b"b"]

    run(scenario)


def test_a_timeout_holds_behind_a_task_that_is_next_in_line(run: Run, service: Service) -> None:
    topic = service.topic()
    service.send(topic, "a")

    async def scenario(client: aio.AsyncClient) -> None:
        consumer = await client.consumer(topic, "s")

        async def receive_again() -> None:
            await consumer.receive()
            # The lock is free, and the next task has been told, but it has not run yet.
            with pytest.raises(ReceiveTimeoutError):
                await consumer.receive(timeout_ms=1)

        again = asyncio.ensure_future(receive_again())
        await asyncio.sleep(0)
        waiting = asyncio.ensure_future(consumer.receive())
        await asyncio.wait_for(again, PATIENCE_S / 2)
        service.send(topic, "b")
        assert (await waiting).value == b"b"

    run(scenario)


def waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let no call end because its time is over; return what says that the first one waits."""
    monkeypatch.setattr(aio, "_LONGEST_RECEIVE_MS", 3_600_000)
    waiting, wait = threading.Event(), SubscriptionReader.wait

    def waits(reader: SubscriptionReader, timeout_s: float) -> None:
        waiting.set()
        wait(reader, timeout_s)

    monkeypatch.setattr(SubscriptionReader, "wait", waits)
    return waiting


async def cancelled_receive(consumer: aio.AsyncConsumer) -> None:
    """Begin to receive in a task, and cancel it."""
    receiving = asyncio.ensure_future(consumer.receive())
    await asyncio.sleep(0)
    assert consumer._receiving is not None
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving


def test_a_timeout_holds_while_a_thread_waits_for_a_task_that_was_cancelled(
    run: Run, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = service.topic()
    waits_for_ever(monkeypatch)

    async def scenario(client: aio.AsyncClient) -> None:
        consumer = await client.consumer(topic, "s")
        await cancelled_receive(consumer)
        with pytest.raises(ReceiveTimeoutError, match="within 1 ms"):
            await asyncio.wait_for(consumer.receive(timeout_ms=1), PATIENCE_S)
        service.send(topic, "a")
        assert values(await received(consumer, 1)) == [b"a"]

    run(scenario)


def test_what_is_there_comes_without_a_wait_behind_a_task_that_was_cancelled(
    run: Run, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = service.topic()
    waiting = waits_for_ever(monkeypatch)

    async def scenario(client: aio.AsyncClient) -> None:
        consumer = await client.consumer(topic, "s")
        await cancelled_receive(consumer)
        assert await asyncio.to_thread(waiting.wait, PATIENCE_S)
        service.send(topic, "a")
        message = await asyncio.wait_for(consumer.receive(timeout_ms=0), PATIENCE_S)
        assert message.value == b"a"

    run(scenario)


def test_a_fork_is_told_to_connect_anew_and_waits_for_no_thread_of_its_parent(
    run: Run, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, parent = service.topic(), os.getpid()

    def refuse(*_: object) -> None:
        raise AssertionError("nobody would run it")

    async def scenario(client: aio.AsyncClient) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: parent + 1)
            patch.setattr(ThreadPoolExecutor, "submit", refuse)
            with pytest.raises(AlreadyClosedError, match="Connect after the fork"):
                await client.producer(topic)

    run(scenario)


def test_a_commit_goes_on_though_its_task_was_cancelled(
    run: Run, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = service.topic()
    begun, go_on = threading.Event(), threading.Event()

    async def scenario(client: aio.AsyncClient) -> None:
        producer = await client.producer(topic)
        txn = client.new_txn()
        await producer.send("a", txn=txn)
        commit = txn._txn.commit

        def slowly() -> None:
            begun.set()
            assert go_on.wait(PATIENCE_S)
            commit()

        monkeypatch.setattr(txn._txn, "commit", slowly)
        committing = asyncio.ensure_future(txn.commit())
        assert await asyncio.to_thread(begun.wait, PATIENCE_S)
        committing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await committing
        go_on.set()
        await txn.commit()
        assert await txn.status() is TxnStatus.COMMITTED

    run(scenario)
    assert service.visible(topic) == ["a"]


def test_a_cancelled_task_leaves_its_transaction_aborted(run: Run, service: Service) -> None:
    topic = service.topic()

    async def scenario(client: aio.AsyncClient) -> None:
        producer = await client.producer(topic)
        sent = asyncio.Event()
        txn = client.new_txn()

        async def work() -> None:
            async with txn:
                await producer.send("a", txn=txn)
                await txn.flush()
                sent.set()
                await asyncio.Event().wait()

        task = asyncio.ensure_future(work())
        await sent.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await txn.status() is TxnStatus.ABORTED
        assert (await txn.id()).counter > 0

    run(scenario)
    assert service.visible(topic) == []


def test_who_iterates_ends_with_the_consumer_and_a_closed_client_says_so(
    run: Run, service: Service
) -> None:
    topic = service.topic()
    service.send(topic, "a")

    async def scenario(client: aio.AsyncClient) -> None:
        consumer, producer = await client.consumer(topic, "s"), await client.producer(topic)
        found: list[bytes | None] = []
        first = asyncio.Event()

        async def iterate() -> None:
            async for message in consumer:
                found.append(message.value)
                first.set()

        iterating = asyncio.ensure_future(iterate())
        await first.wait()
        await consumer.close()
        await iterating
        assert found == [b"a"]
        await client.close()
        calls: list[Callable[[], Awaitable[object]]] = [
            consumer.receive,
            lambda: producer.send("b"),
            lambda: client.producer(topic),
        ]
        for call in calls:
            with pytest.raises(AlreadyClosedError):
                await call()

    run(scenario)


@pytest.mark.parametrize("closes", [True, False])
def test_a_client_forgets_a_consumer_that_was_closed_or_dropped(
    run: Run, service: Service, closes: bool
) -> None:
    topic = service.topic()
    service.send(topic, "a")

    async def scenario(client: aio.AsyncClient) -> None:
        gone = threading.Event()

        async def receive_and_forget() -> None:
            consumer = await client.consumer(topic, "s")
            weakref.finalize(consumer._consumer, gone.set)
            await consumer.receive(timeout_ms=5_000)
            if closes:
                await consumer.close()

        await receive_and_forget()
        deadline = time.monotonic() + PATIENCE_S / 2
        gc.collect()
        while not gone.wait(0.01):  # its thread may have it for a moment
            assert time.monotonic() < deadline, "it stays, with its messages"
            gc.collect()

    run(scenario)


def test_closing_the_client_closes_its_consumers(run: Run, service: Service) -> None:
    topic = service.topic()

    async def scenario(client: aio.AsyncClient) -> None:
        consumer = await client.consumer(topic, "s")
        await client.close()
        assert consumer._consumer._closed
        assert consumer._thread._closed

    run(scenario)


def test_a_closing_that_is_cancelled_goes_on(
    run: Run, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = service.topic()
    ended = threading.Event()

    async def scenario(client: aio.AsyncClient) -> None:
        consumer, producer = await client.consumer(topic, "s"), await client.producer(topic)
        txn = client.new_txn()
        await producer.send("a", txn=txn)
        await txn.flush()
        close = client._client.close

        def close_it() -> None:
            close()
            ended.set()

        monkeypatch.setattr(client._client, "close", close_it)
        closing = asyncio.ensure_future(client.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert await asyncio.to_thread(ended.wait, PATIENCE_S / 2)
        assert consumer._consumer._closed
        assert txn.ended

    run(scenario)


def test_a_consumer_that_is_closed_says_so_and_not_that_its_client_is(
    run: Run, service: Service
) -> None:
    topic = service.topic()

    async def scenario(client: aio.AsyncClient) -> None:
        consumer = await client.consumer(topic, "s")
        await consumer.close()
        with pytest.raises(AlreadyClosedError, match="subscription 's' is closed: subscribe again"):
            await consumer.receive()

    run(scenario)


def test_a_task_that_is_cancelled_while_it_iterates_leaves_no_error_to_the_log(
    run: Run, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    topic = service.topic()

    async def scenario(client: aio.AsyncClient) -> None:
        consumer = await client.consumer(topic, "s")

        async def iterate() -> None:
            async for _ in consumer:
                pass

        iterating = asyncio.ensure_future(iterate())
        await asyncio.sleep(0)
        assert consumer._receiving is not None
        iterating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await iterating
        await consumer.close()
        await asyncio.wait({consumer._receiving})

    run(scenario)
    gc.collect()
    assert "never retrieved" not in caplog.text


def no_thread(*_: object) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("waits", [False, True])
def test_what_no_thread_could_be_started_for_is_missed_by_the_commit(
    run: Run, service: Service, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    topic = service.topic()

    async def scenario(client: aio.AsyncClient) -> None:
        producer = await client.producer(topic)
        txn = client.new_txn()
        go_on = threading.Event()
        if waits:
            monkeypatch.setattr(txn._txn, "flush", partial(hold, go_on))
            before = asyncio.ensure_future(txn.flush())
            await asyncio.sleep(0)
        await producer.send("a", txn=txn)
        with monkeypatch.context() as patch:
            patch.setattr(ThreadPoolExecutor, "submit", no_thread)
            flushing = asyncio.ensure_future(txn.flush())
            await asyncio.sleep(0)
            go_on.set()
            with pytest.raises(RuntimeError, match="can't start"):
                await flushing
        if waits:
            await before
        with pytest.raises(TransactionConflictError, match="can't start"):
            await producer.send("b", txn=txn)
        with pytest.raises(TransactionAbortedError, match="can't start"):
            await txn.commit()

    run(scenario)
    assert service.visible(topic) == []


async def cancel_all_but(kept: set[asyncio.Task[Any]]) -> None:
    """Cancel tasks as many a program does when it ends; those that it does not know first."""
    tasks = asyncio.all_tasks() - kept
    for task in sorted(tasks, key=lambda task: "test_" in repr(task.get_coro())):
        task.cancel()
    await asyncio.wait(tasks)


def test_a_call_that_waits_for_the_one_before_is_not_lost_with_the_tasks_of_its_loop(
    run: Run, service: Service
) -> None:
    topic = service.topic()

    async def scenario(client: aio.AsyncClient) -> None:
        kept, go = asyncio.all_tasks(), threading.Event()
        producer = await client.producer(topic)
        txn = client.new_txn()
        txn._begun = txn._pool.begin(partial(hold, go))
        await producer.send("a", txn=txn)
        flushing = asyncio.ensure_future(txn.flush())
        await asyncio.sleep(0)
        await cancel_all_but(kept)
        assert flushing.cancelled()
        go.set()
        await txn.commit()

    run(scenario)
    assert service.visible(topic) == ["a"]


def test_what_a_call_is_refused_with_behind_another_one_reaches_who_awaits_it(
    run: Run, service: Service
) -> None:
    topic = service.topic()

    async def scenario(client: aio.AsyncClient) -> None:
        producer, go = await client.producer(topic), threading.Event()
        txn = client.new_txn()
        txn._begun = txn._pool.begin(partial(hold, go))
        await producer.send("a", txn=txn)
        await producer.close()
        flushing = asyncio.ensure_future(txn.flush())
        await asyncio.sleep(0)
        go.set()
        with pytest.raises(AlreadyClosedError, match="the producer of"):
            await flushing

    run(scenario)


def test_tasks_that_are_cancelled_in_line_do_not_make_way_before_the_one_that_receives(
    run: Run, service: Service
) -> None:
    topic = service.topic()

    async def scenario(client: aio.AsyncClient) -> None:
        consumer = await client.consumer(topic, "s")

        async def receive() -> bytes | None:
            return (await consumer.receive(timeout_ms=PATIENCE_S * 1000)).value

        receiving = asyncio.ensure_future(receive())
        await asyncio.sleep(0)
        kept = asyncio.all_tasks()
        waiting = asyncio.ensure_future(receive())
        await asyncio.sleep(0)
        await cancel_all_but(kept)
        assert waiting.cancelled()
        others = [asyncio.ensure_future(receive()) for _ in range(2)]
        await asyncio.sleep(0)
        service.send(topic, "a", "b", "c")
        assert await asyncio.gather(receiving, *others) == [b"a", b"b", b"c"]

    run(scenario)


def test_what_is_being_closed_is_closed_though_all_tasks_are_cancelled(
    run: Run, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = service.topic()
    closed = threading.Event()
    close = Consumer.close

    def close_it(consumer: Consumer) -> None:
        close(consumer)
        closed.set()

    monkeypatch.setattr(Consumer, "close", close_it)

    async def scenario(client: aio.AsyncClient) -> None:
        consumer, kept = await client.consumer(topic, "s"), asyncio.all_tasks()
        closing = asyncio.ensure_future(consumer.close())
        await asyncio.sleep(0)
        await cancel_all_but(kept)
        assert closing.cancelled()
        assert await asyncio.to_thread(closed.wait, PATIENCE_S / 2)

    run(scenario)


def test_a_client_is_closed_also_behind_the_threads_of_its_loop(run: Run, service: Service) -> None:
    topic = service.topic()

    async def scenario(client: aio.AsyncClient) -> None:
        consumer, other = await client.consumer(topic, "s"), await client.consumer(topic, "t")
        await asyncio.get_running_loop().shutdown_default_executor()
        await consumer.close()
        await client.close()
        assert consumer._consumer._closed
        assert other._consumer._closed

    run(scenario)


def test_a_call_for_which_no_thread_could_be_started_is_not_made_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []

    async def scenario() -> None:
        threads = aio._Threads(1, "test", "closed")
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_thread)
            with pytest.raises(RuntimeError, match="can't start"):
                await threads.run(partial(made.append, "refused"))
        await threads.run(partial(made.append, "next"))
        threads.close()

    asyncio.run(scenario())
    assert made == ["next"]


def test_a_receive_for_which_no_thread_could_be_started_takes_no_message(
    run: Run, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = service.topic()
    service.send(topic, "a", "b")

    async def scenario(client: aio.AsyncClient) -> None:
        consumer = await client.consumer(topic, "s")
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_thread)
            with pytest.raises(RuntimeError, match="can't start"):
                await consumer.receive(timeout_ms=5_000)
        assert values(await received(consumer, 2)) == [b"a", b"b"]

    run(scenario)


def test_what_was_made_for_a_task_that_was_cancelled_is_closed(
    run: Run, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = service.topic()
    go, closed = threading.Event(), threading.Event()
    close = Consumer.close

    def close_it(consumer: Consumer) -> None:
        close(consumer)
        closed.set()

    monkeypatch.setattr(Consumer, "close", close_it)

    async def scenario(client: aio.AsyncClient) -> None:
        make = client._client.consumer

        def slowly(*args: Any) -> Consumer:
            hold(go)
            return make(*args)

        monkeypatch.setattr(client._client, "consumer", slowly)
        making = asyncio.ensure_future(client.consumer(topic, "s"))
        await asyncio.sleep(0)
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making
        go.set()
        assert await asyncio.to_thread(closed.wait, PATIENCE_S / 2)

    run(scenario)


def test_closing_and_aborting_are_no_errors_behind_the_end_of_the_client(
    run: Run, service: Service
) -> None:
    topic = service.topic()

    async def scenario(client: aio.AsyncClient) -> None:
        consumer, producer = await client.consumer(topic, "s"), await client.producer(topic)
        txn, committed = client.new_txn(), client.new_txn()
        for open_one in (txn, committed):
            await producer.send("a", txn=open_one)
        await committed.commit()
        for _ in range(2):
            await client.close()
            await producer.close()
            await consumer.close()
            await txn.abort()
            with pytest.raises(TransactionConflictError, match="was committed before"):
                await committed.abort()
            async with committed:
                pass

    run(scenario)
    assert service.visible(topic) == ["a"]


@pytest.mark.parametrize("heard", [True, False])
def test_the_error_of_a_block_is_raised_though_its_client_is_closed(
    run: Run, service: Service, monkeypatch: pytest.MonkeyPatch, heard: bool
) -> None:
    topic = service.topic()

    async def scenario(client: aio.AsyncClient) -> None:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 — its block fails
            async with await client.producer(topic) as producer, client.new_txn() as txn:
                await producer.send("a", txn=txn)
                with monkeypatch.context() as patch:
                    if not heard:  # as while the client is being closed
                        patch.setattr(client._client, "close", lambda: None)
                    await client.close()
                assert txn.ended is heard
                raise ZeroDivisionError

    run(scenario)
    assert service.visible(topic) == []


@pytest.mark.parametrize("by", ["block", "abort"])
def test_the_loop_does_not_wait_for_a_commit_that_is_not_done_with_closing(
    run: Run, service: Service, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    topic = service.topic()
    entered, goes_on = threading.Event(), threading.Event()
    in_time: list[bool] = []
    close = TopicWriters.close

    def close_slowly(writers: TopicWriters) -> None:
        close(writers)
        if not entered.is_set():
            entered.set()
            in_time.append(goes_on.wait(PATIENCE_S / 2))

    monkeypatch.setattr(TopicWriters, "close", close_slowly)

    async def end(txn: aio.AsyncTransaction) -> None:
        if by == "abort":
            await txn.abort()
        else:
            await txn.__aexit__(ZeroDivisionError, ZeroDivisionError(), None)

    async def scenario(client: aio.AsyncClient) -> None:
        producer, txn = await client.producer(topic), client.new_txn()
        await producer.send("a", txn=txn)
        committing = asyncio.ensure_future(txn.commit())
        await asyncio.to_thread(entered.wait, PATIENCE_S / 2)
        assert txn.ended
        committing.cancel()
        ending = asyncio.ensure_future(end(txn))
        for _ in range(4):
            await asyncio.sleep(0)
        goes_on.set()
        if by == "abort":
            with pytest.raises(TransactionConflictError, match="was committed before"):
                await ending
        else:
            await ending

    run(scenario)
    assert in_time == [True]
    assert service.visible(topic) == ["a"]


def test_a_producer_is_closed_behind_what_it_sends(run: Run, service: Service) -> None:
    topic, go = service.topic(), threading.Event()

    async def scenario(client: aio.AsyncClient) -> None:
        producer = await client.producer(topic)
        busy = [client._pool.begin(partial(go.wait, PATIENCE_S / 2)) for _ in range(4)]
        sending = asyncio.ensure_future(producer.send("a"))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(producer.close())
        await asyncio.sleep(0)
        closing_elsewhere = {
            thread for thread in threading.enumerate() if "pulsar-txn-closing" in thread.name
        }
        for thread in closing_elsewhere:  # so that it would have overtaken
            await asyncio.to_thread(thread.join)
        go.set()
        await asyncio.gather(sending, closing, *busy)

    run(scenario)
    assert service.visible(topic) == ["a"]


def test_a_block_whose_client_is_closed_meanwhile_does_not_seem_to_commit(
    run: Run, service: Service
) -> None:
    topic = service.topic()

    async def scenario(client: aio.AsyncClient) -> None:
        producer = await client.producer(topic)
        with pytest.raises(  # noqa: PT012 — its block fails
            TransactionAbortedError, match="its client was closed"
        ):
            async with client.new_txn() as txn:
                await producer.send("a", txn=txn)
                await client.close()

    run(scenario)
    assert service.visible(topic) == []


def test_options_are_checked_before_anything_is_connected() -> None:
    with pytest.raises(OptionError, match="threads"):
        asyncio.run(aio.connect(threads=0))
    with pytest.raises(OptionError):
        asyncio.run(aio.connect({"no.such.option": "1"}))
