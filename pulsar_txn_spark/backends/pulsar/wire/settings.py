"""How to connect: the options ``pulsar.client.*`` as the wire transport takes them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

from pulsar_txn_spark.backends.pulsar.passthrough import (
    Credentials,
    parse_passthrough,
    service_url_of,
)
from pulsar_txn_spark.backends.pulsar.tls import TlsSettings
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.errors import OptionError
from pulsar_txn_spark.redaction import redacted

_PORTS = {"pulsar": 6650, "pulsar+ssl": 6651}
_CONNECT_MS = 10_000
_OPERATION_SECONDS = 30
_KEEP_ALIVE_SECONDS = 30.0  # as Pulsar's own clients


class Address(NamedTuple):
    """Where a broker or a proxy listens."""

    host: str
    port: int
    tls: bool

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_addresses(url: str) -> tuple[Address, ...]:
    """Read ``pulsar://host:port,host:port`` or the same with ``pulsar+ssl``.

    Raises
    ------
    OptionError
        If the URL is not of that form.
    """
    scheme, _, rest = url.partition("://")
    addresses: tuple[Address, ...] = ()
    with contextlib.suppress(ValueError, KeyError):  # a port or a scheme that is none
        addresses = tuple(
            Address(parts.hostname or "", parts.port or _PORTS[scheme], scheme == "pulsar+ssl")
            for parts in (urlsplit(f"//{host}") for host in rest.partition("/")[0].split(","))
        )
    if scheme not in _PORTS or not addresses or not all(address.host for address in addresses):
        raise OptionError(
            "expected a broker's address as pulsar://host:port or pulsar+ssl://host:port, found "
            f"{redacted(url)!r}"
        )
    return addresses


def client_needed(config: PulsarConfig) -> str | None:
    """Say which option only ``pulsar-client`` can serve, None if there is none."""
    method = parse_passthrough("client", dict(config.client))["credentials"].method
    if method in {"oauth2", "athenz"}:
        return f"the authentication {method} (pulsar.client.authPluginClassName)"
    if "encryption_key" in parse_passthrough("producer", dict(config.producer)):
        return "encryption (pulsar.producer.encryptionKey)"
    reader = parse_passthrough("reader", dict(config.reader))
    if "crypto_private_key_path" in reader:
        return "decryption (pulsar.reader.cryptoPrivateKeyPath)"
    return None


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """How to connect and to authenticate.

    Parameters
    ----------
    addresses : tuple of Address
        Brokers or proxies of ``service.url``, any of which will do.
    credentials : Credentials
        Asked anew whenever the broker wants them.
    tls_settings : TlsSettings
        Which certificates to trust and to present.
    listener_name : str, optional
        Which of a broker's advertised addresses to use.
    connect_s, operation_s, keep_alive_s : float
        Bounds: on connecting, on each request with its retries, on silence before a ping.
    """

    addresses: tuple[Address, ...]
    credentials: Credentials = field(default=Credentials("none"), repr=False)
    tls_settings: TlsSettings = field(default_factory=TlsSettings)
    listener_name: str | None = None
    connect_s: float = _CONNECT_MS / 1000
    operation_s: float = _OPERATION_SECONDS
    keep_alive_s: float = _KEEP_ALIVE_SECONDS

    @classmethod
    def of(cls, config: PulsarConfig) -> ConnectionSettings:
        """Read the options.

        Raises
        ------
        OptionError
            If one is malformed, or can only be served by ``pulsar-client``.
        """
        reason = client_needed(config)
        if reason is not None:
            raise OptionError(f"the transport 'wire' does not speak {reason}: use 'client'")
        options = parse_passthrough("client", dict(config.client))
        return cls(
            addresses=parse_addresses(service_url_of(config)),
            credentials=options["credentials"],
            tls_settings=TlsSettings.of(options),
            listener_name=options.get("listener_name"),
            connect_s=options.get("connection_timeout_ms", _CONNECT_MS) / 1000,
            operation_s=options.get("operation_timeout_seconds", _OPERATION_SECONDS),
        )

    @property
    def tls(self) -> bool:
        """Return whether brokers are to be reached with TLS."""
        return self.addresses[0].tls

    def authentication(self) -> tuple[str, bytes]:
        """Return the method's name and its data as they are now.

        Raises
        ------
        OptionError
            If a token's file cannot be read.
        """
        method = self.credentials.method
        if method == "token":
            return method, self.credentials.token().encode()
        if method == "basic":
            text = f"{self.credentials['userId']}:{self.credentials['password']}"
            return method, text.encode()
        return method, b""
