"""Redirects of the admin API: a broker names the one that serves a topic, which may be gone.

urllib3 follows them. It would also spend every retry on the broker that was named. The way back is
to ask ``admin.url`` again: another broker serves the topic once the cluster has noticed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from http import HTTPStatus
from types import TracebackType
from typing import Any
from urllib.parse import SplitResult, urlsplit

import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, MaxRetryError, ResponseError

from pulsar_txn_spark.backports import Self

UNREADY = frozenset(
    {HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT}
)
"""What brokers, and proxies in front of them, answer while a topic moves."""

ATTEMPTS = 4  # an unloaded topic is served again within a second or two
_FIRST_PAUSE_SECONDS = 0.1
_LAST_PAUSE_SECONDS = 1.0


class OwnerAwayError(MaxRetryError):
    """The broker that a redirect named cannot be connected to, or is not ready."""

    @property
    def address(self) -> str:
        """Return ``host:port`` of the broker."""
        return f"{self.pool.host}:{self.pool.port}"


class DowngradeError(HTTPError):
    """A redirect leads from https to http; it was not followed.

    Parameters
    ----------
    source, target : str
        ``host:port`` of both.
    """

    def __init__(self, source: str, target: str) -> None:
        super().__init__(source, target)
        self.source = source
        self.target = target


class RedirectRetry(urllib3.Retry):
    """Retries of one broker; where a redirect named it, of read errors only."""

    def increment(
        self,
        method: str | None = None,
        url: str | None = None,
        response: urllib3.BaseHTTPResponse | None = None,
        error: Exception | None = None,
        _pool: Any = None,
        _stacktrace: TracebackType | None = None,
    ) -> Self:
        """Count a failure or a redirect.

        Raises
        ------
        OwnerAwayError
            If a broker that was named does not accept, or is not ready.
        DowngradeError
        urllib3.exceptions.MaxRetryError
        """
        location = response.get_redirect_location() if response is not None else None
        if location:
            target = urlsplit(location)
            if _pool.scheme == "https" and target.scheme == "http":
                raise DowngradeError(f"{_pool.host}:{_pool.port}", _host_and_port(target))
        elif was_redirected(self) and (error is None or isinstance(error, ConnectTimeoutError)):
            raise OwnerAwayError(_pool, url, error or ResponseError("it is not ready"))
        return super().increment(method, url, response, error, _pool, _stacktrace)


def was_redirected(retries: urllib3.Retry | None) -> bool:
    """Tell whether a redirect was followed before."""
    history = () if retries is None else retries.history
    return any(request.redirect_location for request in history)


def begin_again(
    send: Callable[[], urllib3.BaseHTTPResponse], timeout_s: float, accept: Collection[int] = ()
) -> urllib3.BaseHTTPResponse:
    """Return the answer to a request, sent again while redirects lead to brokers that are away.

    Parameters
    ----------
    send : Callable
        Sends it to ``admin.url``, with the retries of :class:`RedirectRetry`.
    timeout_s : float
        How long it is sent again.
    accept : collection of int
        What the caller can do with, and for which a few tries will do.

    Raises
    ------
    urllib3.exceptions.HTTPError
    """
    deadline = time.monotonic() + timeout_s
    pause_s = _FIRST_PAUSE_SECONDS
    tries = 0
    while True:
        tries += 1
        is_last = time.monotonic() + pause_s > deadline
        try:
            answer = send()
        except OwnerAwayError:
            if is_last:
                raise
        else:
            is_last = is_last or (answer.status in accept and tries > ATTEMPTS)
            if is_last or answer.status not in UNREADY or not was_redirected(answer.retries):
                return answer
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LAST_PAUSE_SECONDS)


def _host_and_port(url: SplitResult) -> str:
    return url.netloc.rpartition("@")[2]
