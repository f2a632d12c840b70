"""A gated topic that clients of every kind observe: what scenarios do with it."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import pulsar as pulsar_client
import pyarrow as pa

from integration.support.admin_rest import AdminRest, path_of
from integration.support.gated import QUIET, Gated
from integration.support.observers import AllObservers, ByKey, SourceObserver, agree
from pulsar_txn_spark import Admin, client
from pulsar_txn_spark.client import Transaction
from pulsar_txn_spark.client.message import Row, as_batch
from pulsar_txn_spark.engine.topic_writers import TopicWriters, winners_of
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import Router, Topology
from pulsar_txn_spark.store.metadata_pb2 import Outcome
from pulsar_txn_spark.txn.transaction_buffer import writer_name

KEYS = ("a", "b", "c")


class ObservedTopic:
    """A gated topic of one segment at first, and all observers of its segments."""

    def __init__(
        self, gated: Gated, observers: AllObservers, cleanup: contextlib.ExitStack
    ) -> None:
        self.gated = gated
        self.topic, self.segment = gated.topic()
        self.admin = Admin(gated.options)
        self.rest = AdminRest(gated.server.admin_url)
        self.components = gated.components()
        self.service = cleanup.enter_context(client.connect(gated.options))
        self.cleanup = cleanup
        self._observers = observers
        self.source = SourceObserver(gated.options, self.topic)
        self._watched: dict[str, contextlib.ExitStack] = {}
        self._expected: dict[str, ByKey] = {}
        self.watch(self.segment)

    def watch(self, segment: str) -> None:
        """Observe a segment's topic with new clients, which see it from its beginning on."""
        if segment in self._watched:
            self._watched.pop(segment).close()
        stack = self.cleanup.enter_context(contextlib.ExitStack())
        stack.enter_context(self._observers.of(segment))
        self._watched[segment] = stack
        self._expected.setdefault(segment, {})

    def seal(self, *segments: str) -> None:
        """Let observers know that segments are going to be sealed, which loads them anew."""
        for segment in segments:
            self._observers.seal(segment)
            if segment in self._watched:
                self._observers.interrupt(segment)

    def interrupt(self) -> None:
        """Let observers know that clients are going to lose their connections."""
        for segment in self._watched:
            self._observers.interrupt(segment)

    def begin(self) -> Transaction:
        return self.service.new_txn()

    def send(self, txn: Transaction | None, *values: str, keys: Sequence[str] = KEYS) -> None:
        """Send each value under each key, and wait until it lies in the log."""
        producer = self.service.producer(self.topic)
        for value in values:
            for key in keys:
                producer.send(value or None, key=key, txn=txn)
        producer.flush()

    def commit(self, *values: str, keys: Sequence[str] = KEYS) -> None:
        with self.begin() as txn:
            self.send(txn, *values, keys=keys)

    def abort(self, *values: str) -> None:
        txn = self.begin()
        self.send(txn, *values)
        txn.abort()

    def other_attempt(self, txn: Transaction) -> TopicWriters:
        """Return writers of the same transaction that its commit will not name."""
        buffer, random = self.components.buffer, secrets.token_hex(6)

        def name(generation: int) -> str:
            return writer_name(txn.id, 1, f"{random}r{generation}")

        def admit(generation: int, segments: Sequence[str]) -> None:
            buffer.admit(txn.id, txn._nonce, txn.timeout_ms, name(generation), segments)

        writers = TopicWriters(self.components, name, admit, 0)
        self.cleanup.callback(writers.close)
        return writers

    def write(self, writers: TopicWriters, value: str, keys: Sequence[str] = KEYS) -> None:
        rows = [Row.of(value, key, None, None) for key in keys]
        writers.append(TopicName.parse(self.topic), as_batch(rows))
        writers.finish()

    def decide(self, txn: Transaction) -> None:
        """Commit as the driver of a job does, which needs no broker."""
        outcome = Outcome(winners=winners_of(txn._written))
        self.components.coordinator.commit(txn.id, txn._nonce, outcome, intents=txn._intents)

    def plain_producer(self, **how: object) -> pulsar_client.Producer:
        """Return a producer that knows nothing of this package."""
        plain = pulsar_client.Client(self.gated.server.service_url, logger=QUIET)
        self.cleanup.callback(plain.close)
        return plain.create_producer(self.segment, **how)

    def sees(self, *values: str, source: bool = True, **others: list[str]) -> None:
        """Check that each observer sees these values under each key, and the others' as given."""
        expected = {key: list(values) for key in KEYS if values}
        self.see({self.segment: {**expected, **others}}, source=source)

    def see(
        self,
        expected: dict[str, ByKey],
        *,
        most: Mapping[str, ByKey] = MappingProxyType({}),
        source: bool = True,
    ) -> None:
        """Check that each observer sees these rows of segments, and of others these at most."""
        self._expected |= expected
        for segment in most:
            self._expected.pop(segment, None)
        try:
            agree(self._observers, self.source if source else None, self._expected, most)
        except AssertionError as error:
            for segment in self._watched:
                error.add_note(f"{segment}: {self.gated.buffer_of(segment)}")
                error.add_note(json.dumps(self.rest("GET", f"{path_of(segment)}/internalStats")))
            raise

    def disagreements(self) -> list[str]:
        """Say who does not see what was expected last."""
        return self._observers.disagreements(self._expected, {})

    def unload(self) -> None:
        self.interrupt()
        self.gated.admin.unload(self.segment)


def routed(topology: Topology, keys: Sequence[str] = KEYS) -> dict[str, list[str]]:
    """Return which keys go to which segment's topic."""
    router = Router(topology)
    found: dict[str, list[str]] = {one.ref.log_name: [] for one in router.segments}
    for key, index in zip(keys, router.route(pa.array(keys), len(keys)), strict=True):
        found[router.segments[index].ref.log_name].append(key)
    return found
