"""Runs the tests of the metadata store on several servers, and writes the table of what works.

    python -m tools.redis_versions [--server PATH … --part Store …] [--write PAGE]

A server is a program, such as ``/usr/bin/valkey-server``. Without any it is the one that the
package finds. Results are kept under ``.venv``.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import redis

from pulsar_txn_spark.config import StoreConfig
from pulsar_txn_spark.errors import StoreUnavailableError
from pulsar_txn_spark.store.redis import connection, server
from tools.run_results import ROOT, Results, by_part, read, record, run_tests, shown
from tools.versions import write

PAGE = ROOT / "docs" / "compatibility.md"
TESTS: dict[str, tuple[str, ...]] = {
    "Store": ("tests/store", "tests/cli/test_server.py"),
    "Transactions": ("tests/txn", "tests/client", "tests/crash", "tests/models"),
    "Log, engine": ("tests/backends/embedded", "tests/engine", "tests/segments"),
    "Spark": (
        *("integration/spark/test_exactly_once.py", "integration/spark/test_lost_batch.py"),
        *("-k", "replay or poisoned or older_one or store_lost or retried"),
    ),
}
JAR, READS, REFUSES = "Broker's jar", "Reads the folder of", "Refuses that of"
PARTS = (*TESTS, JAR)
BEGIN, FOLDERS_BEGIN = "<!-- tools.redis_versions -->", "<!-- tools.redis_versions folders -->"
HOW = "on x86-64 Linux"
INTERLEAVINGS = "40"
_MARKED = "not benchmark and not long"
_PART_SECONDS = 2400  # one to eight minutes on two idle cores
_VERSION = re.compile(r"(\w+) server v=([0-9.]+)")


def name_of(program: Path) -> str:
    """Return product and version of a server, such as ``Valkey 9.1.2``."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    match = _VERSION.search(said.stdout)
    if match is None:
        raise SystemExit(f"{program} does not say its version: {said.stdout!r}")
    return " ".join(match.groups())


@contextmanager
def chosen(program: Path) -> Iterator[dict[str, str]]:
    """Give environment variables with which Python and Java find a server."""
    with tempfile.TemporaryDirectory() as folder:
        (named := Path(folder) / "redis-server").symlink_to(program.absolute())
        path = f"{folder}{os.pathsep}{os.environ['PATH']}"
        yield {server.BINARY_VARIABLE: str(named), "PATH": path, "INTERLEAVINGS": INTERLEAVINGS}


def run(program: Path, part: str) -> tuple[str, bool]:
    """Run the tests of a part; return what came of it, and whether all passed."""
    with chosen(program) as names, tempfile.TemporaryDirectory() as built:
        if part in TESTS:
            return run_tests(TESTS[part], names, _PART_SECONDS, marked=_MARKED)
        command = ["mvn", "-B", "-q", "-f", "jvm_shim/pom.xml", "test", f"-Dshim.build={built}"]
        environment = os.environ | names
        subprocess.run(command, cwd=ROOT, env=environment, timeout=_PART_SECONDS, check=False)
        return shown(*sorted(Path(built, "surefire-reports").glob("TEST-*.xml")))


# -- one folder and two servers ------------------------------------------------------------------


def opened(writer: Path, reader: Path) -> str:
    """Say what comes of the folder of one server that another one opens.

    Returns
    -------
    str
        ``reads`` or ``refuses``; ``loses`` if it starts without the data, ``damages`` if its own
        server cannot read it any more.
    """
    expected = {b"before", b"after"}
    with tempfile.TemporaryDirectory() as folder:
        with _served(writer, folder) as client:
            client.set("before", "a rewrite")
            client.bgrewriteaof()
            while _rewrites(client):
                pass
            client.set("after", "it")
        try:
            with _served(reader, folder) as client:
                return "reads" if set(client.scan_iter()) == expected else "loses"
        except StoreUnavailableError:
            pass
        with _served(writer, folder) as client:
            return "refuses" if set(client.scan_iter()) == expected else "damages"


@contextmanager
def _served(program: Path, folder: str) -> Iterator[redis.Redis]:
    """Give a client of the embedded server of a folder, which is stopped afterwards."""
    os.environ[server.BINARY_VARIABLE] = str(program)
    try:
        client = connection.connect(StoreConfig(path=folder))
        assert isinstance(client, redis.Redis)
        yield client
    finally:
        connection.close_all()
        server.stop_server(folder)


def _rewrites(client: redis.Redis) -> bool:
    said = client.info("persistence")
    return bool(said["aof_rewrite_in_progress"] or said["aof_rewrite_scheduled"])


def compare_folders(servers: Mapping[str, Path], kept: Path) -> bool:
    """Let each server open the folder of each; return whether none has lost anything."""
    os.environ[server.OWNER_VARIABLE] = str(os.getpid())
    good = True
    for reader, program in servers.items():
        outcomes = {writer: opened(path, program) for writer, path in servers.items()}
        for part, what in ((READS, "reads"), (REFUSES, "refuses")):
            writers = [writer for writer in outcomes if outcomes[writer] == what]
            record(kept, reader, part, ", ".join(writers) or "-")
        for writer, what in outcomes.items():
            if what not in ("reads", "refuses"):
                print(f"{reader} {what} the folder of {writer}", file=sys.stderr)
                good = False
    return good


# -- the tables ----------------------------------------------------------------------------------


def tables(results: Results) -> tuple[str, str]:
    """Return the table of the tests, and that of the folders."""
    texts = []
    for parts in (PARTS, (READS, REFUSES)):
        of_parts = {
            name: cell
            for name, cell in results.items()
            if any(name.endswith(f" {part}") for part in parts)
        }
        versions = {" ".join(name.split(" ")[:2]) for name in of_parts}
        texts.append(by_part("Server", sorted(versions, key=_order), parts, of_parts, HOW))
    return texts[0], texts[1]


def _order(name: str) -> tuple[str, tuple[int, ...]]:
    product, version = name.split(" ")
    return product, tuple(map(int, version.split(".")))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts that are asked for; exit code 1 if a test does not pass."""
    parser = argparse.ArgumentParser(prog="python -m tools.redis_versions", description=__doc__)
    parser.add_argument("--server", action="append", type=Path, metavar="PATH", help="its program")
    parser.add_argument("--part", action="append", choices=PARTS, help="all, if not given")
    parser.add_argument("--folders", action="store_true", help="only open folders of one another")
    parser.add_argument("--write", type=Path, metavar="PAGE", help=f"such as {PAGE.name}")
    parser.add_argument("--results", type=Path, default=Path(sys.prefix) / "redis-versions.json")
    options = parser.parse_args(arguments)
    programs = options.server or [Path(server.find_server_binary())]
    servers = {name_of(program): program for program in programs}
    good = True
    for name, program in servers.items():
        for part in () if options.folders else options.part or PARTS:
            text, passed = run(program, part)
            good = good and passed
            record(options.results, name, part, text)
    if options.folders or not options.part:
        good = compare_folders(servers, options.results) and good
    if options.write is not None:
        tests, folders = tables(read(options.results))
        write(options.write, tests, BEGIN)
        write(options.write, folders, FOLDERS_BEGIN)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
