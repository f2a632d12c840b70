"""Options of a table in Spark's catalog: those of CREATE TABLE, and how a table keeps them.

To CREATE TABLE without a list of columns Spark hands over the options and the table's properties.
When the table is read or written, it hands over neither (``PythonDataSourceV2.getTable``), only the
columns that it was answered with. So the comment of a column keeps the options, and DESCRIBE shows
them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pulsar_txn_spark.environment import FORMAT
from pulsar_txn_spark.errors import OptionError
from pulsar_txn_spark.options.file import FILE_OPTION
from pulsar_txn_spark.options.table import BY_KEY, Use, fits, holds_secret

_OPTION_PREFIX = "option."
_PROVIDER = "provider"
_TABLE_PROPERTIES = frozenset(
    {
        *(_PROVIDER, "owner", "location", "path", "is_managed_location", "external", "comment"),
        "collation",
    }
)
"""What Spark's ``TableCatalog`` reserves, and the path that comes from a location."""

_PREFIX = f"{FORMAT} "
_VERSION = 1


def created_options(raw: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options that a CREATE TABLE names; None if it is none.

    Spark names the provider there. It hands each option over twice, by its name and behind
    ``option.``. Whatever has no such double is a property of the table.

    Parameters
    ----------
    raw : mapping of str to str
        What Spark hands over, by keys in lower case.
    """
    if raw.get(_PROVIDER, "").lower() != FORMAT:
        return None
    doubled = {
        key.removeprefix(_OPTION_PREFIX): value
        for key, value in raw.items()
        if key.startswith(_OPTION_PREFIX)
    }
    return {key: value for key, value in doubled.items() if key not in _TABLE_PROPERTIES}


def to_comment(options: Mapping[str, str]) -> str:
    """Return the comment of a column that keeps a table's options.

    Raises
    ------
    OptionError
        If one of them is a secret: a comment is shown.
    """
    secrets = [key for key, text in options.items() if holds_secret(key, text)]
    if secrets:
        raise OptionError(
            f"option {secrets[0]!r} holds a secret, which Spark's catalog would keep in clear "
            "text. Write the option into a file that only the driver's user may read, and name "
            f"the file in the option {FILE_OPTION!r}"
        )
    return _PREFIX + json.dumps({"options": dict(options), "version": _VERSION})


def from_comment(comment: str) -> dict[str, str] | None:
    """Return the options that a comment keeps; None for one that a user has written.

    Raises
    ------
    OptionError
        If the comment was changed, or another release has written it in a form of its own.
    """
    if not comment.startswith(_PREFIX):
        return None
    try:
        record = json.loads(comment.removeprefix(_PREFIX))
        version, options = record["version"], record["options"]
        kept = {str(key).lower(): str(text) for key, text in options.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        version, kept = None, {}
    if version != _VERSION:
        raise OptionError(
            "the comment of a column keeps the options of the table, and is not as this release "
            f"writes it (found version {version}, expected {_VERSION}). Drop the table and create "
            "it again, which leaves its topic as it is"
        )
    return kept


def fitting(options: Mapping[str, str], use: Use) -> dict[str, str]:
    """Return those of a table's options that mean something for a use; it serves several."""
    return {
        key: text
        for key, text in options.items()
        if key not in BY_KEY or fits(BY_KEY[key].use, use)
    }
