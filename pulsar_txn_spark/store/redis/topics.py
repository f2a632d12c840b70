"""Topologies, properties and the catalogue of topics on Redis."""

from __future__ import annotations

from pulsar_txn_spark.steps import Step
from pulsar_txn_spark.store.records import (
    Answer,
    Code,
    TopologyVersion,
)
from pulsar_txn_spark.store.redis.scripts import (
    Arg,
    Call,
    Scripts,
    code_of,
    pairs,
    text,
)


class RedisTopicStore:
    """Topologies and properties of topics: the tag ``{topic:<name>}``."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def read(self, topic: str) -> tuple[int, bytes] | None:
        """Return version and record of a topology, None if there is none."""
        reply = self._scripts.run(
            Call("topology_read", f"topic:{topic}", ["topology"], []), [0, "ABSENT"]
        )
        if text(reply[1]) == Code.ABSENT:
            return None
        return int(reply[2]), reply[3]

    def version(self, topic: str) -> int:
        """Return the version of a topology, or that of its absence: 0 if it never was there."""
        call = Call("topology_read", f"topic:{topic}", ["topology"], [])
        return int(self._scripts.run(call, [0, "ABSENT", 0])[2])

    def swap(
        self,
        topic: str,
        expected: int,
        record: bytes,
        step: Step | None = None,
        *,
        instance_id: str = "",
        deleting: bool = False,
        frees: bool = False,
    ) -> int | None:
        """Replace version `expected`; return the new version, None on a conflict.

        `instance_id` is noted beside the record, '' leaves it as it is. From a record that is
        `deleting` on, the topic has no properties any more. A full server takes that, and what
        `frees`.
        """
        flags = ["1" if deleting else "", "1" if frees else ""]
        args: list[Arg] = [str(expected), record, instance_id, *flags]
        keys = ["topology", "properties", "events"]
        call = Call("topology_cas", f"topic:{topic}", keys, args, step)
        reply = self._scripts.run(call)
        if text(reply[1]) == Code.OK:
            return int(reply[2])
        # The own write of a request whose reply was lost is no conflict.
        return int(reply[2]) if reply[3] == record else None

    def delete(self, topic: str, expected: int) -> bool:
        """Delete version `expected`, and the topic's properties; False on a conflict."""
        keys = ["topology", "properties", "events"]
        call = Call("topology_cas", f"topic:{topic}", keys, [str(expected), "", "", "", ""])
        reply = self._scripts.run(call)
        # Whose reply was lost finds that it is gone.
        return text(reply[1]) != Code.CONFLICT or not reply[3]

    def read_properties(self, topic: str) -> dict[str, str]:
        """Return the properties that users have given a topic."""
        reply = self._scripts.run(Call("topic_properties", f"topic:{topic}", ["properties"], []))
        return {name: text(value) for name, value in pairs(reply[2:])}

    def change_property(
        self, topic: str, name: str, value: str | None, *, instance_id: str = ""
    ) -> Answer:
        """Set a property of a topic, or remove it (``topic_property.lua``)."""
        action: list[Arg] = ["remove"] if value is None else ["set", value]
        keys = ["topology", "properties"]
        args: list[Arg] = [instance_id, name, *action]
        return self._scripts.answer(Call("topic_property", f"topic:{topic}", keys, args))

    def lease(self, topic: str, owner: str, for_ms: int, *, instance_id: str = "") -> Answer:
        """Keep others from looking after a topic for a while (``topic_lease.lua``)."""
        keys = ["topology", "properties"]
        args: list[Arg] = [owner, for_ms, instance_id]
        return self._scripts.answer(Call("topic_lease", f"topic:{topic}", keys, args))


class RedisMetaStore:
    """What the store knows of itself as a whole: the tag ``{meta}``."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def list_topics(self) -> list[str]:
        """Return the full names of all segmented topics, sorted."""
        reply = self._scripts.run(Call("catalog_list", "meta", ["topics"], []))
        return sorted(text(value) for value in reply[2:])

    def add_topic(self, topic: str) -> None:
        """Put a topic into the catalogue, with a new stamp (``catalog_add.lua``)."""
        self._scripts.run(Call("catalog_add", "meta", ["topics", "topic-stamps"], [topic]))

    def topic_stamp(self, topic: str) -> str | None:
        """Return the stamp of a topic in the catalogue, None if it is not there."""
        call = Call("catalog_read", "meta", ["topics", "topic-stamps"], [topic])
        reply = self._scripts.run(call)
        return text(reply[2]) if code_of(reply) is Code.OK else None

    def remove_topic(self, topic: str, stamp: str) -> Answer:
        """Take a topic out of the catalogue, if its stamp is that one (``catalog_remove.lua``)."""
        keys = ["topics", "topic-stamps"]
        return self._scripts.answer(Call("catalog_remove", "meta", keys, [topic, stamp]))

    def next_source_epoch(self) -> int:
        """Count one start of a source."""
        return int(self._scripts.run(Call("source_epoch", "meta", ["source-counter"], []))[2])


def is_current_call(expected: TopologyVersion) -> Call:
    """Return the call that tells whether a topology is still of a version."""
    args: list[Arg] = [str(expected.version)]
    return Call("topology_is", f"topic:{expected.topic}", ["topology"], args)
