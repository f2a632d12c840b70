"""What the examples share: their command line, and a local Spark."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pulsar_txn_spark.store.redis.server import stop_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Place:
    """Where an example works.

    Parameters
    ----------
    options : dict of str to str
        Options of the store and of Pulsar, as for ``format("pulsar_txn")``.
    folder : Path
        Folder for checkpoints, and for files of the example.
    """

    options: dict[str, str]
    folder: Path


@contextmanager
def place_of(description: str | None) -> Iterator[Place]:
    """Read the command line; without ``--store``, remove all data at the end.

    Parameters
    ----------
    description : str, optional
        What ``--help`` says about the example.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--store",
        metavar="FOLDER",
        type=Path,
        help="keep data and checkpoints here; the embedded server keeps running "
        "(default: a temporary folder, removed at the end)",
    )
    parser.add_argument(
        "options",
        nargs="*",
        metavar="KEY=VALUE",
        help="options such as store.url=redis://localhost:6379 or service.url=... admin.url=...",
    )
    chosen = parser.parse_args()
    options = dict(option.split("=", 1) for option in chosen.options)
    if chosen.store is not None:
        yield _place(chosen.store.resolve(), options)
        return
    with tempfile.TemporaryDirectory(prefix="pulsar-txn-example-") as temporary:
        place = _place(Path(temporary), options)
        try:
            yield place
        finally:
            if "store.path" in place.options:
                stop_server(place.options["store.path"])


def _place(folder: Path, options: dict[str, str]) -> Place:
    store = {} if "store.url" in options else {"store.path": str(folder / "store")}
    return Place({**store, **options}, folder)


@contextmanager
def local_spark() -> Iterator[SparkSession]:
    """Start a Spark on this interpreter, and stop it at the end.

    It is a local one, unless spark-submit has been told which master to use.
    """
    # Spark looks for data sources with this program, else with the first python3 on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the client's example needs no Spark

    settings = {
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",  # 200 by default: too many for a few rows
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.appName(Path(sys.argv[0]).name)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # which spark-submit sets
        builder = builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()
