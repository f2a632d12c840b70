"""Every option, once: the validator, the documentation page and ``--help`` come from this table.

So do the defaults: a default is a value here, and whoever uses an option names none. Of those that
a lower layer knows too, this table takes that layer's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any

from pulsar_txn_spark.backends.pulsar.passthrough import PASS_THROUGH, check_service_url
from pulsar_txn_spark.config import PulsarConfig, StoreConfig
from pulsar_txn_spark.options.values import (
    LEASE_MS,
    Offsets,
    WholeNumber,
    offsets_or,
    one_of,
    parse_admin_address,
    parse_boolean,
    parse_duration_ms,
    parse_folder,
    parse_metadata_columns,
    parse_sink_id,
    parse_size,
    parse_store_url,
    parse_text,
    parse_time_ms,
    parse_times,
    parse_topic,
    parse_topics,
    parse_transactions,
    subscription_name,
)
from pulsar_txn_spark.redaction import redacted
from pulsar_txn_spark.segments.topic_name import Domains
from pulsar_txn_spark.txn.coordinator import DEFAULT_TIMEOUT_MS


class Use(Flag):
    """Where an option means something."""

    READ = auto()
    WRITE = auto()
    STREAM = auto()
    BATCH = auto()
    CONNECT = auto()
    SCOPE = auto()
    """A transaction of several writes in ``foreachBatch``, or one of these writes."""


READ_ANY = Use.READ | Use.STREAM | Use.BATCH
WRITE_ANY = Use.WRITE | Use.STREAM | Use.BATCH
ANYWHERE = READ_ANY | WRITE_ANY | Use.CONNECT
SCOPE_WRITE = Use.WRITE | Use.BATCH | Use.SCOPE
"""A transaction of several writes in ``foreachBatch``."""


@dataclass(frozen=True, slots=True)
class Depends:
    """A default that depends on what the options are for.

    Parameters
    ----------
    text : str
        Says it, for the documentation.
    choose : callable
        Returns the value for a use.
    """

    text: str
    choose: Callable[[Use], Any]


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Parameters
    ----------
    key : str
        As documented; matched without regard to case, as Spark does.
    parse : callable
        Turns the text into a value, raises ValueError saying what was expected.
    default : object
        What holds where it is not given, as `parse` would return it, or a :class:`Depends`; None =
        nothing.
    use : Use
    help : str
    secret : bool
        Never shown.
    conflicts : tuple of str
        Options that may not be given together with it.
    """

    key: str
    parse: Callable[[str], Any]
    default: Any
    use: Use
    help: str
    secret: bool = False
    conflicts: tuple[str, ...] = ()

    def default_for(self, use: Use) -> Any:
        """Return what holds where the option is not given."""
        return self.default.choose(use) if isinstance(self.default, Depends) else self.default


_WAYS = Use.READ | Use.WRITE
_KINDS = Use.STREAM | Use.BATCH


def fits(option: Use, use: Use) -> bool:
    """Tell whether an option means something for a use."""
    way, kind = use & _WAYS, use & _KINDS
    return (not way or bool(option & way)) and (not kind or bool(option & kind))


def purpose(use: Use) -> str:
    """Say what a use is."""
    ways = [text for flag, text in ((Use.READ, "reading"), (Use.WRITE, "writing")) if use & flag]
    kinds = [text for flag, text in ((Use.STREAM, "streams"), (Use.BATCH, "batches")) if use & flag]
    return " and ".join(ways or ["connecting"]) + (" " + " and ".join(kinds) if kinds else "")


MOST_COORDINATORS = 1 << 16
"""A TxnId has 16 bits for the id of its coordinator (PIP-31)."""

SCOPE_OPTION = "__scope"
"""Carries, within this package, the slot of a scope that a write belongs to."""

_STORE, _PULSAR = StoreConfig(), PulsarConfig("", "")

