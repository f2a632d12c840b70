"""A Redis on a port of the loopback address, for brokers that gate segments.

The embedded server has a unix socket only, which the plug-in of a broker cannot use. This one ends
with the process that asked for it, also when that process is killed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import redis

from pulsar_txn_spark.backports import Self
from pulsar_txn_spark.errors import StoreUnavailableError
from pulsar_txn_spark.store.redis.server import find_server_binary
from pulsar_txn_spark.testing.pulsar_server import free_ports
from pulsar_txn_spark.watchdog import Ending, OwnedServer

_HOST = "127.0.0.1"
_START_SECONDS = 20.0  # some 20 ms on an idle machine
_POLL_SECONDS = 0.01


class RedisServer:
    """A Redis that syncs every write before it answers; a context manager.

    Parameters
    ----------
    folder : Path
        Folder of its own, which is there. The data stays in it when the server ends, and goes with
        a process that dies.
    port : int, optional
        Else any that is free.
    options : sequence of str
        Of the command line, besides those for syncing.

    Attributes
    ----------
    port : int
        The same over restarts.
    """

    def __init__(
        self, folder: Path, *, port: int | None = None, options: Sequence[str] = ()
    ) -> None:
        self.port = free_ports(1)[0] if port is None else port
        self._folder = folder
        self._command = [find_server_binary(), "--port", str(self.port), "--bind", _HOST]
        self._command += ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
        self._command += ["--dir", str(folder), *options]
        self._server: OwnedServer | None = None

    @property
    def url(self) -> str:
        """Return the URL, for ``store.url`` and for brokers."""
        return f"redis://{_HOST}:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers.

        Raises
        ------
        StoreUnavailableError
            If it does not.
        """
        log = self._folder / "redis.log"
        self._server = OwnedServer(self._command, self._folder, log)
        deadline = time.monotonic() + _START_SECONDS
        with redis.Redis(host=_HOST, port=self.port) as connection:
            while not _answers(connection):
                if self._server.exit_code() is not None or time.monotonic() > deadline:
                    self.stop()
                    raise StoreUnavailableError(
                        f"the Redis at {self.url} did not answer within {_START_SECONDS:.0f} s; "
                        f"its log:\n{log.read_text(errors='replace')[-2000:]}"
                    )
                time.sleep(_POLL_SECONDS)  # nobody tells when a server begins to listen

    def kill(self) -> None:
        """Kill it and keep its data. Idempotent."""
        self._end(Ending.CRASH)

    def stop(self) -> None:
        """Shut it down in order and keep its data. Idempotent."""
        self._end(Ending.PAUSE)

    def _end(self, ending: Ending) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.end(ending)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _answers(connection: redis.Redis) -> bool:
    try:
        return bool(connection.ping())
    except redis.RedisError:
        return False
