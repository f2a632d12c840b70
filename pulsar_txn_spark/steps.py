"""The numbered steps of the protocol, and the hook by which tests stop a process at one of them.

The crash suites walk through :class:`Step`; a new step is added here and nowhere else, so it
cannot be forgotten. Without ``PULSAR_TXN_SPARK_FAULT`` in the environment the hook costs an empty
loop.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pulsar_txn_spark.backports import StrEnum


class Step(StrEnum):
    """One step of a transaction's way, in the order in which a batch goes through them.

    The last three are those of a split, merge or seal, which may come at any time. The first has
    the number 1; docs/protocol.md, docstrings and comments say ``step <number>, <name>``. Steps of
    another procedure are named after it, as in ``retention step 3``.
    """

    BEGIN = "begin"
    INTENT = "intent"
    PIN = "pin"
    APPEND = "append"
    OP_RECORD = "op-record"
    OP_BATCH = "op-batch"
    PENDING_ACK = "pending-ack"
    DECIDE = "header-cas"
    MATERIALIZE = "materialize"
    SPARK_COMMIT_LOG = "spark-commit-log"
    PLAN_CHILDREN = "plan-children"
    SEAL_LOG = "seal-log"
    ACTIVATE_CHILDREN = "activate-children"


class Phase(StrEnum):
    """When a fault strikes: before the step, after it, or after it with its reply lost."""

    BEFORE = "before"
    AFTER = "after"
    REPLY_LOST = "reply-lost"


FAULT = "PULSAR_TXN_SPARK_FAULT"
"""Environment: ``<step>:<phase>:<n>``, strike at the n-th (1-based) time, over all processes.

Several of them have commas between.
"""
FAULT_FILE = "PULSAR_TXN_SPARK_FAULT_FILE"
"""Environment: path prefix of the files ``<prefix>.<step>-<phase>.fired`` and ``.count``."""
FAULT_PGID = "PULSAR_TXN_SPARK_FAULT_PGID"
"""Environment: the process group to kill; without it only the striking process dies."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Where, when and how often a test wants the process stopped."""

    step: Step
    phase: Phase
    nth: int
    file: Path

    @classmethod
    def all_from_environment(cls) -> tuple[Fault, ...]:
        """Read the faults that the environment asks for.

        Raises
        ------
        ValueError
            If one is malformed: a misspelt fault would make a crash test pass for nothing.
        """
        faults = []
        for text in filter(None, os.environ.get(FAULT, "").split(",")):
            step, phase, nth = text.split(":")
            file = Path(f"{os.environ[FAULT_FILE]}.{step}-{phase}")
            faults.append(cls(Step(step), Phase(phase), int(nth), file))
        return tuple(faults)

    def strikes(self, step: Step, phase: Phase) -> bool:
        """Count one arrival and tell whether it is the one; true at most once in all processes."""
        if step is not self.step or phase is not self.phase:
            return False
        counter = os.open(f"{self.file}.count", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(counter, b".")
            arrivals = os.lseek(counter, 0, os.SEEK_CUR)
        finally:
            os.close(counter)
        if arrivals != self.nth:
            return False
        Path(f"{self.file}.fired").write_text(f"{step}:{phase}:{arrivals}", encoding="utf-8")
        return True


_faults = Fault.all_from_environment()


def reach(step: Step, phase: Phase) -> None:
    """Die here by SIGKILL if the environment asks for it."""
    for fault in _faults:
        if phase is not Phase.REPLY_LOST and fault.strikes(step, phase):
            group = os.environ.get(FAULT_PGID)
            if group:
                os.killpg(int(group), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


def reply_is_lost(step: Step) -> bool:
    """Tell whether the reply of this step, which has taken effect, is to be thrown away."""
    return any(fault.strikes(step, Phase.REPLY_LOST) for fault in _faults)


@contextmanager
def at_once(*passed: Step) -> Iterator[None]:
    """Run the body as several steps that are one: nobody can die between them."""
    for step in passed:
        reach(step, Phase.BEFORE)
    yield
    for step in passed:
        reach(step, Phase.AFTER)


@contextmanager
def at(step: Step) -> Iterator[None]:
    """Run the body as one step of the protocol."""
    reach(step, Phase.BEFORE)
    yield
    reach(step, Phase.AFTER)
