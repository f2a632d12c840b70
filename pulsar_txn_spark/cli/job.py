"""``pulsar-txn job``: runs, checks and explains a job from one file."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pulsar_txn_spark.cli.command_names import in_commands
from pulsar_txn_spark.cli.commands import AsJson, OptionPairs, options_file
from pulsar_txn_spark.cli.option_sources import gather
from pulsar_txn_spark.cli.output import error_text, show, show_error
from pulsar_txn_spark.cli.spark_failure import cause_of
from pulsar_txn_spark.cli.standard_streams import OutputError
from pulsar_txn_spark.environment import require_java, require_python_and_pyspark
from pulsar_txn_spark.errors import EnvironmentTooOldError, JobFileError, PulsarTxnError

if TYPE_CHECKING:
    from pulsar_txn_spark.job import Job
    from pulsar_txn_spark.job.execution import Report
    from pulsar_txn_spark.job.secrets import Secrets

BAD_FILE_EXIT_CODE = 2
"""The job file is wrong; as for a wrong argument."""

JobFile = Annotated[
    Path, typer.Argument(metavar="JOB.TOML", help="The job file.", show_default=False)
]
Overrides = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Override a value of the file: job.trigger=availableNow, "
        "source.flights.topic=other. Again for more.",
    ),
]
Connect = Annotated[
    bool, typer.Option("--connect", help="Also look whether the store and the topics are there.")
]


def run(
    file: JobFile,
    override: Overrides = [],
    option: OptionPairs = [],
    as_json: AsJson = False,
) -> None:
    """Run a job until it ends, fails, or is told to end by SIGTERM or SIGINT.

    It ends after the running micro-batch. The exit code is 0 if the job has ended, 1 if it failed,
    and 2 if the job file is wrong.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    from pulsar_txn_spark.job import run_job

    job = _loaded(file, override, option)
    require_java()
    report = _report(as_json=as_json)

    def failed(why: str) -> str:
        why = job.secrets.hidden(in_commands(why))
        if as_json:
            report({"event": "failed", "job": job.name, "error": why})
        return why

    try:
        with _bad_file():
            run_job(job, report)
    except typer.Exit:
        raise
    except PulsarTxnError as error:
        show_error(failed(error_text(error)))
    except (PySparkException, Py4JError) as error:
        show_error(f"the job failed: {failed(_message(error))}")
    except Exception as error:
        failed(cause_of("".join(traceback.format_exception_only(error)).strip()))
        raise
    else:
        return
    raise typer.Exit(1)


def check(
    file: JobFile,
    override: Overrides = [],
    connect: Connect = False,
    option: OptionPairs = [],
    as_json: AsJson = False,
) -> None:
    """Say what is wrong with a job file, all at once. Nothing is started or written.

    Spark reads files of a static source that has a path: all of them, if it has no schema.

    Spark's analyzer checks the SQL on empty sources, if there is a Java. Functions of steps are
    called. The exit code is 2 if the file is wrong, and 1 if only something that it names is not
    there, which --connect finds out.
    """
    from pulsar_txn_spark.job.analysis import analyzed, unreachable
    from pulsar_txn_spark.job.problems import error_of

    job = _loaded(file, override, option, as_json=as_json)
    notes = []
    with _bad_file(as_json=as_json):
        try:
            require_java()
        except EnvironmentTooOldError as error:
            notes.append(f"the SQL was not checked: {error}")
        else:
            with analyzed(job) as (views, _):
                problems = list(views.problems)
                notes += [
                    f"view {name!r} was not checked: name its columns by 'schema'"
                    for name in sorted(views.unknown)
                    if not problems
                ]
            if problems:
                raise error_of(problems, job.secrets.hidden)
        missing = unreachable(job) if connect else []
        if any(not problem.missing for problem in missing):
            raise error_of(missing, job.secrets.hidden)
    if missing:
        _show_problems(error_of(missing, job.secrets.hidden), as_json=as_json)
        raise typer.Exit(1)
    if as_json:
        typer.echo(json.dumps({"job": job.name, "problems": [], "notes": notes}, indent=2))
        return
    for note in notes:
        typer.echo(note)
    typer.echo(f"{file}: job {job.name!r} is in order")


