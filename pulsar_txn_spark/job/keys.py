"""Every key of a job file, once: the reader, the documentation and the environment use this table.

A section may have further keys: `spark` any setting of Spark, the others options of
``format("pulsar_txn")``.
"""

from __future__ import annotations

from dataclasses import dataclass

from pulsar_txn_spark.backports import StrEnum


class Kind(StrEnum):
    """Type of a key's value."""

    TEXT = "text"
    FLAG = "true or false"
    TEXTS = "list of texts"
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class Key:
    """One key.

    Parameters
    ----------
    name : str
    kind : Kind
    help : str
    default : str
        As the documentation shows it; empty = none.
    words : tuple of str
        The values that it may have; empty = any.
    required : bool
    fields : tuple of str
        The keys of a TABLE; empty = any.
    """

    name: str
    kind: Kind
    help: str
    default: str = ""
    words: tuple[str, ...] = ()
    required: bool = False
    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """One section of the file.

    Parameters
    ----------
    name : str
    several : bool
        Whether it is ``[[name]]``, and there may be many.
    keys : tuple of Key
    help : str
    """

    name: str
    several: bool
    keys: tuple[Key, ...]
    help: str

    @property
    def title(self) -> str:
        """Its header in the file."""
        return f"[[{self.name}]]" if self.several else f"[{self.name}]"

    def key(self, name: str) -> Key | None:
        """Return the key of a name, in any case; None if it is not of this table."""
        matching = (key for key in self.keys if key.name.lower() == name.lower())
        return next(matching, None)


FORMAT_KEY = "format"
DECODINGS = ("bytes", "string", "json", "avro")
WITH_SCHEMA = ("json", "avro")
ENCODINGS = ("none", "json")
OUTPUT_MODES = ("append", "update", "complete")
AVAILABLE_NOW = "availableNow"
BATCH = "batch"
WATERMARK = Key(
    "watermark",
    Kind.TABLE,
    "`{ column = …, delay = … }`: how late rows may come, for state that is to end. "
    "The delay is an interval such as `10 minutes`.",
    fields=("column", "delay"),
)

SECTIONS: tuple[Section, ...] = (
    Section(
        "job",
        False,
        (
            Key("name", Kind.TEXT, "Name of the job and of its query.", required=True),
            Key(
                "checkpoint",
                Kind.TEXT,
                "Folder of the query's checkpoint, on a file system that all drivers reach. "
                "Needed unless `trigger` is `batch`.",
            ),
            Key(
                "trigger",
                Kind.TEXT,
                "`availableNow` (read what is there, then end), an interval such as `10 seconds`, "
                "or `batch` (no stream: one transaction over all topics, without a checkpoint).",
                default="a new micro-batch at once",
            ),
            Key(
                "outputMode",
                Kind.TEXT,
                "Which rows of an aggregation a micro-batch has.",
                default="append",
                words=OUTPUT_MODES,
            ),
            Key(
                "persist",
                Kind.FLAG,
                "Whether a micro-batch is kept in memory and on disk while its sinks are written, "
                "so that it is computed once.",
                default="true with several sinks",
            ),
            Key(
                "stopTimeout",
                Kind.TEXT,
                "How long SIGTERM waits for the running micro-batch, then it is aborted.",
                default="60 seconds",
            ),
            Key(
                "pyFiles",
                Kind.TEXTS,
                "Python files and zips that the functions of steps need, also on executors.",
            ),
        ),
        "The job.",
    ),
    Section(
        "spark",
        False,
        (),
        "Settings of Spark, with or without `spark.` in front. `master` is for "
        "`pulsar-txn job run` alone: spark-submit has its own.",
    ),
    Section(
        "options",
        False,
        (),
        "[Options](options.md) of all sources and sinks: where the store and Pulsar are.",
    ),
    Section(
        "transaction",
        False,
        (),
        "[Options](options.md) of the transaction that all sinks share, such as `txn.timeoutMs` "
        "and `sinkFirstBatch`.",
    ),
    Section(
        "source",
        True,
        (
            Key("name", Kind.TEXT, "Name of its view in SQL.", required=True),
            Key(
                FORMAT_KEY,
                Kind.TEXT,
                "`pulsar_txn`, whose options stand beside it, or a format of Spark's, whose "
                "options are in `options`.",
                default="pulsar_txn",
            ),
            Key(
                "stream",
                Kind.FLAG,
                "Whether it is read as a stream. A static source is read once per start.",
                default='true for pulsar_txn, false for others; false with `trigger = "batch"`',
            ),
            Key(
                "decode",
                Kind.TEXT,
                "What becomes of `value`: nothing, a text, or the columns of `schema`.",
                default="bytes",
                words=DECODINGS,
            ),
            Key(
                "schema",
                Kind.TEXT,
                "Columns as in `CREATE TABLE`: of the JSON, or of the files of another format. Of "
                "Avro: its schema, as JSON.",
            ),
            Key(
                "malformed",
                Kind.TEXT,
                "Of messages that do not fit the schema: `fail` stops the job, `keep` puts them "
                "into the column `__malformed`, which is null elsewhere.",
                default="fail",
                words=("fail", "keep"),
            ),
            WATERMARK,
            Key("path", Kind.TEXT, "Path of another format's files."),
            Key("options", Kind.TABLE, "Options of another format."),
        ),
        "Read; a view in SQL. Its further keys are [options](options.md) of the source.",
    ),
    Section(
        "step",
        True,
        (
            Key("name", Kind.TEXT, "Name of its view in SQL.", required=True),
            Key("sql", Kind.TEXT, "A SELECT over the views before it."),
            Key(
                "python",
                Kind.TEXT,
                "Instead of `sql`: `module:function`, called with the session and a DataFrame for "
                "each of `inputs`. It returns a DataFrame.",
            ),
            Key(
                "inputs",
                Kind.TEXTS,
                "Views that `python` gets.",
                default="the view before it",
            ),
            WATERMARK,
        ),
        "One statement of a chain. The last streaming view is the micro-batch.",
    ),
    Section(
        "sink",
        True,
        (
            Key("name", Kind.TEXT, "Name of the sink in messages.", default="its topic or format"),
            Key(
                "topic",
                Kind.TEXT,
                "Topic of the rows. Rows with a column `__topic` name their own.",
            ),
            Key("from", Kind.TEXT, "View to write.", default="the last streaming view"),
            Key(
                "sql",
                Kind.TEXT,
                "Instead of `from`: a SELECT over the micro-batch, which is named as the last "
                "streaming view is.",
            ),
            Key(
                "encode",
                Kind.TEXT,
                "`json` puts all columns but those that begin with `__` into `value`.",
                default="none",
                words=ENCODINGS,
            ),
            Key("key", Kind.TEXT, "An expression for `__key`.", default="the column `__key`"),
            Key(
                FORMAT_KEY,
                Kind.TEXT,
                "`pulsar_txn`, or a batch format of Spark's, which is no part of the transaction.",
                default="pulsar_txn",
            ),
            Key(
                "mode",
                Kind.TEXT,
                "How another format is written.",
                default="append",
                words=("append", "overwrite", "ignore", "error"),
            ),
            Key("path", Kind.TEXT, "Path of another format's files."),
            Key("options", Kind.TABLE, "Options of another format."),
        ),
        "Written in each micro-batch. All sinks are one transaction.",
    ),
)

SECTION = {section.name: section for section in SECTIONS}
