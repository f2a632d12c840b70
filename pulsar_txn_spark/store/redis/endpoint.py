"""The metadata store's address: from the options' URL to its parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from pulsar_txn_spark.config import StoreConfig
from pulsar_txn_spark.errors import OptionError
from pulsar_txn_spark.redaction import redacted
from pulsar_txn_spark.store.redis import server

_DEFAULT_PORT = 6379
_SCHEMES = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A store's address, taken apart; without the secrets in `repr` and `str`.

    Parameters
    ----------
    hosts : tuple of (str, int)
        One for a single server, any number of start nodes for a cluster, none for a unix socket.
    socket : str or None
        Path of the unix socket.
    folder : str or None
        Folder of the embedded server, if it is one.
    """

    tls: bool = False
    cluster: bool = False
    hosts: tuple[tuple[str, int], ...] = ()
    socket: str | None = None
    folder: str | None = None
    database: int = 0
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)

    @property
    def user(self) -> str:
        """The user's name as it may be shown: without a password it may be a password itself."""
        return self.username or "" if self.password else ""

    def __str__(self) -> str:
        user = f"{self.user}@" if self.user else ""
        if self.socket is not None:
            where = f"unix://{user}{self.socket}"
        else:
            scheme = ("rediss" if self.tls else "redis") + ("+cluster" if self.cluster else "")
            hosts = (f"[{h}]:{p}" if ":" in h else f"{h}:{p}" for h, p in self.hosts)
            where = f"{scheme}://{user}{','.join(hosts)}"
        return f"{where}/{self.database}" if self.database else where


def parse_endpoint(config: StoreConfig) -> Endpoint:
    """Take a configuration's URL apart, or find the embedded server's socket; starts nothing.

    Raises
    ------
    OptionError
        If the URL is malformed, or contradicts another option. Shows no part that may be secret.
    """
    if config.url is None:
        folder = str(server.server_folder(config.path))
        return Endpoint(socket=server.socket_path(config.path), folder=folder)
    try:
        parts = urlsplit(config.url)
    except ValueError:
        raise _malformed("it is not a URL") from None
    if parts.scheme not in _SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in _SCHEMES)
        raise _malformed(f"its scheme has to be one of {known}")
    username, password = _credentials(config, parts)
    cluster = parts.scheme.endswith("+cluster")
    database = _database(parts, cluster=cluster)
    if parts.scheme == "unix":
        path = unquote(parts.path)
        if not path or parts.netloc.rpartition("@")[2]:
            raise _malformed("a unix socket needs an absolute path, as in unix:///run/redis.sock")
        return Endpoint(socket=path, database=database, username=username, password=password)
    hosts = tuple(_host(host) for host in parts.netloc.rpartition("@")[2].split(","))
    if len(hosts) > 1 and not cluster:
        raise _malformed("several hosts are for redis+cluster:// and rediss+cluster:// only")
    return Endpoint(
        tls=parts.scheme.startswith("rediss"),
        cluster=cluster,
        hosts=hosts,
        database=database,
        username=username,
        password=password,
    )


def place_of(config: StoreConfig) -> str:
    """Return where a store is as users name it: a folder, or a URL without its password.

    Raises
    ------
    OptionError
        If there is no home directory to put the embedded server's default folder in.
    """
    return str(server.server_folder(config.path)) if config.url is None else redacted(config.url)


def _malformed(what: str) -> OptionError:
    return OptionError(
        f"The option 'store.url' cannot be used: {what}. Expected is for example "
        "redis://host:6379/0, rediss://host:6379, unix:///run/redis.sock or "
        "redis+cluster://host1:7000,host2:7000. (The value is not shown: it may hold a password.)"
    )


def _credentials(config: StoreConfig, parts: SplitResult) -> tuple[str | None, str | None]:
    userinfo = parts.netloc.rpartition("@")[0]
    user, _, secret = userinfo.partition(":")
    in_url = {"username": unquote(user) or None, "password": unquote(secret) or None}
    for name, option in (("username", config.username), ("password", config.password)):
        value = in_url[name]
        if value is not None and option is not None and value != option:
            raise OptionError(
                f"The option 'store.url' carries a {name} and 'store.{name}' another one. "
                "Leave it out of the URL."
            )
    return config.username or in_url["username"], config.password or in_url["password"]


def _database(parts: SplitResult, *, cluster: bool) -> int:
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    text = parameters.pop("db", "")
    if parameters or parts.fragment:
        # redis-py would take its own settings from here, retries among them.
        raise _malformed("it may have no parameters but 'db'")
    if parts.scheme != "unix" and parts.path.strip("/"):
        if text:
            raise _malformed("it names its database twice, behind the host and as 'db'")
        text = parts.path.strip("/")
    try:
        database = int(text or 0)
    except ValueError:
        database = -1
    if database < 0:
        raise _malformed("its database has to be a number")
    if cluster and database:
        raise _malformed("a Redis Cluster has only database 0")
    return database


def _host(text: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _malformed("its port has to be a number up to 65535") from None
    if not host:
        raise _malformed("a host is missing")
    return host, _DEFAULT_PORT if port is None else port
