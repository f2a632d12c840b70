"""The environment and ``--set`` take the place of what the file says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pulsar_txn_spark.job import Job

Loader = Callable[..., Job]
Complaints = Callable[..., list[str]]


def test_variables_of_the_environment_override_the_file(loader: Loader) -> None:
    job = loader(
        ("[options]", "[spark]\nsql.shuffle.partitions = 8\n[options]"),
        environment={
            "PULSAR_TXN__JOB__TRIGGER": "availableNow",
            "PULSAR_TXN__JOB__OUTPUT_MODE": "update",
            "PULSAR_TXN__SPARK__SPARK_SQL_SHUFFLE_PARTITIONS": "4",
            "PULSAR_TXN__OPTIONS__STORE_TIMEOUT_MS": "900",
            "PULSAR_TXN__OPTIONS__PULSAR_CLIENT_NUM_IO_THREADS": "2",
            "PULSAR_TXN__OPTIONS__SERVICE_URL": "pulsar://h",
            "PULSAR_TXN__OPTIONS__ADMIN_URL": "http://h",
            "PULSAR_TXN__TRANSACTION__SINK_FIRST_BATCH": "3",
            "PULSAR_TXN__SOURCE__FLIGHTS__TOPIC": "other",
            "PULSAR_TXN__SOURCE__FLIGHTS__WATERMARK__DELAY": "1 minute",
            "PULSAR_TXN__SOURCE__FLIGHTS__WATERMARK_COLUMN": "time",
        },
    )
    assert (job.trigger, job.output_mode) == ("availableNow", "update")
    assert job.spark["spark.sql.shuffle.partitions"] == "4"
    assert job.options["store.timeoutMs"] == "900"
    assert job.options["pulsar.client.numIoThreads"] == "2"
    assert job.transaction["sinkFirstBatch"] == "3"
    [source] = job.sources
    assert source.options["topic"] == "other"
    assert source.watermark is not None
    assert (source.watermark.column, source.watermark.delay) == ("time", "1 minute")


def test_a_flag_or_a_list_from_outside_means_what_it_means_in_the_file(loader: Loader) -> None:
    job = loader(
        environment={"PULSAR_TXN__JOB__PERSIST": "True"},
        overrides=["job.pyFiles=a.py, b.py", "source.flights.stream=true"],
    )
    assert job.persist
    assert [Path(name).name for name in job.py_files] == ["a.py", "b.py"]
    assert job.sources[0].stream


@pytest.mark.parametrize("further", range(8))
def test_a_flag_as_a_text_hides_no_mistake_behind_it(complaints: Complaints, further: int) -> None:
    options = "".join(f'pulsar.reader.x{n} = "y"\n' for n in range(further))
    after = f'[[source]]\nstream = "true"\ndecode = "jsn"\n{options}'
    found = complaints(('decode = "json"\n', ""), ("[[source]]\n", after))
    assert any("'decode' cannot be 'jsn'" in text for text in found)


def test_a_variable_is_taken_as_it_stands(loader: Loader) -> None:
    job = loader(environment={"PULSAR_TXN__STEP__LATE__SQL": "SELECT '${x}' FROM flights"})
    assert job.steps[0].sql == "SELECT '${x}' FROM flights"


def test_arguments_override_the_environment(loader: Loader) -> None:
    job = loader(
        environment={"PULSAR_TXN__JOB__TRIGGER": "availableNow"},
        overrides=[
            "job.trigger=10 seconds",
            "spark.sql.shuffle.partitions=2",
            "source.flights.startingoffsets=earliest",
            "options.store.path=/other",
        ],
    )
    assert job.trigger == "10 seconds"
    assert job.spark == {"spark.sql.shuffle.partitions": "2"}
    assert job.sources[0].options["startingOffsets"] == "earliest"
    assert job.options == {"store.path": "/other"}


@pytest.mark.parametrize(
    "variable, expected",
    [
        ("PULSAR_TXN__JBO__NAME", "unknown section 'jbo': did you mean 'job'?"),
        ("PULSAR_TXN__JOB__TRIGER", "did you mean PULSAR_TXN__JOB__TRIGGER?"),
        ("PULSAR_TXN__SPARK__SPARK_A_B", "is given by --set spark.…=…"),
        ("PULSAR_TXN__SOURCE__FLIGHT__TOPIC", "did you mean 'flights'?"),
        ("PULSAR_TXN__SOURCE__FLIGHTS__TOPCI", "PULSAR_TXN__SOURCE__FLIGHTS__TOPIC?"),
        ("PULSAR_TXN__SOURCE__TOPIC", "expected the name of a [[source]] before the key"),
    ],
)
def test_a_misspelt_variable_is_named(complaints: Complaints, variable: str, expected: str) -> None:
    [line] = complaints(environment={variable: "x"})
    assert line.startswith(f"{variable}:")
    assert expected in line


@pytest.mark.parametrize(
    "pair, expected",
    [
        ("job.triger=x", "did you mean 'trigger'?"),
        ("trigger=x", "expected SECTION.KEY=VALUE"),
        ("job.trigger", "expected SECTION.KEY=VALUE"),
        ("source.nothing.topic=x", "no [[source]] of this name (there is flights)"),
        ("step.sql=x", "expected the name of a [[step]]"),
    ],
)
def test_a_misspelt_argument_is_named(complaints: Complaints, pair: str, expected: str) -> None:
    [line] = complaints(overrides=[pair])
    assert line.startswith("--set")
    assert expected in line


def test_an_argument_without_a_section_is_not_shown(complaints: Complaints) -> None:
    [line] = complaints(overrides=["hunter2"])
    assert "hunter2" not in line
