"""Whether Spark finds ``format("pulsar_txn")``: the same lookup in the interpreter it starts."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pulsar_txn_spark.environment import FORMAT

_TIMEOUT_S = 120  # importing PySpark takes seconds on a busy machine

# As pyspark/sql/worker/lookup_data_sources.py does it, but a module that fails does not end it.
_LOOKUP = """
import importlib, json, pkgutil, sys
found, failed, unusable = [], {}, ""
for info in pkgutil.iter_modules():
    if info.name.startswith("pyspark_"):
        try:
            source = getattr(importlib.import_module(info.name), "DefaultSource", None)
            if source is not None:
                found.append(source.name())
                if source.name() == "pulsar_txn" and source.__module__ == info.name:
                    try:
                        source({})  # the stand-in for a PySpark that is too old raises
                    except Exception as error:
                        unusable = str(error)
        except BaseException as error:
            failed[info.name] = f"{type(error).__name__}: {error}"
print(json.dumps({"found": found, "failed": failed, "unusable": unusable}))
"""


@dataclass(frozen=True, slots=True)
class Lookup:
    """The result of the lookup.

    Parameters
    ----------
    python : str
        The interpreter that Spark starts.
    chosen_by : str
        The variable that chose it, or that none did.
    visible : bool
        Whether the format exists and can be used.
    problem : str
        Empty if it can be used.
    """

    python: str
    chosen_by: str
    visible: bool
    problem: str = ""


def spark_python(environment: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """Return the interpreter in which Spark looks for data sources, and what chose it.

    It is that of ``PythonUtils.defaultPythonExec``, in Spark's JVM.
    """
    for variable in ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON"):
        if environment.get(variable):
            return environment[variable], variable
    return "python3", "neither PYSPARK_DRIVER_PYTHON nor PYSPARK_PYTHON is set"


def _python_path(environment: Mapping[str, str]) -> list[str]:
    """Return the path that Spark gives to its workers: its own PySpark, then PYTHONPATH."""
    home = environment.get("SPARK_HOME")
    spec = importlib.util.find_spec("pyspark")
    if not home and spec is not None and spec.origin is not None:
        home = str(Path(spec.origin).parent)
    own = sorted(map(str, Path(home).glob("python/lib/*.zip"))) if home else []
    return [*own, *filter(None, [environment.get("PYTHONPATH")])]


def look_up(environment: Mapping[str, str] = os.environ) -> Lookup:
    """Look for the format as Spark does, from the current folder."""
    python, why = spark_python(environment)
    path = shutil.which(python, path=environment.get("PATH"))
    if path is None:
        return Lookup(python, why, False, f"there is no {python} on the PATH")
    try:
        answer = subprocess.run(  # noqa: S603 — the very program that Spark would start
            [path, "-c", _LOOKUP],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            env={**environment, "PYTHONPATH": os.pathsep.join(_python_path(environment))},
        )
        answered = json.loads(answer.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        return Lookup(path, why, False, f"it does not run: {error}")
    failed: dict[str, str] = answered["failed"]
    if failed:
        named = "; ".join(f"{module}: {error}" for module, error in failed.items())
        return Lookup(path, why, False, f"Spark registers no data source at all, as of {named}")
    if answered["unusable"]:
        return Lookup(path, why, False, answered["unusable"])
    if FORMAT not in answered["found"]:
        return Lookup(path, why, False, "no module of the name pyspark_pulsar_txn on its path")
    return Lookup(path, why, True)
