"""The page of all options, docs/options.md, made from the tables that the validator works with.

Run ``python -m tools.options_page docs/options.md``; without a file it is printed. A test
holds the file against the tables.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from pulsar_txn_spark.backends.pulsar.passthrough import PASS_THROUGH, REFUSED
from pulsar_txn_spark.cli.option_sources import secret_variables
from pulsar_txn_spark.options import Depends, Offsets, Option, Use, documented
from pulsar_txn_spark.segments.topic_name import Domains

_INTRODUCTION = """\
# Options

This page is generated: `python -m tools.options_page docs/options.md`.

Keys are matched without regard to case. An option that is unknown, malformed or meaningless in its
place is refused before a row is written. A source checks its options when it is loaded, and a
`foreachBatch` sink when it is created. The format's sink of a stream checks them when its first
micro-batch is planned, because Spark creates it then.

*Where* says what an option is for: `read` and `write`, each as stream or batch unless one of them
is named, and `connect`. `connect` is `pulsar_txn_spark.Admin`, `serve_metrics`, the client and the
command line. A *secret* is never shown in messages, logs or `repr`. Of a URL,
neither user nor password is shown.

The command `pulsar-txn` takes the options of `connect` from three places; an earlier one wins:

1. `-o KEY=VALUE`. Pass no secret this way: the list of processes and the shell's history show it.
2. `--options FILE`: lines `KEY=VALUE` (`#` begins a comment, values are taken as they stand), or
   TOML if the name ends in `.toml`. A file with a secret is refused if every user of the machine
   may read it.
3. The environment: `PULSAR_TXN_STORE_PASSWORD` is `store.password`. A dot becomes an underscore,
   and one stands in front of each capital letter. The variables of secrets are
   {variables}.
"""

_PASSED_ON_INTRODUCTION = """\
## Passed on to Pulsar

`pulsar.client.*`, `pulsar.producer.*`, `pulsar.reader.*` and `pulsar.admin.*` carry the names of
Pulsar's own Java configuration and need `service.url`. `pulsar.admin.*` falls back on
`pulsar.client.*` for authentication and TLS. Names that are in neither of these lists are refused.
"""

_WAYS = ((Use.READ, "read"), (Use.WRITE, "write"))
_KINDS = ((Use.STREAM, "stream"), (Use.BATCH, "batch"))


def _where(use: Use) -> str:
    """Say where an option means something."""
    ways = [text for flag, text in _WAYS if use & flag]
    kinds = [text for flag, text in _KINDS if use & flag]
    parts = [", ".join(ways)]
    if len(kinds) == 1:
        parts = [f"{parts[0]} ({kinds[0]})"]
    if use & Use.CONNECT:
        parts.append("connect")
    return ", ".join(parts)


def _cell(text: str) -> str:
    # A bar would end the cell, also within a code span.
    return text.replace("|", "\\|").replace("\n", " ")


def default_text(value: object) -> str:
    """Return a default as a user would write it; nothing for one that is no value."""
    if value in (None, ()) or value == Domains():
        return ""
    if isinstance(value, Offsets):
        return value.word
    return str(value).lower() if isinstance(value, bool) else str(value)


def _default(option: Option) -> str:
    default = option.default
    if isinstance(default, Depends):
        return default.text
    text = default_text(default)
    return f"`{text}`" if text else ""


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    titles = list(header)
    yield f"| {' | '.join(titles)} |"
    yield f"|{'---|' * len(titles)}"
    for row in rows:
        yield f"| {' | '.join(_cell(cell) for cell in row)} |"


def _own_options() -> Iterator[str]:
    excluded: dict[str, set[str]] = {}
    for option in documented():
        for other in option.conflicts:
            excluded.setdefault(option.key, set()).add(other)
            excluded.setdefault(other, set()).add(option.key)
    groups: dict[str, list[Option]] = {}
    for option in documented():
        groups.setdefault(_group(option), []).append(option)
    for group, options in groups.items():
        yield f"## {group}"
        yield ""
        rows = []
        for option in options:
            notes = [option.help]
            if option.key in excluded:
                others = " and ".join(f"`{key}`" for key in sorted(excluded[option.key]))
                notes.append(f"Not together with {others}.")
            if option.secret:
                notes.append("*Secret.*")
            rows.append((f"`{option.key}`", _default(option), _where(option.use), " ".join(notes)))
        yield from _table(("Option", "Default", "Where", "Meaning"), rows)
        yield ""


def _group(option: Option) -> str:
    if option.key.startswith("store."):
        return "The metadata store"
    if option.key in {"service.url", "admin.url"}:
        return "Pulsar"
    if option.key.startswith("metrics."):
        return "Metrics"
    if option.use & Use.READ and option.use & Use.WRITE:
        return "Source and sink"
    return "Source" if option.use & Use.READ else "Sink"


def _passed_on() -> Iterator[str]:
    yield _PASSED_ON_INTRODUCTION
    taken = [
        (
            f"`pulsar.{kind}.*`",
            ", ".join(
                f"`{option.name}`{' (*secret*)' if option.secret else ''}" for option in options
            ),
        )
        for kind, options in PASS_THROUGH.items()
    ]
    yield from _table(("Prefix", "Taken"), taken)
    yield ""
    refused = [
        (f"`pulsar.{kind}.{name}`", why)
        for kind, reasons in REFUSED.items()
        for name, why in reasons.items()
    ]
    yield from _table(("Refused", "Why, or what instead"), refused)


def _variables() -> str:
    names = [f"`{name}`" for name in secret_variables()]
    return ",\n   ".join(names[:-1]) + f" and {names[-1]}"


def page() -> str:
    """Return the page."""
    introduction = _INTRODUCTION.replace("{variables}", _variables())
    return "\n".join([introduction, *_own_options(), *_passed_on(), ""])


def main(arguments: list[str] | None = None) -> int:
    """Write the page to a file, or print it; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.options_page",
        description="Write the documentation page of all options.",
    )
    parser.add_argument("file", nargs="?", type=Path, help="where to; without it, print the page")
    file: Path | None = parser.parse_args(arguments).file
    if file is None:
        sys.stdout.write(page())
    else:
        file.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
