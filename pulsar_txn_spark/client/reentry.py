"""Calls that a signal handler makes while it has interrupted another call of its thread.

The handler runs on top of that call, which cannot go on before it returns. So to wait for a lock
that the call holds is to wait for ever. To enter the lock again is to meet half a change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threading import RLock


def is_interrupted(lock: RLock) -> bool:
    """Tell whether this very thread holds a lock: a signal handler asks, amid its call.

    Whoever takes the lock asks before. The answer holds until then: a handler that comes between
    lets go of all that it takes.
    """
    # The lock itself knows from the very moment on; what is noted behind it would come too late.
    return lock._is_owned()  # type: ignore[attr-defined,no-any-return]  # noqa: SLF001


def refuse_reentry(lock: RLock, call: str) -> None:
    """Raise where a signal handler has interrupted who holds a lock.

    Raises
    ------
    RuntimeError
    """
    if is_interrupted(lock):
        raise RuntimeError(
            f"{call} was called by a signal handler, which has interrupted another call on the "
            "same object. It can neither wait for that one nor go before it, so nothing was done. "
            "In a handler close the consumer, and do the rest behind its loop"
        )
