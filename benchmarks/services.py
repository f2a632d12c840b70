"""Transactions a second of a plain service, beside the same server without this package.

One process, whose threads share a client, as those of a service do. Topic and metadata are on one
server, which syncs every write before its reply. A transaction sends one row of 100 bytes. It waits
for the disk three times: when it is opened, for its row, and for its end. So the bare side runs
three scripts for each transaction, one after the other. Each thread of it has a plain socket, and
sends commands that were packed beforehand.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from benchmarks.embedded import StoreBench, row
from benchmarks.measure import Result, interleave
from pulsar_txn_spark import Admin, client
from pulsar_txn_spark.client import aio
from pulsar_txn_spark.config import StoreConfig
from pulsar_txn_spark.store.redis import connection
from pulsar_txn_spark.store.redis.endpoint import parse_endpoint
from pulsar_txn_spark.store.redis.exchange import pack

_THREADS = (1, 8, 32)
_TRANSACTIONS = 1_600  # of a run, over all threads
_TOPIC = "service"
_SEGMENTS = 4
_VALUE = b"x" * 100
_SYNCED = 3  # waits for the disk in a transaction
_BARE_BYTES = b"x" * 600  # about what one of them writes
_BARE_SCRIPT = "redis.call('HSET', KEYS[1], 'value', ARGV[1]) return 1"
_BARE_REPLY = b":1\r\n"
CLIENT, TASKS, BARE = "client, a row each", "the same by asyncio tasks", "bare scripts, synced"


def services(bench: StoreBench) -> list[Result]:
    """Measure ``client_transactions_<threads>``."""
    Admin({"store.path": bench.path}).create_topic(_TOPIC, segments=_SEGMENTS, exist_ok=True)
    results = []
    with client.connect({"store.path": bench.path}) as service, service.producer(_TOPIC) as to:
        for threads in _THREADS:

            def transactions(threads: int = threads) -> float:
                def one(_: int) -> None:
                    with service.new_txn() as txn:
                        to.send(_VALUE, txn=txn)

                return _rate(threads, lambda: one)

            def tasks(threads: int = threads) -> float:
                return asyncio.run(_by_tasks(bench.path, threads))

            def bare(threads: int = threads) -> float:
                return _rate(threads, lambda: _bare(bench.path))

            case = f"client_transactions_{threads}"
            sides = {CLIENT: transactions, TASKS: tasks, BARE: bare}
            series = interleave(sides, bench.repetitions, "per s", bench.report)
            results += [row(case, side, own, BARE, series) for side, own in series.items()]
    return results


def _rate(threads: int, made: Callable[[], Callable[[int], None]]) -> float:
    """Return how many transactions a second some threads make."""
    count = _TRANSACTIONS // threads

    def run(transaction: Callable[[int], None]) -> None:
        for number in range(count):
            transaction(number)

    own = [made() for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        began = time.perf_counter()
        list(pool.map(run, own))
        return threads * count / (time.perf_counter() - began)


async def _by_tasks(path: str, count: int) -> float:
    """Return how many transactions a second so many tasks of one event loop make."""
    async with await aio.connect({"store.path": path}, threads=count) as service:
        to = await service.producer(_TOPIC)

        async def run() -> None:
            for _ in range(_TRANSACTIONS // count):
                async with service.new_txn() as txn:
                    await to.send(_VALUE, txn=txn)

        began = time.perf_counter()
        await asyncio.gather(*(run() for _ in range(count)))
        return count * (_TRANSACTIONS // count) / (time.perf_counter() - began)


def _bare(path: str) -> Callable[[int], None]:
    """Return what runs the scripts of one transaction, on a connection of its own."""
    config = StoreConfig(path=path)
    address = parse_endpoint(config).socket
    assert address is not None
    digest = connection.connect(config).script_load(_BARE_SCRIPT)
    bare = socket.socket(socket.AF_UNIX)  # closed with the last reference to it
    bare.connect(address)
    command = pack(["EVALSHA", str(digest), 1, f"bare:{bare.fileno()}", _BARE_BYTES])

    def transaction(_: int) -> None:
        for _ in range(_SYNCED):
            bare.sendall(command)
            reply = bare.recv(64)
            if reply != _BARE_REPLY:
                raise RuntimeError(f"expected {_BARE_REPLY!r}, found {reply!r}")

    return transaction
