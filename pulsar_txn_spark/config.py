"""What the lower layers are configured with: plain values, made by ``options/parsed.py``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """How to reach the metadata store.

    Parameters
    ----------
    url : str or None
        ``redis://``, ``rediss://``, ``unix://``, ``redis+cluster://`` or ``rediss+cluster://``;
        None = the embedded server in `path`.
    path : str or None
        Folder of the embedded server; None = the default folder of the user.
    username, password : str or None
        ACL user and password; the password is never shown.
    tls_ca_file, tls_cert_file, tls_key_file : str or None
        PEM files for ``rediss``.
    tls_verify_host : bool
        Whether the server's certificate must carry its host name.
    accept_data_loss : bool
        The user accepts a server that may lose acknowledged writes.
    assume_durable : bool
        The user vouches for settings that cannot be read because CONFIG is not allowed.
    timeout_ms : int
        Bound on one round trip, and on connecting.
    coordinators : int or None
        How many TC shards the store has, or gets if it is new; None = whatever it has.
    """

    url: str | None = field(default=None, repr=False)  # it may carry a password
    path: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_verify_host: bool = True
    accept_data_loss: bool = False
    assume_durable: bool = False
    timeout_ms: int = 5000
    coordinators: int | None = None


@dataclass(frozen=True, slots=True)
class PulsarConfig:
    """How to reach Pulsar.

    Parameters
    ----------
    service_url : str
        ``pulsar://`` or ``pulsar+ssl://``.
    admin_url : str
        ``http://`` or ``https://``.
    client, producer, reader, admin : tuple of (str, str)
        Pass-through options without their ``pulsar.<kind>.`` prefix, sorted; hidden from repr as
        they may hold tokens.
    transport : str
        ``client``, ``wire``, or ``auto``: wire unless an option needs what only pulsar-client has.
    """

    service_url: str = field(repr=False)
    admin_url: str = field(repr=False)  # it may carry a password
    client: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    producer: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    reader: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    admin: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    transport: str = "auto"


def as_pairs(options: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return a mapping as sorted pairs, so that a configuration can be a cache key."""
    return tuple(sorted(options.items()))
