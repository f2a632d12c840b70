"""The main job on real input, killed in the middle of batches, and the proof that it is exact.

``python -m demo [--backend embedded|pulsar]``, or ``make demo``.
"""
