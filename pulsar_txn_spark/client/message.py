"""A message as it is sent, and as it is received."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa

from pulsar_txn_spark.backports import UTC
from pulsar_txn_spark.errors import SchemaError
from pulsar_txn_spark.position import MessagePosition
from pulsar_txn_spark.segments.log import ROW_SCHEMA
from pulsar_txn_spark.store.ack_ranges import AckInterval
from pulsar_txn_spark.store.records import SubscriptionRef

_EARLIEST, _LATEST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class MessageId(NamedTuple):
    """Where a message lies."""

    segment: str
    position: MessagePosition

    def __str__(self) -> str:
        return f"{self.segment}@{self.position}"


@dataclass(frozen=True, slots=True)
class Delivery:
    """What an acknowledgement has to know of the moment at which a message was read.

    Parameters
    ----------
    consumer : object
        Who has read it.
    redelivery_epoch : int
        Counts the consumer's ways back to the cursor.
    where : SubscriptionRef
    interval : AckInterval
        ``(previous visible message, message]``.
    before : mapping of SubscriptionRef to MessagePosition
        How far the other segments had been read before.
    """

    consumer: object
    redelivery_epoch: int
    where: SubscriptionRef
    interval: AckInterval
    before: Mapping[SubscriptionRef, MessagePosition]


class Received(NamedTuple):
    """What is left of a message for who acknowledges it by its id."""

    message_id: MessageId
    delivery: Delivery

    @property
    def position(self) -> MessagePosition:
        """Its place in its segment."""
        return self.message_id.position


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it was received.

    Parameters
    ----------
    topic : str
        Full name of the segmented topic.
    segment : str
        Id of the segment that it lies in.
    position : MessagePosition
        Its place there.
    value, key : bytes or None
    properties : mapping of str to str
    event_time : datetime or None
        As its producer gave it, to the millisecond, in UTC.
    publish_time : datetime
        When the log took it, in UTC.
    """

    topic: str
    segment: str
    position: MessagePosition
    value: bytes | None = field(repr=False)
    key: bytes | None
    properties: Mapping[str, str]
    event_time: datetime | None
    publish_time: datetime
    delivery: Delivery = field(repr=False, compare=False)

    @property
    def message_id(self) -> MessageId:
        """Segment and position: it names the message for ever."""
        return MessageId(self.segment, self.position)


@dataclass(frozen=True, slots=True)
class Row:
    """A message as it is sent: checked, and in the form that the log takes."""

    value: bytes | None
    key: bytes | None
    event_time_ms: int | None
    properties: Mapping[str, str] | None

    @property
    def size(self) -> int:
        """About how many bytes it has."""
        properties = self.properties or {}
        return (
            len(self.value or b"")
            + len(self.key or b"")
            + sum(len(name) + len(text) for name, text in properties.items())
        )

    @classmethod
    def of(
        cls,
        value: bytes | str | None,
        key: bytes | str | None,
        properties: Mapping[str, str] | None,
        event_time: datetime | None,
    ) -> Row:
        """Check what a user gave.

        Raises
        ------
        SchemaError
            If something is of another type than a message has.
        """
        pairs: list[tuple[object, object]] = list((properties or {}).items())
        for name, text in pairs:
            if not isinstance(name, str) or not isinstance(text, str):
                raise SchemaError(
                    f"property {name!r}: expected text for name and value, found "
                    f"{type(name).__name__} and {type(text).__name__}. The message was not sent"
                )
            _utf8(f"property {name!r}", name + text)
        return cls(
            _bytes("value", value),
            _bytes("key", key),
            _milliseconds(event_time),
            dict(properties) if properties else None,
        )


def _bytes(name: str, value: object) -> bytes | None:
    if isinstance(value, str):
        return _utf8(name, value)
    if value is None or isinstance(value, bytes):
        return value
    raise SchemaError(
        f"{name}: expected bytes, text or None, found {type(value).__name__}: serialize it first. "
        "The message was not sent"
    )


def _utf8(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise SchemaError(
            f"{name}: expected text, found half of a surrogate pair ({error}). Of a file's name, "
            "send os.fsencode(name). The message was not sent"
        ) from error


def _milliseconds(event_time: object) -> int | None:
    if event_time is None:
        return None
    if not isinstance(event_time, datetime) or event_time.tzinfo is None:
        raise SchemaError(
            f"event_time: expected a datetime with a time zone, found {event_time!r}: without one "
            "it would mean another moment on each machine. The message was not sent"
        )
    milliseconds = (event_time - _EPOCH) // _MILLISECOND
    if milliseconds < 0:
        raise SchemaError(
            f"event_time: expected a time since 1970, found {event_time}: Pulsar has no earlier "
            "ones. The message was not sent"
        )
    return milliseconds


def moment(milliseconds: int) -> datetime:
    """Return a number of milliseconds since the epoch as a time in UTC.

    Of a time that lies beyond those of :class:`datetime.datetime`, the nearest one is returned.
    """
    try:
        return _EPOCH + milliseconds * _MILLISECOND
    except OverflowError:
        return _LATEST if milliseconds > 0 else _EARLIEST


def as_batch(rows: Sequence[Row]) -> pa.RecordBatch:
    """Return rows as a row batch; a column that is null throughout is left out."""
    columns: dict[str, list[Any]] = {"value": [row.value for row in rows]}
    for name in ("key", "event_time_ms", "properties"):
        values = [getattr(row, name) for row in rows]
        if any(value is not None for value in values):
            columns[name] = values
    if "properties" in columns:
        columns["properties"] = [p and list(p.items()) for p in columns["properties"]]
    arrays = [pa.array(values, ROW_SCHEMA.field(name).type) for name, values in columns.items()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))
