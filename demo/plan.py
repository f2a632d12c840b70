"""Where the job is killed, and what each of these places is an example of."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from pulsar_txn_spark.steps import Phase, Step


@dataclass(frozen=True, slots=True)
class Kill:
    """Where the driver is killed, and what that leaves behind.

    Parameters
    ----------
    step, phase
        The step of the protocol.
    nth : int
        At which of this run's arrivals there. Of a batch, each of its four tasks arrives at
        the first steps; the last ones are the batch's.
    meaning : str
        What the kill leaves behind.
    repair : str
        What the next run makes of it.
    leaves_aborted : bool
        Whether the batch's first transaction was undecided and had rows in the logs.
    """

    step: Step
    phase: Phase
    nth: int
    meaning: str
    repair: str
    leaves_aborted: bool

    @property
    def fault(self) -> str:
        """Return the form that the package's fault hook reads."""
        return f"{self.step}:{self.phase}:{self.nth}"

    @property
    def place(self) -> str:
        """Return the place as a person reads it."""
        return f"{self.phase} {self.step}"


_WRITTEN_ANEW = "its transaction was aborted at once, the batch written anew"
_REPLAYED = "replayed, and nothing was written twice"

KILLS = (
    Kill(
        Step.APPEND,
        Phase.AFTER,
        10,  # the second task of the third batch
        "some rows of the batch are in the logs, others are not",
        _WRITTEN_ANEW,
        leaves_aborted=True,
    ),
    Kill(
        Step.PENDING_ACK,
        Phase.AFTER,
        3,
        "all rows are in the logs and the input is acknowledged, but nothing is decided",
        _WRITTEN_ANEW,
        leaves_aborted=True,
    ),
    Kill(
        Step.DECIDE,
        Phase.AFTER,
        3,
        "the transaction is committed, but nobody has been told",
        _REPLAYED,
        leaves_aborted=False,
    ),
    Kill(
        Step.SPARK_COMMIT_LOG,
        Phase.BEFORE,
        3,
        "the rows are visible, but Spark does not know that its batch is through",
        _REPLAYED,
        leaves_aborted=False,
    ),
    Kill(
        Step.PIN,
        Phase.AFTER,
        10,
        "readers wait for rows that will never come",
        _WRITTEN_ANEW,
        leaves_aborted=False,
    ),
)
"""In the order in which they happen, each in a run of its own."""

JOB_KILLS = KILLS[1:4]
"""Those of a job on a cluster: the driver takes these steps, whose tasks run elsewhere."""

WORKER_KILLED_AFTER = 2
"""Micro-batches of a run of the job on a cluster, until a worker is killed in the next one."""

_TASK_STEPS = {Step.APPEND: 12, Step.PIN: 12}
_BATCH_NTH = 3


def random_kills(count: int, seed: int) -> tuple[Kill, ...]:
    """Draw kills: which of them, in which order, and at which arrival."""
    chance = random.Random(seed)  # noqa: S311 - nothing secret hangs on it
    return tuple(
        replace(kill, nth=chance.randint(1, _TASK_STEPS.get(kill.step, _BATCH_NTH)))
        for kill in chance.sample(KILLS, count)
    )


USUAL_KILLS = 4
ROWS_PER_BATCH = 30_000
"""Gives 14 batches: each run gets through some before it is killed, the last one through more."""
