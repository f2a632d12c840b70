"""A service without Spark and Java: consume orders, produce invoices, in one transaction each.

python examples/service.py
"""

from __future__ import annotations

from common import Place, place_of

from pulsar_txn_spark import Admin, client
from pulsar_txn_spark.errors import ReceiveTimeoutError


def main(place: Place) -> None:
    """Send three orders, answer each with an invoice, and read the invoices."""
    options = place.options
    admin = Admin(options)
    for topic in ("orders", "invoices"):
        admin.create_topic(topic, segments=2, exist_ok=True)

    with client.connect(options) as service:
        with service.producer("orders") as orders, service.new_txn() as txn:
            for number, customer in enumerate(("alice", "bob", "carol"), 1):
                orders.send(f"{number} apples", key=customer, txn=txn)

        with (
            service.consumer("orders", "billing") as consumer,
            service.producer("invoices") as invoices,
        ):
            while (order := next_message(consumer)) is not None:
                # Commits at the end of the block, and aborts on an exception.
                with service.new_txn() as txn:
                    invoices.send(b"invoice for " + (order.value or b""), key=order.key, txn=txn)
                    consumer.acknowledge(order, txn=txn)

        with service.consumer("invoices", "printer") as printer:
            count = 0
            while (invoice := next_message(printer)) is not None:
                key, value = invoice.key or b"", invoice.value or b""
                print(key.decode(), "gets an", value.decode())
                printer.acknowledge(invoice)
                count += 1
            print(count, "invoices")


def next_message(consumer: client.Consumer) -> client.Message | None:
    """Return the next message, or None if there is none: a real service would wait for it."""
    try:
        return consumer.receive(timeout_ms=0)
    except ReceiveTimeoutError:
        return None


if __name__ == "__main__":
    with place_of(__doc__) as place:
        main(place)
