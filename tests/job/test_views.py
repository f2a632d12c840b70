"""What Spark's analyzer says becomes one line, at the place of the file that it is about."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException

from pulsar_txn_spark.errors import SchemaError
from pulsar_txn_spark.job.problems import Place
from pulsar_txn_spark.job.views import function_of, problem_of

PLACE = Place("job.toml", 19)
UNRESOLVED = (
    "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name "
    "`dealy` cannot be resolved. Did you mean one of the following? [`delay`, `id`]. SQLSTATE: "
    "42703; line 3 pos 6;\n'Project ['id]\n+- 'Filter ('dealy > 15)\n   +- ~SubqueryAlias flights"
)
UNPARSED = (
    "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'flights'. SQLSTATE: 42601 (line 2, pos 5)\n\n"
    "== SQL ==\nSELECT id\nFORM flights\n-----^^^\n"
)


class Captured(AnalysisException):
    """As PySpark makes it of Java's exception: the message has no position, the text has."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._text = text

    def getMessage(self) -> str:  # noqa: N802 - as PySpark's
        return self._text.partition("; line ")[0]

    def __str__(self) -> str:
        return self._text


def test_the_position_within_a_statement_becomes_a_line_of_the_file() -> None:
    problem = problem_of(Captured(UNRESOLVED), PLACE, "[[step]] 's'", ("flights", "s"))
    assert str(problem) == (
        "job.toml:21: [[step]] 's': [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or "
        "function parameter with name `dealy` cannot be resolved. Did you mean one of the "
        "following? [`delay`, `id`]."
    )


def test_a_syntax_error_is_shown_without_the_statement() -> None:
    problem = problem_of(Captured(UNPARSED), PLACE, "[[step]] 's'", ())
    assert problem.place == Place("job.toml", 20)
    assert problem.text.startswith("[PARSE_SYNTAX_ERROR] Syntax error at or near 'flights'.")
    assert "SELECT" not in problem.text
    assert "\n" not in problem.text


def test_a_missing_table_is_answered_with_the_views() -> None:
    error = AnalysisException("[TABLE_OR_VIEW_NOT_FOUND] The table or view `a` cannot be found.")
    problem = problem_of(error, Place("--set step.s.sql"), "", ("flights", "s"))
    assert problem.text.endswith("The job has the views flights, s; another table is a [[source]]")
    assert problem.place.line is None


@pytest.mark.parametrize(
    "name, expected",
    [
        ("nowhere.at_all:f", "Put it beside the job file"),
        ("json:nothing", "the module json has no 'nothing'"),
        ("json:__name__", "is str, expected a function"),
    ],
)
def test_a_function_that_is_not_there_is_named(name: str, expected: str) -> None:
    with pytest.raises(SchemaError, match=expected):
        function_of(name)


def test_a_function_is_found() -> None:
    assert function_of("json:dumps")([1]) == "[1]"
