"""A standalone Spark cluster in processes of its own: a master and its workers.

It is what ``sbin/start-all.sh`` starts, but on the loopback interface, with free ports. It ends
with the process that asked for it, also when that process is killed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pulsar_txn_spark.backports import Self
from pulsar_txn_spark.errors import PulsarTxnError
from pulsar_txn_spark.testing.pulsar_server import free_ports
from pulsar_txn_spark.watchdog import Ending, OwnedServer

_STARTUP_SECONDS = 120.0  # about 5 s on two idle cores; the rest is for a busy machine
_REQUEST_SECONDS = 5.0
_POLL_SECONDS = 0.1
_PORT_ATTEMPTS = 3  # somebody may take a free port between our look and the master's bind
_LOG_TAIL_LINES = 30
_DAEMON_MEMORY = "256m"
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_NOT_INHERITED = ("SPARK_ENV_LOADED", "SPARK_CONF_DIR", "PYTHONPATH")


class SparkClusterError(PulsarTxnError):
    """The cluster could not be started, or one of its processes ended."""


@dataclass(frozen=True, slots=True)
class Host:
    """Where a process of the cluster runs.

    Parameters
    ----------
    address : str
        The address that it binds, and by which the others reach it.
    prefix : tuple of str
        Goes before its command, such as ``("ip", "netns", "exec", "host-1")``.
    """

    address: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()


def spark_home() -> Path:
    """Return Spark's folder: that of ``SPARK_HOME``, else that of the installed PySpark.

    Raises
    ------
    SparkClusterError
        If there is none.
    """
    if home := os.environ.get("SPARK_HOME"):
        return Path(home)
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SparkClusterError(
            "cannot find Spark: SPARK_HOME is not set and PySpark is not installed; "
            "run: pip install pyspark"
        )
    return Path(spec.origin).parent


class SparkCluster:
    """A master and workers; a context manager.

    Parameters
    ----------
    workers : sequence of Host
        One for each worker; by default two on the loopback interface.
    master : Host
        Where the master runs.
    cores : int
        Cores of each worker.
    memory_mb : int
        Memory that each worker offers to executors and drivers, in MiB.
    environment : Mapping[str, str], optional
        Variables of the cluster's processes, and so of the executors and of the drivers that run in
        the cluster, over those of this process.

    Attributes
    ----------
    url : str
        ``spark://host:port``, for ``--master``.
    folder : Path
        Logs, and the folders in which executors and drivers work. It goes with the cluster.
    """

    def __init__(
        self,
        *,
        workers: Sequence[Host] = (Host(), Host()),
        master: Host = Host(),
        cores: int = 1,
        memory_mb: int = 2048,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._master, self._hosts = master, list(workers)
        self._cores, self._memory_mb = cores, memory_mb
        self._variables = dict(environment or {})
        self._ports = (0, 0)
        self._servers: dict[str, OwnedServer] = {}
        self._folder: Path | None = None

    @property
    def url(self) -> str:
        """Return the master's URL."""
        return f"spark://{self._master.address}:{self._ports[0]}"

    @property
    def folder(self) -> Path:
        """Return the folder of the cluster."""
        if self._folder is None:
            raise SparkClusterError("the cluster was not started or is stopped: it has no folder")
        return self._folder

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the master and the workers, and wait until all of them are registered.

        Raises
        ------
        SparkClusterError
            If one ends, or they do not answer in time; with the end of the logs.
        """
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            self._folder = Path(tempfile.mkdtemp(prefix="pulsar-txn-spark-cluster-"))
            first, second = free_ports(2)
            self._ports = (first, second)
            try:
                self._start_master()
                for number in range(len(self._hosts)):
                    self.start_worker(number)
                self.wait_for_workers(len(self._hosts))
            except BaseException as failure:
                taken = isinstance(failure, SparkClusterError) and "BindException" in str(failure)
                self.stop()
                if taken and attempt < _PORT_ATTEMPTS:
                    continue
                raise
            return

    def stop(self) -> None:
        """Stop all processes, executors and drivers too, and remove the folder. Idempotent."""
        # Workers that are asked to end take their executors and drivers with them.
        for name in sorted(self._servers, reverse=True):
            self._servers.pop(name).end(Ending.PAUSE)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def start_worker(self, number: int) -> None:
        """Start a worker that does not run. :meth:`wait_for_workers` waits for it."""
        host = self._hosts[number]
        options = ["--host", host.address, "--port", "0", "--webui-port", "0"]
        options += ["--cores", str(self._cores), "--memory", f"{self._memory_mb}m"]
        options += ["--work-dir", str(self.folder / f"worker-{number}" / "work"), self.url]
        self._launch(f"worker-{number}", host, "worker.Worker", options)

    def kill_worker(self, number: int) -> None:
        """Kill a worker with SIGKILL; its executors and drivers end when they notice it."""
        self._servers.pop(f"worker-{number}").end(Ending.CRASH)

    def wait_for_workers(self, count: int) -> None:
        """Wait until exactly so many workers are registered with the master.

        Raises
        ------
        SparkClusterError
            If a process of the cluster ends meanwhile, or it takes too long.
        """
        deadline = time.monotonic() + _STARTUP_SECONDS
        while not self._has_workers(count):
            for name, server in self._servers.items():
                if server.exit_code() is not None:
                    raise SparkClusterError(
                        f"{name} of the Spark cluster ended with exit code {server.exit_code()}, "
                        f"expected it to run; the end of its log:\n{self._log_tail(name)}"
                    )
            if time.monotonic() > deadline:
                logs = "\n".join(map(self._log_tail, self._servers))
                raise SparkClusterError(
                    f"expected {count} registered workers within {_STARTUP_SECONDS:.0f} s, found "
                    f"{self.state() or 'no answer of the master'}; the ends of the logs:\n{logs}"
                )
            time.sleep(_POLL_SECONDS)

    def state(self) -> dict[str, Any]:
        """Return what the master's page ``/json`` says; empty if it does not answer."""
        if self._master.prefix:  # the address need not be reachable from here
            code = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).read().decode())"
            command = [*self._master.prefix, sys.executable, "-I", "-c", code, self._json_url]
            with contextlib.suppress(subprocess.SubprocessError, ValueError):
                shown = subprocess.run(  # noqa: S603 - our own interpreter
                    command, capture_output=True, check=True, timeout=_REQUEST_SECONDS * 2
                )
                return dict(json.loads(shown.stdout))
            return {}
        with (
            contextlib.suppress(OSError, ValueError),
            urllib.request.urlopen(self._json_url, timeout=_REQUEST_SECONDS) as answer,  # noqa: S310
        ):
            return dict(json.load(answer))
        return {}

    def drivers(self) -> list[dict[str, Any]]:
        """Return what the master says of the drivers that were submitted to the cluster."""
        state = self.state()
        return [*state.get("activedrivers", ()), *state.get("completeddrivers", ())]

    def driver_state(self, driver: str) -> str:
        """Return the state of a driver that was submitted to the cluster, such as ``RUNNING``.

        Raises
        ------
        SparkClusterError
            If the master does not know it.
        """
        for known in self.drivers():
            if known["id"] == driver:
                return str(known["state"])
        raise SparkClusterError(f"the master at {self.url} does not know the driver {driver!r}")

    def driver_folder(self, driver: str) -> Path:
        """Return the folder in which a driver works, with its ``stdout`` and ``stderr``.

        Raises
        ------
        SparkClusterError
            If no worker has it.
        """
        folder = next(self.folder.glob(f"worker-*/work/{driver}"), None)
        if folder is None:
            raise SparkClusterError(f"no worker has a folder of the driver {driver!r}")
        return folder

    def submit(
        self,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.Popen[str]:
        """Start ``spark-submit --master URL ARGUMENTS``; its outputs are one pipe.

        Parameters
        ----------
        *arguments : str
            Options of spark-submit, the job, and the job's arguments.
        environment : Mapping[str, str], optional
            Variables over those of this process and of the cluster.
        cwd : Path, optional
            The current folder of a driver that runs in client mode.
        """
        return self._run(["spark-submit", "--master", self.url, *arguments], environment, cwd)

    def run_script(
        self,
        script: str,
        *,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.Popen[str]:
        """Start a script of bash on the master's host, with Spark's programs on its ``PATH``.

        It ends at its first error. The parameters are those of :meth:`submit`.
        """
        return self._run(["bash", "-e", "-c", script], environment, cwd)

    def _run(
        self, command: Sequence[str], environment: Mapping[str, str] | None, cwd: Path | None
    ) -> subprocess.Popen[str]:
        variables = self._environment(self._master) | dict(environment or {})
        path = os.pathsep.join([f"{variables['SPARK_HOME']}/bin", variables.get("PATH", "")])
        return subprocess.Popen(  # noqa: S603 - the caller's own command
            [*self._master.prefix, "env", f"PATH={path}", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=cwd,
            env=variables,
        )

    @property
    def _json_url(self) -> str:
        return f"http://{self._master.address}:{self._ports[1]}/json/"

    def _has_workers(self, count: int) -> bool:
        state = self.state()
        alive = [worker for worker in state.get("workers", ()) if worker["state"] == "ALIVE"]
        return state.get("status") == "ALIVE" and len(alive) == count

    def _start_master(self) -> None:
        port, page = map(str, self._ports)
        options = ["--host", self._master.address, "--port", port, "--webui-port", page]
        self._launch("master", self._master, "master.Master", options)

    def _environment(self, host: Host) -> dict[str, str]:
        settings = "-Dspark.port.maxRetries=0 -Dspark.master.rest.enabled=false"
        return {
            **{key: text for key, text in os.environ.items() if key not in _NOT_INHERITED},
            "SPARK_HOME": str(spark_home()),
            "SPARK_LOCAL_IP": host.address,
            "SPARK_PUBLIC_DNS": host.address,
            "SPARK_DAEMON_MEMORY": _DAEMON_MEMORY,
            "SPARK_DAEMON_JAVA_OPTS": _SHORT_LIVED,
            "SPARK_MASTER_OPTS": settings,
            "SPARK_LOCAL_DIRS": str(self.folder / "scratch"),
            "SPARK_LOG_DIR": str(self.folder),
            **self._variables,
        }

    def _launch(self, name: str, host: Host, main_class: str, options: Sequence[str]) -> None:
        if name in self._servers:
            raise SparkClusterError(f"{name} of the Spark cluster runs already")
        program = str(spark_home() / "bin" / "spark-class")
        self._servers[name] = OwnedServer(
            [*host.prefix, program, f"org.apache.spark.deploy.{main_class}", *options],
            self.folder,
            self._log(name),
            self._environment(host),
        )

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _log_tail(self, name: str) -> str:
        lines = self._log(name).read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-_LOG_TAIL_LINES:])
