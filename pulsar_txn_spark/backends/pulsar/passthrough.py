"""The options ``pulsar.client.*``, ``pulsar.producer.*``, ``pulsar.reader.*``, ``pulsar.admin.*``.

They have the names of Pulsar's own Java configuration, which users of the pulsar-spark connector
know. They are translated for ``pulsar-client`` and for the admin API. Spark hands option keys over
in lower case, so that names are compared without regard to case. Whatever is not known is refused,
and so is what would break the scheme by which rows are written and read exactly once.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.errors import OptionError

COMPRESSION_TYPES = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")
"""What ``pulsar.producer.compressionType`` takes."""


@dataclass(frozen=True, slots=True)
class PassThrough:
    """One option: its documented name, what it sets, and how its text is read."""

    name: str
    target: str
    parse: Callable[[str], Any]
    secret: bool = False


def _text(value: str) -> str:
    if not value:
        raise ValueError("a text that is not empty")
    return value


def _flag(value: str) -> bool:
    try:
        return {"true": True, "false": False}[value.strip().lower()]
    except KeyError:
        raise ValueError("true or false") from None


def _at_least(lowest: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            number = lowest - 1
        if number < lowest:
            raise ValueError(f"an integer of at least {lowest}")
        return number

    return parse


def _milliseconds_as_seconds(value: str) -> int:
    return -(-_at_least(1)(value) // 1000)


def _only_true(value: str) -> bool:
    if not _flag(value):
        raise ValueError("true: anything else would lose rows or break their order")
    return True


def _compression(value: str) -> str:
    if value.upper() not in COMPRESSION_TYPES:
        raise ValueError("one of " + ", ".join(COMPRESSION_TYPES))
    return value.upper()


_CONNECTION = (
    PassThrough("authPluginClassName", "auth_plugin", _text),
    PassThrough("authParams", "auth_params", _text, secret=True),
    PassThrough("tlsTrustCertsFilePath", "tls_trust_certs_file_path", _text),
    PassThrough("tlsAllowInsecureConnection", "tls_allow_insecure_connection", _flag),
    PassThrough("tlsHostnameVerificationEnable", "tls_validate_hostname", _flag),
    PassThrough("tlsCertificateFilePath", "tls_certificate_file_path", _text),
    PassThrough("tlsKeyFilePath", "tls_private_key_file_path", _text),
)

_CRYPTO = (
    PassThrough("cryptoPublicKeyPath", "crypto_public_key_path", _text),
    PassThrough("cryptoPrivateKeyPath", "crypto_private_key_path", _text),
)

PASS_THROUGH: Mapping[str, tuple[PassThrough, ...]] = {
    "client": (
        *_CONNECTION,
        PassThrough("operationTimeoutMs", "operation_timeout_seconds", _milliseconds_as_seconds),
        PassThrough("connectionTimeoutMs", "connection_timeout_ms", _at_least(1)),
        PassThrough("numIoThreads", "io_threads", _at_least(1)),
        PassThrough("numListenerThreads", "message_listener_threads", _at_least(1)),
        PassThrough("concurrentLookupRequest", "concurrent_lookup_requests", _at_least(1)),
        PassThrough("statsIntervalSeconds", "stats_interval_in_seconds", _at_least(0)),
        PassThrough("listenerName", "listener_name", _text),
    ),
    "producer": (
        PassThrough("compressionType", "compression_type", _compression),
        PassThrough("sendTimeoutMs", "send_timeout_millis", _at_least(1)),
        PassThrough("maxPendingMessages", "max_pending_messages", _at_least(1)),
        PassThrough("batchingMaxMessages", "batching_max_messages", _at_least(1)),
        PassThrough("batchingMaxBytes", "batching_max_bytes", _at_least(1)),
        PassThrough("blockIfQueueFull", "block_if_queue_full", _only_true),
        PassThrough("batchingEnabled", "batching_enabled", _only_true),
        PassThrough("encryptionKey", "encryption_key", _text),
        *_CRYPTO,
    ),
    "reader": (
        PassThrough("receiverQueueSize", "receiver_queue_size", _at_least(1)),
        PassThrough("readerName", "reader_name", _text),
        PassThrough("subscriptionRolePrefix", "subscription_role_prefix", _text),
        *_CRYPTO,
    ),
    "admin": (
        *_CONNECTION,
        PassThrough("connectionTimeoutMs", "connection_timeout_ms", _at_least(1)),
        PassThrough("readTimeoutMs", "read_timeout_ms", _at_least(1)),
    ),
}
"""Kind -> the options that ``pulsar.<kind>.`` takes."""

_BY_RANGE = "what is read is decided by the offsets of the micro-batch"
_BY_WRITER = (
    "each task attempt writes under a name of its own, by which readers tell what committed"
)
_BY_SIZE = "an entry is sent when its rows are complete, never by a timer"

REFUSED: Mapping[str, Mapping[str, str]] = {
    "client": {
        "serviceUrl": "set the option service.url",
        "useTls": "the scheme of service.url says it: pulsar+ssl:// instead of pulsar://",
        "authParamMap": "set pulsar.client.authParams, which also takes JSON",
        "memoryLimitBytes": "the writer bounds by itself what is in flight",
    },
    "producer": {
        "topicName": "set the option topic or topics",
        "producerName": _BY_WRITER,
        "initialSequenceId": "each writer is new, so that it starts at 0",
        "accessMode": _BY_WRITER,
        "chunkingEnabled": "a message in several entries cannot be made visible as one",
        "batchingMaxPublishDelayMicros": _BY_SIZE,
        "batchingMaxPublishDelayMs": _BY_SIZE,
        "batcherBuilder": "rows of one key keep their order because a writer's entries do",
        "messageRoutingMode": "rows are routed by the hash ranges of the segments",
        "hashingScheme": "segments own ranges of the Murmur3 hash",
        "cryptoFailureAction": "sending a row unencrypted is never right",
    },
    "reader": {
        "topicName": "set the option topic, topics or topicsPattern",
        "startMessageId": "set the option startingOffsets",
        "startMessageFromRollbackDurationInSec": "set the option startingOffsets",
        "resetIncludeHead": _BY_RANGE,
        "readCompacted": "compaction removes rows that were never read",
        "subscriptionName": "set the option subscription",
        "cryptoFailureAction": "a row that cannot be decrypted must not be skipped",
    },
    "admin": {
        "serviceUrl": "set the option admin.url",
        "serviceHttpUrl": "set the option admin.url",
    },
}
"""Kind -> option -> why it is not taken."""


def parse_passthrough(kind: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Translate the options of one kind.

    Parameters
    ----------
    kind : str
        ``client``, ``producer``, ``reader`` or ``admin``.
    options : Mapping[str, str]
        Names without their ``pulsar.<kind>.`` prefix, in any case.

    Returns
    -------
    dict
        Targets of :data:`PASS_THROUGH` with their values, and ``credentials`` for the kinds that
        authenticate.

    Raises
    ------
    OptionError
        If an option is unknown, refused or malformed. No secret is part of the message.
    """
    known = {option.name.lower(): option for option in PASS_THROUGH[kind]}
    refused = {name.lower(): (name, why) for name, why in REFUSED[kind].items()}
    parsed: dict[str, Any] = {}
    for name, value in options.items():
        option = known.get(name.lower())
        if option is None:
            if name.lower() in refused:
                shown, why = refused[name.lower()]
                raise OptionError(f"the option pulsar.{kind}.{shown} cannot be set: {why}")
            raise _unknown(kind, name)
        try:
            parsed[option.target] = option.parse(value)
        except ValueError as wrong:
            shown_value = "" if option.secret else f", found {value!r}"
            raise OptionError(
                f"the option pulsar.{kind}.{option.name} expects {wrong}{shown_value}"
            ) from None
    if kind in {"client", "admin"}:
        plugin, params = parsed.pop("auth_plugin", None), parsed.pop("auth_params", None)
        parsed["credentials"] = parse_credentials(kind, plugin, params)
    if kind == "producer" and (
        "encryption_key" in parsed and "crypto_public_key_path" not in parsed
    ):
        raise OptionError(
            "the option pulsar.producer.encryptionKey needs pulsar.producer.cryptoPublicKeyPath: "
            "the file with the public key of that name"
        )
    return parsed


