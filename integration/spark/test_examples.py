"""The examples and the snippets of the documentation do what they say, as a user runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import backfill
import deduplicate
import fan_out
import join
import pytest
import service
from common import Place
from pyspark.sql import DataFrame

import pulsar_txn_spark
from integration.support.spark import NO_PANDAS_3, Lab
from pulsar_txn_spark.store.redis import server

pytestmark = pytest.mark.filterwarnings(NO_PANDAS_3)

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
START_SECONDS = 240  # a Spark of its own, on a busy machine


@pytest.fixture(scope="module")
def place(embedded: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Give what an example gets from its command line."""
    return Place(embedded, tmp_path_factory.mktemp("example"))


# -- examples --------------------------------------------------------------------------------------


def test_the_quick_start_runs_by_itself_and_leaves_nothing_behind(tmp_path: Path) -> None:
    given = {
        name: value
        for name, value in os.environ.items()
        # As in a shell that has not activated the virtual environment.
        if name not in {"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"}
    }
    run = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "quickstart.py")],
        cwd=tmp_path,
        env={**given, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    *table, last = run.stdout.splitlines()
    assert last == "1000 rows"
    assert sum("|EVENT " in line for line in table) == 3
    assert list(tmp_path.glob("pulsar-txn-example-*")) == []


def test_payments_that_were_sent_twice_come_out_once(
    lab: Lab, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    deduplicate.main(lab.spark, place)
    assert capsys.readouterr().out == "150 payments received, 100 passed on\n"


def test_each_order_that_was_paid_gets_one_invoice(
    lab: Lab, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    join.main(lab.spark, place)
    out = capsys.readouterr().out
    assert "|2 apples for 2 EUR|2  |" in out
    assert out.endswith("50 invoices\n")


def test_one_stream_comes_out_in_three_topics(
    lab: Lab, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    fan_out.main(lab.spark, place)
    *daily, late, on_time = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[2] for line in daily] == ["rows in topic://public/default/daily"]
    assert late == "140 rows in topic://public/default/late"
    assert on_time == "160 rows in topic://public/default/on-time"


def test_a_topic_is_filled_with_the_history_of_another(
    lab: Lab, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    backfill.main(lab.spark, place)
    assert capsys.readouterr().out.endswith("500 rows backfilled\n")


def test_a_service_without_spark_answers_each_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "store")
    try:
        service.main(Place({"store.path": folder}, tmp_path))
        service.main(Place({"store.path": folder}, tmp_path))
    finally:
        server.stop_server(folder)
    said = ["1 apples", "2 apples", "3 apples"]
    out = capsys.readouterr().out.splitlines()
    assert out[3] == out[7] == "3 invoices"
    assert sorted(line[-8:] for line in out[:3]) == sorted(line[-8:] for line in out[4:7]) == said


def test_no_example_is_without_a_test() -> None:
    tested = {"quickstart", "common"} | {
        module.__name__ for module in (backfill, deduplicate, fan_out, join, service)
    }
    assert {path.stem for path in EXAMPLES} == tested
    listed = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert all(f"[{path.name}]({path.name})" in listed for path in EXAMPLES)


# -- snippets --------------------------------------------------------------------------------------


def snippets(page: str) -> list[str]:
    """Return the Python of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def run_snippet(code: str, lab: Lab, folder: Path, **names: Any) -> dict[str, Any]:
    """Run a snippet with the options of a test's store, and return its names."""
    for written, meant in (
        ('.format("pulsar_txn")', '.format("pulsar_txn").options(**options)'),
        ("TransactionalSink({", "TransactionalSink({**options, "),
        ("@transactional({})", "@transactional(options)"),
        ('"checkpoint"', repr(str(folder / "checkpoint"))),
    ):
        code = code.replace(written, meant)
    found: dict[str, Any] = {"spark": lab.spark, "options": dict(lab.options), **names}
    exec(compile(code, "snippet", "exec"), found)
    if "query" in found:
        found["query"].processAllAvailable()
        found["query"].stop()
    return found


@pytest.fixture
def topics(lab: Lab) -> None:
    """Make the topics that the snippets name."""
    for topic in ("events", "results", "delays"):
        pulsar_txn_spark.Admin(lab.options).create_topic(topic, segments=2, exist_ok=True)


def stream_of(lab: Lab, folder: Path, *columns: str) -> DataFrame:
    """Return a stream of one row."""
    lab.spark.range(20, 21).selectExpr(*columns).write.parquet(str(folder / "rows"))
    schema = lab.spark.read.parquet(str(folder / "rows")).schema
    stream = lab.spark.readStream.schema(schema).parquet(str(folder / "rows"))
    assert isinstance(stream, DataFrame)
    return stream


@pytest.mark.usefixtures("topics")
def test_the_snippets_of_the_readme_and_of_the_source_run(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [readme] = snippets("README.md")
    lab.write(lab.spark.sql("SELECT 'shout' AS value, 'k' AS __key"), "events")
    # A new query begins at the end of a topic; here it is to begin at its beginning.
    run_snippet(
        readme.replace(".load()", '.option("startingOffsets", "earliest").load()', 1), lab, tmp_path
    )
    assert "|SHOUT" in capsys.readouterr().out
    [source] = snippets("docs/source.md")
    found = run_snippet(source, lab, tmp_path)
    assert found["stream"].isStreaming
    assert {bytes(row["value"]) for row in found["batch"].collect()} >= {b"shout", b"SHOUT"}


def test_the_snippet_that_registers_the_format_runs(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: list[object] = []
    monkeypatch.setattr(pulsar_txn_spark, "register", registered.append)
    [code] = snippets("docs/deployment.md")
    found = run_snippet(code, lab, Path())
    assert registered == [found["spark"]] == [lab.spark]


@pytest.mark.usefixtures("topics")
def test_the_snippets_of_the_sinks_run(lab: Lab, tmp_path: Path) -> None:
    one, sink, scope, batch = snippets("docs/sink.md")
    for number, (code, columns) in enumerate(
        (
            (one, ("'format' AS value",)),
            (sink, ("'sink' AS value",)),
            (scope, ("id AS delay", "'scope' AS name")),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        run_snippet(code, lab, folder, df=stream_of(lab, folder, *columns))
    run_snippet(batch, lab, tmp_path, df=lab.spark.sql("SELECT 'batch' AS value"))
    scoped = '{"delay":20,"name":"scope"}'
    assert set(lab.visible("results")) >= {"format", "sink", "batch", scoped}
    assert lab.visible("delays") == [scoped]
