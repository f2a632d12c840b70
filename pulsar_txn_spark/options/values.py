"""What a value of an option may be: each reader turns the text into a value.

A reader raises ValueError saying what was expected; the option's name and the text are put around
it where the options are parsed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pulsar_txn_spark.backends.pulsar.passthrough import parse_admin_url
from pulsar_txn_spark.backports import time_from_iso
from pulsar_txn_spark.errors import OptionError
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.store.redis.server import server_folder


def parse_text(value: str) -> str:
    """Read a text that says something."""
    if not value.strip():
        raise ValueError("a text that is not empty")
    return value.strip()


def parse_boolean(value: str) -> bool:
    """Read true or false."""
    if value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise ValueError("true or false")


@dataclass(frozen=True, slots=True)
class WholeNumber:
    """Reads a whole number within bounds, both of which belong to it."""

    least: int
    most: int

    def __call__(self, value: str) -> int:
        """Return the number, or raise ValueError saying what was expected."""
        try:
            number = int(value)
        except ValueError:
            number = self.least - 1
        if not self.least <= number <= self.most:
            raise ValueError(f"a whole number from {self.least} to {self.most}")
        return number


LEASE_MS = WholeNumber(1_000, 86_400_000)
"""Lease of a transaction."""


def one_of(*words: str) -> Callable[[str], str]:
    """Return what reads one of a few words."""

    def parse(value: str) -> str:
        if value.lower() not in words:
            raise ValueError("one of " + ", ".join(words))
        return value.lower()

    return parse


_SIZES = {"": 1, "b": 1} | {
    f"{letter}{rest}": 1 << 10 * power
    for power, letter in enumerate("kmgt", 1)
    for rest in ("", "b", "ib")
}


def parse_size(value: str) -> int:
    """Read a number of bytes, with or without a unit."""
    match = re.fullmatch(r"\s*(\d+)\s*([a-zA-Z]*)\s*", value)
    unit = _SIZES.get(match[2].lower()) if match else None
    if match is None or unit is None or int(match[1]) < 1:
        raise ValueError("a size of at least one byte, such as 1048576, 512k, 64m, 10MiB or 1g")
    return int(match[1]) * unit


_DURATIONS_MS = {
    "": 1,
    "ms": 1,
    **dict.fromkeys(("s", "second", "seconds"), 1_000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
}


def parse_duration_ms(value: str) -> int:
    """Read a length of time with a unit; without one, in milliseconds."""
    match = re.fullmatch(r"\s*(\d+)\s*([a-zA-Z]*)\s*", value)
    unit = _DURATIONS_MS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError("a length of time, such as 500ms, 30s, 15m or 1h")
    return int(match[1]) * unit


_STORE_SCHEMES = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster")


def parse_store_url(value: str) -> str:
    """Read the URL of the metadata store."""
    text = value.strip()
    expected = "a URL that begins with " + " or ".join(f"{s}://" for s in _STORE_SCHEMES)
    try:
        parts = urlsplit(text)
    except ValueError:
        # What it says repeats a part of the value, which may hold a password.
        raise ValueError(expected) from None
    if parts.scheme not in _STORE_SCHEMES or not (parts.netloc or parts.scheme == "unix"):
        raise ValueError(expected)
    return text


_NO_FOLDER = re.compile(r"\s*(none|null|nil|true|false|undefined|\d+)\s*", re.IGNORECASE)


def parse_folder(value: str) -> str:
    """Read the path of a folder, and return the absolute one.

    Every other process may have another working folder and another home.
    """
    # A new folder is a new, empty store: what was not meant as one must not become one in silence.
    if "://" in value:
        raise OptionError(
            "expected a folder, found a URL, which belongs into 'store.url' (it is not shown: it "
            "may hold a password)"
        )
    if _NO_FOLDER.fullmatch(parse_text(value)):
        raise ValueError("a folder, such as /var/lib/pulsar-txn or ./5")
    return str(server_folder(parse_text(value)))


def parse_admin_address(value: str) -> str:
    """Read the URL of Pulsar's admin API."""
    parse_admin_url(value)
    return value.strip()


def parse_topic(value: str) -> TopicName:
    """Read the name of a topic, of either domain."""
    return TopicName.of_any_domain(value.strip())


def parse_topics(value: str) -> list[TopicName]:
    """Read names of topics with commas between them, each once."""
    names = [parse_topic(part) for part in value.split(",") if part.strip()]
    if not names:
        raise ValueError("topic names with commas between them")
    if len(set(names)) != len(names):
        raise ValueError("each topic once")
    return names


