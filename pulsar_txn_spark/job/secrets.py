"""Which values of a job file are secret, which may not stand in it, and how none is printed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qsl

from pulsar_txn_spark.errors import OptionError
from pulsar_txn_spark.options import FILE_OPTION, is_secret, read_file
from pulsar_txn_spark.redaction import redacted

_HIDDEN = "***"
_LEAST_LENGTH = 4
"""Shorter values are not replaced in texts: they would be found anywhere."""

# As spark.redaction.regex has it, without the names of what is no secret itself.
_SPARK_SECRET = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)
_NO_SECRET = re.compile(r"(file|path|provider|enabled|class|interval|ms|url)$", re.IGNORECASE)
_PASSWORD_PARAMETER = re.compile(r"pass|secret|token|key", re.IGNORECASE)
_URL = re.compile(r"[a-z][a-z0-9+.:-]*://", re.IGNORECASE)


def names_secret(key: str) -> bool:
    """Tell whether a key of another format, or of Spark, holds a secret by its name."""
    return bool(_SPARK_SECRET.search(key)) and not _NO_SECRET.search(key)


def may_be_secret(key: str) -> bool:
    """Tell whether the value of an option or setting may be, or contain, a secret."""
    return is_secret(key) or names_secret(key)


def holds_secret(key: str, text: str) -> bool:
    """Tell whether a text that stands in a file is a secret, or contains one.

    Parameters
    ----------
    key : str
        The option or setting.
    text : str
        What stands in the file itself, references left out.
    """
    if _URL.match(text):
        return _holds_password(text)
    return may_be_secret(key) and bool(text.strip())


def _holds_password(url: str) -> bool:
    address, _, query = url.partition("?")
    before, at, _ = address.partition("://")[2].rpartition("@")
    if at and before.partition(":")[2]:
        return True
    pairs = parse_qsl(query.replace(";", "&"))
    return any(_PASSWORD_PARAMETER.search(name) and value for name, value in pairs)


class Secrets:
    """The secret values of a job, for replacing them in whatever is printed."""

    def __init__(self) -> None:
        self._values: set[str] = set()

    def add(self, value: str) -> None:
        """Note a value that no text may show."""
        if len(value) >= _LEAST_LENGTH:
            self._values.add(value)
        for line in value.splitlines():
            if len(line) >= _LEAST_LENGTH:
                self._values.add(line)

    def add_url(self, url: str) -> None:
        """Note the user and the password of a URL, and the whole of it."""
        if redacted(url) == url:
            return
        self.add(url)
        password = url.partition("://")[2].rpartition("@")[0].partition(":")[2]
        self.add(password)

    def add_options(self, options: Mapping[str, str]) -> None:
        """Note the secrets among options, and among those of a file that they name."""
        for key, text in options.items():
            self.add_url(text)
            if is_secret(key) and "://" not in text:
                self.add(text)
            if key.lower() == FILE_OPTION:
                self.add_file(text)

    def add_file(self, path: str) -> None:
        """Note the secrets of a file with options; whoever uses it says what is wrong with it."""
        with suppress(OptionError):
            named = read_file(Path(path.strip()), "")
            self.add_options({k: text for k, text in named.items() if k.lower() != FILE_OPTION})

    def hidden(self, text: str) -> str:
        """Return a text without any secret."""
        for value in sorted(self._values, key=len, reverse=True):
            text = text.replace(value, _HIDDEN)
        return text
