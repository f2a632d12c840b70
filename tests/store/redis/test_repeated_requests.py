"""Every step of the store may be repeated: a lost reply is answered by asking again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from pulsar_txn_spark.position import EARLIEST, MessagePosition, Position
from pulsar_txn_spark.store.ack_ranges import AckInterval
from pulsar_txn_spark.store.metadata_pb2 import Outcome
from pulsar_txn_spark.store.records import (
    AckRequest,
    Answer,
    Code,
    CursorStart,
    EndedBy,
    OpGroup,
    OpLogSettings,
    OpsAnswer,
    PointerRead,
    Seen,
    SegmentDecision,
    SubscriptionRef,
    TxnId,
    TxnState,
    WriterFate,
)
from pulsar_txn_spark.store.redis import scripts
from pulsar_txn_spark.store.redis import store as redis_store
from pulsar_txn_spark.store.redis.sinks import seen_call
from pulsar_txn_spark.txn.coordinator import TransactionCoordinator
from pulsar_txn_spark.txn.participants import ack_intent, pointer_intent, write_intent
from pulsar_txn_spark.txn.pending_ack import MetadataPendingAckStore
from pulsar_txn_spark.txn.transaction_buffer import writer_name
from tests.support.scenario import (
    OTHER_SEGMENT,
    SCRIPTS,
    SEGMENT,
    TIMEOUT_MS,
    Loss,
    World,
    ack,
    keys_of,
    put_cursor,
)

P1, P2 = Position(1, 10), Position(1, 20)
PASSED = [(EARLIEST, P2)] * 2
TOPIC = "topic://public/default/t"
LISTED = "topic://there/is/one"
NONCE = "nonce"

Step = Callable[[World, TxnId], Any]


def decisions(*segments: str) -> list[SegmentDecision]:
    fates = (WriterFate("winner", None), WriterFate("bounded", P1), WriterFate("loser", EARLIEST))
    return [SegmentDecision(segment, fates, ("sub",), P2) for segment in segments]


def acks(*segments: str) -> list[AckRequest]:
    return [ack(EARLIEST, P1, segment=segment) for segment in segments]


def swap(world: World, expected: PointerRead, pointer: bytes) -> bool:
    return world.store.sinks.swap_pointer("sink", "q", expected, pointer, current="q")


WHERE = SubscriptionRef(SEGMENT, "sub", "q", source_epoch=1)
BEFORE_ALL = MessagePosition.whole(EARLIEST)
WHOLE = AckInterval(BEFORE_ALL, MessagePosition(1, 10))
SINGLE = AckInterval(MessagePosition(1, 5, 3), MessagePosition(1, 5, 4))


def read_acks(world: World) -> object:
    return world.store.subscriptions.read_acks(SEGMENT, "sub")


def many_acks_committed(world: World, txn: TxnId) -> TxnId:
    """Commit a transaction that holds more ranges than are given up in one step."""
    places = [MessagePosition(1, entry) for entry in range(1400)]
    intervals = [AckInterval(*places[at : at + 2]) for at in range(0, 1400, 2)]
    for chunk in (intervals[:512], intervals[512:]):
        world.store.subscriptions.ack_individual(txn, WHERE, chunk)
    record = Outcome().SerializeToString(deterministic=True)
    world.store.transactions.end(txn, TxnState.COMMITTED, record, EndedBy.OWNER, NONCE)
    return txn


def staged_keys(world: World) -> list[bytes]:
    return keys_of(world.client, "*:stage:*")


STEPS: Mapping[str, list[Step]] = {
    "ack_cumulative": [lambda w, t: w.store.subscriptions.ack_cumulative(t, WHERE, WHOLE)],
    "ack_individual": [
        lambda w, t: w.store.subscriptions.ack_individual(
            t, WHERE, [SINGLE, AckInterval(SINGLE.end, WHOLE.end)]
        ),
        lambda w, t: w.store.subscriptions.ack_individual(t, WHERE, [SINGLE], normal=True),
    ],
    "ack_place": [
        lambda w, t: w.store.subscriptions.place_acks(t, acks(SEGMENT)),
        lambda w, t: w.store.subscriptions.place_acks(t, acks(SEGMENT, OTHER_SEGMENT)),
    ],
    "ack_read": [
        lambda w, t: (w.store.subscriptions.ack_individual(t, WHERE, [SINGLE]), read_acks(w))[1]
    ],
    "tag_create": [lambda w, _: w.store.segments.raise_high("new", P1)],
    "catalog_add": [
        lambda w, _: w.store.meta.add_topic(TOPIC),
        lambda w, _: w.store.meta.add_topic(LISTED),
    ],
    "catalog_read": [
        lambda w, _: w.store.meta.topic_stamp(LISTED),
        lambda w, _: w.store.meta.topic_stamp("topic://a/b/new") is None,
    ],
    "catalog_remove": [
        lambda w, _: w.store.meta.remove_topic(LISTED, str(w.store.meta.topic_stamp(LISTED))),
        lambda w, _: w.store.meta.remove_topic(LISTED, "a stamp of before"),
    ],
    "catalog_list": [lambda w, _: w.store.meta.list_topics()],
    "cursor_claim": [
        lambda w, _: w.store.subscriptions.claim_cursor(SEGMENT, "new", "q", 1, P1),
        lambda w, _: w.store.subscriptions.claim_cursor(SEGMENT, "sub", "q", 5, P1),
        lambda w, _: w.store.subscriptions.claim_cursor(SEGMENT, "free", "other", 5, P1),
    ],
    "cursor_delete": [lambda w, _: w.store.subscriptions.delete_cursor(SEGMENT, "free")],
    "cursor_inherit": [
        lambda w, _: w.store.subscriptions.inherit_cursor("child", "sub", "q"),
        lambda w, _: w.store.subscriptions.inherit_cursor(SEGMENT, "sub", "q"),
    ],
    "cursor_create": [
        lambda w, _: w.store.subscriptions.create_cursors(
            "new", {SEGMENT: CursorStart(P1), OTHER_SEGMENT: CursorStart(P1, may_skip=True)}, "s|4"
        ),
        lambda w, _: w.store.subscriptions.create_cursors("sub", {SEGMENT: CursorStart(P1)}),
    ],
    "cursor_read": [
        lambda w, _: w.store.subscriptions.read_cursors([SEGMENT, OTHER_SEGMENT], "sub")
    ],
    "cursor_reset": [lambda w, _: put_cursor(w.store, SEGMENT, "sub", P2)],
    "cursor_release": [
        lambda w, _: w.store.subscriptions.release_cursors("read", "q", {"sealed": P1})
    ],
    "events_newest": [lambda w, _: len(w.store.newest_events([f"seg:{SEGMENT}", "tc0"]))],
    "plan_read": [lambda w, _: w.store.queries.read_plans("q", "0")],
    "plan_register": [
        lambda w, _: w.store.queries.register_plan("q", "0", "source", b"plan"),
        lambda w, _: w.store.queries.register_plan("q", "20", "source", b"plan"),
    ],
    "pointer_cas": [
        lambda w, _: swap(w, PointerRead("q", b"pointer", b"pointer"), b"next"),
        lambda w, _: swap(w, PointerRead("", b"", b""), b"stale"),
    ],
    "pointer_read": [lambda w, _: w.store.sinks.read_pointer("sink", "q")],
    "seg_close": [lambda w, t: w.store.segments.close("quiet", t.tc, t.counter + 1)],
    "seg_retained": [lambda w, _: w.store.segments.retained([SEGMENT, OTHER_SEGMENT])],
    "seg_purge": [lambda w, _: w.store.segments.purge("retired")],
    "seg_trim": [
        lambda w, _: w.store.segments.mark_trimmed("sealed", P1),
        lambda w, _: w.store.segments.mark_trimmed(SEGMENT, P2),
    ],
    "seg_fence": [lambda w, _: sorted(w.store.segments.fence([SEGMENT, "quiet", "retired"]))],
    "seg_retire": [
        lambda w, _: w.store.segments.retire("quiet", P1, []),
        lambda w, _: w.store.segments.retire(SEGMENT, P1, ["sub"]),
    ],
    "topic_lease": [lambda w, _: w.store.topics.lease(TOPIC, "me", 1000)],
    "seg_floor": [
        lambda w, t: w.store.segments.raise_floor("closed", t.tc, t.counter, P1, EARLIEST),
        lambda w, t: w.store.segments.raise_floor("closed", t.tc, t.counter, P1, P1),
    ],
    "seg_gate": [
        lambda w, _: w.store.segments.gates([SEGMENT, OTHER_SEGMENT]),
        lambda w, _: w.store.segments.gates(["quiet", SEGMENT], PASSED, passing=True),
    ],
    "seg_gates": [
        lambda w, _: w.store.segments.gates([SEGMENT, OTHER_SEGMENT], at_once=True),
        lambda w, _: w.store.segments.gates(["quiet", SEGMENT], PASSED, at_once=True, passing=True),
    ],
    "seg_materialize": [
        lambda w, t: w.store.segments.materialize(t, TxnState.COMMITTED, decisions(SEGMENT)),
        lambda w, t: w.store.segments.materialize(
            t, TxnState.ABORTED, decisions(SEGMENT, OTHER_SEGMENT)
        ),
        lambda w, t: TransactionCoordinator(w.store).materialize(
            w.header(many_acks_committed(w, t))
        ),
    ],
    "seg_pin": [
        lambda w, t: w.store.segments.pin(t, "new", [SEGMENT]),
        lambda w, t: w.store.segments.pin(t, "new", [SEGMENT, OTHER_SEGMENT]),
    ],
    "seg_is_materialized": [
        lambda w, t: w.store.segments.is_materialized(t, [SEGMENT, OTHER_SEGMENT])
    ],
    "tc_state": [lambda w, t: w.store.transactions.tc_state(t.tc, limit=9).open],
    "seg_raise": [lambda w, _: w.store.segments.raise_high(SEGMENT, P2)],
    "sink_list": [lambda w, _: w.store.queries.read_sinks("q")],
    "sink_register": [
        lambda w, _: w.store.queries.register_sink("q", "sink", 1, "run"),
        lambda w, _: w.store.queries.register_sink("q", "other", 3, "run"),
    ],
    "sink_seen": [lambda w, _: w.store.scripts.answer(seen_call("q", "sink", Seen(7, "f" * 16)))],
    "stage_sweep": [
        lambda w, t: [w.store.stages.sweep(t.tc, unused_ms=-1, limit=9), staged_keys(w)][1:]
    ],
    "stage_touch": [
        lambda w, t: w.store.stages.touch(t.tc, "scope"),
        lambda w, t: w.store.stages.touch(t.tc, "scope", ended=True),
        lambda w, t: w.store.stages.touch(t.tc, "nobody", ended=True),
    ],
    "source_epoch": [lambda w, _: w.store.meta.next_source_epoch()],
    "store_identity": [lambda w, _: redis_store.RedisStore(w.store.scripts.client).identity],
    "subscription_list": [lambda w, _: w.store.subscriptions.names(SEGMENT)],
    "tag_state": [lambda w, _: w.store.segments.raise_high("new", P1)],
    "topic_properties": [lambda w, _: w.store.topics.read_properties(TOPIC)],
    "topic_property": [
        lambda w, _: w.store.topics.change_property(TOPIC, "owner", "me"),
        lambda w, _: w.store.topics.change_property("topic://a/b/new", "owner", "me"),
        lambda w, _: w.store.topics.change_property(TOPIC, "old", None),
        lambda w, _: w.store.topics.change_property(
            TOPIC, "owner", "me", instance_id="another life"
        ),
    ],
    "topology_cas": [
        lambda w, _: w.store.topics.swap("topic://a/b/new", 0, b"record"),
        lambda w, _: w.store.topics.swap(TOPIC, 1, b"next"),
        lambda w, _: w.store.topics.swap(TOPIC, 7, b"stale"),
        lambda w, _: w.store.topics.swap(TOPIC, 1, b"out", instance_id="life", deleting=True),
        lambda w, _: w.store.topics.delete(TOPIC, 1),
        lambda w, _: w.store.topics.delete("topic://a/b/new", 0),
        lambda w, _: w.store.topics.delete(TOPIC, 7),
    ],
    "topology_read": [
        lambda w, _: w.store.topics.read(TOPIC),
        lambda w, _: w.store.topics.version("topic://a/b/new"),
    ],
    "txn_create": [
        lambda w, _: w.store.transactions.create(
            tc=0,
            nonce="fresh",
            owner="o",
            sink="s",
            query="q",
            batch="0",
            timeout_ms=TIMEOUT_MS,
            intents=["P|q|s"],
        )
    ],
    "txn_forget_ops": [lambda w, _: w.store.op_log.forget(*decided(w))],
    "txn_intend": [
        lambda w, t: w.store.transactions.intend(t, NONCE, TIMEOUT_MS, [write_intent("s", "w")]),
        lambda w, t: w.store.transactions.intend(t, NONCE, TIMEOUT_MS, []),
    ],
    "txn_list": [
        lambda w, t: [
            txn for txn, _ in w.store.transactions.list_open(t.tc, deadline_ms=None, limit=9)
        ],
        lambda w, t: [txn for txn, _ in w.store.transactions.list_final(t.tc, limit=9)],
        lambda w, t: w.store.transactions.list_unmaterialized(t.tc, limit=9),
    ],
    "txn_due": [
        lambda w, t: w.store.transactions.list_due(
            t.tc, finalized_ms=1 << 50, below=9, offset=0, page=9, limit=9
        )
    ],
    "txn_lowest_open": [lambda w, t: w.store.transactions.lowest_open(t.tc)[0]],
    "txn_of_nonce": [lambda w, t: w.store.transactions.of_nonce(t.tc, NONCE)],
    "txn_begin": [
        lambda w, t: w.store.merged.begin(
            t.tc,
            "another nonce",
            "owner",
            TIMEOUT_MS,
            sink="sink",
            query="q",
            batch=7,
            attempt="run",
            intents=[pointer_intent("q", "sink")],
            expected=PointerRead("q", b"pointer", b"pointer"),
            pointer=b"",
        )
    ],
    "txn_open": [
        lambda w, _: w.buffer.open(
            "another nonce",
            TIMEOUT_MS,
            "owner",
            lambda txn: writer_name(txn, 0, "new"),
            [SEGMENT, OTHER_SEGMENT],
            lambda _: None,
        )
    ],
    "txn_acknowledge": [
        lambda w, t: len(
            MetadataPendingAckStore(w.coordinator).acknowledge(
                t, NONCE, TIMEOUT_MS, acks(SEGMENT, OTHER_SEGMENT)
            )
        )
    ],
    "txn_admit": [
        lambda w, t: w.buffer.admit(
            t, NONCE, TIMEOUT_MS, "ptxn-0-1-0-new", [SEGMENT, OTHER_SEGMENT]
        )
    ],
    "txn_commit": [
        lambda w, t: w.coordinator.commit(
            t, NONCE, Outcome(), intents=w.header(t).intents, ops={"op-9": b"record"}
        )
    ],
    "txn_op": [lambda w, t: w.store.op_log.append(t, NONCE, {"op-1": b"record", "op-2": b"other"})],
    "txn_op_batch": [
        lambda w, t: w.store.op_log.append_batch(
            t.tc, "e", b"batch", [OpGroup(t, NONCE, b"\x0e\x01", 1), OpGroup(t, "other", b"", 1)]
        )
    ],
    "txn_ops": [lambda w, t: w.store.op_log.read(t)],
    "op_log_read": [lambda w, t: w.store.op_log.read_settings(t.tc)],
    "op_log_set": [lambda w, t: w.store.op_log.change_settings(t.tc, OpLogSettings(enabled=True))],
    "txn_read": [lambda w, t: w.header(t).intents],
    "txn_remove": [lambda w, _: w.store.transactions.remove(materialized(w))],
    "txn_stage": [
        lambda w, t: w.store.stages.declare_attempt(t.tc, NONCE, "slot", 2),
        lambda w, t: w.store.stages.stage(t.tc, NONCE, "slot", 1, b"write"),
    ],
    "txn_staged": [lambda w, t: w.store.stages.read(t.tc, NONCE)],
}
"""For each script the steps of the store that run it."""

COUNTED_ANEW = {
    "catalog_add": "it gets another stamp: who wanted to remove it has to look again",
    "source_epoch": "a number is skipped; numbers have to rise, not to be dense",
    "cursor_reset": "a generation is skipped; it has to differ from those before",
    "topic_property": "the second time the property is gone, which is what was wanted",
    "cursor_delete": "the second time it is gone, which is what was wanted",
    "txn_remove": "the second time the header is gone, which is what was wanted",
}
"""Where the answer, or a counter, may tell that the request was repeated; nothing else may."""


def decided(world: World) -> tuple[TxnId, str]:
    txn = world.open("decided")
    record = Outcome().SerializeToString(deterministic=True)
    world.store.transactions.end(txn.id, TxnState.COMMITTED, record, EndedBy.OWNER, txn.nonce)
    return txn.id, txn.nonce


def materialized(world: World) -> TxnId:
    txn, nonce = decided(world)
    world.store.op_log.forget(txn, nonce)
    return txn


def prepare(world: World) -> TxnId:
    """Bring a store into a state in which every step has something to do."""
    txn = world.open(NONCE).id
    for segment in (SEGMENT, OTHER_SEGMENT):
        world.store.subscriptions.claim_cursor(segment, "sub", "q", 1, EARLIEST)
        for writer in ("winner", "bounded", "loser"):
            world.store.segments.pin(txn, writer, [segment])
    intents = [ack_intent(SEGMENT, "sub"), ack_intent(OTHER_SEGMENT, "sub")]
    world.store.transactions.intend(txn, NONCE, TIMEOUT_MS, intents)
    put_cursor(world.store, SEGMENT, "free", P1)
    world.store.topics.swap(TOPIC, 0, b"record", instance_id="life")
    world.store.topics.change_property(TOPIC, "old", "value")
    world.store.meta.add_topic(LISTED)
    swap(world, PointerRead("", b"", b""), b"pointer")
    for batch in range(9):
        world.store.queries.register_plan("q", str(batch), "source", b"old plan")
    world.store.stages.declare_attempt(txn.tc, NONCE, "slot", 1)
    world.store.segments.raise_high("quiet", P1)
    world.store.segments.close("closed", txn.tc, txn.counter)
    world.store.subscriptions.claim_cursor("sealed", "read", "q", 1, EARLIEST)
    world.client.hset("{seg:sealed}:cursor:read", "position", P2.padded())
    world.store.segments.raise_high("retired", P1)
    world.store.segments.retire("retired", P1, [])
    return txn


CLOCKS = {b"deadline_ms", b"created_ms", b"finalized_ms", b"__upkeep"}


def effect(world: World) -> dict[str, object]:
    """Return everything in the store, without clocks and without sequence numbers."""
    found: dict[str, object] = {}
    for key in keys_of(world.client, "*"):
        name = key.decode()
        if name.endswith(":metrics"):
            continue  # counts of requests, which count a repeated one as well
        kind = world.client.type(key)
        if name.endswith(":birth"):
            found[name] = "born"
        elif kind == b"hash":
            fields = world.client.hgetall(key)
            found[name] = {f: "a time" if f in CLOCKS else v for f, v in fields.items()}
        elif kind == b"zset":
            found[name] = sorted(world.client.zrange(key, 0, -1))
        elif kind == b"set":
            found[name] = sorted(world.client.smembers(key))
        elif kind == b"stream":
            found[name] = [fields for _, fields in world.client.xrange(key)]
        else:
            found[name] = world.client.get(key)
    return found


def meaning(found: Any) -> Any:
    """Return an answer without saying whether the step was done now or already."""
    if isinstance(found, list):
        return [meaning(item) for item in found]
    if isinstance(found, OpsAnswer):
        return [meaning(item) for item in found.answers]
    if isinstance(found, Answer):
        already = found.code in (Code.ALREADY, Code.PINNED)
        return Code.OK if already else found.code
    return found


def cases() -> list[Any]:
    return [
        pytest.param(name, step, id=f"{name}-{number}" if number else name)
        for name, steps in sorted(STEPS.items())
        for number, step in enumerate(steps)
    ]


ELSEWHERE = {
    "broker_acks_note": "test_broker_acks.py repeats it",
    "broker_acks_open": "test_broker_acks.py: an owner is skipped; the last one counts",
    "broker_acks_read": "only brokers call it (jvm_shim), and it changes nothing",
    "broker_acks_write": "test_broker_acks.py repeats it",
    "metrics_add": "not repeated: it would count twice",
    "seg_fates": "only brokers call it (jvm_shim), and it changes nothing",
    "topology_is": "test_merged_steps.py: only txn_open has it, and it changes nothing",
    "tc_open": "test_client_transactions.py: a number is skipped; numbers have to rise",
    "tc_raise": "test_client_transactions.py repeats it",
    "txn_adopt": "test_client_transactions.py repeats it",
    "txn_ended": "test_client_transactions.py repeats it",
    "txn_end": "test_header_state_machine.py repeats it",
}
"""The scripts that have no steps here, and why."""


def test_every_script_of_the_store_is_in_this_table() -> None:
    assert set(STEPS) == set(SCRIPTS.values()) - set(ELSEWHERE)


@pytest.mark.parametrize("loss", list(Loss))
@pytest.mark.parametrize("script,step", cases())
def test_a_step_that_is_repeated_has_the_effect_and_the_answer_of_one(
    world: World,
    redis_path: str,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    step: Step,
    loss: Loss,
) -> None:
    monkeypatch.setattr(scripts, "_LOST_REPLY_PAUSE_S", 0.0)
    txn = prepare(world)
    once, effect_of_once = step(world, txn), effect(world)

    world.client.flushall()
    repeated = World(redis_path)
    txn = prepare(repeated)
    network = repeated.lose({script: [loss, loss]})
    again = step(repeated, txn)
    effect_of_again = effect(repeated)

    assert network.calls[script] >= 3, "the script did not run"
    if script in COUNTED_ANEW and loss is Loss.REPLY:
        assert effect_of_again.keys() == effect_of_once.keys()
        return
    if script != "store_identity":  # another store has another uuid
        assert meaning(again) == meaning(once)
    assert effect_of_again == effect_of_once


def test_a_late_copy_of_a_request_finds_its_own_effect_or_a_refusal(world: World) -> None:
    # A copy that was delayed in the network arrives when everything else has happened.
    txn = world.open()
    winner = world.write(txn, "a")
    world.commit(txn, winner)
    later = world.open()
    world.commit(later, world.write(later, "b"))
    before = effect(world)
    world.store.segments.pin(txn.id, winner.writer, [SEGMENT])
    world.store.transactions.intend(txn.id, txn.nonce, TIMEOUT_MS, [write_intent(SEGMENT, "late")])
    world.store.op_log.append(txn.id, txn.nonce, {"late": b""})
    world.store.transactions.end(txn.id, TxnState.ABORTED, b"", EndedBy.FENCE)
    decision = SegmentDecision(SEGMENT, (WriterFate(winner.writer, EARLIEST),))
    world.store.segments.materialize(txn.id, TxnState.ABORTED, [decision])
    assert effect(world) == before
    assert world.visible() == ["a", "b"]


def test_every_step_stays_within_one_hash_tag(
    redis_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a script touches lies on one node of a cluster: its keys, and what it derives."""
    sent: list[list[str]] = []
    send = scripts.Scripts._send

    def recorded(
        self: scripts.Scripts, sha: str, body: str, keys: list[str], args: Any, **how: Any
    ) -> Any:
        derived = [arg for arg in args if isinstance(arg, str) and arg.startswith("{")]
        sent.append([*keys, *derived])
        return send(self, sha, body, keys, args, **how)

    monkeypatch.setattr(scripts.Scripts, "_send", recorded)
    for name, steps in STEPS.items():
        if name in scripts.MERGED:
            continue  # which no cluster runs
        for step in steps:
            World(redis_path).client.flushall()
            world = World(redis_path)
            step(world, prepare(world))
    assert len(sent) > 100
    for touched in sent:
        assert len({key[: key.index("}:")] for key in touched}) == 1, touched
