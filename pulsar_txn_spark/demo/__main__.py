"""The demo: flights in, a job that is killed in the middle of batches, and the proof.

Every process runs in a session of its own and is tied to this one: however this one ends, nothing
is left running. Everything lies in one temporary folder.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from pulsar_txn_spark.demo.child import Settings
from pulsar_txn_spark.demo.data import FLIGHTS, data_folder
from pulsar_txn_spark.demo.display import Display
from pulsar_txn_spark.demo.processes import Child, DemoProcessError
from pulsar_txn_spark.errors import PulsarTxnError
from pulsar_txn_spark.pulsar_server import PulsarServer
from pulsar_txn_spark.steps import Phase, Step
from pulsar_txn_spark.store.server import OWNER_VARIABLE, stop_server

_ROWS_PER_BATCH = 30_000  # a dozen batches: enough to be killed in several, and to get on between
_INTERRUPTED = 130  # what a shell makes of Ctrl-C


@dataclass(frozen=True, slots=True)
class Kill:
    """Where the driver is killed, and what that leaves behind."""

    step: Step
    phase: Phase
    nth: int
    meaning: str

    @property
    def fault(self) -> str:
        """Return the form that the package's fault hook reads."""
        return f"{self.step}:{self.phase}:{self.nth}"


KILLS = (
    Kill(
        Step.APPEND,
        Phase.AFTER,
        6,
        "some rows of the batch are in the log, others are not",
    ),
    Kill(
        Step.PENDING_ACK,
        Phase.AFTER,
        3,
        "all rows are in the log and the input is marked as read, but nothing is decided",
    ),
    Kill(
        Step.DECIDE,
        Phase.AFTER,
        2,
        "the transaction is committed, but Spark does not know it and will replay the batch",
    ),
    Kill(
        Step.DECIDE,
        Phase.BEFORE,
        2,
        "the last moment before the commit",
    ),
)


@dataclass(slots=True)
class Run:
    """One run of the demo: where it is, and what has happened so far."""

    settings: Settings
    display: Display
    settings_file: Path = field(init=False)
    batches: dict[int, int] = field(default_factory=dict)
    kills: list[Kill] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.settings_file = self.settings.write()

    @property
    def _folder(self) -> Path:
        return Path(self.settings.folder)

    def _child(self, name: str, fault: str | None = None, marker: Path | None = None) -> Child:
        return Child(
            f"pulsar_txn_spark.demo.{name}",
            self.settings_file,
            self._folder / f"{name}.log",
            fault=fault,
            fault_file=marker,
        )

    def load(self) -> None:
        """Create the topics and fill the input."""
        started = time.monotonic()
        with self._child("load") as child:
            for event in child.events():
                if event["event"] == "prepared":
                    self.display.say("topics created; writing the flights in one transaction")
            child.expect_success()
        seconds = time.monotonic() - started
        self.display.say(f"{FLIGHTS:,} flights are in the input topic ({seconds:.1f} s)")

    def run_job(self, kill: Kill | None) -> None:
        """Run the job, to its end or to where it is killed.

        Raises
        ------
        DemoProcessError
            If it ends otherwise.
        """
        marker = self._folder / f"kill-{len(self.kills) + 1}"
        with self._child("job", kill.fault if kill else None, marker) as child:
            for event in child.events():
                self._follow(event)
            if kill is None:
                child.expect_success()
                return
            code = child.wait()
            if code != -signal.SIGKILL or not any(marker.parent.glob(f"{marker.name}.*.fired")):
                raise DemoProcessError(
                    child.failure(f"was to be killed at {kill.fault}, ended with {code}")
                )
        self.kills.append(kill)
        self.display.say(
            f"kill -9 number {len(self.kills)}, {kill.phase} {kill.step}: {kill.meaning}",
            "bold red",
        )

    def _follow(self, event: dict[str, Any]) -> None:
        if event["event"] == "batch":
            # A replayed batch has the same number and the same rows.
            self.batches[event["batch"]] = event["rows"]
            self.display.progress(sum(self.batches.values()), f"batch {event['batch']}")

    def check(self) -> dict[str, Any]:
        """Read the outputs and return what the proof says."""
        with self._child("check") as child:
            findings = [event for event in child.events() if event["event"] == "findings"]
            child.expect_success()
        if len(findings) != 1:
            raise DemoProcessError(child.failure(f"reported {len(findings)} findings, expected 1"))
        return findings[0]


