"""Every part runs on the oldest and the newest PySpark of each line: ``make versions`` has more."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from integration.support.version_cell import PARTS
from tools.versions import PYSPARKS, Cells

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("pyspark", PYSPARKS)
def test_every_part_works_on_a_pyspark(pyspark: str) -> None:
    cells = Cells(ROOT / ".venv" / "versions", {HERE: Path(sys.executable)})
    if not cells.allows(pyspark, HERE):
        pytest.skip(f"PySpark {pyspark} does not run on Python {HERE}")
    outcomes = cells.run(pyspark, HERE, PARTS)
    assert {outcome.part: outcome.note for outcome in outcomes if not outcome.ok} == {}
