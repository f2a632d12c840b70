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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from pulsar_txn_spark.store.redis.server import find_server_binary
from tests.mutation.mutations import JAR, MUTATIONS, Mutation

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
TIMEOUT_OF_ALL_S = 3600  # for the tests of all mutations, one after the other
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


def run_tests(
    folder: Path, tests: list[str], timeout_s: float, **environment: str
) -> tuple[set[str], set[str]]:
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
        timeout=timeout_s,
        check=False,
    )
    ran, failed = set(), set()
    for case in ET.parse(report).iter("testcase"):
        name = f"{case.get('file')}::{case.get('name')}"
        if name not in tests:  # all cases of a test are one, unless a single one is named
            name = name.partition("[")[0]
        ran.add(name)
        if case.find("failure") is not None or case.find("error") is not None:
            failed.add(name)
    return ran, failed


def jar_passes(folder: Path, timeout_s: float, left_out: Sequence[str]) -> bool:
    """Tell whether the jar's own tests pass in a copy; they end at the first that fails.

    The test in `JAR` does the same, and packs the jar before, which takes as long again.
    """
    built = folder / "shim"
    done = subprocess.run(
        [
            *("mvn", "-B", "-q", "-f", "jvm_shim/pom.xml", "test", f"-Dshim.build={built}"),
            *("-Dsurefire.skipAfterFailureCount=1", f"-DexcludedGroups={'|'.join(left_out)}"),
        ],
        cwd=folder,
        # Its tests want a redis-server.
        env={**os.environ, "PATH": f"{Path(find_server_binary()).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if not (built / "surefire-reports").is_dir():
        say(f"no test of the jar ran:\n{done.stdout}{done.stderr}")
        return True  # no test has noticed anything
    return done.returncode == 0


def survives(
    mutation: Mutation | None,
    tests: Sequence[str],
    timeout_s: float = TIMEOUT_S,
    **environment: str,
) -> set[str]:
    """Return those of the tests that do not notice a mutation (None: the code as it is)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_tree(folder)
        if mutation is not None:
            apply(mutation, folder)
        unnoticed: set[str] = set()
        of_python = [test for test in tests if test != JAR]
        try:
            if of_python:
                ran, failed = run_tests(folder, of_python, timeout_s, **environment)
                unnoticed |= ran - failed
            if JAR in tests and jar_passes(folder, timeout_s, slow_tests_beside(mutation)):
                unnoticed.add(JAR)
        except subprocess.TimeoutExpired:
            pass  # a test that never ends has noticed as well
        return unnoticed


def slow_tests_beside(mutation: Mutation | None) -> list[str]:
    """Return the tags of the jar's slow tests that say nothing of what is mutated."""
    files = [edit.file for edit in mutation.edits] if mutation else []
    if not files or not all(file.endswith(".java") for file in files):
        return []
    return [
        tag for tag, words in SLOW_TESTS.items() if not any(w in f for w in words for f in files)
    ]


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def verdict(mutation: Mutation, interleavings: int) -> tuple[bool, str]:
    """Return whether a mutation survives, and a line that says what happened to it."""
    left = survives(mutation, mutation.killers)
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
    good = survives(None, killers, TIMEOUT_OF_ALL_S)
    if good != set(killers):
        say(f"fail without any mutation, or are not there: {sorted(set(killers) - good)}")
        return 1
    alive = 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        verdicts = [pool.submit(verdict, mutation, arguments.interleavings) for mutation in chosen]
        for done in as_completed(verdicts):
            survived, line = done.result()
            say(line)
            alive += survived
    say(f"{len(chosen)} mutations, {alive} survive")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
