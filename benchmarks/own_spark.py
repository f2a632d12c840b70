"""A Spark in a process of its own, perhaps of another virtual environment; see `spark_job.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from benchmarks.measure import SideError
from benchmarks.own_process import OwnProcess


class OwnSpark(OwnProcess):
    """A Spark that starts when it is first asked for something.

    Parameters
    ----------
    python : str
        The interpreter.
    settings : mapping of str to object
        For the job; see there.
    environment : mapping of str to str
    error : type of SideError
        Raised where the job fails or dies.
    folder : Path, optional
        Where it runs; by default where this process does.
    """

    def __init__(
        self,
        python: str,
        settings: Mapping[str, object],
        environment: Mapping[str, str],
        error: type[SideError] = SideError,
        folder: Path | None = None,
    ) -> None:
        script = str(Path(__file__).with_name("spark_job.py"))
        super().__init__([python, script, json.dumps(settings)], environment, error, folder)
