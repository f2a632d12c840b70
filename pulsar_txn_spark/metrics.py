"""Every metric, once: the counting, the HTTP endpoint and docs/metrics.md come from this table.

What processes count ends up in the metadata store, with the next decision or sweep of the process.
Most of the work is done in Python workers that Spark starts and ends as it likes: nobody
could scrape them. So an endpoint in any process shows the counts of all of them. What can be told
by a script of the store is counted by that script, in the very step that it counts.

This module knows no store and no Prometheus.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pulsar_txn_spark.backports import StrEnum


class Kind(StrEnum):
    """What a metric is, in Prometheus' words.

    NAMED_COUNTER is a counter whose name PIP-160 gives without ``_total``. It is exported under
    that very name, and as ``untyped``, because the format wants the suffix on a counter.
    """

    COUNTER = "counter"
    NAMED_COUNTER = "untyped"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Label(StrEnum):
    """Names of labels. ``cluster`` stands on every metric: the uuid of the metadata store."""

    CLUSTER = "cluster"
    COORDINATOR = "coordinator_id"
    RESULT = "result"
    INDEX = "index"
    CAUSE = "cause"
    TOPIC = "topic"
    SEGMENT = "segment"


WRITES_BY_SEGMENT = "writes-by-segment"
ACKS_BY_SUBSCRIPTION = "acks-by-segment-subscription"
BY_DEADLINE = "txn-by-deadline"
BY_FINAL_STATE = "txn-by-final-state"

VALUES: Mapping[Label, tuple[str, ...]] = {
    Label.RESULT: ("ok", "conflict", "reject"),
    Label.INDEX: (WRITES_BY_SEGMENT, ACKS_BY_SUBSCRIPTION, BY_DEADLINE, BY_FINAL_STATE),
    Label.CAUSE: ("owner", "newer-attempt", "lease-over", "administrator"),
}
"""Labels that have these values and no others; they are exported from the start, as 0."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Parameters
    ----------
    name : str
        As exported.
    kind : Kind
    meaning : str
        One or two sentences.
    remedy : str
        What to do when it is bad.
    labels : tuple of Label
        Beside ``cluster``.
    buckets : tuple of float
        Upper bounds of a histogram's buckets, without infinity.
    scale : int
        Sums are kept as whole numbers of 1/scale of the unit.
    by_script : bool
        Counted by the store's scripts, each coordinator for itself.
    with_decision : bool
        Counted in the very step of the decision that is counted.
    source : str
        The document that asks for it; empty = this package.
    """

    name: str
    kind: Kind
    meaning: str
    remedy: str
    labels: tuple[Label, ...] = ()
    buckets: tuple[float, ...] = ()
    scale: int = 1
    by_script: bool = False
    with_decision: bool = False
    source: str = ""


_TC = (Label.COORDINATOR,)
_SEGMENT = (Label.TOPIC, Label.SEGMENT)
_SIZES = (128, 512, 1024, 2048, 4096, 16384, 102_400, 1_048_576)
_RECORDS = (10, 50, 100, 200, 500, 1000)
_DELAYS = (0.001, 0.005, 0.01)
_MICROSECONDS = 1_000_000

# -- PIP-471 -------------------------------------------------------------------------------------

OP_WRITES = Metric(
    "pulsar_txn_metadata_store_op_writes_total",
    Kind.COUNTER,
    "Operation records written.",
    "Far more than tasks times segments times micro-batches: tasks fail and are tried again.",
    _TC,
    by_script=True,
    source="PIP-471",
)
HEADER_CAS = Metric(
    "pulsar_txn_metadata_store_header_cas_total",
    Kind.COUNTER,
    "Compare-and-sets that were to decide a header: `ok` = decided; `conflict` = it was decided "
    "before (also by a request of the same owner whose reply was lost); `reject` = not allowed to "
    "(another attempt's, lease not over, no header).",
    "`conflict` that rises: lost replies, or transactions whose lease ends before their commit "
    "(raise `txn.timeoutMs`). `reject` that rises: zombies; look for a second driver.",
    (Label.COORDINATOR, Label.RESULT),
    with_decision=True,
    source="PIP-471",
)
INDEX_QUERY = Metric(
    "pulsar_txn_metadata_store_index_query_seconds",
    Kind.HISTOGRAM,
    "Time of a query of an index, round trip included: `writes-by-segment` is the gate (pins, "
    "dropped writers, floor), `acks-by-segment-subscription` the cursors; all segments of one "
    "request count as one query.",
    "Slow: the store's disk (every change waits for an fsync), its CPU, or the network. A gate "
    "with thousands of dropped writers is slow by itself.",
    (Label.INDEX,),
    (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0),
    _MICROSECONDS,
    source="PIP-471",
)
OUTSTANDING_OPS = Metric(
    "pulsar_txn_metadata_store_outstanding_op_records",
    Kind.GAUGE,
    "Operation records that are not collected yet. They go when every segment of their "
    "transaction has materialized its decision.",
    "Rises and rises: decisions stay pending; see `pulsar_txn_stuck_participants`.",
    _TC,
    by_script=True,
    source="PIP-471",
)

# -- PIP-160 -------------------------------------------------------------------------------------


def _aggregation(prefix: str, what: str, records: str, labels: tuple[Label, ...]) -> list[Metric]:
    """Return PIP-160's six metrics of one kind of aggregated record."""
    triggers = (
        ("records", "the most records that one may hold"),
        ("size", "the most bytes that one may hold"),
        ("delay_time", "the longest that a record may wait"),
    )
    return [
        Metric(
            f"{prefix}_{records}",
            Kind.HISTOGRAM,
            f"Records in one aggregated {what} entry.",
            "Nearly always 1: aggregation only costs delay; switch it off.",
            labels,
            _RECORDS,
            source="PIP-160",
        ),
        Metric(
            f"{prefix}_batched_log_entry_size_bytes",
            Kind.HISTOGRAM,
            f"Bytes of one aggregated {what} entry.",
            "Near the limit: lower the number of records.",
            labels,
            _SIZES,
            source="PIP-160",
        ),
        Metric(
            f"{prefix}_batched_log_olderst_record_delay_time_seconds",
            Kind.HISTOGRAM,
            f"How long the oldest record of an aggregated {what} entry waited (the name is spelt "
            "as in PIP-160).",
            "Longer than the delay that is set: the process is starved of CPU.",
            labels,
            _DELAYS,
            _MICROSECONDS,
            source="PIP-160",
        ),
        *(
            Metric(
                f"{prefix}_batched_log_triggering_count_by_{trigger}",
                Kind.NAMED_COUNTER,
                f"Aggregated {what} entries that were written because of {limit}.",
                "Tells which limit works: raise that one for larger entries.",
                labels,
                source="PIP-160",
            )
            for trigger, limit in triggers
        ),
    ]


