"""Topology and routing: every hash has one owner, and a key's owner is the one Pulsar chooses."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_txn_spark.errors import OptionError, StoreCorruptError, TransactionDomainError
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import (
    HASH_SPACE,
    MAX_SEGMENTS,
    GatedBy,
    Router,
    Segment,
    SegmentState,
    Topology,
    hash_of,
    hashes_of,
    segment_ref,
)
from pulsar_txn_spark.store import metadata_pb2

TOPIC = TopicName("public", "default", "t")


def plan(segments: int) -> Topology:
    return Topology.plan(TOPIC, segments, "embedded")


def binary(*keys: bytes | None) -> pa.Array:
    return pa.array(keys, pa.binary())


# --- layout -----------------------------------------------------------------------------------


@given(st.integers(1, MAX_SEGMENTS))
def test_hash_ranges_tile_the_hash_space(segments: int) -> None:
    laid = plan(segments).active
    assert len(laid) == segments
    assert laid[0].hash_start == 0
    assert laid[-1].hash_end == HASH_SPACE - 1
    for one, following in pairwise(laid):
        assert following.hash_start == one.hash_end + 1
    widths = [s.hash_end - s.hash_start + 1 for s in laid]
    assert max(widths) - min(widths) <= 1, "as equal as can be"


@pytest.mark.parametrize("segments", [-1, 0, MAX_SEGMENTS + 1])
def test_a_senseless_number_of_segments_is_refused(segments: int) -> None:
    with pytest.raises(OptionError, match=rf"expected 1 to {MAX_SEGMENTS} segments"):
        plan(segments)


def test_ids_of_segments_are_never_used_twice() -> None:
    ids = [segment.ref.id for _ in range(50) for segment in plan(4).segments]
    assert len(set(ids)) == len(ids)


def test_a_segment_is_named_after_topic_instance_and_range() -> None:
    ref = segment_ref(TOPIC, "3f2a", 0, 0x7FFF, 0)
    assert ref.id == "public/default/t/3f2a/0000-7fff-0"
    assert ref.log_name == "persistent://public/default/t--3f2a--0000-7fff-0"
    assert ref.topic == "topic://public/default/t"
    # What the store and the records use as separators must not be in it.
    assert not re.search(r"[|{}\s]", ref.id)


def test_a_topology_survives_its_record() -> None:
    parent = Segment(
        segment_ref(TOPIC, "3f2a", 0, HASH_SPACE - 1, 0),
        0,
        HASH_SPACE - 1,
        SegmentState.SEALED,
        children=("c1", "c2"),
        sealed_at=Position(7, 8),
    )
    empty = Segment(
        segment_ref(TOPIC, "3f2a", 0, 0x7FFF, 1),
        0,
        0x7FFF,
        SegmentState.DRAINED,
        parents=(parent.ref.id,),
        sealed_at=EARLIEST,
    )
    child = Segment(segment_ref(TOPIC, "3f2a", 0x8000, 0xFFFF, 2), 0x8000, 0xFFFF)
    topology = Topology(TOPIC, "3f2a", (parent, empty, child), 3, "embedded", version=5)
    assert Topology.parse(5, topology.serialize()) == topology
    assert topology.active == (child,)


@pytest.mark.parametrize("change", ["segment", "topic", "damage"])
def test_a_topology_that_cannot_be_read_is_an_error_that_says_so(change: str) -> None:
    record = metadata_pb2.Topology.FromString(Topology.plan(TOPIC, 2, "embedded").serialize())
    # Protobuf keeps a value of an enumeration that it does not know.
    if change == "segment":
        record.segments[0].state = 99  # type: ignore[assignment]
    elif change == "topic":
        record.state = 99  # type: ignore[assignment]
    data = b"\xff\xff" if change == "damage" else record.SerializeToString()
    with pytest.raises(StoreCorruptError, match=r"cannot be read .* or a later version"):
        Topology.parse(1, data)


def test_a_topic_that_brokers_gate_lies_on_another_backend_for_versions_without_bits() -> None:
    gated = Topology.plan(TOPIC, 2, "pulsar", "a1b2")
    assert Topology.parse(3, gated.serialize()) == replace(gated, version=3)
    assert gated.gate is GatedBy.BROKER
    # What those versions compare, and so neither read nor write.
    assert metadata_pb2.Topology.FromString(gated.serialize()).backend != "pulsar"
    plain = Topology.plan(TOPIC, 2, "pulsar")
    assert plain.gate is GatedBy.READER
    assert metadata_pb2.Topology.FromString(plain.serialize()).backend == "pulsar"
    assert not gated.same_plan(plain)


# --- hashing ----------------------------------------------------------------------------------


# Expected values of Pulsar's own tests of Murmur3_32Hash (the Java and the C++ client share them).
@pytest.mark.parametrize(
    "key,expected",
    [
        (b"k1", 2110152746),
        (b"k2", 1479966664),
        (b"key1", 462881061),
        (b"key2", 1936800180),
        (b"key01", 39696932),
        (b"key02", 751761803),
    ],
)
def test_a_key_hashes_as_in_pulsars_own_clients(key: bytes, expected: int) -> None:
    assert hash_of(key) == expected % HASH_SPACE


# The well-known vectors of MurmurHash3 x86_32 with seed 0; Pulsar clears the sign bit.
@pytest.mark.parametrize(
    "key,murmur",
    [
        (b"", 0x00000000),
        (b"\xff\xff\xff\xff", 0x76293B50),
        (b"\x21\x43\x65\x87", 0xF55B516B),
        (b"\x21\x43\x65", 0x7E4A8634),
        (b"\x21\x43", 0xA0F7B07A),
        (b"\x21", 0x72661CF4),
        (b"\x00\x00\x00\x00", 0x2362F9DE),
        (b"hello", 0x248BFA47),
        (b"hello, world", 0x149BBB7F),
        (b"The quick brown fox jumps over the lazy dog", 0x2E4FF723),
    ],
)
def test_the_hash_is_murmur3_without_its_sign(key: bytes, murmur: int) -> None:
    assert hash_of(key) == (murmur & 0x7FFFFFFF) % HASH_SPACE


@given(st.binary(max_size=40))
def test_every_key_has_a_place_in_the_hash_space(key: bytes) -> None:
    assert 0 <= hash_of(key) < HASH_SPACE


# --- routing ----------------------------------------------------------------------------------


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.binary(max_size=9), max_size=20),
    st.integers(0, 400),
    st.integers(0, 3),
    st.booleans(),
)
def test_many_keys_are_hashed_together_as_each_of_them_is_alone(
    keys: list[bytes], width: int, skipped: int, text: bool
) -> None:
    many = [b"%0*d" % (width % 17 + 1, number) for number in range(width)]  # of hardly one length
    found = keys + many
    array = pa.array(found, pa.binary())
    if text:
        found = [key.hex().encode() for key in found]
        array = pa.array([key.decode() for key in found], pa.string())
    assert hashes_of(array.slice(skipped)).tolist() == [hash_of(key) for key in found[skipped:]]


@given(st.integers(1, 40), st.lists(st.binary(max_size=8), max_size=60))
def test_a_row_goes_to_the_segment_that_owns_its_key(segments: int, keys: list[bytes]) -> None:
    router = Router(plan(segments))
    routed = router.route(binary(*keys), len(keys))
    assert routed.dtype == np.uint16
    for key, index in zip(keys, routed, strict=True):
        owner = router.segments[index]
        assert owner.hash_start <= hash_of(key) <= owner.hash_end


def test_bounds_of_ranges_belong_to_their_own_segment() -> None:
    topology = plan(4)
    router = Router(topology)
    wanted = {s.hash_start for s in topology.active} | {s.hash_end for s in topology.active}
    keys = {hash_of(k): k for k in (str(n).encode() for n in range(400_000))}
    found = sorted(wanted & keys.keys())
    assert len(found) == 8, "no key was found for a bound"
    routed = router.route(binary(*(keys[h] for h in found)), 8)
    assert routed.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_key_stays_with_its_segment_whoever_routes_it() -> None:
    topology = plan(7)
    keys = binary(*(f"tail-{n}".encode() for n in range(500)))
    first = Router(topology, round_start=0).route(keys, 500)
    reparsed = Topology.parse(1, topology.serialize())
    assert (Router(reparsed, round_start=3).route(keys, 500) == first).all()
    # Alone, in another order, or among rows without a key: always the same segment.
    router = Router(topology, round_start=5)
    assert [router.route(keys.slice(i, 1), 1)[0] for i in range(0, 500, 50)] == list(first[::50])
    assert (router.route(keys.take(pa.array(range(499, -1, -1))), 500)[::-1] == first).all()


def test_text_and_bytes_of_a_key_are_the_same_key() -> None:
    router = Router(plan(5))
    texts = ["N14228", "ключ", ""]
    as_text = router.route(pa.array(texts), 3)
    assert (as_text == router.route(binary(*(t.encode() for t in texts)), 3)).all()


def test_an_empty_key_is_a_key_and_null_is_none() -> None:
    router = Router(plan(4))
    assert set(router.route(binary(*[b""] * 100), 100)) == {0}
    assert set(router.route(binary(*[None] * 100), 100)) == {0, 1, 2, 3}


@pytest.mark.parametrize("keys", ["no column", "only nulls"])
@pytest.mark.parametrize("rows", [1, 3, 4, 5, 1000])
def test_rows_without_a_key_go_round(keys: str, rows: int) -> None:
    router = Router(plan(4), round_start=2)
    total: Counter[int] = Counter()
    for _ in range(8):
        column = None if keys == "no column" else pa.nulls(rows, pa.binary())
        total.update(router.route(column, rows).tolist())
    assert total.total() == 8 * rows
    assert max(total.values()) - min(total[i] for i in range(4)) <= 8


def test_tasks_begin_the_round_at_different_segments() -> None:
    first = [int(Router(plan(4), round_start).route(None, 1)[0]) for round_start in range(4)]
    assert sorted(first) == [0, 1, 2, 3]


def test_keyed_rows_keep_their_segment_among_rows_without_a_key() -> None:
    router = Router(plan(4))
    keys = [None if n % 3 == 0 else f"key-{n % 10}".encode() for n in range(300)]
    routed = router.route(binary(*keys), 300)
    for key, index in zip(keys, routed, strict=True):
        if key is not None:
            owner = router.segments[index]
            assert owner.hash_start <= hash_of(key) <= owner.hash_end
    without = [index for key, index in zip(keys, routed, strict=True) if key is None]
    assert Counter(without) == {0: 25, 1: 25, 2: 25, 3: 25}


def test_no_rows_are_routed_nowhere() -> None:
    for segments in (1, 4):
        for keys in (None, binary()):
            assert Router(plan(segments)).route(keys, 0).tolist() == []


def test_sealed_segments_take_no_rows() -> None:
    laid = plan(2).segments
    sealed = Segment(laid[0].ref, 0, HASH_SPACE - 1, SegmentState.SEALED)
    topology = Topology(TOPIC, "i", (sealed, *laid), 3, "embedded")
    assert Router(topology).segments == topology.active == laid


# --- names ------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["topic://public/default/t", "public/default/t", "t"])
def test_a_topic_has_a_short_name(text: str) -> None:
    assert TopicName.parse(text) == TOPIC
    assert str(TopicName.parse(text)) == "topic://public/default/t"


@pytest.mark.parametrize(
    "text", ["", "a/b", "a/b/c/d", "topic://", "a//c", "a b", "t|x", "t{x}", "топик"]
)
def test_a_malformed_topic_name_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="malformed topic name"):
        TopicName.parse(text)


def test_a_topic_of_pulsars_own_transactions_is_refused_with_the_reason() -> None:
    with pytest.raises(
        TransactionDomainError, match=r"domain persistent://, expected topic://.*none spans both"
    ):
        TopicName.parse("persistent://public/default/t")


def test_a_topic_of_an_unknown_domain_is_refused_as_a_wrong_name() -> None:
    with pytest.raises(OptionError, match=r"domain segment://, expected topic://") as caught:
        TopicName.parse("segment://public/default/t")
    assert not isinstance(caught.value, TransactionDomainError)
