"""Jobs from a file, in a real Spark: what comes out, what is refused before, how they end."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import DataFrame

import pulsar_txn_spark
from integration.support.spark import NO_PANDAS_3, QUERY_SECONDS, Lab, until
from pulsar_txn_spark.cli import job_script
from pulsar_txn_spark.errors import JobFileError, JobNotReadyError
from pulsar_txn_spark.job import Job, execution, load
from pulsar_txn_spark.job.analysis import analyze, unreachable
from pulsar_txn_spark.job.avro import PACKAGE
from pulsar_txn_spark.job.execution import Stop, require_ready, run_in
from pulsar_txn_spark.job.explanation import explanation_of
from pulsar_txn_spark.job.views import MALFORMED, decoded
from pulsar_txn_spark.steps import FAULT, FAULT_FILE, FAULT_PGID, Phase, Step
from tests.support.pages import snippet, snippets

pytestmark = pytest.mark.filterwarnings(NO_PANDAS_3)

PAGE = "docs/job.md"
HEAD = """
[job]
name = "test"
checkpoint = "{checkpoint}"
trigger = "availableNow"
"""
SOURCE = """
[[source]]
name = "flights"
topic = "{source}"
subscription = "s"
startingOffsets = "earliest"
decode = "json"
schema = "id BIGINT, carrier STRING, delay INT"
"""
SINK = """
[[sink]]
topic = "{out}"
encode = "json"
"""


@pytest.fixture(autouse=True)
def _no_view_is_left(lab: Lab) -> Iterator[None]:
    yield
    for table in lab.spark.catalog.listTables():
        if table.isTemporary:
            lab.spark.catalog.dropTempView(table.name)


class Bench:
    """A job file with topics of its own."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.source = lab.topic()
        self.out = lab.topic(2)
        self.other = lab.topic()
        self.file = lab.folder / "job.toml"

    def job(self, *parts: str, head: str = HEAD, **named: str) -> Job:
        """Write the file and load it."""
        names = {
            "source": self.source,
            "out": self.out,
            "other": self.other,
            "folder": str(self.lab.folder),
            "checkpoint": str(self.lab.checkpoint()),
            **named,
        }
        text = "".join((head, *parts))
        for name, value in names.items():
            text = text.replace("{" + name + "}", value)
        self.file.write_text(text)
        return load(self.file, environment={}, defaults=self.lab.options)

    def produce(self, *flights: Mapping[str, object]) -> None:
        """Write flights to the source."""
        self.lab.produce(self.source, *map(json.dumps, flights))

    def run(self, job: Job) -> list[dict[str, Any]]:
        """Run a job to its end and return its events."""
        events: list[dict[str, Any]] = []
        run_in(self.lab.spark, job, lambda event: events.append(dict(event)), Stop())
        return events

    def values(self, topic: str) -> list[Any]:
        """Return what a reader sees, decoded."""
        return sorted(map(json.loads, self.lab.visible(topic)), key=str)

    def complaint(self, *parts: str, head: str = HEAD, **named: str) -> str:
        """Return what the analyzer refuses."""
        views, _ = analyze(self.lab.spark, self.job(*parts, head=head, **named), self.lab.folder)
        return "\n".join(str(p).replace(f"{self.lab.folder}/", "") for p in views.problems)


@pytest.fixture
def bench(lab: Lab) -> Bench:
    return Bench(lab)


FLIGHTS = (
    {"id": 1, "carrier": "AA", "delay": 20},
    {"id": 2, "carrier": "BB", "delay": 5},
    {"id": 3, "carrier": "AA", "delay": 60},
)


# -- what comes out --------------------------------------------------------------------------------


