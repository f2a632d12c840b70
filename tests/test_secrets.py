"""No password is shown, wherever a user puts one and whatever goes wrong."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from pulsar_txn_spark.backends.pulsar import admin_api as pulsar_admin
from pulsar_txn_spark.backends.pulsar import redirects
from pulsar_txn_spark.backends.pulsar.admin_api import PulsarAdmin
from pulsar_txn_spark.backends.pulsar.passthrough import PASS_THROUGH, parse_admin_url
from pulsar_txn_spark.backends.pulsar.transport import choose
from pulsar_txn_spark.backends.pulsar.wire.settings import ConnectionSettings
from pulsar_txn_spark.cli import doctor, main
from pulsar_txn_spark.cli.format_lookup import Lookup
from pulsar_txn_spark.cli.option_sources import (
    environment_keys,
    environment_variable,
    gather,
    secret_variables,
)
from pulsar_txn_spark.errors import OptionError, PulsarTxnError, SegmentLogUnavailableError
from pulsar_txn_spark.options import OPTIONS, Options, Use, is_secret
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.redaction import redacted
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.spark.sink.job import WriteJob
from pulsar_txn_spark.spark.source.partition import SegmentRange, SourcePartition
from pulsar_txn_spark.store.redis.connection import connect
from pulsar_txn_spark.store.redis.endpoint import parse_endpoint
from pulsar_txn_spark.txn.transaction_buffer import Visibility

CORE = "Zq9xK"  # nothing else that is shown contains it
NOBODY = "127.0.0.1:1"  # nobody listens on it
REACHABLE = {
    "store.url": f"redis://{NOBODY}",
    "service.url": f"pulsar://{NOBODY}",
    "admin.url": f"http://{NOBODY}",
    "transport": "wire",
}

# -- where a secret can be, well and badly written -------------------------------------------------

SCHEMES = ("redis", "rediss", "redis+cluster", "unix", "http", "https", "pulsar", "nonsense", "")
FORMS = (
    "{scheme}://me:{secret}@{host}",
    "{scheme}://:{secret}@{host}",
    "{scheme}://{secret}@{host}",
    "{scheme}:/me:{secret}@{host}",
    "{scheme}:me:{secret}@{host}",
    "me:{secret}@{host}",
    "{scheme}://me:{secret}@",
    "{scheme}://me:{secret}@{host}:99999",
    "{scheme}://{host}:{secret}",
    "{scheme}://{host}/{secret}",
    "{scheme}://{host}?password={secret}",
    "{scheme}://{host}#{secret}",
    "{scheme}://me:{secret}@[::1",
    "{secret}",
)
FORMS_OF_ADMIN = tuple(form for form in FORMS if not form.endswith("/{secret}"))
NOISE = st.text(alphabet="aZ0:/@?#%[] ;,=\u2100\\{}\"'", max_size=6)
SECRETS = st.one_of(st.just(CORE), st.builds(lambda noise: f"{CORE}{noise}{CORE}", NOISE))


@st.composite
def options_with_a_secret(draw: st.DrawFn) -> dict[str, str]:
    keys = [o.key for o in OPTIONS if o.use & Use.CONNECT and is_secret(o.key)]
    keys += [
        f"pulsar.{kind}.{option.name}"
        for kind, options in PASS_THROUGH.items()
        for option in options
        if option.secret
    ]
    key = draw(st.sampled_from([*keys, "store.path"]))
    secret = draw(SECRETS)
    given = dict(REACHABLE)
    if key.endswith((".url", ".path")):
        # The path of a proxy in front of the admin API is shown.
        form = draw(st.sampled_from(FORMS if key != "admin.url" else FORMS_OF_ADMIN))
        secret = form.format(scheme=draw(st.sampled_from(SCHEMES)), secret=secret, host=NOBODY)
    if key == "store.path":
        del given["store.url"]
        given[key] = f"http://{secret}"
    else:
        given[key] = secret
    if key.startswith("pulsar."):
        plugins = ("token", "basic", "tls", "oauth2", "athenz", "nobody's")
        given[key.replace("authParams", "authPluginClassName")] = draw(st.sampled_from(plugins))
    return given


# -- what may go wrong, and what may be looked at --------------------------------------------------


def _paths(given: dict[str, str]) -> Iterator[Callable[[], Any]]:
    """Yield everything that uses the options up to where a server would have to answer."""
    for use in (Use.CONNECT, Use.READ | Use.STREAM, Use.WRITE | Use.BATCH):
        yield lambda use=use: repr(Options(given, use))  # type: ignore[misc]
    yield lambda: [repr(c) for c in _configurations(given)]
    yield lambda: [str(parse_endpoint(_store(given))), repr(parse_endpoint(_store(given)))]
    yield lambda: connect(_store(given))
    yield lambda: [repr(PulsarAdmin(_pulsar(given))), PulsarAdmin(_pulsar(given)).broker_version()]
    yield lambda: repr(ConnectionSettings.of(_pulsar(given)))
    yield lambda: choose(_pulsar(given))
    yield lambda: doctor.examine(given)


def _store(given: dict[str, str]) -> Any:
    return Options(given, Use.CONNECT).store


def _pulsar(given: dict[str, str]) -> Any:
    return Options(given, Use.CONNECT).pulsar


def _configurations(given: dict[str, str]) -> list[Any]:
    options = Options(given, Use.CONNECT)
    ref = SegmentRef("topic://a/b/c", "topic://a/b/c/0000-ffff-0", "log")
    return [
        options.store,
        options.pulsar,
        WriteJob(options, "uuid", "nonce", None),
        SourcePartition(
            (SegmentRange(ref, EARLIEST, Position(1, 1), Visibility()),),
            frozenset(),
            fail_on_data_loss=True,
            store_uuid="u",
            plan=None,
        ),
    ]


def _shown(look: Callable[[], Any]) -> str:
    """Return all that a user may see of a call: its value, or its error with what caused it."""
    try:
        return str(look())
    except PulsarTxnError as error:
        copied = pickle.loads(pickle.dumps(error))
        return "".join([*traceback.format_exception(error), repr(copied), str(copied)])


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulsar_admin, "ATTEMPTS", 0)
    monkeypatch.setattr(redirects, "FEW_TRIES", 1)
    monkeypatch.setattr(doctor, "require_java", lambda: None)
    monkeypatch.setattr(doctor, "look_up", lambda: Lookup("python", "PYSPARK_PYTHON", visible=True))


@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(given=options_with_a_secret())
@example(given={**REACHABLE, "admin.url": f"http://user:{CORE}@{NOBODY}"})
@example(given={**REACHABLE, "admin.url": f"http://user:{CORE}\u2100@{NOBODY}"})
@example(given={**REACHABLE, "admin.url": f"http://user:{CORE}@{NOBODY}0000"})
@example(given={**REACHABLE, "service.url": f"pulsar://user:{CORE}@{NOBODY}"})
@example(given={**REACHABLE, "store.url": f"redis://user:{CORE}\u2100@{NOBODY}"})
def test_a_secret_in_any_option_is_in_no_error_no_repr_no_log_and_no_check_up(
    given: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    with caplog.at_level(logging.DEBUG):
        for look in _paths(given):
            assert CORE not in _shown(look)
    assert CORE not in caplog.text


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given=options_with_a_secret(), way=st.sampled_from(["-o", "environment", "file", "toml"]))
def test_a_secret_given_to_the_command_line_is_not_printed(
    given: dict[str, str], way: str, tmp_path: Path
) -> None:
    arguments, environment = ["topic", "list"], {}
    if way == "-o":
        arguments += [part for key, value in given.items() for part in ("-o", f"{key}={value}")]
    elif way == "environment":
        environment = {environment_variable(key): value for key, value in given.items()}
    else:
        file = tmp_path / ("options.toml" if way == "toml" else "options.properties")
        file.write_text("".join(f"{key} = {value}\n" for key, value in given.items()))
        file.chmod(0o600)
        arguments += ["--options", str(file)]
    result = CliRunner().invoke(main.app, arguments, env=environment)
    error = result.exception
    shown = _shown(lambda: (_ for _ in ()).throw(error)) if error else ""
    assert CORE not in result.output + shown


def test_a_malformed_argument_is_refused_without_being_shown() -> None:
    with pytest.raises(OptionError, match="number 2 of them") as caught:
        gather(["store.path=/x", f"store.password:{CORE}"], None, {})
    assert CORE not in str(caught.value)


def test_a_traceback_of_the_command_line_has_no_local_variables() -> None:
    assert not main.app.pretty_exceptions_enable, "then Python prints it"
    assert not main.app.pretty_exceptions_show_locals


@pytest.mark.parametrize(
    "text,shown",
    [
        ("http://h:1", "http://h:1"),
        ("http://me:pw@h:1/x", "http://***@h:1/x"),
        ("http://me:p@w@h", "http://***@h"),
        ("pw://me@h", "***@h"),
        ("http://h?token=pw", "http://h?***"),
        ("me:pw@h", "***@h"),
    ],
)
def test_a_url_is_shown_without_user_password_and_query(text: str, shown: str) -> None:
    assert redacted(text) == shown


# -- user and password in admin.url ----------------------------------------------------------------


def test_user_and_password_in_the_admin_url_are_basic_authentication() -> None:
    shown, credentials = parse_admin_url("https://m%40e:p%2Fw@h:8443/base/")
    assert shown == "https://h:8443/base"
    assert (credentials["userId"], credentials["password"]) == ("m@e", "p/w")
    assert parse_admin_url("http://h")[1].method == "none"


def test_an_admin_url_with_a_password_and_another_authentication_contradict_each_other() -> None:
    given = {
        **REACHABLE,
        "admin.url": f"http://me:{CORE}@h",
        "pulsar.admin.authPluginClassName": "token",
        "pulsar.admin.authParams": "t",
    }
    with pytest.raises(OptionError, match=r"'admin\.url' holds a user and password.*token"):
        PulsarAdmin(_pulsar(given))


def test_an_admin_api_that_is_away_is_named_without_the_password() -> None:
    given = {**REACHABLE, "admin.url": f"http://me:{CORE}@{NOBODY}"}
    with pytest.raises(SegmentLogUnavailableError, match=NOBODY) as caught:
        PulsarAdmin(_pulsar(given)).broker_version()
    assert CORE not in str(caught.value)


# -- the command line's sources --------------------------------------------------------------------


def test_each_option_of_connecting_has_an_environment_variable_of_its_own() -> None:
    names = [environment_variable(key) for key in environment_keys()]
    assert len(set(names)) == len(names)
    assert environment_variable("store.password") == "PULSAR_TXN_STORE_PASSWORD"
    assert environment_variable("store.tls.caFile") == "PULSAR_TXN_STORE_TLS_CA_FILE"
    client = "pulsar.client.authParams"
    assert environment_variable(client) == "PULSAR_TXN_PULSAR_CLIENT_AUTH_PARAMS"
    assert {
        "PULSAR_TXN_STORE_PASSWORD",
        "PULSAR_TXN_STORE_URL",
        "PULSAR_TXN_ADMIN_URL",
        "PULSAR_TXN_PULSAR_CLIENT_AUTH_PARAMS",
        "PULSAR_TXN_PULSAR_ADMIN_AUTH_PARAMS",
    } <= set(secret_variables())


def test_an_argument_is_before_a_file_and_a_file_before_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "options"
    file.write_text("# a comment\n\nstore.username = file\nstore.timeoutMs: 7\n")
    environment = {
        "PULSAR_TXN_STORE_USERNAME": "environment",
        "PULSAR_TXN_STORE_TIMEOUT_MS": "5",
        "PULSAR_TXN_STORE_PASSWORD": "environment",
        "PULSAR_TXN_SPARK_FAULT": "not ours",
        "PULSAR_TXN_METRICS_PORT": "tcp://10.0.0.1:80",  # Kubernetes makes such ones
    }
    assert gather(["store.TIMEOUTMS=9"], file, environment) == {
        "store.password": "environment",
        "store.username": "file",
        "store.TIMEOUTMS": "9",
    }


def test_a_folder_given_as_argument_takes_the_place_of_the_environments_url() -> None:
    environment = {"PULSAR_TXN_STORE_URL": "redis://h"}
    assert gather(["store.path=/x"], None, environment) == {"store.path": "/x"}


def test_a_misspelt_variable_is_refused_and_the_right_one_named() -> None:
    with pytest.raises(OptionError, match="did you mean PULSAR_TXN_STORE_PASSWORD") as caught:
        gather([], None, {"PULSAR_TXN_STORE_PASWORD": CORE})
    assert CORE not in str(caught.value)


def test_a_file_in_toml_has_tables_or_dotted_keys(tmp_path: Path) -> None:
    file = tmp_path / "options.toml"
    file.write_text('[store]\npassword = "pw"\ntimeoutMs = 7\ntls.verifyHost = false\n')
    file.chmod(0o600)
    assert gather([], file, {}) == {
        "store.password": "pw",
        "store.timeoutMs": "7",
        "store.tls.verifyHost": "false",
    }


@pytest.mark.parametrize(
    "name,text",
    [
        ("o.toml", f'store.password = {CORE}"'),
        ("o.toml", f'store.password = ["{CORE}"]'),
        ("o.properties", CORE),
        ("o.properties", f"store.password = {CORE}"),  # which everybody may read
        ("o.properties", f"store.url = redis://me:{CORE}@h:1/0"),
        ("o.properties", f"store.url = redis://h:1/0?password={CORE}"),
        ("o.properties", f"Store.URL = me:{CORE}@h"),
        ("o.properties", f"admin.url = http://me:{CORE}@h"),
    ],
)
def test_a_file_that_cannot_be_taken_is_refused_without_its_text(
    name: str, text: str, tmp_path: Path
) -> None:
    file = tmp_path / name
    file.write_text(text)
    file.chmod(0o644)
    with pytest.raises(OptionError, match=rf"--options .*{name}") as caught:
        gather([], file, {})
    assert CORE not in "".join(traceback.format_exception(caught.value))


def test_a_file_without_a_secret_may_be_read_by_everybody(tmp_path: Path) -> None:
    file = tmp_path / "o.properties"
    file.write_text("store.path = /x\nservice.url = pulsar://h:6650\n")
    file.chmod(0o644)
    assert gather([], file, {}) == {"store.path": "/x", "service.url": "pulsar://h:6650"}
    file.write_text("STORE.url = redis://h:1/0\n")
    assert gather([], file, {}) == {"STORE.url": "redis://h:1/0"}
