"""The command ``pulsar-txn``: topics, transactions, subscriptions, sweeps and a check-up."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import logging
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import pulsar_txn_spark
from pulsar_txn_spark.admin import Admin, CursorMove
from pulsar_txn_spark.admin.subscriptions import find
from pulsar_txn_spark.cli.doctor import Level, examine
from pulsar_txn_spark.cli.lineage import bar, lineage
from pulsar_txn_spark.cli.option_sources import gather
from pulsar_txn_spark.engine.components import Runtime, runtime
from pulsar_txn_spark.errors import (
    OptionError,
    PulsarTxnError,
    SegmentLogUnavailableError,
    StoreUnavailableError,
    TransactionConflictError,
    TransactionNotFoundError,
)
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.position import EARLIEST
from pulsar_txn_spark.prometheus import DEFAULT_HOST, serve, stop_serving
from pulsar_txn_spark.segments.log import RangeSize, SegmentRef
from pulsar_txn_spark.segments.scaler import Scaled
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.store.ack_ranges import SubscriptionState
from pulsar_txn_spark.store.metadata_pb2 import Outcome
from pulsar_txn_spark.store.protocol import (
    NOWHERE,
    EndedBy,
    MetadataStore,
    OpLogSettings,
    TxnHeader,
    TxnId,
    TxnState,
)
from pulsar_txn_spark.txn.ids import pulsars_own, read_txn_id
from pulsar_txn_spark.txn.participants import Participants
from pulsar_txn_spark.txn.pending_ack import CLIENT_OWNER
from pulsar_txn_spark.txn.sweeper import (
    DEFAULT_INTERVAL_S,
    DEFAULT_RETENTION_MS,
    SweepReport,
)

_options_file: ContextVar[Path | None] = ContextVar("--options", default=None)
OptionsFile = Annotated[
    Path | None,
    typer.Option(
        "--options",
        metavar="FILE",
        help="Options from a file: KEY=VALUE in lines, or TOML (.toml). Secrets belong there, or "
        "into the environment: PULSAR_TXN_STORE_PASSWORD is store.password.",
    ),
]


class _Commands(typer.Typer):
    """Gives each command, besides its own parameters, the option ``--options``."""

    def command(self, *args: Any, **named: Any) -> Callable[[Callable[..., Any]], Any]:
        register = super().command(*args, **named)

        def with_file(function: Callable[..., Any]) -> Callable[..., Any]:
            register(_taking_file(function))
            return function

        return with_file


def _taking_file(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def command(*, options_file: Path | None = None, **parameters: Any) -> Any:
        token = _options_file.set(options_file)
        try:
            return function(**parameters)
        finally:
            _options_file.reset(token)

    signature = inspect.signature(function, eval_str=True)
    file = inspect.Parameter(
        "options_file", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=OptionsFile
    )
    shown = [*signature.parameters.values(), file]
    command.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return command


# A traceback shows no local variables: they may hold a password.
app = _Commands(no_args_is_help=True, pretty_exceptions_show_locals=False, help=__doc__)
topic = _Commands(no_args_is_help=True, help="Segmented topics.")
txn = _Commands(no_args_is_help=True, help="Transactions.")
op_log = _Commands(no_args_is_help=True, help="How operation records are gathered (PIP-160).")
subscription = _Commands(no_args_is_help=True, help="Subscriptions and their cursors.")
app.add_typer(topic, name="topic")
app.add_typer(txn, name="txn")
app.add_typer(op_log, name="op-log")
app.add_typer(subscription, name="subscription")

Given = Annotated[
    list[str],
    typer.Option("--option", "-o", help="KEY=VALUE, as for format('pulsar_txn'). Again for more."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one document.")]
SegmentArgument = Annotated[
    str, typer.Argument(help="An active segment: its number, 8000-ffff-2, or its id.")
]
TopicArgument = Annotated[str, typer.Argument(help="topic://tenant/namespace/name, or the name.")]

_SHOWN = 20  # ranges of a subscription in a cell of a table
_BAR_WIDTH = 16  # the table of a topic fits into 80 columns
_MOST = 1000  # transactions that a listing shows for each TC


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"pulsar-txn {pulsar_txn_spark.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command; our own errors are one line on standard error and exit code 1."""
    try:
        app()
    except PulsarTxnError as error:
        text = f"error: {in_commands(str(error))}"
        Console(stderr=True).print(text, style="red", markup=False, soft_wrap=True)
        raise SystemExit(1) from None