def test_several_sinks_and_a_static_table_are_one_transaction(bench: Bench) -> None:
    (bench.lab.folder / "airlines.csv").write_text("carrier,name\nAA,American\nBB,Blue\n")
    job = bench.job(
        SOURCE,
        """
[[source]]
name = "airlines"
format = "csv"
path = "{folder}/airlines.csv"
schema = "carrier STRING, name STRING"
options = { header = true }

[[step]]
name = "named"
sql = \"\"\"
SELECT /*+ BROADCAST(airlines) */ id, name, delay, CAST(id % 2 AS STRING) AS __key
FROM flights LEFT JOIN airlines USING (carrier)
\"\"\"

[[sink]]
topic = "{out}"
sql = "SELECT * EXCEPT (delay) FROM named WHERE delay > 15"
encode = "json"

[[sink]]
topic = "{other}"
sql = "SELECT string(count(*)) AS value, 'n' AS __key FROM named JOIN airlines USING (name)"
""",
    )
    bench.produce(*FLIGHTS)
    events = bench.run(job)
    assert bench.values(bench.out) == [{"id": 1, "name": "American"}, {"id": 3, "name": "American"}]
    assert bench.lab.visible(bench.other) == ["3"]
    keys = {row["key"] for row in bench.lab.rows(bench.out)}
    assert keys == {b"1"}
    assert [event["event"] for event in events] == ["started", "batch", "ended"]
    assert (events[1]["batch"], events[1]["rows"]) == (0, 3)
    writers = bench.lab.run.store.segments
    assert writers is not None
    # The subscription has moved in the same transaction, and the next run reads what is new.
    assert bench.lab.cursor(bench.source, "s") == bench.lab.end(bench.source)
    bench.produce({"id": 5, "carrier": "BB", "delay": 16})
    bench.run(job)
    assert {"id": 5, "name": "Blue"} in bench.values(bench.out)
    assert bench.lab.visible(bench.other) == ["1", "3"]


def test_a_function_of_python_takes_views_and_gives_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bench.lab.folder / "job_steps.py").write_text(
        "def late(spark, flights):\n    return flights.where('delay > 15').select('id')\n"
    )
    monkeypatch.syspath_prepend(str(bench.lab.folder))
    job = bench.job(SOURCE, '[[step]]\nname = "late"\npython = "job_steps:late"\n', SINK)
    bench.produce(*FLIGHTS)
    bench.run(job)
    sys.modules.pop("job_steps")
    assert bench.values(bench.out) == [{"id": 1}, {"id": 3}]


def test_an_aggregation_with_a_watermark_keeps_state(bench: Bench) -> None:
    job = bench.job(
        SOURCE.replace("delay INT", "time TIMESTAMP")
        + 'watermark = { column = "time", delay = "1 minute" }\n',
        """
[[step]]
name = "counts"
sql = \"\"\"
SELECT window.start AS start, count(*) AS flights FROM flights GROUP BY window(time, '1 minute')
\"\"\"
""",
        SINK,
    )
    bench.produce(
        {"id": 1, "time": "2013-01-01T00:00:10Z"}, {"id": 2, "time": "2013-01-01T00:00:50Z"}
    )
    bench.run(job)
    assert bench.values(bench.out) == []
    bench.produce({"id": 3, "time": "2013-01-01T02:00:00Z"})
    bench.run(job)
    assert [row["flights"] for row in bench.values(bench.out)] == [2]


