"""Rows per second of the source, of each kind of sink, and of consume-transform-produce."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks import bare_log, bare_pulsar, null
from benchmarks.data import PROCESSES, SEGMENTS
from benchmarks.measure import Result, Series, SideError, compare, in_pairs, interleave
from benchmarks.peer import SIDE as JVM
from benchmarks.peer import Peer, PeerError
from benchmarks.place import Place
from benchmarks.processes import Crew, Job
from pulsar_txn_spark import TransactionalSink
from pulsar_txn_spark.environment import FORMAT
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.spark.rows import needed_columns, schema_of

ROWS_PER_SECOND = "rows/s"
TRANSACTIONAL = "exactly-once"
PLAIN = "at-least-once"
"""With ``transactions=false``; of a source, what it reads was written so."""
NATIVE = "native"
"""With ``transactions=native``: into a topic of Pulsar's own, under its own transactions."""
BY_CLIENT = "exactly-once by client"
"""Ours, by the transport ``client``."""
LOG = "segment-log"
"""Without Spark and without transactions; on Pulsar by the transport ``wire``."""
CLIENT = "pulsar-client"
"""Bare, without Spark and without transactions."""
NULL = "spark-null"
"""Spark with a source or sink, in Python, that does nothing."""
_TWO_COLUMNS = "value BINARY, __key BINARY"
_SUBSCRIPTION = "bench"
_PAIRS = 3  # times the repetitions
Report = Callable[[str, str, float], None]
Drop = Callable[[str, str, SideError], None]
Side = tuple[str, Callable[[], float]]
"""Its name, and what runs it and returns its figure."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What every case needs.

    Parameters
    ----------
    spark : SparkSession
    crew : Crew
        The processes of what runs without Spark.
    folder : Path
        For checkpoints.
    input_folder : Path
    parts : list of Path
        The input, a file for each process.
    rows, repetitions : int
    report : callable
        Gets case, side and figure after each run.
    drop : callable
        Gets case and side where a side cannot be measured, and why.
    """

    spark: SparkSession
    crew: Crew
    folder: Path
    input_folder: Path
    parts: Sequence[Path]
    rows: int
    repetitions: int
    report: Report
    drop: Drop

    def rate(self, seconds: float, rows: int) -> float:
        """Return rows per second, after checking that it was all of them.

        Raises
        ------
        RuntimeError
            If it was not.
        """
        if rows != self.rows:
            raise RuntimeError(f"rows were lost or doubled: expected {self.rows}, found {rows}")
        return rows / seconds

    def crew_rate(self, jobs: Sequence[Job]) -> float:
        """Run jobs in the processes."""
        return self.rate(*self.crew.time(jobs))

    def checkpoint(self) -> str:
        """Return a new folder."""
        return tempfile.mkdtemp(prefix="checkpoint-", dir=self.folder)

    def run_case(
        self,
        case: str,
        sides: Mapping[str, Callable[[], float]],
        ratios: Mapping[str, tuple[str, ...]],
    ) -> list[Result]:
        """Measure the sides of a case in turn."""
        return compare(case, self._in_turn(case, sides, self.repetitions), ratios)

    def run_pairs(self, case: str, side: Side, other: Side) -> list[Result]:
        """Measure two sides in turn, and nothing else in between; each is a name and what to run.

        What they differ by may be less than the machine drifts while many sides have their turn. So
        the ratio is the median of those of runs that followed each other, over more of them.
        """
        sides = dict([side, other])
        series = self._in_turn(case, sides, _PAIRS * self.repetitions)
        return in_pairs(case, series, {side[0]: (other[0],)})

    def _in_turn(
        self, case: str, sides: Mapping[str, Callable[[], float]], repetitions: int
    ) -> dict[str, Series]:
        sides = dict(sides)
        if JVM in sides:
            # Its first runs in a fresh JVM are several times slower; and where it fails, the other
            # sides are measured all the same.
            try:
                self.report(case, f"{JVM}, warming up", sides[JVM]())
            except SideError as error:
                self.drop(case, JVM, error)
                del sides[JVM]
        return interleave(
            sides,
            repetitions,
            ROWS_PER_SECOND,
            lambda side, figure: self.report(case, side, figure),
            lambda side, error: self.drop(case, side, error),
        )


