"""What must be there before anything runs: Python, PySpark, Java."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pulsar_txn_spark.errors import EnvironmentTooOldError

FORMAT = "pulsar_txn"
"""The name of the data source: ``spark.readStream.format(FORMAT)``."""

LEAST_PYTHON = (3, 10)
LEAST_PYSPARK = (4, 0)  # the first with data sources in Python; spark/versions.py has the rest
LEAST_JAVA = 17  # what Spark 4 is compiled for

_JAVA_TIMEOUT_S = 20  # a JVM prints its version in under a second; more means that it hangs


def require_python_and_pyspark() -> None:
    """Refuse a Python or PySpark that is too old.

    Raises
    ------
    EnvironmentTooOldError
    """
    if sys.version_info[:2] < LEAST_PYTHON:
        raise EnvironmentTooOldError(
            f"Python {sys.version.split()[0]} is too old: pulsar_txn needs "
            f"{_dotted(LEAST_PYTHON)} or newer"
        )
    try:
        installed = version("pyspark")
    except PackageNotFoundError:
        try:
            installed = version("pyspark-client")
        except PackageNotFoundError:
            return  # Spark's own distribution, put on the path without pip: it has no metadata
    numbers = tuple(int(part) for part in re.findall(r"\d+", installed)[:2])
    if numbers < LEAST_PYSPARK:
        raise EnvironmentTooOldError(
            f"PySpark {installed} is too old: pulsar_txn needs {_dotted(LEAST_PYSPARK)} or newer, "
            "as data sources in Python came with it. Run: pip install 'pyspark>=4'"
        )


def require_java() -> None:
    """Refuse a Java that Spark 4 does not run on, before Spark fails without saying so.

    Raises
    ------
    EnvironmentTooOldError
        If there is no Java, or an older one than 17.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        raise EnvironmentTooOldError(
            f"no Java found ({'JAVA_HOME is ' + home if home else 'JAVA_HOME is not set'}, none on "
            f"the PATH): Spark needs Java {LEAST_JAVA} or newer. Install one and set JAVA_HOME"
        )
    try:
        answer = subprocess.run(  # noqa: S603 — the very program that Spark would start
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentTooOldError(f"{java} does not run: {error}") from error
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    if match is None:
        return  # a vendor's wording that we do not know: Spark will tell
    if int(match[1]) < LEAST_JAVA:
        raise EnvironmentTooOldError(
            f"Java {match[1]} ({java}) is too old: Spark needs {LEAST_JAVA} or newer. Install one "
            "and set JAVA_HOME"
        )


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