def validate_passthrough(kind: str, options: Mapping[str, str]) -> None:
    """Check the options of one kind before a query starts; see :func:`parse_passthrough`.

    Raises
    ------
    OptionError
        If one of them is unknown, refused or malformed.
    """
    parse_passthrough(kind, options)


def _unknown(kind: str, name: str) -> OptionError:
    names = {option.name.lower(): option.name for option in PASS_THROUGH[kind]}
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    hint = (
        f"did you mean pulsar.{kind}.{names[near[0]]}?"
        if near
        else "known are: " + ", ".join(sorted(names.values()))
    )
    return OptionError(f"there is no option pulsar.{kind}.{name}; {hint}")


# --- addresses ----------------------------------------------------------------------------------


def parse_admin_url(url: str) -> tuple[str, Credentials]:
    """Take the user and password, if there are any, out of ``admin.url``.

    Returns
    -------
    tuple of (str, Credentials)
        The URL that may be shown, without a slash at its end, and basic authentication or none.

    Raises
    ------
    ValueError
        Saying what was expected, without any part of the URL.
    """
    expected = "a URL that begins with http:// or https:// and names a host, and a port if any"
    try:
        parts = urlsplit(url.strip())
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment or "@" in parts.path:
        # A parser takes what stands behind a '/' in a password for the path.
        raise ValueError(f"{expected}; a password in it needs '/', '?', '#' and '@' escaped")
    userinfo, _, address = parts.netloc.rpartition("@")
    shown = f"{parts.scheme}://{address}{parts.path}".rstrip("/")
    if not userinfo:
        return shown, Credentials("none")
    user, _, password = userinfo.partition(":")
    params = {"userId": unquote(user), "password": unquote(password)}
    return shown, Credentials("basic", tuple(sorted(params.items())))


