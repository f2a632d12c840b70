"""The brokers of a cluster are found and moved by the admin API; without one, errors say why."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pulsar_txn_spark.testing import pulsar_cluster
from pulsar_txn_spark.testing.pulsar_cluster import ClusterBroker, PulsarCluster
from pulsar_txn_spark.testing.pulsar_server import PulsarServerError, admin_call, free_ports
from pulsar_txn_spark.watchdog import Ending

TOPIC = "persistent://public/default/t"


class Answers(BaseHTTPRequestHandler):
    """As much of an admin API as a move of a topic needs; the second broker leads."""

    owner: ClusterBroker
    brokers: list[ClusterBroker]
    asked: list[str]

    def _answer(self, code: int, body: bytes = b"", location: str | None = None) -> None:
        self.send_response(code)
        if location is not None:
            self.send_header("Location", location)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path.endswith("/bundle"):
            self._answer(200, b"0x00000000_0x40000000")
        else:
            self._answer(200, json.dumps({"brokerUrl": self.owner.service_url}).encode())

    def do_PUT(self) -> None:
        leader = self.brokers[1]
        if self.headers["Host"] != leader.id:
            self._answer(307, location=leader.admin_url + self.path)
            return
        self.asked.append(self.path)
        name = self.path.rpartition("=")[2]
        (chosen,) = [one for one in self.brokers if one.id == name]
        type(self).owner = chosen
        self._answer(204)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[PulsarCluster]:
    found = PulsarCluster()
    ports = free_ports(4)
    found.brokers = [
        ClusterBroker(number, tmp_path, ports[2 * number : 2 * number + 2]) for number in range(2)
    ]
    Answers.owner, Answers.brokers, Answers.asked = found.brokers[0], found.brokers, []
    with contextlib.ExitStack() as stack:
        for broker in found.brokers:
            server = ThreadingHTTPServer(("127.0.0.1", broker.ports[1]), Answers)
            stack.callback(server.server_close)
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            stack.callback(server.shutdown)
        yield found


def test_a_topic_moves_to_the_broker_that_is_named(cluster: PulsarCluster) -> None:
    first, second = cluster.brokers
    assert cluster.owner_of(TOPIC) is first
    assert cluster.other_than(first) is second
    assert cluster.other_than(second) is first
    cluster.move(TOPIC, second)
    assert cluster.owner_of(TOPIC) is second
    bundle = "/admin/v2/namespaces/public/default/0x00000000_0x40000000"
    assert Answers.asked == [f"{bundle}/unload?destinationBroker={second.id}"]


def test_a_broker_that_is_away_is_not_asked(cluster: PulsarCluster, tmp_path: Path) -> None:
    away = ClusterBroker(7, tmp_path, free_ports(2))
    cluster.brokers.insert(0, away)
    assert cluster.owner_of(TOPIC) is cluster.brokers[1]


def test_an_owner_that_never_comes_is_an_error(
    cluster: PulsarCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulsar_cluster, "_MOVE_SECONDS", 0.05)
    first, second = cluster.brokers
    second.log_path.write_text("what it logged last\n")
    with pytest.raises(PulsarServerError) as raised:
        cluster.await_owner(TOPIC, second)
    assert "broker-1 of the Pulsar cluster did not answer" in str(raised.value)
    assert f"its owner is {first.name}" in str(raised.value)
    assert "what it logged last" in str(raised.value)


def test_an_owner_outside_of_the_cluster_is_an_error(
    cluster: PulsarCluster, tmp_path: Path
) -> None:
    # Ports that are free now may be those of a broker, whose service port nothing listens on.
    Answers.owner = ClusterBroker(8, tmp_path, [1, 2])
    with pytest.raises(ValueError, match="expected a broker of this cluster"):
        cluster.owner_of(TOPIC)


def test_requests_that_go_round_in_a_circle_end(cluster: PulsarCluster) -> None:
    cluster.brokers[1].id = "nobody"  # it does not know that it leads
    with pytest.raises(OSError, match="from broker to broker"):
        admin_call(cluster.brokers[0].admin_url, "PUT", "/x")


def test_a_server_that_ends_while_it_starts_is_an_error_with_its_log(tmp_path: Path) -> None:
    broker: Any = ClusterBroker(0, tmp_path, free_ports(2))
    broker._command = ["sh", "-c", "echo this is why; exit 3"]
    try:
        with pytest.raises(PulsarServerError) as raised:
            broker.start()
    finally:
        broker.end(Ending.DISCARD)
    assert "broker-0 of the Pulsar cluster ended while it was starting" in str(raised.value)
    assert "this is why" in str(raised.value)


def test_a_broker_that_waits_for_a_bookie_that_has_ended_shows_the_log_of_the_bookie(
    tmp_path: Path,
) -> None:
    broker: Any = ClusterBroker(0, tmp_path, free_ports(2))
    bookie: Any = pulsar_cluster._JavaServer("bookie", tmp_path)
    broker._command = ["sleep", "60"]
    bookie._command = ["sh", "-c", "echo BindException; exit 3"]
    broker.needs = [bookie]
    bookie.launch()
    try:
        with pytest.raises(PulsarServerError) as raised:
            broker.start()
    finally:
        broker.end(Ending.DISCARD)
        bookie.end(Ending.DISCARD)
    assert "the bookie of the Pulsar cluster ended while it was starting" in str(raised.value)
    assert "BindException" in str(raised.value), "so that it is tried again with other ports"


@pytest.mark.parametrize(
    "command, said",
    [
        ("exit 0", ""),
        (
            "echo this is why; exit 3",
            r"set-up of the Pulsar cluster failed \(exit code 3\)[^$]*why",
        ),
        ("sleep 60", r"was not done within 0\.5 s"),
    ],
)
def test_a_program_of_the_set_up_is_awaited_and_ends_with_its_owner(
    tmp_path: Path, command: str, said: str
) -> None:
    setup: Any = pulsar_cluster._JavaServer("set-up", tmp_path)
    setup._command = ["sh", "-c", command]
    setup.launch()
    try:
        if said:
            with pytest.raises(PulsarServerError, match=said):
                setup.finish(0.5 if "sleep" in command else 30)
        else:
            setup.finish(30)
    finally:
        setup.end(Ending.DISCARD)
    assert not setup.folder.exists()


def test_a_cluster_that_cannot_start_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulsar_cluster, "resolve_classpath", lambda _: "nothing.jar")
    monkeypatch.setattr(pulsar_cluster, "find_java", lambda: "false")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cluster = PulsarCluster()
    with pytest.raises(PulsarServerError, match="ZooKeeper of the Pulsar cluster ended"):
        cluster.start()
    assert list(tmp_path.iterdir()) == []
    assert cluster.brokers == []
