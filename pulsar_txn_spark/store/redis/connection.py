"""Verified connections to the metadata store.

Every new connection is checked before its first use, in the same round trip that logs in. AUTH,
SELECT, ROLE, INFO and CONFIG GET go out in one write. So a server that was restarted with other
settings, or a failover to another machine, is met again by the same check. A connection to a
replica of a cluster ends with its first use: that server may be the primary at the next one. A
primary that became a replica loses its connections with the first script that it refuses. redis-py
repeats commands by itself; all of that is off, because a repeated compare-and-set is not the same
step.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.connection import DefaultParser
from redis.exceptions import (
    AuthenticationError,
    OutOfMemoryError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.retry import Retry

from pulsar_txn_spark.config import StoreConfig
from pulsar_txn_spark.errors import OptionError, PulsarTxnError, StoreUnavailableError
from pulsar_txn_spark.process_lock import ProcessLock
from pulsar_txn_spark.store.redis import server
from pulsar_txn_spark.store.redis.durability import (
    QUESTIONS,
    Info,
    NodeFacts,
    ServerFacts,
    awaits_file,
    judge,
)
from pulsar_txn_spark.store.redis.endpoint import Endpoint, parse_endpoint

__all__ = ["Client", "NodeFacts", "ServerFacts", "close_all", "connect", "exchange", "verify"]

Client: TypeAlias = redis.Redis | redis.RedisCluster

# The log moves entries of about 1 MiB: with redis-py's 32 KiB a read makes 32 calls of each.
_SOCKET_READ_SIZE = 256 * 1024

# redis-py 8 has a cap of 100 unless told otherwise. Ours is the server's own, 'maxclients'.
_MOST_CONNECTIONS = 1 << 31

# Redis begins rewriting the append-only file at 64 MB, which takes a second or so.
_FIRST_REWRITE_WAIT_S = 3.0
_FIRST_REWRITE_PAUSE_S = 0.05

MAX_CLIENTS = (
    "It has as many clients as its setting 'maxclients' allows: raise that (CONFIG SET "
    "maxclients), or see with CLIENT LIST who holds them."
)

_logger = logging.getLogger(__name__)


def takes_no_more(error: Exception) -> bool:
    """Tell whether a server refused a connection because it has too many."""
    return "max number of clients" in str(error)


def is_full(error: Exception) -> bool:
    """Tell whether a server refused a step because its memory has reached ``maxmemory``."""
    # 6.2 puts what a script met behind words of its own.
    return isinstance(error, OutOfMemoryError) or "OOM command not allowed" in str(error)


class _EmbeddedConnection(redis.UnixDomainSocketConnection):
    """Starts the embedded server (again) when nobody listens on its socket."""

    def __init__(self, folder: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)  # type: ignore[no-untyped-call]
        self._folder = folder

    def _connect(self) -> Any:
        server.prepare_socket_folder(self._folder)
        try:
            return super()._connect()  # type: ignore[no-untyped-call]
        except (FileNotFoundError, ConnectionRefusedError):
            server.ensure_server(self._folder)
            return super()._connect()  # type: ignore[no-untyped-call]


class DemotedError(redis.ConnectionError):
    """A server is no primary any more: its connections are closed, as what it has may be old."""


class _Parser(DefaultParser):  # type: ignore[misc,valid-type]
    """Takes the refusal of a former primary for a lost connection: the next one is verified."""

    @classmethod
    def parse_error(cls, response: str) -> Any:
        # 6.2 puts what a script met behind words of its own.
        if "READONLY " in response or response.startswith("MASTERDOWN "):
            return DemotedError(response)
        return super().parse_error(response)


class _SlotOnItsWayError(TryAgainError):
    """A slot of a cluster is being moved: redis-py asks its old server a few more times."""


class _ClusterParser(_Parser):
    """Does not let redis-py follow ASK.

    The server that it names takes keys that have not arrived there yet for absent. Scripts read
    keys that they do not declare, the groups of dropped writers: a writer that was dropped would
    seem to have won (INV-5).
    """

    EXCEPTION_CLASSES = {**DefaultParser.EXCEPTION_CLASSES, "ASK": _SlotOnItsWayError}  # noqa: RUF012


class _Handshake:
    """Logs a new connection in and verifies the server, in one round trip."""

    def __init__(self, endpoint: Endpoint, config: StoreConfig) -> None:
        self._endpoint = endpoint
        self._config = config

    def __call__(self, connection: redis.Connection) -> None:
        try:
            # RedisCluster has done this already. It sends nothing: RESP 2, no user, no library
            # name, no database.
            if self._endpoint.cluster:
                connection.set_parser(_ClusterParser)  # type: ignore[no-untyped-call]
                connection._parser.on_connect(connection)  # noqa: SLF001 - as connecting did
            else:
                connection.set_parser(_Parser)  # type: ignore[no-untyped-call]
                connection.on_connect()  # type: ignore[no-untyped-call]
            self._run(connection)
        except BaseException:
            # redis-py would keep the open, unverified socket in its pool.
            connection.disconnect()  # type: ignore[no-untyped-call]
            raise

    def _run(self, connection: redis.Connection) -> None:
        endpoint = self._endpoint
        login: list[tuple[str, ...]] = []
        if endpoint.username or endpoint.password:
            user = (endpoint.username,) if endpoint.username else ()
            login.append(("AUTH", *user, endpoint.password or ""))
        if endpoint.database:
            login.append(("SELECT", str(endpoint.database)))
        address = _address_of(connection)
        try:
            replies = exchange(connection, [*login, *QUESTIONS])
        except AuthenticationError as error:
            raise StoreUnavailableError(_refused(endpoint, address, error)) from error
        for command, reply in zip(login, replies, strict=False):
            if isinstance(reply, ResponseError):
                if command[0] == "SELECT" and "index" in str(reply):
                    raise StoreUnavailableError(
                        f"The metadata store at {address} has no database {command[1]}: {reply} "
                        "(SELECT failed). "
                        "Check the number at the end of the option 'store.url'."
                    ) from reply
                what = _refused(endpoint, address, reply)
                raise StoreUnavailableError(f"{what} ({command[0]} failed)") from reply
        info = Info.parse(replies[len(login) :])
        if info.loading and endpoint.folder is not None:
            server.ensure_server(endpoint.folder)
            info = Info.parse(exchange(connection, QUESTIONS))
        give_up = time.monotonic() + _FIRST_REWRITE_WAIT_S
        while awaits_file(info, self._config) and time.monotonic() < give_up:
            time.sleep(_FIRST_REWRITE_PAUSE_S)
            info = Info.parse(exchange(connection, QUESTIONS))
        _judge(info, connection, self._config)
        if info.is_replica:
            # Of a cluster, and not verified. It sends its user on to the primary; once it is the
            # primary itself, it has to be met by a new connection.
            connection.mark_for_reconnect()  # type: ignore[no-untyped-call]


def exchange(connection: redis.Connection, commands: Sequence[tuple[str, ...]]) -> list[Any]:
    """Send commands in one write and return their replies, an error in place of a reply."""
    packed = connection.pack_commands(commands)  # type: ignore[no-untyped-call]
    connection.send_packed_command(packed, check_health=False)  # type: ignore[no-untyped-call]
    replies: list[Any] = []
    for _ in commands:
        try:
            replies.append(connection.read_response())
        except ResponseError as error:
            replies.append(error)
    return replies


def is_primary(connection: redis.Connection) -> bool:
    """Ask an open connection for its server's role; it counts as one if that may not be asked."""
    return not Info.parse(exchange(connection, QUESTIONS)).is_replica


