"""The demo: flights in, a job that is killed in the middle of batches, and the proof.

Every process runs in a session of its own and is tied to this one: however this one ends, nothing
is left running. Everything lies in one temporary folder.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

from demo.child import Settings
from demo.data import FLIGHTS, data_folder
from demo.display import Display
from demo.plan import JOB_KILLS, KILLS, ROWS_PER_BATCH, USUAL_KILLS, random_kills
from demo.run import Run
from pulsar_txn_spark.errors import PulsarTxnError
from pulsar_txn_spark.store.redis.server import OWNER_VARIABLE, stop_server
from pulsar_txn_spark.testing.broker_jar import broker_jar
from pulsar_txn_spark.testing.pulsar_server import PulsarServer
from pulsar_txn_spark.testing.redis_server import RedisServer
from pulsar_txn_spark.testing.spark_cluster import SparkCluster


@contextlib.contextmanager
def _backend(name: str, folder: Path, display: Display) -> Iterator[dict[str, str]]:
    """Give the options that lead to a backend; what is started for it stops at the end."""
    store = str(folder / "store")
    # The embedded Redis outlives its clients on purpose; not this process, though.
    os.environ[OWNER_VARIABLE] = str(os.getpid())
    try:
        if name == "embedded":
            yield {"store.path": store}
            return
        display.busy("starting a Pulsar broker (the first time, Maven downloads 235 MB)")
        with PulsarServer() as server:
            display.say(f"Pulsar answers at {server.service_url}")
            yield {
                "store.path": store,
                "service.url": server.service_url,
                "admin.url": server.admin_url,
            }
    finally:
        stop_server(store)


@contextlib.contextmanager
def _gating_broker(folder: Path, display: Display) -> Iterator[dict[str, str]]:
    """Give a broker with the plug-in, and a store on a port that both sides reach."""
    store_folder = folder / "store"
    store_folder.mkdir()
    display.busy("building the broker's plug-in, if it has changed (Maven)")
    broker_jar()
    display.busy("starting a Pulsar broker (the first time, Maven downloads 235 MB)")
    with (
        RedisServer(store_folder) as store,
        PulsarServer(store_url=store.url) as server,
    ):
        display.say(
            f"Pulsar answers at {server.service_url}, and gates the outputs by the store at "
            f"{store.url}"
        )
        yield {
            "store.url": store.url,
            "service.url": server.service_url,
            "admin.url": server.admin_url,
        }


@contextlib.contextmanager
def _cluster(display: Display) -> Iterator[SparkCluster]:
    """Give a standalone cluster in processes of its own."""
    display.busy("starting a Spark cluster")
    with SparkCluster() as cluster:
        display.say(f"a Spark master and two workers: {cluster.url}")
        yield cluster


class _Ended(BaseException):
    """Somebody wants the demo to end: an exception, so that everything is cleaned up."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.code = 128 + signum  # as a shell says it


def _end(signum: int, _frame: FrameType | None) -> NoReturn:
    for other in _ENDINGS:
        signal.signal(other, signal.SIG_IGN)  # cleaning up is not to be interrupted
    raise _Ended(signum)


def _ended(error: BaseException | None) -> _Ended | None:
    """Find the wish to end behind an error.

    It may strike anywhere, and what it strikes may fail on its way out. A Condition whose lock
    it had just let go says "release unlocked lock".
    """
    while error is not None and not isinstance(error, _Ended):
        error = error.__context__
    return error


_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line; ends the process if it is not understood."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--backend", choices=("embedded", "pulsar"), default="embedded")
    parser.add_argument(
        "--kills",
        type=int,
        choices=range(len(KILLS) + 1),
        default=USUAL_KILLS,
        help=f"how often to kill the driver (default: {USUAL_KILLS})",
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the folder with the logs and the data"
    )
    parser.add_argument(
        "--split",
        action="store_true",
        help="split, merge and seal segments all the time, and kill the driver at random",
    )
    parser.add_argument(
        "--job",
        action="store_true",
        help="run the job from a file, by spark-submit on a cluster of a master and two workers; "
        "a worker is killed, too",
    )
    parser.add_argument(
        "--shim",
        action="store_true",
        help="with --backend pulsar: the broker gates the outputs with the plug-in of jvm_shim/, "
        "and plain consumers look on",
    )
    parser.add_argument(
        "--every", type=float, default=2.0, metavar="SECONDS", help="so often, with --split"
    )
    parser.add_argument(
        "--seed", type=int, help="what --split draws at random hangs on it (default: another one)"
    )
    chosen = parser.parse_args(arguments)
    if chosen.job and chosen.split:
        parser.error("--job and --split exclude each other")
    if chosen.shim and chosen.backend != "pulsar":
        parser.error("--shim needs --backend pulsar: it is the plug-in of a Pulsar broker")
    if chosen.shim and chosen.split:
        parser.error(
            "--shim and --split exclude each other: the plain consumers do not follow segments"
        )
    if chosen.every <= 0:
        parser.error("--every takes a time above zero")
    return chosen


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; return the exit code."""
    chosen = _parse(arguments)
    seed = chosen.seed if chosen.seed is not None else secrets.randbelow(1 << 16)
    before = {ending: signal.signal(ending, _end) for ending in _ENDINGS}

    folder = Path(tempfile.mkdtemp(prefix="pulsar-txn-demo-"))
    failed = True  # after a failure, the logs are what is needed to understand it
    try:
        data_folder()  # before anything is started
        with (
            Display(FLIGHTS) as display,
            contextlib.ExitStack() as started,
        ):
            options = started.enter_context(
                _gating_broker(folder, display)
                if chosen.shim
                else _backend(chosen.backend, folder, display)
            )
            display.say(f"backend: {chosen.backend}; everything lies in {folder}")
            gate = "broker" if chosen.shim else "reader"
            settings = Settings(str(folder), options, ROWS_PER_BATCH, gate=gate)
            kills = KILLS[: chosen.kills]
            cluster = None
            if chosen.job:
                kills = JOB_KILLS[: chosen.kills]
                cluster = started.enter_context(_cluster(display))
                settings = replace(settings, master=cluster.url)
            if chosen.split:
                display.say(f"segments change every {chosen.every:g} s; again: --seed {seed}")
                settings = replace(settings, reshape_every_s=chosen.every, seed=seed)
                kills = random_kills(chosen.kills, seed)
            failed = not Run(settings, display, kills, cluster).carry_out()
    except BaseException as error:
        ended = _ended(error)
        if ended is not None:
            print("interrupted; everything that was started is stopped", file=sys.stderr)
            failed = False
            return ended.code
        if not isinstance(error, PulsarTxnError):
            raise
        print(f"error: {error}", file=sys.stderr)
    finally:
        if failed or chosen.keep:
            print(f"logs and data are kept in {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
        for ending, handler in before.items():
            signal.signal(ending, handler)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
