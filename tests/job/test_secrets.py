"""Secrets come from the environment or from files, and are shown nowhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pulsar_txn_spark.job import Job
from pulsar_txn_spark.job.secrets import Secrets, holds_secret, names_secret

Loader = Callable[..., Job]
Complaints = Callable[..., list[str]]
TOKEN = "pulsar.client.authParams"


@pytest.mark.parametrize(
    "line, named",
    [
        ('store.password = "hunter2"', "'store.password'"),
        ('store.password = "${NAME:-hunter2}"', "'store.password'"),
        ('store.url = "redis://:hunter2@host"', "'store.url'"),
        ('store.url = "redis://me:hunter2@host"', "'store.url'"),
        ('store.url = "redis://host?password=hunter2"', "'store.url'"),
        ('admin.url = "http://me:hunter2@host"', "'admin.url'"),
        (f'{TOKEN} = "token:hunter2"', f"'{TOKEN}'"),
    ],
)
def test_a_secret_in_the_file_is_refused_and_not_shown(
    complaints: Complaints, line: str, named: str
) -> None:
    lines = complaints(('store.path = "/store"', line))
    assert all("hunter2" not in text for text in lines)
    [refusal] = [text for text in lines if "${env:NAME}" in text]
    assert refusal.startswith(f"job.toml:6: [options]: {named} has a secret in it")


@pytest.mark.parametrize(
    "text",
    [
        '[spark]\nhadoop.fs.s3a.secret.key = "hunter2"\n',
        '[[source]]\nname = "j"\nformat = "jdbc"\noptions = { password = "hunter2" }\n',
        '[[source]]\nname = "j"\nformat = "jdbc"\noptions.url = "jdbc:x://h/d?user=a&password=hunter2"\n',
        '[[sink]]\nformat = "jdbc"\noptions = { authToken = "hunter2" }\n',
    ],
)
def test_secrets_of_spark_and_of_other_formats_are_refused_too(
    complaints: Complaints, text: str
) -> None:
    [line] = complaints(("[options]", f"{text}\n[options]"))
    assert "has a secret in it" in line
    assert "hunter2" not in line


def test_secrets_from_the_environment_and_from_files_are_taken(
    loader: Loader, tmp_path: Path
) -> None:
    (tmp_path / "password").write_text("geheim1\n")
    (tmp_path / "password").chmod(0o600)
    job = loader(
        (
            'store.path = "/store"',
            'store.url = "redis://me:${env:PASSWORD}@host"\nstore.password = "${file:password}"',
        ),
        environment={"PASSWORD": "hunter2"},
    )
    assert job.options == {
        "store.url": "redis://me:hunter2@host",
        "store.password": "geheim1",
    }
    shown = job.secrets.hidden("a hunter2 b geheim1 c redis://me:hunter2@host")
    assert shown == "a *** b *** c ***"
    assert "hunter2" not in repr(job.secrets)


def test_a_problem_shows_no_content_of_a_file(complaints: Complaints, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("hunter2")
    [line] = complaints(("[job]", '[job]\ntrigger = "${file:password}"'))
    assert "'trigger' cannot be '***'" in line


def test_a_secret_of_an_overriding_variable_is_taken(loader: Loader) -> None:
    job = loader(environment={"PULSAR_TXN__OPTIONS__STORE_PASSWORD": "hunter2"})
    assert job.options["store.password"] == "hunter2"
    assert job.secrets.hidden("hunter2") == "***"


def test_a_secret_among_the_arguments_is_refused(complaints: Complaints) -> None:
    [line] = complaints(overrides=["options.store.password=hunter2"])
    assert line.startswith("--set options.store.password: [options]: 'store.password' has a secret")
    assert "hunter2" not in line


def test_addresses_without_a_password_are_no_secrets(loader: Loader) -> None:
    job = loader(('store.path = "/store"', 'store.url = "redis://host:6379/0"'))
    assert job.options == {"store.url": "redis://host:6379/0"}
    assert job.secrets.hidden("redis://host:6379/0") == "redis://host:6379/0"


def test_what_a_key_says_of_its_value() -> None:
    assert names_secret("spark.hadoop.fs.s3a.secret.key")
    assert names_secret("password")
    assert not names_secret("spark.kubernetes.authenticate.driver.oauthTokenFile")
    assert not names_secret("spark.hadoop.fs.s3a.aws.credentials.provider")
    assert holds_secret("store.password", "x")
    assert not holds_secret("store.password", "")
    assert not holds_secret("topic", "x")
    assert holds_secret("anything", "ftp://a:b@c")


def test_short_values_are_not_looked_for_in_texts() -> None:
    secrets = Secrets()
    secrets.add("a")
    secrets.add("line one\nline two")
    assert secrets.hidden("a line two") == "a ***"