def _refused(endpoint: Endpoint, address: str, error: Exception) -> str:
    user = "the default user"
    if endpoint.username:
        user = f"user {endpoint.user!r}" if endpoint.user else "the user that was given"
    credentials = "with a password" if endpoint.password else "without a password"
    return (
        f"The metadata store at {address} refused {user} ({credentials}): {error}. Check the "
        "options 'store.username' and 'store.password'."
    )


def _address_of(connection: redis.Connection) -> str:
    path = getattr(connection, "path", None)
    return str(path) if path else f"{connection.host}:{connection.port}"


_warned: set[str] = set()


def _judge(info: Info, connection: redis.Connection, config: StoreConfig) -> ServerFacts:
    """Judge the server, and log each warning once in this process."""
    facts = judge(info, _address_of(connection), config)
    for warning in facts.warnings:
        if warning not in _warned:
            _warned.add(warning)
            _logger.warning("%s", warning)
    return facts


def verify(client: Client, config: StoreConfig) -> ServerFacts:
    """Ask the server, or each primary of the cluster, for its facts, and refuse an unsafe one.

    :func:`connect` does the same on each new connection; this is for who wants the facts.

    Raises
    ------
    StoreUnsafeError
        If it may lose what it acknowledged. It names the setting, the value found, the one needed,
        how to change it, and the option that accepts it.
    StoreUnavailableError
        If it cannot be reached, refuses the login, or is still loading.
    EnvironmentTooOldError
        If it is older than Redis 6.2.
    """
    with _unavailable(parse_endpoint(config)):
        facts = [_verify_pool(pool, config) for pool in _pools(client)]
    return ServerFacts(
        tuple(node for fact in facts for node in fact.nodes),
        tuple(warning for fact in facts for warning in fact.warnings),
        tuple(problem for fact in facts for problem in fact.problems),
    )