_COMMANDS = {
    "adopt_topic": "topic adopt",
    "create_topic": "topic create",
    "delete_subscription": "subscription delete",
    "delete_topic": "topic delete",
    "find_topic": "topic describe",
    "list_topics": "topic list",
    "merge_segments": "topic merge",
    "remove_topic_property": "topic remove-property",
    "reset_subscription": "subscription reset",
    "seal_segment": "topic seal",
    "serve_metrics": "sweep --every 30 --metrics-port PORT",
    "set_retention": "topic retention",
    "set_scaling": "topic scaling",
    "set_topic_property": "topic set-property",
    "split_segment": "topic split",
    "topic_properties": "topic properties",
    "topic_retention": "topic retention",
    "topic_scaling": "topic scaling",
}
_CALL = re.compile(
    rf"pulsar_txn_spark\.(?:Admin(?:\(options\))?\.)?({'|'.join(_COMMANDS)})\b(\([^()]*\))?"
)


def in_commands(text: str) -> str:
    """Replace the names of Python's functions in a message by those of this tool's commands."""
    return _CALL.sub(lambda call: f"'pulsar-txn {_COMMANDS[call[1]]}'", text)


def _options(given: Sequence[str]) -> dict[str, str]:
    return gather(given, _options_file.get())


def _admin(given: Sequence[str]) -> Admin:
    return Admin(_options(given))


def _segmented(given: Sequence[str], topic: str) -> TopicName:
    return Options(_options(given), Use.CONNECT).domains.segmented(topic)


def _open(given: Sequence[str]) -> Runtime:
    return runtime(Options(_options(given), Use.CONNECT))


def _show(
    rows: Sequence[dict[str, Any]],
    *,
    as_json: bool,
    title: str,
    columns: Sequence[str],
    whole: Sequence[str] = (),
) -> None:
    """Print rows as a table, or as JSON; columns named in `whole` are not broken into lines."""
    if as_json:
        typer.echo(json.dumps(rows, indent=2, default=str))
        return
    if title:  # not the table's own, which would be broken where a narrow table ends
        typer.echo(title)
    table = Table()
    for column in columns:
        table.add_column(_HEADERS.get(column, column), overflow="fold", no_wrap=column in whole)
    for row in rows:
        table.add_row(*(Text(_cell(row[column])) for column in columns))
    Console().print(table)


_HEADERS = {"beyond retention to": "expired to", "last confirmed": "end"}
"""Shorter names of columns, so that a table fits into 80 columns."""


def _cell(value: object) -> str:
    if isinstance(value, list | tuple):
        return "\n".join(map(str, value))
    if value == str(EARLIEST):
        return "start"
    return "" if value is None else str(value)


_KIB = 1024


def _readable(number: int | None) -> str | None:
    """Return a number of bytes as people read it."""
    if number is None or number < _KIB:
        return None if number is None else f"{number} B"
    size = float(number)
    for unit in ("KiB", "MiB", "GiB"):
        size /= _KIB
        if size < _KIB:
            return f"{size:.1f} {unit}"
    return f"{size / _KIB:.1f} TiB"


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
    retention_time: Annotated[
        str | None, typer.Option(help="Keep what was read so long: 12h, 7d. For ever by default.")
    ] = None,
    retention_size: Annotated[
        str | None, typer.Option(help="Keep so many bytes of it: 10GiB. All by default.")
    ] = None,
    option: Given = [],
    as_json: AsJson = False,
) -> None:
    """Create a segmented topic."""
    _admin(option).create_topic(
        name,
        segments=segments,
        exist_ok=exist_ok,
        retention_time=retention_time,
        retention_size=retention_size,
    )
    _describe(name, option, as_json=as_json)