def demonstrate(run: Run) -> bool:
    """Run the whole demo and return whether everything is exact."""
    started = time.monotonic()
    run.load()
    for kill in KILLS:
        run.run_job(kill)
        run.display.say("starting the job again")
    run.run_job(None)
    run.display.say("the job is through; reading the outputs and the raw logs")
    findings = run.check()
    return _report(run, findings, time.monotonic() - started)


def _report(run: Run, findings: dict[str, Any], seconds: float) -> bool:
    verdict, audit = findings["verdict"], findings["audit"]
    rows = [
        ("flights in the input", f"{FLIGHTS:,}"),
        ("micro-batches = transactions", f"{len(run.batches):,}"),
        ("kill -9 in the middle of a batch", f"{len(run.kills)}"),
        *((f"read from {topic}", f"{count:,}") for topic, count in verdict["read"].items()),
        ("missing", f"{verdict['missing']:,}"),
        ("doubled", f"{verdict['doubled']:,}"),
        ("wrong value, key or topic", f"{verdict['wrong']:,}"),
        ("rows physically in the output logs", f"{audit['rows']:,}"),
        ("of these aborted, never visible", f"{audit['aborted_rows']:,}"),
        ("seconds", f"{seconds:.0f}"),
    ]
    complaints = list(verdict["examples"])
    if not audit["aborted_rows"]:
        complaints.append("no aborted entry is in the logs: the kills did not hit a batch midway")
    visible = sum(verdict["read"].values())
    if visible != audit["rows"] - audit["aborted_rows"]:
        complaints.append(
            f"{visible:,} rows were read, but {audit['rows'] - audit['aborted_rows']:,} rows of "
            "the logs are not aborted"
        )
    exact = verdict["exact"] and not complaints
    run.display.table("Exactly once" if exact else "NOT exact", rows)
    for complaint in complaints:
        run.display.say(complaint, "red")
    if exact:
        run.display.say(
            "every flight came out exactly once, in the right topic, with the right values",
            "bold green",
        )
    return exact


@contextlib.contextmanager
def _backend(name: str, folder: Path, display: Display) -> Iterator[dict[str, str]]:
    """Give the options that lead to a backend; what is started for it stops at the end."""
    store = str(folder / "store")
    # The embedded Redis outlives its clients on purpose; not this process, though.
    os.environ[OWNER_VARIABLE] = str(os.getpid())
    try:
        if name == "embedded":
            yield {"store.path": store}
            return
        display.say("starting a Pulsar broker (the first time, Maven downloads 235 MB)")
        with PulsarServer() as server:
            display.say(f"Pulsar answers at {server.service_url}")
            yield {
                "store.path": store,
                "service.url": server.service_url,
                "admin.url": server.admin_url,
            }
    finally:
        stop_server(store)


def _end(signum: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signum)


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m pulsar_txn_spark.demo", description=__doc__)
    parser.add_argument("--backend", choices=("embedded", "pulsar"), default="embedded")
    parser.add_argument(
        "--keep", action="store_true", help="keep the folder with the logs and the data"
    )
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _end)  # as an exception, so that everything is cleaned up

    folder = Path(tempfile.mkdtemp(prefix="pulsar-txn-demo-"))
    done = False
    try:
        data_folder()  # before anything is started
        with (
            Display(FLIGHTS) as display,
            _backend(chosen.backend, folder, display) as options,
        ):
            display.say(f"backend: {chosen.backend}; everything lies in {folder}")
            settings = Settings(str(folder), options, _ROWS_PER_BATCH)
            done = demonstrate(Run(settings, display))
    except PulsarTxnError as error:
        print(f"error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted; everything that was started is stopped", file=sys.stderr)
        return _INTERRUPTED
    finally:
        # After a failure, the logs are what is needed to understand it.
        if done and not chosen.keep:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"logs and data are kept in {folder}", file=sys.stderr)
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
