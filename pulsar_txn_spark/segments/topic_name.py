"""Names of topics: ``topic://tenant/namespace/name`` and its short forms."""

from __future__ import annotations

import re
from typing import NamedTuple

from pulsar_txn_spark.errors import OptionError, TransactionDomainError

DOMAIN = "topic"
PULSAR_DOMAIN = "persistent"
"""Domain whose transactions are Pulsar's own, with markers in the topic (PIP-31)."""
_PARTS = 3
_PART = re.compile(r"[-=:.\w]+", re.ASCII)  # Pulsar's NamedEntity, for tenant, namespace and name


class TopicName(NamedTuple):
    """A segmented topic's full name."""

    tenant: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{DOMAIN}://{self.tenant}/{self.namespace}/{self.name}"

    @property
    def path(self) -> str:
        """``tenant/namespace/name``."""
        return f"{self.tenant}/{self.namespace}/{self.name}"

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
        domain, separator, path = text.rpartition("://")
        if separator and domain == PULSAR_DOMAIN:
            raise TransactionDomainError(
                f"topic {text!r} is of the domain {PULSAR_DOMAIN}://, expected {DOMAIN}://: its "
                "transactions are Pulsar's own, those of this package are metadata-driven, and "
                "none spans both, so nothing was read or written. Write "
                f"{DOMAIN}://tenant/namespace/name for a segmented topic, or use a client of "
                "Pulsar's own for this one"
            )
        if separator and domain != DOMAIN:
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
        return cls(*parts)
