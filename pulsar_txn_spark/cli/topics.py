"""``pulsar-txn topic``: topics and their segments."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from pulsar_txn_spark.cli.commands import (
    AsJson,
    OptionPairs,
    SegmentArgument,
    TopicArgument,
    admin_of,
    components_of,
    confirm,
    segmented,
    topology_of,
)
from pulsar_txn_spark.cli.lineage import bar, lineage
from pulsar_txn_spark.cli.output import readable_bytes, show
from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.errors import OptionError, PulsarTxnError
from pulsar_txn_spark.segments.log import RangeSize, SegmentRef
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import GatedBy
from pulsar_txn_spark.store.records import NOWHERE

_BAR_WIDTH = 16  # the table of a topic fits into 80 columns


def topic_create(
    name: TopicArgument,
    segments: Annotated[int, typer.Option(help="How many segments.")] = 4,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Accept an existing topic.")] = False,
    retention_time: Annotated[
        str | None,
        typer.Option(help="Keep acknowledged rows so long: 12h, 7d. For ever by default."),
    ] = None,
    retention_size: Annotated[
        str | None, typer.Option(help="Keep so many bytes of it: 10GiB. All by default.")
    ] = None,
    gate: Annotated[
        GatedBy,
        typer.Option(help="Who hides uncommitted rows: 'broker' = for every client, by a plug-in."),
    ] = GatedBy.READER,
    option: OptionPairs = [],
    as_json: AsJson = False,
) -> None:
    """Create a segmented topic."""
    admin_of(option).create_topic(
        name,
        segments=segments,
        exist_ok=exist_ok,
        retention_time=retention_time,
        retention_size=retention_size,
        gate=gate,
    )
    _describe(name, option, as_json=as_json)


def topic_list(option: OptionPairs = [], as_json: AsJson = False) -> None:
    """List the segmented topics, with the rows and bytes of their logs.

    Uncommitted rows count, too. Both are empty if another backend has the log, or if its server
    cannot be reached.
    """
    components = components_of(option)
    rows = [_listed(components, name) for name in components.topics.names()]
    if not as_json and not rows:  # its name may be misspelt: an embedded one is made then
        typer.echo(f"there is no topic in the store {components.store.place}")
        return
    if not as_json:
        rows = [{**row, "bytes": readable_bytes(row["bytes"])} for row in rows]
    show(
        rows,
        as_json=as_json,
        title="",
        columns=["topic", "segments", "rows", "bytes"],
        whole=["rows", "bytes"],
    )


def _listed(components: Components, name: str) -> dict[str, Any]:
    row: dict[str, Any] = {"topic": name, "segments": None, "rows": None, "bytes": None}
    topology = components.topics.find(TopicName.parse(name))
    if topology is None:
        return row  # deleted meanwhile
    row["segments"] = len(topology.active)
    with contextlib.suppress(PulsarTxnError):
        sizes = [_size_of(components, segment.ref) for segment in topology.readable]
        row["rows"] = sum(size.messages for size in sizes)
        row["bytes"] = sum(size.bytes for size in sizes)
    return row


def _size_of(components: Components, segment: SegmentRef) -> RangeSize:
    log = components.topics.log_of(segment)
    return log.measure(segment, log.trimmed_to(segment), log.last_confirmed(segment))


def topic_describe(name: TopicArgument, option: OptionPairs = [], as_json: AsJson = False) -> None:
    """Draw a topic's segments: their lineage, their ends, and the transactions that block readers.

    --json has the ids, parents, children, ends and logs as well.
    """
    _describe(name, option, as_json=as_json)


def topic_split(
    name: TopicArgument,
    segment: SegmentArgument,
    at: Annotated[
        str | None,
        typer.Option(help="First hash of the second half, in hex ('4000'). The middle by default."),
    ] = None,
    by_load: Annotated[
        bool, typer.Option("--by-load", help="Cut so that each half had as many rows lately.")
    ] = False,
    option: OptionPairs = [],
    as_json: AsJson = False,
) -> None:
    """Replace a segment by two, under running queries."""
    cut = None if at is None else _hash(at)
    admin_of(option).split_segment(name, segment, at=cut, by_load=by_load)
    _describe(name, option, as_json=as_json)


def topic_merge(
    name: TopicArgument,
    segments: Annotated[list[str], typer.Argument(metavar="SEGMENT SEGMENT...")],
    option: OptionPairs = [],
    as_json: AsJson = False,
) -> None:
    """Replace adjacent segments by one, under running queries."""
    admin_of(option).merge_segments(name, segments)
    _describe(name, option, as_json=as_json)


def topic_seal(
    name: TopicArgument, segment: SegmentArgument, option: OptionPairs = [], as_json: AsJson = False
) -> None:
    """Seal a segment and continue in a new one over the same hashes."""
    admin_of(option).seal_segment(name, segment)
    _describe(name, option, as_json=as_json)


def topic_gate(name: TopicArgument, option: OptionPairs = [], as_json: AsJson = False) -> None:
    """Let the brokers hide uncommitted rows from every client, from now on.

    The segments are sealed and continued in gated ones, which cannot be undone. Install the plug-in
    on every broker before.
    """
    admin_of(option).gate_topic(name)
    _describe(name, option, as_json=as_json)


def _hash(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        raise OptionError(
            f"--at takes a hash in hex, as segments are named ('4000'), found {text!r}"
        ) from None


def _describe(name: str, option: Sequence[str], *, as_json: bool) -> None:
    components = components_of(option)
    topology = topology_of(components, option, name)
    by_id = topology.by_id
    readable = {segment.ref.id for segment in topology.readable}
    rows = []
    for lines, segment in lineage(topology):
        ref = segment.ref
        gate = components.store.segments.gates([ref.id], [NOWHERE])[0]
        # A planned segment may have no log yet, and a deleted one has none any more.
        has_log = ref.id in readable
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
                "trimmed to": str(components.log.trimmed_to(ref)) if has_log else None,
                "last confirmed": str(components.log.last_confirmed(ref)) if has_log else None,
                "held by": sorted({str(pin.txn) for pin in gate.pins}),
                "dropped writers": gate.all_dropped,
                "log": ref.log_name,
            }
        )
    drawings = ["lineage", "hash space"]
    if as_json:
        rows = [{k: v for k, v in row.items() if k not in drawings} for row in rows]
    columns = [*drawings, "state", "last confirmed", "held by", "dropped writers"]
    title = f"{topology.topic}, version {topology.version}, gated by the {topology.gate}"
    show(rows, as_json=as_json, title=title, columns=columns, whole=drawings)


def topic_adopt(
    source: Annotated[str, typer.Argument(help="persistent://tenant/namespace/name, with data.")],
    name: TopicArgument,
    segments: Annotated[
        int | None, typer.Option(help="How many take over. As many as partitions by default.")
    ] = None,
    option: OptionPairs = [],
    as_json: AsJson = False,
) -> None:
    """Make a persistent:// topic the beginning of a segmented one.

    Its partitions are sealed, which cannot be undone: stop their producers first. An interrupted
    adoption is continued.
    """
    admin_of(option).adopt_topic(source, name, segments=segments)
    _describe(name, option, as_json=as_json)


def topic_delete(
    name: TopicArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    option: OptionPairs = [],
    as_json: AsJson = False,
) -> None:
    """Delete a topic with all its data."""
    if not yes:
        confirm(f"Delete {name} with all its data?")
    admin_of(option).delete_topic(name)
    rows = [{"topic": str(segmented(option, name)), "state": "deleted"}]
    show(rows, as_json=as_json, title="", columns=["topic", "state"])
