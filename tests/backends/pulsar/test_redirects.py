"""Who is to answer a call of the admin API is away: the broker of a topic, or all of them."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from urllib3.exceptions import MaxRetryError, ProtocolError, SSLError

from pulsar_txn_spark.backends.pulsar import admin_api, redirects
from pulsar_txn_spark.backends.pulsar.admin_api import PulsarAdmin
from pulsar_txn_spark.backends.pulsar.redirects import ATTEMPTS, FEW_TRIES
from pulsar_txn_spark.config import PulsarConfig, as_pairs
from pulsar_txn_spark.errors import (
    SegmentLogError,
    SegmentLogUnavailableError,
    SegmentLogUnreachableError,
)
from pulsar_txn_spark.segments.log import SegmentRef
from tests.support.fake_admin_api import FakeAdminApi, fake_admin_api

SEGMENT = SegmentRef("s1", "topic://public/default/t", "persistent://public/default/s1")
TOPIC = SEGMENT.log_name
TOKEN = {
    "authPluginClassName": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
    "authParams": "token:secret",
}
REDIRECT, BUSY, UNREADY = 307, 429, 503
OFF = b'{"reason":"This Broker is not configured with transactionCoordinatorEnabled=true."}'
STATED = b'{"reason":"it moves"}'
PAGE = b"<html>no server is available</html>"


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


def serving(certificates: Path, name: str) -> ssl.SSLContext:
    """Return what a server shows this certificate with."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / f"{name}.pem", certificates / f"{name}.key")
    return context


@pytest.fixture
def tls_api(certificates: Path) -> Iterator[FakeAdminApi]:
    with fake_admin_api(serving(certificates, "broker")) as api:
        api.create(SEGMENT)
        yield api


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
    for module in (redirects, admin_api):
        monkeypatch.setattr(module, "time", clock)
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


def leads_nowhere(status: int, times: int) -> Callable[[str], tuple[int, str] | None]:
    """Return what refuses so many requests."""
    left = iter(range(times))
    return lambda _path: None if next(left, None) is None else (status, "")


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
    other.body = STATED
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


def test_brokers_that_redirect_to_each_other_for_a_moment_are_asked_again(
    api: FakeAdminApi,
    other: FakeAdminApi,
    pauses: list[float],
    admin_of: Callable[..., PulsarAdmin],
) -> None:
    api.instead, other.instead = leads_to(other.url, 3), leads_to(api.url, 2)
    assert admin_of(api).messages_since_load(TOPIC) == (0, 0)
    assert len(pauses) == 1


def test_brokers_that_redirect_to_each_other_are_asked_for_a_bounded_time_and_named(
    api: FakeAdminApi,
    other: FakeAdminApi,
    pauses: list[float],
    admin_of: Callable[..., PulsarAdmin],
) -> None:
    api.instead, other.instead = leads_to(other.url, 999), leads_to(api.url, 999)
    match = f"the brokers behind {api.url} redirect to each other"
    with pytest.raises(SegmentLogUnavailableError, match=match):
        admin_of(api).messages_since_load(TOPIC)
    assert 28 < sum(pauses) <= 30


def test_a_status_that_says_something_to_the_caller_is_waited_for_a_short_time(
    api: FakeAdminApi,
    other: FakeAdminApi,
    pauses: list[float],
    admin_of: Callable[..., PulsarAdmin],
) -> None:
    other.instead = lambda _path: (UNREADY, "")
    api.instead = lambda _path: (REDIRECT, other.url)
    assert not admin_of(api).knows_transaction(0, 1)
    assert len(other.heard) == FEW_TRIES
    assert sum(pauses) < 3


def test_a_broker_that_says_it_has_no_transactions_is_asked_once(
    api: FakeAdminApi, pauses: list[float], admin_of: Callable[..., PulsarAdmin]
) -> None:
    api.body = OFF
    api.instead = lambda _path: (UNREADY, "")
    assert admin_of(api).transactions_of(TOPIC) is None
    assert len(api.heard) == 1
    assert pauses == []


def test_a_broker_that_says_it_is_not_ready_for_a_topic_is_asked_a_few_times(
    api: FakeAdminApi, pauses: list[float], admin_of: Callable[..., PulsarAdmin]
) -> None:
    api.body = STATED
    api.instead = lambda _path: (UNREADY, "")
    with pytest.raises(SegmentLogUnavailableError, match=r"503 \(it moves\)"):
        admin_of(api).messages_since_load(TOPIC)
    assert len(api.heard) == FEW_TRIES
    assert sum(pauses) < 3


