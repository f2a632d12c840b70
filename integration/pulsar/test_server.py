"""A broker of our own: its life, its crashes, and one that asks for authentication and TLS."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from urllib3.exceptions import InsecureRequestWarning

from pulsar_txn_spark.backends.pulsar.log import PulsarSegmentLog
from pulsar_txn_spark.config import PulsarConfig, as_pairs
from pulsar_txn_spark.errors import (
    MessageTooLargeError,
    PulsarTxnError,
    SegmentLogError,
    SegmentLogUnavailableError,
    SegmentNotFoundError,
)
from pulsar_txn_spark.position import EARLIEST
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.testing.pulsar_server import (
    PulsarServer,
    PulsarServerError,
    find_java,
    free_ports,
    resolve_classpath,
    short_lived_jvm,
)
from tests.contract.segment_log import numbered, read_values, values, write

T = TypeVar("T")

pytestmark = pytest.mark.skipif(
    shutil.which("mvn") is None, reason="there is no 'mvn' on the PATH to fetch a broker with"
)
ROOT = Path(__file__).parents[2]


def new_segment() -> SegmentRef:
    name = uuid.uuid4().hex
    return SegmentRef(name, "topic://public/default/t", f"persistent://public/default/{name}")


def listens(url: str) -> bool:
    parts = urlsplit(url)
    try:
        socket.create_connection((str(parts.hostname), int(parts.port or 0)), timeout=1).close()
    except OSError:
        return False
    return True


# --- life -----------------------------------------------------------------------------------------


def test_a_broker_from_the_command_line_dies_with_its_parent_that_was_killed(
    tmp_path: Path,
) -> None:
    jvm = " ".join(f'"{option}"' for option in short_lived_jvm())
    started = subprocess.Popen(
        [sys.executable, "-m", "pulsar_txn_spark.testing.pulsar_server"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path), "JDK_JAVA_OPTIONS": jvm},
    )
    with started:
        assert started.stdout is not None
        urls = dict(started.stdout.readline().strip().split("=", 1) for _ in range(2))
        assert listens(urls["service.url"])
        assert list(tmp_path.iterdir())
        started.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while listens(urls["service.url"]) or list(tmp_path.iterdir()):
        assert time.monotonic() < deadline, list(tmp_path.iterdir())
        time.sleep(0.1)


def test_a_short_lived_jvm_takes_pulsars_classes_from_the_archive(tmp_path: Path) -> None:
    log, plug_in = tmp_path / "loaded", tmp_path / "plug-in.jar"
    with zipfile.ZipFile(plug_in, "w") as jar:
        jar.writestr("a", "")
    main = "org.apache.pulsar.PulsarStandaloneStarter"
    jvm = [find_java(), *short_lived_jvm(), f"-Xlog:class+load:file={log}"]
    classpath = f"{resolve_classpath()}{os.pathsep}{plug_in}"
    subprocess.run([*jvm, "-cp", classpath, main, "--help"], check=True, capture_output=True)
    (loaded,) = [line for line in log.read_text().splitlines() if f" {main} " in line]
    assert "source: shared objects file" in loaded


def test_a_broker_that_cannot_start_shows_the_end_of_its_log() -> None:
    server = PulsarServer(settings={"brokerServicePort": "no number"}, short_lived=True)
    with pytest.raises(PulsarServerError, match=r"(?s)ended while it was starting.*no number"):
        server.start()
    with pytest.raises(PulsarServerError):
        _ = server.log_path


@pytest.mark.long
@pytest.mark.parametrize("transport", ["wire", "client"])
def test_the_largest_entry_that_we_send_fits_a_bookie_of_the_default_installation(
    transport: str,
) -> None:
    # Pulsar's standalone.conf sets no frame size: then it is the broker's limit, 5 MiB, itself.
    with PulsarServer(settings={"nettyMaxFrameSizeBytes": str(5 * 1024 * 1024)}) as server:
        log, segment = log_of(server, transport), new_segment()
        log.create(segment)
        writer = log.writer(segment, "w")
        value = b"x" * (5 * 1024 * 1024 - 1200)
        writer.append(pa.record_batch({"value": pa.array([value], pa.binary())}))
        assert writer.flush().messages == 1
        writer.close()
        writer = log.writer(segment, "v")
        with pytest.raises(MessageTooLargeError):  # noqa: PT012 — one of the two
            writer.append(pa.record_batch({"value": pa.array([value + b"x" * 300], pa.binary())}))
            writer.flush()
        writer.close()
        log.close()


# --- crashes --------------------------------------------------------------------------------------


def once_available(call: Callable[[], T]) -> T:
    """Call until a broker that was started again has loaded the topic."""
    deadline = time.monotonic() + 120
    while True:
        try:
            return call()
        except SegmentLogUnavailableError:
            if time.monotonic() > deadline:
                raise


def log_of(server: PulsarServer, transport: str, **reader: str) -> PulsarSegmentLog:
    config = PulsarConfig(
        server.service_url, server.admin_url, reader=as_pairs(reader), transport=transport
    )
    return PulsarSegmentLog(config)


@pytest.fixture(scope="module")
def own_server() -> Iterator[PulsarServer]:
    with PulsarServer(short_lived=True) as server:
        yield server


both_transports = pytest.mark.parametrize(
    "transport", ["wire", pytest.param("client", marks=pytest.mark.long)]
)
"""Each start of a broker takes seconds, so that `make test` has one transport of it."""


@pytest.mark.crash
@pytest.mark.parametrize("crash", [False, True], ids=["restart", "crash"])
@both_transports
def test_acknowledged_rows_survive_a_restart_and_the_same_log_goes_on(
    own_server: PulsarServer, crash: bool, transport: str
) -> None:
    log = log_of(own_server, transport)
    segment = new_segment()
    once_available(lambda: log.create(segment))  # a test before may have killed the bookie
    receipt = write(log, segment, "before", numbered(0, 10_000))
    own_server.restart(crash=crash)
    assert once_available(lambda: log.last_confirmed(segment)) == receipt.last
    once_available(lambda: log.writer(segment, "the topic is loaded")).close()
    write(log, segment, "after", numbered(10_000, 11_000))
    expected = [b"%d" % number for number in range(11_000)]
    assert read_values(log, segment) == expected
    assert log.trimmed_to(segment) == EARLIEST
    log.close()


@pytest.mark.crash
@both_transports
def test_a_crash_amid_writing_loses_and_doubles_nothing_that_was_acknowledged(
    own_server: PulsarServer, transport: str
) -> None:
    log = log_of(own_server, transport)
    segment = new_segment()
    once_available(lambda: log.create(segment))  # a test before may have killed the bookie
    acknowledged: list[int] = []
    stop, under_way = threading.Event(), threading.Event()
    failures: list[PulsarTxnError] = []

    def keep_writing() -> None:
        number, attempt = 0, 0
        while not stop.is_set():
            attempt += 1
            try:
                writer = log.writer(segment, f"attempt-{attempt}")
                while not stop.is_set():
                    # A name per thousand rows tells what a failed attempt has left behind.
                    tag = b"%d " % attempt
                    batch = [tag + b"%d" % one for one in range(number, number + 1000)]
                    writer.append(pa.record_batch({"value": pa.array(batch)}))
                    writer.flush()
                    acknowledged.extend(range(number, number + 1000))
                    number += 1000
                    under_way.set()
            except PulsarTxnError as failure:
                failures.append(failure)

    thread = threading.Thread(target=keep_writing)
    thread.start()
    assert under_way.wait(60)
    own_server.restart(crash=True)
    before = len(acknowledged)
    deadline = time.monotonic() + 90
    while len(acknowledged) < before + 5000:
        assert time.monotonic() < deadline, failures
        assert thread.is_alive()
        time.sleep(0.05)
    stop.set()
    thread.join(60)
    assert not thread.is_alive()

    found: dict[bytes, list[int]] = {}
    for value in read_values(log, segment):
        attempt, number = value.split(b" ")
        found.setdefault(attempt, []).append(int(number))
    for numbers in found.values():  # one writer's rows: in order, without holes, none twice
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert set(acknowledged) <= {number for numbers in found.values() for number in numbers}
    log.close()


@pytest.mark.crash
@both_transports
def test_a_reader_goes_on_when_the_broker_comes_back(
    own_server: PulsarServer, transport: str
) -> None:
    log = log_of(own_server, transport, receiverQueueSize="100")
    segment = new_segment()
    log.create(segment)
    write(log, segment, "w", *(numbered(part * 1000, part * 1000 + 1000) for part in range(30)))
    batches = log.read(
        segment,
        EARLIEST,
        log.last_confirmed(segment),
        visible=lambda _writer, _position: True,
        columns=frozenset({"value"}),
        max_rows=1000,
    )
    found = next(batches).column(0).to_pylist()
    own_server.restart(crash=True)
    for batch in batches:
        found += batch.column(0).to_pylist()
    assert found == [b"%d" % number for number in range(30_000)]
    log.close()


def test_a_broker_without_topic_level_policies_is_refused_with_what_to_set() -> None:
    with PulsarServer(settings={"topicLevelPoliciesEnabled": "false"}, short_lived=True) as server:
        log = PulsarSegmentLog(PulsarConfig(server.service_url, server.admin_url))
        segment = new_segment()
        with pytest.raises(SegmentLogError, match="topicLevelPoliciesEnabled=true"):
            log.create(segment)
        with pytest.raises(SegmentNotFoundError):  # what is not safe is no segment
            log.writer(segment, "w")
        log.close()


# --- authentication and TLS -----------------------------------------------------------------------

USER, PASSWORD = "somebody", "a word for this test"
SECRET = b"only for this test, thirty-two bytes or more"


def token_of(role: str, **claims: object) -> str:
    def encode(part: bytes) -> str:
        return base64.urlsafe_b64encode(part).decode().rstrip("=")

    parts = ({"alg": "HS256"}, {"sub": role, **claims})
    head = ".".join(encode(json.dumps(part).encode()) for part in parts)
    return f"{head}.{encode(hmac.digest(SECRET, head.encode(), hashlib.sha256))}"


@pytest.fixture(scope="module")
def openssl() -> str:
    found = shutil.which("openssl")
    if found is None:
        pytest.skip("there is no 'openssl' on the PATH to make a certificate with")
    return found


@pytest.fixture(scope="module")
def certificate(openssl: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=pulsar.test"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


@pytest.fixture(scope="module")
def secured(openssl: str, certificate: tuple[Path, Path]) -> Iterator[dict[str, str]]:
    """Give URLs of a broker that wants to know us and speaks TLS; one port each does without TLS.

    It takes tokens, a user with a password, and the certificate.
    """
    broker_tls, web_tls = free_ports(2)
    root = token_of("root")
    package = "org.apache.pulsar.broker.authentication.AuthenticationProvider"
    hashed = subprocess.run(
        [openssl, "passwd", "-apr1", PASSWORD], check=True, capture_output=True, text=True
    ).stdout.strip()
    users = certificate[0].with_name("users")
    users.write_text(f"{USER}:{hashed}\n")
    settings = {
        "authenticationEnabled": "true",
        "authenticationProviders": ",".join(package + kind for kind in ("Token", "Basic", "Tls")),
        "authenticationRefreshCheckSeconds": "1",
        "basicAuthConf": f"file://{users}",
        "authorizationEnabled": "true",
        "superUserRoles": f"root,{USER},pulsar.test",
        "tokenSecretKey": "data:;base64," + base64.b64encode(SECRET).decode(),
        "brokerClientAuthenticationPlugin": (
            "org.apache.pulsar.client.impl.auth.AuthenticationToken"
        ),
        "brokerClientAuthenticationParameters": json.dumps({"token": root}),
        "brokerServicePortTls": str(broker_tls),
        "webServicePortTls": str(web_tls),
        "tlsCertificateFilePath": str(certificate[0]),
        "tlsKeyFilePath": str(certificate[1]),
        "tlsTrustCertsFilePath": str(certificate[0]),
    }
    with PulsarServer(settings=settings, token=root, short_lived=True) as server:
        yield {
            "service": server.service_url,
            "admin": server.admin_url,
            "service_tls": f"pulsar+ssl://127.0.0.1:{broker_tls}",
            "admin_tls": f"https://127.0.0.1:{web_tls}",
            "trust": str(certificate[0]),
            "key": str(certificate[1]),
        }


@pytest.fixture(params=["wire", "client"])
def transport(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def secured_log(secured: dict[str, str], transport: str) -> Callable[..., PulsarSegmentLog]:
    """Open a log with client options; the admin API gets others where they are given."""

    def opened(
        tls: str = "",
        *,
        admin: dict[str, str] | None = None,
        host: str = "127.0.0.1",
        **client: str,
    ) -> PulsarSegmentLog:
        return PulsarSegmentLog(
            PulsarConfig(
                secured["service" + tls].replace("127.0.0.1", host),
                secured["admin" + tls],
                client=as_pairs(client),
                admin=as_pairs(admin or {}),
                transport=transport,
            )
        )

    return opened


Open = Callable[..., PulsarSegmentLog]


def test_a_token_opens_a_secured_broker(secured_log: Open, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token_of("root") + "\n")
    for plugin, params in (
        ("org.apache.pulsar.client.impl.auth.AuthenticationToken", f"token:{token_of('root')}"),
        ("token", f"file://{file}"),
        ("basic", f"{USER}:{PASSWORD}"),
    ):
        log = secured_log(authPluginClassName=plugin, authParams=params)
        segment = new_segment()
        log.create(segment)
        write(log, segment, "w", values(b"secret"))
        assert read_values(log, segment) == [b"secret"]
        log.delete(segment)
        log.close()


def test_a_refused_token_is_reported_without_showing_it(secured_log: Open) -> None:
    segment, there = new_segment(), new_segment()
    allowed = secured_log(authPluginClassName="token", authParams=token_of("root"))
    allowed.create(there)
    allowed.close()
    wrong = token_of("root")[:-6] + "abcdef"
    for params in (wrong, token_of("nobody")):
        log = secured_log(authPluginClassName="token", authParams=params)
        with pytest.raises(SegmentLogUnavailableError, match="authParams") as refused:
            log.create(segment)
        with pytest.raises(SegmentLogUnavailableError):
            log.writer(segment, "w")
        # What a source and a sink ask before their query starts.
        with pytest.raises(SegmentLogUnavailableError, match="authParams") as out_of_reach:
            log.check_access(there)
        assert params not in f"{refused.value} {out_of_reach.value}"
        assert params not in repr(log._config)
        log.close()
    anonymous = secured_log()
    with pytest.raises(SegmentLogUnavailableError, match="authPluginClassName"):
        anonymous.create(segment)
    anonymous.close()


def test_a_role_that_may_only_administrate_elsewhere_is_refused_by_the_broker_too(
    secured_log: Open,
) -> None:
    """The admin API may know us while the binary protocol does not."""
    segment = new_segment()
    log = secured_log(
        authPluginClassName="token",
        authParams=token_of("nobody"),
        admin={"authPluginClassName": "token", "authParams": token_of("root")},
    )
    log.create(segment)
    for use in (log.check_access, lambda segment: log.writer(segment, "w")):
        with pytest.raises(SegmentLogUnavailableError, match="refuses us"):
            use(segment)
    log.delete(segment)
    log.close()


LOGIN = {"authPluginClassName": "token", "authParams": token_of("root")}


def test_tls_works_and_verifies_the_broker(secured: dict[str, str], secured_log: Open) -> None:
    segment = new_segment()
    trusted = {"tlsTrustCertsFilePath": secured["trust"]}
    log = secured_log("_tls", **trusted, **LOGIN)
    log.create(segment)
    write(log, segment, "w", values(b"over TLS"))
    assert read_values(log, segment) == [b"over TLS"]
    log.close()

    untrusting = secured_log("_tls", **LOGIN)
    with pytest.raises(SegmentLogUnavailableError, match="TLS options"):
        untrusting.last_confirmed(segment)
    untrusting.close()
    quickly = {"operationTimeoutMs": "1000", "connectionTimeoutMs": "1000"}
    # The admin API trusts the broker, and the binary protocol does not.
    untrusting = secured_log("_tls", admin={**trusted, **LOGIN}, **quickly, **LOGIN)
    with pytest.raises(SegmentLogUnavailableError, match="TLS options"):
        untrusting.check_access(segment)
    untrusting.close()
    careless = secured_log(
        "_tls",
        tlsAllowInsecureConnection="true",
        tlsHostnameVerificationEnable="false",
        **LOGIN,
    )
    with pytest.warns(InsecureRequestWarning):
        found = read_values(careless, segment)
    assert found == [b"over TLS"]
    careless.close()


def test_a_certificate_for_another_host_is_refused_unless_hosts_are_not_to_be_checked(
    secured: dict[str, str], secured_log: Open
) -> None:
    segment = new_segment()
    trusted = {"tlsTrustCertsFilePath": secured["trust"]}
    quickly = {"operationTimeoutMs": "1000", "connectionTimeoutMs": "1000"}
    options = {"host": "localhost", "admin": {**trusted, **LOGIN}, **trusted, **LOGIN, **quickly}
    strict = secured_log("_tls", **options)
    strict.create(segment)
    with pytest.raises(SegmentLogUnavailableError, match="TLS options"):
        strict.check_access(segment)
    strict.close()
    lenient = secured_log("_tls", tlsHostnameVerificationEnable="false", **options)
    write(lenient, segment, "w", values(b"v"))
    assert read_values(lenient, segment) == [b"v"]
    lenient.close()


def test_a_certificate_of_our_own_opens_a_secured_broker(
    secured: dict[str, str], secured_log: Open
) -> None:
    segment = new_segment()
    files = f"tlsCertFile:{secured['trust']},tlsKeyFile:{secured['key']}"
    log = secured_log(
        "_tls",
        tlsTrustCertsFilePath=secured["trust"],
        authPluginClassName="tls",
        authParams=files,
    )
    log.create(segment)
    write(log, segment, "w", values(b"known"))
    assert read_values(log, segment) == [b"known"]
    log.close()


@pytest.mark.long
def test_a_token_that_is_renewed_in_its_file_keeps_the_connection(
    secured_log: Open, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(token_of("root", exp=int(time.time()) + 3))
    log = secured_log(
        authPluginClassName="token",
        authParams=f"file://{file}",
        admin={"authPluginClassName": "token", "authParams": token_of("root")},
    )
    segment = new_segment()
    log.create(segment)
    writer = log.writer(segment, "w")
    expires = time.monotonic() + 5
    file.write_text(token_of("root", exp=int(time.time()) + 600))
    written = 0
    while time.monotonic() < expires:  # the broker asks when the first token is over
        writer.append(values(b"%d" % written))
        written += writer.flush().messages
        time.sleep(0.05)
    writer.close()
    assert len(read_values(log, segment)) == written
    log.close()
