"""A real standalone Pulsar without Docker, for tests, the demo and trying things out.

The broker and its dependencies come from Maven Central (about 235 MB once, kept in Maven's own
local repository) and run on a plain ``java``. Data lives in a temporary folder and goes with the
process that asked for the server, also when that process is killed.

From a shell, in a clone of the repository (the wheel does not contain this package)::

    python -m pulsar_txn_spark.testing.pulsar_server

starts one in the foreground and prints its two URLs.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from pulsar_txn_spark.backports import Self
from pulsar_txn_spark.errors import EnvironmentTooOldError, PulsarTxnError
from pulsar_txn_spark.testing.broker_jar import PROVIDER, broker_jar
from pulsar_txn_spark.testing.class_archive import shared_classes
from pulsar_txn_spark.watchdog import Ending, OwnedServer

DEFAULT_VERSION = "4.0.7"
"""The LTS release that the tests run against."""

SHORT_LIVED_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options for a JVM that lives for seconds: to optimize its code costs more than it saves.

With Pulsar's classes, see :func:`short_lived_jvm`.
"""

VERSION_VARIABLE = "PULSAR_TXN_SPARK_TEST_PULSAR_VERSION"
"""Environment variable: another release to run tests against."""

SERVICE_URL_VARIABLE = "PULSAR_TXN_SPARK_TEST_SERVICE_URL"
ADMIN_URL_VARIABLE = "PULSAR_TXN_SPARK_TEST_ADMIN_URL"
CACHE_VARIABLE = "PULSAR_TXN_SPARK_CACHE"

HOST = "127.0.0.1"
STARTUP_SECONDS = 120.0  # about 10 s on two idle cores; the rest is for a busy machine
_RESOLVE_SECONDS = 1800.0  # a first download of 235 MB over a slow line
_REQUEST_SECONDS = 10.0
POLL_SECONDS = 0.2
_REDIRECTIONS = 5  # one broker knows the owner; ownership may move meanwhile
LOG_TAIL_LINES = 40
LOG_FOLLOWS = "; the end of its log:\n"
_MAX_MESSAGE_BYTES = 5 * 1024 * 1024  # a broker's own default
_FRAME_PADDING_BYTES = 10 * 1024  # as brokers reckon (Commands.MESSAGE_SIZE_FRAME_PADDING)
PORT_ATTEMPTS = 3  # somebody may take a free port between our look and the broker's bind
_OLDEST_JAVA = 17

_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>pulsar-txn-spark</groupId>
  <artifactId>broker-classpath</artifactId>
  <version>1</version>{imports}
  <dependencies>
    <dependency>
      <groupId>org.apache.pulsar</groupId>
      <artifactId>pulsar-broker</artifactId>
      <version>{version}</version>
    </dependency>
  </dependencies>
