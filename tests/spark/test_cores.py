"""How many tasks can run at a time by the command line of a driver."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from pulsar_txn_spark.spark import context, cores
from pulsar_txn_spark.spark.cores import tasks_at_once, tasks_at_once_of

SUBMIT = ["java", "-cp", "jars", "org.apache.spark.deploy.SparkSubmit"]
DRIVER = ["java", "-cp", "jars", "-Dspark.master=spark://h:7077", "-Dspark.cores.max=6"]


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--conf", "spark.master=local[2]", "pyspark-shell"], 2),
        (["--master", "local[4,2]", "job.py"], 4),
        (["--master", "local", "job.py"], 1),
        (["--master", "local-cluster[2, 3, 1024]", "job.py"], 6),
        (["--master", "spark://h:7077", "--total-executor-cores", "8", "job.py"], 8),
        (["--master", "yarn", "--num-executors", "3", "--executor-cores", "4", "job.py"], 12),
        (["-c", "spark.executor.instances=2", "--conf", "spark.executor.cores=5"], 10),
        # The last one counts, as for Spark.
        (["--conf", "spark.master=local[2]", "--conf", "spark.master=local[3]"], 3),
        (["--conf", "spark.app.name=local[7]", "--master", "local[2]"], 2),
    ],
)
def test_a_drivers_command_line_says_how_many_tasks_can_run(
    arguments: list[str], expected: int
) -> None:
    assert tasks_at_once_of([*SUBMIT, *arguments]) == expected


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--conf", "spark.task.cpus=2", "--master", "local[5]"], 2),
        (["--conf", "spark.task.cpus=2", "--master", "local-cluster[2, 3, 1024]"], 2),
        (["--conf", "spark.task.cpus=3", "--total-executor-cores", "8"], 2),
        # Three executors of 2 cores, and one core of the 7 is left over.
        (["-c", "spark.task.cpus=2", "-c", "spark.cores.max=7", "--executor-cores", "2"], 3),
        (["-c", "spark.task.cpus=3", "--num-executors", "3", "--executor-cores", "4"], 3),
        (["-Dspark.task.cpus=4", "-Dspark.cores.max=9"], 2),
    ],
)
def test_a_task_that_takes_several_cores_leaves_room_for_fewer(
    arguments: list[str], expected: int
) -> None:
    assert tasks_at_once_of([*SUBMIT, *arguments]) == expected


def test_the_driver_of_a_cluster_has_its_settings_as_properties() -> None:
    assert tasks_at_once_of([*DRIVER, "org.apache.spark.deploy.worker.DriverWrapper"]) == 6


@pytest.mark.parametrize(
    "arguments",
    [
        ["--master", "yarn", "job.py"],
        ["--master", "yarn", "--executor-cores", "4", "job.py"],
        ["--master", "local[zwei]", "job.py"],
        ["--master", "local[0]", "job.py"],
        ["--master"],
        ["--master", "local[2]", "--conf", "spark.task.cpus=3"],
        ["--master", "local[2]", "--conf", "spark.task.cpus=0"],
        ["--master", "local[2]", "--conf", "spark.task.cpus=two"],
        [
            *("--num-executors", "3", "--executor-cores", "4"),
            *("--conf", "spark.dynamicAllocation.enabled=true"),
        ],
    ],
)
def test_what_a_command_line_does_not_say_is_not_known(arguments: list[str]) -> None:
    assert tasks_at_once_of([*SUBMIT, *arguments]) is None


def test_without_a_driver_nothing_is_known() -> None:
    assert tasks_at_once_of(()) is None


def test_local_with_a_star_has_the_cores_that_this_machine_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5}, raising=False)
    assert tasks_at_once_of([*SUBMIT, "--master", "local[*]"]) == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert tasks_at_once_of([*SUBMIT, "--master", "local[*,4]"]) == 1


@pytest.fixture
def anew() -> Iterator[None]:
    """Let nothing of another test be remembered, nor of this one."""
    tasks_at_once.cache_clear()
    yield
    tasks_at_once.cache_clear()


@pytest.mark.usefixtures("anew")
def test_it_is_the_command_line_of_the_jvm_above(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tasks_at_once() is None  # no Spark has started this process
    tasks_at_once.cache_clear()
    own = os.getpid()
    monkeypatch.setattr(context, "_jvm_above", lambda _: own)
    [first, *_] = context.driver_command()
    assert "python" in first
    monkeypatch.setattr(cores, "driver_command", lambda: (*SUBMIT, "--master", "local[2]"))
    assert tasks_at_once() == 2