def ratios_of(place: Place) -> dict[str, tuple[str, ...]]:
    """Return which side is compared with which."""
    ours = place.side(TRANSACTIONAL)
    return {
        ours: (
            JVM,
            place.side(PLAIN),
            place.side(BY_CLIENT),
            CLIENT,
            place.side(LOG),
            place.side(NULL),
        ),
        place.side(PLAIN): (JVM, CLIENT, place.side(LOG)),
        place.side(BY_CLIENT): (JVM,),
        place.side(LOG): (CLIENT, JVM),
    }


def _written_by(bench: Bench, peer: Peer, do: str) -> Callable[[], float]:
    checked = False

    def run() -> float:
        nonlocal checked
        with peer.topic() as topic:
            seconds = peer.ask(do, topic=topic)["seconds"]
            rows = bench.rows
            if not checked:
                rows, checked = peer.ask("count", topic=topic)["rows"], True
            return _peers_rate(bench, seconds, rows)

    return run


def _peers_rate(bench: Bench, seconds: float, rows: int) -> float:
    """Return the connector's rows per second; what it loses or doubles is no failure of ours."""
    if rows != bench.rows or not seconds:
        raise PeerError(f"the JVM connector moved {rows} rows instead of {bench.rows}")
    return bench.rate(seconds, rows)


def _shares(segments: tuple[SegmentRef, ...]) -> list[tuple[SegmentRef, ...]]:
    return [segments[process::PROCESSES] for process in range(PROCESSES)]


def _topics(segments: Sequence[SegmentRef]) -> tuple[str, ...]:
    return tuple(segment.log_name for segment in segments)


# -- sinks -------------------------------------------------------------------------------------


def sinks(bench: Bench, place: Place, peer: Peer | None) -> Iterator[list[Result]]:
    """Measure each kind of sink, with and without transactions, and what goes without Spark."""
    for case, write in _kinds().items():
        sides: dict[str, Callable[[], float]] = {
            place.side(TRANSACTIONAL): _into_topic(bench, place, write, "true"),
            place.side(PLAIN): _into_topic(bench, place, write, "false"),
            place.side(NULL): partial(_dropped, bench, case),
            place.side(LOG): lambda: appended(bench, place),
        }
        if place.service_url:
            sides[CLIENT] = lambda: _sent(bench, place)
            by_client = place.by("client")
            sides[place.side(BY_CLIENT)] = _into_topic(bench, by_client, write, "true")
            if peer is not None and case != "sink_foreach_batch":
                sides[JVM] = _written_by(bench, peer, case)
        yield bench.run_case(case, sides, ratios_of(place))


def _kinds() -> dict[str, Callable[[Bench, dict[str, str]], float]]:
    return {
        "sink_batch": _sink_batch,
        "sink_stream": sink_stream,
        "sink_foreach_batch": _sink_foreach_batch,
    }


def _into_topic(
    bench: Bench,
    place: Place,
    write: Callable[[Bench, dict[str, str]], float],
    transactions: str,
) -> Callable[[], float]:
    checked = False

    def run() -> float:
        nonlocal checked
        with place.native_topic() if transactions == NATIVE else place.topic() as topic:
            seconds = write(bench, {**place.options, "topic": topic, "transactions": transactions})
            rows = bench.rows
            if not checked:  # once is enough, and reading takes its time
                rows, checked = _read(bench, place, topic, _TWO_COLUMNS).count(), True
            return bench.rate(seconds, rows)

    return run


def _input(bench: Bench) -> DataFrame:
    return bench.spark.read.schema(_TWO_COLUMNS).parquet(str(bench.input_folder))


def _input_stream(bench: Bench) -> DataFrame:
    return bench.spark.readStream.schema(_TWO_COLUMNS).parquet(str(bench.input_folder))


