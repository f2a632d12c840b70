"""Redirects of the admin API: a broker names the one that serves a topic, which may be gone.

urllib3 follows them. It would also spend every retry on the broker that was named. The way back is
to ask ``admin.url`` again: another broker serves the topic once the cluster has noticed. What was
sent and timed out is urllib3's to retry. All other retries are those of :func:`begin_again`.
"""

from __future__ import annotations

import math
import ssl
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any
from urllib.parse import SplitResult, urlsplit

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    MaxRetryError,
    ProtocolError,
    SSLError,
)

from pulsar_txn_spark.backports import Self

ATTEMPTS = 4
FEW_TRIES = ATTEMPTS + 1  # an unloaded topic is served again within a second or two
_FIRST_PAUSE_SECONDS = 0.2
_LAST_PAUSE_SECONDS = 1.0
_TLS_CLOSED = (ssl.SSLEOFError, ssl.SSLZeroReturnError)  # closed amid a handshake, or a request


class _RedirectError(MaxRetryError):
    @property
    def address(self) -> str:
        """Return ``host:port`` of the broker."""
        return f"{self.pool.host}:{self.pool.port}"


class OwnerAwayError(_RedirectError):
    """The broker that a redirect named cannot be connected to."""


class RedirectLoopError(_RedirectError):
    """Brokers redirect to each other: they do not agree yet on who serves a topic."""


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
            If a broker that was named does not accept.
        RedirectLoopError
            If redirects lead to no broker that serves the topic.
        DowngradeError
        urllib3.exceptions.MaxRetryError
        """
        location = response.get_redirect_location() if response is not None else None
        if location:
            target = urlsplit(location)
            if _pool.scheme == "https" and target.scheme == "http":
                raise DowngradeError(f"{_pool.host}:{_pool.port}", _host_and_port(target))
        elif was_redirected(self) and isinstance(error, ConnectTimeoutError):
            raise OwnerAwayError(_pool, url, error)
        try:
            return super().increment(method, url, response, error, _pool, _stacktrace)
        except MaxRetryError as last:
            if location:
                raise RedirectLoopError(_pool, url, last.reason) from None
            raise


def was_redirected(retries: urllib3.Retry | None) -> bool:
    """Tell whether a redirect was followed before."""
    history = () if retries is None else retries.history
    return any(request.redirect_location for request in history)


def begin_again(
    send: Callable[[], urllib3.BaseHTTPResponse],
    timeout_s: float,
    tries_of: Callable[[urllib3.BaseHTTPResponse], float],
    *,
    was_reached: bool,
) -> urllib3.BaseHTTPResponse:
    """Return the answer to a request, sent again while who is to answer it is away.

    Parameters
    ----------
    send : Callable
        Sends it to ``admin.url``, with the retries of :class:`RedirectRetry`.
    timeout_s : float
        How long it is sent again; once it is sent in any case.
    tries_of : Callable
        Returns how often a request is sent at most that has this answer.
    was_reached : bool
        Whether ``admin.url`` has led to somebody before. If not, it may be wrong: then a few tries
        have to do.

    Raises
    ------
    urllib3.exceptions.HTTPError
    """
    deadline = time.monotonic() + timeout_s
    pause_s = _FIRST_PAUSE_SECONDS
    tries = 0

    def is_last() -> bool:
        return time.monotonic() + pause_s > deadline

    while True:
        tries += 1
        try:
            answer = send()
        except (OwnerAwayError, RedirectLoopError):
            if is_last():
                raise
        except MaxRetryError as failed:
            if is_last() or tries >= _tries_at_nobody(failed.reason, was_reached=was_reached):
                raise
        else:
            if is_last() or tries >= tries_of(answer):
                return answer
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LAST_PAUSE_SECONDS)


def _tries_at_nobody(reason: Exception | None, *, was_reached: bool) -> float:
    """Return how often a request is sent at most that nobody answers, for this reason."""
    if isinstance(reason, ConnectTimeoutError):
        return math.inf if was_reached else FEW_TRIES
    # A proxy may accept, and close, where its broker is away. urllib3 has sent it again already.
    return math.inf if was_reached and hung_up(reason) else 1


def hung_up(reason: Exception | None) -> bool:
    """Tell whether a connection was closed without an answer, amid the TLS handshake as well."""
    if isinstance(reason, SSLError):
        return any(isinstance(cause, _TLS_CLOSED) for cause in reason.args)
    return isinstance(reason, ProtocolError)


def _host_and_port(url: SplitResult) -> str:
    return url.netloc.rpartition("@")[2]
