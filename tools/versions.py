"""Runs the package on each supported PySpark and Python, and writes the table of what works.

    python -m tools.versions [--pyspark 4.0.0 --python 3.10 --part batch …] [--write PAGE]

Each cell gets a virtual environment of its own under ``.venv/versions``. Interpreters are looked
for on the PATH and among those of pyenv; ``--interpreter 3.14=PATH`` names one elsewhere.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import Distribution
from itertools import product
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from integration.support.version_cell import PARTS
from pulsar_txn_spark.store.redis.server import find_server_binary
from pulsar_txn_spark.testing.pulsar_server import SHORT_LIVED_JVM, find_java

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
CELL = ROOT / "integration" / "support" / "version_cell.py"
PYSPARKS = ("4.0.0", "4.0.5", "4.1.0", "4.1.4", "4.2.0", "4.2.1", "4.3.0")
"""The oldest and the newest of each line."""
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
WHOLE = {
    "4.0.0": "3.11",
    "4.0.5": "3.10",
    "4.1.0": "3.10",
    "4.1.4": "3.13",
    "4.2.0": "3.12",
    "4.2.1": "3.11",
    "4.3.0": "3.14",
}
"""The Python on which every part runs with a PySpark. On the others the first parts do."""
CORE = ("batch", "stream", "foreachBatch")
PYSPARK_NEEDS = (
    "py4j==0.10.9.9",  # what 4.0.0 asks for exactly, and all others take
    "googleapis-common-protos>=1.71",
    "grpcio==1.76.0",  # what 4.1 and newer ask for at least, and the newest that takes protobuf 6
    "grpcio-status==1.76.0",
    "pandas>=2.2",
    "zstandard>=0.25",
)
"""What PySpark asks for, with its extra ``connect``: it is put into a folder without them."""
BRIEF_JVM = " ".join((*SHORT_LIVED_JVM, "-Xlog:disable", "-Xlog:all=error:stderr"))
CELL_SECONDS = 1800  # a cell takes half a minute to four minutes on two idle cores
END_SECONDS = 60  # in which a cell that is stopped stops its servers
NOT_RUN = "not run"
BEGIN, END = "<!-- tools.versions -->", "<!-- end -->"


Results = dict[str, dict[str, Any]]
"""What came of each cell, by its name: the day, and the outcome of each part."""


@dataclass(frozen=True)
class Outcome:
    """What came of one part in one cell."""

    part: str
    ok: bool
    note: str
    seconds: float


def interpreters(named: Iterable[str]) -> dict[str, Path]:
    """Return the interpreters that are there, by version."""
    by_version: dict[str, Path] = {}
    for name in PYTHONS:
        pyenv = sorted((Path.home() / ".pyenv" / "versions").glob(f"{name}.*/bin/python"))
        on_path = shutil.which(f"python{name}")
        candidates = [*pyenv, *([Path(on_path)] if on_path else [])]
        for path in candidates:
            if _version_of(path) == name:
                by_version[name] = path
                break
    for text in named:
        name, _, where = text.partition("=")
        if _version_of(Path(where)) != name:
            raise SystemExit(f"{where} is not Python {name}")
        by_version[name] = Path(where)
    return by_version


def _version_of(python: Path) -> str:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    process = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return process.stdout.strip() if process.returncode == 0 else ""


class Cells:
    """Environments below a folder."""

    def __init__(self, folder: Path, pythons: Mapping[str, Path]) -> None:
        self._folder, self._pythons = folder, pythons
        folder.mkdir(parents=True, exist_ok=True)

    def pyspark(self, version: str) -> Path:
        """Return a folder with a PySpark: pure Python, so that every Python shares it."""
        folder = self._folder / f"pyspark-{version}"
        if not (folder / "done").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _pip(Path(sys.executable), "--no-deps", "--target", str(folder), f"pyspark=={version}")
            # Workers look there first, where nothing is compiled: see tools/setup-venv.
            for archive in (folder / "pyspark" / "python" / "lib").glob("*.zip"):
                archive.unlink()
            (folder / "done").touch()
        return folder

    def allows(self, pyspark: str, python: str) -> bool:
        """Tell whether PySpark says that it runs on a Python."""
        [metadata] = self.pyspark(pyspark).glob("pyspark-*.dist-info")
        needed = Distribution.at(metadata).metadata["Requires-Python"] or ""
        return Version(f"{python}.99") in SpecifierSet(needed)

    def dependencies(self, python: str) -> Path:
        """Return the folder with what the package needs on a Python, but for PySpark."""
        tree = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        needed = [n for n in tree["project"]["dependencies"] if not n.startswith("pyspark")]
        needed += PYSPARK_NEEDS
        folder = self._folder / f"python-{python}"
        digest = hashlib.sha256("\n".join(needed).encode()).hexdigest()
        stamp = folder / "made-of"
        if not stamp.exists() or stamp.read_text() != digest:
            shutil.rmtree(folder, ignore_errors=True)
            _venv(self._pythons[python], folder)
            packages = _site_packages(folder)
            _pip(Path(sys.executable), "--python", str(folder / "bin" / "python"), *needed)
            stamp.write_text(digest)
            return packages
        return _site_packages(folder)

    def environment(self, pyspark: str, python: str) -> Path:
        """Return the interpreter of a cell."""
        folder = self._folder / f"cell-{pyspark}-{python}"
        shutil.rmtree(folder, ignore_errors=True)
        _venv(self._pythons[python], folder)
        paths = (ROOT, self.pyspark(pyspark), self.dependencies(python))
        (_site_packages(folder) / "cell.pth").write_text("".join(f"{path}\n" for path in paths))
        return folder / "bin" / "python"

    def run(self, pyspark: str, python: str, parts: Sequence[str]) -> list[Outcome]:
        """Run parts in a cell. A part that printed nothing has failed."""
        interpreter = self.environment(pyspark, python)
        names = {"PYSPARK_PYTHON": str(interpreter), "PYSPARK_DRIVER_PYTHON": str(interpreter)}
        archive = self._folder / f"pyspark-{pyspark}-{_java()}.jsa"
        fresh = archive.with_suffix(".part")
        names["SPARK_SUBMIT_OPTS"] = _jvm_options(archive, fresh, parts)
        # Where pip has no redis-server for a Python, the one of this environment is on the PATH.
        path = f"{Path(find_server_binary()).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, **names, "PATH": path, "PYTHONNOUSERSITE": "1"}
        for unwanted in ("SPARK_HOME", "PYTHONPATH", "SPARK_REMOTE"):
            environment.pop(unwanted, None)
        with tempfile.TemporaryDirectory() as folder:
            command = [str(interpreter), str(CELL), str(Path(folder) / "place"), *parts]
            with subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
                cwd=folder,
            ) as process:
                try:
                    output, said = process.communicate(timeout=CELL_SECONDS)
                except subprocess.TimeoutExpired:
                    output, _ = _stopped(process)
                    said = f"the cell was stopped after {CELL_SECONDS} s"
        lines, said = output.splitlines(), said[-1500:]
        outcomes = [Outcome(**json.loads(line)) for line in lines if line.startswith("{")]
        missing = [part for part in parts if part not in {outcome.part for outcome in outcomes}]
        if fresh.exists() and not missing:
            fresh.rename(archive)
        return [*outcomes, *(Outcome(part, ok=False, note=said, seconds=0) for part in missing)]


def _stopped(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Let a cell stop its servers, and return what it printed."""
    process.terminate()
    try:
        return process.communicate(timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()


def _java() -> str:
    """Return what tells one Java from another."""
    said = subprocess.run([find_java(), "-version"], capture_output=True, check=True).stderr
    return hashlib.sha256(said).hexdigest()[:8]


def _jvm_options(archive: Path, fresh: Path, parts: Sequence[str]) -> str:
    """Return options with which a PySpark's JVMs take their classes from the first cell's JVM.

    A JVM keeps them when it ends (JEP 350), which costs a cell less than loading them again does.
    Only a cell with one JVM does it: several would write the same file.
    """
    if archive.exists():
        return f'{BRIEF_JVM} "-XX:SharedArchiveFile={archive}"'
    if set(parts) <= set(CORE):
        return f'{BRIEF_JVM} "-XX:ArchiveClassesAtExit={fresh}"'
    return BRIEF_JVM


def _venv(python: Path, folder: Path) -> None:
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)