@topic.command("list")
def topic_list(option: Given = [], as_json: AsJson = False) -> None:
    """List the segmented topics, with what lies in their logs.

    Rows and bytes are those of the log, whether committed or not; where another backend or a
    server that is away has them, they are left out.
    """
    run = _open(option)
    rows = [_listed(run, name) for name in run.topics.names()]
    if not as_json:
        rows = [{**row, "bytes": _readable(row["bytes"])} for row in rows]
    _show(
        rows,
        as_json=as_json,
        title="",
        columns=["topic", "segments", "rows", "bytes"],
        whole=["rows", "bytes"],
    )


def _listed(run: Runtime, name: str) -> dict[str, Any]:
    row: dict[str, Any] = {"topic": name, "segments": None, "rows": None, "bytes": None}
    topology = run.topics.find(TopicName.parse(name))
    if topology is None:
        return row  # deleted meanwhile
    row["segments"] = len(topology.active)
    with contextlib.suppress(PulsarTxnError):
        sizes = [_size_of(run, segment.ref) for segment in topology.readable]
        row["rows"] = sum(size.messages for size in sizes)
        row["bytes"] = sum(size.bytes for size in sizes)
    return row


def _size_of(run: Runtime, segment: SegmentRef) -> RangeSize:
    log = run.topics.log_of(segment)
    return log.measure(segment, log.trimmed_to(segment), log.last_confirmed(segment))


@topic.command("describe")
def topic_describe(name: TopicArgument, option: Given = [], as_json: AsJson = False) -> None:
    """Draw a topic's segments: who came of whom, how far they go, and who holds readers up.

    --json has the ids, parents, children, ends and logs as well.
    """
    _describe(name, option, as_json=as_json)


@topic.command("split")
def topic_split(
    name: TopicArgument,
    segment: SegmentArgument,
    at: Annotated[
        str | None,
        typer.Option(help="First hash of the second half, in hex ('4000'). The middle by default."),
    ] = None,
    by_load: Annotated[
        bool, typer.Option("--by-load", help="Cut so that both halves get as many rows as lately.")
    ] = False,
    option: Given = [],
    as_json: AsJson = False,
) -> None:
    """Replace a segment by two, under running queries."""
    cut = None if at is None else _hash(at)
    _admin(option).split_segment(name, segment, at=cut, by_load=by_load)
    _describe(name, option, as_json=as_json)


@topic.command("merge")
def topic_merge(
    name: TopicArgument,
    segments: Annotated[list[str], typer.Argument(metavar="SEGMENT SEGMENT...")],
    option: Given = [],
    as_json: AsJson = False,
) -> None:
    """Replace adjacent segments by one, under running queries."""
    _admin(option).merge_segments(name, segments)
    _describe(name, option, as_json=as_json)


@topic.command("seal")
def topic_seal(
    name: TopicArgument, segment: SegmentArgument, option: Given = [], as_json: AsJson = False
) -> None:
    """Seal a segment and go on in a new one over the same hashes."""
    _admin(option).seal_segment(name, segment)
    _describe(name, option, as_json=as_json)


