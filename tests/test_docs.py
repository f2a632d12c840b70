"""The documents name nothing that is not there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pulsar_txn_spark import errors
from pulsar_txn_spark.steps import Step

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def anchor_of(heading: str) -> str:
    """Return the anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        found = (document.parent / path).resolve() if path else document
        assert found.exists(), f"{document.name}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", found.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in map(anchor_of, headings), f"{document.name}: {target}"


def test_every_test_that_the_protocol_names_is_there() -> None:
    text = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    tests = "\n".join(
        file.read_text(encoding="utf-8")
        for folder in ("tests", "integration")
        for file in (ROOT / folder).glob("**/*.py")
    )
    named = set(re.findall(r"`(test_\w+)`", text))
    assert named
    assert [name for name in sorted(named) if f"def {name}(" not in tests] == []


def test_the_protocol_explains_every_step() -> None:
    text = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    for number, step in enumerate(Step, 1):
        assert f"\n{number}. **`{step}`**." in text
        assert f"| {number} `{step}`" in text, "no row in the table of crash points"


def test_every_error_says_what_to_do_about_it() -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    for name, kind in vars(errors).items():
        # Those that others are derived from are not raised themselves.
        if isinstance(kind, type) and not kind.__subclasses__():
            assert f"`{name}`" in text, name
