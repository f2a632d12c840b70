"""Counts what reaches the metadata store, as its server sees it.

*Commands* are those of clients: MONITOR tells them from the ones that scripts run. *Round trips*
are the server's read events (``total_reads_processed``). A pipeline is one, however many commands
it has, and so is the login of a new connection. On the embedded backend the segment log lives on
the same server; what it asks is left out, told by its keys.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from types import TracebackType
from typing import Any, Self

from benchmarks.place import Place
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.store.redis import connection

_SECONDS = 10.0
_OWN_READS = 2  # the mark at the beginning, and the question at the end


@dataclass(slots=True)
class Counted:
    """What was counted.

    Parameters
    ----------
    round_trips : int
    commands : collections.Counter of str
        By name of the script, or of the command where it is none.
    """

    round_trips: int = 0
    commands: Counter[str] = field(default_factory=Counter)


@cache
def _names() -> dict[str, str]:
    """Return the store's scripts: SHA1 -> name."""
    names = {}
    folder = resources.files("pulsar_txn_spark.store.redis") / "lua"
    prelude, ranges = (
        (folder / f"{part}.lua").read_text(encoding="utf-8") for part in ("_prelude", "_ranges")
    )
    for script in folder.iterdir():
        body = script.read_text(encoding="utf-8")
        for text in (body, prelude + body, prelude + ranges + body):
            digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
            names[digest] = script.name.removesuffix(".lua")
    return names


class Monitor:
    """Follows the commands that reach a place's metadata store.

    Parameters
    ----------
    place : Place
    """

    def __init__(self, place: Place) -> None:
        config = Options(place.options, Use.CONNECT).store
        self._client: Any = connection.connect(config)
        self._changed = threading.Condition()
        self._seen: list[str] = []
        self._following = threading.Event()
        self._end = secrets.token_hex(8)
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._following.wait(_SECONDS)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.echo(self._end)
        self._thread.join()

    def _follow(self) -> None:
        with self._client.monitor() as monitor:
            self._following.set()
            for event in monitor.listen():
                if event["client_type"] == "lua":
                    continue
                with self._changed:
                    self._seen.append(event["command"])
                    self._changed.notify_all()
                if self._end in event["command"]:
                    return

    @contextmanager
    def counting(self) -> Iterator[Counted]:
        """Count what happens in the body; the figures are there after it."""
        counted = Counted()
        before = self._reads()
        began = self._mark()
        yield counted
        after = self._reads()
        ended = self._mark()
        with self._changed:
            commands = self._seen[began + 1 : ended]
        log_round_trips = 0
        for command in commands:
            words = command.split(" ", 2)
            name = words[0].upper()
            if ":log" in command or (name == "SCRIPT" and "log-index" in command):
                log_round_trips += name != "SCRIPT"  # goes along with the command after it
            elif command != "INFO stats":
                counted.commands[_names().get(words[1], name) if "EVAL" in name else name] += 1
        counted.round_trips = after - before - _OWN_READS - log_round_trips

    def _reads(self) -> int:
        return int(self._client.info("stats")["total_reads_processed"])

    def _mark(self) -> int:
        """Return where the stream of commands stands now."""
        mark = secrets.token_hex(8)
        self._client.echo(mark)
        with self._changed:
            for _ in range(1000):
                for index in range(len(self._seen) - 1, -1, -1):
                    if mark in self._seen[index]:
                        return index
                self._changed.wait(_SECONDS)
        raise RuntimeError("the server does not report its commands")
