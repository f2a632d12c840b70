"""Staged writes: the results of a :class:`BatchTransaction`'s writes, kept until it commits.

Each write of the transaction is a *slot* with a name. A slot is declared before its write starts,
and each attempt at it has a number. The commit therefore names exactly the attempts whose success
the user's code saw; it never includes one that this code saw fail.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.errors import TransactionConflictError
from pulsar_txn_spark.options import Options
from pulsar_txn_spark.spark.sink.job import TaskCommitMessage, WriteJob, store_uuid
from pulsar_txn_spark.store.metadata_pb2 import StagedWrite, TaskWrite
from pulsar_txn_spark.store.records import Code
from pulsar_txn_spark.txn.batch import Attempt, SinkRules


@dataclass(frozen=True, slots=True)
class SlotAttempt:
    """One attempt at a slot, as an internal option carries it to the writer.

    Parameters
    ----------
    nonce : str
        Of the transaction.
    slot : str
    number : int
        Counts the attempts at the slot from 1.
    sink_id : str or None
    sink_suffix : str
    query_id : str or None
    batch_id : int
    driver : str
    checkpoint_query_id : str
    attempt : str
        These are for the :class:`~pulsar_txn_spark.spark.sink.job.WriteJob`.
    """

    nonce: str
    slot: str
    number: int
    sink_id: str | None
    sink_suffix: str
    query_id: str | None
    batch_id: int
    driver: str
    checkpoint_query_id: str
    attempt: str

    def to_option(self) -> str:
        """Return the option's text."""
        return json.dumps([getattr(self, name) for name in self.__dataclass_fields__])

    @classmethod
    def from_option(cls, text: str) -> SlotAttempt:
        """Read the option's text."""
        return cls(*json.loads(text))

    def job(self, options: Options, rules: SinkRules) -> WriteJob:
        """Return what the tasks of this attempt have in common."""
        return WriteJob(
            options=options,
            store_uuid=store_uuid(options),
            nonce=self.nonce,
            sink_id=self.sink_id,
            query_id=self.query_id,
            batch_id=self.batch_id,
            driver=self.driver,
            rules=rules,
            sink_suffix=self.sink_suffix,
            checkpoint_query_id=self.checkpoint_query_id,
            attempt=self.attempt,
        )


def stage(
    components: Components,
    slot: SlotAttempt,
    attempt: Attempt,
    messages: Sequence[TaskCommitMessage],
) -> None:
    """Store the result of an attempt at a slot.

    Raises
    ------
    TransactionConflictError
        If a later attempt was declared.
    TransactionAbortedError
        If the transaction was aborted.
    """
    staged = StagedWrite(
        tasks=[TaskWrite.FromString(message.record) for message in messages],
        txn_id=attempt.txn.key,
        replay=attempt.replay,
        query=attempt.key.query,
        execution_id=messages[0].execution_id,
    )
    answer = components.store.stages.stage(
        components.coordinator.shard(slot.nonce),
        slot.nonce,
        slot.slot,
        slot.number,
        staged.SerializeToString(deterministic=True),
    )
    if answer.code is not Code.OK:
        # An abort deletes what was declared and staged: the header says why.
        components.coordinator.require_not_aborted(slot.nonce)
        raise TransactionConflictError(
            f"write {slot.slot!r} of the transaction was run again (attempt "
            f"{answer.attempt_number}), this was attempt {slot.number}: its rows are dropped"
        )


def staged_writes(
    components: Components, shard: int, nonce: str, attempts: Mapping[str, int]
) -> list[StagedWrite]:
    """Return the results of attempts at slots, which all have one transaction.

    Parameters
    ----------
    components : Components
    shard : int
    nonce : str
    attempts : mapping of str to int
        The number of the attempt that counts, by slot; at least one.

    Raises
    ------
    TransactionConflictError, TransactionAbortedError
    """
    records = components.store.stages.read(shard, nonce)
    writes = []
    for slot, number in attempts.items():
        record = records.get(f"{slot}/{number}")
        if record is None:
            components.coordinator.require_not_aborted(nonce)
            raise TransactionConflictError(
                f"write {slot!r} (attempt {number}) succeeded, but its result is not in the store: "
                "nothing was committed"
            )
        writes.append(StagedWrite.FromString(record))
    transactions = {(write.txn_id, write.replay, write.query) for write in writes}
    if len(transactions) != 1:
        raise TransactionConflictError(
            f"the writes of one transaction ended up in several: {sorted(transactions)}; nothing "
            "was committed"
        )
    return writes