def _site_packages(folder: Path) -> Path:
    [packages] = (folder / "lib").glob("python*/site-packages")
    return packages


def _pip(python: Path, *arguments: str) -> None:
    options = ("--quiet", "--disable-pip-version-check")
    at = arguments.index("--python") + 2 if "--python" in arguments else 0
    command = [str(python), "-m", "pip", *arguments[:at], "install", *options, *arguments[at:]]
    subprocess.run(command, check=True)


# -- the table -----------------------------------------------------------------------------------


def parts_of(pyspark: str, python: str) -> tuple[str, ...]:
    """Return the parts that run in a cell by default."""
    return PARTS if WHOLE[pyspark] == python else CORE


def shown(outcomes: Sequence[Outcome]) -> str:
    """Return the text of a cell."""
    failed = [outcome.part for outcome in outcomes if not outcome.ok]
    if not failed:
        return f"all {len(outcomes)}" if len(outcomes) == len(PARTS) else f"{len(outcomes)}"
    return f"{len(outcomes) - len(failed)} of {len(outcomes)}; not {', '.join(failed)}"


def table(results: Results) -> str:
    """Return the table of what was run, and since when."""
    rows = [["PySpark", *(f"Python {python}" for python in PYTHONS)]]
    rows.append(["---"] * len(rows[0]))
    for pyspark in PYSPARKS:
        cells = (results.get(f"{pyspark} {python}") for python in PYTHONS)
        rows.append([pyspark, *(NOT_RUN if cell is None else cell["text"] for cell in cells)])
    days = sorted(cell["day"] for cell in results.values() if cell["text"] != "-")
    when = (
        f"Run since {days[0]} on x86-64 Linux with Java 17" if days else "No result is recorded yet"
    )
    text = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"{when}:\n\n{text}"


