"""``pulsar-txn subscription``: subscriptions and their cursors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from pulsar_txn_spark.admin import CursorMove
from pulsar_txn_spark.admin.subscriptions import find
from pulsar_txn_spark.cli.commands import (
    AsJson,
    OptionPairs,
    TopicArgument,
    admin_of,
    components_of,
    confirm,
    segmented,
    topology_of,
)
from pulsar_txn_spark.cli.output import show
from pulsar_txn_spark.options import parse_time_ms
from pulsar_txn_spark.store.ack_ranges import SubscriptionState
from pulsar_txn_spark.store.records import TxnId
from pulsar_txn_spark.txn.pending_ack import CLIENT_OWNER

_SHOWN = 20  # ranges of a subscription in a cell of a table


def subscription_list(
    name: TopicArgument, option: OptionPairs = [], as_json: AsJson = False
) -> None:
    """List a topic's subscriptions."""
    components = components_of(option)
    topology = topology_of(components, option, name)
    names = {
        s for seg in topology.readable for s in components.store.subscriptions.names(seg.ref.id)
    }
    rows = [{"subscription": listed} for listed in sorted(names)]
    show(rows, as_json=as_json, title=str(topology.topic), columns=["subscription"])


def subscription_describe(
    name: TopicArgument,
    subscription_name: Annotated[str, typer.Argument(metavar="SUBSCRIPTION")],
    option: OptionPairs = [],
    as_json: AsJson = False,
) -> None:
    """Show a subscription's owner, and its cursor and backlog in each segment.

    Acknowledged ranges lie behind the cursor, after messages that are not acknowledged. Pending
    acknowledgements of open transactions are shown as held.
    """
    _describe_subscription(name, subscription_name, option, as_json=as_json)


def _describe_subscription(
    name: str, subscription_name: str, option: Sequence[str], *, as_json: bool
) -> None:
    components = components_of(option)
    topology = find(components, segmented(option, name), subscription_name)
    refs = [segment.ref for segment in topology.readable]
    rows: list[dict[str, Any]] = []
    cursors = components.store.subscriptions.read_cursors(
        [ref.id for ref in refs], subscription_name
    )
    for ref, cursor in zip(refs, cursors, strict=True):
        last = components.log.last_confirmed(ref)
        waiting = components.log.measure(ref, cursor.position, last) if cursor else None
        acks = components.store.subscriptions.read_acks(ref.id, subscription_name)
        rows.append(
            {
                "segment": ref.id,
                "cursor": str(cursor.position) if cursor else None,
                "query": cursor.query if cursor else None,
                "generation": cursor.cursor_version if cursor else None,
                "last confirmed": str(last),
                "backlog messages": waiting.messages if waiting else None,
                "exact": waiting.exact if waiting else None,
                "acknowledged ranges": [str(i) for i in acks.deleted] if acks else [],
                "held": _locked(acks) if acks else [],
            }
        )
    if as_json:
        show(rows, as_json=True, title="", columns=[])
        return
    owners = {(row["query"], row["generation"]) for row in rows if row["query"] is not None}
    title = f"{subscription_name} of {topology.topic}"
    for query, generation in sorted(owners) if len(owners) == 1 else ():
        title += f": {_whose(query)}, generation {generation}"
    shown = [
        {
            "segment": segment_.descriptor,
            "whose": _whose(row["query"]) if row["query"] is not None else None,
            "cursor": row["cursor"],
            "last confirmed": row["last confirmed"],
            "backlog": _backlog(row["backlog messages"], exact=row["exact"]),
            "acknowledged": _shortened(row["acknowledged ranges"]),
            "held": _shortened(row["held"]),
        }
        for segment_, row in zip(topology.readable, rows, strict=True)
    ]
    columns = list(shown[0])
    if len(owners) <= 1:
        columns.remove("whose")
    show(shown, as_json=False, title=title, columns=columns, whole=["segment"])


def _whose(owner: str) -> str:
    if not owner:
        return "nobody's"
    return "clients" if owner == CLIENT_OWNER else f"query {owner}"


def _backlog(messages: int | None, *, exact: bool | None) -> str | None:
    if messages is None:
        return None
    return str(messages) if exact else f"about {messages}"


