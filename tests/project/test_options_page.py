from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_txn_spark.backends.pulsar.passthrough import PASS_THROUGH
from pulsar_txn_spark.options import documented
from tools.options_page import main, page

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_of_options_is_up_to_date() -> None:
    written = (DOCS / "options.md").read_text(encoding="utf-8")
    assert written == page(), "run: python -m tools.options_page docs/options.md"


def test_every_option_has_one_row_and_an_explanation() -> None:
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    for option in documented():
        assert option.help
        assert sum(row.startswith(f"| `{option.key}` |") for row in rows) == 1


def test_every_option_that_is_passed_on_to_pulsar_is_named() -> None:
    rows = page().splitlines()
    for kind, options in PASS_THROUGH.items():
        (row,) = [line for line in rows if line.startswith(f"| `pulsar.{kind}.*` |")]
        for option in options:
            assert f"`{option.name}`" in row


def test_an_option_that_excludes_another_is_excluded_by_it() -> None:
    rows = {line.split("`")[1]: line for line in page().splitlines() if line.startswith("| `")}
    for option in documented():
        for other in option.conflicts:
            assert "Not together with" in rows[option.key]
            assert f"`{option.key}`" in rows[other].partition("Not together with")[2]


def test_the_page_is_written_to_a_file_or_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "options.md"
    assert main([str(file)]) == 0
    assert file.read_text(encoding="utf-8") == page()
    assert main([]) == 0
    assert capsys.readouterr().out == page()
