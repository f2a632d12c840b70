"""Which of the package's guarantees hold for a job, and what takes the others away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame

from pulsar_txn_spark.backports import StrEnum
from pulsar_txn_spark.job import lineage
from pulsar_txn_spark.job.definition import Job, Source
from pulsar_txn_spark.job.views import Views
from pulsar_txn_spark.options import Options
from pulsar_txn_spark.spark.rows import KEY
from pulsar_txn_spark.store.redis.endpoint import Endpoint, parse_endpoint


class Verdict(StrEnum):
    """Whether a guarantee holds."""

    YES = "holds"
    NO = "does not hold"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Guarantee:
    """One guarantee.

    Parameters
    ----------
    name : str
    verdict : Verdict
    why : str
    """

    name: str
    verdict: Verdict
    why: str


def guarantees_of(views: Views, rows: Mapping[str, DataFrame]) -> Iterator[Guarantee]:
    """Yield what holds for a job.

    Parameters
    ----------
    views : Views
        Of the analyzer, without problems.
    rows : mapping of str to DataFrame
        What each sink writes of a micro-batch.
    """
    job, name = views.job, views.micro_batch
    frame = views.frames[name] if name is not None else None
    yield _once(job)
    yield _atomic(job)
    yield _input(job)
    yield _order(job, views, frame, rows)
    yield _repeatable(job, frame, rows)
    yield from _current(job)
    yield from _place(job)


def _once(job: Job) -> Guarantee:
    name = "exactly once"
    if job.parsed_transaction().get("store.acceptDataLoss"):
        return Guarantee(
            name, Verdict.NO, "store.acceptDataLoss: the store may forget what it has acknowledged"
        )
    if job.is_batch:
        return Guarantee(
            name,
            Verdict.NO,
            'trigger = "batch" has no checkpoint: each run is atomic, and a second run writes its '
            "rows again",
        )
    foreign = [source.name for source in job.sources if source.stream and not source.is_own]
    if foreign:
        return Guarantee(
            name,
            Verdict.UNKNOWN,
            f"it needs sources that give the same rows again: see to it of {', '.join(foreign)}",
        )
    lossy = [source.name for source in _own(job) if not source.parsed().get("failOnDataLoss")]
    if lossy:
        return Guarantee(
            name,
            Verdict.NO,
            f"failOnDataLoss=false of {', '.join(lossy)}: rows that retention deleted unread are "
            "skipped",
        )
    return Guarantee(name, Verdict.YES, "each micro-batch is one transaction, also after a crash")


def _atomic(job: Job) -> Guarantee:
    name = "all sinks together"
    external = [sink.name for sink in job.sinks if not sink.is_own]
    if external:
        return Guarantee(
            name,
            Verdict.NO,
            f"{', '.join(external)}: an external sink is no part of the transaction, and gets the "
            "rows of a repeated micro-batch again (at least once)",
        )
    topics = len(job.sinks)
    return Guarantee(
        name, Verdict.YES, "one transaction" + (f" over {topics} sinks" if topics > 1 else "")
    )


def _input(job: Job) -> Guarantee:
    name = "input with output"
    if job.is_batch:
        return Guarantee(name, Verdict.NO, "a batch acknowledges nothing")
    without = [source.name for source in _own(job) if source.parsed().get("subscription") is None]
    if without:
        return Guarantee(
            name,
            Verdict.NO,
            f"{', '.join(without)} has no 'subscription': only the checkpoint knows what was read, "
            "and retention keeps nothing for the job",
        )
    if not _own(job):
        return Guarantee(name, Verdict.NO, "no source of pulsar_txn streams")
    written = _store(job.parsed_transaction())
    elsewhere = [source.name for source in _own(job) if _store(source.parsed()) != written]
    if elsewhere:
        return Guarantee(
            name,
            Verdict.NO,
            f"{', '.join(elsewhere)} names another metadata store than the sinks. On another one a "
            "subscription moves after their transaction",
        )
    return Guarantee(name, Verdict.YES, "subscriptions move in the transaction of the sinks")


def _order(
    job: Job, views: Views, frame: DataFrame | None, rows: Mapping[str, DataFrame]
) -> Guarantee:
    name = "order per key"
    if frame is None:
        return Guarantee(name, Verdict.UNKNOWN, "some views were not analyzed")
    keyed = [key.partition(":")[2] for key, df in rows.items() if KEY in df.columns]
    own = [sink for sink in job.sinks if sink.is_own]
    if own and not keyed:
        return Guarantee(name, Verdict.NO, f"no sink writes a column {KEY}: rows have no key")
    split = [
        source.name for source in _own(job) if source.parsed().get("minPartitions") is not None
    ]
    if split:
        return Guarantee(
            name,
            Verdict.NO,
            f"minPartitions of {', '.join(split)}: several tasks read the rows of one key",
        )
    exchanges = lineage.shuffles(lineage.physical_plan(frame))
    if exchanges:
        return Guarantee(
            name,
            Verdict.NO,
            f"{_view(views)} has a shuffle (Exchange {', '.join(exchanges)}): rows of one key come "
            "from several tasks in any order",
        )
    for key, written in rows.items():
        exchanges = lineage.shuffles(lineage.physical_plan(written))
        does = "sorts the rows of a micro-batch" if lineage.sorts(written) else ""
        does = f"has a shuffle (Exchange {', '.join(exchanges)})" if exchanges else does
        if does:
            return Guarantee(name, Verdict.NO, f"sink {key.partition(':')[2]!r} {does}")
    return _same_key(job, views, frame, rows)


def _same_key(job: Job, views: Views, frame: DataFrame, rows: Mapping[str, DataFrame]) -> Guarantee:
    name = "order per key"
    origins = {lineage.key_id(views.frames[source.name]) for source in _own(job)} - {None}
    batch = lineage.key_id(frame)
    kept = lineage.keeps_key(frame, {origin for origin in origins if origin is not None})
    view = views.micro_batch or ""
    current = lineage.key_id(frame.sparkSession.table(view))
    for key, written in rows.items():
        if KEY not in written.columns:
            continue
        passed = current is not None and lineage.keeps_key(written, {current})
        if batch is None or not kept or not passed:
            sink = key.partition(":")[2]
            return Guarantee(
                name,
                Verdict.NO,
                f"sink {sink!r} has another key than the source: rows of one key may come from "
                "several segments, and so from several tasks",
            )
    return Guarantee(name, Verdict.YES, "no shuffle, and the keys of the source")


def _repeatable(job: Job, frame: DataFrame | None, rows: Mapping[str, DataFrame]) -> Guarantee:
    name = "the same rows in a replay"
    if frame is None:
        return Guarantee(name, Verdict.UNKNOWN, "some views were not analyzed")
    random = lineage.random_functions(frame)
    for written in rows.values():
        random += lineage.random_functions(written)
        random += lineage.clock_functions(written)
    if random:
        listed = ", ".join(f"{function}()" for function in dict.fromkeys(random))
        return Guarantee(
            name,
            Verdict.NO,
            f"{listed}: an attempt that is repeated computes other values. Only one attempt "
            "becomes visible",
        )
    static = [source.name for source in job.sources if not source.stream]
    if static and not job.is_batch:
        return Guarantee(
            name,
            Verdict.UNKNOWN,
            f"{', '.join(static)}: a static source may have changed. Only one attempt becomes "
            "visible",
        )
    python = [step.name for step in job.steps if step.python is not None]
    if python:
        return Guarantee(
            name, Verdict.UNKNOWN, f"{', '.join(python)}: Spark cannot tell for Python functions"
        )
    return Guarantee(name, Verdict.YES, "all functions give the same value again")


def _current(job: Job) -> Iterator[Guarantee]:
    static = [source.name for source in job.sources if not source.stream]
    if static and not job.is_batch:
        yield Guarantee(
            "current static sources",
            Verdict.NO,
            f"{', '.join(static)}: Spark plans a static source once, in the first micro-batch "
            "since the start",
        )


def _place(job: Job) -> Iterator[Guarantee]:
    master = job.spark.get("spark.master", "local")
    if job.parsed_transaction().get("store.url") is None and not master.startswith("local"):
        yield Guarantee(
            "reachable by executors",
            Verdict.NO,
            "the embedded server is for one host and one user: set store.url",
        )


def _own(job: Job) -> list[Source]:
    return [source for source in job.sources if source.is_own and source.stream]


def _store(options: Options) -> Endpoint:
    """Return where a metadata store is, whoever connects to it."""
    return replace(parse_endpoint(options.store), username=None, password=None)


def _view(views: Views) -> str:
    return f"view {views.micro_batch!r}"


def as_row(guarantee: Guarantee) -> dict[str, Any]:
    """Return a guarantee for JSON."""
    return {"name": guarantee.name, "holds": str(guarantee.verdict), "why": guarantee.why}
