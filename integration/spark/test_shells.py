"""The shells ``spark-sql`` and ``spark-shell``: a JVM without a Python program of the user's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from integration.support.spark import FORMAT, recreate_topics, spark_settings

PAGE = Path(__file__).parents[2] / "docs" / "sql.md"
SHELLS = Path(pyspark.__file__).parent / "bin"
START_SECONDS = 240  # a Spark of its own, on a busy machine


def shell(name: str, folder: Path, *arguments: str) -> str:
    """Run a shell of Spark's in a folder; return what it prints, warnings aside."""
    settings = {**spark_settings(folder), "spark.log.level": "ERROR"}
    flags = [part for key, text in settings.items() for part in ("--conf", f"{key}={text}")]
    run = subprocess.run(
        [str(SHELLS / name), "--master", "local[1]", *flags, *arguments],
        cwd=folder,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def snippet(language: str, within: str) -> str:
    """Return the snippet of the page that contains a text."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    [block] = [block for block in found if within in block]
    return str(block)


@pytest.mark.long
def test_a_table_outlives_the_session_of_spark_sql(
    embedded: dict[str, str], tmp_path: Path
) -> None:
    recreate_topics(embedded, "flights")
    statements = tmp_path / "first.sql"
    statements.write_text(
        f"CREATE TABLE flights USING {FORMAT} "
        f"OPTIONS (topic 'flights', store.path '{embedded['store.path']}');\n"
        "INSERT INTO flights (value) VALUES (CAST('written by the shell' AS BINARY));\n"
        "SELECT string(value) FROM flights;\n"
    )
    assert "written by the shell" in shell("spark-sql", tmp_path, "-f", str(statements))
    assert (tmp_path / "metastore_db").is_dir(), "the tables are in a Hive metastore"
    [query] = re.findall(r'^spark-sql -e "(.*)"$', snippet("shell", "spark-sql"), re.MULTILINE)
    assert "1" in shell("spark-sql", tmp_path, "-e", query).splitlines()


@pytest.mark.long
def test_the_format_is_there_in_scala(embedded: dict[str, str], tmp_path: Path) -> None:
    recreate_topics(embedded, "flights", "results")
    reach = f'.format("{FORMAT}").option("store.path", "{embedded["store.path"]}")'
    script = tmp_path / "snippet.scala"
    script.write_text(
        'Seq("from Scala").toDF("value").write.format("pulsar_txn").option("topic", "flights")'
        '.mode("append").save()\n'.replace(f'.format("{FORMAT}")', reach)
        + snippet("scala", "flights").replace(f'.format("{FORMAT}")', reach)
        + f'val results = spark.read{reach}.option("topic", "results").load()\n'
        'println("copied: " + results.selectExpr("string(value)").collect().mkString)\n'
    )
    printed = shell("spark-shell", tmp_path, "-I", str(script))
    assert re.search(r"copied: .*\[from Scala\]", printed), printed
