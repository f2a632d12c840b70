"""The main job on real input, killed in the middle of batches, and the proof that it is exact.

``python -m pulsar_txn_spark.demo [--backend embedded|pulsar]``, or ``make demo``.
"""
