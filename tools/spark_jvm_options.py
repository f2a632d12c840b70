"""Prints options with which Spark's JVMs start in half the time, for SPARK_SUBMIT_OPTS.

    python tools/spark_jvm_options.py FOLDER

Half of what a Spark that lives for seconds takes of a processor goes into loading and verifying
classes; the tests start dozens. So a small job is run once, and the classes that it has loaded are
kept in FOLDER. The JVM itself can do so (JEP 350, "dynamic class-data sharing"). A JVM takes
nothing from an archive that does not fit its version or its class path. Where none can be made, the
reason is shown once and the JVMs start as they always do.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pulsar_txn_spark.testing.pulsar_server import SHORT_LIVED_JVM, find_java

SHORT_LIVED = " ".join(SHORT_LIVED_JVM)
QUIET = "-Xlog:disable -Xlog:all=error:stderr"
TIMEOUT_S = 300
ROWS = 100


def main(folder: Path) -> None:
    """Make the archive if there is none for this Java and this PySpark, and print the options."""
    java = subprocess.run([find_java(), "-version"], capture_output=True, text=True, check=True)
    made_of = [
        java.stderr,
        version("pyspark"),
        str(folder.resolve()),
        Path(__file__).read_text(),
    ]
    key = hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:16]
    archive = folder.resolve() / f"spark-classes-{key}.jsa"
    options = folder / f"spark-options-{key}"
    if not options.exists() or (str(archive) in options.read_text() and not archive.exists()):
        for old in [*folder.glob("spark-classes-*"), *folder.glob("spark-options-*")]:
            old.unlink()
        options.write_text(f"{SHORT_LIVED} {_made(archive)}".strip())
    # What the user has set comes last, so that it holds.
    print(options.read_text(), os.environ.get("SPARK_SUBMIT_OPTS", ""))


def _made(archive: Path) -> str:
    """Make the archive; return the options that use it, or none."""
    print("Keeping the classes that Spark loads, to start it in half the time", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        dumped = Path(folder, "classes.jsa")
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_SUBMIT_OPTS": f'{SHORT_LIVED} {QUIET} "-XX:ArchiveClassesAtExit={dumped}"',
        }
        try:
            ran = subprocess.run(
                [sys.executable, __file__, "--job", folder],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            reason = f"it took more than {TIMEOUT_S} s"
        else:
            if ran.returncode == 0 and dumped.exists():
                # A rename, which is all or nothing, works within one file system only.
                part = archive.with_suffix(".part")
                part.write_bytes(dumped.read_bytes())
                part.rename(archive)
                return f'{QUIET} "-XX:SharedArchiveFile={archive}"'
            log = archive.with_suffix(".log")
            log.write_text(ran.stdout + ran.stderr)
            reason = f"the job that loads them ended with {ran.returncode}, see {log}"
    print(f"They were not kept, Spark starts as it always does: {reason}", file=sys.stderr)
    return ""


def job(folder: Path) -> None:
    """Load what the tests load: the demo's transformation, from batch to stream to batch."""
    from pyspark.sql import SparkSession

    import pulsar_txn_spark
    from demo.data import airlines
    from demo.job import split_by_delay
    from demo.topics import DELAYS, FLIGHTS, SEGMENTS
    from pulsar_txn_spark.store.redis.server import OWNER_VARIABLE

    os.environ[OWNER_VARIABLE] = str(os.getpid())  # the embedded server ends with this process
    options = {"store.path": str(folder / "store")}
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.local.dir", str(folder))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    for topic, segments in SEGMENTS.items():
        pulsar_txn_spark.Admin(options).create_topic(topic, segments=segments)
    rows = spark.range(ROWS).selectExpr(
        "to_json(named_struct('id', id, 'carrier', 'B6')) AS value", "CAST(id AS STRING) AS __key"
    )
    written = rows.write.format("pulsar_txn").options(**options).option("topic", FLIGHTS)
    written.mode("append").save()
    names = spark.createDataFrame(airlines())
    for sink in ("format", "foreachBatch"):
        messages = (
            spark.readStream.format("pulsar_txn")
            .options(**options)
            .options(topic=FLIGHTS, subscription=sink, startingOffsets="earliest")
            .load()
        )
        writer = split_by_delay(messages, names).writeStream
        writer = writer.option("checkpointLocation", str(folder / sink))
        if sink == "format":
            writer = writer.format("pulsar_txn").options(**options)
        else:
            writer = writer.foreachBatch(pulsar_txn_spark.TransactionalSink(options))
        writer.trigger(availableNow=True).start().awaitTermination()
    out = spark.read.format("pulsar_txn").options(**options).option("topic", DELAYS).load()
    if out.groupBy("__key").count().count() != ROWS:
        raise SystemExit(f"expected {ROWS} keys in {DELAYS}")
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # by which Spark's JVM knows that it is to end; then it writes
    gateway.proc.wait(TIMEOUT_S)


if __name__ == "__main__":
    if sys.argv[1] == "--job":
        job(Path(sys.argv[2]))
    else:
        main(Path(sys.argv[1]))