def _hash(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        raise OptionError(
            f"--at takes a hash in hex, as segments are named ('4000'), found {text!r}"
        ) from None


def _describe(name: str, option: Sequence[str], *, as_json: bool) -> None:
    run = _open(option)
    topology = run.topics.require(_segmented(option, name))
    by_id = topology.by_id
    readable = {segment.ref.id for segment in topology.readable}
    rows = []
    for lines, segment in lineage(topology):
        ref = segment.ref
        gate = run.store.gates([ref.id], [NOWHERE])[0]
        # A planned segment need not have a log yet, a deleted one has none any more.
        there = ref.id in readable
        rows.append(
            {
                "segment": ref.id,
                "lineage": f"{lines}{segment.descriptor}",
                "hash space": bar(segment, _BAR_WIDTH),
                "state": str(segment.state),
                "hashes": f"{segment.hash_start:04x}-{segment.hash_end:04x}",
                "parents": [by_id[parent].descriptor for parent in segment.parents],
                "children": [by_id[child].descriptor for child in segment.children],
                "sealed at": str(segment.sealed_at) if segment.sealed_at else None,
                "trimmed to": str(run.log.trimmed_to(ref)) if there else None,
                "last confirmed": str(run.log.last_confirmed(ref)) if there else None,
                "held by": sorted({str(pin.txn) for pin in gate.pins}),
                "dropped writers": gate.all_dropped,
                "log": ref.log_name,
            }
        )
    drawings = ["lineage", "hash space"]
    if as_json:
        rows = [{k: v for k, v in row.items() if k not in drawings} for row in rows]
    columns = [*drawings, "state", "last confirmed", "held by", "dropped writers"]
    title = f"{topology.topic}, version {topology.version}"
    _show(rows, as_json=as_json, title=title, columns=columns, whole=drawings)


@topic.command("adopt")
def topic_adopt(
    source: Annotated[str, typer.Argument(help="persistent://tenant/namespace/name, with data.")],
    name: TopicArgument,
    segments: Annotated[
        int | None, typer.Option(help="How many take over. As many as partitions by default.")
    ] = None,
    option: Given = [],
    as_json: AsJson = False,
) -> None:
    """Make a topic of Pulsar's own domain the beginning of a segmented one; again = go on.

    Its partitions are sealed, which cannot be taken back: stop what produces to them first.
    """
    _admin(option).adopt_topic(source, name, segments=segments)
    _describe(name, option, as_json=as_json)


@topic.command("delete")
def topic_delete(
    name: TopicArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    option: Given = [],
    as_json: AsJson = False,
) -> None:
    """Delete a topic with all its data."""
    if not yes:
        # The question goes to standard error: what is printed stays one JSON document.
        typer.confirm(f"Delete {name} with all its data?", abort=True, err=True)
    _admin(option).delete_topic(name)
    rows = [{"topic": str(_segmented(option, name)), "state": "deleted"}]
    _show(rows, as_json=as_json, title="", columns=["topic", "state"])


@topic.command("properties")
def topic_properties(name: TopicArgument, option: Given = [], as_json: AsJson = False) -> None:
    """Show a topic's properties; '__contains_txn_messages' is the system's own."""
    _show_properties(name, option, as_json=as_json)


def _show_properties(name: str, option: Sequence[str], *, as_json: bool) -> None:
    found = _admin(option).topic_properties(name)
    rows = [{"property": key, "value": value} for key, value in sorted(found.items())]
    _show(rows, as_json=as_json, title=name, columns=["property", "value"])


@topic.command("set-property")
def topic_set_property(
    name: TopicArgument,
    key: Annotated[str, typer.Argument(help="Name of the property.")],
    value: Annotated[str, typer.Argument(help="Its value.")],
    option: Given = [],
    as_json: AsJson = False,
) -> None:
    """Give a topic a property."""
    _admin(option).set_topic_property(name, key, value)
    _show_properties(name, option, as_json=as_json)


@topic.command("remove-property")
def topic_remove_property(
    name: TopicArgument,
    key: Annotated[str, typer.Argument(help="Name of the property.")],
    option: Given = [],
    as_json: AsJson = False,
) -> None:
    """Take a property from a topic."""
    _admin(option).remove_topic_property(name, key)
    _show_properties(name, option, as_json=as_json)


@topic.command("retention")
def topic_retention(
    name: TopicArgument,
    time: Annotated[
        str | None, typer.Option(help="Keep rows so long: 30m, 12h, 7d; 'forever' = no limit.")
    ] = None,
    size: Annotated[
        str | None, typer.Option(help="Keep so many bytes: 500MiB, 10GiB; 'forever' = no limit.")
    ] = None,
    option: Given = [],
    as_json: AsJson = False,
) -> None:
    """Show what may go of each segment and who holds it; with --time or --size, set the limits.

    A row goes when it is beyond one of the limits and no subscription needs it any more. A limit
    that is not given is no limit.
    """
    if time is not None or size is not None:
        _admin(option).set_retention(name, time=time, size=size)
    run = _open(option)
    topology = run.topics.require(_segmented(option, name))
    retention = _admin(option).topic_retention(name)
    rows = [
        {
            "segment": verdict.segment.descriptor,
            "state": str(verdict.segment.state),
            "gone to": str(verdict.gone),
            "beyond retention to": str(verdict.expired),
            "needed from": str(verdict.needed),
            "held by": list(verdict.held_by),
            "will be": "deleted" if verdict.delete else "trimmed" if verdict.does_anything else "",
        }
        for verdict in run.retention().judge(topology, retention)
    ]
    if as_json:
        typer.echo(json.dumps({**asdict(retention), "segments": rows}, indent=2))
        return
    _show(
        rows,
        as_json=False,
        title=f"{topology.topic}: {retention}",
        columns=list(rows[0]),
        whole=["segment"],
    )


@topic.command("scaling")
def topic_scaling(
    name: TopicArgument,
    enabled: Annotated[
        bool | None, typer.Option("--on/--off", help="Let 'sweep --scale' split and merge.")
    ] = None,
    rows_per_s: Annotated[int | None, typer.Option(help="What one segment should take.")] = None,
    bytes_per_s: Annotated[int | None, typer.Option(help="What one segment should take.")] = None,
    skew: Annotated[
        float | None, typer.Option(help="Split what takes so many times the mean. 0 = off.")
    ] = None,
    merge_below: Annotated[
        float | None, typer.Option(help="Merge neighbours that take less than this part (<= 0.5).")
    ] = None,
    min_segments: Annotated[int | None, typer.Option()] = None,
    max_segments: Annotated[int | None, typer.Option()] = None,
    hot_for_ms: Annotated[
        int | None, typer.Option(help="How long a segment has to be hot.")
    ] = None,
    cold_for_ms: Annotated[int | None, typer.Option(help="How long two have to be cold.")] = None,
    split_pause_ms: Annotated[
        int | None, typer.Option(help="Least time between a change and a split.")
    ] = None,
    merge_pause_ms: Annotated[
        int | None, typer.Option(help="Least time between a change and a merge.")
    ] = None,
    option: Given = [],
    as_json: AsJson = False,
) -> None:
    """Show or change when 'pulsar-txn sweep --scale' splits and merges a topic's segments."""
    given: dict[str, Any] = {
        "enabled": enabled,
        "rows_per_s": rows_per_s,
        "bytes_per_s": bytes_per_s,
        "skew": skew,
        "merge_below": merge_below,
        "min_segments": min_segments,
        "max_segments": max_segments,
        "hot_for_ms": hot_for_ms,
        "cold_for_ms": cold_for_ms,
        "split_pause_ms": split_pause_ms,
        "merge_pause_ms": merge_pause_ms,
    }
    changes = {key: value for key, value in given.items() if value is not None}
    admin = _admin(option)
    policy = admin.topic_scaling(name)
    if changes:
        policy = replace(policy, **changes)
        admin.set_scaling(name, policy)
    row = asdict(policy)
    if as_json:
        typer.echo(json.dumps(row, indent=2))
        return
    pairs = [{"": key, "value": value} for key, value in row.items()]
    _show(pairs, as_json=False, title=name, columns=["", "value"])


# -- operation records -------------------------------------------------------------------------


@op_log.command("show")
def op_log_show(option: Given = [], as_json: AsJson = False) -> None:
    """Show how the operation records of each coordinator are gathered (PIP-160)."""
    _show_op_log(_open(option).store, as_json=as_json)


def _show_op_log(store: MetadataStore, *, as_json: bool) -> None:
    rows = []
    for tc in range(store.identity.coordinators):
        found = store.read_op_log(tc)
        rows.append({"coordinator": tc, **asdict(found or OpLogSettings())})
    _show(rows, as_json=as_json, title="operation records", columns=list(rows[0]))


@op_log.command("set")
def op_log_set(
    enabled: Annotated[bool, typer.Option("--on/--off", help="Gather records into entries.")],
    max_records: Annotated[int | None, typer.Option(help="Records in one entry.")] = None,
    max_bytes: Annotated[int | None, typer.Option(help="Bytes in one entry.")] = None,
    max_delay_ms: Annotated[
        int | None, typer.Option(help="How long a record waits for others.")
    ] = None,
    option: Given = [],
    as_json: AsJson = False,
) -> None:
    """Change how operation records are gathered; running writers hear of it at once.

    A limit that is not named stays as it is.
    """
    store = _open(option).store
    limits = {"max_records": max_records, "max_bytes": max_bytes, "max_delay_ms": max_delay_ms}
    named = {name: limit for name, limit in limits.items() if limit is not None}
    for tc in range(store.identity.coordinators):
        before = store.read_op_log(tc) or OpLogSettings()
        store.set_op_log(tc, replace(before, enabled=enabled, **named))
    _show_op_log(store, as_json=as_json)


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
    if not as_json:
        rows = [
            {**r, "created": _short(r["created"]), "deadline": _short(r["deadline"])} for r in rows
        ]
    _show(
        rows,
        as_json=as_json,
        title="transactions (times in UTC)",
        columns=columns,
        whole=["transaction", "state", "batch"],
    )


def _short(time: str | None) -> str | None:
    """Return a time for a table: day and time of day, one above the other if it is narrow."""
    return time and time[:19].replace("T", " ")


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
    """Abort an open transaction as an administrator; its owner is told at its next step.

    Aborting it again succeeds. One that was committed stays so, which is an error.
    """
    run = _open(option)
    found = _header(run, transaction).txn
    state = run.coordinator.abort(found, EndedBy.ADMIN, cause="an administrator aborted it")
    if state is TxnState.COMMITTED:
        raise TransactionConflictError(
            f"transaction {found} was committed before: it cannot be aborted any more, and all of "
            "it stays visible"
        )
    rows = [{"transaction": str(found), "state": str(state)}]
    _show(rows, as_json=as_json, title="", columns=["transaction", "state"])


def _header(run: Runtime, text: str) -> TxnHeader:
    found = read_txn_id(text, run.store.identity.coordinators)
    header = run.store.read_txn(found)
    if header is None:
        if run.topics.pulsar_knows(found.tc, found.counter):
            raise pulsars_own(found)
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
    topology = run.topics.require(_segmented(option, name))
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
    """Show where a subscription stands in each segment, whose it is, its backlog, who holds what.

    Acknowledged ranges lie behind the cursor, with something unacknowledged before them; held are
    those of transactions that are not carried out.
    """
    _describe_subscription(name, subscription_name, option, as_json=as_json)


def _describe_subscription(
    name: str, subscription_name: str, option: Sequence[str], *, as_json: bool
) -> None:
    run = _open(option)
    topology = find(run, _segmented(option, name), subscription_name)
    refs = [segment.ref for segment in topology.readable]
    rows: list[dict[str, Any]] = []
    cursors = run.store.read_cursors([ref.id for ref in refs], subscription_name)
    for ref, cursor in zip(refs, cursors, strict=True):
        last = run.log.last_confirmed(ref)
        waiting = run.log.measure(ref, cursor.position, last) if cursor else None
        acks = run.store.read_acks(ref.id, subscription_name)
        rows.append(
            {
                "segment": ref.id,
                "cursor": str(cursor.position) if cursor else None,
                "query": cursor.query if cursor else None,
                "generation": cursor.generation if cursor else None,
                "last confirmed": str(last),
                "backlog messages": waiting.messages if waiting else None,
                "exact": waiting.exact if waiting else None,
                "acknowledged ranges": [str(i) for i in acks.deleted] if acks else [],
                "held": _held(acks) if acks else [],
            }
        )
    if as_json:
        _show(rows, as_json=True, title="", columns=[])
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
            "acknowledged": _first(row["acknowledged ranges"]),
            "held": _first(row["held"]),
        }
        for segment_, row in zip(topology.readable, rows, strict=True)
    ]
    columns = list(shown[0])
    if len(owners) <= 1:
        columns.remove("whose")
    _show(shown, as_json=False, title=title, columns=columns, whole=["segment"])


