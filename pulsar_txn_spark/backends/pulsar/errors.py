"""What Pulsar's results mean to us, by the names that ``pulsar-client`` gives them."""

from __future__ import annotations

from collections.abc import Mapping

from pulsar_txn_spark.errors import (
    DataLossError,
    MessageTooLargeError,
    SegmentLogError,
    SegmentLogUnavailableError,
    SegmentNotFoundError,
    SegmentSealedError,
    UnverifiedReceiptError,
)
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.log import SegmentRef

TRANSIENT = frozenset(
    {
        "AlreadyClosed",
        "BrokerMetadataError",
        "BrokerPersistenceError",
        "ConnectError",
        "Disconnected",
        "Interrupted",
        "LookupError",
        "NotConnected",
        "ReadError",
        "Retryable",
        "ServiceUnitNotReady",
        "TimeOut",
        "Timeout",
        "TooManyLookupRequestException",
    }
)
"""Results that another try may not give again."""

ENTRY_MARGIN_BYTES = 1024
"""So much smaller than the broker's limit an entry has to be.

A bookie stores checksum, metadata and its own header with an entry. Its limit on a frame is 5 MiB
unless ``nettyMaxFrameSizeBytes`` says otherwise: as much as the broker's limit on a message. An
entry between the two limits is neither stored nor refused.
"""


_CHECK_AUTHENTICATION = (
    "Pulsar refuses us; check pulsar.client.authPluginClassName, pulsar.client.authParams and the "
    "role's permission on the namespace"
)
_CHECK_QUOTA = (
    "a backlog quota blocks producers; check the policies of the topic and its namespace. Segments "
    "are created without one"
)
_CHECK_SERVICE = (
    "Pulsar did not answer; check service.url, for pulsar+ssl the TLS options, the network and "
    "the broker's health"
)
_APPENDING = "append to"
_CHECK_SENDING = (
    "Pulsar did not answer within pulsar.producer.sendTimeoutMs; check service.url, for "
    "pulsar+ssl the TLS options, the network and the broker's health. Or a publish rate limit "
    "delays the rows: it counts each one of an entry. Raise it or the timeout, or lower "
    "pulsar.producer.batchingMaxMessages"
)
_TIMEOUTS = frozenset({"TimeOut", "Timeout"})
_REFUSED = "Pulsar refused as long as it was asked again; see what it said"
_ANSWERED = frozenset(
    {
        "BrokerMetadataError",
        "BrokerPersistenceError",
        "Retryable",
        "ServiceUnitNotReady",
        "TooManyLookupRequestException",
    }
)
"""Results of :data:`TRANSIENT` that a broker has sent, if there is a detail."""

_ERRORS: Mapping[str, tuple[type[SegmentLogError], str]] = {
    "TopicTerminated": (SegmentSealedError, "it was sealed and takes no more entries"),
    "TopicNotFound": (SegmentNotFoundError, "there is no such topic on the broker"),
    "MessageTooBig": (MessageTooLargeError, "an entry exceeds the broker's maxMessageSize"),
    "AuthenticationError": (SegmentLogUnavailableError, _CHECK_AUTHENTICATION),
    "AuthorizationError": (SegmentLogUnavailableError, _CHECK_AUTHENTICATION),
    "ErrorGettingAuthenticationData": (SegmentLogUnavailableError, _CHECK_AUTHENTICATION),
    "CertificateError": (SegmentLogUnavailableError, _CHECK_SERVICE),
    "ProducerBlockedQuotaExceededError": (SegmentLogUnavailableError, _CHECK_QUOTA),
    "ProducerBlockedQuotaExceededException": (SegmentLogUnavailableError, _CHECK_QUOTA),
} | dict.fromkeys(TRANSIENT, (SegmentLogUnavailableError, _CHECK_SERVICE))


def translate(result: str, doing: str, segment: SegmentRef, detail: str = "") -> SegmentLogError:
    """Return the error that a result of the client stands for.

    Parameters
    ----------
    result : str
        Name of the client's result or of its exception.
    doing : str
        What failed, as in "cannot <doing> segment ...".
    segment : SegmentRef
        Where.
    detail : str
        What the broker said besides.
    """
    kind, why = _ERRORS.get(result, (SegmentLogError, "look into the broker's log"))
    if result in _TIMEOUTS and doing == _APPENDING:
        why = _CHECK_SENDING
    if detail and result in _ANSWERED:
        why = _REFUSED
    said = f": {detail}" if detail else ""
    return kind(f"cannot {doing} segment {segment.id} ({segment.log_name}): {why} ({result}{said})")


def require_whole(segment: SegmentRef, start: Position, end: Position, gone: Position) -> None:
    """Raise if rows of a range may be gone; of a topic that Pulsar's own retention applies to.

    Parameters
    ----------
    segment : SegmentRef
        What was read.
    start, end : Position
        The range is ``(start, end]``.
    gone : Position
        Up to which everything was deleted.

    Raises
    ------
    DataLossError
    """
    if start < gone:
        raise DataLossError(
            f"rows of ({start}, {end}] of {segment.log_name} may be gone: everything up to "
            f"{gone} was deleted by the broker. It keeps what a subscription of Pulsar's "
            "own still needs, or the retention of the topic's namespace. Give it one of them, "
            "and set failOnDataLoss=false to go on with what is left, or start with a new "
            "checkpoint"
        )


def unverified(segment: SegmentRef, fault: str) -> UnverifiedReceiptError:
    """Return the error of an entry of which nobody knows whether it is in the log.

    Parameters
    ----------
    segment : SegmentRef
        Where to.
    fault : str
        What its receipt, or the lack of one, fails to prove.
    """
    return UnverifiedReceiptError(
        f"segment {segment.id} ({segment.log_name}): {fault}. Nobody can tell whether these rows "
        "are in the log. A task sends them again under a new name; who sends them again without a "
        "transaction may double them"
    )


def too_large(
    segment: SegmentRef, messages: int, size: int, allowed_bytes: int
) -> MessageTooLargeError:
    """Return the error of an entry that Pulsar would not take, or not store.

    Parameters
    ----------
    segment : SegmentRef
        Where to.
    messages, size : int
        How many, and their bytes with their metadata.
    allowed_bytes : int
        The broker's ``maxMessageSize``.
    """
    return MessageTooLargeError(
        f"{messages} message(s) of {size} bytes with their metadata exceed what Pulsar takes for "
        f"segment {segment.id}. It takes {allowed_bytes} bytes (maxMessageSize), of which "
        f"{ENTRY_MARGIN_BYTES} are left for what it puts around them. Make the value smaller, "
        "raise maxMessageSize on brokers and nettyMaxFrameSizeBytes on bookies. For several "
        "messages, lower pulsar.producer.batchingMaxBytes"
    )
