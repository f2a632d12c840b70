"""Whether a Redis server keeps what it acknowledged: its facts, and a judgement of them.

Pure functions of the replies to :data:`QUESTIONS`; who sends them is no matter of this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pulsar_txn_spark.config import StoreConfig
from pulsar_txn_spark.errors import (
    EnvironmentTooOldError,
    OptionError,
    StoreUnavailableError,
    StoreUnsafeError,
)

ACCEPT_OPTION = "store.acceptDataLoss"
ASSUME_OPTION = "store.assumeDurable"

MINIMUM_VERSION = (6, 2)
"""XTRIM MINID, LMOVE, GETDEL and scripts that are replicated by their effects."""

# First fixed patch level of each series that was fixed for CVE-2025-49844, a use after free in the
# Lua parser. By it whoever may run scripts may run code. Series above the last one are fixed.
_LUA_HOLE_FIXED = {
    "redis": {(6, 2): 20, (7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2},
    "valkey": {(7, 2): 11, (8, 0): 6, (8, 1): 4},
}

MAKE_ROOM = (
    "Run 'pulsar-txn sweep', delete topics or subscriptions that nobody needs, or raise the limit "
    "(CONFIG SET maxmemory)."
)
_MEMORY_SHARE = 0.8  # of maxmemory: what is left takes the transactions of a while

QUESTIONS: tuple[tuple[str, ...], ...] = (
    ("ROLE",),
    ("INFO",),
    ("CONFIG", "GET", "*appendfsync*"),  # one pattern for two settings: 6.2 takes only one
)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What one server says of itself; None = it does not let us ask.

    Parameters
    ----------
    address : str
        How it is reached, without user or password.
    product : str
        ``redis`` or ``valkey``.
    version : str or None
        The product's own version.
    run_id, replication_id : str or None
        Change with each start, and with each history of the data.
    role : str or None
        ``master`` or ``slave``, in the server's words.
    settings : tuple of (str, str)
        The values that were looked at, by the names that the server has for them.
    """

    address: str
    product: str
    version: str | None
    run_id: str | None
    replication_id: str | None
    role: str | None
    cluster: bool
    settings: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something about a server that is not as it should be, and what to do about it."""

    what: str
    remedy: str
    loses_data: bool
    check: str = "Redis durability"


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What the servers behind one configuration say of themselves: one, or a cluster's primaries.

    Parameters
    ----------
    nodes : tuple of NodeFacts
        At least one.
    warnings : tuple of str
        What was accepted although it is unsafe, and known holes.
    problems : tuple of Problem
        The same, apart from what to do about it; and memory that is nearly used up.
    """

    nodes: tuple[NodeFacts, ...]
    warnings: tuple[str, ...]
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class _Finding:
    """One setting that may lose what was acknowledged."""

    setting: str
    actual: str
    needed: str
    why: str
    remedy: str

    @property
    def what(self) -> str:
        return f"{self.setting} is {self.actual!r}, needed is {self.needed!r}: {self.why}"

    def __str__(self) -> str:
        return f"{self.what}. To change it: {self.remedy}"


@dataclass(frozen=True, slots=True)
class Info:
    """The replies to the questions: what could be read, by the server's own names."""

    role: str | None
    values: dict[str, str]
    fsync: dict[str, str] | None  # None: CONFIG is not allowed

    @classmethod
    def parse(cls, replies: Sequence[Any]) -> Info:
        """Read the replies to :data:`QUESTIONS`; an error instead of one = it is not allowed."""
        role, info, config = replies
        values: dict[str, str] = {}
        if isinstance(info, bytes):
            for line in info.decode("utf-8", "replace").splitlines():
                name, separator, value = line.partition(":")
                if separator and not name.startswith("#"):
                    values[name] = value
        fsync = None
        if isinstance(config, list) and config:
            texts = [item.decode() for item in config]
            fsync = dict(zip(texts[::2], texts[1::2], strict=True))
        stated = values.get("role")
        if isinstance(role, list):
            stated = role[0].decode()
        return cls(stated, values, fsync)

    @property
    def loading(self) -> bool:
        """Whether the server is still reading its data."""
        return self.values.get("loading", "0") != "0"

    @property
    def awaits_file(self) -> bool:
        """Whether the append-only file may be on its way: no rewrite was done, and one is due.

        ``aof_enabled`` says nothing of that. Until the first rewrite behind CONFIG SET appendonly
        yes is done, a restart finds nothing of what is acknowledged (``AOF_WAIT_REWRITE`` in
        ``aof.c`` of Redis). The first rewrite of a server that had the file from its start looks
        the same.
        """
        due = ("aof_rewrite_in_progress", "aof_rewrite_scheduled")
        rewrites = any(self.values.get(name, "0") != "0" for name in due)
        # Not the current size: since Redis 7 that grows with the file that is still on its way.
        return rewrites and self.values.get("aof_base_size") == "0"

    @property
    def cluster(self) -> bool:
        """Whether the server is part of a Redis Cluster."""
        return self.values.get("cluster_enabled", "0") == "1"

    @property
    def is_replica(self) -> bool:
        """Whether the server says that it is one."""
        return self.role not in (None, "master")

    @property
    def product(self) -> str:
        """``redis`` or ``valkey``."""
        return "valkey" if "valkey_version" in self.values else "redis"

    @property
    def version(self) -> str | None:
        """The product's own version."""
        return self.values.get(f"{self.product}_version")

    def node(self, address: str) -> NodeFacts:
        """Return what is worth knowing of it."""
        names = [rule.name for rule in _INFO_RULES if rule.name in self.values]
        shown = [(name, self.values[name]) for name in names]
        shown += sorted((self.fsync or {}).items())
        return NodeFacts(
            address=address,
            product=self.product,
            version=self.version,
            run_id=self.values.get("run_id"),
            replication_id=self.values.get("master_replid"),
            role=self.role,
            cluster=self.cluster,
            settings=tuple(shown),
        )


