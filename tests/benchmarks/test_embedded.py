"""The servers of the benchmarks are there when they are given."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.embedded import redis_on_port


def test_a_redis_on_a_port_listens_when_it_is_given_and_not_afterwards(tmp_path: Path) -> None:
    with redis_on_port(tmp_path) as url:
        parts = urlsplit(url)
        with socket.create_connection((parts.hostname, parts.port)) as client:
            client.sendall(b"PING\r\n")
            assert client.recv(16) == b"+PONG\r\n"
    # Another test may have got the port since: whoever listens there has other data.
    assert not list(tmp_path.iterdir())
    with socket.socket() as client:
        if client.connect_ex((parts.hostname, parts.port)) == 0:
            client.sendall(b"CONFIG GET dir\r\n")
            assert os.fsencode(tmp_path) not in client.recv(1024)
