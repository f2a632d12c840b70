"""Every option, once: the validator, the documentation page and ``--help`` come from this table."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any
from urllib.parse import urlsplit

from pulsar_txn_spark.backends.pulsar.passthrough import (
    PASS_THROUGH,
    check_service_url,
    parse_admin_url,
)
from pulsar_txn_spark.config import PulsarConfig, StoreConfig, as_pairs
from pulsar_txn_spark.errors import OptionError
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.redaction import redacted
from pulsar_txn_spark.segments.topic_name import Domains, TopicName


class Use(Flag):
    """Where an option means something."""

    READ = auto()
    WRITE = auto()
    STREAM = auto()
    BATCH = auto()
    CONNECT = auto()


READ_ANY = Use.READ | Use.STREAM | Use.BATCH
WRITE_ANY = Use.WRITE | Use.STREAM | Use.BATCH
ANYWHERE = READ_ANY | WRITE_ANY | Use.CONNECT


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Parameters
    ----------
    key : str
        As documented; matched without regard to case, as Spark does.
    parse : callable
        Turns the text into a value, raises ValueError saying what was expected.
    default : str or None
        As text, for the documentation; None = no default.
    use : Use
    help : str
    secret : bool
        Never shown.
    conflicts : tuple of str
        Options that may not be given together with it.
    """

    key: str
    parse: Callable[[str], Any]
    default: str | None
    use: Use
    help: str
    secret: bool = False
    conflicts: tuple[str, ...] = ()


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("a text that is not empty")
    return value.strip()


def _boolean(value: str) -> bool:
    if value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise ValueError("true or false")


