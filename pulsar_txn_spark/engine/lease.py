"""Keeping the leases of open transactions alive: the one heartbeat of tasks, scopes and clients."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from pulsar_txn_spark.errors import (
    PulsarTxnError,
    StoreError,
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


class Clock(Protocol):
    """What the heartbeat knows of time."""

    def now(self) -> float:
        """Return seconds that never run backwards."""
        ...

    def wait(self, changed: threading.Condition, seconds: float) -> None:
        """Wait so long, or until something has changed; called with the condition held."""
        ...


class _SystemClock:
    """The time of this machine."""

    def now(self) -> float:
        return time.monotonic()

    def wait(self, changed: threading.Condition, seconds: float) -> None:
        changed.wait(seconds)


class Leases:
    """Extends leases until they are let go, or lost, or nobody has them any more.

    A heartbeat that the store does not answer, or refuses, is tried again in the next period. The
    store may be back, or have room, before the lease is over. The thread ends when it is to extend
    one, and there is none.

    Parameters
    ----------
    clock : Clock, optional
        This machine's by default.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or _SystemClock()
        self._changed = threading.Condition()
        # Weak: a transaction that nobody can end any more must not live for ever.
        self._due: weakref.WeakKeyDictionary[Leased, float] = weakref.WeakKeyDictionary()
        self._beating: Leased | None = None
        self._wakes_at = math.inf  # when the thread wakes by itself, while it waits
        self._thread: threading.Thread | None = None
        self._forgotten: deque[Callable[[], None]] = deque()

    def keep(self, leased: Leased) -> None:
        """Extend a lease from now on."""
        with self._changed:
            due = self._due[leased] = self._clock.now() + _period_s(leased)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="pulsar-txn-leases", daemon=True
                )
                self._thread.start()
            elif due < self._wakes_at:
                self._changed.notify_all()

    def let_go(self, leased: Leased) -> None:
        """Extend it no more; idempotent. A heartbeat of this moment may still come.

        The thread is not woken for it: a service does this a thousand times a second.
        """
        with self._changed:
            self._due.pop(leased, None)

    @contextmanager
    def kept(self, leased: Leased) -> Iterator[None]:
        """Extend a lease within a block; no heartbeat comes after it."""
        self.keep(leased)
        try:
            yield
        finally:
            self.end(leased)

    def end(self, leased: Leased) -> None:
        """Extend it no more, and wait for a heartbeat of this moment; idempotent."""
        self.let_go(leased)
        with self._changed:
            self._changed.notify_all()  # so that the thread ends, if this was the last one
            self._changed.wait_for(lambda: self._beating is not leased)

    def forgotten(self, clean_up: Callable[[], None]) -> None:
        """Hear that a lease's owner is gone, and what is to be cleaned up; from any finalizer.

        It is done later, by the thread: a finalizer may run in the middle of anything.
        """
        self._forgotten.append(clean_up)

    def _run(self) -> None:
        while self._beat_next():
            pass

    def _beat_next(self) -> bool:
        """Wait for a lease to be due, and extend it; False when there is none left."""
        leased = self._next()
        while self._forgotten:
            self._forgotten.popleft()()
        if leased is None:
            return False
        try:
            leased.beat()
        except StoreError:
            pass  # it may answer, or have room, before the lease is over
        except (TransactionAbortedError, TransactionNotFoundError) as error:
            self.let_go(leased)
            leased.lost(error)
        except Exception:  # noqa: BLE001 - one owner's error must not end the leases of all others
            # Its owner has ended it in this moment, or meets the same error and reports it.
            self.let_go(leased)
        finally:
            with self._changed:
                self._beating = None
                self._changed.notify_all()
        return True

    def _next(self) -> Leased | None:
        with self._changed:
            while self._due:
                leased = min(self._due, key=self._due.__getitem__)
                wait_s = self._due[leased] - self._clock.now()
                if wait_s <= 0:
                    self._due[leased] = self._clock.now() + _period_s(leased)
                    self._beating = leased
                    return leased
                self._wakes_at = self._due[leased]
                del leased  # or nobody could forget it meanwhile
                self._clock.wait(self._changed, wait_s)
            self._thread = None
            return None


def _period_s(leased: Leased) -> float:
    return leased.timeout_ms / 1000 / _BEATS_PER_LEASE


class Lease:
    """The lease of a transaction whose owner looks for itself whether it is lost.

    Parameters
    ----------
    timeout_ms : int
    extend : callable
        Extends it in the store. It does not refer to the owner, or that could not be dropped.
    """

    def __init__(self, timeout_ms: int, extend: Callable[[], None]) -> None:
        self.timeout_ms = timeout_ms
        self._extend = extend
        self._lost: PulsarTxnError | None = None

    def beat(self) -> None:
        """Extend the lease."""
        self._extend()

    def lost(self, error: PulsarTxnError) -> None:
        """Note that somebody else has ended the transaction."""
        self._lost = error

    def require(self) -> None:
        """Raise if it is known to be lost: what is written from now on would be dropped.

        Raises
        ------
        TransactionAbortedError
        """
        if self._lost is not None:
            raise TransactionAbortedError(
                f"the transaction was ended by somebody else ({self._lost}): nothing of it is "
                "visible, and nothing more is written"
            ) from self._lost