def _dropped(bench: Bench, case: str) -> float:
    """Write the input into nothing, in the way of one kind of sink."""
    if case == "sink_batch":
        began = time.perf_counter()
        _drop(_input(bench))
        return bench.rate(time.perf_counter() - began, bench.rows)
    stream = _input_stream(bench).writeStream
    stream = stream.format(null.FORMAT) if case == "sink_stream" else stream.foreachBatch(_drop)
    return bench.rate(_available_now(bench, stream), bench.rows)


def _drop(df: DataFrame, _: int = 0) -> None:
    df.write.format(null.FORMAT).mode("append").save()


def _sink_batch(bench: Bench, options: dict[str, str]) -> float:
    began = time.perf_counter()
    _input(bench).write.format(FORMAT).options(**options).mode("append").save()
    return time.perf_counter() - began


def sink_stream(bench: Bench, options: dict[str, str], tasks: int = PROCESSES) -> float:
    """Write the input as a stream, and return the seconds it took."""
    rows = _input_stream(bench)
    if tasks < PROCESSES:
        rows = rows.coalesce(tasks)
    return _available_now(bench, rows.writeStream.format(FORMAT).options(**options))


def _sink_foreach_batch(bench: Bench, options: dict[str, str]) -> float:
    def plain(df: DataFrame, _: int) -> None:
        df.write.format(FORMAT).options(**options).mode("append").save()

    transactional = options["transactions"] == "true"
    return _available_now(
        bench,
        _input_stream(bench).writeStream.foreachBatch(
            TransactionalSink(options) if transactional else plain
        ),
    )


def _available_now(bench: Bench, stream: DataStreamWriter) -> float:
    """Run a query to its end, and return the time of its micro-batches that had rows."""
    checkpoint = bench.checkpoint()
    query = stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
    spent_ms: int = sum(progress["durationMs"]["triggerExecution"] for progress in batches)
    return spent_ms / 1000


def appended(bench: Bench, place: Place, segments: int = SEGMENTS) -> float:
    """Append the input to the log of so many segments, without Spark; return rows/s."""
    with place.topic(segments) as topic:
        refs = place.segments(topic)
        return bench.crew_rate([bare_log.Append(place, refs, str(part)) for part in bench.parts])


def _sent(bench: Bench, place: Place) -> float:
    with place.topic() as topic:
        topics = _topics(place.segments(topic))
        return bench.crew_rate(
            [bare_pulsar.Send(place.service_url, topics, str(part)) for part in bench.parts]
        )


# -- source ------------------------------------------------------------------------------------


@contextmanager
def filled(bench: Bench, place: Place, transactions: str = "true") -> Iterator[str]:
    """Give a topic with all rows of the input, committed in one transaction or in none."""
    with place.topic() as topic:
        _sink_batch(bench, {**place.options, "topic": topic, "transactions": transactions})
        yield topic


def source(bench: Bench, place: Place, topic: str, peer: Peer | None) -> Iterator[list[Result]]:
    """Measure the batch source with two columns, with all of them, and with none (a count)."""
    segments = place.segments(topic)
    shares = _shares(segments)

    def counted() -> float:
        began = time.perf_counter()
        rows = _read(bench, place, topic, _TWO_COLUMNS).count()
        return bench.rate(time.perf_counter() - began, rows)

    def from_log(columns: frozenset[str]) -> float:
        return bench.crew_rate([bare_log.Read(place, share, columns) for share in shares])

    def from_nothing() -> float:
        began = time.perf_counter()
        empty = bench.spark.read.format(null.FORMAT).option("rows", bench.rows).load()
        empty.write.format("noop").mode("overwrite").save()
        return bench.rate(time.perf_counter() - began, bench.rows)

    def received() -> float:
        return bench.crew_rate(
            [bare_pulsar.Receive(place.service_url, _topics(share)) for share in shares]
        )

    ours, log = place.side(TRANSACTIONAL), place.side(LOG)
    sides: dict[str, Callable[[], float]] = {
        ours: lambda: _consumed(bench, place, topic, _TWO_COLUMNS),
        place.side(NULL): from_nothing,
        log: lambda: from_log(frozenset({"value", "key"})),
    }
    with ExitStack() as stack:
        if place.service_url:
            sides[place.side(BY_CLIENT)] = lambda: _consumed(
                bench, place.by("client"), topic, _TWO_COLUMNS
            )
            sides[CLIENT] = received
        if peer is not None:
            sides[JVM] = _read_by(bench, peer, stack)
        plain = stack.enter_context(filled(bench, place, "false"))
        sides[place.side(PLAIN)] = lambda: _consumed(bench, place, plain, _TWO_COLUMNS)
        yield bench.run_case("source", sides, ratios_of(place))
    everything = needed_columns(schema_of(()))
    sides = {ours: lambda: _consumed(bench, place, topic, None), log: lambda: from_log(everything)}
    yield bench.run_case("source_all_columns", sides, ratios_of(place))
    yield bench.run_case("source_count", {ours: counted}, ratios_of(place))


