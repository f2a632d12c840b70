"""One Pulsar broker for all processes that share the tests out, in a process of its own.

Run as ``python -m integration.support.shared_broker <address file>``; ends by SIGTERM.
"""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

import psutil

from integration.support.broker_silence import Silence, answers, keep_threads
from pulsar_txn_spark import watchdog
from pulsar_txn_spark.testing.pulsar_server import Broker, NoBrokerError, choose_broker

ROOT = Path(__file__).parents[2]
SILENT = "broker-silent.log"
"""The log of a broker that has answered nobody any more, beside its address."""

_POLL_S = 0.1
_LOOK_S = 10.0


def shared_broker(folder: Path, owner: int) -> Broker:
    """Return the broker of a test run. Who asks first starts it, the others wait for that.

    Parameters
    ----------
    folder : Path
        What the processes of the test run have in common, and no other test run.
    owner : int
        Pid of the process whose end is the end of the test run, and of the broker.

    Raises
    ------
    NoBrokerError
        If there is none and none can be started.
    RuntimeError
        If it ended while it was starting; with its output.
    """
    address = folder / "broker.json"
    with (folder / "broker.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not address.exists():
            _start(folder, address, owner)
    found = json.loads(address.read_text())
    if isinstance(found, str):
        raise NoBrokerError(found)
    return Broker(**found)


def _start(folder: Path, address: Path, owner: int) -> None:
    output, pid_file = folder / "broker.log", folder / "broker.pid"
    pid_file.unlink(missing_ok=True)
    watchdog.attach(owner, pid_file)
    with output.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "integration.support.shared_broker", str(address)],
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the owner
        )
    pid_file.write_text(str(process.pid))
    while not address.exists():  # the broker's start has a time limit of its own
        if process.poll() is not None and not address.exists():
            raise RuntimeError(f"the broker ended: {output.read_text(errors='replace')}")
        time.sleep(_POLL_S)


def main(address: Path) -> None:
    """Start a broker, write where it listens, and stop it when SIGTERM comes.

    One that answers nobody any more is stopped as well, so that nobody waits for it in vain.
    """
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    try:
        with choose_broker(short_lived=True) as broker:
            _write(address, asdict(broker))
            silence = Silence(partial(answers, broker.admin_url))
            while not ended.wait(_LOOK_S):
                if broker.origin == "maven" and silence.is_too_long():
                    keep_threads(address.with_name(SILENT), psutil.Process())
                    break
    except NoBrokerError as none:
        _write(address, str(none))


def _write(address: Path, found: object) -> None:
    part = address.with_suffix(".part")
    part.write_text(json.dumps(found))
    part.rename(address)  # all of it at once


if __name__ == "__main__":
    main(Path(sys.argv[1]))