def _locked(acks: SubscriptionState) -> list[str]:
    """Return the ranges that transactions have acknowledged and that are pending."""
    return [
        f"{TxnId.parse(key)} {interval}"
        for key, intervals in sorted(acks.pending.items())
        for interval in intervals
    ]


def _shortened(items: list[str]) -> list[str]:
    """Shorten a list to what a cell of a table shows."""
    left = len(items) - _SHOWN
    return items if left <= 0 else [*items[:_SHOWN], f"and {left} more (--json shows all)"]


def subscription_reset(
    name: TopicArgument,
    subscription_name: Annotated[str, typer.Argument(metavar="SUBSCRIPTION")],
    to: Annotated[
        str,
        typer.Option(
            help="earliest, latest, here (only release it), a time (2026-01-31T08:00:00Z), or JSON "
            'like {"<segment>": "ledger:entry"}.'
        ),
    ] = "",
    to_time: Annotated[
        str,
        typer.Option(
            help="Continue with the first message that was published at this time or later: "
            "2026-01-31T08:00:00Z, or milliseconds since 1970. Instead of --to."
        ),
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing, only show what would move.")
    ] = False,
    option: OptionPairs = [],
    as_json: AsJson = False,
) -> None:
    """Move a subscription's cursors and release it, so that another query can use it.

    Stop its query or consumer first: otherwise it fails with a conflict. Its query then needs a new
    checkpoint, unless the cursors stay ('here').
    """
    if bool(to) == bool(to_time):
        raise typer.BadParameter("say where to reset the subscription: by --to, or by --to-time")
    to = to or _checked_time(to_time)
    reset = admin_of(option).reset_subscription
    if dry_run or not yes:
        moves = reset(name, subscription_name, to, dry_run=True)
    if dry_run:
        _show_moves(moves, subscription_name, as_json=as_json)
        return
    if not yes:
        for line in _owners(moves):
            typer.echo(line, err=True)
        moving = sum(move.before != move.after for move in moves)
        confirm(
            f"Reset subscription {subscription_name} of {name} to {to}? The cursor moves in "
            f"{moving} of {len(moves)} segments"
        )
    moves = reset(name, subscription_name, to)
    _show_moves(moves, subscription_name, as_json=as_json)


def _checked_time(text: str) -> str:
    """Refuse what is no time, although --to would take it."""
    try:
        return str(parse_time_ms(text))
    except ValueError as error:
        raise typer.BadParameter(f"--to-time: expected {error}, found {text!r}") from None


def _owners(moves: Sequence[CursorMove]) -> list[str]:
    """Name the owners of a subscription, and when they last were active."""
    active: dict[str, int | None] = {}
    for move in moves:
        if move.owner:
            ago = [a for a in (active.get(move.owner), move.active_ms) if a is not None]
            active[move.owner] = min(ago, default=None)
    lines = []
    for owner, ago_ms in sorted(active.items()):
        who = "clients" if owner == CLIENT_OWNER else f"query {owner}"
        seen = "not lately" if ago_ms is None else f"{ago_ms / 1000:.0f} s ago"
        lines.append(f"It belongs to {who}, which last committed an acknowledgement {seen}.")
    return lines


def _show_moves(moves: Sequence[CursorMove], subscription_name: str, *, as_json: bool) -> None:
    rows = [
        {
            "segment": move.segment,
            "from": str(move.before) if move.before else None,
            "to": str(move.after),
            "query": move.owner,
        }
        for move in moves
    ]
    show(rows, as_json=as_json, title=subscription_name, columns=["segment", "from", "to"])


def subscription_delete(
    name: TopicArgument,
    subscription_name: Annotated[str, typer.Argument(metavar="SUBSCRIPTION")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    option: OptionPairs = [],
    as_json: AsJson = False,
) -> None:
    """Delete a subscription, so that it retains no data any more."""
    admin = admin_of(option)
    if not yes:
        for line in _owners(
            admin.reset_subscription(name, subscription_name, "latest", dry_run=True)
        ):
            typer.echo(line, err=True)
        confirm(
            f"Delete subscription {subscription_name} of {name}? What it has not "
            "read is retained for nobody then"
        )
    admin.delete_subscription(name, subscription_name)
    rows = [{"subscription": subscription_name, "state": "deleted"}]
    show(rows, as_json=as_json, title="", columns=["subscription", "state"])
