"""What every command shares: its options, and how it reaches the store and Pulsar."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any

import typer

from pulsar_txn_spark.admin import Admin
from pulsar_txn_spark.cli.option_sources import gather
from pulsar_txn_spark.engine.components import Components, open_components
from pulsar_txn_spark.errors import OptionError
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import Topology

_options_file: ContextVar[Path | None] = ContextVar("--options", default=None)

OptionsFile = Annotated[
    Path | None,
    typer.Option(
        "--options",
        metavar="FILE",
        help="Options from a file: KEY=VALUE in lines, or TOML (.toml). Secrets belong there, or "
        "into the environment: PULSAR_TXN_STORE_PASSWORD is store.password.",
    ),
]

OptionPairs = Annotated[
    list[str],
    typer.Option("--option", "-o", help="KEY=VALUE, as for format('pulsar_txn'). Again for more."),
]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one document.")]

SegmentArgument = Annotated[
    str, typer.Argument(help="An active segment: its number, 8000-ffff-2, or its id.")
]

TopicArgument = Annotated[str, typer.Argument(help="topic://tenant/namespace/name, or the name.")]


class Commands(typer.Typer):
    """A group of commands. Each of them also has the option ``--options``."""

    def command(self, *args: Any, **named: Any) -> Callable[[Callable[..., Any]], Any]:
        """Register a function as a command, with ``--options`` besides its own parameters."""
        register = super().command(*args, **named)

        def with_file(function: Callable[..., Any]) -> Callable[..., Any]:
            register(_taking_file(function))
            return function

        return with_file


def _taking_file(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def command(*, options_file: Path | None = None, **parameters: Any) -> Any:
        token = _options_file.set(options_file)
        try:
            return function(**parameters)
        finally:
            _options_file.reset(token)

    signature = inspect.signature(function, eval_str=True)
    file = inspect.Parameter(
        "options_file", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=OptionsFile
    )
    shown = [*signature.parameters.values(), file]
    command.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return command


def options_file() -> Path | None:
    """Return the file that ``--options`` of the running command names."""
    return _options_file.get()


def options_of(pairs: Sequence[str]) -> dict[str, str]:
    """Return the options of a command: those of ``-o``, of its file, and of the environment.

    Raises
    ------
    OptionError
        If a source of options is malformed.
    """
    return gather(pairs, _options_file.get())


def admin_of(pairs: Sequence[str]) -> Admin:
    """Return what administers topics and subscriptions with the options of a command."""
    return Admin(options_of(pairs))


def components_of(pairs: Sequence[str]) -> Components:
    """Return the store, the log and the transaction components with the options of a command."""
    return open_components(Options(options_of(pairs), Use.CONNECT))


def segmented(pairs: Sequence[str], topic: str) -> TopicName:
    """Return the name of a segmented topic, by the domains of a command's options.

    Raises
    ------
    OptionError
        If it is no name of a segmented topic.
    """
    return Options(options_of(pairs), Use.CONNECT).domains.segmented(topic)


def topology_of(components: Components, pairs: Sequence[str], topic: str) -> Topology:
    """Return the segments of a topic.

    Raises
    ------
    OptionError
        If it is no name of a segmented topic.
    TopicNotFoundError
        If it does not exist.
    """
    return components.topics.require(segmented(pairs, topic))


def confirm(question: str) -> None:
    """Ask before something is changed; end the command unless the answer is yes.

    The question goes to standard error, so that standard output is one JSON document.

    Raises
    ------
    OptionError
        If nobody is there to answer.
    """
    try:
        agreed = typer.confirm(question, err=True)
    except typer.Abort:
        if sys.stdin.isatty():
            raise
        typer.echo(err=True)  # the question has begun the line
        raise OptionError(
            "nobody answered, and nothing was changed: without a terminal add --yes, which does "
            "not ask"
        ) from None
    if not agreed:
        raise typer.Abort
