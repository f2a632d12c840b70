"""What tells a replay of a committed batch from other data under the same batch id (INV-15).

Three kinds of evidence are recorded with the decision and compared in a replay:

- *planned*: a digest of Spark's own offsets of the batch, which lie in the checkpoint. A replay
  uses the very same ones. A batch that was planned anew, on a checkpoint that was restored or
  copied, has others: they contain the time of planning.
- *ranges*: what the sources of this package read, those on the sink's own metadata store.
- *rows*: how many rows the tasks were given, and a fingerprint of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from pulsar_txn_spark.errors import FencedError, TransactionConflictError
from pulsar_txn_spark.store.metadata_pb2 import EarlierBatch, Evidence, TaskWrite
from pulsar_txn_spark.txn.pending_ack import ReadPlan, digest_of

_MODULUS = 1 << 64
_OTHER_RANGES = "its sources of this package read other ranges"


class Compared(Enum):
    """What a replay is compared by (option ``replayEvidence``)."""

    AUTO = "auto"
    OFFSETS = "offsets"
    ROWS = "rows"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """What Spark planned for a batch, as its checkpoint has it.

    Parameters
    ----------
    digest : bytes
        Of Spark's own record of the batch.
    foreign : bool or None
        Whether a source took part that is not of this package, or not on the sink's metadata store.
        None if that cannot be told.
    """

    digest: bytes
    foreign: bool | None


def _nothing_planned(_: int) -> PlannedBatch | None:
    return None


@dataclass(frozen=True, slots=True)
class EvidenceRule:
    """How a query's batches are told from each other.

    Parameters
    ----------
    compared : Compared
    planned : callable
        Returns what Spark planned for a batch id; None if it cannot be had.
    promised : bool
        Whether the tasks made no fingerprint because `planned` was known to have the batch.
    """

    compared: Compared = Compared.AUTO
    planned: Callable[[int], PlannedBatch | None] = _nothing_planned
    promised: bool = False


DEFAULT_RULE = EvidenceRule()


def evidence_of(
    rule: EvidenceRule, batch: int, plans: Sequence[ReadPlan], tasks: Sequence[TaskWrite]
) -> Evidence:
    """Return what there is to tell a batch by.

    Raises
    ------
    TransactionConflictError
        If Spark's offsets of the batch should be there and are not.
    """
    evidence = Evidence(
        rows=sum(task.rows for task in tasks),
        plans=sorted({digest_of([plan]) for plan in plans}),
    )
    if tasks and all(task.HasField("fingerprint") for task in tasks):
        evidence.fingerprint = sum(task.fingerprint for task in tasks) % _MODULUS
    planned = rule.planned(batch)
    if planned is not None:
        evidence.planned = planned.digest
        if planned.foreign is not None:
            evidence.foreign = planned.foreign
    elif rule.promised:
        raise TransactionConflictError(
            f"Spark's offsets of batch {batch} were expected in the checkpoint and are not there. "
            "The checkpoint was changed while the query ran, so that a replay of the batch could "
            "not be told from other data. Nothing was committed; restore the checkpoint, or start "
            "with a new one"
        )
    elif rule.compared is Compared.OFFSETS and not plans:
        raise TransactionConflictError(
            "replayEvidence=offsets compares Spark's offsets, but the checkpoint cannot be read "
            "from here, and no source of this package took part. A replay could not be told from "
            "other data. Nothing was committed; use replayEvidence=rows if the query is "
            "deterministic, or give the sink the option checkpointLocation with a local path"
        )
    return evidence


def require_same_batch(
    where: str,
    rule: EvidenceRule,
    committed: tuple[bytes, Evidence | None],
    now: tuple[bytes, Evidence],
) -> None:
    """Refuse a replay that is not the batch that was committed.

    Parameters
    ----------
    where : str
        Names sink, batch and transaction.
    rule : EvidenceRule
    committed, now : tuple of bytes and Evidence
        The digest of all ranges, and the rest; no Evidence from versions that recorded none.

    Raises
    ------
    TransactionConflictError
    """
    cause = _difference(rule.compared, *committed, *now)
    if cause is not None:
        raise TransactionConflictError(
            f"{where} with other input than it has now ({cause}). The checkpoint was restored from "
            "elsewhere or is a copy that went its own way, or its offsets were changed. Nothing "
            "was written; start with the checkpoint that the committed batch belongs to, or with a "
            "new one. If this is that checkpoint, and the query is not deterministic, set "
            "replayEvidence=none until the batch is done (the option has other values). If its "
            "subscription or topics were changed since, repeat the batch with those that it had"
        )


def _difference(
    compared: Compared,
    committed_ranges: bytes,
    committed: Evidence | None,
    ranges: bytes,
    now: Evidence,
) -> str | None:
    """Say in what a replay differs from the committed batch; None if it does not."""
    same_ranges = committed_ranges == ranges
    if committed is None or compared is Compared.NONE:
        return None if same_ranges else _OTHER_RANGES
    if compared is Compared.ROWS:
        return _rows_differ(committed, now) if same_ranges else _OTHER_RANGES
    if committed.planned and committed.planned == now.planned:
        return None
    if not same_ranges and not _one_includes_the_other(committed.plans, now.plans):
        return _OTHER_RANGES
    same_reads = same_ranges and bool(ranges)
    return _planned_anew(compared, committed, now, same_reads=same_reads)


def _planned_anew(
    compared: Compared, committed: Evidence, now: Evidence, *, same_reads: bool
) -> str | None:
    """Say in what a batch differs whose planning is another one, or is not known of both."""
    if same_reads and _only_own_sources(committed, now):
        return None  # what a source of another kind, or on another store, has read is in no range
    both = bool(committed.planned and now.planned)
    if compared is Compared.OFFSETS:
        if both:
            return "Spark planned it anew"
        return None if same_reads else "Spark's offsets are not known of both"
    rows = _rows_differ(committed, now)
    if rows is None or not both:
        return rows
    return f"Spark planned it anew, with a source of another kind or on another store: {rows}"


def _only_own_sources(committed: Evidence, now: Evidence) -> bool:
    known = [evidence.foreign for evidence in (now, committed) if evidence.HasField("foreign")]
    return bool(known) and not known[0]


def _one_includes_the_other(some: Iterable[bytes], others: Iterable[bytes]) -> bool:
    """Tell whether two attempts read alike but for sources of which no task ran in one of them.

    Adaptive execution cancels the reading of one side of a join if the other side is empty, in one
    run earlier than in the next.
    """
    first, second = set(some), set(others)
    return first <= second or second <= first


def _rows_differ(committed: Evidence, now: Evidence) -> str | None:
    if committed.rows != now.rows:
        return f"it had {committed.rows} rows, now {now.rows}"
    if committed.rows == 0:
        return None
    if not (committed.HasField("fingerprint") and now.HasField("fingerprint")):
        return "the rows have no fingerprint that could be compared"
    if committed.fingerprint != now.fingerprint:
        return f"its {now.rows} rows have another fingerprint"
    return None


def require_same_lineage(sink: str, rule: EvidenceRule, before: EarlierBatch) -> None:
    """Refuse a batch on a checkpoint that has another batch before it than the sink has.

    `before` is what the sink had when the attempt began.

    Raises
    ------
    FencedError
        If another driver, on a copy of the checkpoint, committed the batch before.
    """
    if not before.planned or rule.compared is Compared.NONE:
        return
    own = rule.planned(before.batch_id)
    if own is not None and own.digest not in before.planned:
        raise FencedError(
            f"sink {sink!r}: batch {before.batch_id} of this query was committed as another "
            "driver planned it, on a copy of this checkpoint: the two went different ways. "
            "Nothing was written; go on with the checkpoint that the committed batch belongs to, "
            "or start with a new one"
        )


def digest_of_plan(record: bytes) -> bytes:
    """Return the digest of Spark's record of a planned batch."""
    return hashlib.sha256(record).digest()
