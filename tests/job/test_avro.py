"""`decode = "avro"`: the schema is checked with the file, before a Spark starts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pulsar_txn_spark.job import Job
from pulsar_txn_spark.job.secrets import Secrets

Loader = Callable[..., Job]
Complaints = Callable[..., list[str]]

JSON = 'decode = "json"\nschema = "id BIGINT, delay INT"\n'
RECORD = {"type": "record", "name": "Flight", "fields": [{"name": "id", "type": "long"}]}


def avro(schema: object) -> tuple[str, str]:
    """Return the change that decodes the source by a schema."""
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return JSON, f"decode = \"avro\"\nschema = '{text}'\n"


def test_the_schema_is_that_of_a_file_and_is_no_secret(loader: Loader, tmp_path: Path) -> None:
    (tmp_path / "flight.avsc").write_text(json.dumps(RECORD, indent=2))
    job = loader(avro("${file:flight.avsc}"))
    assert job.sources[0].decode == "avro"
    assert json.loads(job.sources[0].schema or "") == RECORD
    assert isinstance(job.secrets, Secrets)
    assert job.secrets.hidden('"type": "record",') == '"type": "record",'


@pytest.mark.parametrize(
    "change, expected",
    [
        (
            avro("id BIGINT"),
            "job.toml:13: [[source]] 'flights': 'schema' is no JSON (Expecting value: ",
        ),
        (avro('"long"'), "'schema' is no record, which has columns"),
        (avro({"type": "enum", "name": "E"}), "takes the Avro schema of a record, as JSON, such"),
        (avro({**RECORD, "fields": []}), "'schema' has no 'fields'"),
        ((JSON, 'decode = "avro"\n'), 'decode = "avro" needs a \'schema\', such as "${file:'),
        ((JSON, 'schema = "id INT"\n'), 'no effect without decode = "json" or "avro"'),
    ],
)
def test_a_wrong_schema_is_named_with_its_line(
    complaints: Complaints, change: tuple[str, str], expected: str
) -> None:
    assert expected in "\n".join(complaints(change))


def test_a_schema_file_that_is_not_there_is_one_problem(complaints: Complaints) -> None:
    problems = complaints(avro("${file:none.avsc}"))
    assert "none.avsc cannot be read" in problems[0]
    assert "is no JSON" not in "".join(problems)