def explain(
    file: JobFile,
    override: Overrides = [],
    option: OptionPairs = [],
    as_json: AsJson = False,
) -> None:
    """Show what a job reads and writes, its plan, and which guarantees hold for it.

    Nothing is written. Spark plans the job on empty sources, and on files of static ones.
    """
    from pulsar_txn_spark.job.analysis import analyzed
    from pulsar_txn_spark.job.explanation import explanation_of
    from pulsar_txn_spark.job.problems import error_of

    job = _loaded(file, override, option)
    require_java()
    with _bad_file(), analyzed(job) as (views, rows):
        if views.problems:
            raise error_of(views.problems, job.secrets.hidden)
        explained = explanation_of(views, rows)
    if as_json:
        typer.echo(job.secrets.hidden(json.dumps(explained, indent=2)))
        return
    _show(explained, job.secrets)


def script() -> None:
    """Print the script that spark-submit runs: pulsar-txn job script > job.py."""
    file = resources.files("pulsar_txn_spark.cli").joinpath("job_script.py")
    typer.echo(file.read_text(encoding="utf-8"), nl=False)


def _loaded(file: Path, overrides: list[str], option: list[str], *, as_json: bool = False) -> Job:
    require_python_and_pyspark()
    from pulsar_txn_spark.job import load

    with _bad_file(as_json=as_json):
        return load(
            file,
            overrides=overrides,
            defaults=gather([], None),
            options=gather(option, options_file(), {}),
        )


@contextmanager
def _bad_file(*, as_json: bool = False) -> Iterator[None]:
    """Let a wrong job file end the command with its own exit code."""
    try:
        yield
    except JobFileError as error:
        _show_problems(error, as_json=as_json)
        raise typer.Exit(BAD_FILE_EXIT_CODE) from None


def _show_problems(error: JobFileError, *, as_json: bool) -> None:
    text = in_commands(str(error))
    if as_json:
        typer.echo(json.dumps({"problems": text.splitlines()}, indent=2))
    else:
        typer.echo(text, err=True)


def _message(error: Exception) -> str:
    say = getattr(error, "getMessage", None)  # an exception of PySpark
    return cause_of((say() if say is not None else None) or str(error))


def _show(explained: Mapping[str, Any], secrets: Secrets) -> None:
    """Print an explanation as tables, the plan last: its lines are long."""

    def table(title: str, rows: list[dict[str, str]], columns: list[str], **named: Any) -> None:
        hidden = [{key: secrets.hidden(text) for key, text in row.items()} for row in rows]
        show(hidden, as_json=False, title=title, columns=columns, **named)

    head = [{"": key, "job": text} for key, text in explained["job"].items()]
    table("", head, ["", "job"], whole=[""])
    table("", explained["reads"], ["view", "from", "how"])
    table("", explained["writes"], ["sink", "to", "how"])
    table("Guarantees", explained["guarantees"], ["name", "holds", "why"])
    for note in explained["notes"]:
        typer.echo(note)
    typer.echo(f"Plan of a micro-batch\n{secrets.hidden(explained['plan'])}")


def _report(*, as_json: bool) -> Report:
    """Return what prints an event, if it can be: no status line decides what becomes of a job."""
    is_warned = False

    def report(event: Mapping[str, Any]) -> None:
        nonlocal is_warned
        try:
            (_print_json if as_json else _print_line)(event)
        except (OSError, OutputError) as error:
            if not is_warned:
                is_warned = True
                with suppress(OSError, OutputError):
                    typer.echo(f"warning: a status line is lost: {error}", err=as_json)

    return report


def _print_json(event: Mapping[str, Any]) -> None:
    typer.echo(json.dumps(event))


def _print_line(event: Mapping[str, Any]) -> None:
    lines: dict[str, Callable[[], str]] = {
        "started": lambda: f"started as {event['application']}",
        "batch": lambda: (
            f"batch {event['batch']}: {event['rows']:,} rows in, {event['seconds']:.1f} s"
        ),
        "stopping": lambda: (
            f"stopping after the running micro-batch, at most {event['timeout_s']:.0f} s"
        ),
        "ended": lambda: "stopped" if event["stopped"] else "ended",
    }
    typer.echo(lines[event["event"]](), err=True)
