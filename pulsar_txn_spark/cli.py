"""The command ``pulsar-txn``: topics, transactions, subscriptions and sweeps."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from pulsar_txn_spark import topic_admin
from pulsar_txn_spark.errors import OptionError, PulsarTxnError, TransactionNotFoundError
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.runtime import Runtime, runtime
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.store.metadata_pb2 import Outcome
from pulsar_txn_spark.store.protocol import EndedBy, TxnHeader, TxnId
from pulsar_txn_spark.txn.participants import Participants
from pulsar_txn_spark.txn.sweeper import DEFAULT_INTERVAL_S, DEFAULT_RETENTION_MS

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)
topic = typer.Typer(no_args_is_help=True, help="Segmented topics.")
txn = typer.Typer(no_args_is_help=True, help="Transactions.")
subscription = typer.Typer(no_args_is_help=True, help="Subscriptions and their cursors.")
app.add_typer(topic, name="topic")
app.add_typer(txn, name="txn")
app.add_typer(subscription, name="subscription")

Given = Annotated[
    list[str],
    typer.Option("--option", "-o", help="KEY=VALUE, as for format('pulsar_txn'). Again for more."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one document.")]
TopicArgument = Annotated[str, typer.Argument(help="topic://tenant/namespace/name, or the name.")]

_MOST = 1000  # transactions that a listing shows for each TC


def main() -> None:
    """Run the command; our own errors are one line on standard error and exit code 1."""
    try:
        app()
    except PulsarTxnError as error:
        Console(stderr=True).print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        raise SystemExit(1) from None


def _options(given: Sequence[str]) -> dict[str, str]:
    pairs = [item.partition("=") for item in given]
    malformed = [key for key, separator, _ in pairs if not separator]
    if malformed:
        raise OptionError(f"expected -o KEY=VALUE, found {malformed[0]!r}")
    return {key: value for key, _, value in pairs}


def _open(given: Sequence[str]) -> Runtime:
    return runtime(Options(_options(given), Use.CONNECT))


def _show(
    rows: Sequence[dict[str, Any]], *, as_json: bool, title: str, columns: Sequence[str]
) -> None:
    """Print rows as a table, or as JSON."""
    if as_json:
        typer.echo(json.dumps(rows, indent=2, default=str))
        return
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row[column]) for column in columns))
    Console().print(table)


def _cell(value: object) -> str:
    if isinstance(value, list | tuple):
        return "\n".join(map(str, value))
    return "" if value is None else str(value)


def _time(ms: int | None) -> str | None:
    if ms is None:
        return None
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


# -- topics ------------------------------------------------------------------------------------


@topic.command("create")
def topic_create(
    name: TopicArgument,
    segments: Annotated[int, typer.Option(help="How many segments.")] = 4,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Take one that is there.")] = False,
    option: Given = [],
    as_json: AsJson = False,
) -> None:
    """Create a segmented topic."""
    topic_admin.create_topic(_options(option), name, segments=segments, exist_ok=exist_ok)
    _describe(name, option, as_json=as_json)


@topic.command("list")
def topic_list(option: Given = [], as_json: AsJson = False) -> None:
    """List the segmented topics."""
    rows = [{"topic": name} for name in _open(option).store.list_topics()]
    _show(rows, as_json=as_json, title="topics", columns=["topic"])


@topic.command("describe")
def topic_describe(name: TopicArgument, option: Given = [], as_json: AsJson = False) -> None:
    """Show a topic's segments: hash ranges, how far they go, and who holds readers up."""
    _describe(name, option, as_json=as_json)


def _describe(name: str, option: Sequence[str], *, as_json: bool) -> None:
    run = _open(option)
    topology = run.topics.require(TopicName.parse(name))
    rows = []
    for segment in topology.segments:
        last = run.log.last_confirmed(segment.ref)
        gate = run.store.gates([segment.ref.id])[0]
        rows.append(
            {
                "segment": segment.ref.id,
                "state": str(segment.state),
                "hashes": f"{segment.hash_start:04x}-{segment.hash_end:04x}",
                "trimmed to": str(run.log.trimmed_to(segment.ref)),
                "last confirmed": str(last),
                "held by": sorted({str(pin.txn) for pin in gate.pins}),
                "dropped writers": len(gate.dropped),
                "log": segment.ref.log_name,
            }
        )
    columns = [column for column in rows[0] if column != "log"]
    _show(rows, as_json=as_json, title=str(topology.topic), columns=columns)


@topic.command("delete")
def topic_delete(
    name: TopicArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    option: Given = [],
) -> None:
    """Delete a topic with all its data."""
    if not yes:
        typer.confirm(f"Delete {name} with all its data?", abort=True)
    topic_admin.delete_topic(_options(option), name)


# -- transactions ------------------------------------------------------------------------------


@txn.command("list")
def txn_list(
    decided: Annotated[bool, typer.Option("--decided", help="Decided ones, too.")] = False,
    option: Given = [],
    as_json: AsJson = False,
) -> None:
    """List the open transactions, the ones that end first on top."""
    store = _open(option).store
    found: list[TxnId] = []
    for tc in range(store.identity.coordinators):
        found += [t for t, _ in store.list_open(tc, deadline_ms=None, limit=_MOST)]
        if decided:
            found += [t for t, _ in store.list_final(tc, limit=_MOST)]
    rows = _headers(filter(None, map(store.read_txn, found)))
    rows.sort(key=lambda row: (row["state"] != "OPEN", row["deadline"]))
    columns = ["transaction", "state", "sink", "query", "batch", "created", "deadline"]
    _show(rows, as_json=as_json, title="transactions", columns=columns)


