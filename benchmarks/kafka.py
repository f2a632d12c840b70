"""What consume-transform-produce costs beside exactly-once on Kafka: rows/s, and processor time.

One run, one machine: Kafka (a broker in KRaft mode) with its bare clients, Kafka Streams, Flink,
and Spark's own source and sink. Beside it is this package on Pulsar. All get the same rows, in as
many partitions or segments, and turn each value. Processor time is that of all processes of a side,
by kind, from before a job starts until it has ended. A job of a few rows tells how much of that
goes into the start and the end. Programs keep running from job to job, so that their JVMs are warm.

Spark's own sink for Kafka knows no transactions: it is at least once.
"""

from __future__ import annotations

import base64
import itertools
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import cpu
from benchmarks.artifacts import class_path
from benchmarks.data import PROCESSES, SEGMENTS, load, write_input
from benchmarks.embedded import redis_on_port
from benchmarks.measure import Result, Series, SideError, compare
from benchmarks.own_process import OwnProcess
from benchmarks.own_spark import OwnSpark
from benchmarks.place import Place
from benchmarks.throughput import PLAIN, ROWS_PER_SECOND, TRANSACTIONAL, Drop, Report
from pulsar_txn_spark.environment import FORMAT
from pulsar_txn_spark.testing.pulsar_server import PulsarServer, find_java, free_ports
from pulsar_txn_spark.watchdog import Ending, OwnedServer

CASE = "kafka_consume_transform_produce"
CLIENTS, STREAMS, FLINK = "kafka clients", "kafka-streams", "flink"
SPARK = "spark's kafka, at least once"
OURS, OURS_PLAIN = f"pulsar/{TRANSACTIONAL}", f"pulsar/{PLAIN}"
CPU_SECONDS, CPU_PER_MILLION = "CPU s", "CPU s/million rows"
_KAFKA = ["org.apache.kafka:kafka_2.13:4.1.1"]
_STREAMS = ["org.apache.kafka:kafka-streams:4.1.1"]
_FLINK = [
    "org.apache.flink:flink-connector-kafka:4.0.1-2.0",
    *(f"org.apache.flink:flink-{name}:2.0.1" for name in ("streaming-java", "clients")),
    "org.apache.flink:flink-connector-base:2.0.1",
]
_OPENED = [
    "java.io",
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.net",
    "java.nio",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "sun.nio.ch",
    "sun.nio.cs",
    "sun.security.action",
    "sun.util.calendar",
]
_OPENS = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
"""As Flink and Spark need."""
_SPARK_KAFKA = [
    # The newest on Maven Central; there is none for the project's PySpark.
    *(f"org.apache.spark:spark-{name}_2.13:4.1.1" for name in ("sql", "sql-kafka-0-10")),
]
_FEW_ROWS = SEGMENTS
_IDLE_S = 0.02  # of another side's process that waits
_START_SECONDS = 60.0
_NOT_KAFKAS = (cpu.PULSAR, cpu.REDIS)
_NOT_OURS = (cpu.KAFKA, cpu.CLIENT)
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/data
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""
_NO_SUCH_FILE = "-Dlog4j2.level=WARN"
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Run:
    """A job's seconds from its start to its end, and the processor time by kind of process."""

    seconds: float
    used_s: Mapping[str, float]

    @property
    def all_s(self) -> float:
        """The processor time of all kinds together."""
        return sum(self.used_s.values())


_Pass = Callable[[int], Run]
"""Lets a side pass all rows, or a few, from a new topic to another."""


def kafka(
    folder: Path, rows: int, repetitions: int, report: Report, drop: Drop
) -> Iterator[list[Result]]:
    """Measure rows/s and processor time of each side, in turn.

    Raises
    ------
    SideError
        If there is no Kafka here.
    """
    inputs = {rows: folder / "kafka-input", _FEW_ROWS: folder / "kafka-few"}
    for count, path in inputs.items():
        write_input(path, count)
    files = {count: packed(path) for count, path in inputs.items()}
    with ExitStack() as stack:
        servers = stack.enter_context(_broker(folder))
        sides = _kafka_sides(stack, folder, servers, files)
        pulsar = stack.enter_context(PulsarServer())
        urls = {"service.url": pulsar.service_url, "admin.url": pulsar.admin_url}
        place = Place("pulsar", {**urls, "store.url": stack.enter_context(redis_on_port(folder))})
        try:
            sides |= _our_sides(stack, folder, place, inputs)
        except SideError as error:  # the others are compared all the same
            drop(CASE, OURS, error)
        yield from compared(sides, rows, repetitions, report, drop)