_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+)(:\d{1,5})?")


def check_service_url(url: str) -> str:
    """Check that ``service.url`` is one of Pulsar's and holds no password.

    Raises
    ------
    ValueError
        Saying what was expected, without any part of the URL.
    """
    scheme, _, hosts = url.strip().partition("://")
    if scheme in {"pulsar", "pulsar+ssl"} and "@" in hosts:
        raise ValueError(
            "a URL without user and password, as Pulsar's protocol has none there: give them as "
            "pulsar.client.authPluginClassName=basic and pulsar.client.authParams=<user>:<password>"
        )
    addresses = hosts.removesuffix("/").split(",")
    if scheme not in {"pulsar", "pulsar+ssl"} or not all(map(_HOST.fullmatch, addresses)):
        raise ValueError(
            "a URL that begins with pulsar:// or pulsar+ssl://, then host:port, with commas "
            "between several"
        )
    return url.strip()


def service_url_of(config: PulsarConfig) -> str:
    """Return the service URL of a configuration, which holds no password.

    Raises
    ------
    OptionError
        If it is none of Pulsar's or holds one; without any part of it.
    """
    try:
        return check_service_url(config.service_url)
    except ValueError as wrong:
        raise OptionError(f"option 'service.url': expected {wrong}") from None


# --- authentication -----------------------------------------------------------------------------

_PLUGINS = {
    "org.apache.pulsar.client.impl.auth.authenticationtoken": "token",
    "org.apache.pulsar.client.impl.auth.authenticationtls": "tls",
    "org.apache.pulsar.client.impl.auth.authenticationbasic": "basic",
    "org.apache.pulsar.client.impl.auth.authenticationathenz": "athenz",
    "org.apache.pulsar.client.impl.auth.oauth2.authenticationoauth2": "oauth2",
    "org.apache.pulsar.client.impl.auth.authenticationdisabled": "none",
} | {name: name for name in ("token", "tls", "basic", "athenz", "oauth2", "none")}


@dataclass(frozen=True, slots=True)
class Credentials:
    """How to authenticate; the parameters are never shown.

    Parameters
    ----------
    method : str
        ``none``, ``token``, ``tls``, ``basic``, ``athenz`` or ``oauth2``.
    params : tuple of (str, str)
        ``token`` or ``token_file``; ``tlsCertFile`` and ``tlsKeyFile``; ``userId`` and
        ``password``; for the others Pulsar's own JSON under ``json``.
    """

    method: str
    params: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def __getitem__(self, name: str) -> str:
        return dict(self.params)[name]

    def token(self) -> str:
        """Return the token now: a file is read again each time, so that it can be renewed.

        Raises
        ------
        OptionError
            If the file cannot be read.
        """
        params = dict(self.params)
        if "token" in params:
            return _sendable(params["token"])
        try:
            return _sendable(Path(params["token_file"]).read_text(encoding="latin-1").strip())
        except OSError as failed:
            raise OptionError(
                f"cannot read the token file {params['token_file']}: {failed.strerror}; "
                "authParams names it as file://<path>"
            ) from None


