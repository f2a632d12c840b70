"""Checks the keys of a job file's sections one by one: their names, types, words and options."""

from __future__ import annotations

from dataclasses import dataclass

from pulsar_txn_spark.backends.pulsar.passthrough import validate_passthrough
from pulsar_txn_spark.environment import FORMAT
from pulsar_txn_spark.errors import OptionError
from pulsar_txn_spark.job.keys import BATCH, FORMAT_KEY, Key, Kind
from pulsar_txn_spark.job.problems import Place, Problem, nearest
from pulsar_txn_spark.job.tables import Entry, Table, Tables
from pulsar_txn_spark.options import Use, documented, parse_option

_KEPT_IN_QUERY = frozenset({"checkpointlocation", "path"})
"""Options that Spark adds; in a job file they have keys of their own."""

_OPTIONS_OF_PULSAR = ("pulsar.client.", "pulsar.producer.", "pulsar.reader.", "pulsar.admin.")


@dataclass(slots=True)
class KeyChecks:
    """Notes what is wrong with single keys.

    Parameters
    ----------
    tables : Tables
    problems : list of Problem
        Gets what is wrong.
    """

    tables: Tables
    problems: list[Problem]

    def _note(self, place: Place, table: Table, text: str) -> None:
        self.problems.append(Problem(place, table.title, text))

    def check_keys(self, table: Table) -> None:
        """Check the keys of the table itself: their types, their words, and what is missing."""
        for key, entry in list(table.entries.items()):  # some are put anew on the way
            name, _, rest = key.partition(".")
            known = table.section.key(name)
            if known is None:
                self._check_further(table, key, entry)
            elif known.kind is Kind.TABLE:
                self._check_field(table, known, rest, entry)
            elif rest:
                self._note(entry.place, table, f"{name!r} is a {known.kind}, not a table")
            else:
                self._check_value(table, known, entry)
        for known in table.section.keys:
            if known.required and not table.text(known.name):
                self._note(table.place, table, f"{known.name!r} is missing: {known.help}")

    def _check_field(self, table: Table, key: Key, name: str, entry: Entry) -> None:
        if not name:
            fields = ", ".join(f"{field} = …" for field in key.fields) or "key = …"
            self._note(entry.place, table, f"{key.name!r} is a table: {key.name} = {{ {fields} }}")
        elif key.fields and name not in key.fields:
            near = nearest(name, key.fields) or f". Known are {', '.join(key.fields)}"
            self._note(entry.place, table, f"unknown key {key.name}.{name}{near}")

    def _check_value(self, table: Table, key: Key, entry: Entry) -> None:
        value = entry.value
        if key.kind is Kind.FLAG:
            if entry.text.lower() not in ("true", "false"):
                self._note(entry.place, table, f"{key.name!r} has to be true or false")
            elif not isinstance(value, bool):
                table.put(key.name, Entry(entry.text.lower() == "true", entry.place))
        elif key.kind is Kind.TEXTS:
            if isinstance(value, str):
                table.put(key.name, Entry([t.strip() for t in value.split(",")], entry.place))
            elif not isinstance(value, list):
                self._note(entry.place, table, f"{key.name!r} has to be a list of texts")
        elif not isinstance(value, str):
            self._note(entry.place, table, f"{key.name!r} has to be a text, in quotation marks")
        elif not value.strip():
            self._note(entry.place, table, f"{key.name!r} is empty")
        elif key.words and value.lower() not in key.words:
            near = nearest(value, key.words)
            words = near or f": expected one of {', '.join(key.words)}"
            self._note(entry.place, table, f"{key.name!r} cannot be {value!r}{words}")

    def _check_further(self, table: Table, key: str, entry: Entry) -> None:
        """Check a key that is not of the table: an option, unless it is misspelt."""
        section = table.section
        if section.name == "spark":
            return
        own = [known.name for known in section.keys]
        is_own_source = section.name == "source" and format_of(table) == FORMAT
        if section.name not in {"options", "transaction"} and not is_own_source:
            near = nearest(key, own)
            hint = near or f". Known are {', '.join(own)}"
            if not near and section.name != "step" and format_of(table) != FORMAT:
                hint = ": options of another format stand in options = { … }"
            elif not near and section.name == "sink" and _is_option(key):
                hint = ": the options of all sinks stand in [transaction]"
            self._note(entry.place, table, f"unknown key {key!r}{hint}")
            return
        if not _is_option(key):
            near = nearest(key, own, cutoff=0.75)
            if near:
                self._note(entry.place, table, f"unknown key {key!r}{near}")
                return
        self._check_option(table, key, entry)

    def _check_option(self, table: Table, key: str, entry: Entry) -> None:
        if key.lower() in _KEPT_IN_QUERY:
            self._note(
                entry.place, table, f"unknown option {key!r}: 'checkpoint' of [job] is the folder"
            )
            return
        if _is_passthrough(key):
            _, kind, name = key.split(".", 2)
            try:
                validate_passthrough(kind, {name.lower(): entry.text})
            except OptionError as error:
                self._note(entry.place, table, str(error))
            return
        use = {
            "options": Use.CONNECT,
            "transaction": Use.WRITE | Use.BATCH,
        }.get(table.section.name, self._use(table))
        try:
            parse_option(key, entry.text, use)
        except OptionError as error:
            hint = ""
            is_elsewhere = _is_option(key) and not _is_for(key, Use.CONNECT)
            if table.section.name == "options" and is_elsewhere:
                places = "a [[source]]" if _is_for(key, Use.READ) else "[transaction]"
                if _is_for(key, Use.READ) and _is_for(key, Use.WRITE):
                    places = "a [[source]] or [transaction]"
                hint = f". Here are those of the store and of Pulsar: put it into {places}"
            self._note(entry.place, table, f"{error}{hint}")

    def _use(self, table: Table) -> Use:
        return Use.READ | (Use.STREAM if self.streams(table) else Use.BATCH)

    def streams(self, table: Table) -> bool:
        """Tell whether a source is read as a stream."""
        stream = table.text("stream")
        if stream is not None:
            return stream == "true"
        is_batch = (self.tables.one("job").text("trigger") or "").strip().lower() == BATCH
        return format_of(table) == FORMAT and not is_batch


def format_of(table: Table) -> str:
    """Return the format of a source or sink."""
    return table.text(FORMAT_KEY) or FORMAT


def _is_passthrough(key: str) -> bool:
    return key.lower().startswith(_OPTIONS_OF_PULSAR)


def _is_option(key: str) -> bool:
    return _is_passthrough(key) or any(o.key.lower() == key.lower() for o in documented())


def _is_for(key: str, use: Use) -> bool:
    return any(bool(o.use & use) for o in documented() if o.key.lower() == key.lower())
