"""Lets two revisions and the JVM connector take turns: ``python -m benchmarks.turns --help``.

Each side is a Spark of its own: the base, this folder, this folder again, and the connector where
``PEER_JAR`` names it. They share a Pulsar broker, and each revision has a Redis of its own. A round
is one run of each side; every second round is in the other order. What counts are the ratios within
a round. Those of this folder to itself show what a ratio means here.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks.data import PROCESSES, SEGMENTS, write_input
from benchmarks.embedded import redis_on_port
from benchmarks.measure import Result, Results, Series, SideError, in_pairs, interleave
from benchmarks.own_spark import OwnSpark
from benchmarks.peer import JAR_VARIABLE, PYTHON_VARIABLE, Peer
from benchmarks.peer import SIDE as JVM
from benchmarks.report import print_results
from benchmarks.revisions import HERE, checked_out
from benchmarks.throughput import ROWS_PER_SECOND
from pulsar_txn_spark.environment import FORMAT
from pulsar_txn_spark.testing.pulsar_server import Broker, choose_broker

BASE, HEAD, AGAIN = "base", "this folder", "this folder again"
_SOURCE, _PIPELINE = "source", "pipeline"
_CASES = ("sink_batch", "sink_stream", _SOURCE, _PIPELINE)
_WARM_UP = 2
_WIDTH = 160  # of the table in a file
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Side:
    """One that takes its turn.

    Parameters
    ----------
    name : str
    spark : OwnSpark
    topic : callable
        Gives a topic, and deletes it afterwards.
    read_options : callable
        More options of each streaming read.
    """

    name: str
    spark: OwnSpark
    topic: Callable[[], AbstractContextManager[str]]
    read_options: Callable[[], Mapping[str, str]] = dict


@contextmanager
def _revision(
    name: str, root: Path, broker: Broker, folder: Path, input_folder: Path
) -> Iterator[Side]:
    """Give a revision of this project, which is checked out in a folder, as a side."""
    with redis_on_port(folder) as store_url:
        options = {
            "store.url": store_url,
            "service.url": broker.service_url,
            "admin.url": broker.admin_url,
        }
        settings = {
            "cores": PROCESSES,
            "folder": str(folder),
            "input": str(input_folder),
            "format": FORMAT,
            "options": options,
            "schema": "value BINARY, __key BINARY",
            "sources": [("pulsar_txn_spark.spark.datasource", "PulsarTxnDataSource")],
        }
        own = {
            "PYTHONPATH": str(root),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        # Spark's workers import what is in the folder that their JVM was started in.
        with OwnSpark(sys.executable, settings, {**os.environ, **own}, folder=root) as spark:
            _require_own_code(name, spark, root)

            @contextmanager
            def topic() -> Iterator[str]:
                made = f"topic://public/default/turn-{next(_numbers)}"
                spark.ask("make_topic", topic=made, segments=SEGMENTS)
                yield made
                spark.ask("delete_topic", topic=made)

            yield Side(name, spark, topic, lambda: {"subscription": f"turn-{next(_numbers)}"})


def _require_own_code(name: str, spark: OwnSpark, root: Path) -> None:
    """Require that driver and workers run the revision that they stand for."""
    for where, path in spark.ask("code").items():
        if not Path(path).is_relative_to(root):
            raise SideError(f"{name}: its {where} runs {path}, not the code in {root}")


@contextmanager
def _connector(memory: str, broker: Broker, folder: Path, input_folder: Path) -> Iterator[Side]:
    with (
        Peer(broker.service_url, broker.admin_url, folder, input_folder) as peer,
        peer.spark(memory=memory) as spark,
    ):
        yield Side(JVM, spark, peer.topic)


def _runs(side: Side, case: str, rows: int, stack: ExitStack) -> Callable[[], float]:
    """Return what runs a case once and returns rows per second; what it fills ends with a stack."""
    filled, checked = "", False

    def require_all(topic: str) -> None:
        nonlocal checked
        if not checked:
            counted = side.spark.ask("count", topic=topic)["rows"]
            if counted != rows:
                raise SideError(f"{side.name} wrote {counted} rows instead of {rows}")
            checked = True

    def run() -> float:
        nonlocal filled
        if case in {_SOURCE, _PIPELINE} and not filled:
            filled = stack.enter_context(side.topic())
            side.spark.ask("sink_batch", topic=filled)
        if case == _SOURCE:
            require_all(filled)
            return rows / float(side.spark.ask(case, topic=filled)["seconds"])
        with side.topic() as output:
            question = (
                {"topic": filled, "output": output, **side.read_options()}
                if case == _PIPELINE
                else {"topic": output}
            )
            seconds = float(side.spark.ask(case, **question)["seconds"])
            require_all(output)
            return rows / seconds

    return run


def measure(
    case: str,
    sides: Sequence[Side],
    rows: int,
    blocks: int,
    rounds: int,
    report: Callable[[str, float], None],
) -> list[Result]:
    """Let the sides take turns at a case.

    Parameters
    ----------
    case : str
    sides : sequence of Side
    rows : int
        Of the input.
    blocks : int
        Each begins with new processes, which run the case twice before it counts.
    rounds : int
        In each block.
    report : callable
        Gets side and figure, in rows per second, after each run.

    Raises
    ------
    SideError
        If a side fails, or loses or doubles rows.
    """
    series = {side.name: Series(ROWS_PER_SECOND) for side in sides}
    with ExitStack() as stack:
        runs = {side.name: _runs(side, case, rows, stack) for side in sides}
        for _ in range(blocks):
            for side in sides:
                side.spark.close()
            for _ in range(_WARM_UP - 1):
                for warm_up in runs.values():
                    warm_up()
            for name, block in interleave(runs, rounds, ROWS_PER_SECOND, report).items():
                series[name].runs += block.runs
    return in_pairs(case, series, {HEAD: (BASE, JVM), AGAIN: (HEAD, BASE), BASE: (JVM,)})


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.turns", description=__doc__)
    parser.add_argument("base", help="the revision that this folder is compared with")
    parser.add_argument("--case", action="append", choices=_CASES, help="only this one; repeatable")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--blocks", type=int, default=3, help="each with new processes")
    parser.add_argument("--rounds", type=int, default=6, help="in each block")
    parser.add_argument("--peer-memory", default="8g", help="of the connector's JVM")
    chosen = parser.parse_args()
    if min(chosen.rows, chosen.blocks, chosen.rounds) < 1:
        parser.error("expected at least one row, one block and one round")
    console = Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False)
    target = os.environ.get("BENCH_JSON")
    results = Results(Path(target) if target else None)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turns-")))
        base = stack.enter_context(checked_out(chosen.base, folder / "base"))
        write_input(folder / "input", chosen.rows)
        broker = stack.enter_context(choose_broker())
        place = (broker, folder, folder / "input")
        roots = {BASE: base, HEAD: HERE, AGAIN: HERE}
        sides = [stack.enter_context(_revision(name, root, *place)) for name, root in roots.items()]
        if {JAR_VARIABLE, PYTHON_VARIABLE} <= os.environ.keys():
            sides.append(stack.enter_context(_connector(chosen.peer_memory, *place)))
        for case in chosen.case or _CASES:
            report = partial(_report, console, case)
            measured = measure(case, sides, chosen.rows, chosen.blocks, chosen.rounds, report)
            results.add(measured)
            print_results(console, f"{case} beside {chosen.base}", measured)
    print_results(console, f"all cases beside {chosen.base}, {chosen.rows:,} rows", results.rows)
    return 0


def _report(console: Console, case: str, side: str, figure: float) -> None:
    console.print(f"[dim]{case}: {side} {figure:,.0f} {ROWS_PER_SECOND}[/]")


if __name__ == "__main__":
    sys.exit(main())
