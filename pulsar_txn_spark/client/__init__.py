"""Transactions without Spark: a producer and a consumer on the same store and topics.

What a plain Python service sends in a transaction a Spark job reads once it is committed, and the
other way round::

    from pulsar_txn_spark import client

    with (
        client.connect({"store.url": "redis://localhost:6379"}) as service,
        service.consumer("orders", "billing") as orders,
        service.producer("invoices") as invoices,
    ):
        for order in orders:
            with service.new_txn() as txn:  # commits at its end, aborts on an exception
                invoices.send(invoice_of(order.value), key=order.key, txn=txn)
                orders.acknowledge(order, txn=txn)

docs/client.md tells what is guaranteed, and what happens when something fails.
"""

from __future__ import annotations

from pulsar_txn_spark.client.consumer import Consumer, InitialPosition
from pulsar_txn_spark.client.message import Message, MessageId
from pulsar_txn_spark.client.producer import Producer
from pulsar_txn_spark.client.session import Client, connect
from pulsar_txn_spark.client.transaction import Transaction
from pulsar_txn_spark.txn.coordinator import TxnStatus

__all__ = [
    "Client",
    "Consumer",
    "InitialPosition",
    "Message",
    "MessageId",
    "Producer",
    "Transaction",
    "TxnStatus",
    "connect",
]
