"""docs/job.md has every key, and each of its snippets is a job that is in order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pulsar_txn_spark.backports import tomllib
from pulsar_txn_spark.job import load
from pulsar_txn_spark.job.keys import SECTIONS
from tools.job_page import main, page

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "job.md"
TEXT = PAGE.read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```toml\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
REST = {
    "job": '[job]\nname = "test"\ncheckpoint = "c"\n',
    "source": '[[source]]\nname = "flights"\ntopic = "flights"\n',
    "sink": '[[sink]]\ntopic = "out"\n',
}


def whole(snippet: str) -> str:
    """Return a snippet with the sections that it leaves out."""
    missing = [text for name, text in REST.items() if name not in tomllib.loads(snippet)]
    return "\n".join([*missing, snippet])


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_each_snippet_is_in_order(snippet: str, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(whole(snippet))
    (tmp_path / "flights.avsc").write_text(
        '{"type": "record", "name": "F", "fields": [{"name": "id", "type": "long"}]}'
    )
    load(tmp_path / "job.toml", environment={"STORE_PASSWORD": "geheim"})


def test_the_example_is_in_order() -> None:
    job = load(ROOT / "examples" / "job.toml", environment={"DATA": "/elsewhere"})
    assert job.options == {"store.path": "/elsewhere/store"}
    assert "[job.toml](job.toml)" in (ROOT / "examples" / "README.md").read_text(encoding="utf-8")


def test_the_tables_of_keys_are_up_to_date(tmp_path: Path) -> None:
    assert page(TEXT) == TEXT, "run: python -m tools.job_page docs/job.md"
    for section in SECTIONS:
        assert f"### {section.title}\n" in TEXT
        for key in section.keys:
            assert key.help
            assert f"| `{key.name}` |" in TEXT
    copy = tmp_path / "job.md"
    copy.write_text("<!-- keys -->\nwhat was there\n<!-- end of keys -->\n")
    assert main([str(copy)]) == 0
    assert "what was there" not in copy.read_text(encoding="utf-8")
