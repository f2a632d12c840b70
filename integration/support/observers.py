"""Clients of every kind that observe a gated topic, and what they have to agree on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, Self

import pulsar as pulsar_client

from integration.support.gated import NOTHING_MS, QUIET
from integration.support.java_client import java_program
from pulsar_txn_spark.errors import PulsarTxnError
from pulsar_txn_spark.spark.datasource import PulsarTxnDataSource

FOLDER = Path(__file__).parents[1]
SHORTEST_LONG = 100  # bytes; the programs have the same number
PATIENCE_S = 60.0  # clients whose broker was away come back after growing pauses

Row = tuple[str, str]
"""Key and value; what clients give for no value is an empty one."""
ByKey = dict[str, list[str]]


def shown(key: str, value: bytes) -> Row:
    """Return a row as the programs show it: longer values by length and checksum."""
    if len(value) >= SHORTEST_LONG:
        return key, f"{len(value)}:{zlib.crc32(value)}"
    return key, value.decode()


def by_key(rows: Iterable[Row]) -> ByKey:
    """Return the values of each key, in order."""
    found: ByKey = {}
    for key, value in rows:
        found.setdefault(key, []).append(value)
    return found


def disagreement(kind: str, rows: Sequence[Row], expected: ByKey) -> str | None:
    """Say how an observer's rows differ from what it has to see, None if they do not.

    A TableView has the last value of each key. A compacted topic may lack those before the last. An
    empty value is a tombstone for both.
    """
    found = by_key(rows)
    if kind.endswith("TableView"):
        agrees = found == {key: values[-1:] for key, values in expected.items() if values[-1]}
    elif "compacted" in kind:
        agrees = found.keys() <= expected.keys() and all(
            _follows(found.get(key, []), values) for key, values in expected.items()
        )
    else:
        agrees = found == expected
    return None if agrees else f"{kind}: expected {expected}, found {found}"


def excess(kind: str, rows: Sequence[Row], most: ByKey) -> str | None:
    """Say what an observer has seen beyond these rows or in another order, None if nothing."""
    found = by_key(rows)
    if kind.endswith("TableView"):
        agrees = all(set(values) <= set(most.get(key, [])) for key, values in found.items())
    else:
        agrees = all(values == most.get(key, [])[: len(values)] for key, values in found.items())
    return None if agrees else f"{kind}: expected at most {most}, found {found}"


def _follows(found: list[str], values: list[str]) -> bool:
    """Whether these are some of the values, in order, with the last one."""
    rest = iter(values)
    in_order = all(value in rest for value in found)
    return in_order and (found[-1:] == values[-1:] or not (found or values[-1]))


class Observers(Protocol):
    """Clients of one language."""

    def open(self, topic: str) -> None:
        """Observe the topic of a segment from its beginning on, with a client of each kind."""
        ...

    def rows(self, topic: str) -> dict[str, list[Row]]:
        """Return what was seen so far, by kind; an error is a row of the key ERROR.

        It is an error if a message is delivered twice. Consumers of a Failover subscription count
        each for itself: what the active one has not acknowledged comes again to the next one.
        """
        ...

    def seal(self, topic: str) -> None:
        """Know that a topic is sealed, or is going to be: some clients lose their connection."""
        ...

    def interrupt(self, topic: str) -> None:
        """Know that clients may lose their connections, and get messages again."""
        ...

    def close(self, topic: str) -> None:
        """Observe it no longer."""
        ...


class ObservingProgram:
    """Observers in a process that takes their commands line by line; it ends with this object."""

    def __init__(self, command: Sequence[str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the program
        self._program = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # closed when this process dies, which ends the program
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            encoding="utf-8",
        )

    def _ask(self, command: str, topic: str) -> Iterator[list[str]]:
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        with suppress(BrokenPipeError):
            self._program.stdin.write(f"{command}\t{topic}\n")
            self._program.stdin.flush()
        for line in self._program.stdout:
            if line == "> .\n":
                return
            if line.startswith("> "):
                yield line[2:].rstrip("\n").split("\t")
        self._errors.seek(0)
        raise AssertionError(f"the program ended at {command!r}: {self._errors.read().decode()}")

    def open(self, topic: str) -> None:
        list(self._ask("open", topic))

    def seal(self, topic: str) -> None:
        list(self._ask("seal", topic))

    def interrupt(self, topic: str) -> None:
        list(self._ask("interrupt", topic))

    def rows(self, topic: str) -> dict[str, list[Row]]:
        found = {}
        for kind, *rows in self._ask("rows", topic):
            pairs = (row.split("=", 1) for row in rows if row)
            found[kind] = [(key, value) for key, value in pairs]
        return found

    def close(self, topic: str) -> None:
        list(self._ask("close", topic))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(BrokenPipeError):
            self._program.communicate(timeout=30)
        self._errors.close()


def java_observers(service_url: str) -> ObservingProgram:
    """Return observers with Pulsar's own client."""
    return ObservingProgram(java_program("Observe", service_url))


