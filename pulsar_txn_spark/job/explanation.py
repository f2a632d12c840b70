"""What ``pulsar-txn job explain`` tells of a job, as values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame

from pulsar_txn_spark.job.definition import Job, Sink, Source
from pulsar_txn_spark.job.guarantees import as_row, guarantees_of
from pulsar_txn_spark.job.lineage import physical_plan
from pulsar_txn_spark.job.views import Views
from pulsar_txn_spark.spark.rows import TOPIC

_READING = ("topic", "topics", "topicsPattern")


def explanation_of(views: Views, rows: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Return the parts of an explanation.

    Parameters
    ----------
    views : Views
        Of the analyzer, without problems.
    rows : mapping of str to DataFrame
        What each sink writes.

    Returns
    -------
    dict
        Can be written as JSON: ``job``, ``reads``, ``writes``, ``guarantees``, ``plan`` and
        ``notes``.
    """
    job, name = views.job, views.micro_batch
    notes = [
        f"view {view!r} was not analyzed: name its columns by 'schema'"
        for view in job.views
        if view in views.unknown
    ]
    return {
        "job": _head(job, name),
        "reads": [_source(source) for source in job.sources],
        "writes": [_sink(job, sink, rows, number) for number, sink in enumerate(job.sinks)],
        "guarantees": [as_row(guarantee) for guarantee in guarantees_of(views, rows)],
        "plan": "" if name is None else physical_plan(views.frames[name]),
        "notes": notes,
    }


def _head(job: Job, micro_batch: str | None) -> dict[str, str]:
    trigger = job.trigger or "a new micro-batch at once"
    rows = {"name": job.name, "trigger": trigger}
    if not job.is_batch:
        rows |= {"checkpoint": job.checkpoint or "", "output mode": job.output_mode}
    rows["micro-batch"] = micro_batch or "not known"
    rows["steps"] = " → ".join(step.name for step in job.steps) or "none"
    return rows


def _source(source: Source) -> dict[str, str]:
    if not source.is_own:
        return {
            "view": source.name,
            "from": _files(source.format, source.options),
            "how": "stream" if source.stream else "static",
        }
    options = source.parsed()
    values = [options.get(key) for key in _READING]
    topic, topics, pattern = values
    names = ", ".join(map(str, topics or ([topic] if topic else [pattern])))
    subscription = options.explicit("subscription")
    how = "stream" if source.stream else "static"
    if subscription is not None:
        how += f", subscription {subscription}"
    return {"view": source.name, "from": names, "how": how}


def _sink(job: Job, sink: Sink, rows: Mapping[str, DataFrame], number: int) -> dict[str, str]:
    if not sink.is_own:
        to = _files(sink.format, sink.options)
        return {"sink": sink.name, "to": to, "how": f"{sink.mode}, no part of the transaction"}
    domains = job.parsed_transaction().domains
    frame = rows.get(f"{number}:{sink.name}")
    to = f"the column {TOPIC}" if sink.topic is None else str(domains.segmented(sink.topic))
    columns = "" if frame is None else ", ".join(frame.columns)
    return {"sink": sink.name, "to": to, "how": columns}


def _files(name: str, of_format: Mapping[str, str]) -> str:
    return f"{name} {of_format['path']}" if "path" in of_format else name
