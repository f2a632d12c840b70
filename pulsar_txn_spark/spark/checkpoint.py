"""Spark's offset log, ``offsets/<batch id>`` in the checkpoint: what it planned for a batch.

Spark writes it before the batch starts, and a replay follows the same file. This package reads it
only for comparison (see ``txn/replay_evidence.py``). Where it cannot be read (a file system that
Python does not know, Spark Connect), rows are compared instead.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from functools import partial
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaPackage  # type: ignore[import-untyped]
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from pulsar_txn_spark.errors import TransactionConflictError
from pulsar_txn_spark.options import Options
from pulsar_txn_spark.txn.replay_evidence import (
    Compared,
    EvidenceRule,
    PlannedBatch,
    digest_of_plan,
)

_HEAD_LINES = 2  # the version and the batch's metadata; then a line for each source
_OWN_OFFSET = {"v", "store", "topics"}
_OF_FIRST_BATCH = {"from"}  # what the end of a query's first batch has besides


def planned_batch(record: bytes, store: str | None) -> PlannedBatch:
    """Read Spark's record of a batch.

    Parameters
    ----------
    record : bytes
    store : str or None
        UUID of the sink's metadata store, None if it has none.
    """
    return PlannedBatch(digest_of_plan(record), _has_foreign(record, store))


def _has_foreign(record: bytes, store: str | None) -> bool | None:
    """Tell whether a record has offsets that are not of this package's source on a store."""
    lines = record.decode("utf-8", "replace").splitlines()
    if not lines or lines[0] != "v1":
        return None  # a format that this version does not know
    # A source that has nothing yet has a dash.
    return any(
        not _is_own(line, store) for line in lines[_HEAD_LINES:] if line.strip() not in ("", "-")
    )


def _is_own(line: str, store: str | None) -> bool:
    try:
        offset = json.loads(line)
    except ValueError:
        return False
    own = isinstance(offset, dict) and offset.keys() - _OF_FIRST_BATCH == _OWN_OFFSET
    # What was read on another store shows in no range that the sink's store has.
    return own and isinstance(offset["store"], dict) and offset["store"].get("uuid") == store


class Checkpoint(ABC):
    """A query's checkpoint.

    Parameters
    ----------
    root : str
        Its path.
    query : str
        Id of the query.
    """

    def __init__(self, root: str, query: str) -> None:
        self._root = root
        self.query = query

    def planned(self, batch: int, store: str | None) -> PlannedBatch | None:
        """Return what Spark planned for a batch, None if it has no record of it.

        Parameters
        ----------
        batch : int
        store : str or None
            UUID of the sink's metadata store, None if it has none.

        Raises
        ------
        TransactionConflictError
            If the record cannot be read.
        """
        try:
            record = self._record(f"{self._root}/offsets/{batch}")
        except (OSError, Py4JError) as error:
            raise TransactionConflictError(
                f"Spark's offsets of batch {batch} cannot be read from the checkpoint {self._root} "
                f"({type(error).__name__}: {error}). A replay of the batch could not be told from "
                "other data. Nothing was committed; start the query again when the checkpoint can "
                "be read"
            ) from error
        return None if record is None else planned_batch(record, store)

    @abstractmethod
    def _record(self, path: str) -> bytes | None:
        """Return a file's content; None if there is no such file."""


class LocalCheckpoint(Checkpoint):
    """A checkpoint in a file system of this machine.

    Parameters
    ----------
    root : str
    query : str
    """

    @classmethod
    def at(cls, location: str | None) -> LocalCheckpoint | None:
        """Return the checkpoint at a location as Spark takes it, None if there is none here."""
        if location is None:
            return None
        scheme, colon, path = location.partition(":")
        if not colon:
            path = location
        elif scheme != "file":
            return None
        elif path.startswith("//"):
            path = "/" + path.lstrip("/")
        try:
            text = (Path(path) / "metadata").read_text(encoding="utf-8")
            query = json.loads(text)["id"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return cls(str(Path(path)), str(query))

    def _record(self, path: str) -> bytes | None:
        try:
            return Path(path).read_bytes()
        except FileNotFoundError:
            return None


class JvmCheckpoint(Checkpoint):
    """The checkpoint of a query that runs in this process's JVM, on any file system.

    Parameters
    ----------
    session : SparkSession
        Of Spark Classic, in the thread in which Spark called a ``foreachBatch`` function.
    query : str
    """

    def __init__(self, session: Any, query: str) -> None:
        self._jvm = session._jvm  # noqa: SLF001 - PySpark has no public way
        jsession = session._jsparkSession  # noqa: SLF001
        uuid = self._jvm.java.util.UUID.fromString(query)
        # Not session.streams: the function's session is a clone that manages no query.
        execution = jsession.sharedState().activeStreamingQueries().get(uuid)
        super().__init__(str(execution.resolvedCheckpointRoot()), query)
        self._files = self._jvm.org.apache.hadoop.fs.Path(self._root).getFileSystem(
            jsession.sessionState().newHadoopConf()
        )
        self._read = self._jvm.org.apache.commons.io.IOUtils.toByteArray
        if isinstance(self._read, JavaPackage):
            raise TypeError("there is no commons-io")  # this is how py4j says so

    @classmethod
    def of(cls, session: Any, query: str | None) -> JvmCheckpoint | None:
        """Return the checkpoint of a query, None if it cannot be reached."""
        if query is None or getattr(session, "_jsparkSession", None) is None:
            return None
        try:
            return cls(session, query)
        except (Py4JError, AttributeError, TypeError):
            return None  # a version of Spark that lacks one of these methods

    def _record(self, path: str) -> bytes | None:
        file = self._jvm.org.apache.hadoop.fs.Path(path)
        if not self._files.exists(file):
            return None
        stream = self._files.open(file)
        try:
            return bytes(self._read(stream))
        finally:
            stream.close()


def evidence_rule(
    options: Options, checkpoint: Checkpoint | None, query: str, store: str | None
) -> EvidenceRule:
    """Return how the replay of a batch is recognized.

    Parameters
    ----------
    options : Options
    checkpoint : Checkpoint or None
    query : str
    store : str or None
        UUID of the sink's metadata store, None if it has none.
    """
    compared = Compared(options.get("replayEvidence"))
    if checkpoint is None or checkpoint.query != query:
        return EvidenceRule(compared)
    return EvidenceRule(compared, partial(checkpoint.planned, store=store), promised=True)


def wants_fingerprint(options: Options, *, query: str, readable: str, replay: bool) -> bool:
    """Tell whether a task has to make a fingerprint of its rows.

    Parameters
    ----------
    options : Options
    query : str
        Id of the query that the task belongs to; empty outside of a stream.
    readable : str
        Id of the query whose checkpoint the driver can read.
    replay : bool
        Whether the batch is committed: whatever is known of it then is to be compared.
    """
    compared = Compared(options.get("replayEvidence"))
    if not query or compared in (Compared.OFFSETS, Compared.NONE):
        return False
    return replay or compared is Compared.ROWS or query != readable
