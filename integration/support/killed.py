"""Servers that are killed at a step of the protocol, and start again beside whoever goes on."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from unittest.mock import patch

from integration.support.gated import Gated
from pulsar_txn_spark import steps
from pulsar_txn_spark.steps import Phase, Step
from pulsar_txn_spark.testing.pulsar_server import PulsarServer
from pulsar_txn_spark.testing.redis_server import RedisServer


@contextlib.contextmanager
def killed(gated: Gated, drawn: random.Random, among: Sequence[Step]) -> Iterator[None]:
    """Kill the broker or the store when the body comes to a step that is drawn.

    If it does not come there, the kill is at its end. The server is back when this ends.
    """
    server, store = gated.server, gated.store
    assert isinstance(server, PulsarServer)
    assert isinstance(store, RedisServer)
    kills: list[tuple[Callable[[], None], Callable[[], None]]] = [
        (partial(server.pause, crash=True), server.resume),
        (store.kill, store.start),
    ]
    kill, start = drawn.choice(kills)
    due = drawn.choice(among), drawn.choice((Phase.BEFORE, Phase.AFTER))
    ahead = drawn.randrange(2)
    starting: list[Future[None]] = []
    with ThreadPoolExecutor(1) as beside:

        def strike() -> None:
            kill()
            starting.append(beside.submit(start))

        def reach(step: Step, phase: Phase) -> None:
            nonlocal ahead
            if (step, phase) == due and not starting:
                if ahead:
                    ahead -= 1
                else:
                    strike()

        with patch.object(steps, "reach", reach):
            yield
        if not starting:
            strike()
    starting[0].result()