def compared(
    sides: dict[str, _Pass], rows: int, repetitions: int, report: Report, drop: Drop
) -> Iterator[list[Result]]:
    """Let each side pass all rows and a few, in turn, and compare rates and processor time."""
    runs: dict[str, dict[int, list[Run]]] = {side: {rows: [], _FEW_ROWS: []} for side in sides}
    for repetition in range(repetitions + 1):
        for side in list(runs) if repetition % 2 == 0 else list(runs)[::-1]:
            try:
                for count, done in runs[side].items():
                    done.append(sides[side](count))
            except SideError as error:
                drop(CASE, side, error)
                del runs[side]
                continue
            whole = runs[side][rows][-1]
            report(CASE, side, rows / whole.seconds)
            report(f"{CASE}_cpu", side, whole.all_s * 1e6 / rows)
    others = [side for side in runs if side not in {OURS, OURS_PLAIN}]
    ratios = {OURS: (OURS_PLAIN, *others)}
    rates = {
        side: _series(ROWS_PER_SECOND, [rows / job.seconds for job in own[rows]])
        for side, own in runs.items()
    }
    yield compare(CASE, rates, ratios)
    for count, unit, scale, case in (
        (rows, CPU_PER_MILLION, 1e6 / rows, f"{CASE}_cpu"),
        (_FEW_ROWS, CPU_SECONDS, 1.0, f"{CASE}_cpu_of_{_FEW_ROWS}_rows"),
    ):
        whole_s = {
            side: _series(unit, [job.all_s * scale for job in own[count]])
            for side, own in runs.items()
        }
        yield compare(case, whole_s, ratios)
        for side, own in runs.items():
            kinds = dict.fromkeys(kind for job in own[count] for kind in job.used_s)
            by_kind = {
                f"{side}, {kind}": _series(
                    unit, [job.used_s.get(kind, 0.0) * scale for job in own[count]]
                )
                for kind in kinds
            }
            yield compare(case, by_kind, {})


def _series(unit: str, figures: Sequence[float]) -> Series:
    first, *others = figures
    return Series(unit, first, others)


def packed(folder: Path) -> Path:
    """Write the rows of a folder as one file of keys and values, with nothing in between."""
    target = folder.with_suffix(".rows")
    with target.open("wb") as file:
        for part in sorted(folder.glob("*.parquet")):
            table = load(str(part))
            keys, values = (table.column(name).to_pylist() for name in ("key", "value"))
            file.writelines(key + value for key, value in zip(keys, values, strict=True))
    return target


@contextmanager
def _broker(folder: Path) -> Iterator[str]:
    """Run a Kafka broker that is its own controller; give its address."""
    jars = class_path("kafka", _KAFKA)
    port, controller = free_ports(2)
    data = Path(tempfile.mkdtemp(prefix="kafka-", dir=folder))
    settings = data / "server.properties"
    settings.write_text(_SETTINGS.format(port=port, controller=controller, folder=data))
    java = [find_java(), "-Xms256m", "-Xmx1g", "-cp", jars]
    identity = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    formatted = subprocess.run(
        [*java, "kafka.tools.StorageTool", "format", "-t", identity, "-c", str(settings)],
        capture_output=True,
        text=True,
        timeout=_START_SECONDS,
        check=False,
    )
    if formatted.returncode:
        raise SideError(f"Kafka could not format its folder: {formatted.stderr[-500:]}")
    server = OwnedServer([*java, "kafka.Kafka", str(settings)], data, data / "kafka.log")
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.end(Ending.DISCARD)


# -- sides ---------------------------------------------------------------------------------------


class _Kafka:
    """Topics of a broker: two that are filled, and a new one for the output of each job."""

    def __init__(self, clients: OwnProcess, packed: Mapping[int, Path]) -> None:
        self._clients = clients
        self._inputs = {rows: f"bench-{rows}" for rows in packed}
        for rows, topic in self._inputs.items():
            clients.ask("create", topic=topic, partitions=SEGMENTS)
            _require(rows, clients.ask("fill", topic=topic, path=str(packed[rows]))["rows"])

    def passes(self, job: OwnProcess) -> _Pass:
        """Return what passes rows by a job."""
        checked = False

        def run(rows: int) -> Run:
            nonlocal checked
            with self._output() as output:
                topics = {"topic": self._inputs[rows], "output": output}
                measured = _metered(
                    lambda: float(job.ask("pass", **topics)["seconds"]), _NOT_KAFKAS
                )
                if not checked:
                    _require(rows, self._clients.ask("count", topic=output)["rows"])
                    checked = True
                return measured

        return run

    @contextmanager
    def _output(self) -> Iterator[str]:
        name = f"bench-output-{next(_numbers)}"
        self._clients.ask("create", topic=name, partitions=SEGMENTS)
        try:
            yield name
        finally:
            self._clients.ask("delete", topic=name)


