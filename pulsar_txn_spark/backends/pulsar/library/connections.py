"""Connections through ``pulsar-client``, shared within a process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import sys
from typing import Any

import pulsar

from pulsar_txn_spark.backends.pulsar.passthrough import (
    Credentials,
    parse_passthrough,
    service_url_of,
)
from pulsar_txn_spark.backends.pulsar.shared_clients import SharedClients
from pulsar_txn_spark.config import PulsarConfig

_STANDARD_ERROR = "/dev/stderr"


def _new_client(config: PulsarConfig) -> Any:
    settings = parse_passthrough("client", dict(config.client))
    credentials: Credentials = settings.pop("credentials")
    settings.setdefault("tls_validate_hostname", True)
    return pulsar.Client(
        service_url_of(config),
        authentication=_authentication(credentials),
        logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, _log_file()),
        **settings,
    )


def _log_file() -> str:
    """Return the file of pulsar-client's log: standard error, if that can be opened anew.

    Its ConsoleLogger writes to standard output. A logger of Python's would need Python's lock on
    the client's own threads, also while Python ends.
    """
    if sys.__stderr__ is None:  # it was closed at the start: what is in its place is another file
        return os.devnull
    try:
        os.close(os.open(_STANDARD_ERROR, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY))
        if stat.S_ISREG(os.fstat(2).st_mode):
            # Else what this process writes next would replace what the client has appended.
            fcntl.fcntl(2, fcntl.F_SETFL, fcntl.fcntl(2, fcntl.F_GETFL) | os.O_APPEND)
    except OSError:  # closed, a socket, or a named pipe without a reader, for which it would wait
        return os.devnull
    return _STANDARD_ERROR


class _Renewing:
    """Gives the token whenever the client connects; a file may have been renewed meanwhile."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._last = credentials.token()  # raises here, where somebody sees it

    def __call__(self) -> str:
        # An exception on the client's own thread would end the process.
        with contextlib.suppress(Exception):
            self._last = self._credentials.token()
        return self._last


def _authentication(credentials: Credentials) -> Any:
    if credentials.method == "token":
        return pulsar.AuthenticationToken(_Renewing(credentials))
    if credentials.method == "tls":
        return pulsar.AuthenticationTLS(credentials["tlsCertFile"], credentials["tlsKeyFile"])
    if credentials.method == "basic":
        return pulsar.AuthenticationBasic(credentials["userId"], credentials["password"])
    if credentials.method == "oauth2":
        return pulsar.AuthenticationOauth2(credentials["json"])
    if credentials.method == "athenz":
        return pulsar.AuthenticationAthenz(credentials["json"])
    return None


def close_quietly(resource: Any) -> None:
    """Close a client, a producer or a reader, whatever state it is in."""
    # A client, producer or reader that is closed or whose topic is sealed raises on closing.
    with contextlib.suppress(pulsar.PulsarException):
        resource.close()


CLIENTS = SharedClients(_new_client, close_quietly)
