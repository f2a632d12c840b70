"""A broker sends a call of the admin API on to another one, which may be gone."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from pulsar_txn_spark.backends.pulsar import redirects
from pulsar_txn_spark.backends.pulsar.admin_api import PulsarAdmin
from pulsar_txn_spark.backends.pulsar.redirects import ATTEMPTS
from pulsar_txn_spark.config import PulsarConfig, as_pairs
from pulsar_txn_spark.errors import SegmentLogUnavailableError, SegmentLogUnreachableError
from pulsar_txn_spark.segments.log import SegmentRef
from tests.support.fake_admin_api import FakeAdminApi, fake_admin_api

SEGMENT = SegmentRef("s1", "topic://public/default/t", "persistent://public/default/s1")
TOPIC = SEGMENT.log_name
TOKEN = {
    "authPluginClassName": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
    "authParams": "token:secret",
}
REDIRECT, UNREADY = 307, 503


@pytest.fixture
def opened() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def api() -> Iterator[FakeAdminApi]:
    with fake_admin_api() as api:
        api.create(SEGMENT)
        yield api


@pytest.fixture
def other() -> Iterator[FakeAdminApi]:
    with fake_admin_api() as other:
        other.create(SEGMENT)
        yield other


@pytest.fixture
def gone() -> Iterator[str]:
    """Give the URL of a broker that is gone; nobody else takes its port meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let pauses take no time, by a clock that counts them."""
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", lambda _pause_s: None)
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(pauses), sleep=pauses.append)
    monkeypatch.setattr(redirects, "time", clock)
    return pauses


@pytest.fixture
def admin_of(opened: contextlib.ExitStack) -> Callable[..., PulsarAdmin]:
    def admin_of(api: FakeAdminApi, **options: str) -> PulsarAdmin:
        config = PulsarConfig("pulsar://x", api.url, admin=as_pairs(options))
        admin = PulsarAdmin(config)
        opened.callback(admin.close)
        return admin

    return admin_of


def leads_to(url: str, times: int) -> Callable[[str], tuple[int, str] | None]:
    """Return what redirects so many requests."""
    left = iter(range(times))
    return lambda _path: None if next(left, None) is None else (REDIRECT, url)


def test_a_redirect_is_followed_with_the_credentials(
    api: FakeAdminApi, other: FakeAdminApi, admin_of: Callable[..., PulsarAdmin]
) -> None:
    api.instead = leads_to(other.url, 1)
    assert admin_of(api, **TOKEN).messages_since_load(TOPIC) == (0, 0)
    assert other.heard == [("GET", "Bearer secret")]


def test_a_call_begins_again_where_a_redirect_leads_to_a_broker_that_is_gone(
    api: FakeAdminApi, gone: str, pauses: list[float], admin_of: Callable[..., PulsarAdmin]
) -> None:
    admin = admin_of(api)
    api.instead = leads_to(gone, 9)
    assert admin.messages_since_load(TOPIC) == (0, 0)
    assert api.heard == [("GET", "")] * 10
    api.heard.clear()
    api.instead = leads_to(gone, 9)
    admin.unload(TOPIC)
    assert api.heard == [("PUT", "")] * 10
    assert len(pauses) == 18


def test_a_call_begins_again_where_a_redirect_leads_to_a_broker_that_is_not_ready(
    api: FakeAdminApi,
    other: FakeAdminApi,
    pauses: list[float],
    admin_of: Callable[..., PulsarAdmin],
) -> None:
    other.instead = lambda _path: (UNREADY, "")
    api.instead = leads_to(other.url, 9)
    assert admin_of(api).messages_since_load(TOPIC) == (0, 0)
    assert (len(api.heard), len(other.heard), len(pauses)) == (10, 9, 9)


def test_redirects_to_a_broker_that_is_gone_are_followed_for_a_bounded_time_and_it_is_named(
    api: FakeAdminApi, gone: str, pauses: list[float], admin_of: Callable[..., PulsarAdmin]
) -> None:
    api.instead = lambda _path: (REDIRECT, gone)
    named = gone.removeprefix("http://")
    with pytest.raises(SegmentLogUnavailableError, match=f"broker {named}, .*does not answer"):
        admin_of(api).messages_since_load(TOPIC)
    assert 28 < sum(pauses) <= 30


def test_a_status_that_says_something_to_the_caller_is_waited_for_a_short_time(
    api: FakeAdminApi,
    other: FakeAdminApi,
    pauses: list[float],
    admin_of: Callable[..., PulsarAdmin],
) -> None:
    """With transactions switched off, brokers answer 503 for ever."""
    other.instead = lambda _path: (UNREADY, "")
    api.instead = lambda _path: (REDIRECT, other.url)
    with pytest.raises(SegmentLogUnavailableError, match="503"):
        admin_of(api).transactions_of(TOPIC)
    assert len(other.heard) == ATTEMPTS + 1
    assert sum(pauses) < 3


def test_who_is_not_ready_without_a_redirect_is_asked_a_few_times(
    api: FakeAdminApi, pauses: list[float], admin_of: Callable[..., PulsarAdmin]
) -> None:
    api.instead = lambda _path: (UNREADY, "")
    with pytest.raises(SegmentLogUnavailableError, match="503"):
        admin_of(api).messages_since_load(TOPIC)
    assert len(api.heard) == ATTEMPTS + 1
    assert pauses == []


def test_a_call_that_may_be_under_way_is_not_begun_again_elsewhere(
    opened: contextlib.ExitStack,
    api: FakeAdminApi,
    other: FakeAdminApi,
    pauses: list[float],
    admin_of: Callable[..., PulsarAdmin],
) -> None:
    is_over = threading.Event()
    opened.callback(is_over.set)
    other.instead = lambda _path: (UNREADY, "") if is_over.wait() else None
    api.instead = lambda _path: (REDIRECT, other.url)
    with pytest.raises(SegmentLogUnavailableError, match="Read timed out"):
        admin_of(api, readTimeoutMs="100").messages_since_load(TOPIC)
    assert len(api.heard) == 1
    assert len(other.heard) == ATTEMPTS  # the redirect counts for one
    assert pauses == []


def test_a_redirect_from_https_to_http_gets_no_credentials(
    other: FakeAdminApi, certificates: Path, admin_of: Callable[..., PulsarAdmin]
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "broker.pem", certificates / "broker.key")
    with fake_admin_api(context) as api:
        api.instead = leads_to(other.url, 1)
        admin = admin_of(api, tlsTrustCertsFilePath=str(certificates / "ca.pem"), **TOKEN)
        with pytest.raises(SegmentLogUnavailableError, match="in clear") as refused:
            admin.messages_since_load(TOPIC)
        assert api.heard == [("GET", "Bearer secret")]
    assert other.heard == []
    assert other.url in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("status", [401, 403, 429, 500, UNREADY])
@pytest.mark.usefixtures("pauses")
def test_what_a_broker_answers_for_one_topic_says_nothing_of_the_others(
    status: int, api: FakeAdminApi, admin_of: Callable[..., PulsarAdmin]
) -> None:
    api.instead = lambda _path: (status, "")
    with pytest.raises(SegmentLogUnavailableError, match=str(status)) as caught:
        admin_of(api).messages_since_load(TOPIC)
    assert not isinstance(caught.value, SegmentLogUnreachableError)


@pytest.mark.usefixtures("pauses")
def test_the_broker_of_one_topic_that_is_away_or_slow_says_nothing_of_the_others(
    opened: contextlib.ExitStack,
    api: FakeAdminApi,
    gone: str,
    admin_of: Callable[..., PulsarAdmin],
) -> None:
    api.instead = lambda _path: (REDIRECT, gone)
    is_over = threading.Event()
    opened.callback(is_over.set)
    admin = admin_of(api, readTimeoutMs="100")
    for _ in range(2):
        with pytest.raises(SegmentLogUnavailableError) as caught:
            admin.messages_since_load(TOPIC)
        assert not isinstance(caught.value, SegmentLogUnreachableError)
        api.instead = lambda _path: (UNREADY, "") if is_over.wait() else None


@pytest.mark.usefixtures("pauses")
def test_an_admin_api_that_nobody_can_connect_to_is_away_for_every_topic(
    gone: str, admin_of: Callable[..., PulsarAdmin]
) -> None:
    with pytest.raises(SegmentLogUnreachableError, match="does not answer"):
        admin_of(FakeAdminApi(url=gone)).messages_since_load(TOPIC)