@dataclass(frozen=True, slots=True)
class _Rule:
    """A value that has to be found: the name in INFO, and the setting as an operator knows it."""

    name: str
    needed: str
    why: str
    remedy: str
    setting: str = ""  # where INFO has another name for it
    in_words: tuple[tuple[str, str], ...] = ()  # where INFO has other words for its values

    def broken_by(self, value: str | None) -> _Finding | None:
        """Return what is wrong with the value that was found, if anything is."""
        if value is None or value == self.needed:
            return None
        words = dict(self.in_words)
        return _Finding(
            self.setting or self.name,
            words.get(value, value),
            words.get(self.needed, self.needed),
            self.why,
            self.remedy,
        )


_WAIT = "wait until INFO has aof_rewrite_in_progress:0 and aof_rewrite_scheduled:0"


def _config_rule(name: str, needed: str, why: str, then: str = "", **named: Any) -> _Rule:
    setting = named.get("setting", name)
    remedy = f"CONFIG SET {setting} {needed} (and '{setting} {needed}' in redis.conf){then}"
    return _Rule(name, named.pop("needed_in_info", needed), why, remedy, **named)


_INFO_RULES = (
    _config_rule(
        "aof_enabled",
        "yes",
        "without the append-only file a restart loses everything since the last snapshot",
        then=f", then {_WAIT}",
        setting="appendonly",
        needed_in_info="1",
        in_words=(("0", "no"), ("1", "yes")),
    ),
    _config_rule(
        "maxmemory_policy",
        "noeviction",
        "any other policy deletes records when memory gets short",
        setting="maxmemory-policy",
    ),
    _Rule(
        "evicted_keys",
        "0",
        "the server has deleted records for lack of memory since it was started",
        "give the server more memory, make sure that no record of this store was among them (a "
        "topic's or transaction's data), then CONFIG RESETSTAT",
    ),
    _Rule(
        "aof_last_write_status",
        "ok",
        "the last write to the append-only file failed",
        "see the server's log and the free space on its disk",
    ),
)
_FSYNC_RULES = (
    _config_rule(
        "appendfsync",
        "always",
        "a crash of the server's machine loses writes that were acknowledged",
    ),
    _config_rule(
        "no-appendfsync-on-rewrite",
        "no",
        "while the append-only file is rewritten, writes are acknowledged before they are on disk",
    ),
)


def _findings(info: Info) -> list[_Finding]:
    """Compare what was read with what is needed."""
    fsync = info.fsync or {}
    findings = [rule.broken_by(info.values.get(rule.name)) for rule in _INFO_RULES]
    findings += [rule.broken_by(fsync.get(rule.name)) for rule in _FSYNC_RULES]
    return [finding for finding in findings if finding is not None]


def _unread(info: Info) -> list[str]:
    """Return the settings that cannot be read on this server."""
    missing = [rule.setting or rule.name for rule in _INFO_RULES if rule.name not in info.values]
    return missing + [rule.name for rule in _FSYNC_RULES if rule.name not in (info.fsync or {})]


def awaits_file(info: Info, config: StoreConfig) -> bool:
    """Tell whether a server has to be waited for until its append-only file is there."""
    # The embedded server has the file from its start.
    return config.url is not None and not config.accept_data_loss and info.awaits_file


