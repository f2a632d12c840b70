"""Pulsar's Java client, with transactions of its own, in a JVM."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Self

from pulsar_txn_spark.store.records import TxnId
from pulsar_txn_spark.testing.pulsar_server import (
    find_java,
    resolve_classpath,
    short_lived_jvm,
)

HOUR_MS = 3_600_000
PROGRAMS = Path(__file__).parents[1] / "java"


def java_program(name: str, *arguments: str) -> list[str]:
    """Return the command of a program with Pulsar's own client, which Java compiles by itself."""
    jvm = [find_java(), *short_lived_jvm(), "-Xmx256m", "-cp", resolve_classpath()]
    return [*jvm, str(PROGRAMS / f"{name}.java"), *arguments]


class JavaClient:
    """Pulsar's own client, in a JVM that ends with this object."""

    def __init__(self, service_url: str) -> None:
        self._jvm = subprocess.Popen(
            java_program("Coordinated", service_url),
            stdin=subprocess.PIPE,  # closed when this process dies, which ends the JVM
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __call__(self, *words: object) -> str:
        """Execute a command; return its answer, an error's class and message included."""
        assert self._jvm.stdin is not None
        assert self._jvm.stdout is not None
        self._jvm.stdin.write(" ".join(map(str, words)) + "\n")
        self._jvm.stdin.flush()
        for line in self._jvm.stdout:
            if line.startswith("> "):
                return line[2:].strip()
        raise AssertionError(f"the JVM ended at {words!r}")

    def begin(self, name: str, timeout_ms: int = HOUR_MS) -> TxnId:
        """Open a transaction; return its id as this package has it."""
        most, least = self("begin", name, timeout_ms).strip("()").split(",")
        return TxnId(int(most), int(least))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._jvm.communicate(timeout=30)
