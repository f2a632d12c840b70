"""The demo's Spark job as a file: runs ``spark-submit job.py flights.toml`` on a cluster.

It does what :mod:`demo.job` does. The job reports its micro-batches on the same standard output.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from demo.child import Settings, begin, emit, wait_to_be_told
from demo.data import data_folder
from pulsar_txn_spark.cli import job_script
from pulsar_txn_spark.cli.option_sources import environment_variable
from pulsar_txn_spark.testing.spark_cluster import spark_home

JOB_FILE = Path(__file__).with_name("flights.toml")


def command(settings: Settings) -> list[str]:
    """Return what submits the job, in client mode: its driver is to be killed here."""
    scratch = Path(settings.folder) / "scratch"
    scratch.mkdir(exist_ok=True)  # here, as a JVM that is killed leaves its files behind
    # These JVMs live for seconds: to optimize their code would cost as much as to run it.
    java_options = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={scratch}"
    spark = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": java_options,
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "1g",
        "spark.python.daemon.module": "pulsar_txn_spark.spark.worker_daemon",
        "spark.local.dir": str(scratch),
        "spark.ui.showConsoleProgress": "false",
    }
    pairs = [part for key, value in spark.items() for part in ("--conf", f"{key}={value}")]
    submit = [str(spark_home() / "bin" / "spark-submit"), "--master", settings.master, *pairs]
    # In a folder of its own, as Python looks for modules beside the script that it runs.
    script = shutil.copy(job_script.__file__, scratch / "job.py")
    return [*submit, str(script), str(JOB_FILE), "--json"]


def environment(settings: Settings) -> Mapping[str, str]:
    """Return what the references of the job file read, and where the store is."""
    return {
        **os.environ,
        "DEMO_AIRLINES": str(data_folder() / "airlines.csv"),
        "DEMO_FOLDER": settings.folder,
        "DEMO_ROWS": str(settings.rows_per_batch),
        **{environment_variable(key): value for key, value in settings.options.items()},
    }


def main() -> None:
    """Run as a process of its own."""
    settings = begin()
    emit("ready")
    wait_to_be_told()
    # Standard input is the leash of this process, and no business of Spark's.
    submitted = subprocess.run(
        command(settings), stdin=subprocess.DEVNULL, env=environment(settings), check=False
    )
    sys.exit(submitted.returncode)


if __name__ == "__main__":
    main()
