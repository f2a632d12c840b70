"""What lets the Sparks of the tests start sooner is in use: without it they only take longer."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration.support.spark import NO_PANDAS_3, PRELOADED_WORKERS

SHARED = "-XX:SharedArchiveFile="

pytestmark = [
    pytest.mark.filterwarnings(NO_PANDAS_3),
    pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux shows processes"),
]


def test_the_workers_of_tasks_find_their_modules_imported(spark: SparkSession) -> None:
    # Nested, so that it is pickled by value: a worker need not find this module.
    def parent(_: int) -> str:
        return Path(f"/proc/{os.getppid()}/cmdline").read_text()

    (command,) = spark.sparkContext.parallelize([0], 1).map(parent).collect()
    assert PRELOADED_WORKERS["spark.python.daemon.module"] in command


def test_the_jvm_uses_the_archive_of_classes_that_its_options_name(spark: SparkSession) -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    options = shlex.split(os.environ.get("SPARK_SUBMIT_OPTS", ""))
    archives = [o.removeprefix(SHARED) for o in options if o.startswith(SHARED)]
    mapped = Path(f"/proc/{jvm.java.lang.ProcessHandle.current().pid()}/maps").read_text()
    assert [archive for archive in archives if archive not in mapped] == []
