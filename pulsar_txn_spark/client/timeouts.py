"""The times that a caller of the client names, checked."""

from __future__ import annotations

import operator
from numbers import Real

from pulsar_txn_spark.errors import OptionError
from pulsar_txn_spark.options import LEASE_MS


def lease_ms(timeout_ms: object) -> int:
    """Return the lease of a transaction, which may be a whole number of any type.

    Raises
    ------
    OptionError
        If it is another type, or out of bounds.
    """
    try:
        lease = operator.index(timeout_ms)  # type: ignore[arg-type]
    except TypeError:
        lease = LEASE_MS.least - 1
    if LEASE_MS.least <= lease <= LEASE_MS.most:
        return lease
    raise OptionError(
        f"timeout_ms: expected a whole number from {LEASE_MS.least} to {LEASE_MS.most}, found "
        f"{_shown(timeout_ms)}"
    )


def require_wait(timeout_ms: object) -> None:
    """Refuse what is no time to wait for a message.

    Raises
    ------
    OptionError
        If it is no number of at least 0, and not None.
    """
    if timeout_ms is None or (isinstance(timeout_ms, Real) and float(timeout_ms) >= 0):
        return
    raise OptionError(
        f"timeout_ms: expected a number of at least 0, or None, found {_shown(timeout_ms)}"
    )


def _shown(value: object) -> str:
    return f"{value!r} ({type(value).__name__})"
