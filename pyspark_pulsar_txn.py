"""Makes ``format("pulsar_txn")`` known to Spark without registration.

Spark imports every top-level module named ``pyspark_<something>`` on its Python path and takes
the data source that it calls ``DefaultSource``.
"""

from pulsar_txn_spark.environment import require_python_and_pyspark

# Before the import below, which an older PySpark fails without saying why.
require_python_and_pyspark()

from pulsar_txn_spark.spark.datasource import PulsarTxnDataSource as DefaultSource  # noqa: E402

__all__ = ["DefaultSource"]
