"""Makes what a release consists of, and checks it.

    python tools/dist.py [--out FOLDER] [--no-environment]

``FOLDER`` (``dist``) gets the wheel, the sdist, a zip for ``--py-files``, a packed virtual
environment for ``--archives``, and the checksums of all of them. The quick start runs with the
sdist and with the wheel, each installed in a fresh environment, before that is packed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

ROOT = Path(__file__).parents[1]
QUICK_START = ROOT / "examples" / "quickstart.py"
QUICK_START_SECONDS = 600
NAME = "pulsar_txn_spark"
SUMS = "SHA256SUMS"
# Spark brings its own PySpark to driver and executors; a second one, of 400 MB, may be another.
NOT_PACKED = ("pyspark", "pip", "setuptools")


def call(*command: str | Path, cwd: Path = ROOT) -> None:
    """Run a command that has to succeed."""
    subprocess.run(command, check=True, cwd=cwd)


def main(arguments: list[str]) -> None:
    """Make and check everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", metavar="FOLDER", type=Path, default=ROOT / "dist")
    parser.add_argument(
        "--no-environment",
        action="store_true",
        help="neither install what was built nor pack an environment (needs no package index)",
    )
    chosen = parser.parse_args(arguments)
    out: Path = chosen.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob(f"{NAME}-*"):
        old.unlink()
    sdist, wheel = build(out)
    call(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
    made = [sdist, wheel, py_files(wheel)]
    if not chosen.no_environment:
        made.append(environment(sdist, wheel))
    sums = "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made
    )
    (out / SUMS).write_text(sums)
    for path in made:
        print(f"{path.stat().st_size / 1e6:8.1f} MB  {path.name}")


def build(out: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from the sdist, with the build tools of this environment."""
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT)
    [sdist], [wheel] = out.glob(f"{NAME}-*.tar.gz"), out.glob(f"{NAME}-*.whl")
    return sdist, wheel


def version(wheel: Path) -> str:
    """Return the version that a wheel's metadata has."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return str(HeaderParser().parsestr(archive.read(name).decode())["Version"])


def py_files(wheel: Path) -> Path:
    """Make the zip for ``--py-files``: what the wheel holds, under a name that Spark takes."""
    path = wheel.with_name(f"{NAME}-{version(wheel)}-py-files.zip")
    shutil.copy(wheel, path)
    return path


def environment(sdist: Path, wheel: Path, *, try_out: bool = True) -> Path:
    """Pack what is installed from the wheel, after the quick start has run with both; return it."""
    system = f"{platform.system()}-{platform.machine()}".lower()
    python = "py{}{}".format(*sys.version_info[:2])
    path = wheel.with_name(f"{NAME}-{version(wheel)}-environment-{python}-{system}.tar.gz")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "environment")
        call(sys.executable, "-m", "venv", folder)
        pip = (folder / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check")
        if try_out:
            call(*pip, "install", sdist)
            quick_start(folder)
            call(*pip, "uninstall", "--yes", wheel.name.partition("-")[0])
        call(*pip, "install", wheel)
        if try_out:
            quick_start(folder)
        call(*pip, "check")
        call(*pip, "uninstall", "--yes", *NOT_PACKED)
        pack = Path(sys.executable).with_name("venv-pack")
        call(pack, "--prefix", folder, "--output", path, "--quiet")
    shutil.copymode(wheel, path)  # venv-pack lets nobody else read it
    return path


def quick_start(folder: Path) -> None:
    """Run the quick start in an environment, and from outside of the clone."""
    names = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYTHONPATH", "SPARK_HOME")
    variables = {name: value for name, value in os.environ.items() if name not in names}
    with tempfile.TemporaryDirectory() as elsewhere:
        subprocess.run(
            [folder / "bin" / "python", QUICK_START],
            check=True,
            cwd=elsewhere,
            env=variables,
            timeout=QUICK_START_SECONDS,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
