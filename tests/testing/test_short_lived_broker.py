"""A broker for tests does not optimize its code and shares its classes, any other does neither."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pulsar_txn_spark.testing import pulsar_server
from pulsar_txn_spark.testing.pulsar_server import (
    CACHE_VARIABLE,
    DEFAULT_VERSION,
    SHORT_LIVED_JVM,
    VERSION_VARIABLE,
    PulsarServer,
    short_lived_jvm,
)

ARCHIVE = "-XX:SharedArchiveFile=classes.jsa"
OTHER_VERSION = "4.2.4"


@pytest.fixture(autouse=True)
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Make archives of nothing; return the names of their folders."""
    jar, names = tmp_path / "a.jar", []
    jar.touch()

    def shared(
        folder: Path, _name: str, made_of: Sequence[str], _load: Callable[[Sequence[str]], None]
    ) -> tuple[str, ...]:
        assert any(str(jar) in part for part in made_of)
        names.append(folder.name)
        return (ARCHIVE,)

    monkeypatch.setattr(pulsar_server, "shared_classes", shared)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(pulsar_server, "find_java", lambda: "true")
    monkeypatch.setattr(pulsar_server, "resolve_classpath", lambda _version: str(jar))
    monkeypatch.delenv(VERSION_VARIABLE, raising=False)
    short_lived_jvm.cache_clear()
    yield names
    short_lived_jvm.cache_clear()


@pytest.mark.parametrize("settings", [{}, {"short_lived": True}])
def test_only_a_short_lived_broker_shares_classes_and_runs_without_optimized_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    monkeypatch.setattr(PulsarServer, "_launch", lambda _: None)
    monkeypatch.setattr(PulsarServer, "_await_ready", lambda _: None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with PulsarServer(**settings) as server:
        arguments = (server.log_path.parent / "java.args").read_text()
    expected = (*SHORT_LIVED_JVM, ARCHIVE)
    assert [option in arguments for option in expected] == [bool(settings)] * len(expected)


def test_classes_are_kept_of_the_release_alone_that_the_tests_run_against(
    made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert short_lived_jvm(OTHER_VERSION) == SHORT_LIVED_JVM
    assert short_lived_jvm() == (*SHORT_LIVED_JVM, ARCHIVE)
    monkeypatch.setenv(VERSION_VARIABLE, OTHER_VERSION)
    short_lived_jvm.cache_clear()
    assert short_lived_jvm() == SHORT_LIVED_JVM
    assert short_lived_jvm(OTHER_VERSION) == (*SHORT_LIVED_JVM, ARCHIVE)
    assert made == [f"pulsar-{version}" for version in (DEFAULT_VERSION, OTHER_VERSION)]
