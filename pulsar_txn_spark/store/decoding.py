"""Reading protobuf records of the store: what cannot be read is an error that says so (INV-11)."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from pulsar_txn_spark.errors import StoreCorruptError
from pulsar_txn_spark.store.metadata_pb2 import Outcome, Pointer
from pulsar_txn_spark.store.records import TxnHeader

Record = TypeVar("Record", bound=Message)


def decoded(kind: type[Record], data: bytes, name: str) -> Record:
    """Read a record.

    Parameters
    ----------
    kind : type
        Of the record.
    data : bytes
    name : str
        What the error calls it.

    Raises
    ------
    StoreCorruptError
        If it is none.
    """
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise unreadable(name, error) from error


def unreadable(name: str, reason: object) -> StoreCorruptError:
    """Return the error of a record that cannot be read."""
    return StoreCorruptError(
        f"{name} in the metadata store cannot be read ({reason}). It is damaged, or a later "
        "version of pulsar_txn_spark wrote it. Nothing is guessed: use that version, or restore "
        "the store"
    )


def outcome_of(header: TxnHeader) -> Outcome:
    """Return the outcome in a header; empty of one that is OPEN."""
    return decoded(Outcome, header.outcome, f"the outcome of transaction {header.txn}")


def pointer_of(sink: str, record: bytes) -> Pointer:
    """Return a sink's pointer; the default where there is none."""
    return decoded(Pointer, record, f"the pointer of sink {sink!r}")
