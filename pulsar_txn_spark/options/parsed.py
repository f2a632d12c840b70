"""A validated set of options: parsed once, then handed on and pickled as it is."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from pulsar_txn_spark.config import PulsarConfig, StoreConfig, as_pairs
from pulsar_txn_spark.errors import OptionError
from pulsar_txn_spark.options.file import with_file
from pulsar_txn_spark.options.hints import unknown
from pulsar_txn_spark.options.table import (
    BY_KEY,
    PASSTHROUGH,
    SCOPE_OPTION,
    Use,
    fits,
    is_secret,
    purpose,
)
from pulsar_txn_spark.options.values import NATIVE, Offsets, Times
from pulsar_txn_spark.redaction import redacted
from pulsar_txn_spark.segments.topic_name import Domains, TopicName
from pulsar_txn_spark.store.redis.server import server_folder

_ENDPOINT = ("metrics.port", "metrics.host")  # for Prometheus
_NEEDED = {
    "transport": ("service.url",),
    "metrics.host": ("metrics.port",),
    # Whoever names a folder has not forgotten the URL: the environment may have one besides.
    "store.username": ("store.url", "store.path"),
    "store.password": ("store.url", "store.path"),
}
"""Options that mean nothing without another one, or without any of several."""

_OF_TRANSACTIONS = ("sinkId", "replayEvidence")


def parse_option(key: str, text: str, use: Use) -> Any:
    """Check one option by itself, and return its value.

    Parameters
    ----------
    key : str
        In any case; none of those that are passed on to Pulsar.
    text : str
    use : Use
        What it is for.

    Raises
    ------
    OptionError
        Naming the option, what was expected, and what to do.
    """
    option = BY_KEY.get(key.lower())
    if option is None:
        raise OptionError(unknown(key))
    if not option.use & use or (use & ~Use.CONNECT and not fits(option.use, use)):
        raise OptionError(
            f"option {option.key!r} means nothing here ({purpose(use)}): it is for "
            f"{purpose(option.use)}"
        )
    try:
        return option.parse(text)
    except OptionError as error:
        # Its own type is kept: a topic of the other domain is more than a wrong text.
        raise type(error)(f"option {option.key!r}: {error}") from error
    except ValueError as error:
        # A URL may hold a password, a malformed one anywhere.
        hidden = is_secret(option.key)
        shown = "" if hidden else f", found {redacted(text)!r}"
        raise OptionError(f"option {option.key!r}: expected {error}{shown}") from error


class Options:
    """A validated set of options.

    It is pickled whole: a task takes what the driver has validated. Its `repr` shows no secret.

    Parameters
    ----------
    raw : mapping of str to str
        Keys in any case.
    use : Use
        What they are for.

    Raises
    ------
    OptionError
        Naming the option, what was expected, and what to do.

    Attributes
    ----------
    raw : mapping of str to str
        The texts, by keys in lower case.
    use : Use
    store : StoreConfig
        How to reach the metadata store.
    pulsar : PulsarConfig or None
        How to reach Pulsar; None for the embedded log.
    """

    def __init__(self, raw: Mapping[str, str], use: Use) -> None:
        if not isinstance(raw, Mapping):
            raise OptionError(
                "options: expected a mapping of names to texts, such as "
                f"{{'store.url': 'redis://…'}}, found {type(raw).__name__}"
            )
        for key, value in raw.items():
            if value is None:
                raise OptionError(
                    f"option {key!r} has no value (None): leave it out, or see where the value was "
                    "to come from"
                )
        self.raw = with_file({str(key).lower(): str(value) for key, value in raw.items()})
        self._values: dict[str, Any] = {}
        for key, text in self.raw.items():
            if not key.startswith(PASSTHROUGH):
                value = parse_option(key, text, use)
                self._values[BY_KEY[key].key] = value
        if "store.path" in self._values:
            # Whoever parses the texts once more may do so in another folder.
            self.raw["store.path"] = self._values["store.path"]
        self.use = use | Use.SCOPE if SCOPE_OPTION in self.raw else use
        if self.native:
            self._check_native()
        self._choose_domains(use)
        self._refuse_conflicts()
        self.store = self._store_config()
        self.pulsar = self._pulsar_config()

    @property
    def domains(self) -> Domains:
        """Which domain topics are of, in this configuration."""
        overrides: Domains = self.get("domain.overrides")
        return overrides

    @property
    def native(self) -> bool:
        """Whether a sink writes under Pulsar's own transactions."""
        return bool(self._values.get("transactions") == NATIVE)

    def _check_native(self) -> None:
        if self.use & Use.BATCH:
            raise OptionError(
                f"transactions={NATIVE} is for writeStream.format('pulsar_txn'): neither a batch "
                "write nor foreachBatch has such transactions. Write a segmented topic there"
            )
        for key, why in (
            ("service.url", "there are such transactions on Pulsar only"),
            ("topic", "its namespace holds the sink's control topic, also where rows name theirs"),
        ):
            if key not in self._values:
                raise OptionError(
                    f"option {key!r} is missing: transactions={NATIVE} needs it, {why}"
                )

    def _choose_domains(self, use: Use) -> None:
        """Let namespaces override the domain of names; only a source takes Pulsar's own."""
        domains, values = self.domains, self._values

        def chosen(key: str, name: TopicName) -> TopicName:
            name = domains.of(name)
            native = self.native or bool(use & Use.READ and not name.segmented)
            try:
                return name.require_native() if native else name.require_segmented()
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
                    str(domains.of(TopicName.of_any_domain(topic))): start
                    for topic, start in values[key].positions.items()
                }
                values[key] = Offsets(values[key].word, positions)
        for key in ("startingOffsetsByTimestamp", "endingOffsetsByTimestamp"):
            if key in values:
                by_topic = values[key].by_topic.items()
                values[key] = Times(
                    by_topic={str(domains.of(TopicName.of_any_domain(t))): at for t, at in by_topic}
                )

    def _refuse_conflicts(self) -> None:
        for key in self._values:
            for other in BY_KEY[key.lower()].conflicts:
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
        self._refuse_meaningless()
        stray = [key for key in self.raw if key.startswith(PASSTHROUGH)]
        if stray and "service.url" not in self._values:
            raise OptionError(
                f"option {stray[0]!r} is for Pulsar, but 'service.url' is not given: give it, or "
                "drop the option"
            )

    def _refuse_meaningless(self) -> None:
        """Refuse options that mean nothing beside the others, or without one that is missing."""
        for key, needed in _NEEDED.items():
            if key in self._values and not any(other in self._values for other in needed):
                raise OptionError(
                    f"option {key!r} means nothing here: {needed[0]!r} is missing. Give it, or "
                    f"drop {key!r}"
                )
        url = self._values.get("store.url")
        is_plain = url is not None and not url.startswith("rediss")
        if is_plain and "store.tls.verifyHost" in self._values:
            raise OptionError(
                "option 'store.tls.verifyHost' means nothing here: 'store.url' is not rediss:// or "
                "rediss+cluster://, so that the connection would not be encrypted"
            )
        if self._values.get("transactions") is False:
            for key in _OF_TRANSACTIONS:
                if key in self._values:
                    raise OptionError(
                        f"option {key!r} means nothing here: with transactions=false each row is "
                        "visible at once, and a replay writes it again. Drop one of them"
                    )
        for key in ("topic", "topics", "topicsPattern"):
            if "path" in self._values and key in self._values:
                raise OptionError(
                    f"option {key!r} says what is read or written, and load(), save() or start() "
                    "has got a path as well: drop the path"
                )

    def get(self, key: str) -> Any:
        """Return an option's value: the one given, or else the default of the table.

        Raises
        ------
        KeyError
            If the table has no such option.
        """
        option = BY_KEY[key.lower()]
        parsed = self._values.get(option.key)
        return option.default_for(self.use) if parsed is None else parsed

    def explicit(self, key: str) -> Any:
        """Return the value that was given, None without one; same error as :meth:`get`."""
        return self._values.get(BY_KEY[key.lower()].key)

    def without_endpoint(self) -> Options:
        """Return these options without those of the endpoint, to be passed on to tasks."""
        rest = copy.copy(self)
        vars(rest).update(
            raw={key: text for key, text in self.raw.items() if key not in _ENDPOINT},
            _values={key: v for key, v in self._values.items() if key not in _ENDPOINT},
        )
        return rest

    def passthrough(self, kind: str) -> dict[str, str]:
        """Return the ``pulsar.<kind>.*`` options without their prefix."""
        prefix = f"pulsar.{kind}."
        return {k.removeprefix(prefix): v for k, v in self.raw.items() if k.startswith(prefix)}

    def _store_config(self) -> StoreConfig:
        url = self.get("store.url")
        return StoreConfig(
            url=url,
            # The default folder depends on the environment and the home of this process, too.
            path=None if url is not None else str(server_folder(self.get("store.path"))),
            username=self.get("store.username"),
            password=self.get("store.password"),
            tls_ca_file=self.get("store.tls.caFile"),
            tls_cert_file=self.get("store.tls.certFile"),
            tls_key_file=self.get("store.tls.keyFile"),
            tls_verify_host=self.get("store.tls.verifyHost"),
            accept_data_loss=self.get("store.acceptDataLoss"),
            assume_durable=self.get("store.assumeDurable"),
            timeout_ms=self.get("store.timeoutMs"),
            coordinators=self.get("store.coordinators"),
        )

    def _pulsar_config(self) -> PulsarConfig | None:
        if "service.url" not in self._values:
            return None
        return PulsarConfig(
            service_url=self.get("service.url"),
            admin_url=self.get("admin.url"),
            client=as_pairs(self.passthrough("client")),
            producer=as_pairs(self.passthrough("producer")),
            reader=as_pairs(self.passthrough("reader")),
            admin=as_pairs(self.passthrough("admin")),
            transport=self.get("transport"),
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Options):
            return NotImplemented
        return (self.raw, self.use) == (other.raw, other.use)

    def __hash__(self) -> int:
        return hash((frozenset(self.raw.items()), self.use))

    def __repr__(self) -> str:
        shown = {
            key: "***" if key.startswith(PASSTHROUGH) or BY_KEY[key].secret else redacted(value)
            for key, value in self.raw.items()
        }
        return f"Options({shown})"


def refuse_endpoint(options: Options, why: str) -> None:
    """Refuse the options of the endpoint where no process could serve it.

    Raises
    ------
    OptionError
    """
    for key in _ENDPOINT:
        if options.explicit(key) is not None:
            raise OptionError(
                f"option {key!r} means nothing here: {why}. Give it to a stream's source or to a "
                "foreachBatch sink, or call pulsar_txn_spark.serve_metrics(options, port) in your "
                "driver. Or run 'pulsar-txn sweep --every 30 --metrics-port PORT'"
            )
