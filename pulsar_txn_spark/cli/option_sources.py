"""Sources of a command's options: ``-o``, a file, the environment; an earlier one prevails.

The list of processes and the shell's history show the values of ``-o``. So secrets can come from
the environment or from a file.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pulsar_txn_spark.errors import OptionError
from pulsar_txn_spark.options import (
    Use,
    documented,
    environment_words,
    is_secret,
    merged,
    passthrough_keys,
    read_file,
)

PREFIX = "PULSAR_TXN_"
"""Begins the name of each environment variable that is an option."""

_NO_OPTIONS = ("PULSAR_TXN_SPARK_", "PULSAR_TXN__")
"""Settings of tests and demo, and the variables that override a job file."""

_NEAR = 0.9  # a variable with a name so similar to that of an option is a misspelling


def environment_variable(key: str) -> str:
    """Return the environment variable of an option: PULSAR_TXN_STORE_PASSWORD and the like.

    Dots become underscores, and an underscore is put in front of each capital letter.
    """
    return PREFIX + environment_words(key)


def environment_keys() -> list[str]:
    """Return the options that the environment may set: those of connecting, without metrics."""
    own = [
        option.key
        for option in documented()
        if option.use & Use.CONNECT and not option.key.startswith("metrics.")
    ]
    return own + passthrough_keys()


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
    return merged(
        _of_environment(environment),
        {} if file is None else read_file(file, "--options"),
        _of_arguments(pairs),
    )


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
        elif name.startswith(PREFIX) and not name.startswith(_NO_OPTIONS):
            near = difflib.get_close_matches(name, known, n=1, cutoff=_NEAR)
            if near:
                raise OptionError(
                    f"the environment variable {name} is no option: did you mean {near[0]}? "
                    "Rename it, or unset it"
                )
    return options


def secret_variables() -> list[str]:
    """Return the environment variables of all secret options, for the documentation."""
    return [environment_variable(key) for key in environment_keys() if is_secret(key)]
