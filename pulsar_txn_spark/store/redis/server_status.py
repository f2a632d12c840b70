"""What an embedded server says of itself: whether it runs, its memory, its persistence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from pulsar_txn_spark.backports import StrEnum
from pulsar_txn_spark.errors import StoreUnavailableError
from pulsar_txn_spark.store.redis.server import (
    Answer,
    examine_server,
    server_folder,
    socket_path,
)

_TIMEOUT_S = 10.0  # INFO waits for a write's fsync, which a busy disk delays by seconds


class ServerState(StrEnum):
    """Whether there is an embedded server on a folder, and whether it can be used."""

    RUNNING = "running"
    LOADING = "loading"  # its append-only file; commands are answered afterwards
    NOT_ANSWERING = "not answering"
    STOPPED = "stopped"
    FOREIGN = "foreign"  # a server listens on the folder's socket that was not started for it


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """What is known of a folder's server.

    Parameters
    ----------
    state : ServerState
    path, socket : str
        The folder of its data, and where it listens.
    pid : int or None
        Like all that follows, None unless the server is running.
    version : str or None
        Product and version, such as ``redis 7.2.4``.
    uptime_s : int or None
    memory_bytes : int or None
        What its data and its buffers occupy.
    persistence : str or None
        ``append-only file, fsync always``, or what it has instead.
    last_write : str or None
        ``ok``, or the error of the last write to the append-only file.
    aof_bytes : int or None
        Size of the append-only file.
    connections : int or None
        Without the one that asks.
    """

    state: ServerState
    path: str
    socket: str
    pid: int | None = None
    version: str | None = None
    uptime_s: int | None = None
    memory_bytes: int | None = None
    persistence: str | None = None
    last_write: str | None = None
    aof_bytes: int | None = None
    connections: int | None = None


def server_status(path: str | None) -> ServerStatus:
    """Return what is known of the folder's server; nothing is started or created.

    Parameters
    ----------
    path : str or None
        The server's data folder; None = the default one of the user.

    Raises
    ------
    StoreUnavailableError
        If this user may not read the folder, or if the server ends or hangs meanwhile.
    OptionError
        If there is no default folder.
    """
    alive, answer = examine_server(path)
    state = _state(alive=alive, answer=answer)
    folder, socket = str(server_folder(path)), socket_path(path)
    if state is not ServerState.RUNNING:
        return ServerStatus(state, folder, socket)
    client = redis.Redis(
        unix_socket_path=socket,
        socket_timeout=_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
        decode_responses=True,
    )
    try:
        info = client.info()
        settings = cast("dict[str, str]", client.config_get("appendfsync"))
    except redis.RedisError as error:
        raise StoreUnavailableError(
            f"The embedded server in {folder} answered a PING and then failed: {error}. Its log is "
            f"{server_folder(path) / 'redis.log'}."
        ) from error
    finally:
        client.close()
    product = "valkey" if "valkey_version" in info else "redis"
    fsync = settings.get("appendfsync")
    return ServerStatus(
        state,
        folder,
        socket,
        pid=info["process_id"],
        version=f"{product} {info[f'{product}_version']}",
        uptime_s=info["uptime_in_seconds"],
        memory_bytes=info["used_memory"],
        persistence=f"append-only file, fsync {fsync}" if info["aof_enabled"] else "none",
        last_write=info["aof_last_write_status"],
        aof_bytes=info.get("aof_current_size"),
        connections=info["connected_clients"] - 1,
    )


def _state(*, alive: bool, answer: Answer) -> ServerState:
    if not alive:
        return ServerState.STOPPED if answer is Answer.ABSENT else ServerState.FOREIGN
    if answer is Answer.READY:
        return ServerState.RUNNING
    return ServerState.LOADING if answer is Answer.LOADING else ServerState.NOT_ANSWERING
