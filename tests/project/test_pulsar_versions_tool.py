"""The table of Pulsar's releases says what came of each, and the page has what was run."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pulsar_txn_spark.testing.pulsar_server import DEFAULT_VERSION, VERSION_VARIABLE
from tests.project.test_run_results import FAILED, PASSED
from tools.pulsar_versions import BEGIN, PAGE, PARTS, RELEASES, main, table
from tools.run_results import ROOT
from tools.versions import END


def test_each_part_runs_on_the_release_and_the_table_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def pytest_of(command: list[str], env: dict[str, str], **_: Any) -> Any:
        asked.append((env[VERSION_VARIABLE], command[-1]))
        (report,) = [Path(word.split("=")[1]) for word in command if "junitxml" in word]
        if command[-1] == PARTS["Coordinator"]:
            report.write_text(f"<testsuite>{FAILED}</testsuite>")
        elif len(asked) == 1:
            report.write_text(f"<testsuite>{PASSED}</testsuite>")
        return subprocess.CompletedProcess(command, 4)

    monkeypatch.setattr(subprocess, "run", pytest_of)
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{BEGIN}\n\nold\n\n{END}\n\nafter {END}\n")
    results = ["--results", str(tmp_path / "results.json")]
    assert main([*results, "--release", "4.2.4", "--write", str(page)]) == 1
    assert asked == [("4.2.4", path) for path in PARTS.values()]
    assert "4.2.4, Coordinator: 2 of 3; not b" in capsys.readouterr().out
    text = page.read_text()
    assert "| 4.2.4 | 2 passed | 2 of 3; not b |" in text
    assert f"| {DEFAULT_VERSION} | not run | not run |" in text
    assert text.startswith("before\n")
    assert text.endswith(f"\n\nafter {END}\n")
    assert "old" not in text
    assert main([*results, "--release", "4.2.4", "--part", "Gated segments"]) == 1
    assert "Gated segments: no result (exit code 4)" in capsys.readouterr().out


def test_the_page_has_each_release_and_all_of_its_tests_passed() -> None:
    text = PAGE.read_text(encoding="utf-8")
    found = text.partition(BEGIN)[2].partition(END)[0].strip()
    assert re.match(r"Run since 20\d\d-\d\d-\d\d with Java 17:", found)
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in found.split("\n|")[1:]]
    head, _, *cells = rows
    assert head == ["Pulsar", *PARTS]
    assert [row[0] for row in cells] == list(RELEASES)
    for release, *outcomes in cells:
        assert all(re.fullmatch(r"\d+ passed", one) for one in outcomes), release


def test_the_table_has_a_place_for_each_part() -> None:
    assert table({}).startswith("No result is recorded yet")
    assert all((ROOT / path).exists() for path in PARTS.values())
