"""A process that has the modules of Spark's Python processes imported, and forks some of them.

Spark starts a process of its own for each source of a streaming query, which imports all modules
anew: a third of what a test of a query takes of a processor. With :func:`python_for_spark` as the
interpreter of a session, such a process is a fork of one that has imported them. Spark's daemons
start with the modules imported, too; anything else is started as ever.

Run as ``python -m integration.support.fork_server <address>``; ends with its standard input.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd  # noqa: F401 - pyarrow imports it for its first array
import pyspark.sql.worker.plan_data_source_read  # noqa: F401 - for the forks, as what follows

import pulsar_txn_spark.spark.datasource
import pulsar_txn_spark.spark.source.stream  # noqa: F401

ROOT = Path(__file__).parents[2]
_FORKED = "pyspark.sql.streaming.python_streaming_source_runner"
_DAEMON = "pulsar_txn_spark.spark.worker_daemon"
_LENGTH = 8  # bytes of a number
_START_S = 60


@contextmanager
def python_for_spark(folder: Path) -> Iterator[str]:
    """Start a server, and give the path of an interpreter for ``PYSPARK_PYTHON`` that uses it."""
    address, script = folder / "forks", folder / "python"
    python, client = shlex.quote(sys.executable), Path(__file__).with_name("fork_client.py")
    script.write_text(
        f"""#!/bin/sh
export PYTHONPATH={shlex.quote(str(ROOT))}"${{PYTHONPATH:+:$PYTHONPATH}}"
case "$1 $2" in
  "-m {_FORKED}") exec {python} -I -S {client} {address} "$@" ;;
  "-m pyspark.daemon") shift 2; exec {python} -m {_DAEMON} "$@" ;;
  *) exec {python} "$@" ;;
esac
"""
    )
    script.chmod(0o755)
    with subprocess.Popen(
        [sys.executable, "-m", "integration.support.fork_server", str(address)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as server:
        assert server.stdout is not None
        assert select.select([server.stdout], [], [], _START_S)[0], "the fork server did not start"
        assert server.stdout.readline(), "the fork server has ended"
        yield str(script)
        # Its standard input ends here: so does it.


def _serve(listener: socket.socket) -> None:
    """Fork for each connection, until standard input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets forks that have ended
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _become(connection)
        connection.close()


def _become(connection: socket.socket) -> None:
    """Be the process that a client was asked to start. Ends this process."""
    code = 1
    try:
        header, streams, _, _ = socket.recv_fds(connection, _LENGTH, 3)
        size = int.from_bytes(header, "big")
        request = b""
        while len(request) < size:
            request += connection.recv(size - len(request))
        asked = json.loads(request)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(asked["environment"])
        path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:0] = [one for one in path if one and one not in sys.path]
        sys.argv = [asked["module"], *asked["arguments"]]
        os.getppid = lambda: int(asked["parent"])  # by which a process finds its driver's JVM
        threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
        runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _end_with(connection: socket.socket) -> None:
    """End when the client does, whom Spark may kill."""
    connection.recv(1)
    os._exit(1)


def main(address: str) -> None:
    """Serve until standard input ends."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        gc.freeze()  # what is shared with the forks stays shared
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        _serve(listener)


if __name__ == "__main__":
    main(sys.argv[1])
