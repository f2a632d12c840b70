"""The JVM connector streamnative/pulsar-spark, measured beside ours where it is there.

The environment variable ``PEER_JAR`` names its jar, and ``PEER_PYTHON`` the interpreter of an
environment with the PySpark that it was built for (`make bench` makes one). It is no part of the
project: nothing of it is imported, and without the variables its sides are left out.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import urllib3

from benchmarks.data import PROCESSES, SEGMENTS
from benchmarks.measure import SideError
from benchmarks.own_spark import OwnSpark

JAR_VARIABLE, PYTHON_VARIABLE = "PEER_JAR", "PEER_PYTHON"
SIDE = "jvm-connector"
_MEMORY = "8g"
"""Spark's 1 GB is full after some ten runs of the connector's source, which frees little of it."""
_numbers = itertools.count()


class PeerError(SideError):
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
        self._service_url, self._admin_url = service_url, admin_url
        self._folder, self._input_folder = folder, input_folder
        self._pool = urllib3.PoolManager()
        self._spark = self.spark(memory=_MEMORY)

    def spark(self, **settings: object) -> OwnSpark:
        """Return another Spark with the connector, as new; `settings` are more for its job."""
        python = os.environ[PYTHON_VARIABLE]
        kept = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "SPARK_HOME"}}
        return OwnSpark(
            python,
            {
                "jar": str(Path(os.environ[JAR_VARIABLE]).resolve()),
                "service": self._service_url,
                "admin": self._admin_url,
                "folder": str(self._folder),
                "input": str(self._input_folder),
                "cores": PROCESSES,
                **settings,
            },
            {**kept, "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python},
            PeerError,
        )

    def options(self, topic: str) -> dict[str, str]:
        """Return the connector's options for a topic."""
        return {"service.url": self._service_url, "admin.url": self._admin_url, "topic": topic}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._spark.close()
        self._pool.clear()

    def ask(self, do: str, **parameters: object) -> dict[str, Any]:
        """Let it do something and return its answer.

        Raises
        ------
        PeerError
            If it fails.
        """
        return self._spark.ask(do, **parameters)

    def restart(self) -> None:
        """End its process, so that the next thing is asked of a new one; topics stay."""
        self._spark.close()

    @contextmanager
    def topic(self, partitions: int = SEGMENTS) -> Iterator[str]:
        """Give a partitioned topic, with as many partitions as ours has segments."""
        name = f"persistent://public/default/peer-{next(_numbers)}"
        self._admin("PUT", name, str(partitions))
        try:
            yield name
        finally:
            try:
                self._admin("DELETE", name, "", force="true")
            except PeerError as error:
                print(error)  # it only takes room: what was measured stands

    def _admin(self, method: str, topic: str, body: str, **query: str) -> None:
        try:
            answer = self._pool.request(
                method,
                f"{self._admin_url}/admin/v2/{topic.replace('://', '/')}/partitions",
                body=body or None,
                fields=None if body else query,
                headers={"Content-Type": "application/json"} if body else None,
            )
        except urllib3.exceptions.HTTPError as error:
            raise PeerError(f"{method} {topic} failed: {error}") from error
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
    with Peer(service_url, admin_url, folder, input_folder) as connector:
        yield connector
