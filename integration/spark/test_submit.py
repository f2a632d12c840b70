"""Jobs by spark-submit: on each master, in each deploy mode, with the package as it is shipped."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from integration.support.hosts import Hosts, missing
from integration.support.spark import NO_PANDAS_3, Lab, until
from pulsar_txn_spark.cli import job_script
from pulsar_txn_spark.store.redis import connection, server
from pulsar_txn_spark.testing.pulsar_server import free_ports
from pulsar_txn_spark.testing.spark_cluster import SparkCluster, spark_home
from tools import dist

pytestmark = pytest.mark.filterwarnings(NO_PANDAS_3)

ROOT = Path(__file__).parents[2]
JOB = ROOT / "integration" / "support" / "submit_job.py"
SUBMIT_SECONDS = 240  # a driver and executors of its own, on a busy machine
BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
ROWS_OF_THE_PAGE = 1000  # of docs/first-job.md, in each of its two runs
ROWS = [f"row {number}" for number in range(24)]
DEFAULTS = f"""
spark.driver.memory            512m
spark.executor.extraJavaOptions {BRIEF}
spark.executor.memory          512m
spark.log.level                ERROR
spark.ui.enabled               false
"""
PAGE = ROOT / "docs" / "deployment.md"
ZIP = "pulsar_txn_spark-0.1.0-py-files.zip"
ENVIRONMENT = "pulsar_txn_spark-0.1.0-environment-py311-linux-x86_64.tar.gz"


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
    options : dict of str to str, optional
        How the job reaches the store, if not as the test does.
    """

    lab: Lab
    source: str
    out: str
    options: dict[str, str] | None = None

    def settings(self, *, register: bool = False, per_trigger: int = 10) -> str:
        """Return the argument of the job."""
        return json.dumps(
            {
                "options": self.options or self.lab.options,
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


def script(heading: str, settings: str, **replaced: object) -> str:
    """Return the script below a heading of docs/deployment.md, with the job of this test.

    Parameters
    ----------
    heading : str
        Of the section; it has one script, whose last command submits.
    settings : str
        Argument of the job.
    **replaced : object
        What takes the place of ``python``, ``package``, ``environment`` and ``url`` of the page.
    """
    text = PAGE.read_text(encoding="utf-8")
    section = text.partition(f"\n### {heading}\n")[2].partition("\n#")[0]
    [found] = re.findall(r"^```shell\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    names = {
        "python": "/opt/pulsar-txn/bin/python",
        "package": f"/jobs/{ZIP}",
        "environment": f"/jobs/{ENVIRONMENT}",
        "url": "spark://host:7077",
        "job": "/jobs/job.py",
    }
    for name, meant in {"job": JOB, **replaced}.items():
        assert names[name] in found, f"the script of {heading!r} lacks {names[name]}"
        found = found.replace(names[name], str(meant))
    assert not [name for name in names.values() if name in found]
    # As in a shell that knows only what the page says.
    return f"unset PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON\n{found.rstrip()} {shlex.quote(settings)}"


@pytest.fixture(scope="module")
def conf(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the variable that gives what is submitted the settings of this test."""
    folder = tmp_path_factory.mktemp("conf")
    (folder / "spark-defaults.conf").write_text(DEFAULTS)
    return {"SPARK_CONF_DIR": str(folder)}


def expect_success(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for the end of a submission in client mode; return what the job reported."""
    with process:
        output, _ = process.communicate(timeout=SUBMIT_SECONDS)
    assert process.returncode == 0, output[-4000:]
    return reports(output)


@pytest.mark.long
def test_in_client_mode_driver_and_executors_take_the_package_from_py_files(
    cluster: SparkCluster,
    task: Task,
    package: Path,
    python: Path,
    conf: dict[str, str],
    tmp_path: Path,
) -> None:
    settings = task.settings(register=True)
    code = script("A zip", settings, url=cluster.url, python=python, package=package)
    found = expect_success(cluster.run_script(code, environment=conf, cwd=tmp_path))
    task.expect_every_row_once()
    assert found["driver"][0] == str(python)
    assert f"/{package.name}/" in found["driver"][1]
    for interpreter, module in found["tasks"]:
        assert interpreter == str(python)
        assert module.startswith(f"{cluster.folder}/worker-")  # the copy that the executor has
        assert f"/{package.name}/" in module


@pytest.mark.long
def test_in_client_mode_driver_and_executors_use_what_is_installed(
    cluster: SparkCluster, task: Task, conf: dict[str, str], tmp_path: Path
) -> None:
    code = script(
        "Installed on every host", task.settings(), url=cluster.url, python=sys.executable
    )
    found = expect_success(cluster.run_script(code, environment=conf, cwd=tmp_path))
    task.expect_every_row_once()
    assert [interpreter for interpreter, _ in found["tasks"]] == [sys.executable]


@pytest.mark.long
@pytest.mark.parametrize("master", ["local[2,4]", "local-cluster[2,1,1024]"])
def test_a_local_master_takes_the_package_from_py_files(
    task: Task, package: Path, python: Path, conf: dict[str, str], tmp_path: Path, master: str
) -> None:
    settings = task.settings(register=True)
    code = script("A zip", settings, url=f"'{master}'", python=python, package=package)
    variables = {**os.environ, **conf, "SPARK_HOME": str(spark_home())}
    variables["SPARK_LOCAL_IP"] = "127.0.0.1"
    variables["PATH"] = os.pathsep.join([f"{spark_home()}/bin", variables["PATH"]])
    process = subprocess.Popen(
        ["bash", "-e", "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env=variables,
    )
    found = expect_success(process)
    task.expect_every_row_once()
    assert {package.name in module for _, module in found["tasks"]} == {True}


@pytest.mark.long
def test_without_registration_a_package_from_py_files_is_not_found(
    cluster: SparkCluster,
    task: Task,
    package: Path,
    python: Path,
    conf: dict[str, str],
    tmp_path: Path,
) -> None:
    code = script("A zip", task.settings(), url=cluster.url, python=python, package=package)
    with cluster.run_script(code, environment=conf, cwd=tmp_path) as process:
        output, _ = process.communicate(timeout=SUBMIT_SECONDS)
    assert process.returncode != 0
    assert "DATA_SOURCE_NOT_FOUND" in output


def submit_to_cluster(
    cluster: SparkCluster,
    package: Path,
    settings: str,
    conf: dict[str, str],
    cwd: Path,
    job: Path = JOB,
    arguments: Sequence[str] = (),
) -> str:
    """Submit the job in cluster mode; return the driver's id."""
    code = script("The driver in the cluster", settings, url=cluster.url, package=package, job=job)
    code = f"{code} {shlex.join(arguments)}"
    known = {driver["id"] for driver in cluster.drivers()}
    with cluster.run_script(code, environment=conf, cwd=cwd) as process:
        output, _ = process.communicate(timeout=SUBMIT_SECONDS)
    assert process.returncode == 0, output[-4000:]
    [driver] = {driver["id"] for driver in cluster.drivers()} - known
    return str(driver)


@pytest.mark.long
def test_a_driver_in_the_cluster_that_is_killed_starts_again_and_every_row_comes_out_once(
    cluster: SparkCluster, task: Task, package: Path, conf: dict[str, str], tmp_path: Path
) -> None:
    settings = task.settings(register=True, per_trigger=2)
    driver = submit_to_cluster(cluster, package, settings, conf, tmp_path)
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


JOB_FILE = """
[job]
name = "submitted"
checkpoint = "{checkpoint}"
trigger = "availableNow"

[options]
store.path = "${STORE_OF_THE_JOB:-/nowhere}"

[[source]]
name = "rows"
topic = "{source}"
subscription = "job"
startingOffsets = "earliest"
maxMessagesPerTrigger = 2
decode = "string"

[[step]]
name = "shouted"
sql = "SELECT upper(value) AS value FROM rows"

[[sink]]
topic = "{out}"
"""


@pytest.mark.long
def test_a_job_file_in_the_cluster_goes_on_after_its_driver_was_killed(
    cluster: SparkCluster, task: Task, package: Path, conf: dict[str, str], tmp_path: Path
) -> None:
    text = JOB_FILE.replace("{checkpoint}", str(task.lab.checkpoint()))
    file = tmp_path / "job.toml"
    file.write_text(text.replace("{source}", task.source).replace("{out}", task.out))
    job = Path(shutil.copy(job_script.__file__, tmp_path / "job.py"))
    # The environment of spark-submit does not reach the driver; arguments do.
    store = f"options.store.path={task.lab.options['store.path']}"
    driver = submit_to_cluster(
        cluster, package, str(file), conf, tmp_path, job, arguments=("--set", store)
    )
    until(lambda: len(task.lab.visible(task.out)) >= 2)
    [(pid, _)] = processes("DriverWrapper", driver)
    os.kill(pid, signal.SIGKILL)
    assert len(task.lab.visible(task.out)) < len(ROWS)
    until(lambda: cluster.driver_state(driver) == "FINISHED")
    task.expect_every_row_once()
    said = (cluster.driver_folder(driver) / "stdout").read_text()
    assert said.count("started as ") == len(("the first", "the one after it"))
    assert said.splitlines()[-1] == "ended"


@pytest.mark.long
def test_a_cluster_ends_with_the_process_that_has_started_it() -> None:
    code = """
import sys
from pulsar_txn_spark.testing.spark_cluster import SparkCluster
cluster = SparkCluster()
cluster.start()
print(cluster.folder, cluster.url, flush=True)
sys.stdin.read()
"""
    owner = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    )
    with owner:
        assert owner.stdout is not None
        folder, url = owner.stdout.readline().split()
        names = (folder, f"--port {url.rpartition(':')[2]}")
        running = processes_that_name(*names)
        owner.kill()
    assert sum("org.apache.spark.deploy.worker.Worker" in line for line in running) >= 2
    assert any("org.apache.spark.deploy.master.Master" in line for line in running)
    until(lambda: processes_that_name(*names) == [])
    until(lambda: not Path(folder).exists())


def processes(*texts: str) -> list[tuple[int, str]]:
    """Return id and command line of the processes whose command line has all these texts."""
    command = ["ps", "-A", "-ww", "-o", "pid=,args="]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = (line.split(maxsplit=1) for line in listed.stdout.splitlines())
    return [(int(pid), args) for pid, args in lines if all(text in args for text in texts)]


def processes_that_name(*names: str) -> list[str]:
    """Return the command lines that have one of these texts."""
    return [args for name in names for _, args in processes(name)]


# -- a packed environment --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the packed environment of `make dist`, which a package index is needed for."""
    return dist.environment(*dist.build(tmp_path_factory.mktemp("dist")), try_out=False)


@pytest.fixture(scope="module")
def distribution(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return Spark's folder with the archives of PySpark, which `make` removes from its own."""
    home = tmp_path_factory.mktemp("spark")
    for entry in spark_home().iterdir():
        if entry.name != "python":
            (home / entry.name).symlink_to(entry)
    library = home / "python" / "lib"
    library.mkdir(parents=True)
    for name, package in (("pyspark", "pyspark"), (f"py4j-{version('py4j')}-src", "py4j")):
        folder = spark_home().with_name(package)
        with zipfile.ZipFile(library / f"{name}.zip", "w") as archive:
            for file in folder.rglob("*"):
                if file.suffix in {".py", ".json"}:
                    archive.write(file, str(file.relative_to(folder.parent)))
    return home


@pytest.mark.long
@pytest.mark.timeout(900)
def test_driver_and_executors_run_in_an_environment_from_archives(
    task: Task,
    environment: Path,
    distribution: Path,
    conf: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [wheel] = environment.parent.glob("*.whl")
    assert environment.stat().st_mode == wheel.stat().st_mode, "whoever reads one reads the other"
    monkeypatch.setenv("SPARK_HOME", str(distribution))
    with SparkCluster() as cluster:
        code = script(
            "A packed environment", task.settings(), url=cluster.url, environment=environment
        )
        found = expect_success(cluster.run_script(code, environment=conf, cwd=tmp_path))
        task.expect_every_row_once()
        assert found["driver"][1].startswith(f"{tmp_path}/environment/lib/")
        for _, module in found["tasks"]:
            assert module.startswith(f"{cluster.folder}/worker-")
            assert "/environment/lib/" in module


# -- hosts of their own ----------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("deploy_mode", ["client", "cluster"])
def test_a_job_runs_on_workers_that_are_hosts_of_their_own(
    spark: SparkSession,
    package: Path,
    python: Path,
    conf: dict[str, str],
    tmp_path: Path,
    deploy_mode: str,
) -> None:
    if lacking := missing():
        pytest.skip(f"hosts of their own need {lacking}")
    with Hosts(3, tmp_path / "redis") as hosts:
        near = Lab(spark, {"store.url": hosts.socket_url}, tmp_path)
        until((tmp_path / "redis" / "redis.sock").exists)
        source = near.topic()
        near.produce_each(source, *ROWS)
        task = Task(near, source, near.topic(2), {"store.url": hosts.redis_url})
        master, *workers = hosts.all
        with SparkCluster(master=master, workers=workers, environment=pythons(python)) as cluster:
            settings = task.settings(register=True)
            if deploy_mode == "client":
                code = script("A zip", settings, url=cluster.url, python=python, package=package)
                found = expect_success(cluster.run_script(code, environment=conf, cwd=tmp_path))
            else:
                driver = submit_to_cluster(cluster, package, settings, conf, tmp_path)
                until(lambda: cluster.driver_state(driver) == "FINISHED")
                found = reports((cluster.driver_folder(driver) / "stdout").read_text())
            for _, module in found["tasks"]:
                assert module.startswith(f"{cluster.folder}/worker-")
        task.expect_every_row_once()
        connection.close_all()


# -- as a new user does ----------------------------------------------------------------------------


def commands_of(page: Path) -> str:
    """Return all commands of a page as one script; a file that it names is written before them."""
    blocks = re.finditer(
        r"(?:^\*\*([\w.]+)\*\* [^\n]*\n\n)?^```(\w+)\n(.*?)^```",
        page.read_text(encoding="utf-8"),
        re.DOTALL | re.MULTILINE,
    )
    parts = []
    for name, language, text in (block.groups() for block in blocks):
        assert (language == "shell") == (name is None), f"what is this block for?\n{text}"
        parts.append(text if name is None else f"cat > {name} <<'END'\n{text}END\n")
    return "".join(parts)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_from_an_empty_machine_to_a_job_on_a_cluster(environment: Path, tmp_path: Path) -> None:
    """Run every command of the page in an empty home: the job comes as zip, then as archive."""
    [wheel] = environment.parent.glob("*.whl")
    dist.py_files(wheel)
    (tmp_path / "dist").symlink_to(environment.parent)
    page = ROOT / "docs" / "first-job.md"
    master, board, first, second = map(str, free_ports(4))
    code = (
        commands_of(page).replace(":7077", f":{master}").replace("--port 7077", f"--port {master}")
    )
    code = code.replace("master.Master", f"master.Master --webui-port {board}")
    code = code.replace("--work-dir work-1", f"--work-dir work-1 --webui-port {first}")
    code = code.replace("--work-dir work-2", f"--work-dir work-2 --webui-port {second}")
    of_pip = {name: text for name, text in os.environ.items() if name.startswith("PIP_")}
    base = str(Path(sys.base_prefix) / "bin")
    process = subprocess.Popen(
        ["bash", "-e", "-x", "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": f"{base}:/usr/bin:/bin", **of_pip},
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=700)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        server.stop_server(str(tmp_path / "store"))
    assert process.returncode == 0, output[-6000:]
    said = page.read_text(encoding="utf-8")
    for topic, is_of in (("delays", lambda late: late), ("on_time", lambda late: not late)):
        rows = sum(is_of(number % 60 > 15) for number in range(2 * ROWS_OF_THE_PAGE))
        line = f"{topic}: {rows} rows, {rows} flights"
        assert f"\n{line}\n" in output
        assert f"`{line}`" in said
    rows_in = re.compile(r"^batch \d+: (\d+) rows in", re.MULTILINE)
    killed = (tmp_path / "job.log").read_text()
    first_run, again = (
        part.partition("\nended\n")[0] for part in output.split("\nstarted as ")[-2:]
    )
    assert sum(map(int, rows_in.findall(first_run))) == ROWS_OF_THE_PAGE
    assert len(rows_in.findall(first_run)) > len(rows_in.findall(killed)) >= len("123")
    assert "ended" not in killed
    # What the killed driver had committed is not read again, and what it had not is.
    assert 0 < sum(map(int, rows_in.findall(again))) < ROWS_OF_THE_PAGE
