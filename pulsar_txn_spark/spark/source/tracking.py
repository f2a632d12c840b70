"""The stream reader on a PySpark without admission control, which is any before 4.2.

Such a PySpark asks for the latest offset without the start of the micro-batch. The start matters:
limits count from it, and a child is read after its parents (INV-10). So this reader tracks it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pulsar_txn_spark.announcement import announce
from pulsar_txn_spark.errors import DataLossError
from pulsar_txn_spark.position import EARLIEST
from pulsar_txn_spark.spark.error_boundary import plain_errors
from pulsar_txn_spark.spark.source.offsets import SourceOffset
from pulsar_txn_spark.spark.source.stream import PulsarTxnStreamReader
from pulsar_txn_spark.spark.versions import ADMISSION_CONTROL, installed_pyspark

_Offset = dict[str, Any]


def stream_reader(options: Mapping[str, str], schema: StructType) -> PulsarTxnStreamReader:
    """Return the stream reader for the installed PySpark."""
    kind = PulsarTxnStreamReader if ADMISSION_CONTROL.is_available() else TrackingStreamReader
    return kind(options, schema)


@plain_errors
class TrackingStreamReader(PulsarTxnStreamReader):
    """A stream reader that knows where a micro-batch starts although Spark does not say so.

    Spark plans a micro-batch for each answer of ``latestOffset`` that differs from the start. So
    the last answer is the next start. After a restart Spark first plans an empty range at the end
    of its offset log (``AcceptsLatestSeenOffset``), which is the start then. A new query starts at
    its initial offset. Whatever Spark plans otherwise is refused before it is in the offset log.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(options, schema)
        self._reached: _Offset | None = None
        self._answered: tuple[_Offset, _Offset] | None = None

    def latestOffset(self) -> _Offset:  # type: ignore[override]  # noqa: N802 - as Spark asks
        """Return how far the next micro-batch reads, within the limits that the options ask for."""
        start = self.initialOffset() if self._reached is None else self._reached
        end = super().latestOffset(start, self.getDefaultReadLimit())
        self._answered = start, end
        self._reached = end
        self._announce_rest(end)
        return end

    def partitions(self, start: _Offset, end: _Offset) -> Sequence[InputPartition]:
        """Plan the tasks of a micro-batch, and note how far it reads."""
        if self._answered is not None and self._answered != (start, end):
            raise DataLossError(
                "Spark reads from another offset than the one that its end was computed for. "
                "Expected the start of the micro-batch, found another one, so that rows would be "
                "lost or read twice. Set spark.sql.streaming.triggerAvailableNowWrapper.enabled to "
                f"false, or use PySpark {ADMISSION_CONTROL.since}"
            )
        self._reached = end
        return super().partitions(start, end)

    def _announce_rest(self, end: _Offset) -> None:
        if self._latest is None:
            return
        ends = SourceOffset.from_json(end).positions()
        latest = self._latest.positions()
        if any(position > ends.get(key, EARLIEST) for key, position in latest.items()):
            announce(
                f"PySpark {installed_pyspark()} has no admission control. With "
                "trigger(availableNow=True) the query ends after one micro-batch, and leaves what "
                "is beyond its limits, and children of split segments, to the next run. PySpark "
                f"{ADMISSION_CONTROL.since} reads all of it"
            )
