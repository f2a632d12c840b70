"""``pulsar-txn txn``: transactions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from pulsar_txn_spark.cli.commands import AsJson, OptionPairs, components_of
from pulsar_txn_spark.cli.output import iso_time, short_time, show
from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.errors import TransactionConflictError, TransactionNotFoundError
from pulsar_txn_spark.store.decoding import outcome_of
from pulsar_txn_spark.store.records import EndedBy, TxnHeader, TxnId, TxnState
from pulsar_txn_spark.txn.ids import pulsars_own, read_txn_id
from pulsar_txn_spark.txn.participants import Participants

_LISTED = 1000  # transactions of each coordinator


def txn_list(
    decided: Annotated[bool, typer.Option("--decided", help="Decided ones, too.")] = False,
    option: OptionPairs = [],
    as_json: AsJson = False,
) -> None:
    """List the open transactions, ordered by their deadlines.

    Of a coordinator with more than 1,000, these are the first ones and the oldest one. A line on
    standard error says so.
    """
    store = components_of(option).store
    ids: list[TxnId] = []
    for tc in range(store.identity.coordinators):
        opened = store.transactions.list_open(tc, deadline_ms=None, limit=_LISTED + 1)
        listed = [txn for txn, _ in opened]
        if len(listed) > _LISTED:
            oldest = TxnId(tc, store.transactions.lowest_open(tc)[0])
            listed = list(dict.fromkeys([*listed[:_LISTED], oldest]))
            _say_more(tc, "open", "and the oldest")
        ids += listed
        if decided:
            final = [txn for txn, _ in store.transactions.list_final(tc, limit=_LISTED + 1)]
            if len(final) > _LISTED:
                _say_more(tc, "decided", "the oldest ones")
            ids += final[:_LISTED]
    rows = _headers(filter(None, map(store.transactions.read, ids)))
    rows.sort(key=lambda row: (row["state"] != "OPEN", row["deadline"]))
    columns = ["transaction", "state", "sink", "query", "batch", "created", "deadline"]
    if not as_json:
        rows = [
            {**r, "created": short_time(r["created"]), "deadline": short_time(r["deadline"])}
            for r in rows
        ]
    show(
        rows,
        as_json=as_json,
        title="transactions (times in UTC)",
        columns=columns,
        whole=["transaction", "state", "batch"],
    )


def _say_more(tc: int, kind: str, which: str) -> None:
    typer.echo(
        f"coordinator {tc} has more {kind} transactions: {_LISTED} are listed, {which}", err=True
    )


def txn_show(
    transaction: Annotated[str, typer.Argument(help="As listed, '(tc,counter)'.")],
    option: OptionPairs = [],
    as_json: AsJson = False,
) -> None:
    """Show one transaction: its header, its participants, and its outcome."""
    header = _header(components_of(option), transaction)
    row = _headers([header])[0]
    participants = Participants.of(header.intents)
    outcome = outcome_of(header)
    row |= {
        "owner": header.owner,
        "finalized": iso_time(header.finalized_ms),
        "carried out": header.materialized,
        "segments": participants.segments,
        "writers": sorted(w for names in participants.writers.values() for w in names),
        "subscriptions": sorted({s for n in participants.subscriptions.values() for s in n}),
        "topics of Pulsar's own": participants.pulsars,
        "winners": sorted(f"{w.writer} in {w.segment}" for w in outcome.winners),
        "messages": outcome.messages,
        "bytes": outcome.bytes,
        "cause": outcome.cause,
    }
    if as_json:
        typer.echo(json.dumps(row, indent=2, default=str))
        return
    pairs = [{"": key, "value": value} for key, value in row.items()]
    show(pairs, as_json=False, title=row["transaction"], columns=["", "value"])


def txn_abort(
    transaction: Annotated[str, typer.Argument(help="As listed, '(tc,counter)'.")],
    option: OptionPairs = [],
    as_json: AsJson = False,
) -> None:
    """Abort an open transaction as an administrator. Its owner gets an error at its next step.

    This is idempotent. A committed transaction stays committed, which is an error.
    """
    components = components_of(option)
    txn = _header(components, transaction).txn
    state = components.coordinator.abort(txn, EndedBy.ADMIN, cause="an administrator aborted it")
    if state is TxnState.COMMITTED:
        raise TransactionConflictError(
            f"transaction {txn} was committed before: it cannot be aborted any more, and all of "
            "it stays visible"
        )
    rows = [{"transaction": str(txn), "state": str(state)}]
    show(rows, as_json=as_json, title="", columns=["transaction", "state"])


def _header(components: Components, text: str) -> TxnHeader:
    txn = read_txn_id(text, components.store.identity.coordinators)
    header = components.store.transactions.read(txn)
    if header is None:
        if components.topics.pulsar_knows(txn.tc, txn.counter):
            raise pulsars_own(txn)
        raise TransactionNotFoundError(
            f"transaction {txn} has no header: it never existed, or was collected after its "
            "decision"
        )
    return header


def _headers(headers: Iterable[TxnHeader]) -> list[dict[str, Any]]:
    return [
        {
            "transaction": str(header.txn),
            "state": str(header.state),
            "sink": header.sink,
            "query": header.query,
            "batch": header.batch,
            "created": iso_time(header.created_ms),
            "deadline": iso_time(header.deadline_ms),
            "expired": header.expired,
        }
        for header in headers
    ]
