"""What is too old is refused, and the message says what is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pulsar_txn_spark
from pulsar_txn_spark import environment
from pulsar_txn_spark.errors import EnvironmentTooOldError


def java_home(folder: Path, version: str) -> str:
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n")
    java.chmod(0o755)
    return str(folder)


@pytest.mark.parametrize("version, shown", [("1.8.0_392", "Java 8"), ("11.0.22", "Java 11")])
def test_a_java_that_is_too_old_is_refused_with_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, shown: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", java_home(tmp_path, version))
    with pytest.raises(EnvironmentTooOldError, match=f"{shown}.* needs 17"):
        environment.require_java()


@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea"])
def test_a_java_of_17_or_newer_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", java_home(tmp_path, version))
    environment.require_java()


def test_no_java_at_all_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(os.environ, "PATH", str(tmp_path))
    with pytest.raises(EnvironmentTooOldError, match=r"no Java found.*JAVA_HOME is not set"):
        environment.require_java()


@pytest.mark.parametrize("found", ["3.3.0", "3.5.9"])
def test_a_pyspark_that_is_too_old_is_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    monkeypatch.setattr(environment, "version", lambda _: found)
    with pytest.raises(EnvironmentTooOldError, match=r"pip install 'pyspark>=4'"):
        environment.require_python_and_pyspark()


def test_a_foreach_batch_sink_on_a_pyspark_that_is_too_old_is_refused_before_it_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(environment, "version", lambda _: "3.5.9")
    for name in ("TransactionalSink", "transactional", "BatchTransaction"):
        with pytest.raises(EnvironmentTooOldError, match=r"3\.5\.9 is too old"):
            getattr(pulsar_txn_spark, name)


def test_the_pyspark_that_is_installed_is_taken() -> None:
    environment.require_python_and_pyspark()


def test_spark_finds_the_format_without_loading_a_store_or_arrow() -> None:
    """In each session a process of its own does nothing but look for data sources."""
    code = (
        "import sys, pyspark_pulsar_txn\n"
        "print(pyspark_pulsar_txn.DefaultSource.name())\n"
        "print(sorted({'redis', 'pyarrow', 'google.protobuf', 'pulsar'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split("\n")[:2] == ["pulsar_txn", "[]"]


def test_every_public_name_is_there_when_it_is_asked_for() -> None:
    assert set(pulsar_txn_spark.__all__) <= set(dir(pulsar_txn_spark))
    for name in pulsar_txn_spark.__all__:
        assert getattr(pulsar_txn_spark, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'create_topics'"):
        _ = pulsar_txn_spark.create_topics
