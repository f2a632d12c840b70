"""A lock that a thread of the parent holds is free in a fork."""

from __future__ import annotations

import os
import select
import signal
import threading

from pulsar_txn_spark.process_lock import ProcessLock

PATIENCE_S = 20


def test_one_thread_at_a_time_has_the_lock() -> None:
    lock = ProcessLock()
    waits, got = threading.Event(), threading.Event()

    def other() -> None:
        waits.set()
        with lock:
            got.set()

    thread = threading.Thread(target=other)
    with lock:
        thread.start()
        assert waits.wait(PATIENCE_S)
        assert not got.is_set()
    thread.join(PATIENCE_S)
    assert got.is_set()


def test_a_fork_finds_the_lock_free_whoever_has_it_in_the_parent() -> None:
    lock = ProcessLock()
    reader, writer = os.pipe()
    with lock:
        child = os.fork()
        if child == 0:
            with lock:
                os.write(writer, b"free")
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        readable, _, _ = select.select([pipe], [], [], PATIENCE_S)
        found = pipe.read() if readable else b""
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert found == b"free"
