"""Processor time is that of this process and of all that it has started, ended ones too."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks import cpu

_SPIN_S = 0.3
_SPIN = f"import time\nwhile time.process_time() < {_SPIN_S}: pass"


def test_the_time_of_a_child_is_counted_before_its_end_and_after() -> None:
    before = sum(cpu.used_s().values())
    with subprocess.Popen(
        [sys.executable, "-c", f"{_SPIN}\nprint('done', flush=True)\ninput()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        living = sum(cpu.used_s().values()) - before
        child.communicate(b"\n")
    ended = sum(cpu.used_s().values()) - before

    assert living >= _SPIN_S * 0.9  # times are told in hundredths
    assert ended >= living


@pytest.mark.parametrize(
    "command, kind",
    [
        ("java -Xmx1g -cp a.jar kafka.Kafka server.properties", cpu.KAFKA),
        ("java @/folder/java.args", cpu.PULSAR),
        ("java -cp jars org.apache.spark.deploy.SparkSubmit pyspark-shell", cpu.SPARK),
        ("java -cp jars FlinkJob 127.0.0.1:9092", cpu.CLIENT),
        ("/bin/redis-server 127.0.0.1:6379", cpu.REDIS),
        ("python /benchmarks/spark_job.py {}", cpu.DRIVER),
        ("python -m pyspark.daemon pyspark.worker", cpu.WORKERS),
        ("python -m benchmarks", cpu.OTHER),
    ],
)
def test_a_process_has_the_kind_that_its_command_tells(command: str, kind: str) -> None:
    assert cpu.kind_of(command) == kind
