"""The documents name nothing that is not there, lose no page, and keep their sentences short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pulsar_txn_spark import errors
from pulsar_txn_spark.steps import Step
from tests.support.sentences import WORDS_IN_A_SENTENCE, words

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("**/*.md"))
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    ROOT / "examples" / "README.md",
    *PAGES,
]

EXAMPLE_LINES = 6
README_BYTES = 7 * 1024


def name_of(path: Path) -> str:
    """Return a document's path below the project's root."""
    return str(path.relative_to(ROOT))


def anchor_of(heading: str) -> str:
    """Return the anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def sentences(markdown: str) -> list[str]:
    """Return the sentences of a page: without code, tables, headings and the targets of links.

    Code within a sentence counts as one word. A list item, a paragraph and a sentence end where
    Markdown says so, with a full stop or without one.
    """
    text = re.sub(r"^ *```.*?^ *```$", "\n", markdown, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^ *(\||#).*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"``.+?``|`[^`]+`", "code", text, flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    text = re.sub(r"^ *([-*]|\d+\.) ", "\n\n", text, flags=re.MULTILINE)
    blocks = (" ".join(block.split()) for block in re.split(r"\n\s*\n", text))
    found = [part for block in blocks for part in re.split(r"(?<=[.!?])[)\]*]*\s+", block)]
    return [sentence for sentence in found if sentence]


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
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


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_file_that_a_page_names_is_there(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    places = [ROOT, ROOT / "pulsar_txn_spark"]
    for name in set(re.findall(r"`([\w./-]+\.(?:py|lua|proto|conf))`", text)):
        if "/" in name:
            assert any((place / name).is_file() for place in places), name
        else:
            assert any(next(place.rglob(name), None) for place in places[1:]), name


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_snippet_of_python_compiles(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for code in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        compile(code, name_of(document), "exec")


def test_the_index_has_every_page() -> None:
    text = (DOCS / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Use", "Operate", "Internals"]
    links = re.findall(r"\]\(([^)#\s]+)\)", text)
    linked = [target for target in links if not target.startswith("../")]
    pages = [str(page.relative_to(DOCS)) for page in PAGES if page != DOCS / "README.md"]
    assert sorted(linked) == sorted(pages)


def test_the_readme_is_short_and_begins_with_an_example() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.encode()) <= README_BYTES
    title, introduction, example, *_ = text.split("\n\n")
    assert title == "# pulsar_txn_spark"
    assert len(introduction.splitlines()) == len(("source and sink", "one transaction", "where"))
    assert example.startswith("```python")
    assert 'format("pulsar_txn")' in example
    assert len(example.splitlines()) <= EXAMPLE_LINES + len(("```python", "```"))


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_no_sentence_is_long(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    long = [f"{words(one)}: {one}" for one in sentences(text) if words(one) > WORDS_IN_A_SENTENCE]
    assert long == []


def test_sentences_are_told_apart() -> None:
    page = """# A heading. That does not count

A `code with words` and a [link](target.md) here. Version 4.0 ends
here. (In brackets.) Last

- one item
  on two lines
- **another.** And more
1. a number

   its second paragraph

| a | table. Here |
```python
code. Here
```
"""
    assert sentences(page) == [
        "A code and a [link] here.",
        "Version 4.0 ends here.",
        "(In brackets.",
        "Last",
        "one item on two lines",
        "**another.",
        "And more",
        "a number",
        "its second paragraph",
    ]
    assert words("A code - and a [link] here.") == len(("A", "code", "and", "a", "link", "here"))


def test_each_item_of_the_changelog_is_one_sentence() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    kinds = re.findall(r"^### (.*)$", text, re.MULTILINE)
    assert kinds == ["Added", "Changed", "Fixed", "Known limitations"]
    items = re.findall(r"^- .*(?:\n  .*)*", text, re.MULTILINE)
    assert items
    assert [item for item in items if len(sentences(item)) != 1 or not item.endswith(".")] == []


def test_every_make_target_that_a_page_names_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    pages = "\n".join(page.read_text(encoding="utf-8") for page in DOCUMENTS)
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", pages, re.MULTILINE))
    assert named >= {"test", "demo", "lint"}
    assert named <= targets


def test_every_test_that_the_protocol_names_is_there() -> None:
    text = (DOCS / "protocol.md").read_text(encoding="utf-8")
    tests = "\n".join(
        file.read_text(encoding="utf-8")
        for folder in ("tests", "integration")
        for file in (ROOT / folder).glob("**/*.py")
    )
    named = set(re.findall(r"`(test_\w+)`", text))
    assert named
    assert [name for name in sorted(named) if f"def {name}(" not in tests] == []


def test_the_protocol_explains_every_step() -> None:
    protocol = (DOCS / "protocol.md").read_text(encoding="utf-8")
    failures = (DOCS / "failure-scenarios.md").read_text(encoding="utf-8")
    for number, step in enumerate(Step, 1):
        assert f"\n{number}. **`{step}`**." in protocol
        assert f"| {number} `{step}`" in failures, "no row in the table of crash points"


def test_every_error_has_its_symptom_cause_and_remedy() -> None:
    text = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    table = text.partition("\n## Errors\n")[2]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    code = "\n".join(
        file.read_text(encoding="utf-8")
        for file in (ROOT / "pulsar_txn_spark").glob("**/*.py")
        if file.name != "errors.py"
    )
    known = {name for name, kind in vars(errors).items() if isinstance(kind, type)}
    raised = {f"`{name}`" for name in known if re.search(rf"\b{name}\(", code)}
    assert sorted(cells[0] for cells in rows) == sorted(raised)
    assert [name for name in known if f"{name}`" not in text] == []
    for cells in rows:
        assert len(cells) == len(("error", "symptom", "cause", "remedy"))
        assert all(cells)
