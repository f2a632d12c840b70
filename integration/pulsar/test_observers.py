"""Clients of every kind observe gated topics: each sees what is committed, in order, and no more.

The table `SCENARIOS` says what happens to a topic; the observers of `integration.support.observers`
look on. test_shim.py runs the cheap ones of it.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pulsar as pulsar_client
import pytest

from integration.support.admin_rest import path_of
from integration.support.cutting_proxy import CuttingProxy, at
from integration.support.drawing import repeatable
from integration.support.gated import Gated, await_
from integration.support.killed import killed
from integration.support.observed_topic import KEYS, ObservedTopic, routed
from integration.support.observers import (
    AllObservers,
    Observers,
    PythonObservers,
    go_observers,
    java_observers,
    shown,
)
from integration.support.random_segments import RandomHistory
from pulsar_txn_spark import client
from pulsar_txn_spark.backends.pulsar.ledgers import ManagedLedger
from pulsar_txn_spark.backends.pulsar.pulsar_pb2 import BaseCommand
from pulsar_txn_spark.client import Transaction
from pulsar_txn_spark.errors import FencedError, PulsarTxnError, TransactionConflictError
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.steps import Step
from pulsar_txn_spark.store.records import EndedBy
from pulsar_txn_spark.testing.pulsar_server import PulsarServer
from pulsar_txn_spark.testing.redis_server import RedisServer
from pulsar_txn_spark.txn.coordinator import TxnStatus

pytestmark = pytest.mark.skipif(
    shutil.which("mvn") is None, reason="there is no 'mvn' on the PATH to fetch a broker with"
)
SMALL_LEDGERS = {
    "managedLedgerMaxEntriesPerLedger": "10",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "maxMessageSize": "131072",
}
CHUNKED = random.Random(1).randbytes(300_000)
HISTORIES = int(os.environ.get("OBSERVED_HISTORIES", "3"))
ROUNDS = 4  # with two kills each; a broker takes ten seconds to start
WRITING = (Step.BEGIN, Step.INTENT, Step.PIN, Step.APPEND)
ENDING = (Step.OP_RECORD, Step.DECIDE, Step.MATERIALIZE)


# --- the table ------------------------------------------------------------------------------------


def open_then_committed(topic: ObservedTopic) -> None:
    first, second = topic.begin(), topic.begin()
    topic.send(first, "1", "2")
    topic.send(second, "3")
    topic.send(None, "outside")
    topic.sees()
    second.commit()  # behind an open one
    topic.sees()
    first.commit()
    topic.sees("1", "2", "3", "outside")


def aborted(topic: ObservedTopic) -> None:
    topic.commit("1")
    lost = topic.begin()
    topic.send(lost, "never")
    topic.commit("2")
    topic.sees("1")
    lost.abort()
    topic.sees("1", "2")


def aborted_at_the_logs_end(topic: ObservedTopic) -> None:
    topic.commit("1")
    topic.abort("never")
    topic.sees("1")
    topic.watch(topic.segment)  # whoever comes now
    topic.sees("1")
    topic.commit("2")
    topic.sees("1", "2")


def lost_to_another_attempt(topic: ObservedTopic) -> None:
    txn = topic.begin()
    before, after = topic.other_attempt(txn), topic.other_attempt(txn)
    topic.write(before, "never")
    topic.send(txn, "1")
    topic.write(after, "neither")
    topic.sees()
    txn.commit()
    topic.sees("1")
    topic.unload()
    topic.watch(topic.segment)
    topic.sees("1")


def written_late(topic: ObservedTopic) -> None:
    zombie, committed = topic.begin(), topic.begin()
    attempt = topic.other_attempt(committed)
    topic.write(attempt, "never")
    topic.send(zombie, "never")
    topic.send(committed, "1")
    topic.components.coordinator.abort(zombie.id, EndedBy.ADMIN, cause="a test")
    committed.commit()
    topic.sees("1")
    with pytest.raises(FencedError):
        topic.send(zombie, "too late")
    with pytest.raises(FencedError):
        topic.write(attempt, "too late")
    topic.sees("1")


def unloaded(topic: ObservedTopic) -> None:
    lost, kept = topic.begin(), topic.begin()
    topic.send(lost, "never")
    topic.send(kept, "1")
    topic.unload()
    topic.sees()
    topic.send(kept, "2")
    lost.abort()
    kept.commit()
    topic.unload()
    topic.sees("1", "2")
    topic.watch(topic.segment)
    topic.sees("1", "2")


def broker_killed(topic: ObservedTopic) -> None:
    lost, kept = topic.begin(), topic.begin()
    topic.commit("1")
    topic.send(lost, "never")
    topic.send(kept, "2")
    topic.abort("nor this")
    topic.interrupt()
    topic.gated.server.restart(crash=True)
    topic.sees("1")
    topic.send(kept, "3")
    kept.commit()
    lost.abort()
    topic.sees("1", "2", "3")


def decided_while_the_broker_was_away(topic: ObservedTopic) -> None:
    lost, kept = topic.begin(), topic.begin()
    topic.send(lost, "never")
    topic.send(kept, "1")
    topic.sees()
    topic.interrupt()
    topic.gated.server.pause(crash=True)
    try:
        lost.abort()
        topic.decide(kept)
    finally:
        topic.gated.server.resume()
    topic.sees("1")


def redis_killed(topic: ObservedTopic) -> None:
    lost, kept = topic.begin(), topic.begin()
    topic.commit("1")
    topic.send(lost, "never")
    topic.send(kept, "2")
    store = topic.gated.store
    assert isinstance(store, RedisServer)
    store.kill()
    topic.unload()
    store.start()
    topic.sees("1")
    lost.abort()
    kept.commit()
    topic.sees("1", "2")


def killed_at_any_moment(topic: ObservedTopic) -> None:
    """Servers die at steps that are drawn, while transactions write and while they end."""
    with repeatable() as drawn:
        in_rounds(topic, drawn)


def in_rounds(topic: ObservedTopic, drawn: random.Random) -> None:
    topic.interrupt()
    committed: list[str] = []
    for number in range(ROUNDS):
        txns = [topic.begin() for _ in range(2)]
        sent: list[tuple[Transaction, str]] = []
        failed: set[Transaction] = set()
        with killed(topic.gated, drawn, WRITING):
            for value in range(4):
                txn = drawn.choice(txns)
                sent.append((txn, f"{number}.{value}"))
                try:
                    topic.send(*sent[-1])
                except PulsarTxnError:
                    failed.add(txn)  # parts of it may lie in the log
        topic.sees(*committed)
        with killed(topic.gated, drawn, ENDING):
            for txn in txns:
                ends = txn.abort if txn in failed or drawn.random() < 0.3 else txn.commit
                with contextlib.suppress(PulsarTxnError):  # is_committed() finds out
                    ends()
        committed += [value for txn, value in sent if is_committed(txn)]
        topic.sees(*committed)
    topic.commit("last")
    topic.sees(*committed, "last")


def is_committed(txn: Transaction) -> bool:
    """Abort a transaction unless it has ended; return whether it was committed."""
    with contextlib.suppress(TransactionConflictError):
        txn.abort()
    return txn.status() in (TxnStatus.COMMITTING, TxnStatus.COMMITTED)


def ledgers_rolled_over(topic: ObservedTopic) -> None:
    long, lost = topic.begin(), topic.begin()
    topic.send(lost, "never")
    for number in range(15):
        topic.send(long, f"long {number}")
        topic.commit(f"{number}")
        topic.abort("never")
    assert len(topic.gated.admin.managed_ledger(topic.segment).ledgers) > 5
    topic.sees()
    lost.abort()
    long.commit()
    topic.sees(*(value for n in range(15) for value in (f"long {n}", f"{n}")))


def trimmed(topic: ObservedTopic) -> None:
    path = path_of(topic.segment)
    topic.rest("POST", f"{path}/deduplicationEnabled", False)  # its cursor holds data too
    topic.commit("gone")
    topic.abort("never")
    topic.sees("gone")  # all cursors are past it
    topic.unload()
    pending = topic.begin()
    topic.send(pending, "1")
    topic.abort("nor this")
    topic.unload()
    topic.commit("2")
    segment = topic.components.topics.require(TopicName.parse(topic.topic)).active[0].ref
    log = topic.components.log
    ledgers = topic.gated.admin.managed_ledger(topic.segment).ledgers
    deadline = time.monotonic() + 60
    while log.trim(segment, ledgers[0].last) < ledgers[0].last:
        assert time.monotonic() < deadline
        time.sleep(0.2)  # the broker removes ledgers in the background, and tells nobody
    topic.watch(topic.segment)
    topic.sees()
    pending.commit()
    topic.sees("1", "2")


def split_and_merged(topic: ObservedTopic) -> None:
    txn, lost = topic.begin(), topic.begin()
    topic.send(txn, "1")
    topic.send(lost, "never")
    topic.seal(topic.segment)
    split = topic.admin.split_segment(topic.topic, "0000-ffff-0")
    topic.send(txn, "2")
    topic.send(lost, "never")
    children = [one.ref.log_name for one in split.active]
    topic.seal(*children)
    merged = topic.admin.merge_segments(topic.topic, [one.descriptor for one in split.active])
    topic.send(txn, "3")
    (last,) = [one.ref.log_name for one in merged.active]
    for segment in (*children, last):
        topic.watch(segment)
    topic.sees()
    lost.abort()
    topic.sees()
    txn.commit()
    topic.see(
        {
            topic.segment: {key: ["1"] for key in KEYS},
            **{one: {key: ["2"] for key in keys} for one, keys in routed(split).items()},
            last: {key: ["3"] for key in KEYS},
        }
    )


def sealed_behind_a_rollover(topic: ObservedTopic) -> None:
    """The LAC is in a ledger without entries then, and Readers are told of a last message."""

    def managed_ledger() -> ManagedLedger:
        return topic.gated.admin.managed_ledger(topic.segment)

    topic.commit("1")
    txn = topic.begin()
    topic.send(txn, "2")
    more: list[str] = []
    while managed_ledger().entries < int(SMALL_LEDGERS["managedLedgerMaxEntriesPerLedger"]):
        more.append(f"more {len(more)}")
        topic.send(txn, more[-1], keys=KEYS[:1])
    await_(lambda: managed_ledger().last_ledger > managed_ledger().last.ledger)
    topic.seal(topic.segment)
    topic.admin.seal_segment(topic.topic, "0000-ffff-0")
    stats = topic.rest("GET", f"{path_of(topic.segment)}/internalStats")
    assert Position.parse(stats["lastConfirmedEntry"]).entry < 0
    topic.see({}, most={topic.segment: {key: ["1"] for key in KEYS}}, source=False)
    txn.commit()
    rows = {key: ["1", "2"] for key in KEYS} | {KEYS[0]: ["1", "2", *more]}
    topic.see({topic.segment: rows})
    topic.watch(topic.segment)
    topic.see({topic.segment: rows})


def sent_twice(topic: ObservedTopic) -> None:
    """A receipt is lost, and the entry is sent again; the broker knows it by its number."""
    proxy = CuttingProxy(topic.gated.server.service_url)
    topic.cleanup.callback(proxy.close)
    topic.cleanup.enter_context(
        service := client.connect({**topic.gated.options, "service.url": proxy.url})
    )
    proxy.on_frame = at(BaseCommand.SEND_RECEIPT, 2, "before")
    producer = service.producer(topic.topic)
    txn, lost = service.new_txn(), topic.begin()
    for value in ("1", "2"):
        for key in KEYS:
            producer.send(value, key=key, txn=txn)
        producer.flush()
    assert proxy.connections > 1
    topic.send(lost, "never")
    topic.sees()
    lost.abort()
    txn.commit()
    topic.sees("1", "2")


def delayed(topic: ObservedTopic) -> None:
    """Another client delays rows of its own, in front of open and lost ones.

    The source reads up to the first pin, which knows nothing of other clients' rows.
    """
    producer = topic.plain_producer()
    lost, kept = topic.begin(), topic.begin()
    producer.send(b"before", partition_key="x", deliver_after=timedelta(milliseconds=100))
    topic.sees(x=["before"])
    topic.send(lost, "never")
    producer.send(b"between", partition_key="y", deliver_after=timedelta(milliseconds=100))
    topic.send(kept, "1")
    producer.send(b"behind", partition_key="z", deliver_after=timedelta(milliseconds=500))
    topic.sees(x=["before"], source=False)
    lost.abort()
    topic.sees(x=["before"], y=["between"], source=False)
    kept.commit()
    topic.sees("1", x=["before"], y=["between"], z=["behind"])


def in_chunks(topic: ObservedTopic) -> None:
    """Another client sends messages in chunks, and ours are as large as one entry may be."""
    # Go's client cuts those short that pulsar-client has not compressed.
    producer = topic.plain_producer(
        chunking_enabled=True, compression_type=pulsar_client.CompressionType.LZ4
    )
    _, large = shown("x", CHUNKED)
    ours = "long" * 25_000
    producer.send(CHUNKED, partition_key="x")
    txn = topic.begin()
    topic.send(txn, ours, keys=("a",))
    producer.send(CHUNKED, partition_key="x")
    topic.sees(x=[large], source=False)
    txn.commit()
    topic.abort(ours)
    producer.send(CHUNKED, partition_key="x")
    topic.sees(a=[shown("a", ours.encode())[1]], x=[large] * 3)


def compacted(topic: ObservedTopic) -> None:
    """A tombstone that was aborted removes nothing."""
    path = f"{path_of(topic.segment)}/compaction"

    def compact() -> None:
        topic.rest("PUT", path)
        await_(lambda: topic.rest("GET", path)["status"] == "SUCCESS", 60)

    topic.commit("1", "2")
    topic.commit("gone", keys=("x",))
    topic.commit("", keys=("x",))
    topic.abort("never", "")
    pending = topic.begin()
    topic.send(pending, "3")
    topic.sees("1", "2", x=["gone", ""])
    compact()
    topic.sees("1", "2", x=["gone", ""])
    topic.watch(topic.segment)
    topic.sees("1", "2", x=["gone", ""])
    pending.commit()
    topic.abort("nor this")
    topic.sees("1", "2", "3", x=["gone", ""])
    compact()
    topic.watch(topic.segment)
    topic.sees("1", "2", "3", x=["gone", ""])
    topic.commit("4")
    topic.sees("1", "2", "3", "4", x=["gone", ""])


def cursors_reset(topic: ObservedTopic) -> None:
    """Messages come again, and observers know of no reason: each of them has to say so."""
    topic.commit("1")
    topic.sees("1")
    path = path_of(topic.segment)
    found = topic.rest("GET", f"{path}/stats")["subscriptions"]
    # Of two consumers for failover the other one may get it now.
    kinds = ("Exclusive", "Shared", "Key_Shared")
    reset = [name for name, one in found.items() if one["durable"] and one["type"] in kinds]
    for name in reset:
        topic.rest("POST", f"{path}/subscription/{name}/resetcursor/0")

    def complaints() -> int:
        return sum("delivered twice" in one for one in topic.disagreements())

    await_(lambda: complaints() == len(reset) > 0)


def changed_at_random(topic: ObservedTopic, nth: int = 0) -> None:
    """Segments are split, merged and sealed in open transactions, in an order that is drawn."""
    with repeatable(nth) as drawn:
        RandomHistory(topic, drawn).run()


CHEAP = (open_then_committed, aborted_at_the_logs_end, lost_to_another_attempt, cursors_reset)
SCENARIOS: tuple[Callable[[ObservedTopic], None], ...] = (
    *CHEAP,
    aborted,
    written_late,
    unloaded,
    ledgers_rolled_over,
    trimmed,
    split_and_merged,
    sealed_behind_a_rollover,
    sent_twice,
    delayed,
    in_chunks,
    compacted,
    redis_killed,
    broker_killed,
    decided_while_the_broker_was_away,
    killed_at_any_moment,
)


def name_of(scenario: Callable[[ObservedTopic], None]) -> str:
    return scenario.__name__


# --- and who looks on -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gated]:
    folder = tmp_path_factory.mktemp("redis")
    with (
        RedisServer(folder) as store,
        PulsarServer(store_url=store.url, settings=SMALL_LEDGERS, short_lived=True) as server,
    ):
        yield Gated.of(server, store)


@pytest.fixture(scope="module")
def observers(gated: Gated) -> Iterator[AllObservers]:
    url = gated.server.service_url
    with contextlib.ExitStack() as stack:
        languages: list[Observers] = [
            stack.enter_context(java_observers(url)),
            stack.enter_context(PythonObservers(url)),
        ]
        go = go_observers(url)
        if go is not None:
            languages.append(stack.enter_context(go))
        yield AllObservers(languages)


@pytest.mark.long
@pytest.mark.parametrize("scenario", SCENARIOS, ids=name_of)
def test_every_observer_sees_what_is_committed_in_order_and_no_more(
    gated: Gated, observers: AllObservers, scenario: Callable[[ObservedTopic], None]
) -> None:
    with contextlib.ExitStack() as cleanup:
        scenario(ObservedTopic(gated, observers, cleanup))


@pytest.mark.long
@pytest.mark.parametrize("nth", range(HISTORIES))
def test_every_observer_sees_what_is_committed_however_segments_change(
    gated: Gated, observers: AllObservers, nth: int
) -> None:
    with contextlib.ExitStack() as cleanup:
        changed_at_random(ObservedTopic(gated, observers, cleanup), nth)
