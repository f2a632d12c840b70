"""Receiving committed messages for a subscription, and acknowledging them in transactions."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext

from pulsar_txn_spark.backports import StrEnum
from pulsar_txn_spark.client.claims import Claims
from pulsar_txn_spark.client.message import Message, MessageId, Received
from pulsar_txn_spark.client.reader import SubscriptionReader
from pulsar_txn_spark.client.reentry import is_interrupted, refuse_reentry
from pulsar_txn_spark.client.timeouts import require_wait
from pulsar_txn_spark.client.transaction import Transaction
from pulsar_txn_spark.closing import Closing
from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.errors import (
    AcknowledgementConflictError,
    AlreadyClosedError,
    OptionError,
    PulsarTxnError,
    ReceiveTimeoutError,
)
from pulsar_txn_spark.position import MessagePosition
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.store.ack_ranges import AckInterval
from pulsar_txn_spark.store.records import SubscriptionRef, TxnHeader, TxnId, TxnState
from pulsar_txn_spark.txn.pending_ack import MetadataPendingAckStore

_LONGEST_WAIT_S = 60.0
IDS_KEPT = 10_000
"""So many of the latest messages that were received can be acknowledged by their ids alone."""


class InitialPosition(StrEnum):
    """Where a subscription that is not there yet begins."""

    EARLIEST = "earliest"
    LATEST = "latest"


class Consumer(Closing):
    """Receives for one subscription; made by :meth:`Client.consumer`.

    Messages come in the order of their segments, a parent's before its children's. Whatever was
    acknowledged in a transaction that aborts comes again, and with it everything that was received
    and not acknowledged. The consumer goes back to its cursor. Any thread may use it; one at a
    time receives. What is not acknowledged when it is closed comes again to the next consumer.
    """

    def __init__(
        self,
        components: Components,
        topics: Sequence[TopicName],
        subscription: str,
        initial_position: InitialPosition,
        require: Callable[[Transaction | None], None],
        new_txn: Callable[[], Transaction],
    ) -> None:
        self._components = components
        self._subscription = subscription
        self._topics = tuple(map(str, topics))
        self._require = require
        self._new_txn = new_txn
        self._pid = os.getpid()
        self._acks = MetadataPendingAckStore(components.coordinator)
        self._receiving = threading.RLock()  # held by the thread that reads and waits
        # Held for moments only: what follows is under it. A handler that closes enters it again.
        self._state = threading.RLock()
        self._redelivery_epoch = 0
        self._rewind = False
        self._hurried = False
        self._ready: deque[Message] = deque()
        self._redeliver: deque[Message] = deque()
        self._received: dict[MessageId, Received] = {}
        self._claims: dict[str, Claims] = {}
        self._txns: dict[TxnId, weakref.ref[Transaction]] = {}
        # How far cumulative acknowledgements went, and how far they are committed.
        self._reached: dict[TxnId, dict[SubscriptionRef, MessagePosition]] = {}
        self._floors: dict[SubscriptionRef, MessagePosition] = {}
        self._doubtful: set[TxnId] = set()
        # What was received before the consumer went back last, and acknowledged since.
        self._late: dict[TxnId, list[tuple[str, AckInterval]]] = {}
        latest = initial_position is InitialPosition.LATEST
        self._reader = SubscriptionReader(
            components, topics, subscription, latest=latest, consumer=self
        )
        self._origins = self._reader.origins()

    @property
    def subscription(self) -> str:
        """Name of the subscription."""
        return self._subscription

    @property
    def topics(self) -> tuple[str, ...]:
        """Full names of the topics."""
        return self._topics

    # -- receiving -----------------------------------------------------------------------------

    def receive(self, timeout_ms: int | None = None) -> Message:
        """Return the next message; wait for it if there is none.

        Parameters
        ----------
        timeout_ms : int, optional
            The longest time to wait; None = for ever, 0 = only what is there.

        Raises
        ------
        OptionError
            If the time is no number, or less than 0.
        ReceiveTimeoutError
            If no message came in that time.
        FencedError
            If a newer consumer has taken the subscription over.
        DataLossError
            If messages that were not acknowledged are gone.
        AcknowledgementConflictError
            If the subscription was reset.
        AlreadyClosedError
            If the consumer is closed, also while this waits.
        StoreError, SegmentLogError
            If the store or the log cannot be reached; receiving again goes on.
        RuntimeError
            If a signal handler calls it while its thread receives.
        """
        require_wait(timeout_ms)
        deadline = time.monotonic() + (
            timeout_ms / 1000 if timeout_ms is not None else float("inf")
        )
        self._require_open()  # in a fork, nobody would ever release the lock
        refuse_reentry(self._receiving, "receive()")
        # Another thread that waits for a message may do so for longer than this one.
        longest_s = -1 if timeout_ms is None else min(timeout_ms / 1000, threading.TIMEOUT_MAX)
        if not self._receiving.acquire(timeout=longest_s):
            raise self._no_message(timeout_ms)
        try:
            return self._receive(deadline, timeout_ms)
        except PulsarTxnError:
            raise
        except BaseException:
            # An interrupt may have hit between the reading of a message and its delivery.
            self._go_back()
            raise
        finally:
            self._hurried = False
            self._receiving.release()
            if self._closed:
                self._close_reader()  # a signal handler that closed could not

    def _receive(self, deadline: float, timeout_ms: int | None) -> Message:
        thorough = False
        while True:
            self._require_open()
            message = self._next()
            if message is not None:
                return message
            if self._read():
                continue
            left_s = 0.0 if self._hurried else deadline - time.monotonic()
            if left_s <= 0 and not thorough:
                # An event may be on its way: what is there before this is called must come.
                thorough = True
                self._reader.poll_everywhere()
                continue
            if left_s <= 0:
                raise self._no_message(timeout_ms)
            self._reader.wait(min(left_s, _LONGEST_WAIT_S))

    def hurry(self) -> None:
        """Let what receives now, or else next, end as if its time was over, with what is there."""
        with self._state:
            self._hurried = True
            self._wake()

    def _no_message(self, timeout_ms: int | None) -> ReceiveTimeoutError:
        return ReceiveTimeoutError(
            f"subscription {self._subscription!r}: no message within {timeout_ms} ms. "
            "That is no fault: receive again"
        )

    def __iter__(self) -> Iterator[Message]:
        """Yield messages, waiting for each, until the consumer is closed."""
        while True:
            try:
                message = self.receive()
            except AlreadyClosedError:
                return
            yield message

    def _next(self) -> Message | None:
        """Take the next message of those that were read."""
        with self._state:
            if self._rewind:
                return None
            for messages in (self._redeliver, self._ready):
                while messages:
                    message = messages.popleft()
                    # Since it was read, or given back, it may have been acknowledged: as a message
                    # of before the rewind, which this one repeats.
                    if not self._claims_of(message.segment).contains(message.position):
                        return self._note_received(message)
        return None

    def _note_received(self, message: Message) -> Message:
        self._received.pop(message.message_id, None)  # the latest stand last
        self._received[message.message_id] = Received(message.message_id, message.delivery)
        if len(self._received) > IDS_KEPT:
            del self._received[next(iter(self._received))]
        return message

    def _read(self) -> bool:
        """Read ahead; tell whether it is worth looking again at once."""
        self._resolve_doubts()
        with self._state:
            redelivery_epoch, rewind = self._redelivery_epoch, self._rewind
        read = self._reader.read(redelivery_epoch, rewind=rewind)
        with self._state:
            if redelivery_epoch != self._redelivery_epoch:
                return True  # what was read is of no use: it will be read again
            self._rewind = False
            self._origins = self._reader.origins()
            for segment, interval, txn in read.locked:
                self._claims_of(segment).add(interval, txn)
            self._ready.extend(read.messages)
        return read.progress

    def _claims_of(self, segment: str) -> Claims:
        return self._claims.setdefault(segment, Claims())

    # -- acknowledging -------------------------------------------------------------------------

    def acknowledge(
        self,
        message: Message | MessageId | Iterable[Message | MessageId],
        txn: Transaction | None = None,
    ) -> None:
        """Acknowledge single messages.

        Parameters
        ----------
        message : Message, MessageId, or iterable of them
            As this consumer received them; by their ids the latest 10,000.
        txn : Transaction, optional
            With it they are acknowledged if and when it commits. Without it at once; what an open
            transaction has acknowledged is then left to that one.

        Raises
        ------
        AcknowledgementConflictError
            If a message is acknowledged already, or in another open transaction. The transaction
            is aborted then.
        AcknowledgementsFullError
            If too many messages are acknowledged one by one behind one that is not.
        FencedError
            If a newer consumer has taken the subscription over.
        TransactionAbortedError, TransactionConflictError
            If the transaction is over.
        CommitStateUnknownError
            Without a transaction, if the store does not answer: acknowledge again.
        StoreError, AlreadyClosedError
        """
        if isinstance(message, MessageId) or not isinstance(message, Iterable):
            message = [message]
        messages = self._own(message, txn)
        by_segment: dict[SubscriptionRef, list[Message | Received]] = {}
        for received in messages:
            by_segment.setdefault(received.delivery.where, []).append(received)
        with txn.whole() if txn is not None else nullcontext():
            for where, group in by_segment.items():
                self._acknowledge_in(where, group, txn)

    def _acknowledge_in(
        self,
        where: SubscriptionRef,
        group: Sequence[Message | Received],
        txn: Transaction | None,
    ) -> None:
        intervals = [received.delivery.interval for received in group]
        if txn is None:
            try:
                self._acks.acknowledge_now(where, intervals)
            finally:
                with self._state:
                    # If it goes back meanwhile, it passes what they have locked.
                    self._doubtful.update(self._acks.left_open)
            with self._state:
                self._ended(where.segment, intervals, self._late_of(group))
            self._components.sweeps.trigger()
            return
        with self._state:
            redelivery_epoch = self._redelivery_epoch
        txn.acknowledge(self, where, intervals)
        with self._state:
            late = self._late_of(group)
            if self._follows(txn.id):
                for interval in intervals:
                    self._claims_of(where.segment).add(interval, txn.id)
                if late:
                    self._late.setdefault(txn.id, []).extend((where.segment, at) for at in late)
            elif redelivery_epoch == self._redelivery_epoch:
                self._ended(where.segment, intervals, late)  # another thread has committed it

    def _late_of(self, group: Sequence[Message | Received]) -> list[AckInterval]:
        """Return what was received before the consumer went back; called with the lock.

        Copies of it may come: the reader has learnt what is acknowledged when it went back.
        """
        return [
            received.delivery.interval
            for received in group
            if received.delivery.redelivery_epoch != self._redelivery_epoch
        ]

    def acknowledge_cumulative(
        self, message: Message | MessageId, txn: Transaction | None = None
    ) -> None:
        """Acknowledge a message and everything that was received before it, in every segment.

        Parameters
        ----------
        message : Message or MessageId
            As this consumer received it, and not before it went back to its cursor: messages that
            come again must not be acknowledged before they do.
        txn : Transaction, optional
            Without it, they are acknowledged at once, by a transaction of their own.

        Raises
        ------
        AcknowledgementConflictError
            If one of them is acknowledged in another open transaction, or everything up to the
            message already is: the transaction is then aborted. Also if the message was received
            before the consumer went back.
        FencedError, TransactionAbortedError, TransactionConflictError
        StoreError, AlreadyClosedError
        """
        [received] = self._own([message], txn)
        if txn is None:
            with self._new_txn() as own:
                self._acknowledge_up_to(received, own)
            return
        with txn.whole():
            self._acknowledge_up_to(received, txn)

    def _follows(self, txn: TxnId) -> bool:
        """Tell whether it is still to be heard how a transaction ends; called with the lock.

        Another thread may have ended it. Then nobody would take back what is claimed for it.
        """
        return txn in self._txns or txn in self._doubtful

    def _ended(
        self, segment: str, intervals: Sequence[AckInterval], late: Sequence[AckInterval] = ()
    ) -> None:
        """Deliver nothing again of what is acknowledged for good; called with the lock."""
        for interval in late:
            self._claims_of(segment).add(interval, None)
        if self._redeliver and intervals:
            ended = Claims.of(intervals)
            self._redeliver = deque(
                message
                for message in self._redeliver
                if message.segment != segment or not ended.contains(message.position)
            )

    def _acknowledge_up_to(self, message: Message | Received, txn: Transaction) -> None:
        with self._state:
            redelivery_epoch = self._redelivery_epoch
        delivery = message.delivery
        for where, end in [*delivery.before.items(), (delivery.where, message.position)]:
            last = where == delivery.where
            for piece in self._pieces(message, where, end, txn.id):
                final = last and piece.end == end
                txn.acknowledge_cumulative(self, where, piece, nothing_left=not final)
                with self._state:
                    if self._follows(txn.id):
                        self._claims_of(where.segment).add(piece, txn.id)
                        self._reached.setdefault(txn.id, {})[where] = piece.end
                    elif redelivery_epoch == self._redelivery_epoch:
                        # Another thread has committed it.
                        self._ended(where.segment, [piece])
                        self._floors[where] = max(piece.end, self._floors.get(where, piece.end))

    def _pieces(
        self, message: Message | Received, where: SubscriptionRef, end: MessagePosition, txn: TxnId
    ) -> list[AckInterval]:
        """Return what is to be asked for in one segment, in order."""
        with self._state:
            if message.delivery.redelivery_epoch != self._redelivery_epoch:
                raise AcknowledgementConflictError(
                    f"message {message.message_id} was received before subscription "
                    f"{self._subscription!r} went back to its cursor: a cumulative acknowledgement "
                    "of it would take messages that have to come again. Receive again, and "
                    "acknowledge what comes"
                )
            # The store checks that nothing before the start was given back.
            pieces: list[AckInterval] = []
            # Retention deletes a segment only when all of it is acknowledged.
            if (origin := self._origins.get(where)) is not None:
                start = max(origin, self._floors.get(where, origin))
                pieces = self._claims_of(where.segment).left_of(AckInterval(start, end), txn)
        own = where == message.delivery.where
        if own and (not pieces or pieces[-1].end != end):
            # Somebody has acknowledged this very message: the store says what became of that.
            pieces.append(message.delivery.interval)
        return pieces

    def negative_acknowledge(self, message: Message) -> None:
        """Have a message come again, before those that were not received yet.

        Nothing happens to one that is acknowledged already, or in a transaction.

        Raises
        ------
        StoreError, AlreadyClosedError
        """
        self._own([message], None)
        delivery = message.delivery
        if not self._reader.deliverable(delivery.where, message.position):
            return
        with self._state:
            # One of before the consumer went back comes again in any case.
            if (
                delivery.redelivery_epoch == self._redelivery_epoch
                and message not in self._redeliver
            ):
                self._redeliver.append(message)
                self._wake()

    def comes_again(self, message: Message) -> bool:
        """Tell whether a message was received before the consumer went back to its cursor."""
        with self._state:
            return message.delivery.redelivery_epoch != self._redelivery_epoch

    def redeliver_unacknowledged(self) -> None:
        """Go back to the cursor: everything that is not acknowledged comes again, in order."""
        self._require_open()
        self._go_back()

    def _own(
        self, messages: Iterable[Message | MessageId], txn: Transaction | None
    ) -> list[Message | Received]:
        """Return what was given, after making sure that this consumer has received it."""
        self._require_open(txn)
        return [self._received_as(message) for message in messages]

    def _received_as(self, message: object) -> Message | Received:
        if isinstance(message, Message) and message.delivery.consumer is self:
            return message
        if isinstance(message, MessageId):
            with self._state:
                received = self._received.get(message)
            if received is not None:
                return received
            raise OptionError(
                f"message: expected the id of one of the latest {IDS_KEPT} messages that this "
                f"consumer of {self._subscription!r} has received, found {message}: each consumer "
                "acknowledges its own. Of an older one give the message itself"
            )
        raise OptionError(
            f"message: expected one that this consumer of {self._subscription!r} has "
            f"received, found {message!r}: each consumer acknowledges its own"
        )

    # -- what transactions say -----------------------------------------------------------------

    def follow(self, txn: Transaction) -> None:
        """Hear that something is going to be acknowledged in a transaction: its end follows."""
        with self._state:
            self._txns[txn.id] = weakref.ref(txn)

    def committed(self, txn: TxnId) -> None:
        """Hear that a transaction that acknowledged here was committed."""
        if self._leaves_to_poll(txn):
            return
        with self._state:
            self._txns.pop(txn, None)
            self._doubtful.discard(txn)
            for segment, claims in self._claims.items():
                self._ended(segment, claims.drop(txn))
            for segment, interval in self._late.pop(txn, ()):
                self._claims_of(segment).add(interval, None)
            for where, end in self._reached.pop(txn, {}).items():
                self._floors[where] = max(end, self._floors.get(where, end))

    def aborted(self, txn: TxnId) -> None:
        """Hear that a transaction that acknowledged here was aborted: its messages come again."""
        if self._leaves_to_poll(txn):
            return
        with self._state:
            if not self._follows(txn):
                return  # a poll has found it out before
            self._txns.pop(txn, None)
            self._doubtful.discard(txn)
        self._go_back()

    def doubtful(self, txn: TxnId) -> None:
        """Hear that nobody follows a transaction any more: the next poll finds out how it ends."""
        if self._leaves_to_poll(txn):
            return
        with self._state:
            if self._txns.pop(txn, None) is not None:
                self._doubtful.add(txn)

    def _leaves_to_poll(self, txn: TxnId) -> bool:
        """Tell whether a signal handler says it amid a change: then the next poll finds it out."""
        if is_interrupted(self._state):
            self._doubtful.add(txn)
            return True
        return False

    def _go_back(self) -> None:
        with self._state:
            self._redelivery_epoch += 1
            self._rewind = True
            self._ready.clear()
            self._redeliver.clear()
            self._claims.clear()
            self._reached.clear()
            self._late.clear()
            self._floors.clear()
            self._wake()

    def _wake(self) -> None:
        if not self._closed:
            self._reader.wake()

    def _resolve_doubts(self) -> None:
        with self._state:
            dropped = {txn for txn, reference in self._txns.items() if reference() is None}
            for txn in dropped:
                del self._txns[txn]
            self._doubtful |= dropped
            doubtful = set(self._doubtful)
            # What others had locked when this was read, and what has ended since: acknowledgements
            # without a transaction, and transactions whose end was heard.
            under_way = {
                holder
                for claims in self._claims.values()
                for holder in claims.holders()
                if not self._follows(holder)
            }
        for txn in doubtful | under_way:
            header = self._components.store.transactions.read(txn)
            if header is not None and header.state is TxnState.OPEN:
                if not self._components.coordinator.complete_on_behalf([txn], set()):
                    continue
                header = self._components.store.transactions.read(txn)  # it has ended, but how
            if txn in under_way and self._is_committed(txn, header):
                self.committed(txn)
                continue
            with self._state:
                self._doubtful.discard(txn)
            # The store knows which messages come again; where it committed, none of its.
            self._go_back()

    def _is_committed(self, txn: TxnId, header: TxnHeader | None) -> bool:
        """Tell whether nothing comes again of what a transaction had locked."""
        if header is not None:
            return header.state is TxnState.COMMITTED
        # Collected after its end, whatever that was: the messages themselves say.
        with self._state:
            locked = {segment: claims.locked_by(txn) for segment, claims in self._claims.items()}
        return all(
            self._reader.acknowledged(segment, intervals)
            for segment, intervals in locked.items()
            if intervals
        )

    # -- the end -------------------------------------------------------------------------------

    def _require_open(self, txn: Transaction | None = None) -> None:
        if self._closed:
            raise AlreadyClosedError(
                f"the consumer of subscription {self._subscription!r} is closed: subscribe again"
            )
        self._require(txn)

    def close(self) -> None:
        """Stop receiving; idempotent. A signal handler may call it, whatever it has interrupted."""
        if os.getpid() == self._pid:  # a fork's copy shares all that it has with its parent
            super().close()

    def _close(self) -> None:
        # A thread that receives may need what a signal handler has interrupted: it closes it then.
        waits = not is_interrupted(self._state)
        with self._state:
            # After the word that it is closed: nobody else wakes a reader that is gone.
            self._reader.wake()
        self._close_reader(waits=waits)

    def _close_reader(self, *, waits: bool = True) -> None:
        # Else receive() does it as it ends.
        if not is_interrupted(self._receiving) and self._receiving.acquire(blocking=waits):
            try:
                with self._state:  # nobody wakes it meanwhile
                    self._reader.close()
            finally:
                self._receiving.release()
