"""Properties of topics: the users', and the system's own."""

from __future__ import annotations

from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.errors import NotAllowedError
from pulsar_txn_spark.segments.log import CONTAINS_TXN
from pulsar_txn_spark.segments.topology import Topology
from pulsar_txn_spark.store.records import NOWHERE, Code

INTERNAL_PROPERTIES = frozenset({"__upkeep", "__load"})
"""Who maintains the topic at the moment, and the load that was measured: no settings."""

SYSTEM_PREFIX = "__"
"""Begins the names of the system's own properties."""


def read_properties(components: Components, topology: Topology) -> dict[str, str]:
    """Return a topic's properties, with the system's own but without internal ones."""
    ids = [segment.ref.id for segment in topology.segments]
    gates = components.store.segments.gates(ids, [NOWHERE] * len(ids))
    contains = any(gate.contains_txn for gate in gates)
    stored = components.store.topics.read_properties(str(topology.topic))
    return {name: value for name, value in stored.items() if name not in INTERNAL_PROPERTIES} | {
        CONTAINS_TXN: str(contains).lower(),
    }


def change_property(
    components: Components, topology: Topology, name: str, value: str | None
) -> bool:
    """Change a property of this very topic, not of another one of its name (INV-12).

    Parameters
    ----------
    components : Components
    topology : Topology
    name : str
    value : str or None
        None removes the property.

    Returns
    -------
    bool
        False if there was no such property to remove.

    Raises
    ------
    TopicNotFoundError
        If the topic was deleted meanwhile.
    """
    topic = str(topology.topic)
    answer = components.store.topics.change_property(
        topic, name, value, instance_id=topology.instance_id
    )
    if answer.code is not Code.OK:
        # Either there was no such property to remove, or the topic is not there any more.
        components.topics.lifecycle.reread(topology, f"its property {name!r} was to be changed")
    return answer.code is Code.OK


def refuse_system_property(name: str, what: str) -> None:
    """Refuse to change a property that the system maintains.

    Raises
    ------
    NotAllowedError
    """
    if name.startswith(SYSTEM_PREFIX):
        raise NotAllowedError(
            f"the property {name!r} cannot be {what}: properties that begin with "
            f"{SYSTEM_PREFIX!r} are the system's. They can be read; use another name"
        )
