"""A job as values: what a checked file says. It is pickled to where ``foreachBatch`` runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pulsar_txn_spark.environment import FORMAT
from pulsar_txn_spark.job.keys import AVAILABLE_NOW, BATCH
from pulsar_txn_spark.job.problems import Place
from pulsar_txn_spark.job.secrets import Secrets
from pulsar_txn_spark.options import SCOPE_WRITE, Options, Use


@dataclass(frozen=True, slots=True)
class Watermark:
    """How late rows may come.

    Parameters
    ----------
    column : str
    delay : str
        An interval as Spark reads it.
    """

    column: str
    delay: str


@dataclass(frozen=True, slots=True)
class Source:
    """A view that is read from outside.

    Parameters
    ----------
    name : str
    place : Place
    format : str
    stream : bool
    options : mapping of str to str
        Of the format, those of the whole job included.
    decode : str
    schema : str or None
    keep_malformed : bool
    watermark : Watermark or None
    """

    name: str
    place: Place
    format: str
    stream: bool
    options: Mapping[str, str]
    decode: str = "bytes"
    schema: str | None = None
    keep_malformed: bool = False
    watermark: Watermark | None = None

    @property
    def is_own(self) -> bool:
        """Whether it is of this package."""
        return self.format == FORMAT

    def parsed(self) -> Options:
        """Return the options of a source of this package, which the file's reader has checked."""
        return Options(self.options, Use.READ | (Use.STREAM if self.stream else Use.BATCH))


@dataclass(frozen=True, slots=True)
class Step:
    """A view that is made of others: by SQL, or by a function.

    Parameters
    ----------
    name : str
    place : Place
    sql : str or None
    python : str or None
        ``module:function``.
    inputs : tuple of str
        Views that the function gets.
    watermark : Watermark or None
    """

    name: str
    place: Place
    sql: str | None
    python: str | None
    inputs: tuple[str, ...] = ()
    watermark: Watermark | None = None


@dataclass(frozen=True, slots=True)
class Sink:
    """What is written in each micro-batch.

    Parameters
    ----------
    name : str
    place : Place
    view : str or None
        None for the micro-batch.
    sql : str or None
        Instead of a view.
    topic : str or None
    json : bool
        Whether the columns are encoded.
    key : str or None
        Expression for ``__key``.
    format : str
    mode : str
        Of another format.
    options : mapping of str to str
        Of another format.
    """

    name: str
    place: Place
    view: str | None
    sql: str | None
    topic: str | None
    json: bool
    key: str | None
    format: str
    mode: str
    options: Mapping[str, str]

    @property
    def is_own(self) -> bool:
        """Whether it is of this package, and so part of the transaction."""
        return self.format == FORMAT


@dataclass(frozen=True, slots=True)
class Job:
    """A job.

    Parameters
    ----------
    file : str
        As it was named.
    folder : str
        Of the file.
    name : str
    checkpoint : str or None
        None in a batch.
    trigger : str
        ``availableNow``, ``batch``, an interval, or empty for none.
    output_mode : str
    persist : bool
    stop_timeout_s : float
    py_files : tuple of str
    spark : mapping of str to str
        Settings of Spark.
    options : mapping of str to str
        Of all sources and sinks.
    transaction : mapping of str to str
        Of the transaction, those of the whole job included.
    sources : tuple of Source
    steps : tuple of Step
    sinks : tuple of Sink
    secrets : Secrets
        Hides values in texts.
    """

    file: str
    folder: str
    name: str
    checkpoint: str | None
    trigger: str
    output_mode: str
    persist: bool
    stop_timeout_s: float
    py_files: tuple[str, ...]
    spark: Mapping[str, str]
    options: Mapping[str, str]
    transaction: Mapping[str, str]
    sources: tuple[Source, ...]
    steps: tuple[Step, ...]
    sinks: tuple[Sink, ...]
    secrets: Secrets = field(repr=False, compare=False)

    @property
    def is_batch(self) -> bool:
        """Whether it is no stream."""
        return self.trigger == BATCH

    def parsed_transaction(self) -> Options:
        """Return the options of the transaction, which the file's reader has checked."""
        return Options(self.transaction, SCOPE_WRITE)

    @property
    def is_available_now(self) -> bool:
        """Whether its stream ends by itself."""
        return self.trigger == AVAILABLE_NOW

    @property
    def views(self) -> tuple[str, ...]:
        """The names of all views, in their order."""
        views: tuple[Source | Step, ...] = (*self.sources, *self.steps)
        return tuple(view.name for view in views)
