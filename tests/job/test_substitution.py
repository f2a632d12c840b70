from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_txn_spark.job.substitution import Substitution, SubstitutionError, escaped, literal


@pytest.fixture
def substitution(tmp_path: Path) -> Substitution:
    (tmp_path / "token").write_text("from a file\n")
    return Substitution({"NAME": "value", "EMPTY": ""}, tmp_path)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("a ${NAME} b ${env:NAME}", "a value b value"),
        ("${OTHER:-default}", "default"),
        ("${env:OTHER:-redis://host:1}", "redis://host:1"),
        ("${EMPTY:-default}", "default"),
        ("${OTHER:-}", ""),
        ("${EMPTY}", ""),
        ("${file:token}", "from a file"),
        ("${file:none:-default}", "default"),
        ("$${NAME} costs $5", "${NAME} costs $5"),
        ("'^a$' { }", "'^a$' { }"),
    ],
)
def test_references_are_replaced(substitution: Substitution, text: str, expected: str) -> None:
    assert substitution.replace(text) == expected


@pytest.mark.parametrize(
    "text, expected",
    [
        ("${OTHER}", "OTHER is not set"),
        ("${file:none}", "none cannot be read: No such file"),
        ("${spark.app.id}", r"write \$\$\{...\}"),
        ("${}", "expected"),
    ],
)
def test_what_cannot_be_replaced_says_why(
    substitution: Substitution, text: str, expected: str
) -> None:
    with pytest.raises(SubstitutionError, match=expected):
        substitution.replace(text)


def test_a_secret_in_a_file_that_everybody_may_read_is_refused(
    substitution: Substitution, tmp_path: Path
) -> None:
    (tmp_path / "token").chmod(0o644)
    with pytest.raises(SubstitutionError, match="chmod 600"):
        substitution.replace("${file:token}", secret=True)
    (tmp_path / "token").chmod(0o640)
    assert substitution.replace("${file:token}", secret=True) == "from a file"


def test_a_default_counts_as_what_stands_in_the_text() -> None:
    assert literal("a${NAME}b${OTHER:-secret}") == "absecret"
    assert literal("$${NAME}") == "$${NAME}"


def test_an_escaped_text_comes_out_as_it_was(substitution: Substitution) -> None:
    for text in ("${NAME}", "$${NAME}", "plain", "$"):
        assert substitution.replace(escaped(text)) == text
