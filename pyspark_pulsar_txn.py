"""Makes ``format("pulsar_txn")`` known to Spark without registration.

Spark imports every top-level module named ``pyspark_<something>`` on its Python path and takes
the data source that it calls ``DefaultSource``. If one of them raises, Spark registers none at all
and reports DATA_SOURCE_NOT_FOUND. So this module never raises: what is wrong is said by the
constructor of the data source that it registers.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

try:
    from pulsar_txn_spark.environment import require_python_and_pyspark

    # Before the import below, which an older PySpark fails without saying why.
    require_python_and_pyspark()

    from pulsar_txn_spark.spark.datasource import PulsarTxnDataSource as DefaultSource
except Exception as error:  # noqa: BLE001 — whatever it is, the constructor says it
    _why = error
    _Base: Any = object
    with contextlib.suppress(ImportError):  # PySpark before 4.0 looks for no data sources
        from pyspark.sql.datasource import DataSource as _Base

    class DefaultSource(_Base):  # type: ignore[misc, no-redef]
        """Takes the format's place where it cannot be loaded, and says why."""

        def __init__(self, options: Any = None) -> None:  # noqa: ARG002 — Spark's signature
            if type(_why).__module__ == "pulsar_txn_spark.errors":
                raise _why.with_traceback(None)
            raise ImportError(
                f"format('pulsar_txn') cannot be loaded by {sys.executable}: "
                f"{type(_why).__name__}: {_why}. Install it for this interpreter, with what it "
                "needs (pip install --force-reinstall pulsar-txn-spark), or name another "
                "interpreter in PYSPARK_PYTHON; 'pulsar-txn doctor' checks this"
            )

        @classmethod
        def name(cls) -> str:
            """Return the format's name."""
            return "pulsar_txn"


__all__ = ["DefaultSource"]