</project>
"""

_IMPORTS = """
  <dependencyManagement>
    <dependencies>
      <dependency>
        <groupId>{group}</groupId>
        <artifactId>{artifact}</artifactId>
        <version>{version}</version>
        <type>pom</type>
        <scope>import</scope>
      </dependency>
    </dependencies>
  </dependencyManagement>"""


@dataclass(frozen=True, slots=True)
class Release:
    """What is particular to the standalone broker of a release of Pulsar.

    Parameters
    ----------
    version : str
        As on Maven Central, such as ``4.0.7`` or ``5.0.0-M1``.

    Raises
    ------
    PulsarServerError
        If it is no version.
    """

    version: str

    @property
    def number(self) -> tuple[int, int]:
        """Return the major and the minor number."""
        match = re.match(r"(\d+)\.(\d+)\.", self.version)
        if match is None:
            raise PulsarServerError(
                f"--version: expected a release of Pulsar such as {DEFAULT_VERSION}, found "
                f"{self.version!r}"
            )
        return int(match[1]), int(match[2])

    @property
    def bom(self) -> tuple[str, str, str] | None:
        """Return group, artifact and version of the BOM that Maven has to import first.

        Pulsar's build pins these versions for itself only. Without the BOM, modules of several
        versions are mixed, and the broker does not start.
        """
        if self.number >= (5, 0):
            return "com.fasterxml.jackson", "jackson-bom", "2.21.3"
        if self.number >= (4, 2):
            return "io.opentelemetry", "opentelemetry-bom", "1.62.0"
        return None

    @property
    def takes_bookkeeper_port(self) -> bool:
        """Whether the standalone broker knows ``--bookkeeper-port``."""
        return self.number < (5, 0)

    @property
    def pom(self) -> str:
        """Return the Maven project of which the class path is resolved."""
        imports = ""
        if self.bom is not None:
            group, artifact, version = self.bom
            imports = _IMPORTS.format(group=group, artifact=artifact, version=version)
        return _POM.format(version=self.version, imports=imports)


_LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %-5p [%t] %c{1} %m%n
logger.standalone.name = org.apache.pulsar.PulsarStandalone
logger.standalone.level = info
logger.bookie.name = org.apache.bookkeeper.bookie.BookieStateManager
logger.bookie.level = info
# See _REGISTRATION_LOST.
logger.lock.name = org.apache.pulsar.metadata.coordination.impl.ResourceLockImpl
logger.lock.level = info
"""

SETTINGS: Mapping[str, str] = {
    "clusterName": "standalone",
    "bindAddress": HOST,
    "advertisedAddress": HOST,
    "allowLoopback": "true",
    # The bookie's: without it, it listens on all interfaces, whatever address it advertises.
    "listeningInterface": "lo",
    "managedLedgerDefaultEnsembleSize": "1",
    "managedLedgerDefaultWriteQuorum": "1",
    "managedLedgerDefaultAckQuorum": "1",
    "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.NoopLoadManager",
    "loadBalancerEnabled": "false",
    "functionsWorkerEnabled": "false",
    "webSocketServiceEnabled": "false",
    "transactionCoordinatorEnabled": "true",
    "brokerDeduplicationEnabled": "true",
    "systemTopicEnabled": "true",
    "topicLevelPoliciesEnabled": "true",
    # The bookie writes to its journal, so that acknowledged entries survive a kill of the process.
    # They would not survive one of the machine: an fsync would only make the tests slow.
    "journalWriteData": "true",
    "journalSyncData": "false",
    "journalMaxGroupWaitMSec": "0",
    "managedLedgerCacheSizeMB": "128",
    "managedLedgerCacheEvictionIntervalMs": "1000",  # every 10 ms takes 1 % of a processor
    "dbStorage_writeCacheMaxSizeMb": "64",
    "dbStorage_readAheadCacheMaxSizeMb": "32",
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    "numIOThreads": "2",
    "numHttpServerThreads": "8",
    # The only bookie: a few failed requests around a restart would quarantine it for half an hour.
    # Nothing could be stored then ("Not enough non-faulty bookies available").
    "bookkeeperClientHealthCheckEnabled": "false",
    "diskUsageThreshold": "0.99",
    "diskUsageWarnThreshold": "0.99",
}

_REGISTRATION_LOST = re.compile(rb"Lock on resource /ledgers/available/\S+ was invalidated")
"""What a standalone broker logs thousands of times a second, after some kills.

It registers its bookie anew, and hears late that the registration of before is gone. It takes that
for the new one, and renews it, which it hears of in turn, for ever (until BookKeeper 4.17.3). A
ledger that is created between two of these finds no bookie: "Not enough non-faulty bookies".
"""
_FIRST_OF_LOG_BYTES = 65_536  # the bookie is registered before much else is logged

