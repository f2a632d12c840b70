"""What both test folders share: the markers, the interpreter for Spark, the closing count."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pulsar_txn_spark.store.redis.server import OWNER_VARIABLE

ROOT = Path(__file__).parent

# Spark's JVM starts a "python3" of its own choice to look for data sources unless it is told which.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
# An embedded server that a test leaves behind ends with the test run.
os.environ[OWNER_VARIABLE] = str(os.getpid())


_LONGEST_FILES = ("test_crash_steps_spark", "test_demo")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark whatever lies under integration/, and put the longest first.

    Several processes share the tests out, file by file: the short ones fill up what is left.
    """
    for item in items:
        if item.path.is_relative_to(ROOT / "integration"):
            item.add_marker(pytest.mark.integration)
    items.sort(key=_weight)


def _weight(item: pytest.Item) -> int:
    if item.path.stem in _LONGEST_FILES:
        return 0
    return 1 if item.get_closest_marker("integration") is not None else 2


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests ran against real servers: a skip must not pass for a success."""
    counts = {
        outcome: sum(
            "integration" in report.keywords
            for report in terminalreporter.stats.get(outcome, [])
            if isinstance(report, pytest.TestReport)
        )
        for outcome in ("passed", "failed", "error", "skipped")
    }
    listed = ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
    terminalreporter.write_line(f"integration tests: {listed}")
