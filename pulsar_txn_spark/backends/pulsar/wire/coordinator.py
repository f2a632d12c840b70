"""Pulsar's own transaction coordinators over the wire: begin, take part, end.

A coordinator lives on the broker that serves its partition of the assignment topic. Every request
may be sent again: a second NEW_TXN leaves an empty transaction behind, which times out, and the
others say the same thing twice.

**A transaction that a coordinator does not know** has ended, on every topic that took part. It is
forgotten only after the last of them has its marker. How it ended is not known any more. The
coordinator gives the same error to a client that does not own the transaction, which may be open
then. So the text of the error counts, too.

**Scalable topics** have coordinators of their own (PIP-473), which the same requests reach with a
flag. They are found by the brokers' list of assignments. A coordinator forgets a transaction when
all topics have applied its end, some minutes later. It then says that somebody else owns it, as it
says of another role's. Without authentication nobody owns one, and so that means forgotten.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any

from pulsar_txn_spark.backends.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandAddPartitionToTxn,
    CommandEndTxn,
    CommandNewTxn,
    CommandTcClientConnectRequest,
    CommandWatchTcAssignments,
    CommandWatchTcAssignmentsClose,
)
from pulsar_txn_spark.backends.pulsar.txn_bits import TxnBits
from pulsar_txn_spark.backends.pulsar.wire.client import RETRIED, Backoff, WireClient
from pulsar_txn_spark.backends.pulsar.wire.connection import Connection, RefusedError

ASSIGNMENT = "persistent://pulsar/system/transaction_coordinator_assign"
"""Partitioned topic without data: partition n is served by the broker of coordinator n."""

_AGAIN = RETRIED | {"TransactionCoordinatorNotFound", "UnknownError"}
"""Of a coordinator that is being loaded, too: its errors have no number of their own."""

_FORGOTTEN = "not found"
"""In what a coordinator says of a transaction that it has forgotten; it does not say so of one
that belongs to somebody else."""


_FORGOTTEN_SCALABLE = "Client (null) is neither the owner"
"""The same of a coordinator for scalable topics, where clients are not authenticated."""


class Ended(Enum):
    """What a coordinator says to END_TXN."""

    AS_ASKED = auto()
    """It is decided as asked, and every topic that took part knows it."""
    OTHERWISE = auto()
    """It is decided the other way, and being ended now."""
    FORGOTTEN = auto()
    """It was ended before, one way or the other."""


class WireCoordinators:
    """The coordinators of a cluster.

    Parameters
    ----------
    client : WireClient
        Whose connections to use.
    scalable : bool
        Whether those of scalable topics.
    """

    def __init__(self, client: WireClient, *, scalable: bool = False) -> None:
        self._client = client
        self._scalable = scalable
        self._assigned: dict[int, str] = {}
        self._connected: dict[int, Connection] = {}
        self._count = 0

    def begin(self, name: str, timeout_ms: int) -> TxnBits:
        """Begin a transaction; all of one name are of the same coordinator.

        Parameters
        ----------
        name : str
            Of a sink.
        timeout_ms : int
            The coordinator aborts the transaction by itself after so long.

        Raises
        ------
        RefusedError
            With the result ``NotAllowedError`` where brokers have no transactions; ``Timeout`` also
            where a coordinator has as many as it may.
        """
        backoff = Backoff(self._client.settings.operation_s)
        if not self._count:
            self._count = self._coordinators(backoff)
        number = zlib.crc32(name.encode()) % self._count

        def make(request: int) -> BaseCommand:
            new = CommandNewTxn(request_id=request, txn_ttl_seconds=timeout_ms, tc_id=number)
            if self._scalable:
                new.scalable = True
            return BaseCommand(type=BaseCommand.NEW_TXN, newTxn=new)

        answer = self._ask(number, make, "newTxnResponse", backoff)
        return TxnBits(answer.txnid_most_bits, answer.txnid_least_bits)

    def add_partitions(self, txn: TxnBits, topics: Sequence[str]) -> None:
        """Let topics take part in a transaction, before anything of it is sent to them.

        Raises
        ------
        RefusedError
            With the result ``TransactionNotFound`` or ``InvalidTxnStatus`` if it is over.
        """

        def make(request: int) -> BaseCommand:
            add = CommandAddPartitionToTxn(
                request_id=request,
                txnid_most_bits=txn.most,
                txnid_least_bits=txn.least,
                partitions=topics,
            )
            if self._scalable:
                add.scalable = True
            return BaseCommand(type=BaseCommand.ADD_PARTITION_TO_TXN, addPartitionToTxn=add)

        backoff = Backoff(self._client.settings.operation_s)
        self._ask(txn.most, make, "addPartitionToTxnResponse", backoff)

    def end(self, txn: TxnBits, *, commit: bool) -> Ended:
        """Commit or abort a transaction, unless it is decided.

        Raises
        ------
        RefusedError
            If nobody answers in time, and whether it is decided is not known; or if it belongs to
            somebody else.
        """

        def make(request: int) -> BaseCommand:
            end = CommandEndTxn(
                request_id=request,
                txnid_most_bits=txn.most,
                txnid_least_bits=txn.least,
                txn_action=0 if commit else 1,
            )
            if self._scalable:
                end.scalable = True
            return BaseCommand(type=BaseCommand.END_TXN, endTxn=end)

        backoff = Backoff(self._client.settings.operation_s)
        known = self._connected.get(txn.most)
        ended = self._end(txn, make, backoff)
        if ended is Ended.FORGOTTEN and known is not None:
            # A broker that has lost the coordinator without noticing knows no later transaction.
            self._forget(txn.most)
            ended = self._end(txn, make, backoff)
        return ended

    def _end(self, txn: TxnBits, make: Callable[[int], BaseCommand], backoff: Backoff) -> Ended:
        try:
            self._ask(txn.most, make, "endTxnResponse", backoff)
        except RefusedError as refused:
            if refused.result == "InvalidTxnStatus":
                return Ended.OTHERWISE
            if refused.result == "TransactionNotFound" and self._is_forgotten(refused.detail):
                return Ended.FORGOTTEN
            raise
        return Ended.AS_ASKED

    def _is_forgotten(self, detail: str) -> bool:
        return _FORGOTTEN in detail or (self._scalable and _FORGOTTEN_SCALABLE in detail)

    def _coordinators(self, backoff: Backoff) -> int:
        """Return how many coordinators there are."""
        if not self._scalable:
            return max(1, self._client.partitions(ASSIGNMENT))
        return backoff.retry(lambda: self._read_assignments(backoff.left_s))

    def _read_assignments(self, timeout_s: float) -> int:
        """Note which broker has which coordinator of scalable topics; return how many there are."""
        connection = self._client.any_connection()
        if not connection.knows_scalable_topics:
            raise RefusedError(
                "NotAllowedError",
                f"{connection.address} has no scalable topics, nor their transactions",
            )
        watch = 0

        def make(number: int) -> BaseCommand:
            nonlocal watch
            watch = number
            asking = CommandWatchTcAssignments(watch_id=number)
            return BaseCommand(type=BaseCommand.WATCH_TC_ASSIGNMENTS, watchTcAssignments=asking)

        answer = connection.request(make, timeout_s).watchTcAssignmentsUpdate
        if answer.HasField("error"):
            raise RefusedError.of(answer.error, answer.message)
        closing = CommandWatchTcAssignmentsClose(watch_id=watch)
        connection.tell(
            lambda _: BaseCommand(
                type=BaseCommand.WATCH_TC_ASSIGNMENTS_CLOSE, watchTcAssignmentsClose=closing
            )
        )
        tls = self._client.settings.tls
        self._assigned = {
            each.tc_id: each.broker_service_url_tls if tls else each.broker_service_url
            for each in answer.snapshot.assignments
        }
        return max(1, answer.snapshot.parallelism)

    def _forget(self, number: int) -> None:
        self._connected.pop(number, None)
        self._assigned.pop(number, None)
        if not self._scalable:
            self._client.forget(_partition(number))

    def _ask(
        self, number: int, make: Callable[[int], BaseCommand], field: str, backoff: Backoff
    ) -> Any:
        """Return the answer of a coordinator; asked again where that may help."""

        def attempt() -> Any:
            try:
                return _answer(self._connection(number, backoff.left_s), make, field, backoff)
            except RefusedError as refused:
                if refused.result not in _AGAIN:
                    raise
                self._forget(number)
                raise RefusedError("ServiceUnitNotReady", _said(refused)) from None

        return backoff.retry(attempt)

    def _connection(self, number: int, timeout_s: float) -> Connection:
        """Return a connection to the broker of a coordinator, which has loaded it."""
        connection = self._connected.get(number)
        if connection is not None and connection.usable:
            return connection
        connection = self._broker_of(number, timeout_s)

        def make(request: int) -> BaseCommand:
            connect = CommandTcClientConnectRequest(request_id=request, tc_id=number)
            if self._scalable:
                connect.scalable = True
            return BaseCommand(
                type=BaseCommand.TC_CLIENT_CONNECT_REQUEST, tcClientConnectRequest=connect
            )

        _answer(connection, make, "tcClientConnectResponse", Backoff(timeout_s))
        self._connected[number] = connection
        return connection

    def _broker_of(self, number: int, timeout_s: float) -> Connection:
        if not self._scalable:
            return self._client.connection_of(_partition(number), timeout_s)
        if number not in self._assigned:
            self._read_assignments(timeout_s)
        url = self._assigned.get(number)
        if not url:
            raise RefusedError(
                "TransactionCoordinatorNotFound", f"no broker leads coordinator {number} now"
            )
        return self._client.connection_to(url)


def _answer(
    connection: Connection, make: Callable[[int], BaseCommand], field: str, backoff: Backoff
) -> Any:
    answer = getattr(connection.request(make, backoff.left_s), field)
    if answer.HasField("error"):
        raise RefusedError.of(answer.error, answer.message)
    return answer


def _said(refused: RefusedError) -> str:
    return f"{refused.result}: {refused.detail}" if refused.detail else refused.result


def _partition(number: int) -> str:
    return f"{ASSIGNMENT}-partition-{number}"