_MAIN_CLASS = "org.apache.pulsar.PulsarStandaloneStarter"
_LOAD_CLASSES = Path(__file__).with_name("LoadClasses.java")
_METADATA_DRIVERS = "org.apache.pulsar.metadata.bookkeeper.PulsarMetadata"
JVM_ARGUMENTS = (
    "-Xms256m",
    "-Xmx1g",
    "-XX:MaxDirectMemorySize=768m",
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:-UsePerfData",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
    "--add-opens=java.base/sun.net=ALL-UNNAMED",
    "--add-opens=java.management/sun.management=ALL-UNNAMED",
    "-Dio.netty.tryReflectionSetAccessible=true",
    f"-Dbookkeeper.metadata.bookie.drivers={_METADATA_DRIVERS}BookieDriver",
    f"-Dbookkeeper.metadata.client.drivers={_METADATA_DRIVERS}ClientDriver",
)


class PulsarServerError(PulsarTxnError):
    """The standalone broker could not be resolved, started or stopped."""


class NoBrokerError(PulsarTxnError):
    """There is neither a broker nor the means to start one; the message says what was tried."""


@dataclass(frozen=True, slots=True)
class Broker:
    """Where a broker listens, and which of the choices of :func:`choose_broker` it is."""

    service_url: str
    admin_url: str
    origin: str


def cache_folder() -> Path:
    """Return the folder that keeps what was resolved, created if it is not there."""
    configured = os.environ.get(CACHE_VARIABLE)
    if configured:
        folder = Path(configured)
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder /= "pulsar_txn_spark"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _folder_of(version: str) -> Path:
    folder = cache_folder() / f"pulsar-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def resolve_classpath(version: str = DEFAULT_VERSION) -> str:
    """Return the broker's class path, downloaded through Maven the first time.

    Parameters
    ----------
    version : str
        Release of ``org.apache.pulsar:pulsar-broker``.

    Raises
    ------
    PulsarServerError
        If Maven is absent or fails.
    """
    project = Release(version).pom
    folder = _folder_of(version)
    # One process resolves, the others wait for it and find the result.
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept, pom = folder / "classpath", folder / "pom.xml"
        # What was resolved by an older version of this package may not be what is needed.
        if kept.exists() and pom.exists() and pom.read_text() == project:
            classpath = kept.read_text()
            # Maven's local repository may have been cleaned since.
            if all(Path(jar).exists() for jar in classpath.split(os.pathsep)):
                return classpath
        pom.write_text(project)
        classpath = _run_maven(folder, version)
        kept.write_text(classpath)
        return classpath


def _run_maven(folder: Path, version: str) -> str:
    maven = shutil.which("mvn")
    if maven is None:
        raise PulsarServerError(
            "cannot fetch the Pulsar broker: expected the command 'mvn' on the PATH, found none. "
            "Install Apache Maven, or name a running broker by the environment variables "
            f"{SERVICE_URL_VARIABLE} and {ADMIN_URL_VARIABLE}"
        )
    pom, output = folder / "pom.xml", folder / "resolved"
    command = [maven, "-B", "-q", "-f", str(pom), "dependency:build-classpath"]
    command += [f"-Dmdep.outputFile={output}", "-Dmdep.includeScope=runtime"]
    try:
        done = subprocess.run(  # noqa: S603 - no part of it comes from outside
            command, capture_output=True, text=True, timeout=_RESOLVE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as late:
        raise PulsarServerError(
            f"Maven did not resolve pulsar-broker {version} within {_RESOLVE_SECONDS:.0f} s; "
            "check the connection to the Maven repository and start again (it goes on where it "
            "stopped)"
        ) from late
    if done.returncode != 0 or not output.exists():
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-LOG_TAIL_LINES:])
        raise PulsarServerError(
            f"Maven could not resolve pulsar-broker {version} (exit code {done.returncode}); "
            f"the end of its output:\n{tail}"
        )
    return output.read_text().strip()


