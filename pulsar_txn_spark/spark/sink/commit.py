"""Commits and aborts a write on the driver, by the messages of its tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pyspark.sql.datasource import WriterCommitMessage

from pulsar_txn_spark.engine.components import open_components
from pulsar_txn_spark.errors import PulsarTxnError, TransactionConflictError
from pulsar_txn_spark.spark.checkpoint import LocalCheckpoint, evidence_rule
from pulsar_txn_spark.spark.sink.job import TaskCommitMessage, WriteJob
from pulsar_txn_spark.store.metadata_pb2 import TaskWrite
from pulsar_txn_spark.txn.batch import Attempt

_LOG = logging.getLogger(__name__)
_CAUSE = "its Spark job failed"

Messages = Sequence[WriterCommitMessage | None]
"""What Spark hands over: the message of each task that came to an end, None for the others."""


def all_messages(messages: Messages) -> list[TaskCommitMessage]:
    """Return the messages, of which none may be missing.

    Raises
    ------
    TransactionConflictError
    """
    sent = _sent(messages)
    if len(sent) != len(messages) or not sent:
        raise TransactionConflictError(
            f"expected a result of each of {len(messages)} tasks, found {len(sent)}: the batch "
            "is not whole, nothing was committed"
        )
    return sent


def one_attempt(messages: Sequence[TaskCommitMessage]) -> Attempt:
    """Return the attempt that all tasks have written for.

    Raises
    ------
    TransactionConflictError
        If there are several, or none.
    """
    attempts = {message.attempt for message in messages}
    if len(attempts) != 1:
        raise TransactionConflictError(
            f"the tasks of one batch wrote for {len(attempts)} attempts: "
            f"{sorted(map(str, attempts))}; nothing was committed"
        )
    attempt = attempts.pop()
    if attempt is None:
        raise TransactionConflictError("a write with transactions=false cannot be part of a scope")
    return attempt


def commit(job: WriteJob, messages: Messages, *, acknowledge: bool) -> None:
    """Commit what the tasks have written, and with `acknowledge` what the batch has read.

    Raises
    ------
    TransactionConflictError, TransactionAbortedError, StoreUnavailableError
    """
    sent = all_messages(messages)
    components = open_components(job.options)
    if any(message.attempt is not None for message in sent):
        attempt = one_attempt(sent)
        tasks = [TaskWrite.FromString(message.record) for message in sent]
        checkpoint = LocalCheckpoint.at(job.options.get("checkpointlocation"))
        rule = evidence_rule(
            job.options, checkpoint, attempt.key.query, components.store.identity.uuid
        )
        execution_id = sent[0].execution_id
        once_in = execution_id if job.rules.once else ""
        job.transactions().commit(
            attempt, [tasks], execution_id, acknowledge=acknowledge, rule=rule, once_in=once_in
        )
    # With transactions=false the rows are visible already.
    components.sweeps.trigger()


def abort(job: WriteJob, messages: Messages) -> None:
    """Abort each transaction that a message names."""
    for attempt in {message.attempt for message in _sent(messages)}:
        if attempt is not None:
            with _logged():
                job.transactions().abort(attempt, cause=_CAUSE)


def abort_by_nonce(job: WriteJob) -> None:
    """Abort the transaction of a job, also where no task has sent a message."""
    if not job.options.get("transactions"):
        return
    with _logged():
        job.transactions().abort_nonce(job.nonce, cause=_CAUSE)


def abort_by_pointer(job: WriteJob, batch_id: int) -> None:
    """Abort the transaction of a micro-batch, also where no task has sent a message.

    The sink's pointer names it. Its owner must be this very driver, which runs one attempt at a
    batch at a time. Nothing is done where the driver or the query is not known here.
    """
    query = job.checkpoint_query_id
    if not job.options.get("transactions") or not query or not job.driver:
        return
    with _logged():
        job.transactions().abort_begun(job.key_of(query, batch_id), job.driver, cause=_CAUSE)


@contextmanager
def _logged() -> Iterator[None]:
    """Log what keeps a transaction from its abort: Spark reports the error that led to it."""
    try:
        yield
    except PulsarTxnError as error:
        _LOG.warning("the transaction of a failed write was not aborted now: %s", error)


def _sent(messages: Messages) -> list[TaskCommitMessage]:
    return [message for message in messages if isinstance(message, TaskCommitMessage)]
