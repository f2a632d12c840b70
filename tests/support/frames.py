"""A DataFrame as a ``foreachBatch`` function writes it, without Spark."""

from __future__ import annotations

from typing import Self


class WritableFrame:
    """A DataFrame that is its own writer: `save`, which a test defines, calls the sink.

    Attributes
    ----------
    given : dict of str to str
        The options of the last write.
    """

    sparkSession = None  # noqa: N815 - as PySpark has it; like Spark Connect, without a context

    def __init__(self) -> None:
        self.given: dict[str, str] = {}

    @property
    def write(self) -> Self:
        return self

    def format(self, _: str) -> Self:
        return self

    def mode(self, _: str) -> Self:
        return self

    def options(self, **given: str) -> Self:
        self.given = given
        return self
