"""Telling this package's transaction ids from those of Pulsar's own transactions.

Both are two numbers, and both are shown as ``(a,b)``: TC id and counter here, ``mostSigBits`` (the
TC id as well) and ``leastSigBits`` there. So one can be taken for the other only where somebody
writes it down. A program is told by the type, a text by its form. Of what is left, a number that
this store has never given out, the command line asks Pulsar.
"""

from __future__ import annotations

import re

from pulsar_txn_spark.errors import OptionError, TransactionDomainError
from pulsar_txn_spark.store.records import TxnId

_PULSARS = re.compile(r"(most|least)[-_ ]?(sig)?[-_ ]?bits", re.IGNORECASE)
_KEPT = 100  # characters of a wrong id that a message repeats


def require_own(txn: object, coordinators: int) -> TxnId:
    """Return the id of one of this package's transactions.

    Parameters
    ----------
    txn : object
        What a caller takes for one.
    coordinators : int
        TCs of the store.

    Raises
    ------
    TransactionDomainError
        If it is no TxnId, or one that no TC of this store can have given out.
    """
    if not isinstance(txn, TxnId):
        raise TransactionDomainError(
            f"expected a TxnId of this package, found {str(txn)[:_KEPT]} ({type(txn).__name__}): "
            "ids of Pulsar's own transactions (mostSigBits, leastSigBits) mean nothing here, and "
            "no transaction spans both. End it with the client that has opened it"
        )
    if not 0 <= txn.tc < coordinators or txn.counter < 0:
        raise TransactionDomainError(
            f"there is no TC {txn.tc}: expected 0 to {coordinators - 1} and a counter, found "
            f"{txn}. It belongs to another store, or to Pulsar's own transactions, whose ids look "
            "the same"
        )
    return txn


def read_txn_id(text: str, coordinators: int) -> TxnId:
    """Read an id as people write it, ``(tc,counter)``.

    Raises
    ------
    TransactionDomainError
        If it is one of Pulsar's own transactions.
    OptionError
        If it is no id.
    """
    if _PULSARS.search(text):
        raise TransactionDomainError(
            f"{text[:_KEPT]!r} is the id of a transaction of Pulsar's own (mostSigBits, "
            "leastSigBits), expected one of this package's as '(tc,counter)': none spans both. "
            "Look at it with 'pulsar-admin transactions'"
        )
    try:
        txn = TxnId.parse(text.strip("() ").replace(",", ":"))
    except ValueError:
        raise OptionError(f"expected a transaction as '(tc,counter)', found {text!r}") from None
    return require_own(txn, coordinators)


def pulsars_own(txn: TxnId) -> TransactionDomainError:
    """Return the error for an id that Pulsar's coordinators know, and this store does not."""
    return TransactionDomainError(
        f"transaction {txn} has no header in this store, but Pulsar's own coordinator {txn.tc} "
        f"knows a transaction (mostSigBits={txn.tc}, leastSigBits={txn.counter}). It is one of "
        "persistent:// topics, which this package cannot look into or end. Use 'pulsar-admin "
        "transactions', or the client that has opened it"
    )
