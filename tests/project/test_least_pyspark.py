"""The package runs on the Python files of the oldest PySpark that it names.

No JVM runs here: ``make versions`` and the long tests start each supported Spark.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pulsar_txn_spark.environment import LEAST_PYSPARK
from tools.dependency_group import requirements
from tools.versions import PYSPARKS

ROOT = Path(__file__).parents[2]
FOLDER = Path(sys.prefix) / "oldest-pyspark"
IMPORTS = """
import importlib, pkgutil, pyspark, pulsar_txn_spark
print(pyspark.__version__)
for module in pkgutil.walk_packages(pulsar_txn_spark.__path__, "pulsar_txn_spark."):
    try:
        importlib.import_module(module.name)
    except ImportError as error:
        print(module.name, error)
"""
# What counts round trips on a cluster, or waits, says nothing of PySpark.
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow")
NOT_HERE = (
    "test_registration.py",  # SparkFiles, which pyspark-client does not have
    "test_versions.py",  # takes out of a newer PySpark what this one does not have
    # These take long, and are about topics and stores, of which PySpark knows nothing.
    "sink/test_lost_tail.py",
    "source/test_idle.py",
    "source/test_offsets.py",
    "source/test_starting_offsets.py",
    "source/test_time_offsets.py",
    "source/test_topics_pattern.py",
)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python on the oldest PySpark."""
    if not FOLDER.exists():
        pytest.skip(f"there is no {FOLDER}: make test sets it up")
    outer = {"PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST"}
    environment = {key: text for key, text in os.environ.items() if key not in outer}
    environment["PYTHONPATH"] = os.pathsep.join((str(FOLDER), str(ROOT)))
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_the_tests_have_the_oldest_pyspark() -> None:
    tree = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    named = requirements(tree["dependency-groups"], "oldest-pyspark")
    assert named == [f"pyspark-client=={PYSPARKS[0]}"]
    assert PYSPARKS[0] == ".".join(map(str, (*LEAST_PYSPARK, 0)))


def test_all_modules_but_those_for_spark_submit_are_imported() -> None:
    version, *failed = run("-c", IMPORTS).stdout.splitlines()
    assert version == PYSPARKS[0]
    assert [line.partition(" ")[0] for line in failed] == ["pulsar_txn_spark.job"]
    assert "cannot import name 'SparkContext'" in failed[0], "pyspark-client does not have it"


@pytest.mark.slow
def test_the_tests_of_what_spark_calls_pass() -> None:
    ignored = [f"--ignore=tests/spark/{name}" for name in NOT_HERE]
    ran = run(*PYTEST, "tests/spark", *ignored)
    hint = "\nWhat 4.0 lacks is in pulsar_txn_spark.spark.versions: import it from there."
    assert ran.returncode == 0, ran.stdout[-5000:] + hint
    assert " skipped" not in ran.stdout.splitlines()[-1]
