"""Connections through ``pulsar-client``: shared within a process, its errors translated."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Mapping
from typing import Any

import pulsar

from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.errors import (
    MessageTooLargeError,
    SegmentLogError,
    SegmentLogUnavailableError,
    SegmentNotFoundError,
    SegmentSealedError,
)
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.pulsar_options import Credentials, parse_passthrough

_IDLE_CLIENTS = 2  # kept open for the next log: Spark's workers open one per task

TRANSIENT = frozenset(
    {
        "AlreadyClosed",
        "BrokerMetadataError",
        "BrokerPersistenceError",
        "ConnectError",
        "Disconnected",
        "Interrupted",
        "LookupError",
        "NotConnected",
        "ReadError",
        "Retryable",
        "ServiceUnitNotReady",
        "TimeOut",
        "Timeout",
        "TooManyLookupRequestException",
    }
)
"""Results that another try may not give again."""


_CHECK_AUTHENTICATION = (
    "Pulsar refuses us; check pulsar.client.authPluginClassName, pulsar.client.authParams and the "
    "role's permission on the namespace"
)
_CHECK_QUOTA = (
    "a backlog quota holds producers back, although the segment was created without one; check "
    "the policies of the topic and its namespace"
)
_CHECK_SERVICE = (
    "Pulsar did not answer; check service.url, for pulsar+ssl the TLS options, the network and "
    "the broker's health"
)
_ERRORS: Mapping[str, tuple[type[SegmentLogError], str]] = {
    "TopicTerminated": (SegmentSealedError, "it was sealed and takes no more entries"),
    "TopicNotFound": (SegmentNotFoundError, "there is no such topic on the broker"),
    "MessageTooBig": (MessageTooLargeError, "an entry exceeds the broker's maxMessageSize"),
    "AuthenticationError": (SegmentLogUnavailableError, _CHECK_AUTHENTICATION),
    "AuthorizationError": (SegmentLogUnavailableError, _CHECK_AUTHENTICATION),
    "ErrorGettingAuthenticationData": (SegmentLogUnavailableError, _CHECK_AUTHENTICATION),
    "ProducerBlockedQuotaExceededError": (SegmentLogUnavailableError, _CHECK_QUOTA),
    "ProducerBlockedQuotaExceededException": (SegmentLogUnavailableError, _CHECK_QUOTA),
} | dict.fromkeys(TRANSIENT, (SegmentLogUnavailableError, _CHECK_SERVICE))


def translate(result: str, doing: str, segment: SegmentRef) -> SegmentLogError:
    """Return the error that a result of the client stands for.

    Parameters
    ----------
    result : str
        Name of the client's result or of its exception.
    doing : str
        What failed, as in "cannot <doing> segment ...".
    segment : SegmentRef
        Where.
    """
    kind, why = _ERRORS.get(result, (SegmentLogError, "look into the broker's log"))
    return kind(f"cannot {doing} segment {segment.id} ({segment.log_name}): {why} ({result})")


class Clients:
    """One ``pulsar.Client`` per configuration in this process, shared by its logs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used: dict[PulsarConfig, tuple[Any, int]] = {}
        self._idle: dict[PulsarConfig, Any] = {}
        self._foreign: list[object] = []

    def acquire(self, config: PulsarConfig) -> Any:
        """Return the client of a configuration; :meth:`release` it once."""
        with self._lock:
            client, users = self._used.get(config, (None, 0))
            if client is None:
                client = self._idle.pop(config, None) or _new_client(config)
            self._used[config] = (client, users + 1)
            return client

    def release(self, config: PulsarConfig) -> None:
        """Give a client back: it stays open for the next user, up to a few of them."""
        with self._lock:
            client, users = self._used.pop(config)
            if users > 1:
                self._used[config] = (client, users - 1)
                return
            self._idle[config] = client
            surplus = list(self._idle)[:-_IDLE_CLIENTS]
            closing = [self._idle.pop(one) for one in surplus]
        for client in closing:
            close_quietly(client)

    def close_idle(self) -> None:
        """Close the clients that nobody uses."""
        with self._lock:
            closing = list(self._idle.values())
            self._idle.clear()
        for client in closing:
            close_quietly(client)

    def forget(self) -> None:
        """In a forked child: the connections and threads belong to the parent."""
        self._lock = threading.Lock()
        # Kept alive, as their destructors would wait for threads that are not there.
        self._foreign += [self._used, self._idle]
        self._used, self._idle = {}, {}


CLIENTS = Clients()
atexit.register(CLIENTS.close_idle)
os.register_at_fork(after_in_child=CLIENTS.forget)


def _new_client(config: PulsarConfig) -> Any:
    settings = parse_passthrough("client", dict(config.client))
    credentials: Credentials = settings.pop("credentials")
    settings.setdefault("tls_validate_hostname", True)
    return pulsar.Client(
        config.service_url,
        authentication=_authentication(credentials),
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn),
        **settings,
    )


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
