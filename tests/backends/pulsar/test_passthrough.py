"""Pass-through options of the Pulsar backend: taken, translated or refused, and never leaked."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from pulsar_txn_spark.backends.pulsar.passthrough import (
    PASS_THROUGH,
    REFUSED,
    parse_passthrough,
    validate_passthrough,
)
from pulsar_txn_spark.errors import OptionError

TOKEN_PLUGIN = "org.apache.pulsar.client.impl.auth.AuthenticationToken"


def test_names_are_compared_without_regard_to_case() -> None:
    for name in ("operationTimeoutMs", "operationtimeoutms", "OPERATIONTIMEOUTMS"):
        assert parse_passthrough("client", {name: "1500"})["operation_timeout_seconds"] == 2


def test_values_are_translated_for_the_client() -> None:
    assert parse_passthrough(
        "producer", {"compressiontype": "zstd", "sendtimeoutms": "5000", "blockifqueuefull": "true"}
    ) == {"compression_type": "ZSTD", "send_timeout_millis": 5000, "block_if_queue_full": True}
    assert parse_passthrough("reader", {"receiverqueuesize": "7"}) == {"receiver_queue_size": 7}


@pytest.mark.parametrize(
    "kind, name, near",
    [
        ("client", "operationtimeout", "operationTimeoutMs"),
        ("producer", "compresiontype", "compressionType"),
        ("reader", "recieverqueuesize", "receiverQueueSize"),
        ("admin", "readtimeout", "readTimeoutMs"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_name(
    kind: str, name: str, near: str
) -> None:
    with pytest.raises(OptionError, match=f"did you mean pulsar.{kind}.{near}"):
        validate_passthrough(kind, {name: "1"})


def test_an_option_like_no_other_is_refused_with_the_known_ones() -> None:
    with pytest.raises(OptionError, match=r"known are: .*receiverQueueSize"):
        validate_passthrough("reader", {"zzz": "1"})


@pytest.mark.parametrize(
    "kind, name", [(kind, name) for kind, names in REFUSED.items() for name in names]
)
def test_an_option_that_would_break_the_scheme_is_refused_with_the_reason(
    kind: str, name: str
) -> None:
    with pytest.raises(OptionError, match="cannot be set") as refused:
        validate_passthrough(kind, {name.lower(): "anything"})
    assert REFUSED[kind][name] in str(refused.value)
    assert name not in {option.name for option in PASS_THROUGH[kind]}


@pytest.mark.parametrize(
    "kind, name, value, expected",
    [
        ("client", "operationTimeoutMs", "soon", "an integer of at least 1"),
        ("client", "numIoThreads", "0", "an integer of at least 1"),
        ("client", "tlsAllowInsecureConnection", "maybe", "true or false"),
        ("producer", "compressionType", "gzip", "one of NONE, LZ4"),
        ("producer", "blockIfQueueFull", "false", "true: anything else would lose rows"),
        ("producer", "batchingEnabled", "false", "true: anything else"),
        ("producer", "sendTimeoutMs", "0", "at least 1"),
        ("client", "listenerName", "", "not empty"),
    ],
)
def test_a_malformed_value_is_refused_with_what_was_expected(
    kind: str, name: str, value: str, expected: str
) -> None:
    with pytest.raises(OptionError, match=expected) as refused:
        validate_passthrough(kind, {name: value})
    assert name in str(refused.value)


@pytest.mark.parametrize("plugin", [TOKEN_PLUGIN, TOKEN_PLUGIN.lower(), "token"])
@pytest.mark.parametrize("params", ["secret", "token:secret", '{"token": "secret"}'])
def test_a_token_is_read_in_every_form_of_the_java_client(plugin: str, params: str) -> None:
    found = parse_passthrough("client", {"authPluginClassName": plugin, "authparams": params})
    assert found["credentials"].token() == "secret"


def test_a_token_file_is_read_again_each_time(tmp_path: Path) -> None:
    file = tmp_path / "a token"
    file.write_text("first\n")
    params = {"authPluginClassName": "token", "authParams": file.as_uri()}
    credentials = parse_passthrough("admin", params)["credentials"]
    assert credentials.token() == "first"
    file.write_text("second\n")
    assert credentials.token() == "second"
    file.unlink()
    with pytest.raises(OptionError, match="cannot read the token file"):
        credentials.token()


@pytest.mark.parametrize(
    "plugin, params, expected",
    [
        ("tls", "tlsCertFile:/a,tlsKeyFile:/b", {"tlsCertFile": "/a", "tlsKeyFile": "/b"}),
        ("basic", "user:pass:word", {"userId": "user", "password": "pass:word"}),
        ("basic", '{"userId": "u", "password": "p"}', {"userId": "u", "password": "p"}),
        (
            "org.apache.pulsar.client.impl.auth.oauth2.AuthenticationOAuth2",
            '{"issuerUrl": "https://i", "privateKey": "file:///k"}',
            {"json": '{"issuer_url": "https://i", "private_key": "file:///k"}'},
        ),
    ],
)
def test_other_plugins_parameters_are_read(
    plugin: str, params: str, expected: dict[str, str]
) -> None:
    found = parse_passthrough("client", {"authPluginClassName": plugin, "authParams": params})
    assert dict(found["credentials"].params) == expected


@pytest.mark.parametrize(
    "options",
    [
        {"authParams": "s3cret"},
        {"authPluginClassName": "tls", "authParams": "s3cret"},
        {"authPluginClassName": "basic", "authParams": "s3cret"},
        {"authPluginClassName": "oauth2", "authParams": "s3cret"},
        {"authPluginClassName": "com.example.Own", "authParams": "s3cret"},
        {"authPluginClassName": "token", "authParams": '{"other": "s3cret"}'},
    ],
)
def test_wrong_credentials_are_refused_without_showing_them(options: dict[str, str]) -> None:
    with pytest.raises(OptionError) as refused:
        validate_passthrough("client", options)
    assert "s3cret" not in str(refused.value)
    assert "s3cret" not in str(pickle.loads(pickle.dumps(refused.value)))


def test_credentials_never_show() -> None:
    options = {"authPluginClassName": "token", "authParams": "s3cret"}
    assert "s3cret" not in repr(parse_passthrough("client", options))


def test_encryption_needs_the_public_key() -> None:
    with pytest.raises(OptionError, match="cryptoPublicKeyPath"):
        validate_passthrough("producer", {"encryptionKey": "k"})
