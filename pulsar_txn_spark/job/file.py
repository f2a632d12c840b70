"""Reads a job file: overrides, references, secrets, keys and options, with all problems at once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pulsar_txn_spark.environment import FORMAT
from pulsar_txn_spark.errors import OptionError
from pulsar_txn_spark.job import avro
from pulsar_txn_spark.job.definition import Job, Sink, Source, Step, Watermark
from pulsar_txn_spark.job.key_checks import KeyChecks, format_of
from pulsar_txn_spark.job.keys import AVAILABLE_NOW, BATCH, WITH_SCHEMA
from pulsar_txn_spark.job.overrides import apply_arguments, apply_environment
from pulsar_txn_spark.job.problems import Place, Problem, error_of, nearest
from pulsar_txn_spark.job.secrets import Secrets, holds_secret, may_be_secret
from pulsar_txn_spark.job.substitution import Substitution, SubstitutionError, literal
from pulsar_txn_spark.job.tables import Entry, Table, Tables, Value, read_tables
from pulsar_txn_spark.options import (
    FILE_OPTION,
    SCOPE_WRITE,
    Options,
    Use,
    merged,
)
from pulsar_txn_spark.segments.topic_name import Domains, TopicName
from pulsar_txn_spark.spark.source.topics import source_options

_VIEW = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_UNITS = {"millisecond": 0.001, "second": 1, "minute": 60, "hour": 3600, "day": 86400}
_INTERVAL = re.compile(rf"\s*(\d+)\s*({'|'.join(_UNITS)})s?\s*", re.IGNORECASE)
DEFAULT_STOP_TIMEOUT_S = 60.0
_METRICS = "metrics."
_API_MODE = "spark.api.mode"
_REMOTE = "spark.remote"


def load(
    path: str | Path,
    *,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] = os.environ,
    defaults: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
) -> Job:
    """Read a job file, and check all that can be checked without Spark and without a server.

    Parameters
    ----------
    path : str or Path
    overrides : sequence of str
        ``SECTION.KEY=VALUE``, as ``--set`` has them.
    environment : mapping of str to str
        Read by references, and by the variables ``PULSAR_TXN__…`` that override values.
    defaults : mapping of str to str, optional
        Options that hold where neither the file nor an override names them.
    options : mapping of str to str, optional
        Options that prevail over those of the file.

    Raises
    ------
    JobFileError
        Naming all problems, each with its place.
    """
    path = Path(path)
    problems: list[Problem] = []
    tables = read_tables(path, str(path), problems)
    apply_environment(tables, environment, problems)
    apply_arguments(tables, overrides, problems)
    folder = path.absolute().parent
    reader = _Reader(tables, Substitution(environment, folder), problems)
    job = reader.job(folder, defaults or {}, options or {})
    if problems or job is None:
        raise error_of(problems, reader.secrets.hidden)
    return job


def seconds_of(interval: str) -> float | None:
    """Return the seconds of an interval such as ``10 seconds``; None if it is none."""
    match = _INTERVAL.fullmatch(interval)
    return None if match is None else int(match[1]) * _UNITS[match[2].lower()]


@dataclass(slots=True)
class _Reader:
    """Turns tables into a job, and notes what is wrong with them."""

    tables: Tables
    substitution: Substitution
    problems: list[Problem]
    secrets: Secrets = field(default_factory=Secrets)

    @property
    def _checks(self) -> KeyChecks:
        return KeyChecks(self.tables, self.problems)

    def job(
        self, folder: Path, defaults: Mapping[str, str], options: Mapping[str, str]
    ) -> Job | None:
        for table in self.tables.tables:
            self._replace(table)
        for table in self.tables.tables:
            self._checks.check_keys(table)
        self.secrets.add_options(defaults)
        self.secrets.add_options(options)
        head = self.tables.one("job")
        spark = {key: entry.text for key, entry in self.tables.one("spark").entries.items()}
        self._check_spark(self.tables.one("spark"))
        trigger = self._trigger(head)
        shared = self._shared(defaults, options)
        sources = [self._source(table, shared, trigger) for table in self.tables.of("source")]
        steps = self._steps()
        sinks = [self._sink(table, shared) for table in self.tables.of("sink")]
        transaction = self._transaction(shared)
        self._check_names(head)
        self._check_sinks(sources, steps, sinks)
        checkpoint = head.text("checkpoint")
        if trigger == BATCH:
            self._check_batch(head)
        elif checkpoint is None:
            self._note(
                head.place,
                head,
                "'checkpoint' is missing: name a folder that outlives the driver, on a file system "
                'that every driver reaches (or trigger = "batch", for no stream)',
            )
        if self.problems:
            return None
        persist = head.text("persist")
        return Job(
            file=self.tables.file,
            folder=str(folder),
            name=head.text("name") or "",
            checkpoint=None if trigger == BATCH else checkpoint,
            trigger=trigger,
            output_mode=(head.text("outputMode") or "append").lower(),
            persist=len(sinks) > 1 if persist is None else persist == "true",
            stop_timeout_s=self._stop_timeout(head),
            py_files=tuple(str(folder / file) for file in self._texts(head, "pyFiles")),
            spark=spark,
            options=shared,
            transaction=transaction,
            sources=tuple(sources),
            steps=tuple(steps),
            sinks=tuple(sinks),
            secrets=self.secrets,
        )

    # -- values --------------------------------------------------------------------------------

    def _note(self, place: Place, table: Table | None, text: str) -> None:
        subject = "" if table is None else table.title
        self.problems.append(Problem(place, subject, text))

    def _replace(self, table: Table) -> None:
        """Replace references, and refuse secrets that stand in the file."""
        for key, entry in list(table.entries.items()):
            raw = entry.text
            secret = may_be_secret(_option_name(table, key))
            if not entry.is_from_environment and holds_secret(
                _option_name(table, key), literal(raw)
            ):
                self._note(
                    entry.place,
                    table,
                    f"{key!r} has a secret in it, which does not belong into a job file (it is "
                    f"not shown): write ${{env:NAME}} or ${{file:/run/secrets/name}} in its place",
                )
                self.secrets.add(raw)
                self.secrets.add_url(raw)
                continue
            if not isinstance(entry.value, str | list):
                continue
            try:
                texts = [entry.value] if isinstance(entry.value, str) else entry.value
                replaced = [self.substitution.replace(text, secret=secret) for text in texts]
                # A schema is no secret, and messages about columns would lose its lines.
                for text in texts if key != "schema" else ():
                    for content in self.substitution.files(text):
                        self.secrets.add(content)
            except SubstitutionError as error:
                self._note(entry.place, table, f"{key!r}: {error}")
                replaced = [""]
            value: Value = replaced[0] if isinstance(entry.value, str) else replaced
            table.entries[key] = Entry(value, entry.place, entry.content, entry.is_from_environment)
            for text in replaced:
                self._note_secrets(key, text, secret=secret)

    def _note_secrets(self, key: str, text: str, *, secret: bool) -> None:
        if key.lower() == FILE_OPTION:
            self.secrets.add_file(text)
        elif "://" in text:
            self.secrets.add_url(text)
        elif secret:
            self.secrets.add(text)

    # -- sections ------------------------------------------------------------------------------

    def _check_spark(self, table: Table) -> None:
        for key, entry in table.entries.items():
            is_mode_connect = key == _API_MODE and entry.text.strip().lower() == "connect"
            if key == _REMOTE or is_mode_connect:
                text = "a job starts a driver of its own: it cannot be run through Spark Connect"
                self._note(entry.place, table, text)

    def _trigger(self, head: Table) -> str:
        entry = head.get("trigger")
        if entry is None or not isinstance(entry.value, str):
            return ""
        for word in (AVAILABLE_NOW, BATCH):
            if entry.value.strip().lower() == word.lower():
                return word
        if seconds_of(entry.value) is None:
            near = nearest(entry.value, (AVAILABLE_NOW, BATCH))
            if entry.value.strip().lower() == "once":
                near = f": write {AVAILABLE_NOW!r}, which also keeps to the limits of its sources"
            expected = f": expected {AVAILABLE_NOW}, {BATCH}, or an interval such as '10 seconds'"
            self._note(entry.place, head, f"'trigger' cannot be {entry.value!r}{near or expected}")
        return entry.value.strip()

    def _stop_timeout(self, head: Table) -> float:
        text = head.text("stopTimeout")
        seconds = DEFAULT_STOP_TIMEOUT_S if text is None else seconds_of(text)
        return DEFAULT_STOP_TIMEOUT_S if seconds is None else seconds

    @staticmethod
    def _texts(table: Table, key: str) -> list[str]:
        entry = table.get(key)
        return list(entry.value) if entry and isinstance(entry.value, list) else []

    def _shared(self, defaults: Mapping[str, str], options: Mapping[str, str]) -> dict[str, str]:
        table = self.tables.one("options")
        own = {key: entry.text for key, entry in table.entries.items()}
        shared = merged(defaults, own, options)
        if not self._has_problem(table):
            self._check_together(table, lambda: Options(shared, Use.CONNECT))
        return shared

    def _transaction(self, shared: Mapping[str, str]) -> dict[str, str]:
        table = self.tables.one("transaction")
        own = {key: entry.text for key, entry in table.entries.items()}
        topic = table.get("topic")
        if topic is not None:
            self._note(topic.place, table, "'topic' stands in each [[sink]]")
        every = table.get("transactions")
        if every is not None and every.text.lower() == "false":
            self._note(every.place, table, "a job writes in transactions only: drop the option")
        options = merged(shared, own)
        if (
            own
            and not self._has_problem(table)
            and not self._has_problem(self.tables.one("options"))
        ):
            self._check_together(table, lambda: Options(options, SCOPE_WRITE))
        return options

    def _source(self, table: Table, shared: Mapping[str, str], trigger: str) -> Source:
        source_format, stream = format_of(table), self._checks.streams(table)
        decode = (table.text("decode") or "bytes").lower()
        path = table.get("path")
        if source_format == FORMAT:
            own = {
                key: entry.text
                for key, entry in table.entries.items()
                if table.section.key(key.partition(".")[0]) is None
            }
            options = merged(_without_metrics(shared), own)
            if not self._has_problem(table) and not self._has_problem(self.tables.one("options")):
                use = Use.READ | (Use.STREAM if stream else Use.BATCH)
                self._check_together(table, lambda: source_options(options, use))
            for name in ("path", "options"):
                if any(key.partition(".")[0] == name for key in table.entries):
                    text = f"{name!r} is for other formats: options of {FORMAT} stand beside it"
                    self._note(table.place, table, text)
        else:
            options = _nested(table, "options")
            if path is not None:
                options["path"] = path.text
            for name in ("decode", "malformed"):
                if table.text(name) is not None:
                    text = f"{name!r} is for {FORMAT}, whose rows have a column 'value'"
                    self._note(table.place, table, text)
        if stream and trigger == BATCH:
            text = "a job with trigger = \"batch\" has no streams: drop 'stream'"
            self._note(table.place, table, text)
        return Source(
            name=table.text("name") or "",
            place=table.place,
            format=source_format,
            stream=stream,
            options=options,
            decode=decode,
            schema=self._schema(table, decode),
            keep_malformed=(table.text("malformed") or "").lower() == "keep",
            watermark=self._watermark(table),
        )

    def _schema(self, table: Table, decode: str) -> str | None:
        schema, entry = table.text("schema"), table.get("schema")
        is_empty = entry is not None and not entry.text  # which has been said already
        if format_of(table) == FORMAT and not is_empty:
            problem = _schema_problem(decode, schema)
            if problem:
                self._note(table.place if entry is None else entry.place, table, problem)
        return schema

    def _watermark(self, table: Table) -> Watermark | None:
        values = _nested(table, "watermark")
        if not values:
            return None
        entry = table.get("watermark.column") or table.get("watermark.delay")
        place = table.place if entry is None else entry.place
        for name in ("column", "delay"):
            if name not in values:
                self._note(place, table, f"'watermark' has no {name!r}")
        delay = values.get("delay", "0 seconds")
        if seconds_of(delay) is None:
            text = f"watermark.delay cannot be {delay!r}: expected an interval such as '10 minutes'"
            self._note(place, table, text)
        return Watermark(values.get("column", ""), delay)

    def _steps(self) -> list[Step]:
        known = [table.text("name") or "" for table in self.tables.of("source")]
        steps = []
        for table in self.tables.of("step"):
            sql, python = table.text("sql"), table.text("python")
            self._one_of(table, ("sql", "python"), required=True)
            inputs = self._texts(table, "inputs")
            if inputs and python is None:
                self._note(table.place, table, "'inputs' is for 'python': SQL names its views")
            if python is not None and not _FUNCTION.fullmatch(python):
                place = table.get("python")
                text = f"'python' cannot be {python!r}: expected module:function"
                self._note(place.place if place else table.place, table, text)
            for view in inputs:
                if view not in known:
                    hint = nearest(view, known) or f" (there are {', '.join(known) or 'none'})"
                    self._note(table.place, table, f"no view {view!r} stands before it{hint}")
            steps.append(
                Step(
                    table.text("name") or "",
                    _content(table, "sql"),
                    sql,
                    python,
                    tuple(inputs or known[-1:]),
                    self._watermark(table),
                )
            )
            known.append(steps[-1].name)
        return steps

    def _sink(self, table: Table, shared: Mapping[str, str]) -> Sink:
        topic, sink_format = table.get("topic"), format_of(table)
        self._one_of(table, ("from", "sql"), required=False)
        options = _nested(table, "options")
        if table.text("path") is not None:
            options["path"] = table.text("path") or ""
        if sink_format == FORMAT:
            if topic is not None:
                self._check_topic(table, topic, shared)
            if options or table.text("mode"):
                text = "'mode', 'path' and 'options' are for other formats"
                self._note(table.place, table, text)
        elif topic is not None or table.text("encode") or table.text("key"):
            text = f"'topic', 'encode' and 'key' are for {FORMAT}"
            self._note(table.place, table, text)
        default = topic.text if topic is not None else sink_format
        return Sink(
            name=table.text("name") or default,
            place=_content(table, "sql"),
            view=table.text("from"),
            sql=table.text("sql"),
            topic=None if topic is None else topic.text,
            json=(table.text("encode") or "none").lower() == "json",
            key=table.text("key"),
            format=sink_format,
            mode=table.text("mode") or "append",
            options=options,
        )

    def _check_topic(self, table: Table, topic: Entry, shared: Mapping[str, str]) -> None:
        try:
            overrides = shared.get("domain.overrides")
            domains = Domains.parse(overrides) if overrides else Domains()
            domains.of(TopicName.of_any_domain(topic.text.strip())).require_segmented()
        except ValueError as error:
            self._note(topic.place, table, f"'topic': {error}")

    # -- the whole -----------------------------------------------------------------------------

    def _one_of(self, table: Table, names: tuple[str, str], *, required: bool) -> None:
        count = sum(table.text(name) is not None for name in names)
        first, second = names
        if count > 1:
            self._note(table.place, table, f"{first!r} and {second!r} exclude each other: drop one")
        elif required and not count:
            self._note(table.place, table, f"{first!r} or {second!r} is missing")

    def _check_names(self, head: Table) -> None:
        stop = head.get("stopTimeout")
        if stop is not None and seconds_of(stop.text) is None:
            text = f"'stopTimeout' cannot be {stop.text!r}: expected an interval such as '1 minute'"
            self._note(stop.place, head, text)
        if not self.tables.of("source"):
            self._note(head.place, None, "there is no [[source]]: nothing would be read")
        if not self.tables.of("sink"):
            self._note(head.place, None, "there is no [[sink]]: nothing would be written")
        first: dict[str, Place] = {}
        for table in (*self.tables.of("source"), *self.tables.of("step")):
            entry = table.get("name")
            if entry is None or not entry.text:
                continue
            name = entry.text.lower()
            if not _VIEW.fullmatch(name):
                text = "the name of a view has letters, digits and '_' only, and no digit in front"
                self._note(entry.place, table, text)
            elif name in first:
                text = f"the name stands at {first[name]} already: SQL would see only one of them"
                self._note(entry.place, table, text)
            first.setdefault(name, entry.place)

    def _check_sinks(
        self, sources: Iterable[Source], steps: Iterable[Step], sinks: Iterable[Sink]
    ) -> None:
        views = [*(source.name for source in sources), *(step.name for step in steps)]
        for sink, table in zip(sinks, self.tables.of("sink"), strict=True):
            if sink.view is not None and sink.view not in views:
                entry = table.get("from")
                near = nearest(sink.view, views) or f" (there are {', '.join(views) or 'none'})"
                place = entry.place if entry else table.place
                self._note(place, table, f"there is no view {sink.view!r}{near}")

    def _check_batch(self, head: Table) -> None:
        for key in ("checkpoint", "outputMode"):
            entry = head.get(key)
            if entry is not None:
                text = f'{key!r} has no effect with trigger = "batch": drop it'
                self._note(entry.place, head, text)

    def _check_together(self, table: Table, parse: object) -> None:
        """Check the options of a section against each other."""
        assert callable(parse)
        try:
            parse()
        except OptionError as error:
            self._note(table.place, table, str(error))

    def _has_problem(self, table: Table) -> bool:
        places = {table.place, *(entry.place for entry in table.entries.values())}
        return any(p.place in places and p.subject == table.title for p in self.problems)


def _content(table: Table, key: str) -> Place:
    """Return where the text of a key begins; the place of the table without one."""
    entry = table.get(key)
    if entry is None:
        return table.place
    return Place(entry.place.origin, entry.content or entry.place.line)


def _nested(table: Table, name: str) -> dict[str, str]:
    prefix = f"{name}."
    return {
        key[len(prefix) :]: entry.text
        for key, entry in table.entries.items()
        if key.lower().startswith(prefix)
    }


def _option_name(table: Table, key: str) -> str:
    """Return the option or setting that a key of a table sets."""
    return key.removeprefix("options.") if table.section.several else key


def _schema_problem(decode: str, schema: str | None) -> str:
    """Return what is wrong with `decode` and `schema` of a source together, empty if nothing is."""
    if schema is None:
        if decode not in WITH_SCHEMA:
            return ""
        example = '"id BIGINT, name STRING"' if decode == "json" else '"${file:flights.avsc}"'
        return f"decode = \"{decode}\" needs a 'schema', such as {example}"
    if decode not in WITH_SCHEMA:
        decodings = " or ".join(f'"{name}"' for name in WITH_SCHEMA)
        return f"'schema' has no effect without decode = {decodings}"
    return avro.schema_problem(schema) if decode == "avro" else ""


def _without_metrics(options: Mapping[str, str]) -> dict[str, str]:
    # The driver serves them, in the name of all sources and sinks.
    return {key: text for key, text in options.items() if not key.lower().startswith(_METRICS)}
