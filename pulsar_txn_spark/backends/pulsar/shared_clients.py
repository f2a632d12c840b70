"""Clients that a process shares: one per configuration, kept for the next user, not forked."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from pulsar_txn_spark.config import PulsarConfig

_IDLE_CLIENTS = 2  # kept open for the next log: Spark's workers open one per task
Client = TypeVar("Client")


class SharedClients(Generic[Client]):
    """One client per configuration in this process, shared by its logs.

    Parameters
    ----------
    new : Callable
        Opens the client of a configuration.
    close : Callable
        Closes one, whatever state it is in.
    """

    def __init__(
        self, new: Callable[[PulsarConfig], Client], close: Callable[[Client], None]
    ) -> None:
        self._new = new
        self._close = close
        self._lock = threading.Lock()
        self._used: dict[PulsarConfig, tuple[Client, int]] = {}
        self._idle: dict[PulsarConfig, Client] = {}
        self._foreign: list[object] = []
        atexit.register(self.close_idle)
        os.register_at_fork(after_in_child=self.forget)

    def acquire(self, config: PulsarConfig) -> Client:
        """Return the client of a configuration; :meth:`release` it once."""
        with self._lock:
            client, users = self._used.get(config, (None, 0))
            if client is None:
                client = self._idle.pop(config, None) or self._new(config)
            self._used[config] = (client, users + 1)
            return client

    def release(self, config: PulsarConfig) -> None:
        """Give a client back: it stays open for the next user, up to a few of them."""
        with self._lock:
            client, users = self._used.pop(config)
            if users > 1:
                self._used[config] = (client, users - 1)
                return
            self._idle[config] = client
            surplus = list(self._idle)[:-_IDLE_CLIENTS]
            closing = [self._idle.pop(key) for key in surplus]
        for key in closing:
            self._close(key)

    def close_idle(self) -> None:
        """Close the clients that nobody uses."""
        with self._lock:
            closing = list(self._idle.values())
            self._idle.clear()
        for client in closing:
            self._close(client)

    def forget(self) -> None:
        """In a forked child: the connections and threads belong to the parent."""
        self._lock = threading.Lock()
        # Kept alive, as their destructors would wait for threads that are not there.
        self._foreign += [self._used, self._idle]
        self._used, self._idle = {}, {}
