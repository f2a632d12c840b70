"""The transaction bits of a writer: the same in Python and in the brokers' plug-in."""

from __future__ import annotations

from pulsar_txn_spark.backends.pulsar.txn_bits import TxnBits


def test_the_bits_of_a_writer_are_those_that_the_brokers_compute() -> None:
    # The same figures are in WriterIdTest.java.
    assert TxnBits.of_writer("ptxn-3-41-7-a1b2c3d4") == (8923183830823469059, 41)


def test_two_writers_of_one_transaction_have_different_bits() -> None:
    first, second = TxnBits.of_writer("ptxn-0-1-0-aa"), TxnBits.of_writer("ptxn-0-1-1-bb")
    assert first.most != second.most
    assert first.least == second.least == 1
    assert first.most & 0xFFFF == second.most & 0xFFFF == 0