def _require(expected: int, rows: int) -> None:
    if expected != rows:
        raise SideError(f"rows were lost or doubled: expected {expected}, found {rows}")


def _metered(do: Callable[[], float], others: Sequence[str]) -> Run:
    """Run a job; what the benchmark itself and the servers of other sides use is left out."""
    before = cpu.used_s()
    seconds = do()
    after = cpu.used_s()
    left_out = {*others, cpu.OTHER}
    used = {kind: after[kind] - before.get(kind, 0) for kind in after if kind not in left_out}
    return Run(seconds, {kind: used_s for kind, used_s in used.items() if used_s > _IDLE_S})


def _kafka_sides(
    stack: ExitStack, folder: Path, servers: str, packed: Mapping[int, Path]
) -> dict[str, _Pass]:
    def program(
        name: str, jars: str, options: Sequence[str] = (), arguments: Sequence[str] = ()
    ) -> OwnProcess:
        compiled = _compiled(folder, name, jars)
        command = [find_java(), "-Xmx1g", *options, "-cp", f"{compiled}{os.pathsep}{jars}"]
        return stack.enter_context(OwnProcess([*command, name, servers, *arguments]))

    clients = program("KafkaClients", class_path("kafka", _KAFKA))
    topics = _Kafka(clients, packed)
    jobs = {
        CLIENTS: clients,
        STREAMS: program("KafkaStreamsJob", class_path("kafka-streams", _STREAMS)),
        FLINK: program("FlinkJob", class_path("flink", _FLINK), _OPENS),
        SPARK: program(
            "SparkKafkaJob",
            class_path("spark-sql-kafka", _SPARK_KAFKA),
            _OPENS,
            [tempfile.mkdtemp(dir=folder)],
        ),
    }
    return {side: topics.passes(job) for side, job in jobs.items()}


def _compiled(folder: Path, name: str, jars: str) -> Path:
    """Compile a program of this folder: Flink loads its classes by a class loader of its own."""
    target = folder / name
    source = Path(__file__).with_name(f"{name}.java")
    command = [find_java(), "-m", "jdk.compiler/com.sun.tools.javac.Main", "-cp", jars]
    made = subprocess.run(
        [*command, "-d", str(target), str(source)],
        capture_output=True,
        text=True,
        timeout=_START_SECONDS,
        check=False,
    )
    if made.returncode:
        raise SideError(f"{source.name} could not be compiled: {made.stderr[:500]}")
    return target


def _our_sides(
    stack: ExitStack, folder: Path, place: Place, inputs: Mapping[int, Path]
) -> dict[str, _Pass]:
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    settings = {"cores": PROCESSES, "folder": str(folder)}
    spark = stack.enter_context(OwnSpark(sys.executable, settings, {**os.environ, **python}))

    topics = {rows: stack.enter_context(place.topic()) for rows in inputs}
    for rows, topic in topics.items():
        options = {**place.options, "topic": topic}
        spark.ask("filled", name=FORMAT, path=str(inputs[rows]), options=options)

    def copied(topic: str, output: str, transactions: str) -> float:
        read = {"subscription": f"bench-{next(_numbers)}", "startingOffsets": "earliest"}
        answer = spark.ask(
            "passed",
            name=FORMAT,
            read={**place.options, "topic": topic, **read},
            written={**place.options, "topic": output, "transactions": transactions},
        )
        return float(answer["seconds"])

    def passes(transactions: str) -> _Pass:
        checked = False

        def run(rows: int) -> Run:
            nonlocal checked
            with place.topic() as output:
                measured = _metered(lambda: copied(topics[rows], output, transactions), _NOT_OURS)
                if not checked:
                    target = {**place.options, "topic": output}
                    _require(rows, spark.ask("counted", name=FORMAT, options=target)["rows"])
                    checked = True
                return measured

        return run

    return {OURS: passes("true"), OURS_PLAIN: passes("false")}