def find_java() -> str:
    """Return the ``java`` command.

    Raises
    ------
    PulsarServerError
        If there is none.
    EnvironmentTooOldError
        If it is older than Java 17.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        raise PulsarServerError(
            "cannot start the Pulsar broker: expected 'java' in JAVA_HOME or on the PATH, found "
            f"{java or 'none'}; install a Java {_OLDEST_JAVA} or newer"
        )
    match = re.search(r'version "(\d+)', _java_version(java))
    if match and int(match[1]) < _OLDEST_JAVA:
        raise EnvironmentTooOldError(
            f"the Pulsar broker needs Java {_OLDEST_JAVA} or newer, found {match[1]}; "
            "point JAVA_HOME to a newer one"
        )
    return java


def _java_version(java: str) -> str:
    return subprocess.run(  # noqa: S603 - the user's own java
        [java, "-version"], capture_output=True, text=True, timeout=_REQUEST_SECONDS, check=False
    ).stderr


@functools.cache
def short_lived_jvm(version: str = DEFAULT_VERSION) -> tuple[str, ...]:
    """Return the options of a JVM that lives for seconds and loads Pulsar's classes.

    They come from an archive beside the class path, of 100 MB, which is made by the first process
    that asks for it. That takes 25 s of a processor, and saves 2.5 s at each start. So it is made
    for the release alone that the tests run against.

    Parameters
    ----------
    version : str
        Release of Pulsar. The JVM's class path has to begin with that of
        :func:`resolve_classpath`; else nothing comes from the archive.

    Raises
    ------
    PulsarServerError
        If there is no class path, or no ``java``.
    """
    if version != _release_under_test():
        return SHORT_LIVED_JVM
    java, jars = find_java(), resolve_classpath(version).split(os.pathsep)
    files = [(jar, Path(jar).stat()) for jar in jars]
    shared = shared_classes(
        _folder_of(version),
        "classes",
        [
            *(java, _java_version(java), _LOAD_CLASSES.read_text()),
            *(f"{jar} {status.st_size} {status.st_mtime_ns}" for jar, status in files),
        ],
        lambda options: PulsarServer(version=version).load_classes(options),
    )
    return (*SHORT_LIVED_JVM, *shared)


def _release_under_test() -> str:
    return os.environ.get(VERSION_VARIABLE) or DEFAULT_VERSION


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback address that nobody listens on just now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind((HOST, 0))
        return [sock.getsockname()[1] for sock in sockets]


class PulsarServer:
    """A standalone broker in a process of its own; a context manager.

    Parameters
    ----------
    version : str, optional
        Release of Pulsar; else that of the environment, else :data:`DEFAULT_VERSION`.
    settings : Mapping[str, str], optional
        Broker settings over the defaults (``broker.conf`` names).
    token : str, optional
        Superuser token for the admin calls of the start, where `settings` switch
        authentication on.
    startup_timeout_s : float
        Bound on the time from the start until the broker answers.
    store_url : str, optional
        Metadata store by which the broker gates segments: it gets the plug-in of ``jvm_shim/``.
    short_lived : bool
        Start with half the processor time, and serve a large load slower: for tests.

    Attributes
    ----------
    service_url, admin_url : str
        The same over restarts.
    log_path : Path
        The broker's log; it goes with the server.
    """

    def __init__(
        self,
        *,
        version: str | None = None,
        settings: Mapping[str, str] | None = None,
        token: str | None = None,
        startup_timeout_s: float = STARTUP_SECONDS,
        store_url: str | None = None,
        short_lived: bool = False,
    ) -> None:
        self._version = version or _release_under_test()
        self._store_url = store_url
        self._settings = dict(settings or {})
        if store_url is not None:
            self._settings = plugin_settings(store_url) | self._settings
        self._token = token
        self._startup_timeout_s = startup_timeout_s
        self._short_lived = short_lived
        self._server: OwnedServer | None = None
        self._folder: Path | None = None
        self._ports: list[int] = []
        self._command: list[str] = []
        self._log_begins = 0  # where the log of this start does

    @property
    def service_url(self) -> str:
        """Return the URL of the binary protocol."""
        return f"pulsar://{HOST}:{self._ports[0]}"

    @property
    def admin_url(self) -> str:
        """Return the URL of the admin REST API."""
        return f"http://{HOST}:{self._ports[1]}"

    @property
    def log_path(self) -> Path:
        """Return the path of the broker's log."""
        if self._folder is None:
            raise PulsarServerError("the server was not started or is stopped: there is no log")
        return self._folder / "broker.log"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the broker and wait until it serves the namespace ``public/default``.

        Raises
        ------
        PulsarServerError
            If it ends or does not answer in time; with the end of its log.
        """
        classpath, java = resolve_classpath(self._version), find_java()
        if self._store_url is not None:
            # At the end, by which an archive of the other classes still fits.
            classpath = os.pathsep.join((classpath, str(broker_jar())))
        for attempt in range(1, PORT_ATTEMPTS + 1):
            self._folder = Path(tempfile.mkdtemp(prefix="pulsar-txn-spark-"))
            self._ports = free_ports(3)
            jvm = short_lived_jvm(self._version) if self._short_lived else ()
            self._write_files(java, jvm, classpath, [_MAIN_CLASS])
            self._launch()
            try:
                self._await_ready()
            except BaseException as failure:
                taken = isinstance(failure, PulsarServerError) and "BindException" in str(failure)
                self.stop()
                if taken and attempt < PORT_ATTEMPTS:
                    continue
                raise
            return

    def stop(self) -> None:
        """Kill the broker and remove its data. Idempotent."""
        # Nobody will look at the data any more: an orderly shutdown would only take time.
        self._end(Ending.DISCARD)
        self._folder = None

    def restart(self, *, crash: bool = False) -> None:
        """Stop the broker and start it again with the same ports and data.

        Parameters
        ----------
        crash : bool
            Kill it instead of an orderly shutdown.
        """
        self.pause(crash=crash)
        self.resume()

    def pause(self, *, crash: bool = False) -> None:
        """Stop the broker but keep its data, for :meth:`resume`."""
        self._end(Ending.CRASH if crash else Ending.PAUSE)

    def resume(self) -> None:
        """Start the broker again on the data and the ports that it had."""
        self._launch()
        try:
            self._await_ready()
        except BaseException:
            self.stop()
            raise

    def load_classes(self, jvm: Sequence[str]) -> None:
        """Run the broker and a client of it in one JVM with some options, which then ends.

        Raises
        ------
        PulsarServerError
            If it fails, or is not done in time; with the end of its log.
        """
        java, classpath = find_java(), resolve_classpath(self._version)
        with tempfile.TemporaryDirectory(prefix="pulsar-txn-spark-") as folder:
            self._folder, self._ports = Path(folder), free_ports(3)
            program = [str(_LOAD_CLASSES), self.service_url]
            self._write_files(java, [*SHORT_LIVED_JVM, *jvm], classpath, program)
            with (
                self.log_path.open("wb") as log,
                subprocess.Popen(  # noqa: S603 - our own program
                    self._command,
                    stdin=subprocess.PIPE,  # closed when this process dies, which ends the program
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=folder,
                ) as process,
            ):
                assert process.stdin is not None
                try:
                    self._await_answer(process.poll)
                    process.stdin.write(b"\n")
                    process.stdin.flush()
                    code = process.wait(self._startup_timeout_s)
                finally:
                    process.kill()
            if code != 0:
                text = f"the program that loads classes failed (exit code {code})"
                raise PulsarServerError(text + self._log_tail())

    def _write_files(
        self, java: str, jvm: Iterable[str], classpath: str, program: Iterable[str]
    ) -> None:
        assert self._folder is not None
        broker_port, web_port, bookie_port = self._ports
        settings = dict(SETTINGS)
        settings |= {"brokerServicePort": str(broker_port), "webServicePort": str(web_port)}
        settings |= self._settings
        # The bookie's frame holds an entry of the broker's limit and what is put around it. Its own
        # default is that limit itself: an entry just below would never be stored.
        largest = int(settings.get("maxMessageSize", _MAX_MESSAGE_BYTES)) + _FRAME_PADDING_BYTES
        settings.setdefault("nettyMaxFrameSizeBytes", str(largest))
        config = write_settings(self._folder / "broker.conf", settings)
        program = [
            *program,
            *("--config", str(config), "-nss", "-nfw", "-a", HOST),
            *("--metadata-dir", str(self._folder / "metadata")),
            *("--bookkeeper-dir", str(self._folder / "bookkeeper")),
        ]
        if Release(self._version).takes_bookkeeper_port:
            program += ["--bookkeeper-port", str(bookie_port)]
        arguments = (*JVM_ARGUMENTS, *jvm)
        self._command = java_command(self._folder, java, arguments, classpath, program)

    def _launch(self) -> None:
        if self._folder is None or self._server is not None:
            raise PulsarServerError("the server is not in a state in which it can be started")
        self._log_begins = self.log_path.stat().st_size if self.log_path.exists() else 0
        self._server = OwnedServer(self._command, self._folder, self.log_path)

    def _end(self, ending: Ending) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.end(ending)
        elif self._folder is not None and not ending.keeps_folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _await_ready(self) -> None:
        self._await_answer(self._exit_code)

    def _exit_code(self) -> int | None:
        assert self._server is not None
        return self._server.exit_code()

    def _await_answer(self, exit_code: Callable[[], int | None]) -> None:
        deadline = time.monotonic() + self._startup_timeout_s
        last = "no answer yet"
        while time.monotonic() < deadline:
            code = exit_code()
            if code is not None:
                raise PulsarServerError(
                    f"the Pulsar broker ended while it was starting (exit code {code})"
                    + self._log_tail()
                )
            if self._has_lost_registration():  # nobody can have connected yet
                self.pause(crash=True)
                self._launch()
            try:
                prepare(self.admin_url, self._token)
            except (OSError, ValueError) as not_yet:
                last = str(not_yet)
            else:
                return
            time.sleep(POLL_SECONDS)
        raise PulsarServerError(
            f"the Pulsar broker did not answer within {self._startup_timeout_s:g} s ({last}): give "
            "it longer (--startup-timeout, or startup_timeout_s) if the machine is busy"
            + self._log_tail()
        )

    def _has_lost_registration(self) -> bool:
        with self.log_path.open("rb") as log:
            log.seek(self._log_begins)
            return _REGISTRATION_LOST.search(log.read(_FIRST_OF_LOG_BYTES)) is not None

    def _log_tail(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        return LOG_FOLLOWS + "\n".join(lines)


def write_settings(path: Path, settings: Mapping[str, str]) -> Path:
    """Write a server's configuration file and return its path."""
    path.touch(mode=0o600)  # the settings may hold a secret
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


