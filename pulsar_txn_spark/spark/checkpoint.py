"""Spark's own record of what it planned for a batch: ``offsets/<batch id>`` in the checkpoint.

Spark writes it before the batch runs, and a replay runs by the very same file. It is read, never
written, and only for comparison (see ``txn/replay_evidence.py``). Where it cannot be read (a file
system that Python does not know, Spark Connect) there is none, and rows are compared instead.
"""

from __future__ import annotations

import json
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


def planned_batch(record: bytes) -> PlannedBatch:
    """Read Spark's record of a batch."""
    return PlannedBatch(digest_of_plan(record), _has_foreign(record))


def _has_foreign(record: bytes) -> bool | None:
    """Tell whether a record has offsets that are not of this package's source."""
    lines = record.decode("utf-8", "replace").splitlines()
    if not lines or lines[0] != "v1":
        return None  # a format that this version does not know
    # A source that has nothing yet has a dash.
    return any(not _is_own(line) for line in lines[_HEAD_LINES:] if line.strip() not in ("", "-"))


def _is_own(line: str) -> bool:
    try:
        found = json.loads(line)
    except ValueError:
        return False
    return isinstance(found, dict) and found.keys() == _OWN_OFFSET


class LocalCheckpoint:
    """A checkpoint in a file system of this machine.

    Parameters
    ----------
    root : Path
    query : str
        Id of the query that it is of.
    """

    def __init__(self, root: Path, query: str) -> None:
        self._root = root
        self.query = query

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
        return cls(Path(path), str(query))

    def planned(self, batch: int) -> PlannedBatch | None:
        """Return what Spark planned for a batch, None if it has no record of it.

        Raises
        ------
        TransactionConflictError
            If the record cannot be read.
        """
        try:
            return planned_batch((self._root / "offsets" / str(batch)).read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _not_readable(batch, str(self._root), error) from error


class JvmCheckpoint:
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
        self._root = str(execution.resolvedCheckpointRoot())
        self._files = self._jvm.org.apache.hadoop.fs.Path(self._root).getFileSystem(
            jsession.sessionState().newHadoopConf()
        )
        self._read = self._jvm.org.apache.commons.io.IOUtils.toByteArray
        if isinstance(self._read, JavaPackage):
            raise TypeError("there is no commons-io")  # this is how py4j says so
        self.query = query

    @classmethod
    def of(cls, session: Any, query: str | None) -> JvmCheckpoint | None:
        """Return the checkpoint of a query, None if it cannot be had."""
        if query is None or getattr(session, "_jsparkSession", None) is None:
            return None
        try:
            return cls(session, query)
        except (Py4JError, AttributeError, TypeError):
            return None  # another Spark than the ones that this was tried with

    def planned(self, batch: int) -> PlannedBatch | None:
        """Return what Spark planned for a batch, None if it has no record of it.

        Raises
        ------
        TransactionConflictError
            If the record cannot be read.
        """
        try:
            path = self._jvm.org.apache.hadoop.fs.Path(f"{self._root}/offsets/{batch}")
            if not self._files.exists(path):
                return None
            stream = self._files.open(path)
            try:
                record = self._read(stream)
            finally:
                stream.close()
        except Py4JError as error:
            raise _not_readable(batch, self._root, error) from error
        return planned_batch(bytes(record))


Checkpoint = LocalCheckpoint | JvmCheckpoint


def _not_readable(batch: int, root: str, error: Exception) -> TransactionConflictError:
    return TransactionConflictError(
        f"Spark's offsets of batch {batch} cannot be read from the checkpoint {root} "
        f"({type(error).__name__}: {error}): a replay of the batch could not be told from other "
        "data. Nothing was committed; start the query again when the checkpoint can be read"
    )


def evidence_rule(options: Options, checkpoint: Checkpoint | None, query: str) -> EvidenceRule:
    """Return how the batches of a query are told from each other."""
    compared = Compared(options.get("replayEvidence"))
    if checkpoint is None or checkpoint.query != query:
        return EvidenceRule(compared)
    return EvidenceRule(compared, checkpoint.planned, promised=True)


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
