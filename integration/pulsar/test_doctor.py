"""The doctor at a real Pulsar: deduplication that somebody switched off is found."""

from __future__ import annotations

import time
from pathlib import Path

import pulsar_txn_spark
from integration.support.admin_rest import AdminRest, path_of
from pulsar_txn_spark.cli.doctor import Finding, Level, examine
from pulsar_txn_spark.store.redis.server import stop_server
from pulsar_txn_spark.testing.pulsar_server import Broker

SETTLE_SECONDS = 30  # a policy travels through a system topic: usually a second or two


def deduplication(options: dict[str, str]) -> list[Finding]:
    # Of the others, some have something to say of what other tests have left in the store.
    return [one for one in examine(options) if one.check == "Pulsar deduplication"]


def wrong(options: dict[str, str]) -> list[Finding]:
    return [one for one in deduplication(options) if one.level is not Level.OK]


def test_deduplication_that_somebody_switched_off_is_found(
    pulsar: Broker, api: AdminRest, tmp_path: Path
) -> None:
    store = str(tmp_path / "store")  # of its own: others leave topics of the other backend behind
    options = {
        "store.path": store,
        "service.url": pulsar.service_url,
        "admin.url": pulsar.admin_url,
    }
    name = f"doctor-{tmp_path.name}"
    topology = pulsar_txn_spark.Admin(options).create_topic(name, segments=2)
    try:
        assert deduplication(options) != []
        assert wrong(options) == []
        log_name = topology.segments[0].ref.log_name
        api("POST", f"{path_of(log_name)}/deduplicationEnabled", False)
        deadline = time.monotonic() + SETTLE_SECONDS
        while not wrong(options) and time.monotonic() < deadline:
            time.sleep(0.1)  # Pulsar has no event for it
        (one,) = wrong(options)
        assert one.level is Level.ERROR
        assert log_name in one.found
        assert log_name in one.remedy
    finally:
        pulsar_txn_spark.Admin(options).delete_topic(name)
        stop_server(store)
