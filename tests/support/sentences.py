"""Sentences of pages, docstrings, comments and messages, and how long they are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from inspect import cleandoc
from itertools import groupby

WORDS_IN_A_SENTENCE = 25
_ITEM = re.compile(r"[-*] |\d+\. |@\w|->|KEYS|ARGV|[{|<]|\S+(, \S+)*:?  +\S")
_CODE = re.compile(r"``.+?``|`[^`]+`|\{@code [^}]*\}", re.DOTALL)
_TABLE = re.compile(r"^ *=+( +=+)+$.*?^ *=+( +=+)+$\n.*?^ *=+( +=+)+$", re.DOTALL | re.MULTILINE)
_END = re.compile(r"(?<=[.!?])[)\]*\"']*\s+")


def words(sentence: str) -> int:
    """Return how many words a sentence has."""
    return sum(any(letter.isalnum() for letter in word) for word in sentence.split())


def split(text: str) -> list[str]:
    """Return the sentences of a paragraph; code within one counts as a word."""
    parts = _END.split(" ".join(_CODE.sub("code", text).split()))
    return [sentence for sentence in parts if sentence]


def long_sentences(text: str) -> list[str]:
    """Return the sentences of a paragraph that are too long, each with its number of words."""
    return [f"{words(s)}: {s}" for s in split(text) if words(s) > WORDS_IN_A_SENTENCE]


def paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a docstring or comment, without tables, code and parameters.

    One ends at an empty line, at an item of a list, and where the indentation changes.
    """
    lines: list[str] = []
    indentation = 0
    for line in _TABLE.sub("", text).splitlines():
        stripped = line.strip()
        own = len(line) - len(line.lstrip())
        is_name = re.match(r"[\w, *]+ : ", stripped) or re.fullmatch(r"-+", stripped)
        if not stripped or is_name or _ITEM.match(stripped) or own != indentation:
            yield " ".join(lines)
            lines = []
        indentation = own
        if stripped and not is_name and not stripped.startswith(">>>"):
            lines.append(stripped)
    yield " ".join(lines)


def of_python(source: str) -> Iterator[str]:
    """Yield the paragraphs of docstrings and comments of a module."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield from paragraphs(re.sub(r"::\n\n(    .*\n|\n)+", "\n\n", cleandoc(text)))
    yield from of_comments(source, "#")


def of_comments(source: str, mark: str) -> Iterator[str]:
    """Yield the paragraphs of comments that stand on lines of their own."""
    own = [line.strip() for line in source.splitlines()]
    for is_comment, lines in groupby(own, lambda line: line.startswith(mark)):
        if is_comment:
            text = "\n".join(line.removeprefix(mark) for line in lines)
            yield from paragraphs(re.sub(r"^ ", "", text, flags=re.MULTILINE))


def of_java(source: str) -> Iterator[str]:
    """Yield the paragraphs of the comments of a class."""
    for text in re.findall(r"/\*\*?(.*?)\*/", source, re.DOTALL):
        yield from paragraphs(re.sub(r"^\s*\* ?", "", text, flags=re.MULTILINE))
    yield from of_comments(source, "//")


def messages(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of what a module says: a value in it counts as a word."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    templates = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    inner = {id(part) for node in templates for part in node.values}
    for node in ast.walk(tree):
        if id(node) in docstrings or id(node) in inner:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = (p.value if isinstance(p, ast.Constant) else "value" for p in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
