"""Processor time of this process and of everything that it has started, by kind of process.

Read from Linux's ``/proc``. The time of a process that has ended is that of its parent, as soon as
the parent has waited for it.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PARENT, _TIMES = 1, slice(11, 15)  # of /proc/<pid>/stat behind the name of the program
KAFKA, PULSAR, REDIS = "Kafka's broker", "Pulsar's broker", "Redis"
SPARK, DRIVER, WORKERS = "Spark's JVM", "the driver's Python", "Python workers"
CLIENT = "the client's JVM"
OTHER = "the benchmark"
_KINDS: Mapping[str, str] = {
    "kafka.Kafka": KAFKA,
    "java.args": PULSAR,  # the file with the arguments of `PulsarServer`
    "redis-server": REDIS,
    "org.apache.spark.deploy.SparkSubmit": SPARK,
    "SparkKafkaJob": SPARK,
    "spark_job.py": DRIVER,
    "pyspark.": WORKERS,
    "KafkaClients": CLIENT,
    "KafkaStreamsJob": CLIENT,
    "FlinkJob": CLIENT,
}
"""What is in a command line -> the kind of process; the first that fits counts."""


def kind_of(command: str) -> str:
    """Return the kind of a process by its command line."""
    return next((kind for part, kind in _KINDS.items() if part in command), OTHER)


def used_s() -> dict[str, float]:
    """Return the seconds of a processor that each kind of process has used so far."""
    parents: dict[int, int] = {}
    times: dict[int, float] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        pid = int(folder.name)
        parents[pid] = int(fields[_PARENT])
        times[pid] = sum(map(int, fields[_TIMES])) / _TICKS
    used: dict[str, float] = defaultdict(float)
    for pid, seconds in times.items():
        if _descends(pid, parents):
            used[kind_of(_command(pid))] += seconds
    return used


def _descends(pid: int, parents: Mapping[int, int]) -> bool:
    while pid in parents:
        if pid == os.getpid():
            return True
        pid = parents[pid]
    return False


def _command(pid: int) -> str:
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
