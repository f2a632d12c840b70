"""What the tools that run tests on several versions share: a run, its results, and their table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tools.versions import NOT_RUN

ROOT = Path(__file__).parents[1]

Results = dict[str, dict[str, str]]
"""Version and part -> the day, and what came of it."""


def run_tests(
    paths: Sequence[str], names: Mapping[str, str], timeout_s: float, *, marked: str
) -> tuple[str, bool]:
    """Run tests with environment variables; return what came of it, and whether all passed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", marked]
        done = subprocess.run(
            [*command, f"--junitxml={report}", *paths],
            cwd=ROOT,
            env=os.environ | names,
            timeout=timeout_s,
            check=False,
        )
        if not report.exists():
            return f"no result (exit code {done.returncode})", False
        return shown(report)


def shown(*reports: Path) -> tuple[str, bool]:
    """Return what JUnit reports say in a few words, and whether all passed."""
    cases = [
        case
        for report in reports
        for case in ET.parse(report).getroot().iter("testcase")  # noqa: S314 - our own reports
    ]
    missed = [
        case.get("name", "?")
        for case in cases
        if any(case.find(kind) is not None for kind in ("failure", "error", "skipped"))
    ]
    if not cases or missed:
        return f"{len(cases) - len(missed)} of {len(cases)}; not {', '.join(missed)}", False
    return f"{len(cases)} passed", True


def read(kept: Path) -> Results:
    """Return the results so far."""
    results: Results = json.loads(kept.read_text()) if kept.exists() else {}
    return results


def record(kept: Path, version: str, part: str, text: str) -> None:
    """Keep what came of a part, and say it."""
    print(f"{version}, {part}: {text}", flush=True)
    day = datetime.now(UTC).date().isoformat()
    results = read(kept) | {f"{version} {part}": {"day": day, "text": text}}
    kept.write_text(json.dumps(results, indent=1))


def by_part(
    head: str, versions: Sequence[str], parts: Sequence[str], results: Results, how: str
) -> str:
    """Return the table of what was run, and since when."""
    rows = [[head, *parts], ["---"] * (1 + len(parts))]
    for version in versions:
        cells = (results.get(f"{version} {part}") for part in parts)
        rows.append([version, *(NOT_RUN if cell is None else cell["text"] for cell in cells)])
    days = sorted(cell["day"] for cell in results.values())
    when = f"Run since {days[0]} {how}" if days else "No result is recorded yet"
    return f"{when}:\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows)
