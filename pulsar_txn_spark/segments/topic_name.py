"""Names of topics: ``topic://tenant/namespace/name`` and its short forms, and whose they are.

A topic's domain chooses its transactions: ``topic://`` is segmented, and they are this package's;
in ``persistent://`` they are Pulsar's own, with markers in the topic. ``scalable://`` is a scalable
topic of Pulsar 5, and they are Pulsar's own as well, kept in its metadata store (PIP-473). Pulsar
itself names such a topic ``topic://``. :class:`Domains` lets the configuration choose otherwise for
whole namespaces.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pulsar_txn_spark.errors import OptionError, TransactionDomainError

DOMAIN = "topic"
PULSAR_DOMAIN = "persistent"
"""Domain whose transactions are Pulsar's own, with markers in the topic (PIP-31)."""
SCALABLE_DOMAIN = "scalable"
"""Domain of Pulsar 5's scalable topics (PIP-460), which it calls ``topic://`` itself."""
PULSAR_DOMAINS = (PULSAR_DOMAIN, SCALABLE_DOMAIN)
"""Domains whose transactions are Pulsar's own."""
DOMAINS = (DOMAIN, *PULSAR_DOMAINS)
_PARTS = 3
# Pulsar's NamedEntity, for tenant and namespace. Brokers take more in a topic's name, we do not.
_PART = re.compile(r"[-=:.\w]+", re.ASCII)
_PARTITION = re.compile(r"-partition-\d+$")


def native_topic(log_name: str) -> str:
    """Return the native topic that a log is, or is a partition of; paths of them serve as well."""
    return _PARTITION.sub("", log_name)


def local_name(full: str) -> str:
    """Return what follows the namespace in a topic's full name, as Pulsar lists it."""
    return full.split("/", _PARTS + 1)[-1]  # two of them follow the domain


def is_readable(name: str) -> bool:
    """Tell whether this package can read a topic that has this name in its namespace."""
    return _PART.fullmatch(name) is not None


class TopicName(NamedTuple):
    """A topic's full name."""

    tenant: str
    namespace: str
    name: str
    domain: str = DOMAIN

    def __str__(self) -> str:
        return f"{self.domain}://{self.tenant}/{self.namespace}/{self.name}"

    @property
    def path(self) -> str:
        """``tenant/namespace/name``."""
        return f"{self.tenant}/{self.namespace}/{self.name}"

    @property
    def segmented(self) -> bool:
        """Whether it is a segmented topic, and not a native topic."""
        return self.domain == DOMAIN

    @property
    def scalable(self) -> bool:
        """Whether it is a scalable topic of Pulsar 5."""
        return self.domain == SCALABLE_DOMAIN

    @property
    def pulsar_name(self) -> str:
        """What Pulsar calls the topic."""
        return f"{DOMAIN if self.scalable else self.domain}://{self.path}"

    def require_segmented(self) -> TopicName:
        """Return the name itself.

        Raises
        ------
        TransactionDomainError
            If it is of the domain whose transactions are Pulsar's own.
        """
        if self.segmented:
            return self
        adopt = "" if self.scalable else "adopt this one as such ('pulsar-txn topic adopt'), "
        raise TransactionDomainError(
            f"topic {self} is of the domain {self.domain}://, expected {DOMAIN}://: its "
            "transactions are Pulsar's own, those of this package are metadata-driven, and none "
            "spans both. Nothing was written. Such a topic can be read by a source without a "
            "subscription. To write, name a segmented topic "
            f"({DOMAIN}://tenant/namespace/name), {adopt}or write a stream with "
            "transactions=native"
        )

    def require_native(self) -> TopicName:
        """Return the name itself.

        Raises
        ------
        TransactionDomainError
            If it is a segmented topic.
        """
        if not self.segmented:
            return self
        raise TransactionDomainError(
            f"topic {self} is a segmented one, expected {PULSAR_DOMAIN}://tenant/namespace/name: "
            "transactions=native are Pulsar's own, and none spans both domains. Nothing was "
            "written; name a topic of Pulsar's, or leave the option out"
        )

    @classmethod
    def parse(cls, text: str) -> TopicName:
        """Read ``topic://tenant/namespace/name``, ``tenant/namespace/name`` or ``name``.

        Raises
        ------
        OptionError
            If the text is no topic name, or one of another domain.
        TransactionDomainError
            If it is of the domain whose transactions are Pulsar's own.
        """
        return cls.of_any_domain(text).require_segmented()

    @classmethod
    def of_any_domain(cls, text: str) -> TopicName:
        """Read what :meth:`parse` does, or ``persistent://tenant/namespace/name``.

        Raises
        ------
        OptionError
            If the text is no topic name, or one of a third domain.
        """
        if not isinstance(text, str):
            raise OptionError(
                f"topic: expected a name such as topic://tenant/namespace/name, found {text!r}"
            )
        domain, separator, path = text.rpartition("://")
        if separator and domain not in DOMAINS:
            raise OptionError(
                f"topic {text!r} is of the domain {domain}://, expected {DOMAIN}://: transactions "
                "of this package cover segmented topics. Write topic://tenant/namespace/name"
            )
        parts = path.split("/")
        if len(parts) == 1:
            parts = ["public", "default", *parts]
        if len(parts) != _PARTS or not all(_PART.fullmatch(part) for part in parts):
            raise OptionError(
                f"malformed topic name {text!r}: expected topic://tenant/namespace/name (or only "
                "the name, in public/default), each part of letters, digits and any of -=:._"
            )
        tenant, namespace, name = parts
        return cls(tenant, namespace, name, domain or DOMAIN)


@dataclass(frozen=True, slots=True)
class Domains:
    """Which domain topics are of: the one that their names say, or their namespace's.

    Parameters
    ----------
    overrides : mapping of str to str
        ``tenant/namespace`` to ``topic`` or ``persistent``: there, that is the domain of every
        topic, whatever its name says.
    """

    overrides: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Domains:
        """Read ``tenant/namespace=domain``, with commas between several.

        Raises
        ------
        ValueError
            Saying what was expected.
        """
        expected = (
            "tenant/namespace=domain with commas between several, domain being "
            f"{', '.join(DOMAINS[:-1])} or {DOMAINS[-1]}"
        )
        overrides: dict[str, str] = {}
        for item in filter(None, (part.strip() for part in text.split(","))):
            namespace, _, domain = (part.strip() for part in item.partition("="))
            parts = namespace.split("/")
            if (
                len(parts) != _PARTS - 1
                or not all(_PART.fullmatch(part) for part in parts)
                or domain not in DOMAINS
            ):
                raise ValueError(expected)
            if overrides.setdefault(namespace, domain) != domain:
                raise ValueError(f"one domain for {namespace}")
        if not overrides:
            raise ValueError(expected)
        return cls(overrides)

    def of(self, name: TopicName) -> TopicName:
        """Return a topic's name with the domain that it has here."""
        chosen = self.overrides.get(f"{name.tenant}/{name.namespace}", name.domain)
        return name._replace(domain=chosen)

    def segmented(self, text: str) -> TopicName:
        """Read the name of a segmented topic.

        Raises
        ------
        OptionError
            If the text is no topic name.
        TransactionDomainError
            If it is a native topic.
        """
        return self.of(TopicName.of_any_domain(text)).require_segmented()

    def native(self, text: str) -> TopicName:
        """Read the name of a native topic.

        Raises
        ------
        OptionError
            If the text is no topic name.
        TransactionDomainError
            If it is a segmented topic.
        """
        return self.of(TopicName.of_any_domain(text)).require_native()
