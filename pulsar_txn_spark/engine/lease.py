"""Keeping the leases of open transactions alive: the one heartbeat of tasks, scopes and clients."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from pulsar_txn_spark.errors import (
    PulsarTxnError,
    StoreError,
    TransactionAbortedError,
    TransactionNotFoundError,
)

_LOG = logging.getLogger(__name__)
_BEATS_PER_LEASE = 4  # so many heartbeats in a lease: three may be late before it ends


class Leased(Protocol):
    """What has a lease."""

    timeout_ms: int

    @property
    def tc(self) -> int | None:
        """Number of the coordinator that extends it; None if that is not known."""
        ...

    def beat(self) -> None:
        """Extend the lease."""
        ...

    def lost(self, error: PulsarTxnError) -> None:
        """Hear that somebody else has ended it. It must not wait for anything."""
        ...


class Leftover(Protocol):
    """What somebody leaves behind who is dropped without an end."""

    @property
    def is_open(self) -> bool:
        """Whether there is something to close. It must not wait for anything."""
        ...

    def close(self) -> None:
        """Close it."""
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
    store may be back, or have room, before the lease is over. Leases of that coordinator stand
    behind those of others that are due, for one period at most. Each of them may take the store's
    whole timeout. The thread ends when it is to extend one, and there is none.

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
        self._failed_at: dict[int | None, float] = {}  # coordinators that did not answer last
        self._beating: Leased | None = None
        self._wakes_at = math.inf  # when the thread wakes by itself, while it waits
        self._thread: threading.Thread | None = None
        self._forgotten: deque[Leftover] = deque()
        self._pid = os.getpid()

    def keep(self, leased: Leased) -> None:
        """Extend a lease from now on.

        Raises
        ------
        RuntimeError
            If no thread can be started for it: then nobody extends it.
        """
        with self._changed:
            if self._thread is None:
                self._start()
            due = self._due[leased] = self._clock.now() + _period_s(leased)
            if due < self._wakes_at:
                self._changed.notify_all()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="pulsar-txn-leases", daemon=True)
        thread.start()
        # Not before: one that did not start would be taken for one that runs.
        self._thread = thread

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

    def forgotten(self, leftover: Leftover) -> None:
        """Hear that a lease's owner is gone, and what it has left open; from any finalizer.

        The thread closes it later: a finalizer may run in the middle of anything. What was left
        to a fork is its parent's.
        """
        if leftover.is_open and os.getpid() == self._pid:
            self._forgotten.append(leftover)

    def _run(self) -> None:
        while self._beat_next():
            pass

    def _beat_next(self) -> bool:
        """Wait for a lease to be due, and extend it; False when there is none left."""
        leased = self._next()
        if leased is not None:
            self._beat(leased)
        is_last = leased is None
        del leased  # or nobody could forget it meanwhile
        self._clean_up()
        return not is_last

    def _beat(self, leased: Leased) -> None:
        try:
            leased.beat()
            self._failed_at.pop(leased.tc, None)
        except StoreError:
            # It may answer, or have room, before the lease is over.
            self._failed_at[leased.tc] = self._clock.now()
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

    def _clean_up(self) -> None:
        """Close what was left open, until a lease is due: that one must not wait for it."""
        while True:
            try:
                leftover = self._forgotten.popleft()
            except IndexError:
                return
            try:
                leftover.close()
            except Exception as error:  # noqa: BLE001 - nobody else waits for it
                _LOG.warning("what a dropped owner had left open was not closed: %s", error)
            if self._is_due():
                return

    def _is_due(self) -> bool:
        with self._changed:
            now = self._clock.now()
            return any(due <= now for due in self._due.values())

    def _next(self) -> Leased | None:
        with self._changed:
            # One look, which keeps them alive. One that is dropped in this moment still counts in
            # the registry's length, and is not found there.
            while entries := list(self._due.items()):
                now = self._clock.now()
                leased, due = min(entries, key=partial(self._turn, now))
                del entries
                wait_s = due - now
                if wait_s <= 0:
                    self._due[leased] = self._clock.now() + _period_s(leased)
                    self._beating = leased
                    return leased
                self._wakes_at = due
                del leased  # or nobody could forget it meanwhile
                self._clock.wait(self._changed, wait_s)
            self._thread = None
            return None

    def _turn(self, now: float, entry: tuple[Leased, float]) -> tuple[float, float, float]:
        """Order leases: which is due first.

        Of those that are due now, one of a failing coordinator counts as due a period after its
        last failure. So only one of them at a time delays the others, and they are extended also
        where others are always due.
        """
        leased, due = entry
        failed_at = self._failed_at.get(leased.tc)
        delayed = due if failed_at is None else max(due, failed_at + _period_s(leased))
        return max(due, now), delayed, due


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

    tc = None

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
