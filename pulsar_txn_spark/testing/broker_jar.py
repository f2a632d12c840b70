"""Building the jar by which a Pulsar broker gates segments (``jvm_shim/``), when it has changed.

From a shell, in a clone of the repository::

    python -m pulsar_txn_spark.testing.broker_jar

builds it, runs its tests against a real Redis, and prints where it is.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from pulsar_txn_spark.errors import PulsarTxnError
from pulsar_txn_spark.store.redis.server import find_server_binary

JAR_NAME = "pulsar-txn-spark-broker.jar"
PROVIDER = "pulsartxnspark.broker.MetadataTransactionBufferProvider"
"""Class for a broker's ``transactionBufferProviderClassName``."""
COORDINATOR = "pulsartxnspark.broker.MetadataTransactionCoordinatorProvider"
"""Class for a broker's ``transactionMetadataStoreProviderClassName``."""
PENDING_ACKS = "pulsartxnspark.broker.MetadataPendingAckStoreProvider"
"""Class for a broker's ``transactionPendingAckStoreProviderClassName``."""

_ROOT = Path(__file__).parents[2]
_MODULE = _ROOT / "jvm_shim"
_SCRIPTS = _ROOT / "pulsar_txn_spark" / "store" / "redis" / "lua"
_FOLDER = Path(sys.prefix) / "shim"
_TARGET = _FOLDER / "target"
_BUILD_SECONDS = 1800.0  # a first download over a slow line; 30 s otherwise
_SHOWN_LINES = 60


class BrokerJarError(PulsarTxnError):
    """The jar could not be built, or its tests failed."""


def broker_jar() -> Path:
    """Return the path of the jar, built by Maven unless it is up to date.

    Its own tests are left to :func:`verified_broker_jar`: a broker need not wait for them.

    Raises
    ------
    BrokerJarError
        If Maven is absent or fails; with the end of its output.
    """
    _once("built", _build)
    return _jar()


def verified_broker_jar() -> Path:
    """Return the path of the jar when its own tests have passed, unless they did before.

    Raises
    ------
    BrokerJarError
        If Maven is absent or fails, or a test does; with the end of its output.
    """
    jar = broker_jar()
    _once("tested", _test)
    return jar


def _once(done: str, work: Callable[[], None]) -> None:
    """Do what has to be done once for these sources: one process does it, the others wait."""
    _FOLDER.mkdir(parents=True, exist_ok=True)
    stamp = _FOLDER / f"{done}.sha256"
    with (_FOLDER / f"{done}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sources = _digest()
        if _jar().exists() and stamp.exists() and stamp.read_text() == sources:
            return
        stamp.unlink(missing_ok=True)
        work()
        stamp.write_text(sources)


def _jar() -> Path:
    return _FOLDER / JAR_NAME


def _build() -> None:
    """Build from nothing: Maven goes by times, and what is there may be of other sources."""
    _maven("clean", "package", "-Dmaven.test.skip=true")
    (_TARGET / JAR_NAME).replace(_jar())


def _test() -> None:
    """Test the classes that are in the jar, which is not packed again."""
    # Its tests start the redis-server that comes first on the PATH.
    path = f"{Path(find_server_binary()).parent}{os.pathsep}{os.environ['PATH']}"
    _maven("test", PATH=path)


def _digest() -> str:
    """Return what identifies all that the jar is made of."""
    files = [_MODULE / "pom.xml", *_SCRIPTS.glob("*.lua")]
    files += [file for file in (_MODULE / "src").rglob("*") if file.is_file()]
    whole = hashlib.sha256()
    for file in sorted(files):
        whole.update(f"{file.relative_to(_ROOT)}\n".encode())
        whole.update(hashlib.sha256(file.read_bytes()).digest())
    return whole.hexdigest()


def _maven(*arguments: str, **names: str) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise BrokerJarError(
            "cannot build the broker's jar: expected the command 'mvn' on the PATH, found none; "
            "install Apache Maven"
        )
    command = [maven, "-B", "-q", "-f", str(_MODULE / "pom.xml"), *arguments]
    command.append(f"-Dshim.build={_TARGET}")
    try:
        done = subprocess.run(  # noqa: S603 - no part of it comes from outside
            command,
            capture_output=True,
            text=True,
            timeout=_BUILD_SECONDS,
            check=False,
            env=os.environ | names,
        )
    except subprocess.TimeoutExpired as late:
        raise BrokerJarError(
            f"Maven did not build or test the broker's jar within {_BUILD_SECONDS:.0f} s; check "
            "the connection to the Maven repository and start again"
        ) from late
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-_SHOWN_LINES:])
        raise BrokerJarError(
            f"Maven could not build or test the broker's jar (exit {done.returncode}); the end "
            f"of its output:\n{tail}"
        )


def main() -> int:
    """Build the jar and print its path."""
    try:
        print(verified_broker_jar())  # noqa: T201 - what it is for
    except PulsarTxnError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
