"""The Pulsar backend of the segment log: the contract suite, and what only Pulsar has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from integration.contract_segment_log import Harness, SegmentLogContract
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.pulsar_server import Broker
from pulsar_txn_spark.segments.pulsar_log import PulsarSegmentLog

PREFIX = "persistent://public/default/"


@pytest.fixture
def harness(pulsar: Broker) -> Iterator[Harness]:
    harness = Harness(
        log=PulsarSegmentLog(PulsarConfig(pulsar.service_url, pulsar.admin_url)),
        log_name_prefix=PREFIX,
        too_large_bytes=5 * 1024 * 1024 + 1,
        any_key=False,
    )
    yield harness
    harness.close()


class TestPulsarLog(SegmentLogContract):
    pass
