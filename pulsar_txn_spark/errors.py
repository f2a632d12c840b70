"""Every error of this package, under one base class.

A message says what happened, what was expected against what was found, why it matters and what
to do. Errors pickle (Spark carries them from workers to the driver) and never contain a secret.
"""

from __future__ import annotations


class PulsarTxnError(Exception):
    """Base class of every error that this package raises on purpose."""


class OptionError(PulsarTxnError, ValueError):
    """An option is unknown, missing, malformed, or in conflict with another one."""


class JobFileError(PulsarTxnError, ValueError):
    """A job file, or what overrides it, is wrong; names each problem with its place."""


class JobNotReadyError(PulsarTxnError):
    """What a job needs is not there: a topic, the store, Pulsar, or a driver of its own."""


class SparkDriverEndedError(PulsarTxnError):
    """The JVM of Spark's driver ended before the job that it ran."""


class TransactionDomainError(OptionError):
    """A topic of Pulsar's own transactions was given where one of this package's is needed."""


class SchemaError(PulsarTxnError, ValueError):
    """A DataFrame's columns or a row's values cannot be written to a segmented topic."""


class EnvironmentTooOldError(PulsarTxnError):
    """Python, Java, PySpark, Pulsar or Redis is older than what is needed."""


class TopicNotFoundError(PulsarTxnError):
    """A segmented topic does not exist in the metadata store."""


class SubscriptionNotFoundError(PulsarTxnError):
    """A topic has no subscription of that name."""


class TopicExistsError(PulsarTxnError):
    """A segmented topic is already there, in another shape than the one asked for."""


class NotAllowedError(PulsarTxnError):
    """A system property was to be changed by a user (Pulsar's ``NotAllowedException``)."""


class TransactionError(PulsarTxnError):
    """Base class of the errors about one transaction."""


class TransactionConflictError(TransactionError):
    """A write, acknowledgement or decision met a transaction that is in another state."""


class TransactionAbortedError(TransactionConflictError):
    """The transaction was aborted (by its owner, its lease or a newer attempt)."""


class TransactionNotFoundError(TransactionError):
    """There is no header for the transaction: it never existed or was collected."""


class FencedError(TransactionError):
    """A newer attempt, run or query has taken over: this one may not write any more."""


class ReceiveTimeoutError(PulsarTxnError, TimeoutError):
    """No message came in the time that :meth:`Consumer.receive` was given."""


class AlreadyClosedError(PulsarTxnError):
    """A client, producer or consumer was used after it was closed, or in a forked process."""


class CommitStateUnknownError(TransactionError):
    """The decision may or may not have taken effect: read the header before anything else."""


class AcknowledgementConflictError(TransactionConflictError):
    """An acknowledgement overlaps another one, leaves a gap, or belongs to another query."""


class AcknowledgementsFullError(TransactionError):
    """A subscription holds too many messages acknowledged behind one that is not."""


class StoreError(PulsarTxnError):
    """Base class of the errors of the metadata store."""


class StoreUnavailableError(StoreError):
    """The metadata store cannot be reached, or refuses the credentials."""


class StoreUnsafeError(StoreError):
    """The metadata store is configured so that it may lose what it acknowledged."""


class StoreFullError(StoreError):
    """The metadata store has reached its memory limit, and takes no step that begins anything."""


class StoreRolledBackError(StoreError):
    """The store is not the one (or older than the one) that was known before: fail closed."""


class BatchNotRecordedError(StoreRolledBackError):
    """Spark's checkpoint says that a batch is done, and its sink has no record that it committed.

    The store lost it, or the sink was renamed or moved, or it is new in this query: fail closed.
    """


class StoreCorruptError(StoreError):
    """A record breaks an invariant: a pin without a header, an illegal state."""


class SegmentLogError(PulsarTxnError):
    """Base class of the errors of a segment's log."""


class SegmentLogUnavailableError(SegmentLogError):
    """The log's server cannot be reached, refuses the credentials, or timed out."""


class SegmentLogUnreachableError(SegmentLogUnavailableError):
    """Nobody can connect to the log's server: what holds for one segment holds for all of them."""


class SegmentSealedError(SegmentLogError):
    """The segment was sealed: it takes no more entries."""


class TopologyConflictError(SegmentLogError):
    """Another operator changes, or has changed, the segments that were to be changed."""


class SegmentNotFoundError(SegmentLogError):
    """The segment's log does not exist on the server."""


class MessageTooLargeError(SegmentLogError):
    """One message is larger than what the log takes."""


class UnverifiedReceiptError(SegmentLogError):
    """A send was not acknowledged in a way that proves that every row is in the log."""


class DataLossError(PulsarTxnError):
    """Data that was not read yet is gone, or a checkpoint does not fit what is there."""
