"""Pulsar's admin API for topics of entries that are only counted; it counts the requests, too."""

from __future__ import annotations

import json
import re
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from pulsar_txn_spark.backends.pulsar.log import ORIGIN_PROPERTY, SEGMENT_PROPERTY
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import SegmentRef

LEDGER = 7
MESSAGES, BYTES = 10, 1_000
"""In each entry."""


@dataclass
class FakeAdminApi:
    """What a broker says of some topics.

    Parameters
    ----------
    url : str
        Of the admin API.
    entries : dict of str to int
        How many entries each topic has, by the end of its name behind the tenant and namespace.
    asked : Counter of str
        Requests so far, by what was asked for.
    instead : Callable
        Path -> a status, and where a redirect leads to; None = it is answered as usual.
    headers : dict of str to str
        Of what is answered instead.
    body : bytes
        Of what is answered instead.
    heard : list of (str, str)
        Method of each request so far, and its credentials.
    certificates : list of str
        Common name in the certificate of each request's client so far; "" without one.
    settings : dict of str to Any
        What is set elsewhere, by its path without a query; None = it has no value.
    """

    url: str = ""
    entries: dict[str, int] = field(default_factory=dict)
    properties: dict[str, dict[str, str] | None] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    instead: Callable[[str], tuple[int, str] | None] = lambda _path: None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    heard: list[tuple[str, str]] = field(default_factory=list)
    certificates: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)

    def create(self, segment: SegmentRef) -> None:
        """Let a segment's topic be there, without an entry."""
        name = segment.log_name.rpartition("/")[2]
        self.entries[name] = 0
        self.properties[name] = {
            SEGMENT_PROPERTY: segment.id,
            ORIGIN_PROPERTY: f"{EARLIEST},{LEDGER}",
        }

    def append(self, segment: SegmentRef, entries: int = 1) -> Position:
        """Let entries be there; return the last one's position."""
        name = segment.log_name.rpartition("/")[2]
        self.entries[name] += entries
        return Position(LEDGER, self.entries[name] - 1)

    def change(self, path: str, body: bytes) -> None:
        """Set something; what stands in the query is not kept."""
        if body:
            self.settings[_without_query(path)] = json.loads(body)

    def reply(self, path: str) -> tuple[int, bytes]:
        """Return the status and the body of the answer to a GET."""
        setting = _without_query(path)
        if setting not in self.settings:
            found = self.answer(*_asked(path))
            return (404, b"") if found is None else (200, json.dumps(found).encode())
        with self.lock:
            self.asked[setting] += 1
        value = self.settings[setting]
        return (204, b"") if value is None else (200, json.dumps(value).encode())

    def answer(self, name: str, what: str) -> Any:
        """Return what is to be said, None for what is not there."""
        with self.lock:
            self.asked[what.split("/", maxsplit=1)[0]] += 1
            count = self.entries.get(name)
        if count is None:
            return None
        if what.startswith("ledger/"):
            return {}
        if what == "properties":
            return self.properties[name]
        if what == "stats":
            return {"msgInCounter": count * MESSAGES, "bytesInCounter": count * BYTES}
        if what == "internalStats":
            ledger = {"ledgerId": LEDGER, "entries": 0, "size": 0}
            return {
                "lastConfirmedEntry": f"{LEDGER}:{count - 1}",
                "ledgers": [ledger],
                "currentLedgerSize": count * BYTES,
                "entriesAddedCounter": count,
            }
        raise AssertionError(what)

    def calls(self) -> int:
        """Return how many requests there were since the last call of this."""
        with self.lock:
            total = self.asked.total()
            self.asked.clear()
        return total


def common_name(connection: socket.socket) -> str:
    """Return the common name in a client's certificate."""
    shown = connection.getpeercert() if isinstance(connection, ssl.SSLSocket) else None
    names: Any = (shown or {}).get("subject", ())
    return str(dict(pair for group in names for pair in group).get("commonName", ""))


def answer_instead(
    handler: BaseHTTPRequestHandler, api: FakeAdminApi, status: int, leads_to: str
) -> None:
    """Answer a request; where a redirect leads to means nothing to others than 307."""
    own = {"Content-Length": str(len(api.body)), "Location": leads_to + handler.path}
    handler.send_response(status)
    for header in (own | api.headers).items():
        handler.send_header(*header)
    handler.end_headers()
    handler.wfile.write(api.body)
    handler.wfile.flush()


def _without_query(path: str) -> str:
    return unquote(path.partition("?")[0])


def _asked(path: str) -> tuple[str, str]:
    """Return the end of a topic's name, and what is asked of it."""
    path = _without_query(path)
    match = re.fullmatch(r"/admin/v\d/persistent/[^/]+/[^/]+/([^/]+)/(.+)", path)
    return (match[1], match[2]) if match else ("", path)


@contextmanager
def fake_admin_api(tls: ssl.SSLContext | None = None) -> Iterator[FakeAdminApi]:
    """Serve the admin API on a free port of the loopback, by https with `tls`."""
    api = FakeAdminApi()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # an answer is one write, which waits for no acknowledgement

        def parse_request(self) -> bool:
            if not super().parse_request():
                return False
            self.body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            api.heard.append((self.command, self.headers["Authorization"] or ""))
            api.certificates.append(common_name(self.connection))
            other = api.instead(self.path)
            if other is None:
                return True
            answer_instead(self, api, *other)
            return False

        def do_PUT(self) -> None:
            self.send_response(204)
            self.end_headers()

        def do_POST(self) -> None:
            api.change(self.path, self.body)
            self.send_response(204)
            self.end_headers()

        def do_GET(self) -> None:
            status, body = api.reply(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_HEAD(self) -> None:
            api.answer(*_asked(self.path))
            self.send_response(200)
            self.send_header("X-Pulsar-num-batch-message", str(MESSAGES))
            self.send_header("X-Pulsar-batch-size", str(BYTES))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    url = f"http://127.0.0.1:{server.server_port}"
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        url = f"https://localhost:{server.server_port}"
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    api.url = url
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
