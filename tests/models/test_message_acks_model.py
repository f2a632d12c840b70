"""Random acknowledgements of several transactions, compared with a model message by message.

The model knows no ranges: a holder for each message. Every run is drawn from its seed alone, on a
network that loses requests and replies; what the caller hears and every state has to agree.
"""

from __future__ import annotations

import random

import pytest

from pulsar_txn_spark.errors import AcknowledgementConflictError
from pulsar_txn_spark.position import EARLIEST, MessagePosition, Position
from pulsar_txn_spark.store.ack_ranges import AckInterval, SubscriptionState
from pulsar_txn_spark.store.records import Code, SubscriptionRef
from pulsar_txn_spark.store.redis import scripts
from pulsar_txn_spark.txn.pending_ack import CLIENT_OWNER
from tests.support.scenario import SEGMENT, TIMEOUT_MS, Loss, Txn, World, put_cursor

RUNS, BLOCKS, STEPS, FIRST_SEED = 64, 4, 24, 20_261_121
MESSAGES, TRANSACTIONS = 14, 3
SCRIPTS = ("ack_individual", "ack_cumulative", "seg_materialize", "txn_create", "txn_intend")


class Model:
    """Who holds each message: None, a transaction, or '' = deleted."""

    def __init__(self, messages: list[MessagePosition]) -> None:
        self.messages = messages
        self.holders: list[str | None] = [None] * len(messages)

    @property
    def cursor(self) -> int:
        """How many messages are deleted from the first one on."""
        deleted = [holder == "" for holder in self.holders]
        return deleted.index(False) if False in deleted else len(deleted)

    def individual(self, me: str, numbers: list[int]) -> bool:
        if any(self.holders[number] not in (None, me) for number in numbers):
            return False
        for number in numbers:
            self.holders[number] = me
        return True

    def cumulative(self, me: str, start: int, end: int) -> bool:
        before, asked = range(self.cursor, start), range(max(start, self.cursor), end)
        if any(self.holders[number] not in ("", me) for number in before):
            return False
        if any(self.holders[number] not in (None, "", me) for number in asked):
            return False
        if all(self.holders[number] == "" for number in asked):
            return False
        for number in asked:
            if self.holders[number] is None:
                self.holders[number] = me
        return True

    def normal(self, numbers: list[int]) -> list[int]:
        dropped = [number for number in numbers if self.holders[number]]
        for number in numbers:
            if self.holders[number] is None:
                self.holders[number] = ""
        return dropped

    def end(self, me: str, holder: str | None) -> None:
        self.holders = [holder if found == me else found for found in self.holders]

    def require_equal(self, state: SubscriptionState) -> None:
        assert [state.holder_of(message) for message in self.messages] == self.holders
        first = self.cursor
        cursor = self.messages[first - 1] if first else None
        if cursor is not None:
            assert state.cursor == cursor, "INV-9: the cursor is before the first gap, no further"
        assert len(state.ranges) <= len(self.messages)


