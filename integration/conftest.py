"""Servers that the integration tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from integration.support.admin_rest import AdminRest
from integration.support.broker_silence import found_silent
from integration.support.shared_broker import SILENT, shared_broker
from integration.support.spark import any_lab, embedded, lab, spark  # noqa: F401 — fixtures
from pulsar_txn_spark.testing.pulsar_server import Broker, NoBrokerError

pytest.register_assert_rewrite("tests.contract.segment_log")


@pytest.fixture(scope="session")
def pulsar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Give a real broker with `service_url` and `admin_url`; see `choose_broker` for which.

    Processes that share the tests out share it: names of topics are a test's own.
    """
    folder, owner = tmp_path_factory.getbasetemp(), os.getpid()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder, owner = folder.parent, os.getppid()
    try:
        broker = shared_broker(folder, owner)
    except NoBrokerError as none:
        pytest.skip(str(none))
    yield broker
    silent = found_silent(folder / SILENT)
    assert silent is None, silent


@pytest.fixture
def api(pulsar: Broker) -> Iterator[AdminRest]:
    """Give the admin REST API of the broker."""
    api = AdminRest(pulsar.admin_url)
    yield api
    api.close()
