"""Segments are split and merged by their load, neither too soon nor back and forth."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.errors import OptionError, SegmentLogUnavailableError
from pulsar_txn_spark.segments.key_load import cut_by_load, recent_hashes
from pulsar_txn_spark.segments.log import Appended, SegmentRef
from pulsar_txn_spark.segments.retention import RETENTION_PROPERTY, Retention
from pulsar_txn_spark.segments.scaler import Scaled
from pulsar_txn_spark.segments.scaling import (
    LOAD_PROPERTY,
    SCALING_PROPERTY,
    ActiveSegment,
    Decision,
    ScalingPolicy,
    SegmentLoad,
    TopicLoad,
    decide,
    observe,
)
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import HASH_SPACE, hash_of

POLICY = ScalingPolicy(
    enabled=True,
    rows_per_s=100,
    bytes_per_s=1000,
    skew=3.0,
    merge_below=0.4,
    min_segments=2,
    max_segments=5,
    hot_for_ms=30_000,
    cold_for_ms=300_000,
    split_pause_ms=60_000,
    merge_pause_ms=120_000,
)
NOW = 1_000_000


def active(count: int) -> list[ActiveSegment]:
    width = 0x10000 // count
    return [ActiveSegment(f"s{n}", n * width, (n + 1) * width - 1) for n in range(count)]


def seen(
    *rates: float | tuple[float, float] | None, hot: int = 0, cold: int = 0, changed: int = 0
) -> TopicLoad:
    """Return loads (rows/s, or rows/s and bytes/s); `hot`, `cold`, `changed`: since when."""
    segments = {}
    for number, rate in enumerate(rates):
        rows, size = rate if isinstance(rate, tuple) else (rate, 0.0)
        segments[f"s{number}"] = SegmentLoad(
            0,
            0,
            rows,
            size if rows is not None else None,
            hot_since_ms=hot if rows is not None and POLICY.load(rows, size) >= 0.5 else None,
            cold_since_ms=cold if rows is not None and POLICY.load(rows, size) < 0.2 else None,
        )
    return TopicLoad(NOW, changed, segments)


@pytest.mark.parametrize(
    "load, what, segments, why",
    [
        # Hot by rows, by bytes, or by skew.
        (seen(50, 60), "nothing", (), "50% to 60%"),
        (seen(50, 100), "split", ("s1",), "100% of what one segment should take"),
        (seen((50, 0), (50, 1500)), "split", ("s1",), "150%"),
        (seen(120, 130), "split", ("s1",), "130%"),
        (seen(5, 5, 5, 60), "split", ("s3",), "3.2 times the mean"),
        (seen(0, 0, 0, 49), "merge", ("s0", "s1"), "0%"),
        # Not for long enough, or not long enough after a change.
        (seen(50, 100, hot=NOW - 29_999, cold=NOW), "nothing", (), "50% to 100%"),
        (seen(50, 100, hot=NOW - 30_000, cold=NOW), "split", ("s1",), "for 30 s now"),
        (seen(50, 100, changed=NOW - 59_000), "nothing", (), "the pause lasts 1 s yet"),
        (seen(50, 100, changed=NOW - 60_000), "split", ("s1",), "100%"),
        # Bounds.
        (seen(120, 130, 120, 120, 120), "nothing", (), "max_segments are there"),
        # At the maximum cold neighbours make room, but no sooner than otherwise.
        (seen(150, 1, 60, 1, 1), "merge", ("s3", "s4"), "s0 is hot"),
        (seen(150, 1, 60, 1, 1), "merge", ("s3", "s4"), "max_segments are there"),
        (seen(150, 1, 60, 1, 60), "nothing", (), "max_segments are there"),
        (seen(150, 30, 30, 1, 30), "nothing", (), "max_segments are there"),
        (seen(150, 1, 1, 1, 1, cold=NOW - 299_999), "nothing", (), "max_segments are there"),
        (seen(150, 1, 1, 1, 1, changed=NOW - 119_000), "nothing", (), "the pause lasts 1 s yet"),
        (seen(150, 1, 1, 1, 1, changed=NOW - 119_000), "nothing", (), "max_segments are there"),
        (seen(10), "split", ("s0",), "fewer than min_segments"),
        (seen(1, 1), "nothing", (), "1% to 1%"),
        # Cold neighbours, the coldest ones first; never a cold and a warm one.
        (seen(10, 10, 1, 1), "merge", ("s2", "s3"), "together they take 2%"),
        (seen(1, 60, 1), "nothing", (), "1% to 60%"),
        (seen(19, 19, 60), "merge", ("s0", "s1"), "38%"),
        (seen(1, 1, 1, cold=NOW - 299_999), "nothing", (), "1% to 1%"),
        (seen(1, 1, 1, cold=NOW - 300_000), "merge", ("s0", "s1"), "for 300 s or more"),
        (seen(1, 1, 1, changed=NOW - 119_000), "nothing", (), "the pause lasts 1 s yet"),
        # What takes too much goes before what takes too little.
        (seen(1, 1, 60, 150), "split", ("s3",), "150%"),
        # Nothing known yet.
        (seen(None, None), "nothing", (), "it takes two looks"),
        (seen(None, 150), "split", ("s1",), "150%"),
        (seen(1, 1, None), "merge", ("s0", "s1"), "2%"),
    ],
)
def test_the_policy_decides_by_table(
    load: TopicLoad, what: str, segments: Sequence[str], why: str
) -> None:
    decision = decide(active(len(load.segments)), load, POLICY)
    assert (decision.what, decision.segments) == (what, tuple(segments)), decision
    assert why in decision.why


@pytest.mark.parametrize(
    "load, one_hash, what, segments, whys",
    [
        # The next one that is hot, or cold neighbours, come instead.
        (seen(150, 120, 60), ("s0",), "split", ("s1",), ["120%", "s0 should be split", "one hash"]),
        (seen(150, 120, 60), ("s1",), "split", ("s0",), ["150%"]),
        (seen(150, 1, 1), ("s0",), "merge", ("s1", "s2"), ["2%", "s0 should be split"]),
        (seen(150, 120, 60), ("s0", "s1"), "nothing", (), ["s0 should be split"]),
        # With the same bounds and pauses as ever.
        (seen(150, 120, changed=NOW - 59_000), ("s0",), "nothing", (), ["1 s yet", "one hash"]),
        (seen(150, 1, 1, changed=NOW - 119_000), ("s0",), "nothing", (), ["1 s yet", "one hash"]),
        (seen(150, 1, 1, cold=NOW - 299_999), ("s0",), "nothing", (), ["one hash"]),
        (seen(150, 1), ("s0",), "nothing", (), ["s0 should be split"]),
        (seen(150, 120, 60, 60, 60), ("s0",), "nothing", (), ["s1 is hot", "max_segments", "one"]),
        # Nor does the fullest one keep the others below the minimum.
        (seen(10), ("s0",), "nothing", (), ["fewer than min_segments", "one hash"]),
    ],
)
def test_a_segment_whose_keys_all_have_one_hash_keeps_no_other_from_being_changed(
    load: TopicLoad, one_hash: Sequence[str], what: str, segments: Sequence[str], whys: list[str]
) -> None:
    decision = decide(active(len(load.segments)), load, POLICY, one_hash)
    assert (decision.what, decision.segments) == (what, tuple(segments)), decision
    assert all(why in decision.why for why in whys), decision.why


def test_below_the_minimum_the_fullest_segment_that_can_be_split_is_split() -> None:
    policy = replace(POLICY, min_segments=4)
    load = seen(10, 30, 20)
    assert decide(active(3), load, policy).segments == ("s1",)
    assert decide(active(3), load, policy, ["s1"]).segments == ("s2",)
    assert decide(active(3), load, policy, ["s0", "s1", "s2"]).segments == ()


def test_what_is_hot_waits_out_the_pause_before_anything_is_merged() -> None:
    policy = replace(POLICY, merge_pause_ms=0)
    assert decide(active(3), seen(150, 1, 1, changed=NOW - 59_000), policy).what == "nothing"


def test_a_policy_that_is_off_does_nothing() -> None:
    assert decide(active(2), seen(500, 500), ScalingPolicy()).segments == ()


def test_a_segment_of_one_hash_is_never_split() -> None:
    one = [ActiveSegment("s0", 7, 7), ActiveSegment("s1", 8, 0xFFFF)]
    assert decide(one, seen(500, 10), POLICY).segments == ()


@pytest.mark.parametrize(
    "changes, found",
    [
        ({"rows_per_s": 0}, "expected at least 1, found 0"),
        ({"merge_below": 0.6}, "expected 0 to 0.5, found 0.6"),
        ({"min_segments": 65}, "expected 1 to 64, found 65"),
        ({"max_segments": 2000}, "expected 1 to 1024, found 2000"),
        ({"skew": 0.5}, "expected more than 1"),
    ],
)
def test_a_policy_that_would_swing_or_run_away_is_refused(
    changes: dict[str, float], found: str
) -> None:
    with pytest.raises(OptionError, match=found):
        ScalingPolicy(**changes)  # type: ignore[arg-type]


def look(
    before: TopicLoad | None, at_s: int, counts: Mapping[str, int], size: int = 1
) -> TopicLoad:
    found = {name: Appended(count, count * size) for name, count in counts.items()}
    return observe(before, found, at_s * 1000, POLICY)


def test_rates_are_measured_between_two_polls() -> None:
    one = look(None, 0, {"a": 500})
    assert one.segments["a"].rows_per_s is None
    two = look(one, 10, {"a": 1500}, size=3)
    assert two.segments["a"].rows_per_s == 100
    assert TopicLoad.of({"__load": two.serialize()}) == two
    # A count that begins anew is no negative rate.
    assert look(two, 20, {"a": 200}).segments["a"].rows_per_s == 20


def test_polls_that_are_too_close_together_are_left_out() -> None:
    one = look(None, 0, {"a": 0})
    found = observe(one, {"a": Appended(10_000, 0)}, 999, POLICY)
    assert found is one


def test_heat_lasts_from_the_poll_before_and_ends_at_once() -> None:
    load = look(None, 0, {"a": 0})
    for second in (10, 20, 30):
        load = look(load, second, {"a": second * 100})
        assert load.segments["a"].hot_since_ms == 0
    load = look(load, 40, {"a": 3_000 + 500})
    assert load.segments["a"].hot_since_ms is None
    assert load.segments["a"].cold_since_ms is None
    load = look(load, 50, {"a": 3_500})
    assert load.segments["a"].cold_since_ms == 40_000


def test_any_change_of_the_segments_begins_the_pause_anew() -> None:
    load = look(look(None, 0, {"a": 0}), 10, {"a": 10})
    assert load.changed_ms == 0
    load = look(load, 20, {"b": 10, "c": 10})
    assert load.changed_ms == 20_000
    assert load.segments["b"].rows_per_s is None
    assert look(load, 30, {"b": 20, "c": 20}).changed_ms == 20_000


def test_a_load_that_stays_the_same_settles_and_never_swings() -> None:
    """Drive the policy by a simulated topic: a constant load, shared out by hash range."""
    for rows_per_s in (10, 60, 150, 220, 390, 2000):
        widths, load = [1.0, 1.0], None
        counts = {"0": 0.0, "1": 0.0}
        number, changes, last_change = 2, 0, 0
        for second in range(0, 7200, 30):
            names = list(counts)
            total = sum(widths)
            counts = {
                name: counts[name] + rows_per_s * 30 * width / total
                for name, width in zip(names, widths, strict=True)
            }
            load = look(load, second, {name: int(count) for name, count in counts.items()})
            decision = decide([ActiveSegment(n, 0, 9) for n in names], load, POLICY)
            if not decision.segments:
                continue
            changes, last_change = changes + 1, second
            at = names.index(decision.segments[0])
            taken = len(decision.segments)
            width = sum(widths[at : at + taken])
            made = 2 if taken == 1 else 1
            widths[at : at + taken] = [width / made] * made
            names[at : at + taken] = [str(number + n) for n in range(made)]
            number += made
            counts = {name: counts.get(name, 0.0) for name in names}
        assert 2 <= len(widths) <= 5
        assert changes <= 3
        assert last_change < 3600, f"{rows_per_s} rows/s never settle"


@pytest.mark.parametrize(
    "keys, end",
    [
        # One key that no split can share out, and a hot range, at the maximum: there is room then.
        ({0x0000: 150.0, 0x3333: 60, 0x4444: 60, 0x8000: 1, 0xA000: 1, 0xE000: 1}, 4),
        # Nothing can be split, and the rest is cold.
        ({0x0000: 150.0, 0x4444: 1, 0x8000: 1, 0xA000: 1, 0xE000: 1}, 2),
        # Everything is hot.
        (dict.fromkeys(range(0, 0x10000, 0x0800), 60.0), 5),
    ],
)
def test_merges_at_the_maximum_and_beside_a_hot_key_settle_as_well(
    keys: Mapping[int, float], end: int
) -> None:
    """Drive the policy by a simulated topic: each key has a hash and a constant load."""
    segments = active(5)
    counts, load = dict.fromkeys(("s0", "s1", "s2", "s3", "s4"), 0.0), None
    number, last_change = 5, 0
    for second in range(0, 7200, 30):
        own = {s.name: [k for k in keys if s.hash_start <= k <= s.hash_end] for s in segments}
        counts = {
            name: counts.get(name, 0.0) + sum(keys[key] for key in hashes) * 30
            for name, hashes in own.items()
        }
        load = look(load, second, {name: int(count) for name, count in counts.items()})
        one_hash = [name for name, hashes in own.items() if len(hashes) == 1]
        decision = decide(segments, load, POLICY, one_hash)
        if not decision.segments:
            continue
        last_change = second
        taken = [segment for segment in segments if segment.name in decision.segments]
        low, high = taken[0].hash_start, taken[-1].hash_end
        cuts = [low, sorted(own[taken[0].name])[1]] if len(taken) == 1 else [low]
        made = [
            ActiveSegment(f"s{number + n}", at, until - 1)
            for n, (at, until) in enumerate(pairwise([*cuts, high + 1]))
        ]
        number += len(made)
        at = segments.index(taken[0])
        segments[at : at + len(taken)] = made
    assert len(segments) == end
    assert last_change < 3600, "it never settles"


# -- changes ---------------------------------------------------------------------------------------

TOPIC = TopicName.parse("growing")


@pytest.fixture
def run(run: Components, monkeypatch: pytest.MonkeyPatch) -> Components:
    run.topics.create(TOPIC, 2)
    policy = ScalingPolicy(enabled=True, rows_per_s=100, min_segments=1)
    run.store.topics.change_property(str(TOPIC), "__scaling", policy.serialize())
    clock = [1_000_000]
    monkeypatch.setattr(run.store.transactions, "lowest_open", lambda _tc: (1, clock[0]))
    monkeypatch.setattr(run.store, "pass_time", lambda s: _add(clock, s), raising=False)
    return run


def _add(clock: list[int], seconds: int) -> None:
    clock[0] += seconds * 1000


def after(run: Components, seconds: int, *, dry_run: bool = False) -> Scaled:
    run.store.pass_time(seconds)  # type: ignore[attr-defined]
    [scaled] = run.scaler().sweep(dry_run=dry_run)
    return scaled


def write(run: Components, keys: Sequence[bytes], number: int) -> None:
    ref = run.topics.require(TOPIC).segment(str(number)).ref
    writer = run.log.writer(ref, "w")
    columns = [pa.array([b"v"] * len(keys)), pa.array(keys, pa.binary())]
    writer.append(pa.record_batch(columns, names=["value", "key"]))
    writer.flush()
    writer.close()


def shape(run: Components) -> list[str]:
    return [s.descriptor for s in run.topics.require(TOPIC).active]


def test_a_hot_segment_is_split_where_its_load_is_halved_and_cold_ones_are_merged(
    run: Components,
) -> None:
    after(run, 0)
    before = shape(run)
    write(run, [b"key-%d" % n for n in range(10_000)], 0)
    dry = after(run, 61, dry_run=True)
    assert (dry.decision.what, dry.decision.segments) == ("split", ("0000-7fff-0",))
    assert shape(run) == before
    assert after(run, 1).decision.what == "nothing", "the burst is over"
    write(run, [b"key-%d" % n for n in range(10_000)], 0)
    done = after(run, 60)
    assert (done.decision.what, done.failed) == ("split", "")
    assert len(shape(run)) == 3
    assert after(run, 30).decision.what == "nothing"
    merged = [after(run, 310).decision for _ in range(3)]
    assert [decision.what for decision in merged] == ["merge", "nothing", "merge"]
    assert len(shape(run)) == 1
    assert (
        run.store.transactions.tc_state(0, limit=1).counts["pulsar_txn_segments_scaled_total"] == 3
    )


def test_a_segment_with_a_single_key_is_not_split(run: Components) -> None:
    after(run, 0)
    write(run, [b"the only one"] * 10_000, 0)
    decision = after(run, 61).decision
    assert decision.segments == ()
    assert "all of its keys have one hash" in decision.why
    write(run, [None] * 10_000, 0)  # type: ignore[list-item]
    assert after(run, 60).decision.segments == (), "the last keys are looked at"


def test_a_segment_with_a_single_key_stops_no_other_from_being_split_or_merged(
    run: Components,
) -> None:
    run.topics.changes.split(TOPIC, "1")
    run.topics.changes.split(TOPIC, "3")
    assert shape(run) == ["0000-7fff-0", "8000-bfff-2", "c000-dfff-4", "e000-ffff-5"]
    after(run, 0)
    write(run, [b"the only one"] * 20_000, 0)
    write(run, [b"key-%d" % n for n in range(9_000)], 2)
    scaled = after(run, 61)
    split = scaled.decision
    assert (split.what, split.segments, scaled.failed) == ("split", ("8000-bfff-2",), "")
    assert "segment 0000-7fff-0 should be split" in split.why
    assert len(shape(run)) == 5
    merged = []
    for _ in range(20):
        write(run, [b"the only one"] * 20_000, 0)
        decision = after(run, 61).decision
        if decision.what == "merge":
            merged.append(decision.why)
    assert len(merged) == 3
    assert all("all of its keys have one hash" in why for why in merged)
    assert shape(run)[0] == "0000-7fff-0"


def test_rows_without_keys_are_shared_out_by_a_split_in_the_middle(run: Components) -> None:
    after(run, 0)
    write(run, [None] * 10_000, 0)  # type: ignore[list-item]
    assert after(run, 61).decision.what == "split"
    assert shape(run)[:2] == ["0000-3fff-2", "4000-7fff-3"]


def test_keys_of_other_segments_move_no_cut(run: Components) -> None:
    """Clients that know no segments write where they like."""
    keys = [b"key-%d" % n for n in range(200)]
    own = [key for key in keys if hash_of(key) < HASH_SPACE // 2]
    other = [key for key in keys if hash_of(key) >= HASH_SPACE // 2]
    write(run, other, 0)
    assert cut_by_load(run.log, run.topics.require(TOPIC).segment("0")) is None
    write(run, own[:1] * 10, 0)
    assert set(recent_hashes(run.log, run.topics.require(TOPIC).segment("0"))) == {hash_of(own[0])}
    write(run, own[1:] * 10, 0)
    topology = run.topics.changes.split(TOPIC, "0", by_load=True)
    lower, upper = (topology.segment(number) for number in ("2", "3"))
    below = sum(hash_of(key) <= lower.hash_end for key in own)
    assert abs(2 * below - len(own)) <= 2
    assert (lower.hash_start, upper.hash_end) == (0, HASH_SPACE // 2 - 1)


def test_a_topic_whose_broker_does_not_answer_keeps_no_other_from_being_scaled(
    run: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = TopicName.parse("a-first-one")
    run.topics.create(first, 1)
    policy = ScalingPolicy(enabled=True).serialize()
    run.store.topics.change_property(str(first), "__scaling", policy)
    appended = run.log.appended

    def refused(segment: SegmentRef) -> Appended:
        if segment.topic == str(first):
            raise SegmentLogUnavailableError("the broker answers 500")
        return appended(segment)

    monkeypatch.setattr(run.log, "appended", refused)
    scaled = {found.topic: found.failed for found in run.scaler().sweep()}
    assert scaled == {str(first): "the broker answers 500", str(TOPIC): ""}


def test_one_topic_that_cannot_be_scaled_blocks_no_other(run: Components) -> None:
    broken = TopicName.parse("a-broken-one")
    topology = run.topics.create(broken, 1)
    policy = ScalingPolicy(enabled=True).serialize()
    run.store.topics.change_property(str(broken), "__scaling", policy)
    run.log.delete(topology.active[0].ref)
    one, other = run.scaler().sweep()
    assert (one.topic, one.decision.what) == (str(broken), "nothing")
    assert "has no log on this server" in one.failed
    assert (other.topic, other.failed) == (str(TOPIC), "")


def test_a_topic_is_not_scaled_by_the_policy_of_a_deleted_one_of_its_name(
    run: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    after(run, 0)
    policy = ScalingPolicy(enabled=True, rows_per_s=100, min_segments=8)
    run.store.topics.change_property(str(TOPIC), "__scaling", policy.serialize())
    read_properties, asked = run.store.topics.read_properties, list[str]()

    def deleted_behind(name: str) -> Any:
        properties = read_properties(name)
        asked.append(name)
        if len(asked) == 1:
            run.topics.delete(TOPIC)
            run.topics.create(TOPIC, 2)
        return properties

    with monkeypatch.context() as patch:
        patch.setattr(run.store.topics, "read_properties", deleted_behind)
        run.store.pass_time(61)  # type: ignore[attr-defined]
        assert run.scaler().sweep() == []
    assert len(asked) >= 2
    assert len(shape(run)) == 2


def test_a_decision_names_what_it_does() -> None:
    kinds = [Decision((), "").what, Decision(("a",), "").what, Decision(("a", "b"), "").what]
    assert kinds == ["nothing", "split", "merge"]


def test_what_a_later_version_has_added_to_a_property_is_left() -> None:
    load = TopicLoad(1, 2, {"a": SegmentLoad(3, 4)})
    for name, record in (
        (SCALING_PROPERTY, POLICY),
        (LOAD_PROPERTY, load),
        (RETENTION_PROPERTY, Retention(time_ms=5)),
    ):
        tree = json.loads(record.serialize()) | {"later": 1}
        for segment in tree.get("segments", {}).values():
            segment["later"] = 1
        assert type(record).of({name: json.dumps(tree)}) == record