def java_command(
    folder: Path,
    java: str,
    jvm_arguments: Iterable[str],
    classpath: str,
    program: Iterable[str],
) -> list[str]:
    """Return the command of a Java server that has a folder of its own.

    Parameters
    ----------
    folder : Path
        Takes temporary files and the file of arguments.
    java : str
        From :func:`find_java`.
    jvm_arguments : iterable of str
    classpath : str
        From :func:`resolve_classpath`, and what comes before it.
    program : iterable of str
        Main class and its arguments.
    """
    logging = folder / "log4j2.properties"
    logging.write_text(_LOGGING)
    arguments = [*jvm_arguments, f"-Dlog4j2.configurationFile={logging}"]
    arguments += [f"-Djava.io.tmpdir={folder}", "-cp", classpath, *program]
    # An argument file: a class path of 317 jars makes every list of processes unreadable.
    quoted = (argument.replace("\\", "\\\\").replace('"', '\\"') for argument in arguments)
    (folder / "java.args").write_text("".join(f'"{argument}"\n' for argument in quoted))
    return [java, f"@{folder / 'java.args'}"]


def plugin_settings(store_url: str) -> dict[str, str]:
    """Return the settings by which a broker gates segments (docs/broker.md)."""
    return {
        "transactionBufferProviderClassName": PROVIDER,
        "pulsarTxnSparkStoreUrl": store_url,
    }