@txn.command("show")
def txn_show(
    transaction: Annotated[str, typer.Argument(help="As listed, '(tc,counter)'.")],
    option: Given = [],
    as_json: AsJson = False,
) -> None:
    """Show one transaction: its header, its participants, and what came of it."""
    header = _header(_open(option), transaction)
    row = _headers([header])[0]
    participants = Participants.of(header.intents)
    outcome = Outcome.FromString(header.outcome)
    row |= {
        "owner": header.owner,
        "finalized": _time(header.finalized_ms),
        "carried out": header.materialized,
        "segments": participants.segments,
        "writers": sorted(w for names in participants.writers.values() for w in names),
        "subscriptions": sorted({s for n in participants.subscriptions.values() for s in n}),
        "winners": sorted(f"{w.writer} in {w.segment}" for w in outcome.winners),
        "messages": outcome.messages,
        "bytes": outcome.bytes,
        "cause": outcome.cause,
    }
    if as_json:
        typer.echo(json.dumps(row, indent=2, default=str))
        return
    pairs = [{"": key, "value": value} for key, value in row.items()]
    _show(pairs, as_json=False, title=row["transaction"], columns=["", "value"])


@txn.command("abort")
def txn_abort(
    transaction: Annotated[str, typer.Argument(help="As listed, '(tc,counter)'.")],
    option: Given = [],
    as_json: AsJson = False,
) -> None:
    """Abort an open transaction as an administrator; its owner is told at its next step."""
    run = _open(option)
    found = _header(run, transaction).txn
    state = run.coordinator.abort(found, EndedBy.FENCE, cause="an administrator aborted it")
    rows = [{"transaction": str(found), "state": str(state)}]
    _show(rows, as_json=as_json, title="", columns=["transaction", "state"])


def _header(run: Runtime, text: str) -> TxnHeader:
    try:
        found = TxnId.parse(text.strip("() ").replace(",", ":"))
    except ValueError:
        raise OptionError(f"expected a transaction as '(tc,counter)', found {text!r}") from None
    if not 0 <= found.tc < run.store.identity.coordinators:
        raise OptionError(
            f"there is no TC {found.tc}: expected 0 to {run.store.identity.coordinators - 1}"
        )
    header = run.store.read_txn(found)
    if header is None:
        raise TransactionNotFoundError(
            f"transaction {found} has no header: it never existed, or was collected after its "
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
            "created": _time(header.created_ms),
            "deadline": _time(header.deadline_ms),
            "expired": header.expired,
        }
        for header in headers
    ]


# -- subscriptions -----------------------------------------------------------------------------


@subscription.command("list")
def subscription_list(name: TopicArgument, option: Given = [], as_json: AsJson = False) -> None:
    """List a topic's subscriptions."""
    run = _open(option)
    topology = run.topics.require(TopicName.parse(name))
    found = {s for seg in topology.readable for s in run.store.list_subscriptions(seg.ref.id)}
    rows = [{"subscription": one} for one in sorted(found)]
    _show(rows, as_json=as_json, title=str(topology.topic), columns=["subscription"])


@subscription.command("describe")
def subscription_describe(
    name: TopicArgument,
    subscription_name: Annotated[str, typer.Argument(metavar="SUBSCRIPTION")],
    option: Given = [],
    as_json: AsJson = False,
) -> None:
    """Show where a subscription stands in each segment, whose it is, and its backlog."""
    run = _open(option)
    topology = run.topics.require(TopicName.parse(name))
    refs = [segment.ref for segment in topology.readable]
    rows = []
    cursors = run.store.read_cursors([ref.id for ref in refs], subscription_name)
    for ref, cursor in zip(refs, cursors, strict=True):
        last = run.log.last_confirmed(ref)
        waiting = run.log.measure(ref, cursor.position, last) if cursor else None
        rows.append(
            {
                "segment": ref.id,
                "cursor": str(cursor.position) if cursor else None,
                "query": cursor.query if cursor else None,
                "generation": cursor.generation if cursor else None,
                "last confirmed": str(last),
                "backlog messages": waiting.messages if waiting else None,
                "exact": waiting.exact if waiting else None,
            }
        )
    _show(rows, as_json=as_json, title=subscription_name, columns=list(rows[0]))


@subscription.command("reset")
def subscription_reset(
    name: TopicArgument,
    subscription_name: Annotated[str, typer.Argument(metavar="SUBSCRIPTION")],
    to: Annotated[str, typer.Option(help="earliest, latest, or here (only free it).")] = "earliest",
    option: Given = [],
) -> None:
    """Put a subscription elsewhere and free it, so that another query can take it."""
    topic_admin.reset_subscription(_options(option), name, subscription_name, to)


# -- sweeps ------------------------------------------------------------------------------------


@app.command("sweep")
def sweep(
    every: Annotated[
        float | None,
        typer.Option(help=f"Go on, and sweep every so many seconds (say {DEFAULT_INTERVAL_S:g})."),
    ] = None,
    retention_ms: Annotated[
        int, typer.Option(help="How long a decided header stays at least.")
    ] = DEFAULT_RETENTION_MS,
    option: Given = [],
    as_json: AsJson = False,
) -> None:
    """Abort what expired, carry out what was decided, collect what nobody needs any more."""
    sweeper = _open(option).sweeper(retention_ms)
    while True:
        row = asdict(sweeper.sweep())
        if as_json:
            typer.echo(json.dumps(row))
        else:
            _show([row], as_json=False, title="sweep", columns=list(row))
        if every is None:
            return
        time.sleep(every)
