"""What a source says of rows that were deleted before it has read them (INV-11)."""

from __future__ import annotations

from pulsar_txn_spark.errors import DataLossError
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topology import Segment

SKIPPED = "%s; skipped, as failOnDataLoss is false"
"""What is logged where the option ``failOnDataLoss`` is false."""


def deleted_segment(segment: Segment, read_to: Position) -> str:
    """Describe the loss of a segment that was deleted before it was read to its end."""
    return (
        f"segment {segment.descriptor} of {segment.ref.topic} was read up to {read_to}, and "
        f"then deleted by retention with all that it had up to {segment.sealed_at}. It is lost "
        "for this query"
    )


def pruned_segment(topic: str, segment: str, read_to: Position) -> str:
    """Describe the loss of a scalable topic's segment that brokers have deleted.

    `segment` is its descriptor, or only its number if it came and went unseen.
    """
    return (
        f"segment {segment} of {topic} was read up to {read_to}, and then deleted by the brokers. "
        "They need no sealed segment that neither a subscription of Pulsar's own nor the "
        "retention of the topic's namespace keeps. What came later in it may be lost for this query"
    )


def trimmed_range(segment: SegmentRef, start: Position, end: Position, trimmed: Position) -> str:
    """Describe the loss of the rows of ``(start, end]`` up to `trimmed`."""
    return (
        f"segment {segment.id} of {segment.topic}: data from {start} on was to be read (to "
        f"{end}), but everything up to {trimmed} has been deleted. It is lost for this query"
    )


def another_topic(segment: SegmentRef, start: Position) -> str:
    """Describe that a topic has another one's name, whose rows were read up to `start`."""
    return (
        f"segment {segment.id} of {segment.topic} was read up to {start}, but never had ledger "
        f"{start.ledger}. So this is another topic of that name, as of another cluster, or of one "
        "that was built again (service.url, admin.url). What it has in lower ledgers is lost for "
        "this query"
    )


def another_topic_error(loss: str) -> DataLossError:
    """Return the error of a query that meets another topic than the one that it has read."""
    return DataLossError(
        f"{loss}. Nothing was skipped: let the URLs lead to the cluster that the checkpoint is of, "
        "or start with a new checkpoint, which reads this topic. With failOnDataLoss=false the "
        "query waits for higher ledgers, and goes on there"
    )


def lost_tail(segment: SegmentRef, end: Position, last: Position) -> str:
    """Describe the loss of acknowledged rows behind the end of a log."""
    return (
        f"segment {segment.id} of {segment.topic}: rows up to {end} were acknowledged, but its log "
        f"ends at {last}. What lay behind is lost"
    )


def data_loss_error(loss: str) -> DataLossError:
    """Return the error of a query that a loss stops."""
    return DataLossError(
        f"{loss}. Nothing was skipped: set failOnDataLoss=false to go on with what is left, or "
        "start with a new checkpoint; then raise the topic's retention. A segmented topic also "
        "holds its data until a query with a subscription has read it"
    )