class Run:
    """One run: real code and model do the same."""

    def __init__(self, seed: int, world: World) -> None:
        self.random = random.Random(seed)
        self.world = world
        self.where = SubscriptionRef(SEGMENT, f"sub-{seed}", CLIENT_OWNER)
        messages: list[MessagePosition] = []
        entry = 0
        while len(messages) < MESSAGES:
            size = self.random.randrange(1, 5)
            at = Position(1, entry)
            messages += [MessagePosition.of_message(at, index, size) for index in range(size)]
            entry += self.random.randrange(1, 3)  # what lies between was aborted
        self.model = Model(messages)
        self.bounds = [MessagePosition.whole(EARLIEST), *messages]
        world.acks.claim(self.where, EARLIEST)
        self.open = [world.open(self.nonce()) for _ in range(TRANSACTIONS)]
        self.trace: list[str] = []

    def nonce(self) -> str:
        return f"{self.where.subscription}-{self.random.getrandbits(64):x}"

    def some(self) -> list[int]:
        count = self.random.choice([1, 1, 2, 4])
        return sorted(self.random.sample(range(len(self.model.messages)), count))

    def interval(self, number: int) -> AckInterval:
        return AckInterval(self.bounds[number], self.bounds[number + 1])

    def step(self) -> None:
        at = self.random.randrange(len(self.open))
        txn = self.open[at]
        what = self.random.choice([self.individual, self.cumulative, self.normal, self.end])
        what(at, txn)
        state = self.world.store.subscriptions.read_acks(SEGMENT, self.where.subscription)
        assert state is not None
        self.model.require_equal(state)

    def individual(self, _: int, txn: Txn) -> None:
        numbers = self.some()
        self.trace.append(f"{txn.id.key} acknowledges {numbers}")
        try:
            self.world.acks.acknowledge_individual(
                txn.id, txn.nonce, TIMEOUT_MS, self.where, map(self.interval, numbers)
            )
        except AcknowledgementConflictError:
            assert not self.model.individual(txn.id.key, numbers)
        else:
            assert self.model.individual(txn.id.key, numbers)

    def cumulative(self, _: int, txn: Txn) -> None:
        end = self.random.randrange(1, len(self.bounds))
        start = self.random.choice([0, self.model.cursor, self.random.randrange(end)])
        if start >= end:
            return
        self.trace.append(f"{txn.id.key} acknowledges all of {start} to {end}")
        try:
            interval = AckInterval(self.bounds[start], self.bounds[end])
            self.world.acks.acknowledge_cumulative(
                txn.id, txn.nonce, TIMEOUT_MS, self.where, interval
            )
        except AcknowledgementConflictError:
            assert not self.model.cumulative(txn.id.key, start, end)
        else:
            assert self.model.cumulative(txn.id.key, start, end)

    def normal(self, _: int, __: Txn) -> None:
        numbers = self.some()
        self.trace.append(f"{numbers} are acknowledged")
        dropped = self.world.acks.acknowledge_now(self.where, map(self.interval, numbers))
        assert dropped == [self.interval(number) for number in self.model.normal(numbers)]

    def end(self, at: int, txn: Txn) -> None:
        how = self.random.choice(["commit", "decide", "abort", "expire"])
        self.trace.append(f"{how} {txn.id.key}")
        {
            "commit": self.world.commit,
            "decide": self.world.decide,
            "abort": self.world.abort,
            "expire": self.world.expire,
        }[how](txn)
        if how in ("decide", "expire"):  # its owner is dead: whoever comes completes it
            self.world.another_process().acks.replay(SEGMENT, self.where.subscription)
        self.model.end(txn.id.key, "" if how in ("commit", "decide") else None)
        self.open[at] = self.world.open(self.nonce())

    def bad_network(self) -> None:
        """Lose some requests and replies, never so many in a row that the store is given up."""
        lost = [None, None, None, Loss.REPLY, Loss.REQUEST]
        self.world.lose(
            {
                name: [found for _ in range(60) for found in (self.random.choice(lost), None)]
                for name in SCRIPTS
            }
        )


@pytest.mark.parametrize("block", range(BLOCKS))
def test_ranges_and_single_messages_agree_whatever_several_transactions_do(
    world: World, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(scripts, "_LOST_REPLY_PAUSE_S", 0.0)
    for seed in range(FIRST_SEED + block, FIRST_SEED + RUNS, BLOCKS):
        world.mend()
        run = Run(seed, world)
        run.bad_network()
        try:
            for _ in range(STEPS):
                run.step()
            for txn in run.open:
                world.abort(txn)
                run.model.end(txn.id.key, None)
            state = world.acks.replay(SEGMENT, run.where.subscription)
            run.model.require_equal(state)
            assert state.pending == {}
            world.mend()
            reset = put_cursor(world.store, SEGMENT, run.where.subscription, EARLIEST)
            assert reset.code is Code.OK
        except BaseException as error:
            error.add_note(f"seed {seed}\n" + "\n".join(run.trace))
            raise
