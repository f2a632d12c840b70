"""The comparison names a test for each of our cells, and a page for each of the others'."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "comparison.md"
OTHERS = (
    "Spark's Kafka source and sink",
    "pulsar-spark",
    "Flink's Pulsar connector",
    "Quix Streams",
)


def table() -> dict[str, list[str]]:
    """Return feature -> its cells."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    head, *features = rows
    assert head == [*OTHERS, "pulsar_txn_spark"]
    return {feature: cells for feature, *cells in features}


@pytest.mark.parametrize("feature", table())
def test_each_cell_links_to_where_it_is_from(feature: str) -> None:
    *others, own = table()[feature]
    assert len(others) == len(OTHERS)
    for cell in others:
        assert re.search(r"\[[^\]]+\]\(https://github\.com/[\w./#-]+\)", cell), cell
    linked = re.findall(r"\[`(test_\w+)`\]\(\.\./([\w/]+\.py)\)", own)
    assert linked
    assert len(linked) == own.count("test_") - own.count("/test_"), "a test without a link"
    for name, file in linked:
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}: {name}"
