"""Keeping the leases of a client's open transactions alive, from one thread."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Protocol

from pulsar_txn_spark.errors import (
    PulsarTxnError,
    StoreUnavailableError,
    TransactionAbortedError,
    TransactionNotFoundError,
)

_BEATS_PER_LEASE = 4  # so many heartbeats in a lease: three may be late before it ends


class Leased(Protocol):
    """What has a lease."""

    timeout_ms: int

    def beat(self) -> None:
        """Extend the lease."""
        ...

    def lost(self, error: PulsarTxnError) -> None:
        """Hear that somebody else has ended it. It must not wait for anything."""
        ...


class Leases:
    """Extends leases until they are let go. The thread runs only while there is one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # Weak: a transaction that nobody can end any more must not live for ever.
        self._due: weakref.WeakKeyDictionary[Leased, float] = weakref.WeakKeyDictionary()
        self._thread: threading.Thread | None = None
        self._forgotten: deque[Callable[[], None]] = deque()

    def keep(self, leased: Leased) -> None:
        """Extend a lease from now on."""
        with self._changed:
            self._due[leased] = time.monotonic() + _period_s(leased)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="pulsar-txn-leases", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def let_go(self, leased: Leased) -> None:
        """Extend it no more; again = no harm."""
        with self._changed:
            self._due.pop(leased, None)
            self._changed.notify_all()

    def _run(self) -> None:
        while self._beat_next():
            pass

    def forgotten(self, clean_up: Callable[[], None]) -> None:
        """Hear that a lease's owner is gone, and what is to be cleaned up; from any finalizer.

        It is done later, by the thread: a finalizer may run in the middle of anything.
        """
        self._forgotten.append(clean_up)

    def _beat_next(self) -> bool:
        """Wait for a lease to be due, and extend it; False when there is none left."""
        leased = self._next()
        while self._forgotten:
            self._forgotten.popleft()()
        if leased is None:
            return False
        try:
            leased.beat()
        except StoreUnavailableError:
            pass  # it may be back before the lease is over
        except (TransactionAbortedError, TransactionNotFoundError) as error:
            self.let_go(leased)
            leased.lost(error)
        except PulsarTxnError:
            # Its owner has ended it in this moment, or meets the same error and reports it.
            self.let_go(leased)
        return True

    def _next(self) -> Leased | None:
        with self._changed:
            while self._due:
                leased = min(self._due, key=self._due.__getitem__)
                wait_s = self._due[leased] - time.monotonic()
                if wait_s <= 0:
                    self._due[leased] = time.monotonic() + _period_s(leased)
                    return leased
                del leased  # or nobody could forget it meanwhile
                self._changed.wait(wait_s)
            self._thread = None
            return None


def _period_s(leased: Leased) -> float:
    return leased.timeout_ms / 1000 / _BEATS_PER_LEASE