def _whose(owner: str) -> str:
    if not owner:
        return "nobody's"
    return "clients" if owner == CLIENT_OWNER else f"query {owner}"


def _backlog(messages: int | None, *, exact: bool | None) -> str | None:
    if messages is None:
        return None
    return str(messages) if exact else f"about {messages}"


def _held(acks: SubscriptionState) -> list[str]:
    """Say which open transaction holds which range: nobody else may acknowledge it."""
    return [
        f"{TxnId.parse(key)} {interval}"
        for key, intervals in sorted(acks.pending.items())
        for interval in intervals
    ]


def _first(items: list[str]) -> list[str]:
    """Leave in a table what people read."""
    left = len(items) - _SHOWN
    return items if left <= 0 else [*items[:_SHOWN], f"and {left} more (--json shows all)"]


@subscription.command("reset")
def subscription_reset(
    name: TopicArgument,
    subscription_name: Annotated[str, typer.Argument(metavar="SUBSCRIPTION")],
    to: Annotated[
        str,
        typer.Option(
            help="earliest, latest, here (only free it), a time (2026-01-31T08:00:00Z), or JSON "
            'like {"<segment>": "ledger:entry"}.'
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing, only say what would move.")
    ] = False,
    option: Given = [],
    as_json: AsJson = False,
) -> None:
    """Put a subscription elsewhere and free it, so that another query can take it.

    Stop its query or consumer first: while it runs, it fails with a conflict, and a query then
    needs a new checkpoint (unless the subscription stays here).
    """
    reset = _admin(option).reset_subscription
    if dry_run or not yes:
        moves = reset(name, subscription_name, to, dry_run=True)
    if dry_run:
        _show_moves(moves, subscription_name, as_json=as_json)
        return
    if not yes:
        for line in _owners(moves):
            typer.echo(line, err=True)
        moving = sum(move.before != move.after for move in moves)
        typer.confirm(
            f"Reset subscription {subscription_name} of {name} to {to}? The cursor moves in "
            f"{moving} of {len(moves)} segments",
            abort=True,
            err=True,
        )
    moves = reset(name, subscription_name, to)
    _show_moves(moves, subscription_name, as_json=as_json)


def _owners(moves: Sequence[CursorMove]) -> list[str]:
    """Say whose a subscription is, and whether its owner seems to be alive."""
    found: dict[str, int | None] = {}
    for move in moves:
        if move.owner:
            ago = [a for a in (found.get(move.owner), move.active_ms) if a is not None]
            found[move.owner] = min(ago, default=None)
    lines = []
    for owner, ago_ms in sorted(found.items()):
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
    _show(rows, as_json=as_json, title=subscription_name, columns=["segment", "from", "to"])


@subscription.command("delete")
def subscription_delete(
    name: TopicArgument,
    subscription_name: Annotated[str, typer.Argument(metavar="SUBSCRIPTION")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    option: Given = [],
    as_json: AsJson = False,
) -> None:
    """Delete a subscription: it holds no data any more."""
    admin = _admin(option)
    if not yes:
        for line in _owners(
            admin.reset_subscription(name, subscription_name, "latest", dry_run=True)
        ):
            typer.echo(line, err=True)
        typer.confirm(
            f"Delete subscription {subscription_name} of {name}? What it has not read is held for "
            "nobody then",
            abort=True,
            err=True,
        )
    admin.delete_subscription(name, subscription_name)
    rows = [{"subscription": subscription_name, "state": "deleted"}]
    _show(rows, as_json=as_json, title="", columns=["subscription", "state"])


# -- sweeps ------------------------------------------------------------------------------------


@app.command("sweep")
def sweep(
    every: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help=f"Go on, and sweep every so many seconds (say {DEFAULT_INTERVAL_S:g}), until "
            "SIGTERM or Ctrl-C. What cannot be reached is tried again.",
        ),
    ] = None,
    retention_ms: Annotated[
        int, typer.Option(min=0, help="How long a decided header stays at least.")
    ] = DEFAULT_RETENTION_MS,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65_535, help="Serve metrics for Prometheus, with --every. 0 = any port."
        ),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(help="Address of the endpoint; it has no authentication.")
    ] = DEFAULT_HOST,
    scale: Annotated[
        bool,
        typer.Option("--scale", help="Split and merge where 'topic scaling' is on; see docs."),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="With --scale: only say what it would do and why."),
    ] = False,
    option: Given = [],
    as_json: AsJson = False,
) -> None:
    """Abort what expired, carry out what was decided, collect what nobody needs any more.

    With --scale --dry-run nothing of that is done: only the load of topics is looked at.
    """
    if dry_run and not scale:
        raise OptionError(
            "--dry-run goes with --scale; 'topic retention' says what retention would do"
        )
    if metrics_port is not None and every is None:
        raise OptionError(
            "--metrics-port needs --every SECONDS: a single sweep ends before anybody scrapes it"
        )
    run = _open(option)
    sweeper = run.sweeper(retention_ms)

    def once() -> None:
        report = None if dry_run else sweeper.sweep()
        scaled = run.scaler().sweep(dry_run=dry_run) if scale else None
        _show_sweep(report, scaled, as_json=as_json, every=every is not None)

    if every is None:
        once()
        return
    with _told_to_stop() as stop:
        if metrics_port is not None:
            typer.echo(f"metrics at {serve(run, metrics_port, metrics_host).url}", err=True)
        try:
            _sweep_until(stop, once, every)
        finally:
            stop_serving()


