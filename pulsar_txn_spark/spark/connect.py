"""What Spark Connect does not tell a ``foreachBatch`` function: which attempt of which query it is.

The function's commands run outside of the query's thread, so that neither they nor their tasks
have Spark's local properties. Each write is a root SQL execution of its own.
"""

from __future__ import annotations

import os
import secrets
from typing import Any

from pulsar_txn_spark.errors import OptionError
from pulsar_txn_spark.spark.checkpoint import Checkpoint


def is_connect(session: Any) -> bool:
    """Tell whether a session is a client of Spark Connect, which has no SparkContext."""
    return session is not None and getattr(session, "_sc", None) is None


def query_of_connect(session: Any, checkpoint: Checkpoint | None) -> str:
    """Return the id of the query that runs a function.

    Parameters
    ----------
    session : SparkSession
        Of the micro-batch.
    checkpoint : Checkpoint or None
        The one that the sink's options name, if it can be read.

    Raises
    ------
    OptionError
        If it cannot be told, or if the checkpoint is not that of a query of the session.
    """
    active = [str(query.id) for query in session.streams.active]
    if checkpoint is not None:
        if active and checkpoint.query not in active:
            raise OptionError(
                f"checkpointLocation is the checkpoint of query {checkpoint.query}, which does not "
                f"run in this session: expected that of {' or '.join(active)}. Give the sink the "
                "checkpointLocation of its own query"
            )
        return checkpoint.query
    if len(active) != 1:
        raise OptionError(
            f"Spark Connect does not tell which query runs this function ({len(active)} queries "
            "are active in its session), so that a replay could not be recognized. Give the sink "
            "the option checkpointLocation with the path of the query's checkpoint, as the server "
            "of Spark Connect reads it"
        )
    return active[0]


def attempt_of_connect(batch_id: int) -> str:
    """Name this attempt at a micro-batch: the same for all that its function writes.

    Each run of a query starts a process for its function (``StreamingPythonRunner.scala``), which
    is not of PySpark's daemon and serves no other run. It calls the function once for each batch
    (``foreach_batch_worker.py``). An error of the function ends both.
    """
    return f"{_name_of_process(os.getpid())}/{batch_id}"


_names: dict[int, str] = {}
"""The name of each process, by its id: a process that is forked has another id and name."""


def _name_of_process(pid: int) -> str:
    # A function's threads may get here at once: setdefault gives the name of the first to all.
    return _names.setdefault(pid, f"connect-{pid}-{secrets.token_hex(8)}")
