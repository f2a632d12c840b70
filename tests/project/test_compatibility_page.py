"""docs/compatibility.md says what the code knows of PySpark's versions, and names what was run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.version import Version

from integration.support.version_cell import PARTS
from pulsar_txn_spark.environment import LEAST_PYSPARK, LEAST_PYTHON
from pulsar_txn_spark.spark.versions import FEATURES, Feature
from tools import versions

NOT_SUPPORTED_BY_PYSPARK = {("4.3.0", "3.10")}
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")


def rows_of(text: str) -> list[list[str]]:
    """Return the cells of a page's tables."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


FEATURE_TABLE, RUN_TABLE = (rows_of(part) for part in PAGE.split("## What was run"))
LINES = FEATURE_TABLE[0][1:]


def test_the_page_has_each_line_of_pyspark_and_each_python() -> None:
    of_cells = sorted({".".join(version.split(".")[:2]) for version in versions.PYSPARKS})
    assert of_cells == LINES
    assert LINES[0] == ".".join(map(str, LEAST_PYSPARK))
    assert versions.PYTHONS[0] == ".".join(map(str, LEAST_PYTHON))
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', pyproject)
    assert tuple(named) == versions.PYTHONS
    assert f'"pyspark>={LEAST_PYSPARK[0]}"' in pyproject


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_the_page_says_since_when_pyspark_has_a_feature(feature: Feature) -> None:
    [cells] = [row[1:] for row in FEATURE_TABLE if row[0] == feature.name]
    expected = [
        "yes" if Version(line) >= Version(feature.since) else feature.instead for line in LINES
    ]
    assert cells == expected


def test_each_cell_that_was_run_passed_whole() -> None:
    head, _, *rows = RUN_TABLE
    assert head == ["PySpark", *(f"Python {python}" for python in versions.PYTHONS)]
    assert [row[0] for row in rows] == list(versions.PYSPARKS)
    whole, core = f"all {len(PARTS)}", str(len(versions.CORE))
    for pyspark, *cells in rows:
        for python, cell in zip(versions.PYTHONS, cells, strict=True):
            expected = whole if versions.WHOLE[pyspark] == python else core
            if (pyspark, python) in NOT_SUPPORTED_BY_PYSPARK:
                expected = "-"
            assert cell == expected, f"PySpark {pyspark}, Python {python}"
    assert re.search(r"^Run since 20\d\d-\d\d-\d\d on", PAGE, re.MULTILINE)
    assert f"\n- `{whole}`: all of these parts. `{core}`: a batch," in PAGE


def test_each_python_runs_every_part_with_some_pyspark() -> None:
    assert versions.WHOLE.keys() == set(versions.PYSPARKS)
    assert set(versions.WHOLE.values()) == set(versions.PYTHONS)
    assert set(versions.CORE) < set(PARTS)
