"""What is particular to the brokers of each release of Pulsar that can be started."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from pulsar_txn_spark.testing import pulsar_server
from pulsar_txn_spark.testing.pulsar_cluster import PulsarCluster
from pulsar_txn_spark.testing.pulsar_server import (
    DEFAULT_VERSION,
    VERSION_VARIABLE,
    PulsarServer,
    PulsarServerError,
    Release,
    resolve_classpath,
)

MAVEN = "{http://maven.apache.org/POM/4.0.0}"


@pytest.mark.parametrize(
    "version, imported, takes_port",
    [
        ("4.0.7", [], True),
        ("4.1.1", [], True),
        ("4.2.4", ["io.opentelemetry:opentelemetry-bom:1.62.0"], True),
        ("5.0.0-M1", ["com.fasterxml.jackson:jackson-bom:2.21.3"], False),
        ("5.1.0", ["com.fasterxml.jackson:jackson-bom:2.21.3"], False),
    ],
)
def test_a_release_names_what_maven_imports_and_what_the_broker_takes(
    version: str, imported: list[str], *, takes_port: bool
) -> None:
    release = Release(version)
    project = ET.fromstring(release.pom)
    found = [
        ":".join(
            str(one.findtext(f"{MAVEN}{part}")) for part in ("groupId", "artifactId", "version")
        )
        for one in project.iterfind(f"{MAVEN}dependencyManagement/{MAVEN}dependencies/*")
    ]
    assert found == imported
    assert project.findtext(f"{MAVEN}dependencies/*/{MAVEN}version") == version
    assert release.takes_bookkeeper_port is takes_port


def test_what_is_no_release_is_refused_before_maven_is_asked() -> None:
    with pytest.raises(PulsarServerError, match=r"such as 4\.0\.7, found 'latest'"):
        resolve_classpath("latest")


def test_a_class_path_that_was_resolved_in_another_way_is_resolved_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(pulsar_server.CACHE_VARIABLE, str(tmp_path))
    jar = tmp_path / "a.jar"
    jar.touch()
    asked = []

    def run_maven(_folder: Path, version: str) -> str:
        asked.append(version)
        return str(jar)

    monkeypatch.setattr(pulsar_server, "_run_maven", run_maven)
    for _ in range(2):
        assert resolve_classpath("4.2.4") == str(jar)
    assert asked == ["4.2.4"]
    (tmp_path / "pulsar-4.2.4" / "pom.xml").write_text("what an older version of ours wrote")
    resolve_classpath("4.2.4")
    assert asked == ["4.2.4", "4.2.4"]


@pytest.mark.parametrize(
    "settings, frame",
    [
        ({}, 5 * 1024 * 1024 + 10 * 1024),
        ({"maxMessageSize": "1000000"}, 1_000_000 + 10 * 1024),
        ({"nettyMaxFrameSizeBytes": "7"}, 7),
    ],
)
def test_a_bookies_frame_holds_the_largest_message_of_the_broker(
    tmp_path: Path, settings: dict[str, str], frame: int
) -> None:
    for version in (DEFAULT_VERSION, "5.0.0-M1"):
        server: Any = PulsarServer(version=version, settings=settings)
        server._folder, server._ports = tmp_path, [1, 2, 3]
        server._write_files("java", (), "a.jar", ["Main"])
        config = (tmp_path / "broker.conf").read_text().splitlines()
        assert f"nettyMaxFrameSizeBytes={frame}" in config
        arguments = (tmp_path / "java.args").read_text()
        assert ("--bookkeeper-port" in arguments) is (version == DEFAULT_VERSION)


def test_a_release_is_chosen_by_its_caller_or_by_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers: tuple[type[Any], ...] = (PulsarServer, PulsarCluster)
    monkeypatch.delenv(VERSION_VARIABLE, raising=False)
    assert [server()._version for server in servers] == [DEFAULT_VERSION] * 2
    monkeypatch.setenv(VERSION_VARIABLE, "4.2.4")
    assert [server()._version for server in servers] == ["4.2.4"] * 2
    assert [server(version="5.0.0-M1")._version for server in servers] == ["5.0.0-M1"] * 2


def test_a_broker_that_gates_has_the_plug_in_and_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jar = tmp_path / "plug-in.jar"
    monkeypatch.setattr(pulsar_server, "broker_jar", lambda: jar)
    monkeypatch.setattr(pulsar_server, "resolve_classpath", lambda _version: "broker.jar")
    monkeypatch.setattr(pulsar_server, "find_java", lambda: "java")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    written: dict[str, str] = {}

    def launch(server: PulsarServer) -> None:
        folder = server.log_path.parent
        written.update({name: (folder / name).read_text() for name in ("broker.conf", "java.args")})
        raise PulsarServerError("seen")

    monkeypatch.setattr(PulsarServer, "_launch", launch)
    server = PulsarServer(store_url="redis://127.0.0.1:1", settings={"clusterName": "c"})
    with pytest.raises(PulsarServerError, match="seen"):
        server.start()
    server.stop()
    assert "pulsarTxnSparkStoreUrl=redis://127.0.0.1:1\n" in written["broker.conf"]
    assert "transactionBufferProviderClassName=pulsartxnspark." in written["broker.conf"]
    assert "clusterName=c\n" in written["broker.conf"]
    assert f'"broker.jar:{jar}"' in written["java.args"]