(
    TC_LOG_RECORDS,
    TC_LOG_BYTES,
    TC_LOG_DELAY,
    TC_LOG_BY_RECORDS,
    TC_LOG_BY_SIZE,
    TC_LOG_BY_DELAY,
) = _aggregation("pulsar_txn_tc", "operation-record", "log_records_count_per_entry", _TC)
(
    ACK_LOG_RECORDS,
    ACK_LOG_BYTES,
    ACK_LOG_DELAY,
    ACK_LOG_BY_RECORDS,
    ACK_LOG_BY_SIZE,
    ACK_LOG_BY_DELAY,
) = _aggregation(
    "pulsar_pending_ack", "acknowledgement-record", "batched_log_records_count_per_entry", ()
)

# -- PIP-373 -------------------------------------------------------------------------------------

TXN_TOPICS = Metric(
    "pulsar_broker_using_txn_topics_count",
    Kind.GAUGE,
    "Topics that have ever been written to by a transaction, among the first 500 by name. PIP-373 "
    "calls it a counter; it goes down when such a topic is deleted.",
    "A topic that should not be there: it is written with `transactions=true` by somebody.",
    source="PIP-373",
)

# -- what an operator asks first -----------------------------------------------------------------

STORE_UP = Metric(
    "pulsar_txn_store_up",
    Kind.GAUGE,
    "1 if the metadata store answered this scrape, 0 if it did not. With 0 the other metrics are "
    "missing: they are not known.",
    "`pulsar-txn doctor` says why.",
)
OPEN = Metric(
    "pulsar_txn_open_transactions",
    Kind.GAUGE,
    "Transactions that are OPEN now.",
    "More than queries times sinks: drivers died; sweeps abort them when their leases are over.",
    _TC,
)
OLDEST_OPEN = Metric(
    "pulsar_txn_oldest_open_transaction_age_seconds",
    Kind.GAUGE,
    "Age of the oldest OPEN transaction, 0 if there is none. Readers of its segments stand in "
    "front of it.",
    "Longer than a micro-batch takes: `pulsar-txn txn list`, then look at its driver, or "
    "`pulsar-txn txn abort`.",
    _TC,
)
COMMITS = Metric(
    "pulsar_txn_commits_total",
    Kind.COUNTER,
    "Transactions decided for COMMITTED.",
    "Stands still although input comes: look at the query.",
    _TC,
    with_decision=True,
)
ABORTS = Metric(
    "pulsar_txn_aborts_total",
    Kind.COUNTER,
    "Transactions decided for ABORTED, by who did it: `owner` (its job failed), `newer-attempt` "
    "(a restart, or a second driver), `lease-over` (its driver was silent), `administrator`.",
    "`lease-over`: drivers die or stall. `newer-attempt` without restarts: two drivers run on one "
    "checkpoint. `owner`: see the job's errors.",
    (Label.COORDINATOR, Label.CAUSE),
    with_decision=True,
)
DECIDED = Metric(
    "pulsar_txn_decided_headers",
    Kind.GAUGE,
    "Decided transactions whose header is not collected yet (60 s after the decision at least).",
    "Rises and rises: no sweep runs (`pulsar-txn sweep --every 30`), or an old open transaction "
    "retains the younger ones of its coordinator. After an outage of the store one may stay until "
    "a broker opens its coordinator anew: see docs/broker-transactions.md.",
    _TC,
)
STUCK = Metric(
    "pulsar_txn_stuck_participants",
    Kind.GAUGE,
    "Segments that have not materialized a decision more than 60 s after it: its header waits for "
    "them. Of each coordinator the 20 oldest pending decisions are examined; at most 100 segments "
    "are counted.",
    "`pulsar-txn doctor` names them; `pulsar-txn sweep` materializes decisions, or says why not.",
)
OLDEST_UNMATERIALIZED = Metric(
    "pulsar_txn_oldest_unmaterialized_decision_age_seconds",
    Kind.GAUGE,
    "Age of the oldest decision that is pending at a participant; 0 if none is.",
    "The same as for `pulsar_txn_stuck_participants`.",
    _TC,
)
LAG = Metric(
    "pulsar_txn_max_read_position_lag_messages",
    Kind.GAUGE,
    "Messages between maxReadPosition (how far readers may read) and the last one in the segment. "
    "On Pulsar an estimate where there are many.",
    "`pulsar-txn topic describe` names the transaction that holds the segment.",
    _SEGMENT,
)
DROPPED = Metric(
    "pulsar_txn_dropped_writers",
    Kind.GAUGE,
    "Writers whose entries are never read: failed tasks and aborted transactions. A read of the "
    "segment carries those of its range.",
    "Thousands: a job fails over and over; fix it. They go when the data they lie in is deleted.",
    _SEGMENT,
)
LEFT_OUT = Metric(
    "pulsar_txn_segments_left_out",
    Kind.GAUGE,
    "Segments that have no samples of their own, because only 100 have: those that block readers "
    "first, then by name. Topics beyond the first 500 by name are not looked at.",
    "Not a fault. An alert on a single segment has to know that it may be left out.",
)
BATCH_BYTES = Metric(
    "pulsar_txn_micro_batch_bytes",
    Kind.HISTOGRAM,
    "Bytes that a committed micro-batch (or batch write) wrote to segments, as its tasks' receipts "
    "say. The bytes of tasks that failed are not in it.",
    "Tiny ones: a longer trigger interval costs less.",
    buckets=tuple(float(1 << shift) for shift in (10, 14, 18, 20, 22, 24, 26, 28, 30)),
)
BATCH_MESSAGES = Metric(
    "pulsar_txn_micro_batch_messages",
    Kind.HISTOGRAM,
    "Messages that a committed micro-batch (or batch write) wrote.",
    "As for its bytes.",
    buckets=tuple(float(10**n) for n in range(8)),
)
BATCH_ROUND_TRIPS = Metric(
    "pulsar_txn_micro_batch_round_trips",
    Kind.HISTOGRAM,
    "Round trips to the metadata store that a committed micro-batch took, to the decision and with "
    "it: those of the writing tasks that counted, and of the commit. Not in it: planning and "
    "reading of the source, tasks that failed, materializing the decision.",
    "Grows with tasks and segments: fewer partitions.",
    buckets=(5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0),
)
ROUND_TRIPS = Metric(
    "pulsar_txn_store_round_trips_total",
    Kind.COUNTER,
    "Round trips to the metadata store, of everybody. What a process has not delivered when it is "
    "killed, and what a failed task made, is missing.",
    "Relates the load of the store to commits.",
)
SEGMENTS_TRIMMED = Metric(
    "pulsar_txn_segments_trimmed_total",
    Kind.COUNTER,
    "Times that a sweep has let data go at the beginning of a segment, by the topic's retention.",
    "Stands still although a retention is set: `pulsar-txn topic retention` names who holds the "
    "data; mostly a subscription that nobody uses any more.",
)
SEGMENTS_DELETED = Metric(
    "pulsar_txn_segments_deleted_total",
    Kind.COUNTER,
    "Segments that sweeps have deleted with all of their metadata.",
    "As for `pulsar_txn_segments_trimmed_total`.",
)
SEGMENTS_SCALED = Metric(
    "pulsar_txn_segments_scaled_total",
    Kind.COUNTER,
    "Splits and merges that sweeps have made by the topics' scaling policies.",
    "Rises all the time: the load swings faster than the policy's pauses; make them longer, or the "
    "distance between split and merge wider.",
)