def _whole(least: int, most: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise ValueError(f"a whole number from {least} to {most}")
        return number

    return parse


def _one_of(*words: str) -> Callable[[str], str]:
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


def _size(value: str) -> int:
    match = re.fullmatch(r"\s*(\d+)\s*([a-zA-Z]*)\s*", value)
    unit = _SIZES.get(match[2].lower()) if match else None
    if match is None or unit is None or int(match[1]) < 1:
        raise ValueError("a size of at least one byte, such as 1048576, 512k, 64m, 10MiB or 1g")
    return int(match[1]) * unit


_STORE_SCHEMES = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster")


def _store_url(value: str) -> str:
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


def _folder(value: str) -> str:
    # A new folder is a new, empty store: what was not meant as one must not become one in silence.
    if "://" in value:
        raise OptionError(
            "expected a folder, found a URL, which belongs into 'store.url' (it is not shown: it "
            "may hold a password)"
        )
    if _NO_FOLDER.fullmatch(_text(value)):
        raise ValueError("a folder, such as /var/lib/pulsar-txn or ./5")
    return _text(value)


def _admin_url(value: str) -> str:
    parse_admin_url(value)
    return value.strip()


def _topic(value: str) -> TopicName:
    return TopicName.of_any_domain(value.strip())


def _topics(value: str) -> list[TopicName]:
    names = [_topic(part) for part in value.split(",") if part.strip()]
    if not names:
        raise ValueError("topic names with commas between them")
    if len(set(names)) != len(names):
        raise ValueError("each topic once")
    return names


@dataclass(frozen=True, slots=True)
class Offsets:
    """Where to start or end: a word, or positions by topic and segment.

    ``positions`` maps a topic's full name to a mapping of segment id (or its descriptor, the part
    behind the last slash) to a position; a segment that is not named takes `word`.
    """

    word: str
    positions: Mapping[str, Mapping[str, Position]]


def _offsets(*words: str) -> Callable[[str], Offsets]:
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
        return Offsets(words[0], positions)

    return parse


def _position(value: object) -> Position:
    if value == "earliest":
        return EARLIEST
    if not isinstance(value, str):
        raise ValueError(f"expected a position as text 'ledger:entry', found {value!r}")  # noqa: TRY004 — one error type for every malformed option
    return Position.parse(value)


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


def _sink_id(value: str) -> str:
    if not re.fullmatch(r"[^|\s{}]{1,200}", value):
        raise ValueError("a name of 1 to 200 characters without space, '|', '{' and '}'")
    return value


MAX_INT = (1 << 31) - 1
MOST_COORDINATORS = 1 << 16
"""A TxnId has 16 bits for the id of its coordinator (PIP-31)."""

NO_OPTIONS = (
    ". (Of a table made by CREATE TABLE, Spark hands no option to a data source in Python: name "
    "them in the query, as in SELECT * FROM t WITH (topic = '...'), or CREATE TEMPORARY VIEW)"
)
"""Added to an error where no option at all has come."""

OPTIONS: tuple[Option, ...] = (
    # the metadata store
    Option(
        "store.url",
        _store_url,
        None,
        ANYWHERE,
        "Redis that holds the transactions: redis://, rediss:// (TLS), unix://, redis+cluster:// "
        "or rediss+cluster://. Without it an embedded server is started.",
        secret=True,
        conflicts=("store.path",),
    ),
    Option("store.path", _folder, None, ANYWHERE, "Folder of the embedded server's data."),
    Option("store.username", _text, None, ANYWHERE, "ACL user."),
    Option("store.password", _text, None, ANYWHERE, "Password.", secret=True),
    Option("store.tls.caFile", _text, None, ANYWHERE, "PEM file of the authority to trust."),
    Option("store.tls.certFile", _text, None, ANYWHERE, "PEM file of the client's certificate."),
    Option("store.tls.keyFile", _text, None, ANYWHERE, "PEM file of the client's key."),
    Option(
        "store.tls.verifyHost",
        _boolean,
        "true",
        ANYWHERE,
        "Whether the server's certificate must carry its host name.",
    ),
    Option(
        "store.acceptDataLoss",
        _boolean,
        "false",
        ANYWHERE,
        "Accept a server that may lose acknowledged writes. Exactly-once then no longer holds.",
    ),
    Option(
        "store.assumeDurable",
        _boolean,
        "false",
        ANYWHERE,
        "Vouch for the server's settings where CONFIG GET is not allowed.",
    ),
    Option(
        "store.timeoutMs",
        _whole(10, 600_000),
        "5000",
        ANYWHERE,
        "Bound on one round trip to the store, and on connecting.",
    ),
    Option(
        "store.coordinators",
        _whole(1, MOST_COORDINATORS),
        None,
        ANYWHERE,
        "How many transaction coordinators (TC shards) a new store gets; 4 without it. It is fixed "
        "for the store's life: a later value that differs is an error. More of them spread "
        "transactions over more nodes of a Redis Cluster; each costs a sweep a few round trips.",
    ),
    # Pulsar
    Option(
        "service.url",
        check_service_url,
        None,
        ANYWHERE,
        "Pulsar's service URL. Without it the segments live in the embedded log.",
    ),
    Option(
        "admin.url",
        _admin_url,
        None,
        ANYWHERE,
        "Pulsar's admin URL. A user and password in it are basic authentication; they are never "
        "shown.",
    ),
    Option(
        "transport",
        _one_of("client", "wire", "auto"),
        "auto",
        ANYWHERE,
        "How to speak with Pulsar: through `pulsar-client`, by its binary protocol (`wire`), or "
        "`auto`: wire, unless an option needs what only pulsar-client has.",
    ),
    Option(
        "domain.overrides",
        Domains.parse,
        None,
        ANYWHERE,
        "`tenant/namespace=domain`, with commas between several; domain is `topic` (segmented) or "
        "`persistent` (Pulsar's own transactions). In such a namespace every topic is of that "
        "domain, whatever its name says: so a job may go on naming `persistent://` topics that "
        "were adopted as segmented ones. Elsewhere the name says it, and one without a domain is "
        "of `topic://`.",
    ),
    # metrics
    Option(
        "metrics.port",
        _whole(0, 65_535),
        None,
        ANYWHERE,
        "Port of an HTTP endpoint for Prometheus, 0 = any that is free (its URL is printed on "
        "standard error). For a "
        "stream's source (served by the source's process beside the driver) and for foreachBatch "
        "sinks (served by your driver process). Elsewhere call "
        "`pulsar_txn_spark.serve_metrics(options, port)` in your driver.",
    ),
    Option(
        "metrics.host",
        _text,
        "127.0.0.1",
        ANYWHERE,
        "Address that the endpoint listens on. There is no authentication: leave it on loopback, "
        "or see to it that only Prometheus gets there.",
    ),
    # what to read or write
    Option(
        "topic",
        _topic,
        None,
        READ_ANY | WRITE_ANY,
        "The topic to read, or the one to write rows without `__topic` to. A `persistent://` "
        "topic can be read, without a subscription; it cannot be written.",
        conflicts=("topics", "topicsPattern"),
    ),
    Option(
        "topics",
        _topics,
        None,
        READ_ANY,
        "Topics to read, with commas between them.",
        conflicts=("topicsPattern",),
    ),
    Option(
        "topicsPattern",
        _text,
        None,
        READ_ANY,
        "Regular expression of topics to read; new topics are found while the query runs.",
    ),
    # source
    Option(
        "subscription",
        subscription_name,
        None,
        Use.READ | Use.STREAM,
        "Name under which what was read is acknowledged, in the transaction of the sink.",
    ),
    Option(
        "startingOffsets",
        _offsets("latest", "earliest", "subscription"),
        "subscription if there is one, else latest (stream) or earliest (batch)",
        READ_ANY,
        "Where a new query starts: `earliest`, `latest`, `subscription` (at its cursor), or JSON.",
    ),
    Option(
        "endingOffsets",
        _offsets("latest"),
        "latest",
        Use.READ | Use.BATCH,
        "Where a batch read ends: `latest` or JSON.",
    ),
    Option(
        "maxMessagesPerTrigger",
        _whole(1, 1 << 53),
        None,
        Use.READ | Use.STREAM,
        "Most messages in a micro-batch, to the granularity of an entry; an estimate on Pulsar.",
    ),
    Option(
        "maxBytesPerTrigger",
        _size,
        None,
        Use.READ | Use.STREAM,
        "Most bytes in a micro-batch, to the granularity of an entry.",
    ),
    Option(
        "minPartitions",
        _whole(1, 1 << 20),
        None,
        READ_ANY,
        "Split long ranges so that about this many tasks read. Without it, one task reads a "
        "segment; with it, two tasks may read (and write on) rows of one key in the same "
        "micro-batch, so that their order is no longer kept.",
    ),
    Option(
        "failOnDataLoss",
        _boolean,
        "true",
        READ_ANY,
        "Whether data that was trimmed before it was read is an error; else it is skipped, and "
        "logged.",
    ),
    # sink
    Option(
        "sinkId",
        _sink_id,
        None,
        WRITE_ANY,
        "Name of the sink in replay and fencing. Default: the query's id, which lives in the "
        "checkpoint.",
    ),
    Option(
        "everyBatch",
        _boolean,
        "true; false for df.write in foreachBatch outside of a scope",
        WRITE_ANY,
        "Whether the sink is written in every micro-batch of its query. If so, a batch that Spark "
        "has noted as done and the sink does not know was lost, and the query stops. Say false for "
        "a function that begins its transaction in some batches only: nobody can tell then.",
    ),
    Option(
        "sinkFirstBatch",
        _whole(0, 1 << 53),
        None,
        WRITE_ANY,
        "The batch from which on you vouch for the sink: it is new in a query that is not, or what "
        "it misses of the batches before is known to you. Means nothing in any other batch.",
    ),
    Option(
        "transactions",
        _boolean,
        "true",
        WRITE_ANY,
        "false = a plain at-least-once sink: rows are visible at once, and twice after a retry.",
    ),
    Option(
        "txn.timeoutMs",
        _whole(1000, 86_400_000),
        "60000",
        READ_ANY | WRITE_ANY,
        "Lease of a transaction: how long readers wait for a driver that died. Living ones extend "
        "it.",
    ),
    Option(
        "replayEvidence",
        _one_of("auto", "offsets", "rows", "none"),
        "auto",
        WRITE_ANY,
        "What tells a replay of a committed batch, which writes nothing, from other data under the "
        "same batch id, which is refused. `auto`: Spark's own offsets in the checkpoint; where "
        "these cannot be read, the ranges of this package's sources and a fingerprint of the rows. "
        "`offsets`: Spark's offsets, or else the ranges alone: for queries that are not "
        "deterministic, on a checkpoint that cannot be read. `rows`: the fingerprint must be equal "
        "in any case. `none`: only the ranges of this package's sources are compared.",
    ),
    # given by Spark or by this package, not by users
    Option("checkpointlocation", _text, None, WRITE_ANY | READ_ANY, ""),
    Option("path", _text, None, WRITE_ANY | READ_ANY, ""),
    Option("__scope", _text, None, WRITE_ANY, ""),
)

PASSTHROUGH = ("pulsar.client.", "pulsar.producer.", "pulsar.reader.", "pulsar.admin.")

_BY_KEY = {option.key.lower(): option for option in OPTIONS}
_URLS = frozenset({"service.url", "admin.url"})  # shown, but for the user and password in it
_HIDDEN = frozenset({"checkpointlocation", "path", "__scope"})


def is_secret(key: str) -> bool:
    """Tell whether an option may hold a password or a token."""
    key = key.lower()
    if key.startswith(PASSTHROUGH):
        _, kind, name = key.split(".", 2)
        return any(option.secret and option.name.lower() == name for option in PASS_THROUGH[kind])
    option = _BY_KEY.get(key)
    return option is not None and (option.secret or option.key in _URLS)


def documented() -> list[Option]:
    """Return the options that users may set, in the order of the documentation."""
    return [option for option in OPTIONS if option.key not in _HIDDEN]


class Options:
    """A validated set of options.

    Parameters
    ----------
    given : mapping of str to str
        Keys in any case.
    use : Use
        What they are for.

    Raises
    ------
    OptionError
        Naming the option, what was expected, and what to do.
    """

    def __init__(self, given: Mapping[str, str], use: Use) -> None:
        for key, value in given.items():
            if value is None:
                raise OptionError(
                    f"option {key!r} has no value (None): leave it out, or see where the value was "
                    "to come from"
                )
        self.given = _without_table_properties(
            {str(key).lower(): str(value) for key, value in given.items()}
        )
        self._values: dict[str, Any] = {}
        for key, text in self.given.items():
            if key.startswith(PASSTHROUGH):
                continue
            option = _BY_KEY.get(key)
            if option is None:
                raise OptionError(_unknown(key))
            if not option.use & use or (use & ~Use.CONNECT and not _fits(option.use, use)):
                raise OptionError(
                    f"option {option.key!r} means nothing here ({_purpose(use)}): it is for "
                    f"{_purpose(option.use)}"
                )
            try:
                self._values[option.key] = option.parse(text)
            except OptionError as error:
                # Its own type is kept: a topic of the other domain is more than a wrong text.
                raise type(error)(f"option {option.key!r}: {error}") from error
            except ValueError as error:
                # A URL may hold a password, a malformed one anywhere.
                hidden = is_secret(option.key)
                shown = "" if hidden else f", found {redacted(text)!r}"
                raise OptionError(f"option {option.key!r}: expected {error}{shown}") from error
        self._choose_domains(use)
        self._refuse_conflicts()

    @property
    def domains(self) -> Domains:
        """Which domain topics are of, in this configuration."""
        found: Domains = self._values.get("domain.overrides") or Domains()
        return found

    def _choose_domains(self, use: Use) -> None:
        """Let namespaces override the domain of names; only a source takes Pulsar's own."""
        domains, values = self.domains, self._values

        def chosen(key: str, name: TopicName) -> TopicName:
            name = domains.of(name)
            try:
                return name if use & Use.READ else name.require_segmented()
            except OptionError as error:
                raise type(error)(f"option {key!r}: {error}") from error

        if "topic" in values:
            values["topic"] = chosen("topic", values["topic"])
        if "topics" in values:
            names = values["topics"] = [chosen("topics", name) for name in values["topics"]]
            if len(set(names)) != len(names):
                raise OptionError("option 'topics': expected each topic once")
        for key in ("startingOffsets", "endingOffsets"):
            if key in values:
                positions = {
                    str(domains.of(TopicName.of_any_domain(topic))): found
                    for topic, found in values[key].positions.items()
                }
                values[key] = Offsets(values[key].word, positions)

    def _refuse_conflicts(self) -> None:
        for key in self._values:
            for other in _BY_KEY[key.lower()].conflicts:
                if other in self._values:
                    raise OptionError(
                        f"options {key!r} and {other!r} may not be given together: drop one"
                    )
        if "service.url" in self._values and "admin.url" not in self._values:
            raise OptionError(
                "option 'admin.url' is missing: 'service.url' needs it (seals, policies and "
                "deduplication go over Pulsar's admin API), for example http://localhost:8080"
            )
        if "admin.url" in self._values and "service.url" not in self._values:
            raise OptionError(
                "option 'service.url' is missing: 'admin.url' alone does not say where Pulsar is, "
                "for example pulsar://localhost:6650"
            )
        stray = [key for key in self.given if key.startswith(PASSTHROUGH)]
        if stray and "service.url" not in self._values:
            raise OptionError(
                f"option {stray[0]!r} is for Pulsar, but 'service.url' is not given: give it, or "
                "drop the option"
            )

    def get(self, key: str, default: Any = None) -> Any:
        """Return an option's value."""
        return self._values.get(key, default)

    def passthrough(self, kind: str) -> dict[str, str]:
        """Return the ``pulsar.<kind>.*`` options without their prefix."""
        prefix = f"pulsar.{kind}."
        return {k.removeprefix(prefix): v for k, v in self.given.items() if k.startswith(prefix)}

    def store_config(self) -> StoreConfig:
        """Return how to reach the metadata store."""
        return StoreConfig(
            url=self.get("store.url"),
            path=self.get("store.path"),
            username=self.get("store.username"),
            password=self.get("store.password"),
            tls_ca_file=self.get("store.tls.caFile"),
            tls_cert_file=self.get("store.tls.certFile"),
            tls_key_file=self.get("store.tls.keyFile"),
            tls_verify_host=self.get("store.tls.verifyHost", True),
            accept_data_loss=self.get("store.acceptDataLoss", False),
            assume_durable=self.get("store.assumeDurable", False),
            timeout_ms=self.get("store.timeoutMs", 5000),
            coordinators=self.get("store.coordinators"),
        )

    def pulsar_config(self) -> PulsarConfig | None:
        """Return how to reach Pulsar, None for the embedded log."""
        if "service.url" not in self._values:
            return None
        return PulsarConfig(
            service_url=self.get("service.url"),
            admin_url=self.get("admin.url"),
            client=as_pairs(self.passthrough("client")),
            producer=as_pairs(self.passthrough("producer")),
            reader=as_pairs(self.passthrough("reader")),
            admin=as_pairs(self.passthrough("admin")),
            transport=self.get("transport", "auto"),
        )

    def __repr__(self) -> str:
        shown = {
            key: "***" if key.startswith(PASSTHROUGH) or _BY_KEY[key].secret else redacted(value)
            for key, value in self.given.items()
        }
        return f"Options({shown})"


_OPTION_PREFIX = "option."
_TABLE_PROPERTIES = frozenset(
    {
        *("provider", "owner", "location", "is_managed_location", "external", "comment"),
        "collation",
    }
)
"""What Spark's ``TableCatalog`` adds to the options of CREATE TABLE."""


def _without_table_properties(given: Mapping[str, str]) -> dict[str, str]:
    """Leave out what ``CREATE TABLE … USING pulsar_txn`` adds to the options.

    Spark hands each option over twice there, by its name and behind ``option.``; whatever has no
    such double is a property of the table.
    """
    doubled = {
        key.removeprefix(_OPTION_PREFIX): value
        for key, value in given.items()
        if key.startswith(_OPTION_PREFIX)
    }
    if doubled:
        return doubled
    return {key: value for key, value in given.items() if key not in _TABLE_PROPERTIES}


_WAYS = Use.READ | Use.WRITE
_KINDS = Use.STREAM | Use.BATCH


def _fits(option: Use, use: Use) -> bool:
    way, kind = use & _WAYS, use & _KINDS
    return (not way or bool(option & way)) and (not kind or bool(option & kind))


def _purpose(use: Use) -> str:
    ways = [text for flag, text in ((Use.READ, "reading"), (Use.WRITE, "writing")) if use & flag]
    kinds = [text for flag, text in ((Use.STREAM, "streams"), (Use.BATCH, "batches")) if use & flag]
    return " and ".join(ways or ["connecting"]) + (" " + " and ".join(kinds) if kinds else "")


_NO_TIME = (
    "a query starts and ends at offsets, not at a time: use 'startingOffsets' and 'endingOffsets' "
    "('earliest', 'latest' or JSON), or filter by __publishTime or __eventTime; a subscription can "
    "be put at a time: pulsar-txn subscription reset --to TIME"
)
_OF_OTHERS = {
    "maxoffsetspertrigger": "use 'maxMessagesPerTrigger'",
    "maxrowspertrigger": "use 'maxMessagesPerTrigger'",
    "maxentriespertrigger": "use 'maxMessagesPerTrigger'",
    "maxfilespertrigger": "use 'maxMessagesPerTrigger'",
    "subscribe": "use 'topic' or 'topics'",
    "assign": "use 'topic' or 'topics', with 'startingOffsets' as JSON",
    "subscribepattern": "use 'topicsPattern'",
    "topicpattern": "use 'topicsPattern'",
    "kafka.bootstrap.servers": "use 'service.url' and 'admin.url'",
    "bootstrap.servers": "use 'service.url' and 'admin.url'",
    "predefinedsubscription": "use 'subscription'",
    "subscriptionname": "use 'subscription'",
    "subscriptionprefix": "use 'subscription', which is taken as it stands",
    "groupid": "use 'subscription'",
    "kafka.group.id": "use 'subscription'",
    "startingtime": _NO_TIME,
    "startingtimestamp": _NO_TIME,
    "startingoffsetsbytimestamp": _NO_TIME,
    "endingtime": _NO_TIME,
    "endingtimestamp": _NO_TIME,
    "endingoffsetsbytimestamp": _NO_TIME,
    "polltimeoutms": "drop it: a read ends where it was planned to end",
    "transactional.id": "drop it: the query's id is what tells its transactions",
}
"""What the connectors for Kafka and Pulsar have, and Spark's file source, in lower case."""


def _unknown(key: str) -> str:
    if key.lower() in _OF_OTHERS:
        return f"unknown option {key!r}: {_OF_OTHERS[key.lower()]}"
    known = {option.key.lower(): option.key for option in documented()}
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    hint = (
        f": did you mean {known[near[0]]!r}?"
        if near
        else f". Known are {', '.join(known.values())}"
    )
    return f"unknown option {redacted(key)!r}{hint}"


def refuse_endpoint(options: Options, why: str) -> None:
    """Refuse ``metrics.port`` where no process could serve it.

    Raises
    ------
    OptionError
    """
    for key in ("metrics.port", "metrics.host"):
        if options.get(key) is not None:
            raise OptionError(
                f"option {key!r} means nothing here: {why}. Give it to a stream's source or to a "
                "foreachBatch sink, or call pulsar_txn_spark.serve_metrics(options, port) in your "
                "driver, or run 'pulsar-txn sweep --every 30 --metrics-port PORT'"
            )


def without_endpoint(given: Mapping[str, str]) -> dict[str, str]:
    """Return options without those of the endpoint, to be passed on to tasks."""
    return {key: value for key, value in given.items() if not key.lower().startswith("metrics.")}
