"""What Python 3.11 has in its standard library, for Python 3.10, on which Spark 4.0 and 4.1 run."""

from __future__ import annotations

import logging
import re
import sys
from datetime import datetime, timezone

if sys.version_info >= (3, 11):
    from enum import StrEnum
    from typing import Self

    import tomllib
else:
    from enum import Enum

    import tomli as tomllib
    from typing_extensions import Self

    class StrEnum(str, Enum):
        """An enumeration whose members are strings, and are printed as such."""

        __str__ = str.__str__
        __format__ = str.__format__


UTC = timezone.utc

_LOG = logging.getLogger(__name__)

_TIME = re.compile(
    r"(?P<time>[^T ]+[T ][\d:]+)"
    r"(?:[.,](?P<decimals>\d+))?"
    r"(?P<zone>Z|(?P<hours>[+-]\d\d)(?::?(?P<minutes>\d\d))?)?"
)


def time_from_iso(text: str) -> datetime:
    """Read a time of ISO 8601, also with ``Z`` or other than six decimals.

    Python 3.10 alone would refuse these. Python 3.11 reads the same with and without this.

    Raises
    ------
    ValueError
    """
    match = _TIME.fullmatch(text)
    if match is None:
        return datetime.fromisoformat(text)
    time, decimals = match["time"], match["decimals"]
    if decimals:
        time += f".{decimals[:6]:0<6}"
    if match["zone"] == "Z":
        time += "+00:00"
    elif match["zone"]:
        time += f"{match['hours']}:{match['minutes'] or '00'}"
    return datetime.fromisoformat(time)


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception. Python 3.10 does not print it, so that it is logged there."""
    error.__notes__ = [*getattr(error, "__notes__", []), note]
    if sys.version_info < (3, 11):
        _LOG.warning("%s: %s", type(error).__name__, note)


__all__ = ["UTC", "Self", "StrEnum", "add_note", "time_from_iso", "tomllib"]
