"""The JVM connector streamnative/pulsar-spark, measured beside ours where it is there.

The environment variable ``PEER_JAR`` names its jar, and ``PEER_PYTHON`` the interpreter of an
environment with the PySpark that it was built for (`make bench` makes one). It is no part of the
project: nothing of it is imported, and without the variables its sides are left out.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import urllib3

from benchmarks.data import PROCESSES, SEGMENTS

JAR_VARIABLE, PYTHON_VARIABLE = "PEER_JAR", "PEER_PYTHON"
SIDE = "jvm-connector"
_ANSWER = "answer "
_END_SECONDS = 20.0
_numbers = itertools.count()


class PeerError(RuntimeError):
    """The connector failed, or its process has ended."""


class Peer:
    """A Spark of its own with the connector; a context manager.

    Parameters
    ----------
    service_url, admin_url : str
        Of the broker.
    folder, input_folder : Path
        For its checkpoints; the rows that every benchmark writes.
    """

    def __init__(self, service_url: str, admin_url: str, folder: Path, input_folder: Path) -> None:
        self._admin_url = admin_url
        self._pool = urllib3.PoolManager()
        settings = {
            "jar": str(Path(os.environ[JAR_VARIABLE]).resolve()),
            "service": service_url,
            "admin": admin_url,
            "folder": str(folder),
            "input": str(input_folder),
            "cores": PROCESSES,
        }
        python = os.environ[PYTHON_VARIABLE]
        own = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
        inherited = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "SPARK_HOME"}}
        self._process = subprocess.Popen(
            [python, str(Path(__file__).with_name("peer_job.py")), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**inherited, **own},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()  # the end of its input is its end
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._pool.clear()

    def ask(self, do: str, **parameters: object) -> dict[str, Any]:
        """Let it do something and return its answer.

        Raises
        ------
        PeerError
            If it fails.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"do": do, **parameters}) + "\n")
            self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith(_ANSWER):
                answer: dict[str, Any] = json.loads(line.removeprefix(_ANSWER))
                if "error" in answer:
                    raise PeerError(f"the JVM connector failed: {answer['error']}")
                return answer
        raise PeerError("the JVM connector's process has ended")

    @contextmanager
    def topic(self, partitions: int = SEGMENTS) -> Iterator[str]:
        """Give a partitioned topic, with as many partitions as ours has segments."""
        name = f"persistent://public/default/peer-{next(_numbers)}"
        self._admin("PUT", name, str(partitions))
        try:
            yield name
        finally:
            self._admin("DELETE", name, "", force="true")

    def _admin(self, method: str, topic: str, body: str, **query: str) -> None:
        answer = self._pool.request(
            method,
            f"{self._admin_url}/admin/v2/{topic.replace('://', '/')}/partitions",
            body=body or None,
            fields=None if body else query,
            headers={"Content-Type": "application/json"} if body else None,
        )
        if answer.status >= 300:  # noqa: PLR2004 - HTTP's own
            raise PeerError(f"{method} {topic} failed: {answer.status} {answer.data!r}")


@contextmanager
def peer(
    service_url: str, admin_url: str, folder: Path, input_folder: Path
) -> Iterator[Peer | None]:
    """Give the connector, None where the environment does not name it or there is no Pulsar."""
    if not service_url or not {JAR_VARIABLE, PYTHON_VARIABLE} <= os.environ.keys():
        yield None
        return
    with Peer(service_url, admin_url, folder, input_folder) as found:
        yield found