def _verify_pool(pool: redis.ConnectionPool, config: StoreConfig) -> ServerFacts:
    connection = pool.get_connection()
    try:
        info = Info.parse(exchange(connection, QUESTIONS))
        return _judge(info, connection, config)
    finally:
        pool.release(connection)


def _pools(client: Client) -> list[redis.ConnectionPool]:
    if isinstance(client, redis.RedisCluster):
        nodes: list[ClusterNode] = client.get_primaries()  # type: ignore[no-untyped-call]
        clients = [client.get_redis_connection(node) for node in nodes]
        return [node_client.connection_pool for node_client in clients]
    return [client.connection_pool]


_clients: dict[tuple[int, StoreConfig], Client] = {}
_lock = ProcessLock()
os.register_at_fork(after_in_child=_clients.clear)  # the parent's sockets are not ours


def connect(config: StoreConfig) -> Client:
    """Return this process's client for a configuration; the first call connects and verifies.

    Replies are bytes, RESP is 2, and redis-py repeats nothing by itself (it follows a cluster's
    moved slots: a redirected command was not run). The embedded server is started if need be,
    also later, by the first connection that finds nobody listening. Commands raise redis-py's
    errors: ``RedisError``, and for a cluster ``RedisClusterException``, which is not one; where
    they have to connect anew, those below as well.

    Parameters
    ----------
    config : StoreConfig
        Which server, and what is accepted of it.

    Raises
    ------
    OptionError
        If the configuration is malformed.
    StoreUnavailableError, StoreUnsafeError, EnvironmentTooOldError
        As for :func:`verify`.
    """
    key = (os.getpid(), config)
    with _lock:
        client = _clients.get(key)
        if client is None:
            client = _clients[key] = _open(config)
    return client


def close_all() -> None:
    """Close the clients of this process, for a clean end; :func:`connect` makes new ones."""
    with _lock:
        clients = list(_clients.values())
        _clients.clear()
    for client in clients:
        client.close()


def _open(config: StoreConfig) -> Client:
    endpoint = parse_endpoint(config)
    handshake = _Handshake(endpoint, config)
    timeout_s = config.timeout_ms / 1000
    common: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "socket_read_size": _SOCKET_READ_SIZE,
        "max_connections": _MOST_CONNECTIONS,
        "protocol": 2,  # RESP 3 begins with a HELLO and switches maintenance notifications on
        "driver_info": None,  # CLIENT SETINFO would cost two round trips
        "health_check_interval": 0,
        "redis_connect_func": handshake,
        **_tls_arguments(endpoint, config),
    }
    with _unavailable(endpoint):
        client = (
            _open_cluster(endpoint, common) if endpoint.cluster else _open_single(endpoint, common)
        )
        try:
            for pool in _pools(client):
                pool.release(pool.get_connection())
        except BaseException:
            client.close()
            raise
    return client