OPTIONS: tuple[Option, ...] = (
    # the metadata store
    Option(
        "store.url",
        parse_store_url,
        None,
        ANYWHERE,
        "Redis that holds the transactions: redis://, rediss:// (TLS), unix://, redis+cluster:// "
        "or rediss+cluster://. Without it an embedded server is started.",
        secret=True,
        conflicts=("store.path",),
    ),
    Option(
        "store.path",
        parse_folder,
        None,
        ANYWHERE,
        "Folder of the embedded server's data. A relative one begins at the working folder of the "
        "process that parses the options, such as the driver. Executors get the absolute one.",
    ),
    Option("store.username", parse_text, None, ANYWHERE, "ACL user, for `store.url`."),
    Option("store.password", parse_text, None, ANYWHERE, "Password, for `store.url`.", secret=True),
    Option("store.tls.caFile", parse_text, None, ANYWHERE, "PEM file of the authority to trust."),
    Option(
        "store.tls.certFile", parse_text, None, ANYWHERE, "PEM file of the client's certificate."
    ),
    Option("store.tls.keyFile", parse_text, None, ANYWHERE, "PEM file of the client's key."),
    Option(
        "store.tls.verifyHost",
        parse_boolean,
        _STORE.tls_verify_host,
        ANYWHERE,
        "Whether the server's certificate must carry its host name. Only with TLS.",
    ),
    Option(
        "store.acceptDataLoss",
        parse_boolean,
        _STORE.accept_data_loss,
        ANYWHERE,
        "Accept a server that may lose acknowledged writes. Exactly-once then no longer holds.",
    ),
    Option(
        "store.assumeDurable",
        parse_boolean,
        _STORE.assume_durable,
        ANYWHERE,
        "Vouch for the server's settings where CONFIG GET is not allowed.",
    ),
    Option(
        "store.timeoutMs",
        WholeNumber(10, 600_000),
        _STORE.timeout_ms,
        ANYWHERE,
        "Bound on one round trip to the store, and on connecting.",
    ),
    Option(
        "store.coordinators",
        WholeNumber(1, MOST_COORDINATORS),
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
        parse_admin_address,
        None,
        ANYWHERE,
        "Pulsar's admin URL. A user and password in it are basic authentication; they are never "
        "shown.",
    ),
    Option(
        "transport",
        one_of("client", "wire", "auto"),
        _PULSAR.transport,
        ANYWHERE,
        "How to speak with Pulsar: through `pulsar-client`, by its binary protocol (`wire`), or "
        "`auto`: wire, unless an option needs what only pulsar-client has. Only with "
        "`service.url`.",
    ),
    Option(
        "domain.overrides",
        Domains.parse,
        Domains(),
        ANYWHERE,
        "`tenant/namespace=domain`, with commas between several; domain is `topic` (segmented), "
        "`persistent` (Pulsar's own transactions) or `scalable` (Pulsar 5's scalable topics, which "
        "Pulsar names `topic://` as well). In such a namespace every topic is of that "
        "domain, whatever its name says. So a job may go on naming `persistent://` topics that "
        "were adopted as segmented ones. Elsewhere the name says it, and one without a domain is "
        "of `topic://`.",
    ),
    # where options come from
    Option(
        "options.file",
        parse_text,
        None,
        ANYWHERE,
        "File with options that say how to connect, passwords for example: `KEY=VALUE` lines, or "
        "TOML if its name ends in `.toml`. It is read on the driver's machine. Options that are "
        "given as well prevail. A file with a secret is refused if every user of the machine may "
        "read it.",
    ),
    # metrics
    Option(
        "metrics.port",
        WholeNumber(0, 65_535),
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
        parse_text,
        "127.0.0.1",
        ANYWHERE,
        "Address that the endpoint of `metrics.port` listens on. There is no authentication: leave "
        "it on loopback, or see to it that only Prometheus gets there.",
    ),
    # what to read or write
    Option(
        "topic",
        parse_topic,
        None,
        READ_ANY | WRITE_ANY,
        "The topic to read, or the one to write rows without `__topic` to. A `persistent://` or "
        "`scalable://` topic can be read, without a subscription; it is written with "
        "`transactions=native`.",
        conflicts=("topics", "topicsPattern"),
    ),
    Option(
        "topics",
        parse_topics,
        None,
        READ_ANY,
        "Topics to read, with commas between them.",
        conflicts=("topicsPattern",),
    ),
    Option(
        "topicsPattern",
        parse_text,
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
        offsets_or("latest", "earliest", "subscription"),
        Depends(
            "where the subscription stands if it exists already; else latest, also with a new "
            "subscription (stream), or earliest (batch)",
            lambda use: Offsets("earliest" if use & Use.BATCH else "latest"),
        ),
        READ_ANY,
        "Where a new query starts: `earliest`, `latest`, `subscription` (at its cursor), or JSON.",
    ),
    Option(
        "startingTimestamp",
        parse_time_ms,
        None,
        READ_ANY,
        "A new query starts in each segment at the first message that was published at or after "
        "this time. It is in milliseconds since 1970, or in ISO 8601 with a zone.",
        conflicts=("startingOffsets", "startingOffsetsByTimestamp"),
    ),
    Option(
        "startingOffsetsByTimestamp",
        parse_times,
        None,
        READ_ANY,
        "The same by topic, or by topic and segment, as JSON.",
        conflicts=("startingOffsets",),
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        one_of("error", "latest"),
        "error",
        READ_ANY,
        "What happens where no message was published at or after the time: `error` stops the "
        "query, `latest` starts behind what is committed.",
    ),
    Option(
        "endingOffsets",
        offsets_or("latest"),
        Offsets("latest"),
        Use.READ | Use.BATCH,
        "Where a batch read ends: `latest` or JSON.",
    ),
    Option(
        "endingTimestamp",
        parse_time_ms,
        None,
        Use.READ | Use.BATCH,
        "A batch read ends in each segment before the first message that was published at or "
        "after this time. It is in milliseconds since 1970, or in ISO 8601 with a zone.",
        conflicts=("endingOffsets", "endingOffsetsByTimestamp"),
    ),
    Option(
        "endingOffsetsByTimestamp",
        parse_times,
        None,
        Use.READ | Use.BATCH,
        "The same by topic, or by topic and segment, as JSON.",
        conflicts=("endingOffsets",),
    ),
    Option(
        "maxMessagesPerTrigger",
        WholeNumber(1, 1 << 53),
        None,
        Use.READ | Use.STREAM,
        "Most messages in a micro-batch, to the granularity of an entry; an estimate on Pulsar.",
    ),
    Option(
        "maxBytesPerTrigger",
        parse_size,
        None,
        Use.READ | Use.STREAM,
        "Most bytes in a micro-batch, to the granularity of an entry.",
    ),
    Option(
        "minMessagesPerTrigger",
        WholeNumber(1, 1 << 53),
        None,
        Use.READ | Use.STREAM,
        "A micro-batch waits until so many messages can be read; an estimate on Pulsar. The first "
        "one of a process does not wait. Means nothing with Trigger.AvailableNow.",
    ),
    Option(
        "maxTriggerDelay",
        parse_duration_ms,
        15 * 60_000,
        Use.READ | Use.STREAM,
        "How long after the previous micro-batch one waits for `minMessagesPerTrigger` at most, if "
        "there is anything to read. It is `30s`, `15m`, `1h`, or a number of milliseconds.",
    ),
    Option(
        "minPartitions",
        WholeNumber(1, 1 << 20),
        None,
        READ_ANY,
        "At least about this many tasks read. Up to the number of segments, each task reads whole "
        "ones. Beyond it long ranges are split. Two tasks may read (and write on) rows of one key "
        "in the same micro-batch, so that their order is no longer kept.",
    ),
    Option(
        "maxPartitions",
        WholeNumber(1, 1 << 20),
        None,
        READ_ANY,
        "At most this many tasks read, each one segment after the other. Without it they are as "
        "many as the application can run at a time. Where the driver's command line does not tell "
        "that, they are as many as segments.",
    ),
    Option(
        "metadata.columns",
        parse_metadata_columns,
        (),
        READ_ANY,
        "Columns to add to those of the source, with commas: `__segment`, `__position`, "
        "`__sequenceId`, `__producerName`, `__topicPartition`.",
    ),
    Option(
        "failOnDataLoss",
        parse_boolean,
        True,
        READ_ANY,
        "Whether data that was trimmed before it was read is an error; else it is skipped, and "
        "logged.",
    ),
    # sink
    Option(
        "sinkId",
        parse_sink_id,
        None,
        WRITE_ANY,
        "Name of the sink in replay and fencing. Default: the query's id, which lives in the "
        "checkpoint.",
    ),
    Option(
        "everyBatch",
        parse_boolean,
        Depends(
            "true; false for df.write in foreachBatch outside of a scope",
            lambda use: bool(use & (Use.STREAM | Use.SCOPE)),
        ),
        WRITE_ANY,
        "Whether the sink is written in every micro-batch of its query. If so, a batch that Spark "
        "has noted as done and the sink does not know was lost, and the query stops. Say false for "
        "a function that begins its transaction in some batches only: nobody can tell then.",
    ),
    Option(
        "sinkFirstBatch",
        WholeNumber(0, 1 << 53),
        None,
        WRITE_ANY,
        "The batch from which on you vouch for the sink. It is new in a query that is not, or what "
        "it misses of the batches before is known to you. Means nothing in any other batch.",
    ),
    Option(
        "transactions",
        parse_transactions,
        True,
        WRITE_ANY,
        "true = those of this package. false = a plain at-least-once sink: rows are visible at "
        "once, and twice after a retry. native = Pulsar's own, for a stream into `persistent://` "
        "topics.",
    ),
    Option(
        "txn.timeoutMs",
        LEASE_MS,
        DEFAULT_TIMEOUT_MS,
        READ_ANY | WRITE_ANY,
        "Lease of a transaction: how long readers wait for a driver that died. Living ones extend "
        "it, but not one of Pulsar's own: then it bounds a micro-batch.",
    ),
    Option(
        "replayEvidence",
        one_of("auto", "offsets", "rows", "none"),
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
    Option("checkpointlocation", parse_text, None, WRITE_ANY | READ_ANY, ""),
    Option("path", parse_text, None, WRITE_ANY | READ_ANY, ""),
    Option(SCOPE_OPTION, parse_text, None, WRITE_ANY, ""),
)

PASSTHROUGH = ("pulsar.client.", "pulsar.producer.", "pulsar.reader.", "pulsar.admin.")

BY_KEY = {option.key.lower(): option for option in OPTIONS}
_URLS = frozenset({"service.url", "admin.url"})  # shown, but for the user and password in it
_HIDDEN = frozenset({"checkpointlocation", "path", SCOPE_OPTION})


def is_secret(key: str) -> bool:
    """Tell whether an option may hold a password or a token."""
    key = key.lower()
    if key.startswith(PASSTHROUGH):
        _, kind, name = key.split(".", 2)
        return any(option.secret and option.name.lower() == name for option in PASS_THROUGH[kind])
    option = BY_KEY.get(key)
    return option is not None and (option.secret or option.key in _URLS)


def holds_secret(key: str, text: str) -> bool:
    """Tell whether an option's text is a secret; of an address, whether a password is in it."""
    is_address = key.lower() in {"store.url", *_URLS}
    return is_secret(key) and (not is_address or redacted(text) != text)


def documented() -> list[Option]:
    """Return the options that users may set, in the order of the documentation."""
    return [option for option in OPTIONS if option.key not in _HIDDEN]


def default_of(key: str) -> Any:
    """Return an option's default; for one that needs no options to be told."""
    return BY_KEY[key.lower()].default_for(Use.CONNECT)
