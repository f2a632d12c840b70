"""The upgrade guide has the versions that the code has, and each of them is checked somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from pulsar_txn_spark.backends import entry_codec
from pulsar_txn_spark.errors import SegmentLogError
from pulsar_txn_spark.spark.source import offsets
from pulsar_txn_spark.store.redis import scripts
from pulsar_txn_spark.txn import native_history, op_log

PAGE = Path(__file__).parents[2] / "docs" / "upgrading.md"


def versions() -> dict[str, str]:
    """Return format -> what the guide says of its version."""
    lines = PAGE.read_text(encoding="utf-8").partition("\n## Formats\n")[2].splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return {row[0]: row[1] for row in rows[1:]}


def first_code(cell: str) -> str:
    """Return the first code of a cell."""
    match = re.search(r"`([^`]+)`", cell)
    assert match is not None
    return match[1]


def test_the_guide_has_the_versions_of_the_code() -> None:
    found = versions()
    assert first_code(found["Keys and scripts of the store"]) == scripts.SCHEMA_VERSION
    assert first_code(found["Offsets of the source"]) == str(offsets.FORMAT)
    assert first_code(found["Entries of the embedded log"]) == str(entry_codec._VERSION)
    assert first_code(found["Batched operation records"]) == op_log.MAGIC.hex()
    (control,) = (cell for name, cell in found.items() if "control topic" in name)
    assert first_code(control) == str(native_history._VERSION)
    assert set(found) > {"Records", "Entries on Pulsar"}


def test_an_entry_of_a_version_that_is_not_known_is_refused() -> None:
    entry = bytearray(entry_codec.encode(pa.record_batch([pa.array([b"a"])], names=["value"])))
    entry[0] += 1
    with pytest.raises(SegmentLogError, match="Expected an entry of format version 1, found"):
        entry_codec.decode(bytes(entry), 1)
