"""Spark finds the format; where it cannot be used, it says why instead of hiding all others."""

from __future__ import annotations

import importlib
import os
import pickle
import pkgutil
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.datasource import DataSource

import pyspark_pulsar_txn
from pulsar_txn_spark import environment
from pulsar_txn_spark.cli import doctor, format_lookup
from pulsar_txn_spark.cli.doctor import Level
from pulsar_txn_spark.cli.format_lookup import Lookup, look_up, spark_python
from pulsar_txn_spark.errors import EnvironmentTooOldError
from pulsar_txn_spark.spark import datasource

ROOT = Path(__file__).parents[2]


def found_by_spark() -> dict[str, type[DataSource]]:
    """Do what pyspark/sql/worker/lookup_data_sources.py does."""
    found = {}
    for info in pkgutil.iter_modules():
        if info.name.startswith("pyspark_"):
            module = importlib.import_module(info.name)
            if hasattr(module, "DefaultSource") and issubclass(module.DefaultSource, DataSource):
                found[module.DefaultSource.name()] = module.DefaultSource
    return found


@pytest.fixture
def reloaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield
    monkeypatch.undo()
    importlib.reload(pyspark_pulsar_txn)


def test_the_import_that_finds_the_format_does_not_raise_with_a_pyspark_that_is_too_old(
    monkeypatch: pytest.MonkeyPatch, reloaded: None
) -> None:
    monkeypatch.setattr(environment, "version", lambda _: "3.5.8")
    importlib.reload(pyspark_pulsar_txn)
    source = found_by_spark()["pulsar_txn"]
    assert pickle.loads(pickle.dumps(source)) is source
    with pytest.raises(EnvironmentTooOldError, match=r"PySpark 3\.5\.8 is too old: .* pip install"):
        source({})


@pytest.mark.parametrize("failure", [ImportError("no mmh3"), SyntaxError("x"), OSError("disk")])
def test_whatever_fails_in_the_package_is_said_by_the_constructor(
    monkeypatch: pytest.MonkeyPatch, reloaded: None, failure: Exception
) -> None:
    def fail() -> None:
        raise failure

    monkeypatch.setattr(environment, "require_python_and_pyspark", fail)
    importlib.reload(pyspark_pulsar_txn)
    source = found_by_spark()["pulsar_txn"]
    with pytest.raises(ImportError, match=rf"cannot be loaded by .*{type(failure).__name__}: "):
        source({})


def test_where_all_is_well_the_format_itself_is_found() -> None:
    assert found_by_spark()["pulsar_txn"] is datasource.PulsarTxnDataSource


def test_an_editable_install_is_found_from_another_folder(tmp_path: Path) -> None:
    source, built, site = tmp_path / "clone", tmp_path / "built", tmp_path / "site"
    source.mkdir()
    built.mkdir()
    shutil.copytree(
        ROOT / "pulsar_txn_spark",
        source / "pulsar_txn_spark",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    for name in ("pyproject.toml", "setup.cfg", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source)
    shutil.copy(ROOT / "pyspark_pulsar_txn.py", source)
    build = f"from setuptools.build_meta import build_editable; build_editable({str(built)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    [wheel] = built.glob("*.whl")
    shutil.unpack_archive(wheel, site, "zip")
    # What pip does, and what the interpreter does with it when it starts.
    script = (
        f"import site; site.addsitedir({str(site)!r}); import pkgutil; "
        "print([i.module_finder.path for i in pkgutil.iter_modules() "
        "if i.name == 'pyspark_pulsar_txn'])"
    )
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert str(source) in run.stdout


# -- the doctor's look ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given,python",
    [
        ({"PYSPARK_DRIVER_PYTHON": "a", "PYSPARK_PYTHON": "b"}, "a"),
        ({"PYSPARK_PYTHON": "b"}, "b"),
        ({}, "python3"),
    ],
)
def test_the_interpreter_is_the_one_that_sparks_jvm_chooses(
    given: dict[str, str], python: str
) -> None:
    assert spark_python(given)[0] == python


def test_the_look_up_finds_the_format_in_this_interpreter() -> None:
    given = {**os.environ, "PYSPARK_DRIVER_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    assert look_up(given) == Lookup(sys.executable, "PYSPARK_DRIVER_PYTHON", visible=True)


def test_the_look_up_names_the_module_for_which_spark_registers_nothing(tmp_path: Path) -> None:
    (tmp_path / "pyspark_broken.py").write_text("raise RuntimeError('it is broken')\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    given = {**os.environ, "PYSPARK_DRIVER_PYTHON": sys.executable, "PYTHONPATH": path}
    found = look_up(given)
    assert not found.visible
    assert "pyspark_broken: RuntimeError: it is broken" in found.problem


def test_the_look_up_passes_on_what_the_formats_constructor_says(tmp_path: Path) -> None:
    # A PySpark that is too old, as the interpreter sees it.
    info = tmp_path / "pyspark-3.5.8.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pyspark\nVersion: 3.5.8\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    given = {**os.environ, "PYSPARK_DRIVER_PYTHON": sys.executable, "PYTHONPATH": path}
    found = look_up(given)
    assert not found.visible
    assert found.problem.startswith("PySpark 3.5.8 is too old: ")


def test_the_look_up_has_the_path_that_spark_gives_to_its_workers(tmp_path: Path) -> None:
    (tmp_path / "python" / "lib").mkdir(parents=True)
    archive = tmp_path / "python" / "lib" / "pyspark.zip"
    archive.touch()
    given = {"SPARK_HOME": str(tmp_path), "PYTHONPATH": "/mine"}
    assert format_lookup._python_path(given) == [str(archive), "/mine"]


def test_the_look_up_tells_an_interpreter_without_the_format(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncd /\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    found = look_up({**os.environ, "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": ""})
    assert found == Lookup(
        str(python), "PYSPARK_PYTHON", False, "no module of the name pyspark_pulsar_txn on its path"
    )


@pytest.mark.parametrize("content", ["#!/bin/sh\nexit 3\n", "#!/nobody/there\n"])
def test_an_interpreter_that_does_not_run_is_said_so(tmp_path: Path, content: str) -> None:
    python = tmp_path / "python"
    python.write_text(content)
    python.chmod(0o755)
    found = look_up({"PYSPARK_PYTHON": str(python)})
    assert not found.visible
    assert found.problem.startswith("it does not run: ")
    assert "there is no nopython" in look_up({"PYSPARK_PYTHON": "nopython", "PATH": "/"}).problem


def test_the_doctor_says_that_spark_does_not_find_the_format(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        doctor, "look_up", lambda: Lookup("/x/python", "PYSPARK_PYTHON", False, "w")
    )
    finding = doctor._format()
    assert finding.level is Level.ERROR
    assert "/x/python (PYSPARK_PYTHON): w" in finding.found
    assert "/x/python -m pip install pulsar-txn-spark" in finding.remedy
