"""Whether a micro-batch is committed, as far as the sinks of its query say so."""

from __future__ import annotations

from pulsar_txn_spark.store.decoding import pointer_of
from pulsar_txn_spark.store.metadata_pb2 import Pointer
from pulsar_txn_spark.store.protocol import MetadataStore
from pulsar_txn_spark.store.records import TxnId, TxnState

_TRIES = 8  # each lost race means that a sweep or another attempt got on


def batch_is_committed(store: MetadataStore, query: str, batch: int) -> bool:
    """Tell whether every sink that a batch writes to has committed it; changes nothing.

    A source asks it when rows of a batch are gone: a batch that is committed needs them no more,
    for its replay writes nothing. Where it is not certain the answer is no (INV-11). So it is if no
    sink of this package has the batch, or one that wrote the batch before has not begun this one.
    """
    sinks = store.queries.read_sinks(query)
    concerned = {sink: entry for sink, entry in sinks.items() if entry.batch >= batch - 1}
    if not any(entry.batch == batch for entry in concerned.values()):
        return False
    return all(
        entry.batch == batch and _committed(store, query, sink, batch)
        for sink, entry in concerned.items()
    )


def _committed(store: MetadataStore, query: str, sink: str, batch: int) -> bool:
    for _ in range(_TRIES):
        read = store.sinks.read_pointer(sink, query)
        pointer = pointer_of(sink, read.own) if read.own else None
        if pointer is None or pointer.batch_id != batch:
            return False
        if pointer.decision != Pointer.UNDECIDED:
            return bool(pointer.decision == Pointer.COMMITTED)
        header = store.transactions.read(TxnId.parse(pointer.txn_id))
        if header is not None:
            # Of another attempt, if the store lost this one's and gave its number again.
            return header.nonce == pointer.nonce and header.state is TxnState.COMMITTED
        # Collected: the pointer has learned the decision before.
    return False
