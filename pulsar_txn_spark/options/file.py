"""Options out of a file, and which option prevails where several sources name it."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from pulsar_txn_spark.backports import tomllib
from pulsar_txn_spark.errors import OptionError
from pulsar_txn_spark.options.table import BY_KEY, Use, documented, holds_secret

FILE_OPTION = "options.file"
"""Names a file with the options of connecting."""

_PROPERTY = re.compile(r"([^\s=:]+)\s*[=:\s]\s*(.*)")
_WHERE = re.compile(r"\(at [^)]*\)")


def with_file(options: Mapping[str, str]) -> dict[str, str]:
    """Put the options of the file that `options` name in the place of its name.

    Parameters
    ----------
    options : mapping of str to str
        By keys in lower case. What they name prevails over the file.

    Raises
    ------
    OptionError
        If the file cannot be read or is malformed. Also if it has a secret that every user may
        read, or an option that does not say how to connect. The message contains no value.
    """
    rest = dict(options)
    path = rest.pop(FILE_OPTION, None)
    if path is None:
        return rest
    of_file = read_file(Path(path.strip()), f"option {FILE_OPTION!r}:")
    for key in of_file:
        option = BY_KEY.get(key.lower())
        if option is not None and (not option.use & Use.CONNECT or option.key == FILE_OPTION):
            raise OptionError(
                f"option {FILE_OPTION!r}: {path} holds {key!r}, expected only options that say how "
                "to connect, so that one file serves every table and query. Give it beside "
                f"{FILE_OPTION!r}"
            )
    return merged({key.lower(): value for key, value in of_file.items()}, rest)


def merged(*sources: Mapping[str, str]) -> dict[str, str]:
    """Merge options; a later source prevails, also over what conflicts with its options."""
    options: dict[str, str] = {}
    for source in sources:
        excluded = {other for key in source for other in _conflicting(key)}
        options = {
            key: value
            for key, value in options.items()
            if key.lower() not in excluded and key.lower() not in map(str.lower, source)
        }
        options |= source
    return options


def _conflicting(key: str) -> Iterator[str]:
    for option in documented():
        for other in option.conflicts:
            if key.lower() == option.key.lower():
                yield other.lower()
            elif key.lower() == other.lower():
                yield option.key.lower()


def read_file(file: Path, source: str) -> dict[str, str]:
    """Read options: lines ``KEY=VALUE``, or TOML if the name ends in ``.toml``.

    Parameters
    ----------
    file : Path
    source : str
        Begins the messages: where the file was named.

    Raises
    ------
    OptionError
        If the file cannot be read or is malformed, or holds a secret that every user may read. The
        message contains no value.
    """
    name = f"{source} {file}"
    try:
        text = file.read_text(encoding="utf-8")
        mode = file.stat().st_mode
    except OSError as error:
        raise OptionError(f"{name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise OptionError(f"{name} is no text in UTF-8") from None
    options = _toml(name, text) if file.suffix == ".toml" else _properties(name, text)
    secrets = [key for key, value in options.items() if holds_secret(key, value)]
    if secrets and mode & stat.S_IROTH:
        raise OptionError(
            f"{name} holds {secrets[0]!r} and every user of this machine may read it: "
            f"run chmod 600 {file} (for a mounted secret of Kubernetes: defaultMode 0440)"
        )
    return options


def _properties(name: str, text: str) -> dict[str, str]:
    options = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        match = _PROPERTY.fullmatch(stripped)
        if match is None:
            raise OptionError(
                f"{name}, line {number}: expected KEY=VALUE (the line is not shown: it may hold a "
                "secret)"
            )
        options[match[1]] = match[2]
    return options


def _toml(name: str, text: str) -> dict[str, str]:
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        where = _WHERE.search(str(error))
        raise OptionError(f"{name} is no valid TOML {where[0] if where else ''}".rstrip()) from None
    return dict(_leaves(name, tree, ""))


def _leaves(name: str, tree: Mapping[str, object], prefix: str) -> Iterator[tuple[str, str]]:
    for part, value in tree.items():
        key = f"{prefix}{part}"
        if isinstance(value, dict):
            yield from _leaves(name, value, f"{key}.")
        elif isinstance(value, bool):
            yield key, str(value).lower()
        elif isinstance(value, str | int | float):
            yield key, str(value)
        else:
            raise OptionError(f"{name}: {key!r} has to be a text, a number, true or false")
