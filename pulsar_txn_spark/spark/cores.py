"""How many tasks a Spark application can run at a time, as far as its driver's command line tells.

Spark tells its Python processes beside the driver nothing of its cores. What a user has put into
``spark-defaults.conf`` alone stands on no command line, and is not known here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise

from pulsar_txn_spark.spark.context import driver_command

_LOCAL = re.compile(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]")
_SETTINGS = {
    "--executor-cores": "spark.executor.cores",
    "--master": "spark.master",
    "--num-executors": "spark.executor.instances",
    "--total-executor-cores": "spark.cores.max",
}
"""Arguments of spark-submit that stand for a setting."""


@cache
def tasks_at_once() -> int | None:
    """Return how many tasks this process's Spark application can run at a time.

    Returns
    -------
    int or None
        At least 1. None where it is not known, and outside of Spark.
    """
    return tasks_at_once_of(driver_command())


def tasks_at_once_of(command: Sequence[str]) -> int | None:
    """Return how many tasks a driver's command line lets run at a time, None if it does not say.

    A task takes ``spark.task.cpus`` cores of one executor. What is left over of each runs nothing.
    """
    settings = dict(_settings(command))
    if settings.get("spark.dynamicAllocation.enabled", "false") != "false":
        return None
    cpus = _number(settings.get("spark.task.cpus", "1"))
    if not cpus:
        return None
    executors, cores = _executors(settings)
    return executors * (cores // cpus) or None


def _executors(settings: Mapping[str, str]) -> tuple[int, int]:
    """Return how many executors there are, and the cores of each; (0, 0) if it is not known."""
    master = settings.get("spark.master", "")
    if local := _LOCAL.fullmatch(master):
        return 1, _local_cores() if local[1] == "*" else int(local[1] or 1)
    if cluster := _LOCAL_CLUSTER.fullmatch(master):
        return int(cluster[1]), int(cluster[2])
    most = _number(settings.get("spark.cores.max", ""))
    cores = _number(settings.get("spark.executor.cores", ""))
    if most:
        # Without a size of executors each worker has one, as large as the worker.
        return (most // cores, cores) if cores else (1, most)
    return _number(settings.get("spark.executor.instances", "")), cores


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _settings(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the settings of Spark that a command line has, the last of a name being the one."""
    for argument, value in pairwise([*command, ""]):
        if argument in {"--conf", "-c"} and value.startswith("spark."):
            name, _, text = value.partition("=")
            yield name, text
        elif argument in _SETTINGS:
            yield _SETTINGS[argument], value
        elif argument.startswith("-Dspark."):
            name, _, text = argument.removeprefix("-D").partition("=")
            yield name, text


def _local_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
