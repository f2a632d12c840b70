"""Transaction bits: what an entry's metadata say of its transaction in a gated segment.

Pulsar's own transactions have two numbers of 64 bits. Here ``most`` is the first 47 bits of the
SHA-256 of the writer's name, then 16 bits of the TC id; ``least`` is the counter. The hash is never
0, as in the ids of Pulsar's own transactions. So a broker can tell the writers of one transaction
from each other. The plug-in for brokers (``jvm_shim/``) computes the same.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

_HASH_BITS = 47
_TC_BITS = 16


class TxnBits(NamedTuple):
    """The transaction bits of a writer's entries."""

    most: int
    least: int

    @classmethod
    def of_writer(cls, name: str) -> TxnBits:
        """Compute the bits of a transaction's writer from its name.

        Parameters
        ----------
        name : str
            ``ptxn-<tc>-<counter>-<attempt>-<random>``.
        """
        _, tc, counter, _, _ = name.split("-")
        digest = hashlib.sha256(name.encode()).digest()
        hashed = max(1, int.from_bytes(digest[:8], "big") >> (64 - _HASH_BITS))
        return cls(hashed << _TC_BITS | int(tc), int(counter))
