"""Splits, merges and seals segments of the demo's topics at random, until it is told to end.

It needs no Spark: whoever writes or reads follows by itself.
"""

from __future__ import annotations

import random

import pulsar_txn_spark
from demo.child import begin, emit, told_within
from demo.topics import SEGMENTS
from pulsar_txn_spark.errors import TopologyConflictError
from pulsar_txn_spark.segments.topology import Topology

MOST_SEGMENTS = 6
"""Active ones of a topic: enough for merges, and few enough for two cores."""


def reshape(options: dict[str, str], topic: str, chance: random.Random) -> tuple[str, Topology]:
    """Change one segment of a topic; return what was done, and the topology afterwards."""
    admin = pulsar_txn_spark.Admin(options)
    active = admin.find_topic(topic).active
    at = chance.randrange(len(active))
    name = active[at].descriptor
    if len(active) < MOST_SEGMENTS and chance.random() < 0.5:  # noqa: PLR2004
        by_load = chance.random() < 0.5  # noqa: PLR2004
        after = admin.split_segment(topic, name, by_load=by_load)
        return f"split {name}{' by its load' if by_load else ''}", after
    if at + 1 < len(active):
        names = [name, active[at + 1].descriptor]
        return f"merged {' and '.join(names)}", admin.merge_segments(topic, names)
    return f"sealed {name}", admin.seal_segment(topic, name)


def main() -> None:
    """Run as a process of its own."""
    settings = begin()
    chance = random.Random(settings.seed)  # noqa: S311 - nothing secret hangs on it
    emit("ready")
    changes = 0
    while not told_within(settings.reshape_every_s):
        topic = chance.choice(sorted(SEGMENTS))
        try:
            done, after = reshape(settings.options, topic, chance)
        except TopologyConflictError:
            continue  # a writer that came by was faster
        changes += 1
        emit("change", topic=topic, done=done, active=len(after.active), version=after.version)
    emit("changes", count=changes)


if __name__ == "__main__":
    main()
