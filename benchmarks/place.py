"""One backend under measurement: its options, its topics, and how to leave it quiet."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import urllib3

import pulsar_txn_spark
from benchmarks.data import SEGMENTS
from pulsar_txn_spark.engine.components import Components, open_components
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.store.redis import connection

_BAD_REQUEST = 400
_QUIET_SECONDS = 60.0  # a rewrite of the append-only file takes some seconds for each GB
_numbers = itertools.count()


@dataclass(slots=True)
class Place:
    """Where one backend's topics live.

    Parameters
    ----------
    name : str
        ``embedded`` or ``pulsar``.
    options : dict of str to str
        As for ``format("pulsar_txn")``.
    """

    name: str
    options: dict[str, str]

    @property
    def components(self) -> Components:
        """The library's own components in this process."""
        return open_components(Options(self.options, Use.CONNECT))

    @property
    def service_url(self) -> str:
        """Pulsar's URL; empty for the embedded backend."""
        return self.options.get("service.url", "")

    @property
    def admin_url(self) -> str:
        """Pulsar's other URL; empty for the embedded backend."""
        return self.options.get("admin.url", "")

    def side(self, kind: str) -> str:
        """Name a side of a case."""
        return f"{self.name}/{kind}"

    def by(self, transport: str) -> Place:
        """Return the same place, reached by another transport."""
        return replace(self, options={**self.options, "transport": transport})

    def stored_at(self, url: str) -> Place:
        """Return the same place with a metadata store of its own."""
        options = {**self.options, "store.url": url}
        del options["store.path"]
        return replace(self, options=options)

    @contextmanager
    def topic(self, segments: int = SEGMENTS) -> Iterator[str]:
        """Give an empty topic and delete it afterwards: the embedded log lives in memory."""
        name = f"topic://public/default/bench-{next(_numbers)}"
        pulsar_txn_spark.Admin(self.options).create_topic(name, segments=segments)
        self.settle()
        try:
            yield name
        finally:
            pulsar_txn_spark.Admin(self.options).delete_topic(name)

    @contextmanager
    def native_topic(self, partitions: int = SEGMENTS) -> Iterator[str]:
        """Give an empty partitioned topic of Pulsar's own and delete it afterwards."""
        path = f"persistent/public/default/bench-native-{next(_numbers)}"
        url = f"{self.admin_url}/admin/v2/{path}/partitions"
        pool = urllib3.PoolManager()
        try:
            made = pool.request("PUT", url, json=partitions)
            assert made.status < _BAD_REQUEST, made.data
            yield path.replace("/", "://", 1)
        finally:
            pool.request("DELETE", f"{url}?force=true")
            pool.clear()

    def segments(self, topic: str) -> tuple[SegmentRef, ...]:
        """Return a topic's segments in the order of their hash ranges."""
        return tuple(s.ref for s in self.components.topics.require(TopicName.parse(topic)).active)

    def settle(self) -> None:
        """Wait until the store's server does not rewrite its append-only file."""
        client = connection.connect(Options(self.options, Use.CONNECT).store)
        deadline = time.monotonic() + _QUIET_SECONDS
        while time.monotonic() < deadline:
            facts = client.info("persistence")
            busy = facts["aof_rewrite_in_progress"] or facts["aof_rewrite_scheduled"]
            if not busy:
                return
            time.sleep(0.05)  # the server tells nobody when it is done
