"""How many messages a query is behind the latest committed one.

Spark's Kafka source reports this as ``metrics`` of its source. A Python data source cannot:
``ReportsSourceMetrics`` is an interface of the JVM alone, also in Spark 4.3. So the lag is part of
the latest offset, which Spark shows in the query's progress as it is.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pulsar_txn_spark.segments.log import RangeSize


@dataclass(frozen=True, slots=True)
class Lag:
    """Messages between what was planned and what could be read, over the segments of a query.

    Parameters
    ----------
    least, most, total : int
        Of a segment, and of all segments together.
    mean : float
        Of a segment.
    exact : bool
        Whether they were counted. Otherwise some are estimates.
    """

    least: int
    mean: float
    most: int
    total: int
    exact: bool

    @classmethod
    def of(cls, backlogs: Collection[RangeSize], segments: int) -> Lag:
        """Sum up the backlogs of the segments that have one, among so many segments."""
        messages = [backlog.messages for backlog in backlogs]
        messages += [0] * (segments - len(messages))
        total = sum(messages)
        return cls(
            min(messages, default=0),
            total / max(1, len(messages)),
            max(messages, default=0),
            total,
            all(backlog.exact for backlog in backlogs),
        )

    def to_json(self) -> dict[str, Any]:
        """Return what the progress shows; the names follow those of Spark's Kafka source."""
        return {
            "minMessagesBehindLatest": self.least,
            "avgMessagesBehindLatest": self.mean,
            "maxMessagesBehindLatest": self.most,
            "messagesBehindLatest": self.total,
            "exact": self.exact,
        }
