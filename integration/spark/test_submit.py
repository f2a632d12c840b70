"""Jobs by spark-submit: on each master, in each deploy mode, with the package as it is shipped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from integration.support.spark import NO_PANDAS_3, Lab, until
from pulsar_txn_spark.testing.spark_cluster import SparkCluster, spark_home

pytestmark = pytest.mark.filterwarnings(NO_PANDAS_3)

ROOT = Path(__file__).parents[2]
JOB = ROOT / "integration" / "support" / "submit_job.py"
SUBMIT_SECONDS = 240  # a driver and executors of its own, on a busy machine
BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
ROWS = [f"row {number}" for number in range(24)]
QUIET = [
    *("--conf", "spark.log.level=ERROR", "--conf", "spark.ui.enabled=false"),
    *("--conf", f"spark.executor.extraJavaOptions={BRIEF}"),
    *("--conf", "spark.executor.memory=512m", "--conf", "spark.driver.memory=512m"),
]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an interpreter that has the dependencies but not the package."""
    folder = tmp_path_factory.mktemp("python")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    [site] = folder.glob("lib/python*/site-packages")
    own = Path(sys.executable).parents[1] / site.relative_to(folder)
    # What a folder that a .pth file names has for .pth files is not read: no editable install.
    (site / "dependencies.pth").write_text(f"{own}\n")
    found = subprocess.run(
        [folder / "bin" / "python", "-c", "import pyspark, pulsar_txn_spark"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "No module named 'pulsar_txn_spark'" in found.stderr
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the package as a zip for --py-files."""
    path = tmp_path_factory.mktemp("dist") / "pulsar_txn_spark.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(ROOT / "pyspark_pulsar_txn.py", "pyspark_pulsar_txn.py")
        for file in (ROOT / "pulsar_txn_spark").rglob("*"):
            if file.suffix in {".py", ".lua", ".proto"}:
                archive.write(file, str(file.relative_to(ROOT)))
    return path


@pytest.fixture(scope="module")
def cluster(python: Path) -> Iterator[SparkCluster]:
    """Give a master and two workers, whose executors and drivers run that interpreter."""
    with SparkCluster(environment=pythons(python)) as started:
        yield started


def pythons(python: Path) -> dict[str, str]:
    """Return the variables by which Spark knows an interpreter."""
    return {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}


@dataclass
class Task:
    """What the job is to do, and what it did.

    Parameters
    ----------
    lab : Lab
    source, out : str
        Topics.
    """

    lab: Lab
    source: str
    out: str

    def settings(self, *, register: bool = False, per_trigger: int = 10) -> str:
        """Return the argument of the job."""
        return json.dumps(
            {
                "options": self.lab.options,
                "source": self.source,
                "out": self.out,
                "checkpoint": str(self.lab.checkpoint()),
                "register": register,
                "per_trigger": per_trigger,
            }
        )

    def expect_every_row_once(self) -> None:
        """Fail unless the output has each row once, and the input is acknowledged."""
        assert self.lab.visible(self.out) == sorted(row.upper() for row in ROWS)
        assert self.lab.cursor(self.source, "job") == self.lab.end(self.source)


@pytest.fixture
def task(lab: Lab) -> Task:
    source = lab.topic()
    lab.produce_each(source, *ROWS)
    return Task(lab, source, lab.topic(2))


def reports(output: str) -> dict[str, Any]:
    """Return what the job has reported."""
    found: dict[str, Any] = {}
    for line in output.splitlines():
        if line.startswith("{"):
            found |= json.loads(line)
    return found


def expect_success(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for the end of a submission in client mode; return what the job reported."""
    with process:
        output, _ = process.communicate(timeout=SUBMIT_SECONDS)
    assert process.returncode == 0, output[-4000:]
    return reports(output)


def test_in_client_mode_driver_and_executors_take_the_package_from_py_files(
    cluster: SparkCluster, task: Task, package: Path, python: Path, tmp_path: Path
) -> None:
    arguments = ["--py-files", str(package), *QUIET, str(JOB), task.settings(register=True)]
    found = expect_success(cluster.submit(*arguments, cwd=tmp_path))
    task.expect_every_row_once()
    assert found["driver"][0] == str(python)
    assert f"/{package.name}/" in found["driver"][1]
    for interpreter, module in found["tasks"]:
        assert interpreter == str(python)
        assert module.startswith(f"{cluster.folder}/worker-")  # the copy that the executor has
        assert f"/{package.name}/" in module


@pytest.mark.long
@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_a_local_master_takes_the_package_from_py_files(
    task: Task, package: Path, python: Path, tmp_path: Path, master: str
) -> None:
    program = str(spark_home() / "bin" / "spark-submit")
    command = [program, "--master", master, "--py-files", str(package), *QUIET]
    command += ["--conf", "spark.driver.host=127.0.0.1", str(JOB), task.settings(register=True)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env={**os.environ, **pythons(python), "SPARK_HOME": str(spark_home())},
    )
    found = expect_success(process)
    task.expect_every_row_once()
    assert {package.name in module for _, module in found["tasks"]} == {True}


@pytest.mark.long
def test_without_registration_a_package_from_py_files_is_not_found(
    cluster: SparkCluster, task: Task, package: Path, tmp_path: Path
) -> None:
    arguments = ["--py-files", str(package), *QUIET, str(JOB), task.settings()]
    with cluster.submit(*arguments, cwd=tmp_path) as process:
        output, _ = process.communicate(timeout=SUBMIT_SECONDS)
    assert process.returncode != 0
    assert "DATA_SOURCE_NOT_FOUND" in output


@pytest.mark.long
def test_a_driver_in_the_cluster_that_is_killed_starts_again_and_every_row_comes_out_once(
    cluster: SparkCluster, task: Task, package: Path, tmp_path: Path
) -> None:
    [core] = (spark_home() / "jars").glob("spark-core_*.jar")
    arguments = [
        *("--deploy-mode", "cluster", "--supervise"),
        *("--files", str(package), "--py-files", str(package), *QUIET),
        *("--class", "org.apache.spark.deploy.PythonRunner"),
        *(core.as_uri(), str(JOB), str(package)),
        task.settings(register=True, per_trigger=1),
    ]
    with cluster.submit(*arguments, cwd=tmp_path) as process:
        output, _ = process.communicate(timeout=SUBMIT_SECONDS)
    assert process.returncode == 0, output[-4000:]
    [driver] = [known["id"] for known in cluster.state()["activedrivers"]]
    until(lambda: len(task.lab.visible(task.out)) >= 2)
    said = cluster.driver_folder(driver) / "stdout"
    first = reports(said.read_text())["jvm"]
    os.kill(first, signal.SIGKILL)
    assert len(task.lab.visible(task.out)) < len(ROWS)
    until(lambda: cluster.driver_state(driver) == "FINISHED")
    found = reports(said.read_text())
    assert found["jvm"] != first
    assert {package.name in module for _, module in found["tasks"]} == {True}
    task.expect_every_row_once()
