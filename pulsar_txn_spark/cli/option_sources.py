"""Sources of a command's options: ``-o``, a file, the environment; an earlier one prevails.

The list of processes and the shell's history show the values of ``-o``. So secrets can come from
the environment or from a file.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pulsar_txn_spark.backends.pulsar.passthrough import PASS_THROUGH
from pulsar_txn_spark.backports import tomllib
from pulsar_txn_spark.errors import OptionError
from pulsar_txn_spark.options import Use, documented, is_secret

PREFIX = "PULSAR_TXN_"
"""Begins the name of each environment variable that is an option."""

_OF_THE_PROJECT = "PULSAR_TXN_SPARK_"  # settings of tests and demo
_NEAR = 0.9  # a variable with a name so similar to that of an option is a misspelling
_PROPERTY = re.compile(r"([^\s=:]+)\s*[=:\s]\s*(.*)")
_WHERE = re.compile(r"\(at [^)]*\)")


def environment_variable(key: str) -> str:
    """Return the environment variable of an option: PULSAR_TXN_STORE_PASSWORD and the like.

    Dots become underscores, and an underscore is put in front of each capital letter.
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key)
    return PREFIX + words.replace(".", "_").upper()


def environment_keys() -> list[str]:
    """Return the options that the environment may set: those of connecting, without metrics."""
    own = [
        option.key
        for option in documented()
        if option.use & Use.CONNECT and not option.key.startswith("metrics.")
    ]
    return own + [
        f"pulsar.{kind}.{option.name}"
        for kind, options in PASS_THROUGH.items()
        for option in options
    ]


def gather(
    pairs: Sequence[str], file: Path | None, environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Merge the options of one command.

    Parameters
    ----------
    pairs : sequence of str
        ``KEY=VALUE``, as ``-o`` has them.
    file : Path or None
        As ``--options`` names it.
    environment : mapping of str to str
        Its variables ``PULSAR_TXN_*`` are read.

    Raises
    ------
    OptionError
        If a source is malformed. The message contains no value.
    """
    options: dict[str, str] = {}
    for source in (
        _of_environment(environment),
        {} if file is None else _of_file(file),
        _of_arguments(pairs),
    ):
        excluded = {other for key in source for other in _conflicting(key)}
        # A more explicit option also replaces those that conflict with it.
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


def _of_arguments(arguments: Sequence[str]) -> dict[str, str]:
    pairs = [item.partition("=") for item in arguments]
    for number, (_, separator, _) in enumerate(pairs, 1):
        if not separator:
            raise OptionError(
                f"expected -o KEY=VALUE, found no '=' in number {number} of them (its text is not "
                "shown: it may hold a secret)"
            )
    return {key.strip(): value for key, _, value in pairs}


def _of_environment(environment: Mapping[str, str]) -> dict[str, str]:
    known = {environment_variable(key): key for key in environment_keys()}
    options = {}
    for name, value in environment.items():
        if name in known:
            options[known[name]] = value
        elif name.startswith(PREFIX) and not name.startswith(_OF_THE_PROJECT):
            near = difflib.get_close_matches(name, known, n=1, cutoff=_NEAR)
            if near:
                raise OptionError(
                    f"the environment variable {name} is no option: did you mean {near[0]}? "
                    "Rename it, or unset it"
                )
    return options


def _of_file(file: Path) -> dict[str, str]:
    try:
        text = file.read_text(encoding="utf-8")
        mode = file.stat().st_mode
    except OSError as error:
        raise OptionError(f"--options {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise OptionError(f"--options {file} is no text in UTF-8") from None
    options = _toml(file, text) if file.suffix == ".toml" else _properties(file, text)
    secrets = [key for key in options if is_secret(key)]
    if secrets and mode & stat.S_IROTH:
        raise OptionError(
            f"--options {file} holds {secrets[0]!r} and every user of this machine may read it: "
            f"run chmod 600 {file} (for a mounted secret of Kubernetes: defaultMode 0440)"
        )
    return options


def _properties(file: Path, text: str) -> dict[str, str]:
    options = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        match = _PROPERTY.fullmatch(stripped)
        if match is None:
            raise OptionError(
                f"--options {file}, line {number}: expected KEY=VALUE (the line is not shown: it "
                "may hold a secret)"
            )
        options[match[1]] = match[2]
    return options


def _toml(file: Path, text: str) -> dict[str, str]:
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        where = _WHERE.search(str(error))
        raise OptionError(
            f"--options {file} is no valid TOML {where[0] if where else ''}".rstrip()
        ) from None
    return dict(_leaves(file, tree, ""))


def _leaves(file: Path, tree: Mapping[str, object], prefix: str) -> Iterator[tuple[str, str]]:
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict):
            yield from _leaves(file, value, f"{key}.")
        elif isinstance(value, bool):
            yield key, str(value).lower()
        elif isinstance(value, str | int | float):
            yield key, str(value)
        else:
            raise OptionError(
                f"--options {file}: {key!r} has to be a text, a number, true or false"
            )


def secret_variables() -> list[str]:
    """Return the environment variables of all secret options, for the documentation."""
    return [environment_variable(key) for key in environment_keys() if is_secret(key)]
