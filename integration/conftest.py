"""Servers that the integration tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from integration.support.admin_rest import AdminRest
from integration.support.spark import any_lab, embedded, lab, spark  # noqa: F401 — fixtures
from pulsar_txn_spark.testing.pulsar_server import Broker, NoBrokerError, choose_broker

pytest.register_assert_rewrite("tests.contract.segment_log")


@pytest.fixture(scope="session")
def pulsar() -> Iterator[Broker]:
    """Give a real broker with `service_url` and `admin_url`; see `choose_broker` for which."""
    try:
        chosen = choose_broker()
        broker = chosen.__enter__()
    except NoBrokerError as none:
        pytest.skip(str(none))
    try:
        yield broker
    finally:
        chosen.__exit__(None, None, None)


@pytest.fixture
def api(pulsar: Broker) -> Iterator[AdminRest]:
    """Give the admin REST API of the broker."""
    api = AdminRest(pulsar.admin_url)
    yield api
    api.close()