def _consumed(bench: Bench, place: Place, topic: str, schema: str | None) -> float:
    began = time.perf_counter()
    _read(bench, place, topic, schema).write.format("noop").mode("overwrite").save()
    return bench.rate(time.perf_counter() - began, bench.rows)


def _read_by(bench: Bench, peer: Peer, stack: ExitStack) -> Callable[[], float]:
    rows, topic = 0, ""

    def run() -> float:
        nonlocal rows, topic
        if not rows:
            topic = _filled_by(peer, stack)
            rows = peer.ask("count", topic=topic)["rows"]
        return _peers_rate(bench, peer.ask("source", topic=topic)["seconds"], rows)

    return run


def _filled_by(peer: Peer, stack: ExitStack) -> str:
    """Return a topic with the input, which goes with the stack.

    Made in a run of the connector's, so that a failure is that of its side.
    """
    topic = stack.enter_context(peer.topic())
    peer.ask("sink_batch", topic=topic)
    return topic


def _read(bench: Bench, place: Place, topic: str, schema: str | None) -> DataFrame:
    reader = bench.spark.read.format(FORMAT).options(**place.options).option("topic", topic)
    return (reader.schema(schema) if schema else reader).load()


# -- consume, transform, produce ----------------------------------------------------------------


def pipeline(bench: Bench, place: Place, topic: str, peer: Peer | None) -> Iterator[list[Result]]:
    """Measure a stream from topic to topic; input and output are one transaction."""
    inputs = place.segments(topic)

    def on_log() -> float:
        with place.topic() as output:
            outputs = place.segments(output)
            return bench.crew_rate(
                [bare_log.Pass(place, share, outputs) for share in _shares(inputs)]
            )

    def bare() -> float:
        with place.topic() as output:
            outputs = _topics(place.segments(output))
            return bench.crew_rate(
                [
                    bare_pulsar.Pass(place.service_url, _topics(share), outputs)
                    for share in _shares(inputs)
                ]
            )

    sides: dict[str, Callable[[], float]] = {
        place.side(TRANSACTIONAL): _passed(bench, place, topic, "true"),
        place.side(PLAIN): _passed(bench, place, topic, "false"),
        place.side(NULL): lambda: _nothing_passed(bench),
        place.side(LOG): on_log,
    }
    with ExitStack() as stack:
        if place.service_url:
            sides[place.side(BY_CLIENT)] = _passed(bench, place.by("client"), topic, "true")
            sides[CLIENT] = bare
        if peer is not None:
            sides[JVM] = _passed_by(bench, peer, stack)
        yield bench.run_case("consume_transform_produce", sides, ratios_of(place))


def _passed(bench: Bench, place: Place, topic: str, transactions: str) -> Callable[[], float]:
    def run() -> float:
        with place.topic() as output:
            options = {**place.options, "topic": output, "transactions": transactions}
            stream = turned(read_stream(bench, place, topic)).writeStream.format(FORMAT)
            return bench.rate(_available_now(bench, stream.options(**options)), bench.rows)

    return run


