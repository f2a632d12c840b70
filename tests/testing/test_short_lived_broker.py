"""A broker for tests does not optimize its code, any other does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pulsar_txn_spark.testing.pulsar_server import SHORT_LIVED_JVM, PulsarServer


@pytest.mark.parametrize("settings", [{}, {"short_lived": True}])
def test_only_a_short_lived_broker_runs_without_optimized_code(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    server: Any = PulsarServer(**settings)
    server._folder, server._ports = tmp_path, [1, 2, 3]
    server._write_files("java", "a.jar")
    arguments = (tmp_path / "java.args").read_text()
    assert [option in arguments for option in SHORT_LIVED_JVM] == [bool(settings)] * 2
