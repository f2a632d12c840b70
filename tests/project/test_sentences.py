"""Docstrings, comments and messages have short sentences, as the pages have (test_docs.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sentences import long_sentences, messages, of_comments, of_java, of_python

ROOT = Path(__file__).parents[2]
FOLDERS = ("pulsar_txn_spark", "demo", "benchmarks", "tools", "examples", "jvm_shim/src/main")
READERS = {
    ".py": of_python,
    ".lua": lambda source: of_comments(source, "--"),
    ".java": of_java,
}
FILES = sorted(
    file
    for folder in FOLDERS
    for file in (ROOT / folder).rglob("*")
    if file.suffix in READERS and "_pb2" not in file.name
)
MODULES = sorted(
    file for file in FILES if file.suffix == ".py" and "pulsar_txn_spark" in file.parts
)
NO_PROSE = {
    "pulsar_txn_spark/cli/format_lookup.py",
    "pulsar_txn_spark/metrics.py",
    "pulsar_txn_spark/store/redis/server.py",
    "pulsar_txn_spark/testing/pulsar_server.py",
}
"""They have a program, the HELP of metrics, which stays as it is, and configurations in texts."""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_no_sentence_of_a_comment_is_long(file: Path) -> None:
    paragraphs = READERS[file.suffix](file.read_text(encoding="utf-8"))
    assert [long for paragraph in paragraphs for long in long_sentences(paragraph)] == []


@pytest.mark.parametrize("file", MODULES, ids=name_of)
def test_no_sentence_of_a_message_is_long(file: Path) -> None:
    found = [
        f"{line}: {long}"
        for line, text in messages(file.read_text(encoding="utf-8"))
        if name_of(file) not in NO_PROSE
        for long in long_sentences(text)
    ]
    assert found == []


LONG = " ".join(["word"] * 26)


def test_a_long_sentence_is_noticed() -> None:
    assert long_sentences(f"Short. {LONG}.") == [f"26: {LONG}."]
    for source in (f'"""{LONG}."""\n', f"# {LONG}.\n", f"# Short:\n# {LONG}.\n"):
        assert sum(bool(long_sentences(text)) for text in of_python(source)) == 1
    assert [bool(long_sentences(text)) for _, text in messages(f'raise A(f"{{b}} {LONG}")')] == [
        True
    ]
    java = f"/**\n * {LONG}.\n *\n * @param a is short\n */\n// {LONG}.\n"
    assert sum(bool(long_sentences(text)) for text in of_java(java)) == 2


def test_what_is_no_sentence_counts_for_none() -> None:
    half = " ".join(["word"] * 13)
    for source in (
        f'"""{half}\n\n    {half}\n"""\n',
        f'"""{half}:\n\n- {half}\n- {half}\n"""\n',
        f'"""{half}\n\nParameters\n----------\na : int\n    {half}\nb : int\n    {half}\n"""\n',
        f'"""Head.\n\n==  ==\n{half}  {half}\n==  ==\n{half}  {half}\n==  ==\n"""\n',
        f'"""Head::\n\n    {LONG}\n\nTail.\n"""\n',
    ):
        assert [text for text in of_python(source) if long_sentences(text)] == []
