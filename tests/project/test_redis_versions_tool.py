"""The tables of Redis servers say what came of each, and the page has what was run."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pulsar_txn_spark.store.redis import server
from tests.project.test_run_results import FAILED, PASSED
from tools import redis_versions
from tools.redis_versions import (
    BEGIN,
    FOLDERS_BEGIN,
    INTERLEAVINGS,
    JAR,
    PAGE,
    PARTS,
    READS,
    REFUSES,
    TESTS,
    main,
    name_of,
    opened,
)
from tools.versions import END


@pytest.fixture(autouse=True)
def _environment_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (server.BINARY_VARIABLE, server.OWNER_VARIABLE):
        monkeypatch.delenv(name, raising=False)  # which puts it back


def program(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_a_server_is_asked_for_its_product_and_version(tmp_path: Path) -> None:
    said = "echo 'Valkey server v=9.1.2 sha=00000000:0 malloc=jemalloc-5.3.1 bits=64'"
    assert name_of(program(tmp_path / "server", said)) == "Valkey 9.1.2"
    with pytest.raises(SystemExit, match="does not say its version"):
        name_of(program(tmp_path / "server", "echo 1.2"))


def test_each_part_runs_on_the_server_and_both_tables_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, str]] = []

    def runs(command: list[Any], env: dict[str, str] | None = None, **_: Any) -> Any:
        if command[-1] == "--version":
            return subprocess.CompletedProcess(command, 0, f"Redis server v={command[0].name} x")
        assert env is not None
        assert shutil.which("redis-server", path=env["PATH"]) == env[server.BINARY_VARIABLE]
        assert env["INTERLEAVINGS"] == INTERLEAVINGS
        started = Path(env[server.BINARY_VARIABLE]).resolve().name
        if command[0] == "mvn":
            reports = Path(command[-1].split("=")[1]) / "surefire-reports"
            reports.mkdir()
            (reports / "TEST-a.xml").write_text(f"<testsuite>{FAILED}</testsuite>")
            asked.append((started, JAR))
        else:
            [report] = [Path(word.split("=")[1]) for word in command if "junitxml" in word]
            report.write_text(f"<testsuite>{PASSED}</testsuite>")
            asked.extend((started, part) for part in TESTS if command[-1] == TESTS[part][-1])
        return subprocess.CompletedProcess(command, 1)

    servers = {name: program(tmp_path / name, "exit 1") for name in ("10.0.1", "9.0.2")}
    monkeypatch.setattr(subprocess, "run", runs)
    monkeypatch.setattr(
        redis_versions, "opened", lambda writer, reader: "reads" if writer == reader else "refuses"
    )
    page = tmp_path / "page.md"
    page.write_text(f"a\n{BEGIN}\nformer\n{END}\nb\n{FOLDERS_BEGIN}\nformer\n{END}\nc\n")
    results = ["--results", str(tmp_path / "results.json"), "--write", str(page)]
    named = [word for path in servers.values() for word in ("--server", str(path))]
    assert main([*results, *named]) == 1
    assert asked == [(name, part) for name in servers for part in PARTS]
    assert f"Redis 10.0.1, {JAR}: 2 of 3; not b" in capsys.readouterr().out
    text = page.read_text()
    lines = [line for line in text.splitlines() if line.startswith("| Redis")]
    assert lines == [
        f"| Redis {name} | {' | '.join(['2 passed'] * len(TESTS))} | 2 of 3; not b |"
        for name in ("9.0.2", "10.0.1")
    ] + [
        "| Redis 9.0.2 | Redis 9.0.2 | Redis 10.0.1 |",
        "| Redis 10.0.1 | Redis 10.0.1 | Redis 9.0.2 |",
    ]
    assert "former" not in text
    assert main([*results, *named, "--part", "Store"]) == 0


def test_a_server_that_loses_a_folder_of_another_one_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Path(server.find_server_binary())
    assert opened(own, own) == "reads"
    assert opened(own, program(tmp_path / "too-old", "exit 1")) == "refuses"
    elsewhere = program(tmp_path / "elsewhere", f'exec {own} "$@" --appendfilename other.aof')
    assert opened(own, elsewhere) == "loses"
    cuts = "rm -r appendonly*; exit 1"
    assert opened(own, program(tmp_path / "cuts", cuts)) == "damages"
    kept = tmp_path / "results.json"
    monkeypatch.setattr(redis_versions, "opened", lambda *_: "loses")
    assert not redis_versions.compare_folders({"Redis 1.0.0": own}, kept)


def test_the_page_has_servers_of_each_product_and_all_of_their_tests_passed() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for begin, parts in ((BEGIN, PARTS), (FOLDERS_BEGIN, (READS, REFUSES))):
        found = text.partition(begin)[2].partition(END)[0].strip()
        assert re.match(r"Run since 20\d\d-\d\d-\d\d on x86-64 Linux:", found)
        rows = [[c.strip() for c in line.strip("|").split("|")] for line in found.split("\n|")[1:]]
        head, _, *cells = rows
        assert head == ["Server", *parts]
        assert {row[0].split()[0] for row in cells} == {"Redis", "Valkey"}
        if parts == PARTS:
            for version, *outcomes in cells:
                assert all(re.fullmatch(r"\d+ passed|not run", one) for one in outcomes), version
