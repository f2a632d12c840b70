"""Connections to the admin API: new ones with the certificates of now, once a TLS file changes."""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable
from typing import Any

import urllib3

from pulsar_txn_spark.backends.pulsar.tls import TlsSettings
from pulsar_txn_spark.errors import OptionError

_LOG = logging.getLogger(__name__)


class AdminPool:
    """A pool of connections whose TLS files may be renewed; safe to use from several threads.

    Parameters
    ----------
    new : Callable
        Makes a pool; what it gets says how to speak TLS.
    tls : TlsSettings, optional
        None = it speaks plain HTTP.

    Raises
    ------
    OptionError
        If a file cannot be read or is no certificate.
    """

    def __init__(
        self,
        new: Callable[[ssl.SSLContext | None], urllib3.PoolManager],
        tls: TlsSettings | None = None,
    ) -> None:
        self._new = new
        self._tls = tls
        self._lock = threading.Lock()
        # Before the files are read: a change meanwhile is seen by the next request.
        self._loaded = () if tls is None else tls.fingerprint()
        self._refused: object = None
        self._pool = new(None if tls is None else tls.context())

    def request(self, method: str, url: str, **arguments: Any) -> urllib3.BaseHTTPResponse:
        """Send a request; otherwise as :meth:`urllib3.PoolManager.request`."""
        return self._current().request(method, url, **arguments)

    def close(self) -> None:
        """Close every connection."""
        self._pool.clear()

    def _current(self) -> urllib3.PoolManager:
        """Return the pool, a new one if a TLS file has changed.

        Nobody closes the old one: requests that are under way have their connections to the end.
        These close with the last reference to the pool.
        """
        if self._tls is None:
            return self._pool
        with self._lock:
            files = self._tls.fingerprint()
            if files != self._loaded:
                try:
                    self._pool = self._new(self._tls.context())
                    self._loaded = files
                except OptionError as error:
                    self._say_refused(files, error)
            return self._pool

    def _say_refused(self, files: object, error: OptionError) -> None:
        """Warn once: they may be amid a change, a certificate without its key."""
        if files != self._refused:
            self._refused = files
            _LOG.warning(
                "the TLS files of the admin API have changed, and those from before serve on until "
                "the new ones can be used: %s",
                error,
            )
