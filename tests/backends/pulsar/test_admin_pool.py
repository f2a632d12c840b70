"""TLS files of the admin API are renewed while a process uses them."""

from __future__ import annotations

import shutil
import ssl
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from pulsar_txn_spark.backends.pulsar.admin_api import PulsarAdmin
from pulsar_txn_spark.backends.pulsar.admin_pool import AdminPool
from pulsar_txn_spark.backends.pulsar.tls import TlsSettings
from pulsar_txn_spark.config import PulsarConfig, as_pairs
from pulsar_txn_spark.segments.log import SegmentRef
from tests.support.fake_admin_api import FakeAdminApi, fake_admin_api

SEGMENT = SegmentRef("s1", "topic://public/default/t", "persistent://public/default/s1")
TOPIC = SEGMENT.log_name


@pytest.fixture
def api(certificates: Path) -> Iterator[FakeAdminApi]:
    """Serve with TLS, for clients with a certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates / "ca.pem")
    context.load_cert_chain(certificates / "broker.pem", certificates / "broker.key")
    context.verify_mode = ssl.CERT_REQUIRED
    with fake_admin_api(context) as api:
        api.create(SEGMENT)
        yield api


@pytest.fixture
def renew(certificates: Path, tmp_path: Path) -> Callable[[str], None]:
    """Give what puts a certificate and its key in the place of the client's."""

    def renew(name: str) -> None:
        for kind in ("key", "pem"):
            shutil.copy(certificates / f"{name}.{kind}", tmp_path / f"new.{kind}")
            (tmp_path / f"new.{kind}").replace(tmp_path / f"client.{kind}")

    renew("us")
    return renew


@pytest.fixture
def admin(
    api: FakeAdminApi, certificates: Path, tmp_path: Path, renew: Callable[[str], None]
) -> Iterator[PulsarAdmin]:
    files = {
        "tlsTrustCertsFilePath": certificates / "ca.pem",
        "tlsCertificateFilePath": tmp_path / "client.pem",
        "tlsKeyFilePath": tmp_path / "client.key",
    }
    options = as_pairs({name: str(path) for name, path in files.items()})
    admin = PulsarAdmin(PulsarConfig("pulsar://x", api.url, admin=options))
    yield admin
    admin.close()


def test_a_renewed_certificate_is_shown_from_the_next_call_on(
    api: FakeAdminApi, admin: PulsarAdmin, renew: Callable[[str], None]
) -> None:
    pool: Any = admin._pool
    before = weakref.ref(pool._pool)
    for _ in range(2):
        assert admin.messages_since_load(TOPIC) == (0, 0)
    renew("broker")
    for _ in range(2):
        assert admin.messages_since_load(TOPIC) == (0, 0)
    assert api.certificates == ["us", "us", "broker", "broker"]
    assert before() is None, "and so its connections are closed"


def test_a_certificate_without_its_key_waits_for_it(
    api: FakeAdminApi,
    admin: PulsarAdmin,
    renew: Callable[[str], None],
    certificates: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    shutil.copy(certificates / "broker.pem", tmp_path / "client.pem")
    for _ in range(2):
        assert admin.messages_since_load(TOPIC) == (0, 0)
    [warning] = [record.getMessage() for record in caplog.records]
    assert "have changed, and those from before serve on" in warning
    (tmp_path / "client.key").unlink()
    assert admin.messages_since_load(TOPIC) == (0, 0)
    renew("broker")
    assert admin.messages_since_load(TOPIC) == (0, 0)
    assert api.certificates == ["us", "us", "us", "broker"]


def test_threads_make_one_pool_of_renewed_files(tmp_path: Path) -> None:
    trusted = tmp_path / "ca.pem"
    trusted.write_text("a")
    tls = TlsSettings(trust_file=str(trusted))
    made: list[mock.Mock] = []

    def new(_context: object) -> Any:
        made.append(mock.Mock())
        return made[-1]

    with mock.patch.object(TlsSettings, "context"), ThreadPoolExecutor(4) as threads:
        pool = AdminPool(new, tls)
        trusted.write_text("renewed")
        together = threading.Barrier(4)

        def send(_number: int) -> None:
            together.wait(5)
            pool.request("GET", "https://x")

        list(threads.map(send, range(4)))
    assert [one.request.call_count for one in made] == [0, 4]
    made[0].clear.assert_not_called()
