"""Runs the tests of the broker's plug-in on releases of Pulsar, and writes the table of what works.

    python -m tools.pulsar_versions [--release 4.2.4 --part coordinator …] [--write PAGE]

Maven fetches a release the first time, about 235 MB. Results are kept under ``.venv``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pulsar_txn_spark.testing.pulsar_server import DEFAULT_VERSION, VERSION_VARIABLE
from tools.run_results import ROOT, Results, by_part, read, record, run_tests
from tools.versions import write

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


def table(results: Results) -> str:
    """Return the table of what was run, and since when."""
    return by_part("Pulsar", RELEASES, tuple(PARTS), results, "with Java 17")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts that are asked for; exit code 1 if a test does not pass."""
    parser = argparse.ArgumentParser(prog="python -m tools.pulsar_versions", description=__doc__)
    parser.add_argument("--release", action="append", choices=RELEASES, help="all, if not given")
    parser.add_argument("--part", action="append", choices=PARTS, help="all, if not given")
    parser.add_argument("--write", type=Path, metavar="PAGE", help=f"such as {PAGE.name}")
    parser.add_argument("--results", type=Path, default=Path(sys.prefix) / "pulsar-versions.json")
    chosen = parser.parse_args(arguments)
    good = True
    for release in chosen.release or RELEASES:
        for part in chosen.part or PARTS:
            names = {VERSION_VARIABLE: release}
            text, passed = run_tests([PARTS[part]], names, _PART_SECONDS, marked="")
            good = good and passed
            record(chosen.results, release, part, text)
    if chosen.write is not None:
        write(chosen.write, table(read(chosen.results)), BEGIN)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
