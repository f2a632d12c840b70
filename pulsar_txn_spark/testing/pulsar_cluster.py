"""A real Pulsar of several brokers without Docker: topics move from one to the other.

Beside the brokers there are a ZooKeeper and one bookie, each a process of its own. Data lives in a
temporary folder and goes with the process that asked for the cluster, also when that is killed.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pulsar_txn_spark.backports import Self
from pulsar_txn_spark.testing.broker_jar import broker_jar
from pulsar_txn_spark.testing.pulsar_server import (
    DEFAULT_VERSION,
    HOST,
    JVM_ARGUMENTS,
    LOG_FOLLOWS,
    LOG_TAIL_LINES,
    POLL_SECONDS,
    PORT_ATTEMPTS,
    SETTINGS,
    SHORT_LIVED_JVM,
    STARTUP_SECONDS,
    VERSION_VARIABLE,
    PulsarServerError,
    Release,
    admin_call,
    find_java,
    free_ports,
    java_command,
    plugin_settings,
    prepare,
    resolve_classpath,
    short_lived_jvm,
    write_settings,
)
from pulsar_txn_spark.watchdog import Ending, OwnedServer

_SESSION_MS = 6000
"""So long after its death a broker owns its topics. ZooKeeper allows 2 to 20 of its ticks."""
_TICK_MS = 1000
_MOVE_SECONDS = 60.0  # a move takes a second; the end of a session some more
_SETUP_SECONDS = 120.0  # a JVM that writes some records: 3 s on two idle cores

_SMALL_JVM = ("-Xms64m", "-Xmx384m", "-XX:MaxDirectMemorySize=384m")

_BALANCE: Mapping[str, str] = {
    # Only tests move topics.
    "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl",
    "loadBalancerEnabled": "true",
    "loadBalancerSheddingEnabled": "false",
    "loadBalancerAutoBundleSplitEnabled": "false",
    "metadataStoreSessionTimeoutMillis": str(_SESSION_MS),
}


class _JavaServer:
    """A Java server of the cluster: a folder, a command, and a log of its own."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder / name
        self.folder.mkdir()
        self.log_path = self.folder / "server.log"
        self._command: list[str] = []
        self._server: OwnedServer | None = None
        self.needs: Sequence[_JavaServer] = ()
        """Servers without which it answers nobody."""

    def prepare(
        self, java: str, jvm: Sequence[str], classpath: str, program: Sequence[str]
    ) -> None:
        self._command = java_command(self.folder, java, jvm, classpath, program)

    def launch(self) -> None:
        if self._server is None:
            self._server = OwnedServer(self._command, self.folder, self.log_path)

    def end(self, ending: Ending) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.end(ending)

    def exit_code(self) -> int | None:
        """Return the exit code of a server that has ended by itself, None otherwise."""
        return self._server.exit_code() if self._server is not None else None

    def finish(self, timeout_s: float) -> None:
        """Wait until the program has ended as it should.

        Raises
        ------
        PulsarServerError
            If it fails, or the time is over; with the end of its log.
        """
        deadline = time.monotonic() + timeout_s
        while (code := self.exit_code()) is None:
            if time.monotonic() > deadline:
                raise self.failure(f"was not done within {timeout_s:g} s")
            time.sleep(POLL_SECONDS)
        if code != 0:
            raise self.failure(f"failed (exit code {code})")

    def await_(self, answers: Callable[[], object], timeout_s: float) -> None:
        """Wait until a call of `answers` raises nothing.

        Raises
        ------
        PulsarServerError
            If the server ends, or one that it needs, or the time is over; with the end of the log.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                answers()
            except (OSError, ValueError) as not_yet:
                last = not_yet
            else:
                return
            for server in (self, *self.needs):
                code = server.exit_code()
                if code is not None:
                    raise server.failure(f"ended while it was starting (exit code {code})")
            if time.monotonic() > deadline:
                raise self.failure(f"did not answer within {timeout_s:g} s ({last})") from last
            time.sleep(POLL_SECONDS)

    def failure(self, what: str) -> PulsarServerError:
        """Return the error of what the server failed to do, with the end of its log."""
        lines = self.log_path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        tail = LOG_FOLLOWS + "\n".join(lines)
        return PulsarServerError(f"the {self.name} of the Pulsar cluster {what}{tail}")


class ClusterBroker(_JavaServer):
    """One broker of a cluster.

    Attributes
    ----------
    service_url, admin_url : str
        The same over restarts.
    id : str
        By which Pulsar names the broker: host and port of its web service.
    log_path : Path
    """

    def __init__(self, number: int, folder: Path, ports: Sequence[int]) -> None:
        super().__init__(f"broker-{number}", folder)
        self.ports = ports
        self.service_url = f"pulsar://{HOST}:{ports[0]}"
        self.id = f"{HOST}:{ports[1]}"
        self.admin_url = f"http://{self.id}"

    def kill(self) -> None:
        """Kill it. It owns its topics until ZooKeeper ends its session."""
        self.end(Ending.CRASH)

    def stop(self) -> None:
        """Shut it down in order: it gives its topics away."""
        self.end(Ending.PAUSE)

    def start(self) -> None:
        """Start it again, and wait until it answers."""
        self.launch()
        self.await_(lambda: prepare(self.admin_url), STARTUP_SECONDS)


class PulsarCluster:
    """A ZooKeeper, a bookie and brokers; a context manager.

    Parameters
    ----------
    brokers : int
        How many; at least 1.
    version : str, optional
        Release of Pulsar; else that of the environment, else the default one.
    settings : Mapping[str, str], optional
        Settings of the brokers and of the bookie over the defaults (``broker.conf`` names).
    store_url : str, optional
        Metadata store by which the brokers gate segments: each gets the plug-in of ``jvm_shim/``.
    coordinators : int
        How many transaction coordinators the cluster is set up with.
    short_lived : bool
        Start with half the processor time, and serve a large load slower: for tests.

    Attributes
    ----------
    brokers : list of ClusterBroker
        Those of this cluster, while it runs. Clients may use the URLs of any.
    """

    def __init__(
        self,
        *,
        brokers: int = 2,
        version: str | None = None,
        settings: Mapping[str, str] | None = None,
        store_url: str | None = None,
        coordinators: int = 4,
        short_lived: bool = False,
    ) -> None:
        self._count, self._coordinators = brokers, coordinators
        self._version = version or os.environ.get(VERSION_VARIABLE) or DEFAULT_VERSION
        self._store_url = store_url
        plugin = {} if store_url is None else plugin_settings(store_url)
        self._settings = {**SETTINGS, **_BALANCE, **plugin, **(settings or {})}
        self._short_lived = short_lived
        self._folder: Path | None = None
        self._base: list[_JavaServer] = []
        self.brokers: list[ClusterBroker] = []

    @property
    def service_url(self) -> str:
        """Return the URL of the binary protocol, with all brokers."""
        hosts = (broker.service_url.removeprefix("pulsar://") for broker in self.brokers)
        return f"pulsar://{','.join(hosts)}"

    @property
    def admin_url(self) -> str:
        """Return the URL of the admin REST API of the first broker."""
        return self.brokers[0].admin_url

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start everything and wait until each broker serves the namespace ``public/default``.

        Raises
        ------
        PulsarServerError
            If a server ends or does not answer in time; with the end of its log.
        """
        for attempt in range(1, PORT_ATTEMPTS + 1):
            self._folder = Path(tempfile.mkdtemp(prefix="pulsar-txn-spark-"))
            try:
                self._start(self._folder)
            except BaseException as failure:
                taken = isinstance(failure, PulsarServerError) and "BindException" in str(failure)
                self.stop()
                if taken and attempt < PORT_ATTEMPTS:
                    continue
                raise
            return

    def stop(self) -> None:
        """Kill all servers and remove their data. Idempotent."""
        for server in (*self.brokers, *reversed(self._base)):
            server.end(Ending.DISCARD)
        self.brokers, self._base = [], []
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def restart(self, *, crash: bool = False) -> None:
        """Stop all brokers and start them again with the same ports.

        Parameters
        ----------
        crash : bool
            Kill them instead of an orderly shutdown.
        """
        self.pause(crash=crash)
        self.resume()

    def pause(self, *, crash: bool = False) -> None:
        """Stop all brokers, for :meth:`resume`."""
        for broker in self.brokers:
            broker.end(Ending.CRASH if crash else Ending.PAUSE)

    def resume(self) -> None:
        """Start those brokers again that do not run."""
        for broker in self.brokers:
            broker.launch()
        for broker in self.brokers:
            broker.start()

    def owner_of(self, topic: str) -> ClusterBroker:
        """Return the broker that serves a topic; one is chosen if none does.

        Parameters
        ----------
        topic : str
            Full name, such as ``persistent://public/default/t``.

        Raises
        ------
        OSError
            If the cluster does not answer.
        ValueError
            If the owner is not known.
        """
        owner = json.loads(self._ask("GET", f"/lookup/v2/topic/{_path(topic)}"))
        for broker in self.brokers:
            if broker.service_url == owner.get("brokerUrl"):
                return broker
        raise ValueError(f"expected a broker of this cluster as the owner of {topic}: {owner}")

    def other_than(self, broker: ClusterBroker) -> ClusterBroker:
        """Return the next one of the brokers."""
        return self.brokers[(self.brokers.index(broker) + 1) % len(self.brokers)]

    def move(self, topic: str, to: ClusterBroker) -> None:
        """Unload a topic's bundle of its owner, and give it to a broker.

        Raises
        ------
        PulsarServerError
            If that broker does not own it in time.
        """
        namespace = "/".join(_path(topic).split("/")[1:3])
        bundle = self._ask("GET", f"/lookup/v2/topic/{_path(topic)}/bundle").decode()
        path = f"/admin/v2/namespaces/{namespace}/{bundle}/unload?destinationBroker={to.id}"
        self._ask("PUT", path)
        self.await_owner(topic, to)

    def await_owner(self, topic: str, broker: ClusterBroker) -> None:
        """Wait until a broker serves a topic.

        Raises
        ------
        PulsarServerError
            If it does not in time.
        """

        def owned() -> None:
            owner = self.owner_of(topic)
            if owner is not broker:
                raise ValueError(f"its owner is {owner.name}")

        broker.await_(owned, _MOVE_SECONDS)

    def _ask(self, method: str, path: str) -> bytes:
        failure: OSError = OSError("there is no broker")
        for broker in self.brokers:
            try:
                return admin_call(broker.admin_url, method, path)
            except OSError as error:  # it is away
                failure = error
        raise failure

    def _jvm(self) -> tuple[str, ...]:
        short_lived = short_lived_jvm(self._version) if self._short_lived else ()
        return (*JVM_ARGUMENTS, *_SMALL_JVM, *short_lived)

    def _start(self, folder: Path) -> None:
        classpath, java = resolve_classpath(self._version), find_java()
        jvm = self._jvm()
        zookeeper_port, bookie_port, *ports = free_ports(2 + 2 * self._count)
        self._base = [_JavaServer(name, folder) for name in ("ZooKeeper", "bookie")]
        zookeeper, bookie = self._base
        metadata_url = f"zk:{HOST}:{zookeeper_port}"
        settings = self._settings | {
            "metadataStoreUrl": metadata_url,
            "configurationMetadataStoreUrl": metadata_url,
        }

        zookeeper_settings = write_settings(
            zookeeper.folder / "zoo.cfg",
            {
                "clientPort": str(zookeeper_port),
                "clientPortAddress": HOST,
                "dataDir": str(zookeeper.folder / "data"),
                "tickTime": str(_TICK_MS),
                "maxClientCnxns": "0",
                "admin.enableServer": "false",
                "forceSync": "no",  # as with the bookie: the processes are killed, not the machine
            },
        )
        program = ["org.apache.zookeeper.server.ZooKeeperServerMain", str(zookeeper_settings)]
        zookeeper.prepare(java, jvm, classpath, program)
        zookeeper.launch()
        zookeeper.await_(lambda: _connect(zookeeper_port), STARTUP_SECONDS)

        self.brokers = [
            ClusterBroker(number, folder, ports[2 * number : 2 * number + 2])
            for number in range(self._count)
        ]
        self._set_up(java, classpath, metadata_url)
        program = [
            "org.apache.pulsar.PulsarStandaloneStarter",
            *("--config", str(write_settings(bookie.folder / "bookie.conf", settings))),
            *("--no-broker", "-nss", "-nfw", "-a", HOST, "--metadata-url", metadata_url),
            *("--bookkeeper-dir", str(bookie.folder / "data")),
        ]
        if Release(self._version).takes_bookkeeper_port:
            program += ["--bookkeeper-port", str(bookie_port)]
        bookie.prepare(java, jvm, classpath, program)
        bookie.launch()

        if self._store_url is not None:
            # At the end, by which an archive of the other classes still fits.
            classpath = os.pathsep.join((classpath, str(broker_jar())))
        for broker in self.brokers:
            own = settings | {
                "brokerServicePort": str(broker.ports[0]),
                "webServicePort": str(broker.ports[1]),
            }
            config = write_settings(broker.folder / "broker.conf", own)
            program = ["org.apache.pulsar.PulsarBrokerStarter", "-c", str(config)]
            broker.prepare(java, jvm, classpath, program)
            broker.needs = self._base
            broker.launch()
        for broker in self.brokers:
            broker.start()

    def _set_up(self, java: str, classpath: str, metadata_url: str) -> None:
        """Write what a new cluster needs, as an administrator does."""
        assert self._folder is not None
        setup, first = _JavaServer("set-up", self._folder), self.brokers[0]
        program = [
            "org.apache.pulsar.PulsarClusterMetadataSetup",
            *("--cluster", self._settings["clusterName"]),
            *("--metadata-store", metadata_url, "--configuration-metadata-store", metadata_url),
            *("--web-service-url", first.admin_url, "--broker-service-url", first.service_url),
            *("--initial-num-transaction-coordinators", str(self._coordinators)),
            *("--default-namespace-bundle-number", "4"),
        ]
        setup.prepare(java, (*self._jvm(), *SHORT_LIVED_JVM), classpath, program)
        setup.launch()
        try:
            setup.finish(_SETUP_SECONDS)
        finally:
            setup.end(Ending.DISCARD)


def _connect(port: int) -> None:
    with socket.create_connection((HOST, port), timeout=1):
        pass


def _path(topic: str) -> str:
    return topic.replace("://", "/")
