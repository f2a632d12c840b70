"""What both test folders share: the markers, the interpreter for Spark, the closing count."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

from pulsar_txn_spark.store.redis.server import OWNER_VARIABLE
from tests.support.memory import in_memory

ROOT = Path(__file__).parent

# Spark's JVM starts a "python3" of its own choice to look for data sources unless it is told which.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
# An embedded server that a test leaves behind ends with the test run.
os.environ[OWNER_VARIABLE] = str(os.getpid())

# The same examples in every run; the first one also pays for imports, so there is no deadline.
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")

# Servers sync what they acknowledge, and wait for the disk most of their time. A killed process
# loses nothing of a file system in memory, and no test takes the power away.
MEMORY = Path("/dev/shm")  # noqa: S108 - what is made there has a folder of its own
MEMORY_NEEDED_BYTES = 4 << 30  # some runs' folders are kept, 100 MB each, and brokers' data
# The processes that share the tests, and all that they start, inherit it.
if "TMPDIR" not in os.environ and in_memory(MEMORY, MEMORY_NEEDED_BYTES):
    os.environ["TMPDIR"] = str(MEMORY)
    tempfile.tempdir = None  # whoever asked before has kept the answer


_LONGEST_FILES = [
    ROOT / "integration" / name
    for name in ("spark/test_crash_steps.py", "spark/test_demo.py", "java/test_broker_jar.py")
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark whatever lies under integration/, and put the longest first.

    Several processes share the tests out, file by file: the short ones fill up what is left.
    """
    for item in items:
        if item.path.is_relative_to(ROOT / "integration"):
            item.add_marker(pytest.mark.integration)
    items.sort(key=_weight)


def _weight(item: pytest.Item) -> int:
    if item.path in _LONGEST_FILES:
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
