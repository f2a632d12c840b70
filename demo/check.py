"""Reads the job's outputs as any reader would, and the raw logs below them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from demo.audit import Audit, Hidden, audit, hidden_by_broker, in_order
from demo.child import Settings
from demo.plain_consumers import PlainConsumers
from demo.proof import Expected, Message, Order, Verdict, by_key, compare, disordered
from demo.topics import FLIGHTS, OUTPUTS
from pulsar_txn_spark.backends.pulsar.admin_api import PulsarAdmin
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.engine.components import open_components
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.position import EARLIEST
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.txn.transaction_buffer import txn_of_writer


def read_committed(spark: SparkSession, settings: Settings, topic: str) -> Iterator[Message]:
    """Read a whole topic through Spark."""
    rows = (
        spark.read.format("pulsar_txn")
        .options(**settings.options)
        .option("topic", topic)
        .load()
        .select("__key", "value")
        .toArrow()
    )
    for key, value in zip(rows["__key"].to_pylist(), rows["value"].to_pylist(), strict=True):
        yield None if key is None else key.decode(), value


def audit_outputs(settings: Settings) -> Audit:
    """Read all that physically lies in the logs of the output topics."""
    components = open_components(Options(settings.options, Use.CONNECT))
    refs = {
        segment.ref.id: segment.ref
        for topic in OUTPUTS
        for segment in components.topics.require(TopicName.parse(topic)).readable
    }
    ranges = components.buffer.readable(
        list(refs),
        lambda segment: components.log.last_confirmed(refs[segment]),
        [EARLIEST] * len(refs),
    )
    admin = None
    if settings.gate == "broker":
        service_url, admin_url = (settings.options[name] for name in ("service.url", "admin.url"))
        admin = PulsarAdmin(PulsarConfig(service_url, admin_url))
    total = Audit()
    for ref, readable in zip(refs.values(), ranges, strict=True):
        assert not readable.blocked_by, f"{readable.blocked_by} is still open"
        how: Mapping[str, Hidden] = {}
        if admin is not None:
            how = {"hidden": partial(hidden_by_broker, admin, ref.log_name)}
        total += audit(components.log, ref, readable.visibility, **how)
    return total


def _read_in_order(settings: Settings, topic: str) -> Iterator[Message]:
    components = open_components(Options(settings.options, Use.CONNECT))
    for key, value in in_order(components, TopicName.parse(topic)):
        yield None if key is None else key.decode(), value


def keys_out_of_order(settings: Settings, before: Order) -> list[str]:
    """Hold the order of each key's rows in the outputs against that in the input."""
    after = {topic: by_key(_read_in_order(settings, topic)) for topic in OUTPUTS}
    return disordered(before, after)


def find(
    spark: SparkSession,
    settings: Settings,
    expected: Mapping[int, Expected],
    plain: PlainConsumers | None = None,
) -> dict[str, Any]:
    """Hold the outputs against the expectation, and count what lies in their logs.

    Returns
    -------
    dict
        Can be written as JSON. It has ``verdict`` (see :class:`~demo.proof.Verdict`) and
        ``audit`` (see :class:`~demo.audit.Audit`). ``disordered`` are the keys whose rows are not
        in the order in which they went in. ``plain`` has ``verdict`` and ``disordered`` of what the
        plain consumers received, and is None without them.
    """
    outputs = {topic: read_committed(spark, settings, topic) for topic in OUTPUTS}
    verdict = compare(expected, outputs)
    audited = audit_outputs(settings)
    before = by_key(_read_in_order(settings, FLIGHTS))
    return {
        "disordered": keys_out_of_order(settings, before),
        "verdict": _facts(verdict),
        "plain": None if plain is None else _of_plain(expected, before, plain),
        "audit": {
            "rows": audited.rows,
            "aborted_rows": audited.aborted_rows,
            "aborted_entries": audited.aborted_entries,
            "aborted_transactions": len(set(map(txn_of_writer, audited.aborted_writers))),
        },
    }


def _of_plain(
    expected: Mapping[int, Expected], before: Order, plain: PlainConsumers
) -> dict[str, Any]:
    received = plain.outputs()
    after = {topic: by_key(messages) for topic, messages in received.items()}
    return {
        "verdict": _facts(compare(expected, received)),
        "disordered": disordered(before, after),
    }


def _facts(verdict: Verdict) -> dict[str, Any]:
    return {
        "exact": verdict.exact,
        "expected": dict(verdict.expected),
        "read": dict(verdict.read),
        "missing": verdict.missing,
        "doubled": verdict.doubled,
        "wrong": verdict.wrong,
        "examples": verdict.examples,
    }
