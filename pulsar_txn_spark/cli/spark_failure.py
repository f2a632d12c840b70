"""What made a job fail, out of the pages of stacks and plans that Spark puts around it."""

from __future__ import annotations

import re
from collections.abc import Iterator

_OWN_ERROR = re.compile(r"pulsar_txn_spark\.errors\.(\w+: .*)")

# As Python and the JVM begin an error: at the margin, with its class in front of the message.
_ERROR = re.compile(
    r"^(?:Caused by: |: )?"
    r"(?:(?P<type>[\w.$]+(?:Error|Exception)|(?:[a-z_]\w*\.)+[A-Z]\w*)(?:: |$))?"
    r"(?P<condition>\[[A-Z][A-Z0-9_.]*\] )?"
    r"(?P<text>.*)",
    re.MULTILINE,
)
_STATE = re.compile(r"\s*SQLSTATE: \w+")

_WRAPPERS = ("[STREAM_FAILED] ", "[FOREACH_BATCH_USER_FUNCTION_ERROR] ")
_WRAPPER_TYPES = ("Py4JJavaError", "PythonException")
"""Errors that only say that there is another one."""

_MALFORMED = re.compile(
    r"\[(?:MALFORMED_RECORD_IN_PARSING|MALFORMED_AVRO_MESSAGE|CANNOT_PARSE_JSON_FIELD)\b"
)
_KEEP = 'In its [[source]], malformed = "keep" keeps such messages apart.'

_LINES = 5
"""How many errors are shown, or lines of a text that names none."""


def cause_of(text: str) -> str:
    """Return the lines of a failure's text that say why: our own errors, else all, innermost first.

    Parameters
    ----------
    text : str
        The message of an exception of PySpark or py4j.
    """
    own = list(dict.fromkeys(_OWN_ERROR.findall(text)))
    if own:
        return "\n".join(own)
    causes: list[str] = []
    for error in reversed(list(_errors(text))):
        # What is around an error often repeats it.
        if not any(cause in error for cause in causes):
            causes.append(error)
    shown = (causes or text.splitlines())[:_LINES]
    if any(map(_MALFORMED.match, causes)):
        shown.append(_KEEP)
    return "\n".join(shown)


def _errors(text: str) -> Iterator[str]:
    for match in _ERROR.finditer(text):
        kind, condition, rest = match["type"] or "", match["condition"] or "", match["text"]
        if condition in _WRAPPERS or kind.rpartition(".")[2] in _WRAPPER_TYPES:
            continue
        # The condition names an error of Spark's better than its class does.
        if condition:
            yield _STATE.sub("", condition + rest)
        elif kind:
            yield f"{kind}: {_STATE.sub('', rest)}".removesuffix(": ")
