"""Metrics of a real query: what Spark's workers did is seen at the source's endpoint."""

from __future__ import annotations

import urllib.request
from collections import defaultdict
from collections.abc import Iterable

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from integration.support.spark import NO_PANDAS_3, Lab, ended, until
from pulsar_txn_spark import prometheus, serve_metrics
from pulsar_txn_spark.testing.pulsar_server import free_ports

pytestmark = pytest.mark.filterwarnings(NO_PANDAS_3)


Samples = defaultdict[str, float]


def summed(families: Iterable[Metric]) -> Samples:
    """Return the samples summed up over their labels."""
    found: Samples = defaultdict(float)
    for family in families:
        for sample in family.samples:
            found[sample.name] += sample.value
    return found


def scrape(port: int) -> Samples:
    """Ask an endpoint."""
    url = f"http://127.0.0.1:{port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return summed(text_string_to_metric_families(answer.read().decode()))


def before(lab: Lab) -> Samples:
    """Return what other tests have left in the store."""
    return summed(prometheus.StoreMetrics(lab.run).families())


def since(start: Samples, found: Samples) -> Samples:
    """Return the difference."""
    difference: Samples = defaultdict(float)
    difference.update({name: value - start[name] for name, value in found.items()})
    return difference


def test_a_source_shows_what_the_tasks_and_the_commits_of_its_query_have_done(lab: Lab) -> None:
    (port,) = free_ports(1)
    source, target = lab.topic(2, name="in"), lab.topic(2, name="out")
    lab.produce(source, "a", "b")
    lab.produce(source, "c", segment=1)
    start = before(lab)
    df = lab.source(source, subscription="s", startingOffsets="subscription", metrics__port=port)
    writer = lab.sink(df, target, lab.checkpoint())
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        until(lambda: lab.visible(target) == ["a", "b", "c"])
        lab.produce(source, "d")
        until(lambda: lab.visible(target) == ["a", "b", "c", "d"])
        found = since(start, scrape(port))
    finally:
        query.stop()
    ended(query)
    assert found["pulsar_txn_commits_total"] == 2
    assert found["pulsar_txn_micro_batch_messages_count"] == 2
    assert found["pulsar_txn_micro_batch_messages_sum"] == 4
    assert found["pulsar_txn_micro_batch_bytes_sum"] > 4
    # At least: begin (two), intent, pin and operation record of a task; plans, intent and pending
    # acknowledgement of the commit, and its decision.
    assert found["pulsar_txn_micro_batch_round_trips_sum"] >= 2 * 9
    total = found["pulsar_txn_store_round_trips_total"]
    assert total > found["pulsar_txn_micro_batch_round_trips_sum"]
    assert found["pulsar_txn_metadata_store_op_writes_total"] >= 3
    assert found["pulsar_broker_using_txn_topics_count"] == 1


def test_an_endpoint_of_the_driver_shows_who_blocks_readers(lab: Lab) -> None:
    topic = lab.topic()
    start = before(lab)
    blocking = lab.open_txn(topic, "x", "y")
    server = serve_metrics(lab.options)
    try:
        found = since(start, scrape(server.port))
        assert found["pulsar_txn_open_transactions"] == 1
        assert found["pulsar_txn_max_read_position_lag_messages"] == 2
        blocking.abort()
        until(lambda: since(start, scrape(server.port))["pulsar_txn_aborts_total"] == 1)
        found = since(start, scrape(server.port))
        assert found["pulsar_txn_max_read_position_lag_messages"] == 0
        assert found["pulsar_txn_dropped_writers"] == 1
    finally:
        prometheus.stop_serving()
