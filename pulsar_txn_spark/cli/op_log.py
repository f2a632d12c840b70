"""``pulsar-txn op-log``: the batching of operation records (PIP-160)."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated

import typer

from pulsar_txn_spark.cli.commands import AsJson, OptionPairs, components_of
from pulsar_txn_spark.cli.output import show
from pulsar_txn_spark.store.protocol import MetadataStore
from pulsar_txn_spark.store.records import OpLogSettings


def op_log_show(option: OptionPairs = [], as_json: AsJson = False) -> None:
    """Show how each coordinator batches operation records (PIP-160)."""
    _show_op_log(components_of(option).store, as_json=as_json)


def _show_op_log(store: MetadataStore, *, as_json: bool) -> None:
    rows = []
    for tc in range(store.identity.coordinators):
        settings = store.op_log.read_settings(tc) or OpLogSettings()
        rows.append({"coordinator": tc, **asdict(settings)})
    show(rows, as_json=as_json, title="operation records", columns=list(rows[0]))


def op_log_set(
    enabled: Annotated[bool, typer.Option("--on/--off", help="Batch records into entries.")],
    max_records: Annotated[int | None, typer.Option(help="Records in one entry.")] = None,
    max_bytes: Annotated[int | None, typer.Option(help="Bytes in one entry.")] = None,
    max_delay_ms: Annotated[
        int | None, typer.Option(help="How long a record waits for others.")
    ] = None,
    option: OptionPairs = [],
    as_json: AsJson = False,
) -> None:
    """Change how coordinators batch operation records, also those of running writers.

    A limit that is not named stays as it is.
    """
    store = components_of(option).store
    limits = {"max_records": max_records, "max_bytes": max_bytes, "max_delay_ms": max_delay_ms}
    named = {name: limit for name, limit in limits.items() if limit is not None}
    for tc in range(store.identity.coordinators):
        before = store.op_log.read_settings(tc) or OpLogSettings()
        store.op_log.change_settings(tc, replace(before, enabled=enabled, **named))
    _show_op_log(store, as_json=as_json)