def _sendable(token: str) -> str:
    """Refuse what no header can hold; what would refuse it later repeats it."""
    if not token or not token.isascii() or not token.isprintable():
        raise OptionError(
            "the token of authParams is empty or holds other characters than letters, digits and "
            "signs of ASCII (it is not shown). Expected the text that a tool such as 'bin/pulsar "
            "tokens create' prints"
        )
    return token


def parse_credentials(kind: str, plugin: str | None, params: str | None) -> Credentials:
    """Read ``authPluginClassName`` and ``authParams`` as Pulsar's Java client writes them.

    Raises
    ------
    OptionError
        If the plugin is not known or its parameters are incomplete; without the parameters.
    """
    if plugin is None:
        if params is not None:
            raise OptionError(
                f"the option pulsar.{kind}.authParams needs pulsar.{kind}.authPluginClassName: "
                "without it nobody would authenticate"
            )
        return Credentials("none")
    method = _PLUGINS.get(plugin.lower())
    if method is None:
        raise OptionError(
            f"the option pulsar.{kind}.authPluginClassName expects one of Pulsar's own plugins "
            f"({', '.join(sorted({*_PLUGINS.values()}))} or their Java class), found {plugin!r}"
        )
    if method == "none":
        return Credentials("none")
    if params is None:
        raise OptionError(
            f"the option pulsar.{kind}.authPluginClassName ({method}) needs "
            f"pulsar.{kind}.authParams"
        )
    parsed = _AUTH_PARAMS[method](params)
    if parsed is None:
        raise OptionError(
            f"the option pulsar.{kind}.authParams cannot be read for {method}; expected "
            f"{_AUTH_FORMS[method]} (the value is not shown: it is a secret)"
        )
    return Credentials(method, tuple(sorted(parsed.items())))


def _token_params(params: str) -> dict[str, str] | None:
    if params.lstrip().startswith("{"):
        token = _json_object(params).get("token")
        return {"token": token} if token else None
    if params.startswith("token:"):
        params = params.removeprefix("token:")
    elif params.startswith("file:"):
        path = unquote(urlsplit(params).path)
        return {"token_file": path} if path else None
    return {"token": params} if params else None


def _named_params(*names: str) -> Callable[[str], dict[str, str] | None]:
    def parse(params: str) -> dict[str, str] | None:
        if params.lstrip().startswith("{"):
            pairs = _json_object(params)
        else:
            pairs = dict(
                (part.strip() for part in pair.split(":", 1))  # type: ignore[misc]
                for pair in params.split(",")
                if ":" in pair
            )
        return {name: pairs[name] for name in names} if all(map(pairs.get, names)) else None

    return parse


def _basic_params(params: str) -> dict[str, str] | None:
    if params.lstrip().startswith("{"):
        return _named_params("userId", "password")(params)
    user, colon, password = params.partition(":")
    return {"userId": user, "password": password} if colon and user else None


def _oauth2_params(params: str) -> dict[str, str] | None:
    fields = _json_object(params)
    # pulsar-client spells them otherwise than the Java client.
    renamed = {"issuerUrl": "issuer_url", "privateKey": "private_key"}
    fields = {renamed.get(name, name): value for name, value in fields.items()}
    if not fields.get("issuer_url") or not fields.get("private_key"):
        return None
    return {"json": json.dumps(fields)}


def _json_params(params: str) -> dict[str, str] | None:
    return {"json": params} if _json_object(params) else None


def _json_object(params: str) -> dict[str, str]:
    try:
        parsed = json.loads(params)
    except ValueError:
        return {}
    return (
        {str(name): str(value) for name, value in parsed.items()}
        if isinstance(parsed, dict)
        else {}
    )


_AUTH_PARAMS: Mapping[str, Callable[[str], dict[str, str] | None]] = {
    "token": _token_params,
    "tls": _named_params("tlsCertFile", "tlsKeyFile"),
    "basic": _basic_params,
    "oauth2": _oauth2_params,
    "athenz": _json_params,
}
_AUTH_FORMS: Mapping[str, str] = {
    "token": 'token:<token>, file://<path> or {"token": ...}',
    "tls": 'tlsCertFile:<path>,tlsKeyFile:<path> or {"tlsCertFile": ..., "tlsKeyFile": ...}',
    "basic": '<user>:<password> or {"userId": ..., "password": ...}',
    "oauth2": '{"issuerUrl": ..., "privateKey": "file://<path>", "audience": ...}',
    "athenz": "Athenz' JSON object",
}
