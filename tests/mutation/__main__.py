"""Take each safeguard out, in a copy, and see its test fail: ``python -m tests.mutation [word]``.

Exit code 1 if a mutation survives, or if a test fails without any.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutation.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]
COPIED = (
    "conf",
    "integration",
    "jvm_shim",
    "pulsar_txn_spark",
    "tests",
    "tools",
    "conftest.py",
    "pyproject.toml",
    "pyspark_pulsar_txn.py",
)
INTERLEAVINGS = "tests/models/test_interleavings.py"
TIMEOUT_S = 600
SLOW_TESTS = {
    "acks": ("Ack", "Decisions", "HandledSubscription"),
    "cluster": (
        *("ClusterSlots", "EventFollower", "Exchange", "RedisConnections", "Scripts"),
        *("ServerCheck", "SingleSteps"),
    ),
    "tls": ("RedisConnections", "StoreTls"),
}
"""Tags of slow tests of the jar, and words in the names of the files that they are about."""


def copy_tree(folder: Path) -> None:
    """Copy what the tests need; pytest takes the package from beside its configuration."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, folder / name, ignore=ignore)
        else:
            shutil.copy(source, folder / name)


def apply(mutation: Mutation, folder: Path) -> None:
    for edit in mutation.edits:
        file = folder / edit.file
        text = file.read_text(encoding="utf-8")
        if text.count(edit.old) != 1:
            sys.exit(f"{mutation.name}: expected once in {edit.file}, not so: {edit.old!r}")
        file.write_text(text.replace(edit.old, edit.new), encoding="utf-8")


def run_tests(folder: Path, tests: list[str], **environment: str) -> tuple[set[str], set[str]]:
    """Run tests in a copy; return the names of those that ran and of those that failed."""
    report = folder / "report.xml"
    subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:warnings"),
            *(f"--junit-xml={report}", "-o", "junit_family=xunit1", *tests),
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), **environment},
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    ran, failed = set(), set()
    for case in ET.parse(report).iter("testcase"):
        name = f"{case.get('file')}::{str(case.get('name')).partition('[')[0]}"
        ran.add(name)
        if case.find("failure") is not None or case.find("error") is not None:
            failed.add(name)
    return ran, failed


def survives(mutation: Mutation | None, tests: list[str], **environment: str) -> set[str]:
    """Return those of the tests that do not notice a mutation (None: the code as it is)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_tree(folder)
        if mutation is not None:
            apply(mutation, folder)
        try:
            ran, failed = run_tests(folder, tests, **environment)
        except subprocess.TimeoutExpired:
            return set()  # a test that never ends has noticed as well
        return ran - failed


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def environment_of(mutation: Mutation) -> dict[str, str]:
    """Leave the jar's slow tests out that say nothing of what is mutated."""
    files = [edit.file for edit in mutation.edits]
    if not all(file.endswith(".java") for file in files):
        return {}
    left_out = [
        tag for tag, words in SLOW_TESTS.items() if not any(w in f for w in words for f in files)
    ]
    return {"MAVEN_OPTS": f"-DexcludedGroups={'|'.join(left_out)}"} if left_out else {}


def verdict(mutation: Mutation, interleavings: int) -> tuple[bool, str]:
    """Return whether a mutation survives, and a line that says what happened to it."""
    left = survives(mutation, list(mutation.killers), **environment_of(mutation))
    line = "SURVIVES " + ", ".join(sorted(left)) if left else "killed"
    if interleavings:
        unnoticed = survives(mutation, [INTERLEAVINGS], INTERLEAVINGS=str(interleavings))
        line += "; by interleavings: " + ("no" if unnoticed else "yes")
    return bool(left), f"{mutation.invariant:7} {mutation.name}: {line}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("word", nargs="?", default="", help="only mutations with this in the name")
    parser.add_argument(
        "--interleavings", type=int, default=0, help="also say whether so many of them notice"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at a time")
    arguments = parser.parse_args()
    chosen = [m for m in MUTATIONS if arguments.word in m.name]
    killers = sorted({killer for mutation in chosen for killer in mutation.killers})
    good = survives(None, killers)
    if good != set(killers):
        say(f"fail without any mutation, or are not there: {sorted(set(killers) - good)}")
        return 1
    alive = 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for survived, line in pool.map(
            lambda mutation: verdict(mutation, arguments.interleavings), chosen
        ):
            say(line)
            alive += survived
    say(f"{len(chosen)} mutations, {alive} survive")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
