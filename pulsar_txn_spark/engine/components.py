"""Puts the layers together: from options to a store, a log and the transaction components."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from pulsar_txn_spark import metrics
from pulsar_txn_spark.config import PulsarConfig, StoreConfig
from pulsar_txn_spark.errors import (
    CommitStateUnknownError,
    StoreRolledBackError,
    TransactionNotFoundError,
)
from pulsar_txn_spark.options import Options
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.process_lock import ProcessLock
from pulsar_txn_spark.segments.catalog import PulsarTopics, Topics
from pulsar_txn_spark.segments.log import SegmentLog, SegmentRef
from pulsar_txn_spark.segments.retention import RetentionSweep
from pulsar_txn_spark.segments.scaler import Scaler
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.store.records import EndedBy, TxnId
from pulsar_txn_spark.store.redis.connection import Client, connect
from pulsar_txn_spark.store.redis.endpoint import place_of
from pulsar_txn_spark.store.redis.store import RedisStore
from pulsar_txn_spark.txn.coordinator import TransactionCoordinator
from pulsar_txn_spark.txn.sweeper import (
    DEFAULT_RETENTION_MS,
    BackgroundSweeper,
    SegmentEnds,
    Sweeper,
    SweepReport,
)
from pulsar_txn_spark.txn.transaction_buffer import MetadataTransactionBuffer
from pulsar_txn_spark.txn.watcher import SegmentWatcher


@dataclass(frozen=True, slots=True)
class Components:
    """Everything that works on one store and one log, in one process."""

    store: RedisStore
    log: SegmentLog
    topics: Topics
    coordinator: TransactionCoordinator
    buffer: MetadataTransactionBuffer
    sweeps: BackgroundSweeper

    def sweeper(self, retention_ms: int = DEFAULT_RETENTION_MS) -> Sweeper:
        """Return a sweeper that asks this log for the ends of segments."""
        return _sweeper(self.topics, self.log, self.coordinator, retention_ms)

    def retention(self) -> RetentionSweep:
        """Return what applies the retention of topics."""
        return _retention(self.log, self.coordinator)

    def scaler(self) -> Scaler:
        """Return what splits and merges segments by the policies of topics."""
        return Scaler(self.store, self.log, self.topics)

    def require_store(self, uuid: str) -> None:
        """Refuse to do a task's work by another metadata store than its driver's.

        Readers by that one would not know the task's writers, and show their rows (INV-11).

        Parameters
        ----------
        uuid : str
            Of the driver's store.

        Raises
        ------
        StoreRolledBackError
        """
        reached = self.store.identity.uuid
        if reached != uuid:
            raise StoreRolledBackError(
                f"this executor reaches metadata store {reached}, the driver {uuid}: nothing was "
                "read or written. Give store.url a server that all of them reach"
            )

    def watcher(self, segments: Collection[str] = ()) -> SegmentWatcher:
        """Return a watcher for one waiting thread; close it."""
        return SegmentWatcher(self.store.event_feed(), segments)


_Key = tuple[int, StoreConfig, PulsarConfig | None]
_opened: dict[_Key, Components] = {}
_lock = ProcessLock()


def open_components(options: Options) -> Components:
    """Return the components for these options; opened once per process.

    Spark reuses its Python workers for many batches and queries, so the options are the key. A
    forked worker never uses a connection of its parent.

    Raises
    ------
    StoreUnavailableError, StoreUnsafeError, SegmentLogUnavailableError
    """
    key = (os.getpid(), options.store, options.pulsar)
    with _lock:
        existing = _opened.get(key)
        if existing is None:
            existing = _opened[key] = _open(connect(options.store), options)
    return existing


def _open(client: Client, options: Options) -> Components:
    store = RedisStore(client, options.store.coordinators, place_of(options.store))
    # Each backend is imported where it is chosen: a worker does not load the other one's library.
    log: SegmentLog
    pulsar_topics: PulsarTopics | None = None
    scalable_topics: Callable[[], PulsarTopics] | None = None
    config = options.pulsar
    if config is None:
        from pulsar_txn_spark.backends.embedded.log import EmbeddedSegmentLog

        log = EmbeddedSegmentLog(client, store.raise_last_seen)
    else:
        from pulsar_txn_spark.backends.pulsar.log import PulsarSegmentLog
        from pulsar_txn_spark.backends.pulsar.native_topic_log import PulsarTopicLog

        log = PulsarSegmentLog(config)
        pulsar_topics = PulsarTopicLog(config)

        def scalable_topics() -> PulsarTopics:
            from pulsar_txn_spark.backends.pulsar.scalable_topic_log import ScalableTopicLog

            return ScalableTopicLog(config)

    return assemble(store, log, pulsar_topics, scalable_topics)


def assemble(
    store: RedisStore,
    log: SegmentLog,
    pulsar_topics: PulsarTopics | None = None,
    scalable_topics: Callable[[], PulsarTopics] | None = None,
) -> Components:
    """Return the components that work on a store and a log."""
    coordinator = TransactionCoordinator(store)

    def end(txn: TxnId, cause: str) -> None:
        try:
            coordinator.abort(txn, EndedBy.ADMIN, cause=cause)
        except TransactionNotFoundError:
            return  # it was decided, and collected
        except CommitStateUnknownError:
            if store.transactions.read(txn) is not None:  # else the same
                raise

    topics = Topics(store, log, pulsar_topics, end, scalable_topics)
    return Components(
        store,
        log,
        topics,
        coordinator,
        MetadataTransactionBuffer(coordinator),
        BackgroundSweeper(_sweeper(topics, log, coordinator, DEFAULT_RETENTION_MS)),
    )


def _retention(log: SegmentLog, coordinator: TransactionCoordinator) -> RetentionSweep:
    def readable_to(refs: Sequence[SegmentRef]) -> list[Position]:
        by_id = {ref.id: ref for ref in refs}
        ranges = MetadataTransactionBuffer(coordinator).readable(
            list(by_id),
            lambda id_: log.last_confirmed(by_id[id_]),
            [EARLIEST] * len(by_id),
            ends_only=True,
        )
        return [readable.end for readable in ranges]

    return RetentionSweep(coordinator.store, log, readable_to, secrets.token_hex(8))


def _sweeper(
    topics: Topics, log: SegmentLog, coordinator: TransactionCoordinator, retention_ms: int
) -> Sweeper:
    retention = _retention(log, coordinator)

    def finish_deletions(report: SweepReport) -> None:
        finished, failed = topics.finish_deletions()
        report.topics_deleted += finished
        for topic, error in failed.items():
            report.note_stuck(f"the deletion of {topic}", error)

    def finish_changes(report: SweepReport) -> None:
        finished, failed = topics.finish_changes()
        report.changes_finished += finished
        for topic, error in failed.items():
            report.note_stuck(topic, error)

    def let_data_go(report: SweepReport) -> None:
        done = retention.sweep(lambda segment: sweeper.settle(segment, report))
        report.segments_trimmed += len(done.trimmed)
        report.segments_deleted += len(done.deleted)
        counters = coordinator.store.counters
        counters.count(metrics.SEGMENTS_TRIMMED, amount=len(done.trimmed))
        counters.count(metrics.SEGMENTS_DELETED, amount=len(done.deleted))
        for topic, why in done.failed.items():
            report.note_stuck(f"the retention of {topic}", why)

    ends = partial(_segment_ends, topics, log)
    # A change may need memory that a full server does not have: what frees some comes first.
    maintenance_tasks = [finish_deletions, let_data_go, finish_changes]
    sweeper = Sweeper(coordinator, ends, retention_ms, maintenance_tasks=maintenance_tasks)
    return sweeper


def _segment_ends(topics: Topics, log: SegmentLog, segment_id: str) -> SegmentEnds | None:
    topology = topics.find(TopicName.parse(segment_id.rsplit("/", 2)[0]))
    for segment in topology.readable if topology else ():
        if segment.ref.id == segment_id:
            return SegmentEnds(log.last_confirmed(segment.ref), log.trimmed_to(segment.ref))
    return None