METRICS: tuple[Metric, ...] = tuple(
    metric for metric in list(globals().values()) if isinstance(metric, Metric)
)
"""All of them, in the order of the documentation."""

BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in METRICS}

FLUSHED_AT_LEAST_EVERY_S = 30.0
"""A process that works flushes what it has counted at least so often: one request in 30 s."""

SUM = "sum"
INFINITY = "+Inf"


def bucket_of(metric: Metric, value: float) -> str:
    """Return the name of the bucket that a value falls into."""
    for bound in metric.buckets:
        if value <= bound:
            return bound_name(bound)
    return INFINITY


def bound_name(bound: float) -> str:
    """Return a bucket's upper bound as it stands in counts and samples: exactly."""
    return f"{bound:.0f}" if float(bound).is_integer() else repr(bound)


def rounded_bound_name(bound: float) -> str:
    """Return what earlier versions called a bucket in the counts that they left in the store."""
    return f"{bound:g}"


class OpLogCounts:
    """Counts aggregated operation-record entries (PIP-160) into counters."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def batch_stored(
        self, tc: int, trigger: str, records: int, size: int, oldest_waited_s: float
    ) -> None:
        """Count an entry: why it was written, its records and bytes, its oldest record's wait."""
        self._counters.observe(TC_LOG_RECORDS, records, str(tc))
        self._counters.observe(TC_LOG_BYTES, size, str(tc))
        self._counters.observe(TC_LOG_DELAY, oldest_waited_s, str(tc))
        metric = _TRIGGERS.get(trigger)
        if metric is not None:  # an entry that was forced has none of PIP-160's triggers
            self._counters.count(metric, str(tc))


