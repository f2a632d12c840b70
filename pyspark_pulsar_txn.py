"""Makes ``format("pulsar_txn")`` known to Spark without registration.

Spark imports every top-level module named ``pyspark_<something>`` on its Python path and takes
the data source that it calls ``DefaultSource``.
"""

from pulsar_txn_spark.spark.datasource import PulsarTxnDataSource as DefaultSource

__all__ = ["DefaultSource"]