def judge(info: Info, address: str, config: StoreConfig) -> ServerFacts:
    """Refuse a server that would lose what it acknowledged; return its facts otherwise.

    Parameters
    ----------
    info : Info
        What it says of itself.
    address : str
        How it is reached, for messages.
    config : StoreConfig
        What the user accepts.

    Raises
    ------
    StoreUnsafeError, StoreUnavailableError, EnvironmentTooOldError, OptionError
        As for :func:`pulsar_txn_spark.store.redis.connection.verify`.
    """
    as_cluster = config.url is not None and "+cluster:" in config.url
    if info.cluster and not as_cluster:
        raise OptionError(
            f"The server {address} is a node of a Redis Cluster and holds only a part of the keys. "
            "Write 'redis+cluster://' (or 'rediss+cluster://') in the option 'store.url'."
        )
    if info.is_replica:
        if info.cluster:
            # A start node may be a replica. In a cluster it redirects each command to its primary.
            # Whoever asks does not keep the connection: this says nothing of a later primary.
            return ServerFacts((info.node(address),), ())
        raise StoreUnsafeError(
            f"The server {address} is a replica (its role is {info.role!r}, needed is 'master'): "
            "it lags behind its primary. A stale read would show uncommitted data. Set "
            "'store.url' to the primary."
        )
    if info.loading:
        raise StoreUnavailableError(
            f"The metadata store at {address} is still loading its data after a start; try again "
            f"when it is done (about {info.values.get('loading_eta_seconds', '?')} s)."
        )
    _check_version(info, address)
    findings = _findings(info)
    unread = [] if config.assume_durable else _unread(info)
    warnings = [f"{address}: {finding}" for finding in findings]
    if unread:
        warnings.append(f"{address}: {', '.join(unread)} could not be read")
    if warnings and not config.accept_data_loss:
        raise StoreUnsafeError(_unsafe(address, findings, unread))
    if awaits_file(info, config):
        raise StoreUnavailableError(
            f"The metadata store at {address} is still writing its append-only file for the first "
            f"time: a restart would lose what it acknowledges. To go on, {_WAIT}."
        )
    holes = list(_holes(info, address, config))
    problems = [Problem(f"{address}: {finding.what}", finding.remedy, True) for finding in findings]
    if unread:
        problems.append(
            Problem(f"{address}: {', '.join(unread)} could not be read", _MAY_ASK, True)
        )
    if config.url is not None and info.awaits_file:
        what = (
            f"{address}: the append-only file is being written for the first time, so that a "
            "restart would lose what it acknowledges"
        )
        problems.append(Problem(what, _WAIT, True))
    problems += holes
    problems += _short_of_memory(info, address)
    warnings += [f"{hole.what}. To close it, {hole.remedy}" for hole in holes]
    return ServerFacts((info.node(address),), tuple(warnings), tuple(problems))


_MAY_ASK = (
    "Allow them (ACL SETUSER <user> +info +config|get +role). Or, if you know that the server has "
    "appendonly yes, appendfsync always, no-appendfsync-on-rewrite no and maxmemory-policy "
    f"noeviction, vouch for it with the option {ASSUME_OPTION}=true."
)


def _unsafe(address: str, findings: Sequence[_Finding], unread: Sequence[str]) -> str:
    lines = [f"The metadata store at {address} may lose what it has acknowledged:"]
    lines += [f"- {finding}" for finding in findings]
    if unread:
        lines.append(
            f"- {', '.join(unread)} could not be read: INFO or CONFIG GET is not allowed to this "
            f"user. {_MAY_ASK}"
        )
    if findings:
        lines.append(
            f"To go on in spite of that risk, set the option {ACCEPT_OPTION}=true: it only warns."
        )
    return "\n".join(lines)


def _numbers(version: str | None) -> tuple[int, ...] | None:
    try:
        return tuple(int(part) for part in (version or "").split("-")[0].split("."))
    except ValueError:
        return None


def _check_version(info: Info, address: str) -> None:
    # Valkey says in redis_version with which Redis it is compatible.
    compatible = _numbers(info.values.get("redis_version"))
    if compatible is not None and compatible[:2] < MINIMUM_VERSION:
        needed = ".".join(map(str, MINIMUM_VERSION))
        raise EnvironmentTooOldError(
            f"The metadata store at {address} is Redis {info.values['redis_version']}; needed is "
            f"{needed} or newer (or Valkey), for commands that the scripts use."
        )


def _short_of_memory(info: Info, address: str) -> Iterator[Problem]:
    used, limit = (int(info.values.get(name, "0")) for name in ("used_memory", "maxmemory"))
    if limit and used >= _MEMORY_SHARE * limit:
        yield Problem(
            f"{address}: {100 * used // limit} % of maxmemory ({limit} bytes) are used; a server "
            "that has reached it begins nothing new",
            MAKE_ROOM,
            loses_data=False,
            check="Redis memory",
        )


def _holes(info: Info, address: str, config: StoreConfig) -> Iterator[Problem]:
    version = _numbers(info.version)
    # The embedded server's socket admits nobody but the user that runs it.
    if version is None or config.url is None:
        return
    fixed = _LUA_HOLE_FIXED[info.product]
    series = version[:2]
    patch = version[2] if len(version) > 2 else 0  # noqa: PLR2004 - major, minor, patch
    if patch < fixed[series] if series in fixed else series < max(fixed):
        releases = [
            f"{major}.{minor}.{least}"
            for (major, minor), least in fixed.items()
            if (major, minor) >= series
        ]
        yield Problem(
            f"{address}: {info.product} {info.version} has a known hole in its Lua engine "
            "(CVE-2025-49844): a user that may run scripts may run code on the server",
            f"upgrade it to {', '.join(releases)}, or a later series",
            loses_data=False,
        )
