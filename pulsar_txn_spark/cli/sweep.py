"""``pulsar-txn sweep``: one sweep, or one at each interval."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import Annotated

import typer

from pulsar_txn_spark.backports import UTC
from pulsar_txn_spark.cli.command_names import in_commands
from pulsar_txn_spark.cli.commands import AsJson, OptionPairs, components_of
from pulsar_txn_spark.cli.output import show
from pulsar_txn_spark.errors import (
    OptionError,
    SegmentLogUnavailableError,
    StoreFullError,
    StoreUnavailableError,
)
from pulsar_txn_spark.prometheus import DEFAULT_HOST, serve, stop_serving
from pulsar_txn_spark.segments.scaler import Scaled
from pulsar_txn_spark.txn.sweeper import DEFAULT_INTERVAL_S, DEFAULT_RETENTION_MS, SweepReport


def sweep(
    every: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help=f"Sweep every so many seconds (say {DEFAULT_INTERVAL_S:g}) until SIGTERM or "
            "Ctrl-C. What cannot be reached is tried again.",
        ),
    ] = None,
    retention_ms: Annotated[
        int, typer.Option(min=0, help="How long headers of decided transactions stay at least.")
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
        typer.Option("--dry-run", help="With --scale: only show what it would do and why."),
    ] = False,
    option: OptionPairs = [],
    as_json: AsJson = False,
) -> None:
    """Abort expired transactions, complete decided ones, and delete what nobody needs any more.

    With --scale --dry-run nothing of that is done: only the load of topics is examined.
    """
    if dry_run and not scale:
        raise OptionError(
            "--dry-run goes with --scale; 'topic retention' says what retention would do"
        )
    if metrics_port is not None and every is None:
        raise OptionError(
            "--metrics-port needs --every SECONDS: a single sweep ends before anybody scrapes it"
        )
    components = components_of(option)
    sweeper = components.sweeper(retention_ms)
    scaler = components.scaler() if scale else None

    def once() -> None:
        report = None if dry_run else sweeper.sweep()
        scaled = scaler.sweep(dry_run=dry_run) if scaler is not None else None
        _show_sweep(report, scaled, as_json=as_json, every=every is not None)

    if every is None:
        once()
        return
    with _stopped_by_signal() as stop:
        if metrics_port is not None:
            typer.echo(f"metrics at {serve(components, metrics_port, metrics_host).url}", err=True)
        try:
            _sweep_until(stop, once, every)
        finally:
            stop_serving()


def _sweep_until(stop: threading.Event, once: Callable[[], None], every: float) -> None:
    while True:
        try:
            once()
        except (StoreUnavailableError, StoreFullError, SegmentLogUnavailableError) as error:
            # The server may come back, or have room. Any other error ends the command: a store that
            # is not the known one, for example, does not become it by waiting.
            typer.echo(
                f"error: {in_commands(str(error))}; the next try is in {every:g} s", err=True
            )
        if stop.wait(every):
            return


def _show_sweep(
    report: SweepReport | None, scaled: Sequence[Scaled] | None, *, as_json: bool, every: bool
) -> None:
    """Print what a sweep has done; one of many prints only changes."""
    done = asdict(report) if report is not None else {}
    scaling = [
        {
            "topic": topic.topic,
            "do": topic.decision.what,
            "segments": list(topic.decision.segments),
            "why": topic.decision.why,
            "failed": topic.failed,
        }
        for topic in scaled or ()
    ]
    if as_json:
        typer.echo(json.dumps(done if scaled is None else {**done, "scaling": scaling}))
        return
    changes = {key.replace("_", " "): value for key, value in done.items() if value}
    if changes and not every:
        pairs = [{"": key, "sweep": value} for key, value in changes.items()]
        show(pairs, as_json=False, title="", columns=["", "sweep"], whole=[""])
    elif changes:
        named = ", ".join(f"{key} {value}" for key, value in changes.items() if key != "stuck")
        stuck = "".join(f"; stuck: {what}" for what in report.stuck) if report else ""
        typer.echo(f"{_now()} swept: {named}{stuck}")
    elif done and not every:
        typer.echo("swept: there was nothing to do")
    if scaling:
        columns = ["topic", "do", "segments", "why", "failed"]
        show(scaling, as_json=False, title="scaling", columns=columns)
    elif scaled is not None and not every:
        typer.echo("scaling: there was nothing to do")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def _stopped_by_signal() -> Iterator[threading.Event]:
    """Turn SIGTERM and Ctrl-C into an event, so that a sweep is completed first."""
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
