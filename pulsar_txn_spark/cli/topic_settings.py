"""``pulsar-txn topic``: properties, retention and scaling."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any

import typer

from pulsar_txn_spark.cli.commands import (
    AsJson,
    OptionPairs,
    TopicArgument,
    admin_of,
    components_of,
    topology_of,
)
from pulsar_txn_spark.cli.output import show


def topic_properties(
    name: TopicArgument, option: OptionPairs = [], as_json: AsJson = False
) -> None:
    """Show a topic's properties; '__contains_txn_messages' is the system's own."""
    _show_properties(name, option, as_json=as_json)


def _show_properties(name: str, option: Sequence[str], *, as_json: bool) -> None:
    properties = admin_of(option).topic_properties(name)
    rows = [{"property": key, "value": value} for key, value in sorted(properties.items())]
    show(rows, as_json=as_json, title=name, columns=["property", "value"])


def topic_set_property(
    name: TopicArgument,
    key: Annotated[str, typer.Argument(help="Name of the property.")],
    value: Annotated[str, typer.Argument(help="Its value.")],
    option: OptionPairs = [],
    as_json: AsJson = False,
) -> None:
    """Set a property of a topic."""
    admin_of(option).set_topic_property(name, key, value)
    _show_properties(name, option, as_json=as_json)


def topic_remove_property(
    name: TopicArgument,
    key: Annotated[str, typer.Argument(help="Name of the property.")],
    option: OptionPairs = [],
    as_json: AsJson = False,
) -> None:
    """Remove a property of a topic."""
    admin_of(option).remove_topic_property(name, key)
    _show_properties(name, option, as_json=as_json)


def topic_retention(
    name: TopicArgument,
    time: Annotated[
        str | None, typer.Option(help="Keep rows so long: 30m, 12h, 7d; 'forever' = no limit.")
    ] = None,
    size: Annotated[
        str | None, typer.Option(help="Keep so many bytes: 500MiB, 10GiB; 'forever' = no limit.")
    ] = None,
    option: OptionPairs = [],
    as_json: AsJson = False,
) -> None:
    """Show what may be deleted of each segment, and what retains it; or set the limits.

    --time or --size sets both limits; the one that is missing becomes 'forever'. A row is deleted
    when it is beyond a limit and no subscription needs it.
    """
    if time is not None or size is not None:
        admin_of(option).set_retention(name, time=time, size=size)
    components = components_of(option)
    topology = topology_of(components, option, name)
    retention = admin_of(option).topic_retention(name)
    rows = [
        {
            "segment": verdict.segment.descriptor,
            "state": str(verdict.segment.state),
            "gone to": str(verdict.gone),
            "beyond retention to": str(verdict.expired),
            "needed from": str(verdict.needed),
            "held by": list(verdict.retained_by),
            "will be": "deleted" if verdict.delete else "trimmed" if verdict.does_anything else "",
        }
        for verdict in components.retention().judge(topology, retention)
    ]
    if as_json:
        typer.echo(json.dumps({**asdict(retention), "segments": rows}, indent=2))
        return
    show(
        rows,
        as_json=False,
        title=f"{topology.topic}: {retention}",
        columns=[
            "segment",
            "state",
            "gone to",
            "beyond retention to",
            "needed from",
            "held by",
            "will be",
        ],
        whole=["segment"],
    )


def topic_scaling(
    name: TopicArgument,
    enabled: Annotated[
        bool | None, typer.Option("--on/--off", help="Let 'sweep --scale' split and merge.")
    ] = None,
    rows_per_s: Annotated[
        int | None, typer.Option(help="What one segment should take at most.")
    ] = None,
    bytes_per_s: Annotated[
        int | None, typer.Option(help="What one segment should take at most.")
    ] = None,
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
    option: OptionPairs = [],
    as_json: AsJson = False,
) -> None:
    """Show or change when 'pulsar-txn sweep --scale' splits and merges a topic's segments."""
    values: dict[str, Any] = {
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
    changes = {key: value for key, value in values.items() if value is not None}
    admin = admin_of(option)
    policy = admin.topic_scaling(name)
    if changes:
        policy = replace(policy, **changes)
        admin.set_scaling(name, policy)
    row = asdict(policy)
    if as_json:
        typer.echo(json.dumps(row, indent=2))
        return
    pairs = [{"": key, "value": value} for key, value in row.items()]
    show(pairs, as_json=False, title=name, columns=["", "value"])