def _open_single(endpoint: Endpoint, common: dict[str, Any]) -> redis.Redis:
    where: dict[str, Any]
    if endpoint.folder is not None:
        where = {"connection_class": _EmbeddedConnection, "folder": endpoint.folder}
        where["path"] = endpoint.socket
    elif endpoint.socket is not None:
        where = {"connection_class": redis.UnixDomainSocketConnection, "path": endpoint.socket}
    else:
        ((host, port),) = endpoint.hosts
        kind = redis.SSLConnection if endpoint.tls else redis.Connection
        where = {"connection_class": kind, "host": host, "port": port, "socket_keepalive": True}
    common = {name: value for name, value in common.items() if name != "ssl"}
    pool = redis.ConnectionPool(retry=Retry(NoBackoff(), 0), **where, **common)
    return redis.Redis.from_pool(pool)


def _open_cluster(endpoint: Endpoint, common: dict[str, Any]) -> redis.RedisCluster:
    nodes = [ClusterNode(host, port) for host, port in endpoint.hosts]  # type: ignore[no-untyped-call]
    return redis.RedisCluster(
        startup_nodes=nodes,
        retry=Retry(NoBackoff(), 0),
        socket_keepalive=True,
        **common,
    )


def _tls_arguments(endpoint: Endpoint, config: StoreConfig) -> dict[str, Any]:
    files = {
        "ssl_ca_certs": ("tls_ca_file", "store.tls.caFile", config.tls_ca_file),
        "ssl_certfile": ("tls_cert_file", "store.tls.certFile", config.tls_cert_file),
        "ssl_keyfile": ("tls_key_file", "store.tls.keyFile", config.tls_key_file),
    }
    paths = {argument: path for argument, (_, _, path) in files.items() if path is not None}
    if not endpoint.tls:
        if paths:
            raise OptionError(
                "TLS files are set for the metadata store, but 'store.url' is not rediss:// or "
                "rediss+cluster://: the connection would not be encrypted."
            )
        return {}
    for argument, path in paths.items():
        if not os.access(path, os.R_OK):
            option = files[argument][1]
            raise OptionError(f"The file of the option {option!r} cannot be read: {path}")
    return {
        "ssl": True,
        "ssl_cert_reqs": "required",
        "ssl_check_hostname": config.tls_verify_host,
        **paths,
    }


@contextmanager
def _unavailable(endpoint: Endpoint) -> Iterator[None]:
    """Turn what redis-py raises on connecting into this package's errors."""
    try:
        yield
    except (RedisError, RedisClusterException, OSError) as error:
        # RedisCluster wraps what the handshake raised for its last start node.
        own = error.__cause__
        if isinstance(own, PulsarTxnError):
            raise own from error
        raise StoreUnavailableError(
            f"The metadata store at {endpoint} cannot be reached: {error}. "
            f"{_advice(endpoint, error)}"
        ) from error


_ANSWERS_IN_PLAIN_TEXT = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL")


def _advice(endpoint: Endpoint, error: Exception) -> str:
    """Say what to look at."""
    if takes_no_more(error):
        return MAX_CLIENTS
    text = str(error).upper().replace(" ", "_")
    if endpoint.folder is not None:
        return (
            f"Check the option 'store.path' (the folder {endpoint.folder}): that it can be written "
            "by this user, and that the embedded server may run there."
        )
    if endpoint.tls and any(word in text for word in _ANSWERS_IN_PLAIN_TEXT):
        return (
            "It does not speak TLS there: use redis:// or redis+cluster:// in 'store.url', or the "
            "server's port for TLS."
        )
    if endpoint.tls and "CERTIFICATE" in text:
        return "Check the options 'store.tls.caFile' and 'store.tls.verifyHost'."
    if not endpoint.tls and ("CLOSED_BY_SERVER" in text or "RESET_BY_PEER" in text):
        return (
            "If the server expects TLS on that port, use rediss:// or rediss+cluster:// in "
            "'store.url'; else check that it accepts connections from this machine."
        )
    return (
        "Check the option 'store.url', and that the server runs and accepts connections from this "
        "machine."
    )
