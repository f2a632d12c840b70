"""Runs a job file: ``spark-submit job.py job.toml``.

``pulsar-txn job script > job.py`` writes this file. Its arguments: ``pulsar-txn job run --help``.
"""

from pulsar_txn_spark.cli.main import main

if __name__ == "__main__":
    main(["job", "run"])
