"""The client without Spark beside Spark, and on a real Pulsar."""

from __future__ import annotations

import itertools
import os
import threading
import time
from pathlib import Path

import pytest

from integration.support.spark import NO_PANDAS_3, Lab, failure
from pulsar_txn_spark import Admin, client
from pulsar_txn_spark.client import Consumer, Message
from pulsar_txn_spark.engine.components import open_components
from pulsar_txn_spark.errors import AcknowledgementConflictError, ReceiveTimeoutError
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.position import WHOLE_ENTRY
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.testing.pulsar_server import Broker

pytestmark = pytest.mark.filterwarnings(NO_PANDAS_3)

_numbers = itertools.count()


def drained(consumer: Consumer) -> list[Message]:
    """Receive until there is nothing."""
    found = []
    while True:
        try:
            found.append(consumer.receive(timeout_ms=0))
        except ReceiveTimeoutError:
            return found


def texts(messages: list[Message]) -> list[str]:
    return [(message.value or b"").decode() for message in messages]


def test_a_job_reads_what_a_client_committed_and_the_client_what_the_job_wrote(
    any_lab: Lab,
) -> None:
    lab = any_lab
    source, out = lab.topic(2), lab.topic(2)
    with client.connect(lab.options) as service:
        producer = service.producer(source)
        with service.new_txn() as txn:
            for value in ("a", "b", "c"):
                producer.send(value, key=value, txn=txn)
        undecided = service.new_txn()
        producer.send("never", key="a", txn=undecided)
        producer.flush()
        job = lab.source(source, subscription="job").selectExpr("upper(value) AS value")
        lab.drain(lab.sink(job, out, lab.checkpoint("1")))
        consumer = service.consumer(out, "service")
        messages = drained(consumer)
        assert sorted(texts(messages)) == ["A", "B", "C"]
        with service.consumer(out, "handed") as other:
            other.acknowledge_cumulative(drained(other)[-1])
        undecided.abort()
        with service.new_txn() as txn:
            consumer.acknowledge_cumulative(messages[-1], txn)
            producer.send("d", txn=txn)
        lab.drain(lab.sink(job, out, lab.checkpoint("1")))
        assert texts(drained(consumer)) == ["D"]
        # A subscription is a query's or the clients', and says whose it is.
        with pytest.raises(AcknowledgementConflictError, match="belongs to query"):
            service.consumer(source, "job")
        # Handed over on purpose it goes on where it stands.
        Admin(lab.options).reset_subscription(out, "handed", to="here")
        end = lab.topic()
        handed = lab.source(out, subscription="handed", startingOffsets="subscription")
        lab.drain(lab.sink(handed, end, lab.checkpoint("3")))
        assert lab.visible(end) == ["D"]
        # Last, as a task of the refused query may still be at it when the query has failed.
        theirs = lab.source(out, subscription="service")
        taken = lab.sink(theirs, lab.topic(), lab.checkpoint("2"))
        assert "belongs to clients" in failure(lambda: lab.drain(taken))


@pytest.mark.parametrize("transport", ["client", "wire"])
def test_on_pulsar_a_client_copies_exactly_once_through_aborts_and_a_split(
    pulsar: Broker, tmp_path: Path, embedded: dict[str, str], transport: str
) -> None:
    options = {
        **embedded,
        "service.url": pulsar.service_url,
        "admin.url": pulsar.admin_url,
        "transport": transport,
    }
    source, target = (f"client-{os.getpid()}-{next(_numbers)}" for _ in range(2))
    for topic in (source, target):
        Admin(options).create_topic(topic, segments=1)
    run = open_components(Options(options, Use.CONNECT))
    with client.connect(options) as service:
        producer, copies = service.producer(source), service.producer(target)
        with service.new_txn() as txn:
            for number in range(6):
                producer.send(f"m{number}", key="k", properties={"n": str(number)}, txn=txn)
        consumer = service.consumer(source, "s")
        messages = [consumer.receive(timeout_ms=30_000) for _ in range(6)]
        assert [message.properties for message in messages] == [{"n": str(n)} for n in range(6)]
        assert any(m.position.batch_index != WHOLE_ENTRY for m in messages), "no batch entry"
        aborted = service.new_txn()
        for message in messages[:4]:
            copies.send(message.value, key="k", txn=aborted)
            consumer.acknowledge(message, aborted)
        copies.flush()
        aborted.abort()
        again = [consumer.receive(timeout_ms=30_000) for _ in range(6)]
        with service.new_txn() as txn:
            for message in again[:3]:
                copies.send(message.value, key="k", txn=txn)
                consumer.acknowledge(message, txn)
            copies.flush()
            [parent] = run.topics.require(TopicName.parse(target)).active
            run.topics.changes.split(TopicName.parse(target), parent.descriptor)
            copies.send(again[3].value, key="k", txn=txn)
            consumer.acknowledge(again[3], txn)
        consumer.close()
        with service.consumer(source, "s") as last:
            rest = drained(last)
            assert texts(rest) == ["m4", "m5"], "the batch was acknowledged in part"
            with service.new_txn() as txn:
                copies.send(rest[0].value, key="k", txn=txn)
                copies.send(rest[1].value, key="k", txn=txn)
                last.acknowledge_cumulative(rest[1], txn)
            producer.send("plain", key="k")
            assert texts([last.receive(timeout_ms=30_000)]) == ["plain"]
        looking = service.consumer(target, "look")
        assert texts([looking.receive(timeout_ms=30_000) for _ in range(6)]) == [
            f"m{number}" for number in range(6)
        ]
        late = service.new_txn()
        copies.send("late", key="k", txn=late)
        copies.flush()
        received: list[tuple[str, float]] = []

        def receive() -> None:
            message = looking.receive(timeout_ms=30_000)
            received.append((texts([message])[0], time.monotonic()))

        thread = threading.Thread(target=receive)
        thread.start()
        late.commit()
        thread.join(30)
        assert [value for value, _ in received] == ["late"]