@pytest.mark.long
def test_a_static_source_keeps_the_rows_of_the_first_micro_batch_since_the_start(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = bench.lab.folder / "files"
    files.mkdir()

    def add(carrier: str) -> None:
        bench.lab.produce(bench.other, json.dumps({"carrier": carrier}))
        (files / f"{carrier}.json").write_text(json.dumps({"carrier": carrier}))

    add("AA")
    bench.produce(*FLIGHTS[:2])
    job = bench.job(
        SOURCE + 'maxMessagesPerTrigger = "1"\n',
        SOURCE.replace("flights", "topic").replace('topic = "{source}"\nsubscription = "s"', "")
        + 'topic = "{other}"\nstream = false\n',
        '[[source]]\nname = "files"\nformat = "json"\npath = "{folder}/files"\n'
        'schema = "carrier STRING"\n',
        SINK,
        """sql = \"\"\"SELECT flights.id, t.carrier AS topic, f.carrier AS file FROM flights
        LEFT JOIN topic t USING (carrier) LEFT JOIN files f USING (carrier)\"\"\"\n""",
    )
    write = execution.MicroBatch.write

    def then_add(batch: Any, df: DataFrame, batch_id: int) -> None:
        write(batch, df, batch_id)
        add("BB" if batch_id == 0 else "CC")

    monkeypatch.setattr(execution.MicroBatch, "write", then_add)
    bench.run(job)
    assert bench.values(bench.out) == [{"id": 1, "topic": "AA", "file": "AA"}, {"id": 2}]
    bench.produce({"id": 4, "carrier": "BB"})
    bench.run(job)
    assert bench.values(bench.out)[2:] == [{"id": 4, "topic": "BB", "file": "BB"}]


def test_malformed_rows_stop_the_job_or_are_kept(bench: Bench) -> None:
    bench.lab.produce(bench.source, '{"id": 1}', "no json")
    with pytest.raises(Exception, match=r"malformed: .* JSON document.*no json"):
        bench.run(bench.job(SOURCE, SINK, '[[step]]\nname = "s"\nsql = "SELECT id FROM flights"\n'))
    assert bench.values(bench.out) == []
    job = bench.job(
        SOURCE + 'malformed = "keep"\n',
        """
[[sink]]
topic = "{out}"
sql = "SELECT id FROM flights WHERE __malformed IS NULL"
encode = "json"

[[sink]]
topic = "{other}"
sql = "SELECT __malformed AS value FROM flights WHERE __malformed IS NOT NULL"
""",
    )
    bench.run(job)
    assert bench.values(bench.out) == [{"id": 1}]
    assert bench.lab.visible(bench.other) == ["no json"]


@pytest.mark.parametrize("value", ["", " ", '{"id": 1}\n{"id": 2}', '{"id": 1}]', "null", "[]"])
def test_what_is_not_one_json_document_is_malformed(bench: Bench, value: str) -> None:
    source = bench.job(SOURCE.replace("id BIGINT", "id DOUBLE"), SINK).sources[0]
    values = [{"value": text} for text in ('{"id": 1}', value, ' {"id": NaN} \n', None)]
    frame = bench.lab.spark.createDataFrame(values, "value STRING")
    kept = decoded(frame, replace(source, keep_malformed=True)).collect()
    assert [row[MALFORMED] for row in kept] == [None, value, None, None]
    first, _, second, without_value = kept
    assert first.id == 1
    assert math.isnan(second.id)
    assert without_value.id is None
    with pytest.raises(Exception, match=r"(?i)malformed"):
        decoded(frame, source).collect()
    good = decoded(frame.where("value IS NULL OR value LIKE '%NaN%'"), source).collect()
    assert [row.carrier for row in good] == [None, None]


def test_a_batch_writes_all_topics_in_one_transaction(bench: Bench) -> None:
    bench.produce(*FLIGHTS)
    batch = '[job]\nname = "backfill"\ntrigger = "batch"\n'
    source = SOURCE.replace('subscription = "s"\n', "")
    first = '[[sink]]\ntopic = "{out}"\nsql = "SELECT id FROM flights"\nencode = "json"\n'
    job = bench.job(source, first, first.replace("{out}", "{other}"), head=batch)
    bench.run(job)
    assert len(bench.values(bench.out)) == len(bench.values(bench.other)) == 3
    # The second sink fails: nothing of the first becomes visible.
    broken = "SELECT id, raise_error('on purpose') AS x FROM flights"
    second = first.replace("{out}", "{other}").replace("SELECT id FROM flights", broken)
    with pytest.raises(Exception, match="on purpose"):
        bench.run(bench.job(source, first, second, head=batch))
    assert len(bench.values(bench.out)) == 3


def test_an_external_sink_gets_the_rows_too(bench: Bench) -> None:
    bench.produce(*FLIGHTS)
    external = '[[sink]]\nname = "files"\nformat = "json"\npath = "{folder}/files"\n'
    sql = 'sql = "SELECT id FROM flights"\n'
    bench.run(bench.job(SOURCE, SINK + sql, external + sql))
    assert len(bench.values(bench.out)) == 3
    assert bench.lab.spark.read.json(str(bench.lab.folder / "files")).count() == 3


# -- what is refused before ------------------------------------------------------------------------


def test_mistakes_in_sql_have_the_line_of_the_file(bench: Bench) -> None:
    found = bench.complaint(
        SOURCE,
        """
[[step]]
name = "first"
sql = \"\"\"
SELECT id,
       delya
FROM flights
\"\"\"

[[step]]
name = "second"
sql = "SELECT * FROM first"

[[step]]
name = "third"
sql = "SELEC 1"
""",
        SINK,
    )
    first, third = found.splitlines()
    assert first.startswith("job.toml:19: [[step]] 'first': [UNRESOLVED_COLUMN.WITH_SUGGESTION]")
    assert "`delay`" in first
    assert third.startswith("job.toml:29: [[step]] 'third': [PARSE_SYNTAX_ERROR]")


@pytest.mark.parametrize(
    "parts, expected",
    [
        ((SOURCE, SINK), "and 'topic' is given: drop one, for example by SELECT * EXCEPT"),
        ((SOURCE.replace("BIGINT", "BIGNIT"), SINK), "BIGNIT"),
        ((SOURCE + 'watermark = {column = "x", delay = "1 day"}', SINK), "no column 'x'"),
        (
            (SOURCE, '[[step]]\nname = "s"\nsql = "SELECT id FROM fligths"\n', SINK),
            "The job has the views flights, s",
        ),
        (
            (SOURCE, SINK.replace("json", "none") + 'sql = "SELECT id FROM flights"\n'),
            "Or let encode",
        ),
        (
            (SOURCE, '[[step]]\nname = "s"\nsql = "SELECT count(*) AS n FROM flights"\n', SINK),
            "set outputMode of [job]",
        ),
        (
            (SOURCE, '[[step]]\nname = "s"\nsql = "SELECT 1 AS one"\n', SINK + 'from = "s"\n'),
            "",
        ),
        (
            (SOURCE, '[[step]]\nname = "s"\npython = "nowhere:f"\n', SINK),
            "Put it beside the job file",
        ),
        (
            (SOURCE, '[[step]]\nname = "s"\npython = "json:nothing"\n', SINK),
            "has no 'nothing'",
        ),
        ((SOURCE, '[[step]]\nname = "s"\npython = "json:dumps"\n', SINK), "its function raised"),
        (
            (
                SOURCE.replace("topic =", "stream = false\ntopic =").replace(
                    'subscription = "s"\n', ""
                ),
                SINK,
            ),
            "no view streams",
        ),
        (
            (
                SOURCE,
                '[[step]]\nname = "s"\nsql = "SELECT id FROM flights"\n',
                SINK + 'sql = "SELECT id FROM flights"\n',
            ),
            "it reads a stream other than 's'",
        ),
    ],
)
def test_what_spark_would_refuse_is_refused_before(
    bench: Bench, parts: tuple[str, ...], expected: str
) -> None:
    assert expected in bench.complaint(*parts)


AVRO = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "carrier", "type": ["null", "string"], "default": None},
    ],
}
AVRO_SOURCE = SOURCE.replace('"json"', '"avro"').replace(
    'schema = "id BIGINT, carrier STRING, delay INT"', 'schema = "${file:flight.avsc}"'
)