def write(page: Path, text: str, begin: str = BEGIN) -> None:
    """Put the table into the page."""
    old = page.read_text(encoding="utf-8")
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(END)}", re.DOTALL)
    if not pattern.search(old):
        raise SystemExit(f"{page} has no place for the table: {begin} … {END}")
    page.write_text(pattern.sub(lambda _: f"{begin}\n\n{text}\n\n{END}", old), encoding="utf-8")


def _read(kept: Path) -> Results:
    """Return the results so far."""
    results: Results = json.loads(kept.read_text()) if kept.exists() else {}
    return results


def run_cell(cells: Cells, pyspark: str, python: str, parts: Sequence[str]) -> tuple[str, bool]:
    """Run a cell, and print what is to be known of it; return its text, and whether it is whole."""
    outcomes = cells.run(pyspark, python, parts)
    for outcome in outcomes:
        if not outcome.ok or outcome.note:
            print(f"{pyspark} {python} {outcome.part}: {outcome.note}")
    return shown(outcomes), all(outcome.ok for outcome in outcomes)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cells that are asked for; exit code 1 if a part fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pyspark", action="append", choices=PYSPARKS)
    parser.add_argument("--python", action="append", choices=PYTHONS)
    parser.add_argument("--part", action="append", choices=PARTS, help="only try these")
    parser.add_argument("--interpreter", action="append", default=[], metavar="VERSION=PATH")
    parser.add_argument("--folder", type=Path, default=ROOT / ".venv" / "versions")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table there")
    chosen: Any = parser.parse_args(arguments)
    pythons = interpreters(chosen.interpreter)
    cells = Cells(chosen.folder, pythons)
    kept = chosen.folder / "results.json"
    is_whole = True
    chosen_cells = product(chosen.pyspark or PYSPARKS, chosen.python or PYTHONS)
    # With each PySpark the whole cell comes last: it has several JVMs, and takes their classes
    # from an archive of an earlier cell.
    for pyspark, python in sorted(
        chosen_cells, key=lambda cell: (PYSPARKS.index(cell[0]), WHOLE[cell[0]] == cell[1])
    ):
        begun = time.monotonic()
        if not cells.allows(pyspark, python):
            text = "-"
        elif python not in pythons:
            print(f"there is no Python {python}: name one with --interpreter {python}=PATH")
            continue
        else:
            parts = chosen.part or parts_of(pyspark, python)
            text, is_good = run_cell(cells, pyspark, python, parts)
            is_whole = is_whole and is_good
        took = round(time.monotonic() - begun)
        print(f"PySpark {pyspark}, Python {python}: {text} ({took} s)", flush=True)
        if not chosen.part:
            results = _read(kept)  # others may run other cells meanwhile
            results[f"{pyspark} {python}"] = {"day": f"{datetime.now(UTC):%Y-%m-%d}", "text": text}
            kept.write_text(json.dumps(results, indent=1))
    if chosen.write:
        write(chosen.write, table(_read(kept)))
    return 0 if is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
