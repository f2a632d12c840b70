"""The log of pulsar-client: on standard error where that can be opened anew, and nowhere else."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

LOG_A_REFUSED_CONNECTION = """
import contextlib, os
import pulsar
from pulsar_txn_spark.backends.pulsar.library.connections import _new_client
from pulsar_txn_spark.config import PulsarConfig, as_pairs

settings = as_pairs({"operationTimeoutMs": "1000"})
client = _new_client(PulsarConfig("pulsar://127.0.0.1:1", "http://127.0.0.1:1", client=settings))
with contextlib.suppress(pulsar.PulsarException):
    client.create_producer("t")
client.close()
with contextlib.suppress(OSError):
    os.write(2, b"the end\\n")
"""
REFUSED = "Connection refused"


def log_to(stderr: int | None, *, closing: str = "") -> subprocess.CompletedProcess[str]:
    """Let a client log in a process of its own: the first log of a process is that of all."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {closing}', "sh", sys.executable, "-c", LOG_A_REFUSED_CONNECTION],
        stdout=subprocess.PIPE,
        stderr=stderr,
        check=True,
        text=True,
        timeout=30,
    )


def test_the_log_is_on_standard_error() -> None:
    process = log_to(subprocess.PIPE)
    assert process.stdout == ""
    assert REFUSED in process.stderr


def test_a_file_keeps_both_the_log_and_what_else_is_written_to_it(tmp_path: Path) -> None:
    file = tmp_path / "errors"
    with file.open("w") as errors:  # from its beginning, as a shell's `2>` does
        process = log_to(errors.fileno())
    assert process.stdout == ""
    *log, last = file.read_text().splitlines()
    assert REFUSED in log[0]
    assert last == "the end"


def test_where_standard_error_cannot_be_opened_nothing_is_logged() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert log_to(theirs.fileno()).stdout == ""
        assert ours.recv(1000) == b"the end\n"
    assert log_to(None, closing="2>&-").stdout == ""


def test_a_file_that_is_in_the_place_of_a_closed_standard_error_stays_as_it_is(
    tmp_path: Path,
) -> None:
    file = tmp_path / "data"
    code = (
        f"import os\nassert os.open({str(file)!r}, os.O_RDWR | os.O_CREAT) == 2\n"
        f"os.write(2, b'AAAA')\nos.lseek(2, 0, 0)\n{LOG_A_REFUSED_CONNECTION}"
    )
    shell = ["sh", "-c", 'exec "$@" 2>&-', "sh"]
    subprocess.run([*shell, sys.executable, "-c", code], check=True, timeout=30)
    assert file.read_text() == "the end\n"


def test_a_named_pipe_without_a_reader_does_not_hold_a_client_up(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(pipe, os.O_WRONLY)
    os.close(reader)
    try:
        assert log_to(writer).stdout == ""
    finally:
        os.close(writer)