def test_avro_without_the_package_of_spark_is_refused_with_its_name(bench: Bench) -> None:
    (bench.lab.folder / "flight.avsc").write_text(json.dumps(AVRO))
    found = bench.complaint(AVRO_SOURCE, SINK)
    assert found.startswith("job.toml:7: [[source]] 'flights': decode = \"avro\" needs Spark's")
    assert f'set jars.packages = "{PACKAGE}" in [spark]' in found
    assert "\n" not in found


def test_an_unknown_table_of_another_format_is_left_out_of_the_check(bench: Bench) -> None:
    table = '[[source]]\nname = "airlines"\nformat = "jdbc"\noptions = { dbtable = "a" }\n'
    step = '[[step]]\nname = "s"\nsql = "SELECT * FROM flights JOIN airlines USING (carrier)"\n'
    views, _ = analyze(bench.lab.spark, bench.job(SOURCE, table, step, SINK), bench.lab.folder)
    assert views.problems == []
    assert views.unknown == {"airlines", "s"}


def test_what_is_not_there_is_found_on_request(bench: Bench) -> None:
    job = bench.job(SOURCE, SINK, source="topic://public/default/none", out="nothing")
    first, second = unreachable(job)
    assert "topic://public/default/none" in first.text
    assert "topic://public/default/nothing" in second.text
    assert first.missing
    assert second.missing
    with pytest.raises(JobNotReadyError, match="2 problems; nothing was started"):
        require_ready(job)
    require_ready(bench.job(SOURCE, SINK))


def test_a_job_that_the_analyzer_refuses_does_not_run(bench: Bench) -> None:
    step = '[[step]]\nname = "s"\nsql = "SELECT nothing FROM flights"\n'
    with pytest.raises(JobFileError, match="UNRESOLVED_COLUMN"):
        bench.run(bench.job(SOURCE, step, SINK))


