"""The package stays within the oldest Python that it names; a clone's tests and tools need 3.11."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pulsar_txn_spark.environment import LEAST_PYTHON

ROOT = Path(__file__).parents[2]
_OLDEST = ".".join(map(str, LEAST_PYTHON))
_KINDS = ("attr-defined", "call-arg", "call-overload", "import-not-found", "syntax")
"""mypy's words for a name, a parameter or a form that a Python does not have."""


def test_the_metadata_and_the_linter_name_the_oldest_python() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'requires-python = ">={_OLDEST}"' in text
    assert f'"pulsar_txn_spark/**" = "py{_OLDEST.replace(".", "")}"' in text
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)
    assert named == [f"3.{minor}" for minor in range(LEAST_PYTHON[1], LEAST_PYTHON[1] + len(named))]


@pytest.mark.long
def test_the_package_uses_nothing_that_the_oldest_python_lacks() -> None:
    command = [sys.executable, "-m", "mypy", "--python-version", _OLDEST, "--no-error-summary"]
    run = subprocess.run(
        [*command, "pulsar_txn_spark", "pyspark_pulsar_txn.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode in (0, 1), run.stderr
    found = [
        line
        for line in run.stdout.splitlines()
        if line.endswith(tuple(f"[{kind}]" for kind in _KINDS))
        and not line.startswith("pulsar_txn_spark/backports.py:")
    ]
    assert found == []
