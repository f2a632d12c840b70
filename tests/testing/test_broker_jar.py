"""When the broker's jar is built, and when its tests run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pulsar_txn_spark.store.redis.server import BINARY_VARIABLE, find_server_binary
from pulsar_txn_spark.testing import broker_jar

BUILD, TEST = "package", "test"


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace Maven; return the last phase of each of its runs."""
    found: list[str] = []

    def maven(*arguments: str, **_: str) -> None:
        found.append([word for word in arguments if not word.startswith("-")][-1])
        (tmp_path / broker_jar.JAR_NAME).touch()

    monkeypatch.setattr(broker_jar, "_FOLDER", tmp_path)
    monkeypatch.setattr(broker_jar, "_TARGET", tmp_path)
    monkeypatch.setattr(broker_jar, "_maven", maven)
    return found


def change_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_jar, "_digest", lambda: "other sources")


def test_a_broker_does_not_wait_for_the_jars_tests(steps: list[str]) -> None:
    for _ in range(2):
        assert broker_jar.broker_jar().exists()
    assert steps == [BUILD]


def test_a_jar_is_built_and_tested_once(steps: list[str]) -> None:
    for _ in range(2):
        assert broker_jar.verified_broker_jar() == broker_jar.broker_jar()
    assert steps == [BUILD, TEST]


@pytest.mark.usefixtures("steps")
def test_the_jars_tests_start_the_server_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = tmp_path / "redis-server"
    named.symlink_to(find_server_binary())
    monkeypatch.setenv(BINARY_VARIABLE, str(named))
    broker_jar.broker_jar()
    paths: list[str] = []
    monkeypatch.setattr(broker_jar, "_maven", lambda *_, **names: paths.append(names["PATH"]))
    broker_jar.verified_broker_jar()
    assert [shutil.which("redis-server", path=path) for path in paths] == [str(named)]


def test_other_sources_are_built_and_tested_anew(
    steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker_jar.verified_broker_jar()
    change_sources(monkeypatch)
    broker_jar.verified_broker_jar()
    assert steps == [BUILD, TEST] * 2


def test_what_failed_is_done_again(steps: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: str, **__: str) -> None:
        raise broker_jar.BrokerJarError("a test failed")

    broker_jar.broker_jar()
    with monkeypatch.context() as broken:
        broken.setattr(broker_jar, "_maven", fail)
        with pytest.raises(broker_jar.BrokerJarError):
            broker_jar.verified_broker_jar()
    broker_jar.verified_broker_jar()
    assert steps == [BUILD, TEST]
