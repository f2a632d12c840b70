"""One run of the demo: load, kill and restart the job, look at what came out, report."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.child import Settings
from demo.data import FLIGHTS
from demo.display import Display
from demo.plan import WORKER_KILLED_AFTER, Kill
from demo.processes import Child, DemoProcessError
from pulsar_txn_spark.testing.spark_cluster import SparkCluster


class Run:
    """One run of the demo.

    Parameters
    ----------
    settings : Settings
    display : Display
    kills : sequence of Kill
        To be done, each in a run of the job of its own.
    cluster : SparkCluster, optional
        Runs the job as a file. A worker of it is killed in the last run of the job.
    """

    def __init__(
        self,
        settings: Settings,
        display: Display,
        kills: Sequence[Kill],
        cluster: SparkCluster | None = None,
    ) -> None:
        self._settings_file = settings.write()
        self._cluster = cluster
        self._workers_killed = 0
        self._folder = Path(settings.folder)
        self._display = display
        self._kills = kills
        self._rows: dict[int, int] = {}  # batch → its flights; a replay has the same number
        self._killed: list[_Killed] = []
        self._reshaped: list[dict[str, Any]] = []
        self._reshapes = settings.reshape_every_s > 0

    def carry_out(self) -> bool:
        """Run the whole demo and return whether everything is exact.

        Raises
        ------
        DemoProcessError
            If a process of it ends otherwise than it should.
        """
        with contextlib.ExitStack() as started:
            observer = started.enter_context(self._child("observer"))
            reshaper = _Reshaper(self, started) if self._reshapes else None
            kills = [*self._kills, None]
            standby = started.enter_context(self._job(1, kills[0]))
            self.load(observer, reshaper)
            for number, kill in enumerate(kills, 1):
                job = standby
                job.tell()
                if kill is not None:
                    standby = started.enter_context(self._job(number + 1, kills[number]))
                self.run_job(number, job, kill)
            if reshaper is not None:
                reshaper.end()
            findings = self.look(observer)
        return self.report(findings)

    def load(self, observer: Child, reshaper: _Reshaper | None = None) -> None:
        """Create the topics and fill the input."""
        self._display.busy("creating the topics")
        for event in observer.events(until="loaded"):
            if event["event"] == "created":
                if reshaper is not None:
                    reshaper.start()
                many = "several transactions" if reshaper else "one transaction"
                self._display.busy(f"writing the flights to the input, in {many}")
            elif event["event"] == "loaded":
                self._display.say(f"{FLIGHTS:,} flights are in the input topic")
                return
        observer.expect_success()
        raise DemoProcessError(observer.failure("ended before it had loaded the flights"))

    def run_job(self, number: int, job: Child, kill: Kill | None) -> None:
        """Follow one run of the job, to its end or to where it is killed."""
        self._display.describe(f"run {number}: waiting for Spark")
        batches = 0
        for event in job.events():
            if event["event"] == "ready":
                start = "again from its checkpoint" if number > 1 else "its query"
                self._display.busy(f"run {number}: the job starts {start}")
            elif event["event"] == "batch":
                self._note_batch(number, event["batch"], event["rows"])
                batches += 1
                if kill is None and batches == WORKER_KILLED_AFTER:
                    self._kill_worker()
        if kill is None:
            job.expect_success()
            self._display.say("the job has read all of its input and ended by itself")
            return
        code = job.wait()
        # Only the marker tells our kill from, say, that of a machine without memory.
        if code != -signal.SIGKILL or not any(self._folder.glob(f"kill-{number}.*.fired")):
            raise DemoProcessError(
                job.failure(f"was to be killed at {kill.fault}, ended with {code}")
            )
        job.kill()  # whatever the driver has left behind is not to go on in secret
        killed = _Killed(kill, self._last_planned_batch())
        self._killed.append(killed)
        self._display.say(
            f"kill -9 of the driver in batch {killed.batch}, {kill.place}: {kill.meaning}",
            "bold red",
        )

    def _kill_worker(self) -> None:
        """Kill a worker of the cluster in the middle of a batch, and start another one."""
        if self._cluster is None:
            return
        self._cluster.kill_worker(0)
        self._workers_killed += 1
        self._display.say(
            f"kill -9 of a worker in batch {self._last_planned_batch()}: its executor goes with "
            "it, and its tasks run again on the other worker",
            "bold red",
        )
        self._cluster.start_worker(0)

    def _last_planned_batch(self) -> int:
        """Return the batch that Spark planned last, from the checkpoint's write-ahead log."""
        planned = (self._folder / "checkpoint" / "offsets").iterdir()
        return max(int(entry.name) for entry in planned if entry.name.isdecimal())

    def _note_batch(self, number: int, batch: int, rows: int) -> None:
        self._rows[batch] = rows
        self._display.progress(sum(self._rows.values()), f"run {number}: batch {batch}")
        if self._killed and self._killed[-1].batch == batch:
            self._display.say(f"batch {batch}: {self._killed[-1].kill.repair}", "green")

    def note_change(self, event: dict[str, Any]) -> None:
        """Show a change of segments; from the thread that hears of it."""
        self._reshaped.append(event)
        name = event["topic"].rpartition("/")[2]
        self._display.say(
            f"{name}: {event['done']}; {event['active']} segments take rows now", "cyan"
        )

    def reshaper(self) -> Child:
        """Make the process that splits and merges."""
        return self._child("reshape")

    def look(self, observer: Child) -> dict[str, Any]:
        """Let the observer read the outputs, and return what it finds."""
        self._display.busy("reading the outputs and the raw logs")
        observer.tell()
        findings = [event for event in observer.events() if event["event"] == "findings"]
        observer.expect_success()
        if len(findings) != 1:
            raise DemoProcessError(
                observer.failure(f"reported {len(findings)} findings, expected 1")
            )
        return findings[0]

    def report(self, findings: dict[str, Any]) -> bool:
        """Show the findings, and return whether everything is exact."""
        verdict, audit = findings["verdict"], findings["audit"]
        undecided = sum(killed.kill.leaves_aborted for killed in self._killed)
        complaints = [*verdict["examples"], *_audit_complaints(findings, undecided)]
        out_of_order = len(findings["disordered"])
        if out_of_order:
            keys = ", ".join(findings["disordered"][:5])
            complaints.append(f"rows of {out_of_order} keys are out of order, among them {keys}")
        if self._cluster is not None and not self._workers_killed:
            complaints.append("the job ended before a worker of the cluster was killed")
        if findings["plain"] is not None:
            complaints += _plain_complaints(findings["plain"])
        exact = verdict["exact"] and not complaints
        self._display.stop()
        if self._killed:
            self._display.table(
                "kill -9 of the driver, in the middle of a batch",
                ("#", "batch", "where", "what it left behind", "what the next run made of it"),
                [
                    (str(n), str(k.batch), k.kill.place, k.kill.meaning, k.kill.repair)
                    for n, k in enumerate(self._killed, 1)
                ],
            )
        figures: list[tuple[str, int | None, int]] = [
            *(
                (f"flights read from {topic}", count, verdict["read"].get(topic, 0))
                for topic, count in verdict["expected"].items()
            ),
            ("flights missing", 0, verdict["missing"]),
            ("flights doubled", 0, verdict["doubled"]),
            ("wrong value, key or topic", 0, verdict["wrong"]),
            ("keys whose flights are out of order", 0, out_of_order),
            *([] if findings["plain"] is None else _plain_figures(findings["plain"])),
            ("rows that lie in the output logs", None, audit["rows"]),
            ("    aborted ones among them, never visible", None, audit["aborted_rows"]),
            ("    transactions that left these behind", undecided, audit["aborted_transactions"]),
            ("micro-batches, each one transaction", None, max(self._rows, default=-1) + 1),
            *(
                [("splits, merges and seals meanwhile", None, len(self._reshaped))]
                if self._reshapes
                else []
            ),
            *(
                [("workers of the cluster that were killed", 1, self._workers_killed)]
                if self._cluster is not None
                else []
            ),
            ("seconds", None, round(self._display.seconds)),
        ]
        self._display.table(
            "Exactly once" if exact else "NOT exact",
            ("", "expected", "found"),
            [
                (name, "" if expected is None else f"{expected:,}", f"{actual:,}")
                for name, expected, actual in figures
            ],
            figures=2,
        )
        for complaint in complaints:
            self._display.say(complaint, "red")
        self._display.say(
            "every flight came out exactly once, in the right topic, with the right values, and "
            "each plane's flights in order"
            if exact
            else "the outputs are not exact",
            "bold green" if exact else "bold red",
        )
        return exact

    def _job(self, number: int, kill: Kill | None) -> Child:
        return self._child(
            "job" if self._cluster is None else "submit",
            number,
            kill.fault if kill else None,
            self._folder / f"kill-{number}",
        )

    def _child(
        self,
        name: str,
        number: int | None = None,
        fault: str | None = None,
        marker: Path | None = None,
    ) -> Child:
        return Child(
            f"demo.{name}",
            self._settings_file,
            self._folder / f"{name}{f'-{number}' if number else ''}.log",
            fault=fault,
            fault_file=marker,
        )