@dataclass(frozen=True, slots=True)
class Times:
    """Publish times, in milliseconds since 1970, by topic and segment.

    Parameters
    ----------
    everywhere : int or None
        For all segments of all topics.
    by_topic : mapping of str to int or mapping
        By a topic's full name: one time for all of its segments, or one for each segment.
    """

    everywhere: int | None = None
    by_topic: Mapping[str, int | Mapping[str, int]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.everywhere is not None or bool(self.by_topic)

    def of(self, topic: str, descriptor: str) -> int | None:
        """Return the time for a segment, None if none is given."""
        own = self.by_topic.get(topic, self.everywhere)
        if not isinstance(own, Mapping):
            return own
        named = {name.rpartition("/")[2]: time_ms for name, time_ms in own.items()}
        return named.get(descriptor)


@dataclass(frozen=True, slots=True)
class Offsets:
    """Where to start or end: a word, or positions or publish times by topic and segment.

    ``positions`` maps a topic's full name to a mapping of segment id (or its descriptor, the part
    behind the last slash) to a position. A segment that is not named takes `word`.
    """

    word: str
    positions: Mapping[str, Mapping[str, Position]] = field(default_factory=dict)
    times: Times = field(default_factory=Times)


def offsets_or(*words: str) -> Callable[[str], Offsets]:
    """Return what reads offsets: one of a few words, or positions as JSON."""
    expected = (
        " or ".join(repr(word) for word in words)
        + ' or JSON like {"topic://tenant/namespace/name": {"<segment>": "ledger:entry"}}'
    )

    def parse(value: str) -> Offsets:
        text = value.strip()
        if text.lower() in words:
            return Offsets(text.lower(), {})
        try:
            tree = json.loads(text)
            positions = {
                str(TopicName.of_any_domain(topic)): {
                    segment: _position(position) for segment, position in by_segment.items()
                }
                for topic, by_segment in tree.items()
            }
        except (ValueError, AttributeError) as error:
            raise ValueError(f"{expected} ({error})") from error
        if not any(positions.values()):
            raise ValueError(f"{expected} (this JSON names no position)")
        return Offsets(words[0], positions)

    return parse


def _position(value: object) -> Position:
    if value == "earliest":
        return EARLIEST
    if not isinstance(value, str):
        raise ValueError(f"expected a position as text 'ledger:entry', found {value!r}")  # noqa: TRY004 — one error type for every malformed option
    return Position.parse(value)


NATIVE = "native"
"""Value of the option ``transactions``: Pulsar's own, of its coordinators."""


def parse_transactions(value: str) -> bool | str:
    """Read whether there are transactions, or that they are Pulsar's own (:data:`NATIVE`)."""
    if value.strip().lower() == NATIVE:
        return NATIVE
    try:
        return parse_boolean(value)
    except ValueError as error:
        raise ValueError(f"{error} or {NATIVE!r}") from None


_TIME = (
    "milliseconds since 1970, such as 1767225600000, or ISO 8601 with a zone, such as "
    "2026-01-01T00:00:00Z"
)
_LEAST_MS = 10**11  # in 1973; smaller numbers are seconds, which mean 1970 as milliseconds


def parse_time_ms(value: str) -> int:
    """Read a time: milliseconds since 1970, or ISO 8601 with a zone.

    Raises
    ------
    ValueError
        Saying what was expected.
    """
    text = value.strip()
    if re.fullmatch(r"\d{1,16}", text):
        if 0 < int(text) < _LEAST_MS:
            raise ValueError(f"{_TIME} (this number looks like seconds)")
        return int(text)
    try:
        at = time_from_iso(text)
    except ValueError:
        raise ValueError(_TIME) from None
    if at.tzinfo is None:
        raise ValueError(f"{_TIME} (without a zone it means another moment elsewhere)")
    return round(at.timestamp() * 1000)


def parse_times(value: str) -> Times:
    """Read publish times by topic, and perhaps segment, as JSON."""
    expected = (
        'JSON like {"topic://tenant/namespace/name": time} or {"topic://tenant/namespace/name": '
        f'{{"<segment>": time}}}}, each time as {_TIME}'
    )
    try:
        tree = json.loads(value)
        by_topic = {
            str(TopicName.of_any_domain(topic)): (
                {segment: parse_time_ms(str(each)) for segment, each in time.items()}
                if isinstance(time, dict)
                else parse_time_ms(str(time))
            )
            for topic, time in tree.items()
        }
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{expected} ({error})") from error
    if not by_topic:
        raise ValueError(expected)
    return Times(by_topic=by_topic)


METADATA_COLUMNS = (
    "__segment",
    "__position",
    "__sequenceId",
    "__producerName",
    "__topicPartition",
)
"""Columns of a source that are there on request."""


def parse_metadata_columns(value: str) -> tuple[str, ...]:
    """Read names of columns with commas between them, each once, in any case."""
    known = {name.lower(): name for name in METADATA_COLUMNS}
    names = [part.strip().lower() for part in value.split(",") if part.strip()]
    if not names or not known.keys() >= set(names) or len(set(names)) != len(names):
        raise ValueError(f"some of {', '.join(METADATA_COLUMNS)}, with commas, each once")
    return tuple(known[name] for name in names)


_SUBSCRIPTION = re.compile(r"[^|/\s{}]{1,200}")


def subscription_name(value: str) -> str:
    """Check the name of a subscription.

    Raises
    ------
    ValueError
        Saying what was expected.
    """
    if not _SUBSCRIPTION.fullmatch(value):
        raise ValueError("a name of 1 to 200 characters without space, '|', '/', '{' and '}'")
    return value


def parse_sink_id(value: str) -> str:
    """Read the name of a sink."""
    if not re.fullmatch(r"[^|\s{}]{1,200}", value):
        raise ValueError("a name of 1 to 200 characters without space, '|', '{' and '}'")
    return value
