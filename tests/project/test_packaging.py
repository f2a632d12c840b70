"""What a user gets with pip: the built wheel, not the working tree."""

from __future__ import annotations

import ast
import email
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pulsar_txn_spark"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy, so that neither tree can leave something to the other."""
    source = tmp_path_factory.mktemp("source")
    shutil.copytree(PACKAGE, source / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in (
        "pyproject.toml",
        "setup.cfg",
        "README.md",
        "LICENSE",
        "NOTICE",
        "pyspark_pulsar_txn.py",
    ):
        shutil.copy(ROOT / name, source)
    folder = tmp_path_factory.mktemp("wheel")
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"),
            *("--no-build-isolation", "--wheel-dir", str(folder), str(source)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    [built] = folder.glob("*.whl")
    return built


def test_the_wheel_holds_every_module_script_and_schema_of_the_package(wheel: Path) -> None:
    expected = {
        str(path.relative_to(ROOT))
        for pattern in ("*.py", "*.pyi", "*.lua", "*.proto", "py.typed")
        for path in PACKAGE.rglob(pattern)
    }
    held = set(zipfile.ZipFile(wheel).namelist())
    assert expected <= held, f"not in the wheel: {sorted(expected - held)}"


def test_the_wheel_brings_the_module_by_which_spark_finds_the_format(wheel: Path) -> None:
    assert "pyspark_pulsar_txn.py" in zipfile.ZipFile(wheel).namelist()


def test_the_wheel_brings_nothing_else_to_the_top_level(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "pulsar_txn_spark",
        "pyspark_pulsar_txn.py",
    }


def test_the_wheel_states_its_licence_and_the_python_it_needs(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    [metadata_name] = [name for name in archive.namelist() if name.endswith("/METADATA")]
    metadata = email.message_from_bytes(archive.read(metadata_name))
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())


def _third_party_imports() -> dict[str, set[str]]:
    """Return top-level module → files of the package that import it, without the own ones."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            else:
                continue
            for name in names:
                top = name.split(".")[0]
                if top != PACKAGE.name and top not in sys.stdlib_module_names:
                    found.setdefault(top, set()).add(str(path.relative_to(ROOT)))
    return found


def test_whatever_the_package_imports_is_among_its_dependencies(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    [metadata_name] = [name for name in archive.namelist() if name.endswith("/METADATA")]
    metadata = email.message_from_bytes(archive.read(metadata_name))
    declared = {
        re.split(r"[^A-Za-z0-9_.-]", requirement)[0].lower()
        for requirement in metadata.get_all("Requires-Dist", [])
        if "extra ==" not in requirement or 'extra == "demo"' in requirement
    }
    distributions = packages_distributions()
    undeclared = {
        module: files
        for module, files in _third_party_imports().items()
        if not declared
        & {name.lower().replace("_", "-") for name in distributions.get(module, [module])}
    }
    # What has its own fallback where it is absent.
    undeclared.pop("testcontainers", None)
    assert not undeclared


def test_an_installed_wheel_can_be_imported_without_the_working_tree(
    wheel: Path, tmp_path: Path
) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    run = subprocess.run(
        [sys.executable, "-P", "-c", "import pyspark_pulsar_txn as m; print(m.__file__)"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "site"), "PATH": ""},
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(str(tmp_path / "site")), run.stdout