def count_acknowledgements(counters: Counters, records: int, size: int, most: int) -> None:
    """Count the acknowledgements that were placed in one step (PIP-160's pending-ack entries).

    They are those of one request, so that none waits for others, and none for its size.
    """
    counters.observe(ACK_LOG_RECORDS, records)
    counters.observe(ACK_LOG_BYTES, size)
    counters.observe(ACK_LOG_DELAY, 0.0)
    if records >= most:
        counters.count(ACK_LOG_BY_RECORDS)


_TRIGGERS: Mapping[str, Metric] = {
    "records": TC_LOG_BY_RECORDS,
    "size": TC_LOG_BY_SIZE,
    "delay": TC_LOG_BY_DELAY,
}


class Counters:
    """What a process has counted and not flushed yet. Safe to use from several threads.

    A count has a field: ``<metric>|<label value>...``; of a histogram ``...|<upper bound>`` for
    each bucket by itself (they are summed up when they are exported), and ``...|sum``.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._drained_at = time.monotonic()

    def count(self, metric: Metric, *labels: str, amount: int = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self._counts["|".join((metric.name, *labels))] += amount

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """Add a value to a histogram."""
        with self._lock:
            self._counts.update(observation(metric, value, *labels))

    def add(self, counts: Mapping[str, int]) -> None:
        """Add what another process has counted, or what could not be flushed."""
        with self._lock:
            self._counts.update(counts)

    def drain(self) -> dict[str, int]:
        """Return everything, and forget it."""
        with self._lock:
            counts = {field: amount for field, amount in self._counts.items() if amount}
            self._counts.clear()
            self._drained_at = time.monotonic()
        return counts

    @property
    def overdue(self) -> bool:
        """Whether it was not flushed for so long that it is worth a request of its own."""
        return time.monotonic() - self._drained_at > FLUSHED_AT_LEAST_EVERY_S


def observation(metric: Metric, value: float, *labels: str) -> dict[str, int]:
    """Return the counts of one value in a histogram."""
    base = "|".join((metric.name, *labels))
    return {
        f"{base}|{bucket_of(metric, value)}": 1,
        f"{base}|{SUM}": round(value * metric.scale),
    }


def total(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Add counts up."""
    sums: Counter[str] = Counter()
    for counters in counts:
        sums.update(counters)
    return dict(sums)
