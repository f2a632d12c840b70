"""Offsets: what the source leaves in Spark's checkpoint, and what it refuses to find there."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_txn_spark.errors import DataLossError, StoreRolledBackError
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import Segment, Topology
from pulsar_txn_spark.spark.source.offsets import SegmentOffset, SourceOffset, TopicOffset
from pulsar_txn_spark.store.records import StoreIdentity

TOPIC = "topic://public/default/t"
OFFSET = SourceOffset(
    "uuid",
    "1",
    {
        TOPIC: TopicOffset(
            "3f2a",
            {
                "0000-7fff-0": SegmentOffset(Position(12, 345), 17),
                "8000-ffff-1": SegmentOffset(EARLIEST, 0),
            },
        )
    },
)

positions = st.builds(Position, st.integers(-1, 2**63), st.integers(-1, 2**63))
segments = st.dictionaries(
    st.text(min_size=1),
    st.builds(SegmentOffset, positions, st.integers(0, 2**62), drained=st.booleans()),
)
topics = st.dictionaries(st.text(min_size=1), st.builds(TopicOffset, st.text(), segments))
offsets = st.builds(SourceOffset, st.text(), st.text(), topics)


@given(offsets)
@pytest.mark.slow
def test_an_offset_survives_the_checkpoint(offset: SourceOffset) -> None:
    assert SourceOffset.from_json(json.loads(json.dumps(offset.to_json()))) == offset


def test_an_offset_has_the_form_that_is_documented() -> None:
    assert OFFSET.to_json() == {
        "v": 1,
        "store": {"uuid": "uuid", "epoch": "1"},
        "topics": {
            TOPIC: {
                "inc": "3f2a",
                "segments": {
                    "0000-7fff-0": {"p": "12:345", "seq": 17},
                    "8000-ffff-1": {"p": "-1:-1", "seq": 0},
                },
            }
        },
    }


def test_equal_offsets_give_equal_text_whatever_the_order() -> None:
    # Spark compares the text: another order would look like new data for ever.
    topic = OFFSET.topics[TOPIC]
    reversed_segments = dict(reversed(list(topic.segments.items())))
    other = SourceOffset("uuid", "1", {TOPIC: TopicOffset("3f2a", reversed_segments)})
    assert json.dumps(other.to_json()) == json.dumps(OFFSET.to_json())


def test_positions_are_found_by_topic_and_segment() -> None:
    assert OFFSET.positions() == {
        (TOPIC, "0000-7fff-0"): Position(12, 345),
        (TOPIC, "8000-ffff-1"): EARLIEST,
    }


@pytest.mark.parametrize("version", [None, 0, 2, "1", True, 1.0])
def test_another_format_is_refused(version: object) -> None:
    tree = {**OFFSET.to_json(), "v": version}
    with pytest.raises(DataLossError, match=r"has format .*, expected 1"):
        SourceOffset.from_json(tree)
    with pytest.raises(DataLossError):
        SourceOffset.from_json({"topic-partition": {"0": 17}})


@pytest.mark.parametrize("tree", [5, [1], "x", None])
def test_what_is_no_object_is_another_format(tree: Any) -> None:
    with pytest.raises(DataLossError, match=r"has format .*, expected 1"):
        SourceOffset.from_json(tree)


def damaged() -> list[dict[str, Any]]:
    trees = []
    for path in (
        ["store"],
        ["store", "uuid"],
        ["store", "epoch"],
        ["topics"],
        ["topics", TOPIC, "inc"],
        ["topics", TOPIC, "segments"],
        ["topics", TOPIC, "segments", "0000-7fff-0", "p"],
        ["topics", TOPIC, "segments", "0000-7fff-0", "seq"],
    ):
        tree = OFFSET.to_json()
        node = tree
        for step in path[:-1]:
            node = node[step]
        del node[path[-1]]
        trees.append(tree)
    for name, value in (("p", "x"), ("p", 7), ("seq", "many"), ("seq", None), ("seq", 1e400)):
        tree = OFFSET.to_json()
        tree["topics"][TOPIC]["segments"]["0000-7fff-0"][name] = value
        trees.append(tree)
    return [*trees, {"v": 1, "store": [], "topics": []}]


@pytest.mark.parametrize("tree", damaged())
def test_a_damaged_offset_is_refused(tree: dict[str, Any]) -> None:
    with pytest.raises(DataLossError, match="malformed"):
        SourceOffset.from_json(tree)


def test_an_offset_of_another_store_or_epoch_is_refused() -> None:
    OFFSET.require_store(StoreIdentity("uuid", "1", 4))
    for uuid, epoch in (("other", "1"), ("uuid", "2")):
        with pytest.raises(StoreRolledBackError, match=f"store {uuid} epoch {epoch}"):
            OFFSET.require_store(StoreIdentity(uuid, epoch, 4))


def scalable_topology(*descriptors: str) -> Topology:
    topic = TopicName.of_any_domain("scalable://public/default/t")
    refs = [SegmentRef(f"segment://{topic.path}/{d}", str(topic), d) for d in descriptors]
    segments = tuple(Segment(ref, 0, 65_535) for ref in refs)
    return Topology(topic, "", segments, len(segments), "pulsar")


HALF_READ, UNREAD = SegmentOffset(Position(7, 3), 0), SegmentOffset(EARLIEST, 0)
DRAINED = SegmentOffset(Position(7, 9), 0, drained=True)


@pytest.mark.parametrize(
    "read, there, lost",
    [
        ({"0000-ffff-0@1": HALF_READ, "0000-7fff-1@2": UNREAD}, [1, 2], {"0000-ffff-0@1": "7:3"}),
        ({"0000-ffff-0@1": HALF_READ, "0000-7fff-1@2": HALF_READ}, [1], {"0000-ffff-0@1": "7:3"}),
        ({"0000-ffff-0@1": UNREAD, "0000-7fff-1@2": DRAINED}, [1], {"0000-ffff-0@1": "-1:-1"}),
        ({"0000-ffff-0@1": DRAINED, "0000-7fff-1@2": UNREAD}, [1, 2], {}),
        ({"0000-7fff-1@2": HALF_READ}, [0, 1, 2], {}),  # written by a version that named fewer
        ({"0000-7fff-1@2": HALF_READ}, [1, 4, 6], {"2": "-1:-1", "3": "-1:-1", "5": "-1:-1"}),
        ({}, [3], {}),
    ],
)
def test_of_what_brokers_have_deleted_only_a_segment_that_was_drained_is_not_lost(
    read: dict[str, SegmentOffset], there: list[int], lost: dict[str, str]
) -> None:
    names = ("0000-ffff-0@1", "0000-7fff-1@2")
    topology = scalable_topology(*(names[n] if n < 2 else f"8000-ffff-{n}@3" for n in there))
    offset = TopicOffset("", read)
    assert offset.deletion("t", topology) is None
    assert {name: str(at) for name, at in offset.pruned(topology).items()} == lost


def test_a_scalable_topic_without_any_segment_of_the_offset_is_another_one() -> None:
    offset = TopicOffset("", {"0000-ffff-0@1": HALF_READ})
    deletion = offset.deletion("t", scalable_topology("0000-ffff-0@2"))
    assert "deleted and created again" in str(deletion)


def test_only_true_says_that_a_segment_was_drained() -> None:
    for value, drained in ((True, True), ("no", False), (1, False), (None, False)):
        item = {"p": "7:9", "seq": 0, "drained": value}
        assert SegmentOffset.from_json(item).drained is drained
    assert "drained" not in HALF_READ.to_json()