class _Reshaper:
    """The process that splits and merges all the time, and who listens to it."""

    def __init__(self, run: Run, started: contextlib.ExitStack) -> None:
        self._run, self._started = run, started
        self._process: Child | None = None
        self._listener = threading.Thread(target=self._listen, name="reshape", daemon=True)

    def start(self) -> None:
        """Let it begin; the topics have to be there."""
        self._process = self._started.enter_context(self._run.reshaper())
        self._listener.start()

    def _listen(self) -> None:
        assert self._process is not None
        for event in self._process.events():
            if event["event"] == "change":
                self._run.note_change(event)

    def end(self) -> None:
        """Let it end.

        Raises
        ------
        DemoProcessError
            If it did not end well.
        """
        assert self._process is not None
        self._process.tell()
        self._process.expect_success()
        self._listener.join()


@dataclass(frozen=True, slots=True)
class _Killed:
    kill: Kill
    batch: int


def _plain_figures(plain: dict[str, Any]) -> list[tuple[str, int | None, int]]:
    """Return the lines of the summary that plain consumers have to say."""
    verdict = plain["verdict"]
    return [
        *(
            (f"plain consumers received of {topic}", count, verdict["read"].get(topic, 0))
            for topic, count in verdict["expected"].items()
        ),
        ("    not received", 0, verdict["missing"]),
        ("    received twice, or before they were committed", 0, verdict["doubled"]),
        ("    not as they should be", 0, verdict["wrong"]),
        ("    planes whose flights came in another order", 0, len(plain["disordered"])),
    ]


def _plain_complaints(plain: dict[str, Any]) -> list[str]:
    """Return what plain consumers have seen otherwise than it should be."""
    verdict = plain["verdict"]
    complaints = [f"a plain consumer: {example}" for example in verdict["examples"]]
    if plain["disordered"]:
        keys = ", ".join(plain["disordered"][:5])
        complaints.append(
            f"a plain consumer received rows of {len(plain['disordered'])} keys out of order, "
            f"among them {keys}"
        )
    if not verdict["exact"] and not complaints:
        complaints.append("plain consumers have not received what they should have")
    return complaints


def _audit_complaints(findings: dict[str, Any], undecided: int) -> list[str]:
    """Return what the raw logs say against the proof."""
    audit = findings["audit"]
    read, kept = sum(findings["verdict"]["read"].values()), audit["rows"] - audit["aborted_rows"]
    complaints = []
    if audit["aborted_transactions"] < undecided:
        complaints.append(
            f"{undecided} kills hit a transaction that had rows in the logs, but the logs hold "
            f"aborted rows of {audit['aborted_transactions']} only"
        )
    if read != kept:
        complaints.append(f"{read:,} rows were read, but {kept:,} rows of the logs are not aborted")
    return complaints