def go_observers(service_url: str) -> ObservingProgram | None:
    """Return observers with Pulsar's client for Go, None if there is no Go here."""
    go = shutil.which("go")
    if go is None:
        return None
    program = Path(sys.prefix) / "go" / "observe"
    # What was built before is in Go's own cache; the modules come through its proxy.
    command = [go, "build", "-buildvcs=false", "-o", str(program), "."]
    done = subprocess.run(
        command,
        cwd=FOLDER / "go",
        env=os.environ | {"CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return ObservingProgram([str(program), service_url])


class PythonObservers:
    """Observers with pulsar-client.

    It takes the notice that a sealed topic was read to its end for a broken connection, and
    connects again and again. A broker sends it to those who have acknowledged everything. So a
    consumer that acknowledges nothing observes what is sealed.
    """

    def __init__(self, service_url: str) -> None:
        self._service_url = service_url
        self._client = pulsar_client.Client(service_url, logger=QUIET)
        self._consumers: dict[str, dict[str, list[pulsar_client.Consumer]]] = {}
        self._readers: dict[str, pulsar_client.Reader] = {}
        self._seen: dict[tuple[str, str], dict[str, Row]] = {}
        self._deliveries: dict[str, set[tuple[str, int, str]]] = {}
        self._sealed: set[str] = set()
        self._own: dict[str, pulsar_client.Client] = {}  # one that stays empty ends its connection
        self._interrupted: set[str] = set()

    def open(self, topic: str) -> None:
        self._deliveries[topic] = set()
        self._interrupted.discard(topic)
        exclusive = (pulsar_client.ConsumerType.Exclusive, 1)
        if topic in self._sealed:
            self._own[topic] = pulsar_client.Client(self._service_url, logger=QUIET)
            self._consumers[topic] = _subscribed(self._own[topic], topic, exclusive)
            return
        self._consumers[topic] = _subscribed(
            self._client,
            topic,
            exclusive,
            (pulsar_client.ConsumerType.Shared, 1),
            (pulsar_client.ConsumerType.Failover, 2),
            (pulsar_client.ConsumerType.KeyShared, 2),
        )
        self._readers[topic] = self._client.create_reader(topic, pulsar_client.MessageId.earliest)

    def rows(self, topic: str) -> dict[str, list[Row]]:
        found = {}
        for kind, consumers in self._consumers[topic].items():
            for number, consumer in enumerate(consumers):
                for message in _received(consumer):
                    self._note(topic, kind, message, number if "Failover" in kind else 0)
                    if topic not in self._sealed:
                        consumer.acknowledge(message)
            found[kind] = self._rows(topic, kind)
        if topic in self._sealed:
            return found
        reader = self._readers[topic]
        while _announces(reader):
            # What is announced has to come.
            message = reader.read_next(int(PATIENCE_S * 1000))
            self._note(topic, "Python Reader", message)
        found["Python Reader"] = self._rows(topic, "Python Reader")
        return found

    def _note(
        self, topic: str, kind: str, message: pulsar_client.Message, consumer: int = 0
    ) -> None:
        id_ = str(message.message_id())
        seen = self._seen.setdefault((topic, kind), {})
        seen.setdefault(id_, shown(message.partition_key(), message.data()))
        delivery = (kind, consumer, id_)
        if delivery in self._deliveries[topic] and topic not in self._interrupted:
            seen[f"{id_} again"] = ("ERROR", f"delivered twice: {id_}")
        self._deliveries[topic].add(delivery)

    def _rows(self, topic: str, kind: str) -> list[Row]:
        return list(self._seen.get((topic, kind), {}).values())

    def seal(self, topic: str) -> None:
        observed = topic in self._consumers
        if observed:
            self.close(topic)
        self._sealed.add(topic)
        if observed:
            self.open(topic)

    def interrupt(self, topic: str) -> None:
        self._interrupted.add(topic)

    def close(self, topic: str) -> None:
        consumers = self._consumers.pop(topic)
        if topic in self._own:
            self._own.pop(topic).shutdown()  # its connection may be lost at the moment
        else:
            for consumer in chain.from_iterable(consumers.values()):
                consumer.close()
            self._readers.pop(topic).close()
        self._seen = {where: rows for where, rows in self._seen.items() if where[0] != topic}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()


def _subscribed(
    client: pulsar_client.Client, topic: str, *types: tuple[pulsar_client.ConsumerType, int]
) -> dict[str, list[pulsar_client.Consumer]]:
    """Subscribe once with each type, with so many consumers; return them by kind of observer."""
    unique = uuid.uuid4().hex
    return {
        f"Python {type_.name}": [
            client.subscribe(
                topic,
                f"python-{type_.name}-{unique}",
                type_,
                initial_position=pulsar_client.InitialPosition.Earliest,
            )
            for _ in range(count)
        ]
        for type_, count in types
    }


def _received(consumer: pulsar_client.Consumer) -> Iterator[pulsar_client.Message]:
    while True:
        try:
            yield consumer.receive(1)
        except pulsar_client.Timeout:
            return


def _announces(reader: pulsar_client.Reader) -> bool:
    try:
        return bool(reader.has_message_available())
    except pulsar_client.PulsarException:
        return False  # the broker is away


class SourceObserver:
    """The data source of this package, as Spark's driver and its tasks use it."""

    def __init__(
        self,
        options: Mapping[str, str],
        topic: str,
        transports: Sequence[str] = ("wire", "client"),
    ) -> None:
        self._options = {**options, "topic": topic}
        self._transports = transports

    def rows(self) -> dict[str, list[Row]]:
        """Return what is visible now, by transport."""
        return {
            f"source, transport={transport}": self._read(transport)
            for transport in self._transports
        }

    def _read(self, transport: str) -> list[Row]:
        source = PulsarTxnDataSource({**self._options, "transport": transport})
        reader = source.reader(source.schema())
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        rows = [row for batch in batches for row in batch.to_pylist()]  # type: ignore[union-attr]
        return [shown(row["__key"].decode(), row["value"] or b"") for row in rows]


class AllObservers:
    """All observers of a broker; they observe topics of segments."""

    def __init__(self, languages: Sequence[Observers]) -> None:
        self._languages = languages

    @contextmanager
    def of(self, segment: str) -> Iterator[None]:
        """Observe a segment's topic."""
        with ExitStack() as stack:
            for language in self._languages:
                language.open(segment)
                stack.callback(partial(language.close, segment))
            yield

    def seal(self, segment: str) -> None:
        """Let all know that a segment's topic is sealed, or is going to be."""
        for language in self._languages:
            language.seal(segment)

    def interrupt(self, segment: str) -> None:
        """Let all know that clients may lose their connections."""
        for language in self._languages:
            language.interrupt(segment)

    def disagreements(self, expected: Mapping[str, ByKey], most: Mapping[str, ByKey]) -> list[str]:
        """Say who does not see what is expected, or sees more than the most, by segment's topic."""
        found = []
        for compare, segments in ((disagreement, expected), (excess, most)):
            for segment, rows in segments.items():
                for language in self._languages:
                    for kind, seen in language.rows(segment).items():
                        found.append(compare(kind, seen, rows))
        return [one for one in found if one is not None]


def source_disagreements(source: SourceObserver, expected: Mapping[str, ByKey]) -> list[str]:
    """Say which transport of the source does not see what is expected."""
    whole = by_key((k, v) for rows in expected.values() for k in rows for v in rows[k])
    try:
        found = source.rows()
    except PulsarTxnError as error:
        return [f"source: {error}"]  # a server is away
    if len(expected) > 1:  # a batch read promises no order across segments
        whole = {key: sorted(values) for key, values in whole.items()}
        found = {kind: sorted(rows) for kind, rows in found.items()}
    told = [disagreement(kind, rows, whole) for kind, rows in found.items()]
    return [one for one in told if one is not None]


def agree(
    observers: AllObservers,
    source: SourceObserver | None,
    expected: Mapping[str, ByKey],
    most: Mapping[str, ByKey] = MappingProxyType({}),
) -> None:
    """Wait until every observer sees what is expected, and see that nothing more comes.

    Of some segments observers may see less than the most.
    """
    deadline = time.monotonic() + PATIENCE_S

    def missing() -> list[str]:
        found = observers.disagreements(expected, most)
        return found or (source_disagreements(source, expected) if source else [])

    while differing := missing():
        assert time.monotonic() < deadline, "\n".join(differing)
        time.sleep(0.02)
    time.sleep(NOTHING_MS / 1000)
    differing = missing()
    assert not differing, "\n".join(differing)
