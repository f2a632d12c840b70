"""Measures throughput, the cost of transactions and latency: ``python -m benchmarks``."""
