"""A service that is killed at every step of its transactions, again and again: exactly once.

One chain of runs: each recovers from the kill of the one before, and dies at the next step of the
product's own list.
"""

from __future__ import annotations

import signal
from collections import Counter
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
import redis

from pulsar_txn_spark import Admin, client, steps
from pulsar_txn_spark.engine.components import Components, open_components
from pulsar_txn_spark.errors import ReceiveTimeoutError
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.steps import Phase, Step
from pulsar_txn_spark.store.redis.scripts import SINGLE_STEPS
from tests.crash.client_child import INPUT, MESSAGES_A_TRANSACTION, OUTPUT, SUBSCRIPTION, main, some

CHILD_TIMEOUT_S = 60
NTH = 2  # the second transaction of a run, or the second of its two segments
# The others are those of a change of segments, of Spark, and of gathered operation records.
STEPS = (
    Step.BEGIN,
    Step.INTENT,
    Step.PIN,
    Step.APPEND,
    Step.OP_RECORD,
    Step.PENDING_ACK,
    Step.DECIDE,
    Step.MATERIALIZE,
)
# That requests may be repeated is tested for each of them elsewhere; here for those of the end.
LOST_REPLIES = (Step.PENDING_ACK, Step.DECIDE, Step.MATERIALIZE)
CHAIN = [
    *((step, phase) for step in STEPS for phase in (Phase.BEFORE, Phase.AFTER)),
    *((step, Phase.REPLY_LOST) for step in LOST_REPLIES),
]
KEYS = 5


def visible(service: client.Client, subscription: str) -> list[bytes]:
    found = []
    with service.consumer(OUTPUT, subscription) as consumer:
        while messages := some(consumer):
            found += [message.value or b"" for message in messages]
    return found


def end_leases(run: Components) -> None:
    """Let the leases of those that were killed be over."""
    for tc in range(run.store.identity.coordinators):
        for txn, _ in run.store.transactions.list_open(tc, deadline_ms=None, limit=100):
            found: object = run.store.scripts.client
            assert isinstance(found, redis.Redis)
            found.hset(f"{{tc{tc}}}:txn:{txn.key}", "deadline_ms", "1")
            run.coordinator.complete_on_behalf([txn], set())


@pytest.mark.crash
@pytest.mark.parametrize("single", [False, True], ids=["merged", "single"])
def test_a_service_that_dies_at_any_step_copies_every_message_exactly_once(
    redis_path: str,
    redis_client: redis.Redis,
    tmp_path: Path,
    processes: ForkServerContext,
    *,
    single: bool,
) -> None:
    options = {"store.path": redis_path}
    run = open_components(Options(options, Use.CONNECT))
    Admin(options).create_topic(INPUT, segments=1)
    Admin(options).create_topic(OUTPUT, segments=2)
    # Each run has to get past its second transaction, and commits one or two.
    count = MESSAGES_A_TRANSACTION * (2 * len(CHAIN) + 4)
    values = [f"row-{number}" for number in range(count)]
    with client.connect(options) as service:
        with service.producer(INPUT) as producer, service.new_txn() as txn:
            for number, value in enumerate(values):
                producer.send(value, key=f"k{number % KEYS}", txn=txn)
        for number, (step, phase) in enumerate(CHAIN):
            environment = {
                SINGLE_STEPS: "1" if single else "",
                steps.FAULT: f"{step}:{phase}:{NTH}",
                steps.FAULT_FILE: str(tmp_path / f"fault-{number}"),
            }
            child = processes.Process(target=main, args=(redis_path, environment))
            if phase is Phase.REPLY_LOST and number < len(CHAIN) - 1:
                # Survived, so it would copy all that is left: lost together with the next kill.
                following = f"{Step.BEGIN}:{Phase.BEFORE}:4"
                environment[steps.FAULT] += f",{following}"
                child = processes.Process(target=main, args=(redis_path, environment))
            child.start()
            child.join(CHILD_TIMEOUT_S)
            if child.is_alive():
                child.kill()
                child.join()
            survives = phase is Phase.REPLY_LOST and number == len(CHAIN) - 1
            assert child.exitcode == (0 if survives else -signal.SIGKILL), (step, phase)
            marker = tmp_path / f"fault-{number}.{step}-{phase}.fired"
            assert marker.exists(), f"{step} {phase} was not reached"
        end_leases(run)
        found = visible(service, "look")
        assert Counter(found) == Counter(value.upper().encode() for value in values)
        for key in range(KEYS):
            numbers = [int(v.split(b"-")[1]) for v in found]
            of_key = [n for n in numbers if n % KEYS == key]
            assert of_key == sorted(of_key), "a key's messages lost their order"
        with (
            service.consumer(INPUT, SUBSCRIPTION) as consumer,
            pytest.raises(ReceiveTimeoutError),
        ):
            consumer.receive(timeout_ms=0)
        segments = [
            segment.ref.id
            for topic in (INPUT, OUTPUT)
            for segment in run.topics.require(TopicName.parse(topic)).active
        ]
        assert [gate.pins for gate in run.store.segments.gates(segments)] == [(), (), ()]
