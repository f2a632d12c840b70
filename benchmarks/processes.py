"""Two processes that do a job at the same time, as Spark's two Python workers do."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Protocol, Self

_END_SECONDS = 10.0


class Job(Protocol):
    """One process's share of a benchmark; it is pickled."""

    def prepare(self) -> Callable[[], int]:
        """Do what is not measured, and return what is: a function that returns a count of rows."""
        ...


class Crew:
    """Processes that live through all repetitions, as Spark's workers do.

    Parameters
    ----------
    size : int
        How many.
    """

    def __init__(self, size: int) -> None:
        # Spawned: a fork would share the parent's connections and threads.
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pipe in self._pipes:
            pipe.close()  # the end of its input is the end of the process
        for process in self._processes:
            process.join(_END_SECONDS)
            if process.is_alive():
                process.kill()

    def time(self, jobs: Sequence[Job]) -> tuple[float, int]:
        """Run a job in each process at once; return seconds and rows.

        Raises
        ------
        RuntimeError
            If one fails.
        """
        for pipe, job in zip(self._pipes, jobs, strict=True):
            pipe.send(job)
        for pipe in self._pipes:
            _expect(pipe)
        began = time.perf_counter()
        for pipe in self._pipes:
            pipe.send("go")
        rows = sum(_expect(pipe) for pipe in self._pipes)
        return time.perf_counter() - began, rows


def _expect(pipe: Connection) -> int:
    answer: int | str = pipe.recv()
    if isinstance(answer, str):
        raise RuntimeError(f"a process of the benchmark failed: {answer}")  # noqa: TRY004 - no type error
    return answer


def _serve(pipe: Connection) -> None:
    while True:
        try:
            job: Job = pipe.recv()
        except EOFError:
            return
        try:
            measured = job.prepare()
            pipe.send(0)
            pipe.recv()
            pipe.send(measured())
        except Exception as error:  # noqa: BLE001 - told to the parent, which raises
            pipe.send(f"{type(error).__name__}: {error}")