@pytest.mark.parametrize("call", [PulsarAdmin.messages_since_load, PulsarAdmin.transactions_of])
def test_a_proxy_whose_broker_is_away_is_asked_for_a_bounded_time(
    api: FakeAdminApi,
    pauses: list[float],
    admin_of: Callable[..., PulsarAdmin],
    call: Callable[[PulsarAdmin, str], object],
) -> None:
    api.body = PAGE
    api.instead = lambda _path: (UNREADY, "")
    with pytest.raises(SegmentLogUnavailableError, match=r"503 .*no server is available"):
        call(admin_of(api), TOPIC)
    assert 28 < sum(pauses) <= 30


def test_nobody_waits_for_as_long_as_a_proxy_says(
    api: FakeAdminApi,
    admin_of: Callable[..., PulsarAdmin],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    api.headers = {"Retry-After": "3600"}
    for status, api.body in ((UNREADY, STATED), (BUSY, b"")):
        api.instead = leads_nowhere(status, 1)
        assert admin_of(api).messages_since_load(TOPIC) == (0, 0)
    assert len(slept) == 2
    assert max(slept) <= 1


def test_who_has_answered_before_is_waited_for_where_nobody_accepts(
    api: FakeAdminApi,
    gone: str,
    admin_of: Callable[..., PulsarAdmin],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a broker that is started again: its port refuses until it is back."""
    admin = admin_of(api)
    assert admin.messages_since_load(TOPIC) == (0, 0)
    admin._url = gone
    pauses: list[float] = []

    def sleep(pause_s: float) -> None:
        pauses.append(pause_s)
        if len(pauses) > 2 * FEW_TRIES:
            admin._url = api.url

    monkeypatch.setattr(redirects, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=sleep))
    assert admin.messages_since_load(TOPIC) == (0, 0)
    assert len(pauses) > 2 * FEW_TRIES


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_who_has_answered_before_is_waited_for_where_a_proxy_closes_each_connection(
    opened: contextlib.ExitStack,
    request: pytest.FixtureRequest,
    admin_of: Callable[..., PulsarAdmin],
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
) -> None:
    options: dict[str, str] = {}
    if scheme == "https":
        certificates: Path = request.getfixturevalue("certificates")
        options["tlsTrustCertsFilePath"] = str(certificates / "ca.pem")
    api: FakeAdminApi = request.getfixturevalue("tls_api" if options else "api")
    admin = admin_of(api, **options)
    assert admin.messages_since_load(TOPIC) == (0, 0)
    closing = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
    admin._url = f"{scheme}://localhost:{closing.getsockname()[1]}"

    def close_each() -> None:
        with contextlib.suppress(OSError):
            while True:
                with closing.accept()[0] as connection:
                    connection.settimeout(5)
                    connection.recv(65536)  # closed with something unread, it would be reset

    thread = threading.Thread(target=close_each, daemon=True)
    thread.start()

    def sleep(_pause_s: float) -> None:
        admin._url = api.url

    monkeypatch.setattr("time.sleep", lambda _pause_s: None)
    monkeypatch.setattr(redirects, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=sleep))
    assert admin.messages_since_load(TOPIC) == (0, 0)


def unanswered(reason: Exception) -> mock.Mock:
    """Return what sends requests that fail for this reason."""
    return mock.Mock(side_effect=MaxRetryError(mock.Mock(), "", reason))


@pytest.mark.parametrize(
    "reason",
    [
        SSLError(ssl.SSLEOFError("EOF occurred in violation of protocol")),
        SSLError(ssl.SSLZeroReturnError("TLS/SSL connection has been closed")),
        ProtocolError("Connection aborted.", ConnectionResetError()),
    ],
    ids=["amid TLS", "TLS ended", "reset"],
)
def test_who_has_answered_before_and_hangs_up_is_waited_for_a_bounded_time_and_named_so(
    api: FakeAdminApi,
    pauses: list[float],
    admin_of: Callable[..., PulsarAdmin],
    reason: Exception,
) -> None:
    admin = admin_of(api)
    with mock.patch.object(admin._pool, "request", unanswered(reason)) as sent:
        with pytest.raises(SegmentLogUnavailableError, match=r"does not answer .* the TLS options"):
            admin.messages_since_load(TOPIC)
        assert sent.call_count == 1, "the URL may be wrong"
    assert admin.messages_since_load(TOPIC) == (0, 0)
    with (
        mock.patch.object(admin._pool, "request", unanswered(reason)),
        pytest.raises(SegmentLogUnavailableError, match="closes the connection now") as raised,
    ):
        admin.messages_since_load(TOPIC)
    assert 28 < sum(pauses) <= 30
    assert "TLS options" not in str(raised.value)


@pytest.mark.parametrize("was_reached", [False, True])
def test_a_certificate_of_another_name_is_not_waited_out(
    opened: contextlib.ExitStack,
    tls_api: FakeAdminApi,
    certificates: Path,
    pauses: list[float],
    admin_of: Callable[..., PulsarAdmin],
    was_reached: bool,
) -> None:
    admin = admin_of(tls_api, tlsTrustCertsFilePath=str(certificates / "ca.pem"))
    if was_reached:
        assert admin.messages_since_load(TOPIC) == (0, 0)
    admin._url = opened.enter_context(fake_admin_api(serving(certificates, "us"))).url
    with pytest.raises(SegmentLogUnreachableError, match=r"verify failed.* the TLS options"):
        admin.messages_since_load(TOPIC)
    assert pauses == []


@pytest.mark.parametrize(
    "refused",
    [
        ssl.SSLCertVerificationError(1, "certificate verify failed: certificate has expired"),
        ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"),
    ],
)
def test_who_has_answered_before_and_speaks_no_tls_with_us_is_not_waited_for(
    api: FakeAdminApi,
    pauses: list[float],
    admin_of: Callable[..., PulsarAdmin],
    refused: ssl.SSLError,
) -> None:
    admin = admin_of(api)
    assert admin.messages_since_load(TOPIC) == (0, 0)
    with (
        mock.patch.object(admin._pool, "request", unanswered(SSLError(refused))),
        pytest.raises(SegmentLogUnreachableError, match="the TLS options"),
    ):
        admin.messages_since_load(TOPIC)
    assert pauses == []


@pytest.mark.parametrize(
    "delay_s, times", [(40, 1), (12, 3)], ids=["beyond the time of a call", "for a part of it"]
)
def test_a_proxy_that_holds_a_request_and_hangs_up_gets_it_again_within_the_time_of_a_call_only(
    api: FakeAdminApi,
    pauses: list[float],
    admin_of: Callable[..., PulsarAdmin],
    delay_s: float,
    times: int,
) -> None:
    admin = admin_of(api)
    assert admin.messages_since_load(TOPIC) == (0, 0)
    hung_up = MaxRetryError(mock.Mock(), "", ProtocolError("Connection aborted."))

    def hold(*_args: object, **_arguments: object) -> None:
        pauses.append(delay_s)
        raise hung_up

    with (
        mock.patch.object(admin._pool, "request", side_effect=hold),
        pytest.raises(SegmentLogUnavailableError),
    ):
        admin.messages_since_load(TOPIC)
    assert pauses.count(delay_s) == times


def test_a_proxy_that_holds_a_request_and_refuses_it_gets_it_again_within_the_time_of_a_call_only(
    api: FakeAdminApi,
    pauses: list[float],
    admin_of: Callable[..., PulsarAdmin],
) -> None:
    admin = admin_of(api)
    api.instead = lambda _: (BUSY, "")
    send = admin._pool.request

    def hold(*args: Any, **arguments: Any) -> Any:
        pauses.append(12)
        return send(*args, **arguments)

    with (
        mock.patch.object(admin._pool, "request", side_effect=hold),
        pytest.raises(SegmentLogUnavailableError, match="429"),
    ):
        admin.messages_since_load(TOPIC)
    assert pauses.count(12) == 3


@pytest.mark.parametrize(
    "call",
    [
        PulsarAdmin.messages_since_load,
        PulsarAdmin.properties,
        PulsarAdmin.partitions,
        PulsarAdmin.transactions_of,
        PulsarAdmin.unload,
    ],
)
@pytest.mark.parametrize("body", [b"<html>log in</html>", b"welcome"])
def test_what_is_not_pulsars_admin_api_is_named_so(
    api: FakeAdminApi,
    admin_of: Callable[..., PulsarAdmin],
    call: Callable[[PulsarAdmin, str], object],
    body: bytes,
) -> None:
    api.body, api.headers = body, {"Content-Type": "text/html;charset=utf-8"}
    api.instead = lambda _path: (200, "")
    match = rf"what answers at {api.url} is not Pulsar's admin API \(200: (log in|welcome)\)"
    with pytest.raises(SegmentLogError, match=match):
        call(admin_of(api), TOPIC)
    api.headers = {}
    if call is not PulsarAdmin.unload:  # it says nothing that is read
        with pytest.raises(SegmentLogError, match=match):
            call(admin_of(api), TOPIC)


def test_a_request_that_was_too_much_at_that_moment_is_sent_again(
    api: FakeAdminApi, pauses: list[float], admin_of: Callable[..., PulsarAdmin]
) -> None:
    del pauses
    api.instead = leads_nowhere(BUSY, 2)
    assert admin_of(api).messages_since_load(TOPIC) == (0, 0)
    assert len(api.heard) == 3


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
    with fake_admin_api(serving(certificates, "broker")) as api:
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


def test_an_admin_api_that_nobody_has_ever_connected_to_is_away_for_every_topic_and_soon(
    gone: str, pauses: list[float], admin_of: Callable[..., PulsarAdmin]
) -> None:
    with pytest.raises(SegmentLogUnreachableError, match="does not answer"):
        admin_of(FakeAdminApi(url=gone)).messages_since_load(TOPIC)
    assert sum(pauses) < 3