def transaction_cost(bench: Bench, place: Place, topic: str) -> Iterator[list[Result]]:
    """Measure with and without transactions, in pairs."""
    cases: dict[str, Callable[[str], Callable[[], float]]] = {
        **{case: partial(_into_topic, bench, place, write) for case, write in _kinds().items()},
        "consume_transform_produce": partial(_passed, bench, place, topic),
    }
    for case, side_of in cases.items():
        exact = place.side(TRANSACTIONAL), side_of("true")
        yield bench.run_pairs(f"{case}_in_pairs", exact, (place.side(PLAIN), side_of("false")))


def native_cost(bench: Bench, place: Place) -> list[Result]:
    """Measure the streaming sink under Pulsar's own transactions and under ours, in pairs."""
    return bench.run_pairs(
        "sink_stream_native_in_pairs",
        (place.side(NATIVE), _into_topic(bench, place, sink_stream, NATIVE)),
        (place.side(TRANSACTIONAL), _into_topic(bench, place, sink_stream, "true")),
    )


def beside_peer(bench: Bench, place: Place, topic: str, peer: Peer) -> Iterator[list[Result]]:
    """Measure this package, exactly once, and the JVM connector, at least once, in pairs.

    For each case the connector gets a new JVM: what its source has read stays in memory.
    """
    with ExitStack() as stack:
        cases: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
            "sink_batch": (
                _into_topic(bench, place, _sink_batch, "true"),
                _written_by(bench, peer, "sink_batch"),
            ),
            "sink_stream": (
                _into_topic(bench, place, sink_stream, "true"),
                _written_by(bench, peer, "sink_stream"),
            ),
            "source": (
                partial(_consumed, bench, place, topic, _TWO_COLUMNS),
                _read_by(bench, peer, stack),
            ),
            "consume_transform_produce": (
                _passed(bench, place, topic, "true"),
                _passed_by(bench, peer, stack),
            ),
        }
        for case, (ours, theirs) in cases.items():
            own = place.side(TRANSACTIONAL), ours
            peer.restart()
            yield bench.run_pairs(f"{case}_peer_in_pairs", own, (JVM, theirs))


def _nothing_passed(bench: Bench) -> float:
    """Pass constant rows from a null source to a null sink, in one micro-batch."""
    pushed = Path(bench.checkpoint()) / "pushed"
    null.push(pushed, SEGMENTS, 1)
    each = bench.rows // SEGMENTS
    source = bench.spark.readStream.format(null.FORMAT).option("path", str(pushed))
    stream = turned(source.option("rows", each).load()).writeStream.format(null.FORMAT)
    return each * SEGMENTS / _available_now(bench, stream)


def _passed_by(bench: Bench, peer: Peer, stack: ExitStack) -> Callable[[], float]:
    topic = ""

    def run() -> float:
        nonlocal topic
        topic = topic or _filled_by(peer, stack)
        with peer.topic() as output:
            answer = peer.ask("pipeline", topic=topic, output=output)
            return _peers_rate(bench, answer["seconds"], answer["rows"])

    return run


def turned(messages: DataFrame) -> DataFrame:
    """Change every value: its first byte goes to its end."""
    value = f.col("value")
    return messages.select(
        f.concat(f.substring(value, 2, 1 << 30), f.substring(value, 1, 1)).alias("value"), "__key"
    )


def read_stream(bench: Bench, place: Place, topic: str, **options: object) -> DataFrame:
    """Read a topic from its beginning under a subscription of its own."""
    return (
        bench.spark.readStream.schema(_TWO_COLUMNS)
        .format(FORMAT)
        .options(**place.options)
        .options(**{key: str(value) for key, value in options.items()})
        .option("topic", topic)
        .option("startingOffsets", "earliest")
        # A name of its own each time: a subscription serves one query.
        .option("subscription", f"{_SUBSCRIPTION}-{time.monotonic_ns()}")
        .load()
    )
