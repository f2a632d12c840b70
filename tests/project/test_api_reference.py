"""The documentation builds without a warning, and its API reference lacks no public name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pulsar_txn_spark
from pulsar_txn_spark import client, errors

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Return what the reference explains, after a strict build of all pages."""
    site = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict"),
            *("--site-dir", str(site)),
        ],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    page = (site / "api" / "index.html").read_text(encoding="utf-8")
    return set(re.findall(r'id="(pulsar_txn_spark[\w.]*)"', page))


def test_the_reference_has_every_public_name(names: set[str]) -> None:
    public = {f"pulsar_txn_spark.{name}" for name in pulsar_txn_spark.__all__}
    inherited = {"pulsar_txn_spark.__version__", "pulsar_txn_spark.PulsarTxnError"}
    public |= {f"pulsar_txn_spark.client.{name}" for name in client.__all__}
    public |= {
        f"pulsar_txn_spark.errors.{name}"
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and kind.__module__ == errors.__name__
    }
    assert public - inherited <= names


def test_the_reference_has_methods_but_nothing_private(names: set[str]) -> None:
    assert "pulsar_txn_spark.Admin.create_topic" in names
    assert [name for name in names if "._" in name] == []
