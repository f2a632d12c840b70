"""Runs the tests of the broker's plug-in on releases of Pulsar, and writes the table of what works.

    python -m tools.pulsar_versions [--release 4.2.4 --part coordinator …] [--write PAGE]

Maven fetches a release the first time, about 235 MB. Results are kept under ``.venv``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from pulsar_txn_spark.testing.pulsar_server import DEFAULT_VERSION, VERSION_VARIABLE
from tools.versions import NOT_RUN, write

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "broker.md"
RELEASES = (DEFAULT_VERSION, "4.2.4", "5.0.0-M1")
"""The one that all tests run against, and the newest of each line that Maven can resolve."""
PARTS = {
    "Gated segments": "integration/pulsar/test_shim.py",
    "Coordinator": "integration/pulsar/test_shim_coordinator.py",
    "Pending acks": "integration/pulsar/test_shim_pending_acks.py",
}
BEGIN = "<!-- tools.pulsar_versions -->"
_PART_SECONDS = 1800  # one to five minutes on two idle cores

Results = dict[str, dict[str, str]]
"""Release and part -> the day, and what came of it."""


def run(release: str, part: str) -> tuple[str, bool]:
    """Run the tests of a part; return what came of it, and whether all passed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", ""]
        done = subprocess.run(
            [*command, f"--junitxml={report}", PARTS[part]],
            cwd=ROOT,
            env=os.environ | {VERSION_VARIABLE: release},
            timeout=_PART_SECONDS,
            check=False,
        )
        if not report.exists():
            return f"no result (exit code {done.returncode})", False
        return shown(report)


def shown(report: Path) -> tuple[str, bool]:
    """Return what a JUnit report says in a few words, and whether all passed."""
    cases = list(ET.parse(report).getroot().iter("testcase"))  # noqa: S314 - our own report
    missed = [
        case.get("name", "?")
        for case in cases
        if any(case.find(kind) is not None for kind in ("failure", "error", "skipped"))
    ]
    if not cases or missed:
        return f"{len(cases) - len(missed)} of {len(cases)}; not {', '.join(missed)}", False
    return f"{len(cases)} passed", True


def table(results: Results) -> str:
    """Return the table of what was run, and since when."""
    rows = [["Pulsar", *PARTS], ["---"] * (1 + len(PARTS))]
    for release in RELEASES:
        cells = (results.get(f"{release} {part}") for part in PARTS)
        rows.append([release, *(NOT_RUN if cell is None else cell["text"] for cell in cells)])
    days = sorted(cell["day"] for cell in results.values())
    when = f"Run since {days[0]} with Java 17" if days else "No result is recorded yet"
    return f"{when}:\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts that are asked for; exit code 1 if a test does not pass."""
    parser = argparse.ArgumentParser(prog="python -m tools.pulsar_versions", description=__doc__)
    parser.add_argument("--release", action="append", choices=RELEASES, help="all, if not given")
    parser.add_argument("--part", action="append", choices=PARTS, help="all, if not given")
    parser.add_argument("--write", type=Path, metavar="PAGE", help=f"such as {PAGE.name}")
    parser.add_argument("--results", type=Path, default=Path(sys.prefix) / "pulsar-versions.json")
    chosen = parser.parse_args(arguments)
    results: Results = json.loads(chosen.results.read_text()) if chosen.results.exists() else {}
    good = True
    for release in chosen.release or RELEASES:
        for part in chosen.part or PARTS:
            text, passed = run(release, part)
            good = good and passed
            print(f"Pulsar {release}, {part}: {text}", flush=True)
            day = datetime.now(UTC).date().isoformat()
            results[f"{release} {part}"] = {"day": day, "text": text}
            chosen.results.write_text(json.dumps(results, indent=1))
    if chosen.write is not None:
        write(chosen.write, table(results), BEGIN)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