def admin_call(
    admin_url: str, method: str, path: str, body: bytes | None = None, *, token: str | None = None
) -> bytes:
    """Send a request to a broker's admin REST API, and follow it to the broker that serves it.

    Raises
    ------
    OSError
        If it fails; :class:`urllib.error.HTTPError` for an answer that says so.
    """
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    # No proxy of the environment stands between us and the loopback address.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    url = admin_url + path
    for _ in range(_REDIRECTIONS):
        request = urllib.request.Request(  # noqa: S310 - always http to the loopback address
            url, data=body, method=method, headers=headers
        )
        try:
            with opener.open(request, timeout=_REQUEST_SECONDS) as answer:
                content: bytes = answer.read()
                return content
        except urllib.error.HTTPError as answer:
            # urllib follows those of GET only.
            if answer.code != HTTPStatus.TEMPORARY_REDIRECT:
                raise
            url = answer.headers["Location"]
    raise OSError(f"{method} {path} was sent from broker to broker {_REDIRECTIONS} times")


def prepare(admin_url: str, token: str | None = None) -> None:
    """Set the namespace up and see that topics can be served; raises until it is so."""
    call = functools.partial(admin_call, admin_url, token=token)
    if "public/default" not in json.loads(call("GET", "/admin/v2/namespaces/public")):
        raise ValueError("the namespace public/default is not there yet")
    forever = json.dumps({"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}).encode()
    call("POST", "/admin/v2/namespaces/public/default/retention", forever)
    call("GET", "/lookup/v2/topic/persistent/public/default/ready")
    # A look-up needs no bookie. Loading a topic does, and after a kill the bookie may come late:
    # "Not enough non-faulty bookies available".
    topic = "/admin/v2/persistent/public/default/ready"
    try:
        call("PUT", topic, b"")
    except urllib.error.HTTPError as answer:
        if answer.code != HTTPStatus.CONFLICT:  # it is there from before
            raise
    call("GET", f"{topic}/internalStats")


@contextlib.contextmanager
def choose_broker(*, short_lived: bool = False) -> Iterator[Broker]:
    """Give a broker for tests: the environment's, one in Docker, or one from Maven.

    Parameters
    ----------
    short_lived : bool
        For one from Maven: see :class:`PulsarServer`.

    Yields
    ------
    Broker
        Its URLs; what was started for it stops at the end.

    Raises
    ------
    NoBrokerError
        If none of the three is possible; with Maven present, a failure is a failure.
    """
    service_url = os.environ.get(SERVICE_URL_VARIABLE)
    admin_url = os.environ.get(ADMIN_URL_VARIABLE)
    if bool(service_url) != bool(admin_url):
        raise PulsarServerError(
            f"expected both of {SERVICE_URL_VARIABLE} and {ADMIN_URL_VARIABLE}, found only one; "
            "set the other one or unset this one"
        )
    if service_url and admin_url:
        yield Broker(service_url, admin_url, "environment")
        return
    no_docker = _docker_absent()
    if no_docker is None:
        with _docker_broker() as broker:
            yield broker
        return
    if shutil.which("mvn") is None:
        raise NoBrokerError(
            f"no Pulsar to test against: {SERVICE_URL_VARIABLE} is not set, {no_docker}, and there "
            "is no 'mvn' on the PATH"
        )
    with PulsarServer(short_lived=short_lived) as server:
        yield Broker(server.service_url, server.admin_url, "maven")


def _docker_absent() -> str | None:
    """Say why Docker cannot serve, None if it can."""
    try:
        import testcontainers.core.container  # noqa: F401, PLC0415 - optional
    except ImportError:
        return "testcontainers is not installed"
    docker = shutil.which("docker")
    if docker is None:
        return "there is no 'docker' on the PATH"
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command
            [docker, "info"], capture_output=True, timeout=_REQUEST_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return "'docker info' does not answer"
    return None if done.returncode == 0 else "'docker info' finds no daemon"


@contextlib.contextmanager
def _docker_broker() -> Iterator[Broker]:
    from testcontainers.core.container import DockerContainer  # noqa: PLC0415 - optional

    # The broker tells clients its own port, so it must be the same inside and outside.
    broker_port, web_port = free_ports(2)
    settings = {
        name: value
        for name, value in SETTINGS.items()
        if name not in {"bindAddress", "clusterName"}
    }
    settings |= {"brokerServicePort": str(broker_port), "webServicePort": str(web_port)}
    container = DockerContainer(f"apachepulsar/pulsar:{DEFAULT_VERSION}")
    for name, value in settings.items():
        container = container.with_env(f"PULSAR_PREFIX_{name}", value)
    container = (
        container.with_bind_ports(broker_port, broker_port)
        .with_bind_ports(web_port, web_port)
        .with_command(
            "sh -c 'bin/apply-config-from-env.py conf/standalone.conf && exec bin/pulsar "
            "standalone -nss -nfw'"
        )
    )
    broker = Broker(f"pulsar://{HOST}:{broker_port}", f"http://{HOST}:{web_port}", "docker")
    with container:
        deadline = time.monotonic() + STARTUP_SECONDS
        while True:
            try:
                prepare(broker.admin_url)
            except (OSError, ValueError) as not_yet:
                if time.monotonic() > deadline:
                    raise PulsarServerError(
                        f"Pulsar in Docker did not answer within {STARTUP_SECONDS:.0f} s: {not_yet}"
                    ) from not_yet
                time.sleep(POLL_SECONDS)
            else:
                break
        yield broker


def main(arguments: list[str] | None = None) -> int:
    """Run a broker in the foreground until a signal comes."""
    parser = argparse.ArgumentParser(
        prog="python -m pulsar_txn_spark.testing.pulsar_server",
        description="Start a standalone Pulsar with throw-away data and print its URLs.",
    )
    parser.add_argument("--version", default=DEFAULT_VERSION, help="release of Pulsar")
    parser.add_argument(
        "--startup-timeout",
        type=float,
        default=STARTUP_SECONDS,
        metavar="SECONDS",
        help="how long the broker may take until it answers (%(default)g)",
    )
    parser.add_argument(
        "--shim",
        metavar="STORE_URL",
        help="gate segments for every client, by the metadata store at redis://host:port: builds "
        "the plug-in of jvm_shim/ if need be",
    )
    parser.add_argument(
        "--run",
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help="once it answers, run this with service.url=... and admin.url=... as further "
        "arguments, and end with it; if the broker does not come up, it is not run",
    )
    chosen = parser.parse_args(arguments)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    try:
        with PulsarServer(
            version=chosen.version,
            startup_timeout_s=chosen.startup_timeout,
            store_url=chosen.shim,
        ) as server:
            urls = [f"service.url={server.service_url}", f"admin.url={server.admin_url}"]
            if chosen.run:
                return _run([*chosen.run, *urls], ended)
            print("\n".join(urls), flush=True)  # noqa: T201 - what it is for
            ended.wait()
    except PulsarTxnError as error:
        print(f"error: {_in_one_line(error)}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


def _run(command: list[str], ended: threading.Event) -> int:
    """Run a command until it ends or a signal comes, and return its exit code."""
    try:
        process = subprocess.Popen(command)  # noqa: S603 - the user's own
    except OSError as error:
        raise PulsarServerError(f"{command[0]} does not run: {error.strerror}") from error
    while process.poll() is None:
        if ended.wait(POLL_SECONDS):
            process.terminate()
            return process.wait()
    return process.returncode


def _in_one_line(error: PulsarTxnError) -> str:
    """Return what happened; the end of the broker's log goes into a file, which outlives it."""
    what, separator, log = str(error).partition(LOG_FOLLOWS)
    if not separator:
        return " ".join(what.split())
    number, path = tempfile.mkstemp(prefix="pulsar-broker-", suffix=".log")
    with os.fdopen(number, "w", encoding="utf-8") as file:
        file.write(log)
    return f"{' '.join(what.split())}; the end of its log is in {path}"


if __name__ == "__main__":
    sys.exit(main())
