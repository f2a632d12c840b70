"""How the environment spells the keys of options."""

from __future__ import annotations

import re

from pulsar_txn_spark.backends.pulsar.passthrough import PASS_THROUGH


def environment_words(key: str) -> str:
    """Return a key as variables of the environment spell it: STORE_TIMEOUT_MS.

    Dots become underscores, and an underscore is put in front of each capital letter.
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).replace(".", "_").upper()


def passthrough_keys() -> list[str]:
    """Return the keys of all options that are passed on to Pulsar."""
    return [
        f"pulsar.{kind}.{option.name}"
        for kind, options in PASS_THROUGH.items()
        for option in options
    ]
