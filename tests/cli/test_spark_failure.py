"""A job that failed says why, and not where PySpark and py4j called each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_txn_spark.cli.spark_failure import cause_of

MALFORMED = (Path(__file__).parent / "malformed_json.txt").read_text()
"""What Spark 4.3 said of a message that does not fit the schema; most frames of the JVM are out."""

IN_BATCH = """\
[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: \
[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function in foreach \
batch sink. Reason: An exception was raised by the Python Proxy. Return Message: Traceback:
  File "/venv/py4j/clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/venv/pyspark/sql/utils.py", line 166, in call
    raise e
  File "/venv/pulsar_txn_spark/spark/sink/batch_transaction.py", line 181, in write
    raise error.with_traceback(None) from None
%s
 SQLSTATE: 39000 SQLSTATE: XXKST"""

JAVA = """\
py4j.protocol.Py4JJavaError: An error occurred while calling o813.save.
: %s
	at org.apache.spark.sql.execution.BufferedRowIterator.hasNext(BufferedRowIterator.java:44)
Caused by: %s
	at org.apache.spark.sql.execution.BufferedRowIterator.hasNext(BufferedRowIterator.java:44)
	... 34 more
"""


def test_a_malformed_message_is_named_with_the_option_that_keeps_such() -> None:
    first, second, third = cause_of(MALFORMED).splitlines()
    assert first == (
        "[CANNOT_PARSE_JSON_FIELD] Cannot parse the field name 'dep_delay' and the value late of "
        'the JSON token type VALUE_STRING to target Spark data type "INT".'
    )
    assert second.startswith("[MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION] Malformed records")
    assert second.endswith("[5000,AA,null].")
    assert third == 'In its [[source]], malformed = "keep" keeps such messages apart.'


DIVISION = """\
pyspark.errors.exceptions.captured.ArithmeticException: [DIVIDE_BY_ZERO] Division by zero. \
SQLSTATE: 22012
== SQL (line 1, position 8) ==
SELECT id/dep_delay AS x FROM flights
       ^^^^^^^^^^^^
"""

PYTHON = """\
pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "steps.py", line 5, in bad
    raise ValueError(f"no such carrier: {x}")
ValueError: no such carrier: AA"""

STAGE = (
    "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed "
    "1 times, most recent failure: Lost task 0.0 (TID 0) (executor driver): "
)
HEAP = "java.lang.OutOfMemoryError: Java heap space"
FOLDER = "java.io.IOException: Mkdirs failed"
OWN = "pulsar_txn_spark.errors.SchemaError: no 'value'\n"


@pytest.mark.parametrize(
    "error, cause",
    [
        (DIVISION, "[DIVIDE_BY_ZERO] Division by zero."),
        (PYTHON, "ValueError: no such carrier: AA"),
        ("AssertionError", "AssertionError"),
        ("pyarrow.lib.ArrowInvalid: not a number", "pyarrow.lib.ArrowInvalid: not a number"),
        (JAVA % (STAGE + HEAP, HEAP), HEAP),
        (JAVA % (STAGE + "a.B: x", FOLDER), f"{FOLDER}\n{STAGE}a.B: x"),
        (OWN + JAVA % (STAGE + HEAP, HEAP), "SchemaError: no 'value'"),
    ],
)
def test_the_innermost_error_is_shown_first_and_no_frames(error: str, cause: str) -> None:
    assert cause_of(IN_BATCH % error) == cause


def test_a_text_that_names_no_error_is_shown_from_its_beginning() -> None:
    first, *rest = cause_of(IN_BATCH % "it ended").splitlines()
    assert first.startswith("[STREAM_FAILED]")
    assert len(rest) == 4
    assert cause_of("") == ""