def _sweep_until(stop: threading.Event, once: Callable[[], None], every: float) -> None:
    while True:
        try:
            once()
        except (StoreUnavailableError, SegmentLogUnavailableError) as error:
            # It may be back; whatever else is wrong (a store that is not the one known) is not
            # going to mend itself, and ends the command.
            typer.echo(
                f"error: {in_commands(str(error))}; the next try is in {every:g} s", err=True
            )
        if stop.wait(every):
            return


def _show_sweep(
    report: SweepReport | None, scaled: Sequence[Scaled] | None, *, as_json: bool, every: bool
) -> None:
    """Print what a sweep has done; one of many only if it has done anything."""
    done = asdict(report) if report is not None else {}
    scaling = [
        {
            "topic": one.topic,
            "do": one.decision.what,
            "segments": list(one.decision.segments),
            "why": one.decision.why,
            "failed": one.failed,
        }
        for one in scaled or ()
    ]
    if as_json:
        typer.echo(json.dumps(done if scaled is None else {**done, "scaling": scaling}))
        return
    changes = {key.replace("_", " "): value for key, value in done.items() if value}
    if changes and not every:
        pairs = [{"": key, "sweep": value} for key, value in changes.items()]
        _show(pairs, as_json=False, title="", columns=["", "sweep"], whole=[""])
    elif changes:
        named = ", ".join(f"{key} {value}" for key, value in changes.items() if key != "stuck")
        stuck = "".join(f"; stuck: {one}" for one in report.stuck) if report else ""
        typer.echo(f"{_now()} swept: {named}{stuck}")
    elif done and not every:
        typer.echo("swept: there was nothing to do")
    if scaling:
        columns = ["topic", "do", "segments", "why", "failed"]
        _show(scaling, as_json=False, title="scaling", columns=columns)
    elif scaled is not None and not every:
        typer.echo("scaling: there was nothing to do")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def _told_to_stop() -> Iterator[threading.Event]:
    """Turn SIGTERM and Ctrl-C into an event, so that a sweep is not cut off in the middle."""
    stop = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: stop.set())
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- doctor ------------------------------------------------------------------------------------


@app.command("doctor")
def doctor(option: Given = [], as_json: AsJson = False) -> None:
    """Check versions, Redis' durability, Pulsar's deduplication, and what is stuck or old.

    Changes nothing. The exit code is 1 if anything was found, however small.
    """
    # What the store's check would log stands in the findings.
    log = logging.getLogger("pulsar_txn_spark.store.redis.connection")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        findings = examine(_options(option))
    finally:
        log.setLevel(level)
    rows = [asdict(finding) for finding in findings]
    _show(rows, as_json=as_json, title="doctor", columns=["check", "level", "found", "remedy"])
    if any(finding.level is not Level.OK for finding in findings):
        raise typer.Exit(1)
