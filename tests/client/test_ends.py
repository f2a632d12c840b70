"""How transactions of a client end where its store, its process or its own code lets it down."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest

from pulsar_txn_spark import client
from pulsar_txn_spark.client import Consumer, TxnStatus
from pulsar_txn_spark.client import transaction as transaction_module
from pulsar_txn_spark.client.reader import SubscriptionReader
from pulsar_txn_spark.errors import (
    AlreadyClosedError,
    CommitStateUnknownError,
    SchemaError,
    TransactionAbortedError,
    TransactionConflictError,
    TransactionNotFoundError,
)
from pulsar_txn_spark.store.records import Code, TxnAnswer, TxnId, TxnState
from pulsar_txn_spark.store.redis.merged import RedisMergedSteps
from pulsar_txn_spark.store.redis.transactions import RedisTransactionStore
from pulsar_txn_spark.txn.coordinator import TransactionCoordinator
from tests.client.test_client import Service, drained, flushed, nothing_comes, service, take, texts
from tests.support.scenario import Loss, keys_of

__all__ = ["service"]  # a fixture

HALF = "\udce9"  # of a surrogate pair: what os.listdir makes of a name that is no UTF-8


def expire(service: Service, txn: TxnId) -> None:
    service.expire(cast("client.Transaction", SimpleNamespace(id=txn)))


def collect(service: Service, txn: TxnId) -> None:
    """Remove a header, as sweeps do long after its end."""
    assert service._good.delete(f"{{tc{txn.tc}}}:txn:{txn.key}") == 1


# -- acknowledgements without a transaction --------------------------------------------------------


def unheard(service: Service) -> tuple[str, Consumer, client.Message]:
    """Acknowledge a message without a transaction, of whose end nothing is heard."""
    topic = service.topic()
    service.send(topic, "a")
    consumer = service.client.consumer(topic, "s")
    [message] = take(consumer, 1)
    service.lose(always={"txn_end": Loss.REQUEST})
    with pytest.raises(CommitStateUnknownError):
        consumer.acknowledge(message)
    service.mend()
    return topic, consumer, message


def test_an_acknowledgement_that_is_repeated_after_a_failure_of_the_store_counts(
    service: Service,
) -> None:
    topic, consumer, message = unheard(service)
    consumer.acknowledge(message)
    with service.another_process().client.consumer(topic, "s") as newer:
        assert drained(newer) == []


@pytest.mark.parametrize("goes_back", [False, True])
def test_a_message_whose_acknowledgement_was_lost_comes_again(
    service: Service, goes_back: bool
) -> None:
    _, consumer, _ = unheard(service)
    if goes_back:
        consumer.redeliver_unacknowledged()
    assert nothing_comes(consumer), "it may be acknowledged"
    [left] = consumer._acks.left_open
    expire(service, left)
    assert texts(consumer, 1) == ["a"]


def test_acknowledgements_without_a_transaction_have_their_headers_swept(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = service.topic()
    service.send(topic, "a")
    consumer = service.client.consumer(topic, "s")
    message = consumer.receive(timeout_ms=5_000)
    triggered: list[bool] = []
    monkeypatch.setattr(service.run.sweeps, "trigger", lambda: triggered.append(True))
    consumer.acknowledge(message)
    assert triggered


def test_what_was_acknowledged_unheard_does_not_come_again(service: Service) -> None:
    topic = service.topic()
    service.send(topic, "a", "b")
    consumer = service.client.consumer(topic, "s")
    a, b = take(consumer, 2)
    service.lose(always={"txn_end": Loss.REPLY, "txn_read": Loss.REQUEST})
    with pytest.raises(CommitStateUnknownError):
        consumer.acknowledge(a)
    service.mend()
    consumer.acknowledge([a, b])
    assert consumer._acks.left_open == []
    consumer.redeliver_unacknowledged()
    assert nothing_comes(consumer)


# -- blocks ----------------------------------------------------------------------------------------


def acknowledged_in(service: Service) -> tuple[str, Consumer, client.Transaction]:
    """Return a consumer, and a transaction in which its message is acknowledged."""
    topic = service.topic()
    service.send(topic, "a")
    consumer = service.client.consumer(topic, "s")
    txn = service.client.new_txn()
    consumer.acknowledge(consumer.receive(timeout_ms=5_000), txn)
    service.client.producer(topic).send("b", txn=txn)
    return topic, consumer, txn


def test_a_block_is_aborted_whatever_error_its_commit_meets(service: Service) -> None:
    topic, consumer, txn = acknowledged_in(service)
    with (
        mock.patch.object(transaction_module, "as_batch", side_effect=ValueError("of another")),
        pytest.raises(ValueError, match="of another"),
        txn,
    ):
        pass
    assert txn.status() is TxnStatus.ABORTED
    assert texts(consumer, 1) == ["a"]
    assert service.visible(topic) == ["a"]


def test_no_lease_is_extended_for_a_block_whose_commit_was_interrupted(service: Service) -> None:
    _, consumer, txn = acknowledged_in(service)
    assert txn in service.client._leases._due
    with (
        mock.patch.object(TransactionCoordinator, "commit", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
        txn,
    ):
        pass
    assert txn not in service.client._leases._due
    service.expire(txn)
    assert texts(consumer, 1) == ["a"]


def fail_flush(txn: client.Transaction) -> None:
    with (
        mock.patch.object(transaction_module, "as_batch", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        txn.flush()


def fail_commit(txn: client.Transaction) -> None:
    with (
        mock.patch.object(transaction_module, "as_batch", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        txn.commit()


def fail_abort(txn: client.Transaction) -> None:
    with (
        mock.patch.object(TransactionCoordinator, "end_txn", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        txn.abort()


def fail_elsewhere(txn: client.Transaction) -> None:
    txn.fail(ValueError("something was not sent"))


@pytest.mark.parametrize("failure", [fail_flush, fail_commit, fail_abort, fail_elsewhere])
def test_nobody_waits_for_a_failed_transaction_longer_than_its_lease(
    service: Service, failure: Callable[[client.Transaction], None]
) -> None:
    topic, consumer, txn = acknowledged_in(service)
    service.send(topic, "c")
    assert texts(consumer, 1) == ["c"]
    assert txn in service.client._leases._due
    failure(txn)
    # It may be dropped now, and yet be alive: the error's traceback refers to it.
    assert txn not in service.client._leases._due
    assert nothing_comes(consumer)
    service.expire(txn)
    assert texts(consumer, 2) == ["a", "c"]
    txn.abort()
    assert nothing_comes(consumer), "it has heard of that before"


def test_a_commit_without_an_answer_keeps_its_lease_whatever_is_refused_behind_it(
    service: Service,
) -> None:
    topic, consumer, txn = acknowledged_in(service)
    service.send(topic, "c")
    [c] = take(consumer, 1)
    service.lose(always={"txn_commit": Loss.REQUEST})
    with pytest.raises(CommitStateUnknownError):
        txn.commit()
    service.mend()
    with pytest.raises(TransactionConflictError, match="its commit was begun"):
        consumer.acknowledge(c, txn)
    assert txn in service.client._leases._due
    txn.commit()
    assert service.visible(topic) == ["a", "c", "b"]


def test_a_commit_that_is_refused_says_if_its_transaction_could_not_be_aborted(
    service: Service,
) -> None:
    _, producer, failed = flushed(service)
    unsent = service.client.new_txn()
    producer.send("b", txn=unsent)
    unsent.flush()
    producer.send("c", txn=unsent)
    failed.fail(ValueError("something was not sent"))
    service.lose(always={"txn_end": Loss.REQUEST})
    with pytest.raises(TransactionAbortedError, match="it was not aborted either"):
        failed.commit()
    with (
        mock.patch.object(transaction_module, "as_batch", side_effect=ValueError("of another")),
        pytest.raises(ValueError, match="of another") as caught,
    ):
        unsent.commit()
    assert "was not aborted" in caught.value.__notes__[0]
    service.mend()
    assert (failed.status(), unsent.status()) == (TxnStatus.OPEN, TxnStatus.OPEN)


@pytest.mark.parametrize(
    "row",
    [
        {"value": HALF},
        {"value": "a", "key": HALF},
        {"value": "a", "properties": {"file": HALF}},
        {"value": "a", "properties": {HALF: "file"}},
    ],
)
def test_text_that_is_no_unicode_is_refused_when_it_is_sent(
    service: Service, row: dict[str, Any]
) -> None:
    topic = service.topic()
    producer = service.client.producer(topic)
    with service.client.new_txn() as txn:
        producer.send("sent", txn=txn)
        with pytest.raises(SchemaError, match="surrogate pair"):
            producer.send(**row, txn=txn)
    assert service.visible(topic) == ["sent"]


# -- forks -----------------------------------------------------------------------------------------


def test_a_forked_process_ends_nothing_of_its_parent(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, _, txn = flushed(service)
    consumer = service.client.consumer(topic, "s")
    new = service.client.new_txn()
    parent = os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: parent + 1)
        for use in (txn.commit, txn.abort, txn.flush, txn.status, lambda: new.id):
            with pytest.raises(AlreadyClosedError, match="Connect after the fork"):
                use()
        with txn:
            pass
        txn.close()
        consumer.close()
    assert txn.status() is TxnStatus.OPEN
    txn.commit()
    assert texts(consumer, 1) == ["a"]


# -- headers that are gone -------------------------------------------------------------------------


def test_a_transaction_that_was_aborted_long_ago_is_aborted_for_its_owner(service: Service) -> None:
    _, _, txn = flushed(service)
    service.expire(txn)
    collect(service, txn.id)
    with pytest.raises(TransactionAbortedError, match="ended by somebody else"):
        txn.commit()
    assert txn.ended


def test_rows_that_come_after_the_end_of_their_transaction_say_that_it_was_aborted(
    service: Service,
) -> None:
    _, producer, txn = flushed(service)
    other = service.topic()
    service.expire(txn)
    collect(service, txn.id)
    service.client.producer(other).send("b", txn=txn)
    with pytest.raises(TransactionAbortedError, match="ended by somebody else"):
        txn.commit()
    with pytest.raises(TransactionAbortedError):
        producer.send("c", txn=txn)


def unknown(service: Service) -> tuple[str, client.Transaction]:
    """Return a transaction that was committed without its owner having heard it."""
    topic, _, txn = flushed(service)
    service.lose(always={"txn_commit": Loss.REPLY})
    with pytest.raises(CommitStateUnknownError):
        txn.commit()
    service.mend()
    return topic, txn


def test_a_commit_without_an_answer_stays_unknown_if_its_header_is_gone(service: Service) -> None:
    topic, txn = unknown(service)
    collect(service, txn.id)
    with pytest.raises(CommitStateUnknownError, match="may have been committed"):
        txn.commit()
    assert service.visible(topic) == ["a"]


def test_a_heartbeat_behind_an_unknown_commit_does_not_call_it_aborted(service: Service) -> None:
    topic, txn = unknown(service)
    txn.lost(TransactionNotFoundError("no header"))
    with pytest.raises(TransactionConflictError, match="its commit was begun"):
        service.client.producer(topic).send("b", txn=txn)
    txn.commit()
    assert service.visible(topic) == ["a"]


def collected_behind(
    monkeypatch: pytest.MonkeyPatch,
    service: Service,
    step: tuple[type[Any], str],
    answer: Callable[[Any], Any],
) -> None:
    """Let the first call of a step take effect, and its header be collected before its answer."""
    owner, name = step
    real, calls = getattr(owner, name), itertools.count()

    def call(store: Any, *args: Any, **named: Any) -> Any:
        first = next(calls) == 0
        found = real(store, *args, **named)
        if first:
            [key] = keys_of(service._good, "{tc*}:txn:*")
            service._good.delete(key)
            return answer(found)
        return found

    monkeypatch.setattr(owner, name, call)


def no_answer(_: Any) -> Any:
    raise CommitStateUnknownError("no answer")


END = (RedisTransactionStore, "end")


def test_a_header_that_goes_between_two_tries_leaves_the_commit_unknown(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, txn = flushed(service)
    collected_behind(monkeypatch, service, (RedisMergedSteps, "commit"), no_answer)
    with pytest.raises(CommitStateUnknownError):
        txn.commit()


@pytest.mark.usefixtures("single_steps")
def test_a_header_that_goes_between_two_decisions_leaves_the_commit_unknown(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, txn = flushed(service)
    collected_behind(monkeypatch, service, END, no_answer)
    with pytest.raises(CommitStateUnknownError):
        txn.commit()


@pytest.mark.usefixtures("single_steps")
@pytest.mark.parametrize(
    "answer, expected",
    [
        (TxnAnswer(Code.OK), None),
        (TxnAnswer(Code.DECIDED, TxnState.ABORTED), TransactionAbortedError),
        (TxnAnswer(Code.DECIDED, TxnState.COMMITTED), CommitStateUnknownError),
    ],
)
def test_a_header_that_goes_behind_the_decision_says_what_the_answer_says(
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    answer: TxnAnswer,
    expected: type[Exception] | None,
) -> None:
    _, _, txn = flushed(service)
    collected_behind(monkeypatch, service, END, lambda _: answer)
    with pytest.raises(expected) if expected else nullcontext():
        txn.commit()
    assert txn.ended is (expected is not CommitStateUnknownError)


# -- interrupts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "owner, name", [(Consumer, "_note_received"), (SubscriptionReader, "origins")]
)
def test_what_an_interrupt_has_kept_back_comes_again(
    service: Service, owner: type[Any], name: str
) -> None:
    topic = service.topic()
    service.send(topic, "a", "b")
    consumer = service.client.consumer(topic, "s")
    with (
        mock.patch.object(owner, name, side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        consumer.receive(timeout_ms=5_000)
    assert texts(consumer, 2) == ["a", "b"]