# -- a package of Spark's --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def avro_jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the jar of spark-avro for this Spark, or the newest that Maven finds."""
    folder = tmp_path_factory.mktemp("avro")
    if shutil.which("mvn") is None:
        pytest.skip("spark-avro is a package of Maven's, and there is no 'mvn'")
    for version in (pyspark.__version__, "4.1.1"):
        (folder / "pom.xml").write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
            "<groupId>test</groupId><artifactId>avro</artifactId><version>1</version>"
            "<dependencies><dependency><groupId>org.apache.spark</groupId>"
            f"<artifactId>spark-avro_2.13</artifactId><version>{version}</version>"
            "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
            "</exclusions></dependency></dependencies></project>"
        )
        command = ["mvn", "-B", "-q", "dependency:copy-dependencies", "-DoutputDirectory=."]
        subprocess.run(command, cwd=folder, capture_output=True, timeout=300, check=False)
        for jar in folder.glob("*.jar"):
            return jar
    pytest.skip("Maven finds no spark-avro")


def run_cli(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run ``pulsar-txn``, whose Spark is one of its own."""
    code = "from pulsar_txn_spark.cli.main import main; main()"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=2 * QUERY_SECONDS, check=False
    )


def encoded(number: int, carrier: str) -> bytes:
    """Return a flight as Avro writes it: numbers and lengths as zigzag, the union by its index."""
    return bytes([2 * number, 2 * 1, 2 * len(carrier)]) + carrier.encode()


@pytest.mark.long
def test_avro_is_decoded_with_the_package_of_spark(bench: Bench, avro_jar: Path) -> None:
    (bench.lab.folder / "flight.avsc").write_text(json.dumps(AVRO, indent=2))
    own_spark = (
        f'[spark]\nmaster = "local[1]"\njars = "{avro_jar}"\nlog.level = "ERROR"\n',
        f'[options]\nstore.path = "{bench.lab.options["store.path"]}"\n',
    )
    bench.job(
        *own_spark,
        AVRO_SOURCE + 'malformed = "keep"\n',
        SINK + 'sql = "SELECT id, carrier FROM flights WHERE __malformed IS NULL"\n',
        SINK.replace("{out}", "{other}").replace("json", "none"),
        'sql = "SELECT __malformed AS value FROM flights WHERE __malformed IS NOT NULL"\n',
    )
    frame = bench.lab.spark.createDataFrame(
        [(encoded(1, "AA"),), (b"\xff",), (encoded(2, "BB"),), (None,)], "value BINARY"
    )
    bench.lab.write(frame, bench.source)
    ran = run_cli("job", "run", "job.toml", cwd=bench.lab.folder)
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert bench.values(bench.out) == [
        {"carrier": "AA", "id": 1},
        {"carrier": "BB", "id": 2},
        {},  # a message without a value is not malformed
    ]
    assert [row["value"] for row in bench.lab.rows(bench.other)] == [b"\xff"]
    # Without `keep` the job stops, and a schema that Avro refuses is found by the check.
    source = AVRO_SOURCE.replace('"s"', '"again"')
    sink = SINK + 'sql = "SELECT id, carrier FROM flights"\n'
    bench.job(*own_spark, source, sink, checkpoint=str(bench.lab.folder / "again"))
    ran = run_cli("job", "run", "job.toml", cwd=bench.lab.folder)
    assert ran.returncode == 1
    assert "Malformed records are detected" in ran.stderr
    assert len(bench.values(bench.out)) == len(("AA", "BB", "none"))
    fields = [{"name": "id", "type": "longg"}]
    (bench.lab.folder / "flight.avsc").write_text(json.dumps({**AVRO, "fields": fields}))
    ran = run_cli("job", "check", "job.toml", cwd=bench.lab.folder)
    assert ran.returncode == 2
    assert "[[source]] 'flights': Avro does not take the schema: " in ran.stderr
    assert "longg" in ran.stderr


# -- what holds ------------------------------------------------------------------------------------


def guarantees(bench: Bench, *parts: str, head: str = HEAD) -> dict[str, tuple[str, str]]:
    views, rows = analyze(bench.lab.spark, bench.job(*parts, head=head), bench.lab.folder)
    assert views.problems == []
    found = explanation_of(views, rows)
    assert found["plan"]
    return {g["name"]: (g["holds"], g["why"]) for g in found["guarantees"]}


STEP = '[[step]]\nname = "s"\nsql = "SELECT id, delay, __key FROM flights"\n'


def test_all_guarantees_hold_for_a_job_that_takes_none_away(bench: Bench) -> None:
    found = guarantees(bench, SOURCE, STEP, SINK)
    assert {holds for holds, _ in found.values()} == {"holds"}
    assert set(found) == {
        "exactly once",
        "all sinks together",
        "input with output",
        "order per key",
        "the same rows in a replay",
    }


@pytest.mark.parametrize(
    "changes, name, why",
    [
        ({'"s"\nst': '"s"\nminPartitions = 8\nst'}, "order per key", "minPartitions of flights"),
        ({"FROM flights": "FROM flights DISTRIBUTE BY id"}, "order per key", "a shuffle (Exchange"),
        ({"__key FROM": "string(id) AS __key FROM"}, "order per key", "another key than"),
        ({", __key": ""}, "order per key", "rows have no key"),
        (
            {SINK: SINK + 'sql = "FROM s UNION ALL SELECT id, delay, string(delay) FROM s"\n'},
            "order per key",
            "another key than",
        ),
        ({SINK: SINK + 'sql = "FROM s SORT BY id DESC"\n'}, "order per key", "sorts the rows"),
        ({"SELECT id": "SELECT uuid() AS id"}, "the same rows in a replay", "uuid()"),
        ({'subscription = "s"\n': ""}, "input with output", "has no 'subscription'"),
        (
            {'"s"\nst': '"s"\nfailOnDataLoss = false\nst'},
            "exactly once",
            "failOnDataLoss=false of flights",
        ),
        (
            {SINK: SINK + '\n[[sink]]\nname = "files"\nformat = "json"\npath = "x"\n'},
            "all sinks together",
            "files: an external sink",
        ),
        (
            {STEP: '[[source]]\nname = "dim"\ntopic = "{source}"\nstream = false\n' + STEP},
            "current static sources",
            "dim: Spark plans a static source once",
        ),
    ],
)
def test_what_takes_a_guarantee_away_is_named(
    bench: Bench, changes: dict[str, str], name: str, why: str
) -> None:
    text = SOURCE + STEP + SINK
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    found = guarantees(bench, text)
    assert found[name][0] == "does not hold"
    assert why in found[name][1]


def test_a_key_that_is_cast_keeps_its_order(bench: Bench) -> None:
    found = guarantees(
        bench, SOURCE, STEP.replace("__key FROM", "CAST(__key AS STRING) AS __key FROM"), SINK
    )
    assert found["order per key"][0] == "holds"


def test_a_clock_in_a_sink_is_another_one_in_a_replay(bench: Bench) -> None:
    sink = SINK + 'sql = "SELECT id, __key, current_timestamp() AS now FROM flights"\n'
    assert guarantees(bench, SOURCE, sink)["the same rows in a replay"][0] == "does not hold"
    # Within the stream Spark fixes the time of a micro-batch in its checkpoint.
    step = STEP.replace("delay,", "current_timestamp() AS now,")
    assert guarantees(bench, SOURCE, step, SINK)["the same rows in a replay"][0] == "holds"


# -- how it ends -----------------------------------------------------------------------------------


def test_a_job_stops_between_two_micro_batches(bench: Bench) -> None:
    job = bench.job(
        SOURCE, STEP, SINK, head=HEAD.replace('trigger = "availableNow"', 'trigger = "1 second"')
    )
    bench.produce(*FLIGHTS)
    stop, events = Stop(), []
    running = threading.Thread(
        target=run_in, args=(bench.lab.spark, job, lambda e: events.append(e["event"]), stop)
    )
    running.start()
    until(lambda: len(bench.values(bench.out)) == 3)
    stop.requested.set()
    running.join(60)
    assert not running.is_alive()
    assert events[0] == "started"
    assert events[-1] == "ended"
    assert events.count("stopping") == 1
    assert stop.over.is_set()
    assert [query.name for query in bench.lab.spark.streams.active] == []


def test_no_micro_batch_begins_once_the_job_is_to_stop(bench: Bench) -> None:
    bench.produce(*FLIGHTS)
    stop = Stop()
    stop.requested.set()
    job = bench.job(SOURCE, STEP, SINK)
    run_in(bench.lab.spark, job, lambda _: None, stop)
    assert bench.values(bench.out) == []
    bench.run(job)
    assert len(bench.values(bench.out)) == 3


def test_a_micro_batch_that_takes_too_long_is_aborted(bench: Bench) -> None:
    bench.produce(*FLIGHTS)
    slow = "SELECT id, reflect('java.lang.Thread', 'sleep', 600000L) AS slept FROM s"
    job = replace(bench.job(SOURCE, STEP, SINK + f'sql = "{slow}"\n'), stop_timeout_s=0.5)
    stop = Stop()
    running = threading.Thread(target=run_in, args=(bench.lab.spark, job, lambda _: None, stop))
    running.start()
    until(lambda: any(query.status["isTriggerActive"] for query in bench.lab.spark.streams.active))
    stop.requested.set()
    running.join(60)
    assert not running.is_alive()
    assert bench.values(bench.out) == []


def submit(file: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start ``spark-submit`` as the leader of its own group, which a fault kills."""
    script = file.parent / "job.py"
    shutil.copy(job_script.__file__, script)
    program = f"{find_spec('pyspark').submodule_search_locations[0]}/bin/spark-submit"  # type: ignore[union-attr,index]
    quiet = ("--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1")
    command = [program, "--master", "local[2]", *quiet, str(script), str(file), *arguments]
    with (file.parent / "stderr").open("ab") as stderr:
        return subprocess.Popen(
            ["/bin/bash", "-c", f'export {FAULT_PGID}=$$; exec "$@"', "bash", *command],
            env={**os.environ, **environment, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
            text=True,
        )


def events_of(printed: str) -> list[dict[str, Any]]:
    """Return the events of a job; spark-submit mixes standard output and error of Python."""
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


@pytest.mark.crash
@pytest.mark.long
def test_a_submitted_job_that_is_killed_and_submitted_again_is_exact(bench: Bench) -> None:
    source = SOURCE + "maxMessagesPerTrigger = 1\n"
    second = SINK.replace("{out}", "{other}") + 'sql = "SELECT id FROM flights WHERE id > 1"\n'
    bench.job(
        '[spark]\nlog.level = "ERROR"\nsql.shuffle.partitions = 2\n',
        source,
        SINK + 'sql = "SELECT id, __key FROM flights"\n',
        second,
    )
    path = bench.lab.options["store.path"]
    for number in range(4):
        bench.produce({"id": number})
    fault = f"{Step.PENDING_ACK}:{Phase.AFTER}:2"
    environment = {"PULSAR_TXN_STORE_PATH": path}
    faults = {FAULT: fault, FAULT_FILE: str(bench.lab.folder / "fault")}
    with submit(bench.file, **environment, **faults) as process:
        printed, _ = process.communicate(timeout=QUERY_SECONDS)
    assert process.returncode == -signal.SIGKILL, printed[-4000:]
    assert bench.values(bench.out) == [{"id": 0}]

    with submit(bench.file, "--json", **environment) as process:
        printed, _ = process.communicate(timeout=QUERY_SECONDS)
    assert process.returncode == 0, printed[-4000:]
    events = events_of(printed)
    assert [event["batch"] for event in events if event["event"] == "batch"] == [1, 2, 3]
    assert bench.values(bench.out) == [{"id": number} for number in range(4)]
    assert bench.values(bench.other) == [{"id": 2}, {"id": 3}]
    assert bench.lab.physical(bench.out).aborted_rows == 1

    # What gets the signal is the JVM: the running micro-batch ends all the same.
    with submit(
        bench.file, "--json", "--set", "job.trigger=100 milliseconds", **environment
    ) as process:
        bench.produce({"id": 4})
        until(lambda: {"id": 4} in bench.values(bench.other))
        process.terminate()
        printed, _ = process.communicate(timeout=QUERY_SECONDS)
    assert process.returncode == 128 + signal.SIGTERM
    # The signal may come before the batch that the test has seen is reported.
    first, *between, last = (event["event"] for event in events_of(printed))
    assert (first, sorted(between), last) == ("started", ["batch", "stopping"], "ended")
    assert bench.lab.physical(bench.out).aborted_rows == 1
    assert bench.lab.cursor(bench.source, "s") == bench.lab.end(bench.source)


def test_the_example_runs(lab: Lab) -> None:
    # Its topics have names that others use as well.
    lab = replace(lab, options={"store.path": str(lab.folder / "store")})
    example = Path(__file__).parents[2] / "examples" / "job.toml"
    job = load(example, environment={"DATA": str(lab.folder)}, options=lab.options)
    for topic in ("events", "shouted", "thirds"):
        pulsar_txn_spark.Admin(lab.options).create_topic(topic)
    rows = lab.spark.range(10).selectExpr("concat('a', id) AS value", "string(id) AS __key")
    lab.write(rows, "events")
    run_in(lab.spark, job, lambda _: None, Stop())
    shouted = lab.visible("topic://public/default/shouted")
    assert shouted == [f"A{number}" for number in range(10)]
    thirds = [json.loads(value) for value in lab.visible("topic://public/default/thirds")]
    assert {"event": {"event": "A9", "length": 2}} in thirds


def test_the_first_job_of_the_page_runs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    text = snippet(PAGE, "[job]")
    (bench.lab.folder / "airlines.csv").write_text("carrier,name\nAA,American\n")
    for written, meant in (
        ("/data/", f"{bench.lab.folder}/"),
        ('topic = "flights"', f'topic = "{bench.source}"'),
        ('"delays"', f'"{bench.out}"'),
        ('"on_time"', f'"{bench.other}"'),
    ):
        text = text.replace(written, meant)
    bench.file.write_text(text)
    job = load(
        bench.file,
        environment={"STORE_PASSWORD": "not used"},
        overrides=["job.trigger=availableNow"],
    )
    # The store of the page is a Redis; here it is the tests' own.
    sources = tuple(
        replace(source, options={**drop_store(source.options), **bench.lab.options})
        if source.is_own
        else source
        for source in job.sources
    )
    job = replace(job, sources=sources, transaction=bench.lab.options)
    bench.produce({"id": 1, "carrier": "AA", "dep_delay": 20}, {"id": 2, "dep_delay": 5})
    bench.run(job)
    [late] = bench.values(bench.out)
    assert late == {"id": 1, "carrier": "AA", "dep_delay": 20, "airline": "American"}
    assert bench.values(bench.other) == [{"id": 2, "dep_delay": 5}]


def test_each_snippet_of_the_page_is_analyzed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [text for language, text in snippets(PAGE) if language == "toml"]
    found = [text for text in texts if "[job]" not in text and "avro" not in text]
    head = '[job]\nname = "test"\ncheckpoint = "{checkpoint}"\n'
    sink = '[[sink]]\ntopic = "out"\nencode = "json"\nsql = "SELECT 1 AS one FROM `{view}`"\n'
    source = found[1].partition("[[step]]")[0]  # with a watermark, which a state needs
    [code] = [text for language, text in snippets(PAGE) if language == "python"]
    (bench.lab.folder / "flight_steps.py").write_text(code)
    monkeypatch.syspath_prepend(str(bench.lab.folder))
    for text in found:
        [*_, view] = re.findall(r'^name = "(.*)"', text, re.MULTILINE)
        before = "" if "[[source]]" in text else source
        after = "" if "[[sink]]" in text else sink
        assert bench.complaint(before, text, after, head=head, view=view) == "", text
    sys.modules.pop("flight_steps")


@pytest.mark.long
def test_the_commands_of_the_pages_run(bench: Bench) -> None:
    bench.job(
        '[spark]\nmaster = "local[1]"\nlog.level = "ERROR"\n',
        f'[options]\nstore.path = "{bench.lab.options["store.path"]}"\n',
        SOURCE + "maxMessagesPerTrigger = 1\n",
        SINK + 'sql = "SELECT id, carrier, delay FROM flights"\n',
    )
    for flight in FLIGHTS:
        bench.produce(flight)
    folder = bench.lab.folder
    code = snippet(PAGE, "pulsar-txn job check") + snippet(
        "docs/deployment.md", "pulsar-txn job script"
    )
    for written, meant in (
        ("/jobs/", f"{folder}/"),
        ("spark://host:7077", "'local[1]' --conf spark.ui.enabled=false"),
    ):
        assert written in code
        code = code.replace(written, meant)
    home = find_spec("pyspark").submodule_search_locations[0]  # type: ignore[union-attr,index]
    head = (
        f"pulsar-txn() {{ {sys.executable} -c "
        "'from pulsar_txn_spark.cli.main import main; main()' \"$@\"; }\n"
    )
    ran = subprocess.run(
        ["bash", "-e", "-c", head + code],
        cwd=folder,
        env={
            **os.environ,
            "PATH": os.pathsep.join([f"{home}/bin", os.environ["PATH"]]),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=2 * QUERY_SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-4000:]
    assert "job 'test' is in order" in ran.stdout
    assert "Guarantees" in ran.stdout
    # What `run` has written, spark-submit finds acknowledged, in each of its two ways.
    assert ran.stdout.count("started as ") == len(("run", "spark-submit", "spark-submit"))
    assert ran.stdout.count("1 rows in") == len(FLIGHTS)
    assert bench.values(bench.out) == list(FLIGHTS)


def drop_store(options: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in options.items() if not key.startswith("store.")}
