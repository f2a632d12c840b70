"""A Redis that has reached `maxmemory`: nothing new begins, and whatever ends or frees goes on."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis

from pulsar_txn_spark import metrics
from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.errors import SegmentLogUnavailableError, StoreFullError
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.retention import RETENTION_PROPERTY, Retention
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.store.metadata_pb2 import Outcome, Winner
from pulsar_txn_spark.store.records import (
    CursorStart,
    EndedBy,
    SegmentDecision,
    TxnId,
    TxnState,
    WriterFate,
)
from pulsar_txn_spark.store.redis import connection, scripts, segments
from pulsar_txn_spark.store.redis.connection import connect
from pulsar_txn_spark.store.redis.scripts import Call
from pulsar_txn_spark.txn.participants import write_intent
from pulsar_txn_spark.txn.sweeper import SegmentEnds, Sweeper, SweepReport
from tests.store.redis.test_repeated_requests import (
    ELSEWHERE,
    NONCE,
    STEPS,
    decided,
    effect,
    many_acks_committed,
    materialized,
    prepare,
    read_acks,
)
from tests.support.redis_servers import StartRedis, append_only_file, url_of
from tests.support.scenario import SEGMENT, TIMEOUT_MS, Txn, World, load_scripts, put_cursor

Step = Callable[[World, TxnId], Any]

BEGINS = {
    "ack_cumulative",
    "ack_individual",
    "ack_place",
    "catalog_add",
    "cursor_create",
    "op_log_set",
    "plan_register",
    "seg_pin",
    "sink_register",
    "tag_create",
    "tag_state",
    "txn_acknowledge",
    "txn_admit",
    "txn_begin",
    "txn_create",
    "txn_op",
    "txn_op_batch",
    "txn_open",
    "txn_stage",
    ("cursor_claim", 0),
    ("cursor_create", 0),
    ("pointer_cas", 2),
    ("topic_property", 0),
    ("topic_property", 1),
    ("topology_cas", 0),
    ("topology_cas", 1),
    ("topology_cas", 5),
    ("txn_intend", 0),
}
"""What a full store refuses: scripts, or single steps of those in `STEPS`."""

NOTHING_TO_DO = {("cursor_create", 1)}
"""Steps of such scripts that write nothing, so that no store refuses them."""


def owner_call(name: str, *args: scripts.Arg) -> Call:
    return Call(f"broker_acks_{name}", f"seg:{SEGMENT}", ["acks-owner:s", "acks:s"], list(args))


def note_call(cursor: str) -> Call:
    keys = ["acks-owner:s", "broker-subscriptions"]
    return Call("broker_acks_note", f"seg:{SEGMENT}", keys, ["s", cursor])


def asking(call: Call) -> Step:
    return lambda world, _: world.store.scripts.run(call)[1:]


def nothing(world: World, txn: TxnId) -> None:
    """Prepare nothing."""


def opened_acks(world: World, txn: TxnId) -> None:
    world.store.scripts.run(note_call("cursor"))
    world.store.scripts.run(owner_call("open", "cursor"))
    world.store.scripts.run(owner_call("write", 1, 1, 1, "record", "x"))


def opened_coordinator(world: World, txn: TxnId) -> None:
    call = Call("tc_open", f"tc{txn.tc}", ["pulsar-epochs"], ["7"])
    world.store.scripts.run(call)
    world.client.hset(f"{{tc{txn.tc}}}:txn:{txn.key}", "nonce", "pulsar-7-0-x")


def adopt(world: World, txn: TxnId) -> Any:
    keys = [f"txn:{txn.key}", "nonces", "pulsar-epochs"]
    args: list[scripts.Arg] = [txn.key, "pulsar-7-0-x", "pulsar-7-1-y"]
    return world.store.scripts.run(Call("txn_adopt", f"tc{txn.tc}", keys, args))[1:]


def end_of(state: TxnState, by: EndedBy) -> Step:
    return lambda world, txn: world.store.transactions.end(txn, state, b"", by, NONCE).code


def count(world: World, txn: TxnId) -> None:
    world.store.counters.count(metrics.ROUND_TRIPS)
    world.store.flush_counters()


def register_many(world: World, txn: TxnId) -> None:
    for number in range(256):
        world.store.queries.register_sink("q", f"sink-{number}", number, "run")


MADE: dict[str, tuple[Callable[[World, TxnId], Any], Step]] = {
    "a sink in the place of the oldest": (
        register_many,
        lambda w, _: w.store.queries.register_sink("q", "other", 300, "run"),
    ),
    "an id of a broker's cursor": (opened_acks, asking(note_call("next"))),
    "a pointer of a query": (
        nothing,
        lambda w, _: w.store.sinks.swap_pointer(
            "sink", "next", w.store.sinks.read_pointer("sink", "next"), b"p", current="next"
        ),
    ),
}
"""Other steps that a full store refuses: with what is made before it is full."""

ENDED: dict[str, tuple[Callable[[World, TxnId], Any], Step]] = {
    "commit": (nothing, end_of(TxnState.COMMITTED, EndedBy.OWNER)),
    "abort": (nothing, end_of(TxnState.ABORTED, EndedBy.FENCE)),
    "expire": (lambda w, t: w.expire(t), end_of(TxnState.ABORTED, EndedBy.EXPIRED)),
    "forget records": (
        lambda w, _: decided(w),
        lambda w, t: w.store.op_log.forget(TxnId(*_last(w)), "decided"),
    ),
    "remove a header": (
        lambda w, _: materialized(w),
        lambda w, t: w.store.transactions.remove(TxnId(*_last(w))),
    ),
    "settle ranges": (
        many_acks_committed,
        lambda w, t: w.coordinator.materialize(w.header(t)),
    ),
    "inherit a cursor": (
        lambda w, _: w.store.segments.prepare(["child"]),
        lambda w, _: w.store.subscriptions.inherit_cursor("child", "sub", "q"),
    ),
    "drop a segment from a topology": (
        nothing,
        lambda w, _: w.store.topics.swap("topic://public/default/t", 1, b"next", frees=True),
    ),
    "drop a writer": (
        nothing,
        lambda w, t: (
            w.store.segments.materialize(
                t,
                TxnState.ABORTED,
                [SegmentDecision(SEGMENT, (WriterFate("loser", EARLIEST),))],
            )[0].code
        ),
    ),
    "trim": (nothing, lambda w, _: w.store.segments.mark_trimmed("quiet", Position(1, 10)).code),
    "touch a scope": (nothing, lambda w, t: w.store.stages.touch(t.tc, NONCE).code),
    "set a retention": (
        nothing,
        lambda w, _: w.store.topics.change_property(
            "topic://public/default/t", "__retention", "{}"
        ),
    ),
    "open acknowledgements": (opened_acks, asking(owner_call("open", "cursor"))),
    "replace a record": (
        opened_acks,
        asking(owner_call("write", 1, 2, 1, "next", "x", "record")),
    ),
    "decide what a broker has recorded": (
        opened_acks,
        asking(owner_call("write", 1, 2, 1, "5:42", "COMMITTED")),
    ),
    "open a coordinator": (
        nothing,
        lambda w, t: w.store.scripts.run(Call("tc_open", f"tc{t.tc}", ["pulsar-epochs"], ["7"]))[
            1:
        ],
    ),
    "raise a counter": (
        nothing,
        lambda w, t: w.store.scripts.run(Call("tc_raise", f"tc{t.tc}", ["txn-counter"], ["99"]))[
            1:
        ],
    ),
    "adopt": (opened_coordinator, adopt),
    "count": (nothing, count),
    "an unused coordinator": (
        nothing,
        lambda w, t: w.store.transactions.lowest_open((t.tc + 1) % 4)[0],
    ),
}
"""Other steps that a full store takes."""


def _last(world: World) -> tuple[int, int]:
    """Return the id of the transaction that `decided` has made."""
    tc = world.coordinator.shard("decided")
    found = world.store.transactions.of_nonce(tc, "decided")
    assert found is not None
    return found.tc, found.counter


def used(client: Any) -> int:
    return int(client.info("memory")["used_memory"])


def stored(client: Any) -> int:
    return sum(client.memory_usage(key) or 0 for key in client.scan_iter())


def appended(client: Any) -> int:
    return int(client.info("persistence")["aof_current_size"])


def refused(name: str, number: int) -> bool:
    return (name in BEGINS or (name, number) in BEGINS) and (name, number) not in NOTHING_TO_DO


COMPOSED = {("txn_forget_ops", 0), ("txn_remove", 0), ("seg_materialize", 2), ("cursor_inherit", 0)}
"""Steps that make something first; `ENDED` has them with room for that."""


def cases() -> list[Any]:
    table = [
        pytest.param(nothing, step, refused(name, number), id=f"{name}-{number}")
        for name, steps in sorted(STEPS.items())
        for number, step in enumerate(steps)
        if (name, number) not in COMPOSED and name != "ack_read"
    ]
    table.append(pytest.param(nothing, lambda w, _: read_acks(w), False, id="ack_read"))
    for is_refused, steps_ in ((True, MADE), (False, ENDED)):
        table += [pytest.param(*pair, is_refused, id=name) for name, pair in steps_.items()]
    return table


def test_every_script_is_judged() -> None:
    called = {"broker_acks_note", "broker_acks_open", "broker_acks_write", "metrics_add"}
    called |= {"tc_open", "tc_raise", "txn_adopt", "txn_end"}
    reads = {"broker_acks_read", "seg_fates", "topology_is"}
    frees_first = {"txn_ended"}
    assert set(ELSEWHERE) == called | reads | frees_first


@pytest.mark.parametrize("prepared,step,is_refused", cases())
def test_a_full_store_refuses_what_begins_and_takes_what_ends_as_if_it_had_room(
    world: World,
    redis_path: str,
    limit_memory: Callable[[int], None],
    prepared: Step,
    step: Step,
    is_refused: bool,
) -> None:
    txn = prepare(world)
    prepared(world, txn)
    if not is_refused:
        step(world, txn)
        with_room = effect(world)
        world.client.flushall()
        world = World(redis_path)
        txn = prepare(world)
        prepared(world, txn)
    if is_refused:
        load_scripts(world.client)  # 6.2 logs them
        for tc in range(world.store.identity.coordinators):  # whose tags a full store makes
            world.store.transactions.lowest_open(tc)
    before, size = effect(world), appended(world.client)
    limit_memory(1)
    if is_refused:
        with pytest.raises(StoreFullError, match=r"'maxmemory' \(OOM\).*pulsar-txn sweep"):
            step(world, txn)
        assert (effect(world), appended(world.client)) == (before, size)
    else:
        step(world, txn)
        assert effect(world) == with_room


def test_a_full_store_takes_the_number_of_a_broker_s_step_without_its_records(
    world: World, limit_memory: Callable[[int], None]
) -> None:
    opened_acks(world, world.open().id)
    step = asking(owner_call("write", 1, 2, 2, "5:42:1", "x", "5:42:2", "y"))
    limit_memory(1)
    assert step(world, TxnId(0, 0)) == [b"FULL"]
    limit_memory(0)
    assert step(world, TxnId(0, 0)) == [b"ALREADY"], "a late copy writes nothing either"
    records = f"{{seg:{SEGMENT}}}:acks:s"
    assert world.client.hkeys(records) == [b"record"]
    later = asking(owner_call("write", 1, 3, 1, "5:42:3", "z"))
    assert later(world, TxnId(0, 0)) == [b"OK"]
    assert set(world.client.hkeys(records)) == {b"record", b"5:42:3"}


def test_the_write_that_lets_a_step_through_is_neither_logged_nor_replicated(
    world: World, redis_path: str, limit_memory: Callable[[int], None]
) -> None:
    txn = world.open()
    log = append_only_file(Path(redis_path))
    limit_memory(1)
    before = log.stat().st_size
    world.coordinator.heartbeat(txn.id, txn.nonce, TIMEOUT_MS)
    written = log.read_bytes()[before:]
    assert b"deadline_ms" in written
    assert b"HDEL" not in written.upper()


@dataclass(frozen=True)
class Full:
    """A store that operation records of open transactions have filled, and what those wrote."""

    world: World
    txns: list[Txn]
    winners: list[Winner]


def filled(world: World) -> Full:
    txns = [world.open() for _ in range(4)]
    winners = [world.write(txn, f"row {number}") for number, txn in enumerate(txns)]
    for txn in txns:
        # Redis counts what it has received as well, and frees that when it likes: little at a time.
        for number in range(5):
            world.store.op_log.append(txn.id, txn.nonce, {f"record {number}": b"x" * 100_000})
    world.client.config_set("maxmemory", str(used(world.client) - 750_000))
    return Full(world, txns, winners)


def sweep(world: World) -> SweepReport:
    def ends(segment: str) -> SegmentEnds:
        return SegmentEnds(world.log.last_confirmed(segment), EARLIEST)

    return Sweeper(world.coordinator, ends, 0).sweep()


def recovers(full: Full) -> None:
    """Let transactions of a full store end, and see it begin new ones."""
    world = full.world
    committed, aborted, dead, alive = full.txns
    for begin in (world.open, lambda: world.admit(alive, task=7)):
        with pytest.raises(StoreFullError):
            begin()
    before = stored(world.client)
    world.coordinator.heartbeat(alive.id, alive.nonce, TIMEOUT_MS)
    world.commit(committed, full.winners[0])
    world.abort(aborted)
    assert stored(world.client) < before - 900_000, "the records of both went"
    world.expire(dead)
    report = sweep(world)
    assert (report.aborted, report.stuck) == (1, ())
    later = world.open()
    world.commit(later, world.write(later, "later"))
    world.commit(alive, full.winners[3])
    assert world.visible() == ["row 0", "row 3", "later"]
    for _ in "ab":
        sweep(world)
    assert all(world.store.transactions.read(txn.id) is None for txn in full.txns)


@pytest.fixture
def own_server(start_redis: StartRedis) -> World:
    """Return a store on a server that no other test has used.

    What a server keeps of earlier connections it frees at any time, and then is not full any more.
    """
    return World("", client=connect(url_of(start_redis())))


def test_a_full_store_recovers_as_its_transactions_end(own_server: World) -> None:
    recovers(filled(own_server))


@pytest.mark.usefixtures("single_steps")
def test_a_full_store_recovers_by_single_steps_as_well(own_server: World) -> None:
    recovers(filled(own_server))


def test_the_records_of_a_commit_are_taken_with_it(
    world: World, limit_memory: Callable[[int], None]
) -> None:
    txn = world.open()
    winner = world.write(txn, "row")
    limit_memory(1)
    with pytest.raises(StoreFullError):
        world.coordinator.append_ops(txn.id, txn.nonce, {"record": b"x"})
    intents = world.header(txn).intents
    outcome = Outcome(winners=[winner])
    world.coordinator.commit(txn.id, txn.nonce, outcome, intents=intents, ops={"record": b"x"})
    assert world.visible() == ["row"]


def test_a_full_store_is_full_for_a_user_as_well_who_may_not_ask_for_the_role(
    start_redis: StartRedis,
) -> None:
    port = start_redis(user='me" "on" ">pw" "~*" "+@all" "-@admin" "-@dangerous')
    config = replace(url_of(port), username="me", password="pw", assume_durable=True)
    with redis.Redis(port=port) as plain:
        world = World("", client=connect(config))
        world.client = plain
        recovers(filled(world))


def test_a_tag_that_is_not_registered_yet_ends_what_it_has(
    world: World, limit_memory: Callable[[int], None]
) -> None:
    txn = world.open()
    tc = txn.id.tc
    tag = f"{{tc{tc}}}:birth"
    world.client.hdel(tag, "registered")
    limit_memory(1)
    world.abort(txn)
    assert world.state(txn) is TxnState.ABORTED
    assert not world.client.hexists(tag, "registered")
    same = next(nonce for nonce in map(str, range(999)) if world.coordinator.shard(nonce) == tc)
    with pytest.raises(StoreFullError):
        world.open(same)
    limit_memory(0)
    world.open(same)
    assert world.client.hexists(tag, "registered")


def test_a_step_without_room_keeps_no_sweep_from_the_other_transactions(
    world: World, limit_memory: Callable[[int], None]
) -> None:
    lame, other = world.open("lame"), world.open("other")
    # No process has come to make the segment's tag, for which there is no room now.
    world.coordinator.intend(lame.id, lame.nonce, TIMEOUT_MS, [write_intent("new", "w")])
    for txn in (lame, other):
        world.expire(txn)
    limit_memory(1)
    report = sweep(world)
    assert world.state(lame) is TxnState.ABORTED
    assert world.store.transactions.read(other.id) is None  # it was aborted and collected
    assert any(str(lame.id) in stuck and "full" in stuck for stuck in report.stuck)


def test_a_full_store_lets_dropped_writers_go(
    world: World, limit_memory: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "_DROPPED_IN_A_GROUP", 1)
    txn = world.open()
    world.write(txn, "lost")
    world.abort(txn)
    tc, below = txn.id.tc, txn.id.counter + 1
    world.store.segments.close(SEGMENT, tc, below)
    last = world.log.last_confirmed(SEGMENT)
    limit_memory(1)
    world.store.segments.raise_floor(SEGMENT, tc, below, last, EARLIEST)
    assert world.client.hlen(world.key("dropped")) == 0  # it is in a group now
    assert world.store.segments.raise_floor(SEGMENT, tc, below, last, last).removed == 1
    assert world.visible() == []


def test_newer_servers_say_in_other_words_that_they_are_full() -> None:
    error = connection._Parser.parse_error(
        "OOM command not allowed when used memory > 'maxmemory'. script: 4102, on @user_script:9."
    )
    assert connection.is_full(error)


TOPIC = TopicName.parse("full")


def append(run: Components, number: int, value: bytes) -> None:
    """Write an entry to a segment, outside of transactions."""
    ref = run.topics.require(TOPIC).segment(str(number)).ref
    writer = run.log.writer(ref, f"plain-{secrets.token_hex(4)}")
    try:
        writer.append(pa.record_batch([pa.array([value])], names=["value"]))
        last = writer.flush().last
    finally:
        writer.close()
    assert last is not None
    run.store.segments.raise_high(ref.id, last)


def fill(run: Components, number: int) -> None:
    """Let rows of a segment fill the server."""
    client = run.store.scripts.client
    for _ in range(4):
        append(run, number, b"x" * 500_000)
    client.config_set("maxmemory", str(used(client) - 100_000))
    with pytest.raises(SegmentLogUnavailableError, match=r"'maxmemory'.*pulsar-txn sweep"):
        append(run, number, b"refused")


def keep_nothing(run: Components) -> None:
    retention = Retention(size_bytes=0).serialize()
    run.store.topics.change_property(str(TOPIC), RETENTION_PROPERTY, retention)


@pytest.mark.usefixtures("limit_memory")
def test_retention_makes_room_on_a_full_server(run: Components) -> None:
    run.topics.create(TOPIC, 1)
    append(run, 0, b"first")
    parent = run.topics.require(TOPIC).segment("0").ref.id
    run.topics.changes.split(TOPIC, "0")  # so that a whole segment goes, too
    run.store.subscriptions.create_cursors("sub", {parent: CursorStart(EARLIEST)})
    put_cursor(run.store, parent, "sub", Position(1, 0))
    fill(run, 1)
    before = used(run.store.scripts.client)
    children = [segment.ref.id for segment in run.topics.require(TOPIC).active]
    keep_nothing(run)
    report = run.sweeper(0).sweep()
    assert (report.segments_deleted, report.stuck) == (1, ())
    assert [run.store.subscriptions.names(child) for child in children] == [["sub"], ["sub"]]
    for child in children:  # whose rows it does not want any more
        put_cursor(run.store, child, "sub", Position(1, 9))
    report = run.sweeper(0).sweep()
    assert (report.segments_trimmed, report.stuck) == (1, ())
    assert used(run.store.scripts.client) < before - 1_500_000
    append(run, 1, b"room")


@pytest.mark.usefixtures("limit_memory")
def test_a_change_that_needs_room_does_not_keep_retention_from_making_some(
    run: Components,
) -> None:
    run.topics.create(TOPIC, 1)
    topology = run.topics.require(TOPIC)
    planned = topology.with_planned(topology.active, [0x8000], "dead operator")
    run.store.topics.swap(str(TOPIC), topology.version, planned.serialize())
    run.store.segments.prepare([segment.ref.id for segment in planned.segments])
    other = TopicName.parse("other")
    run.topics.create(other, 1)
    fill(run, 0)
    keep_nothing(run)
    report = run.sweeper(0).sweep()
    assert (report.segments_trimmed, report.changes_finished, report.stuck) == (1, 1, ())


@pytest.mark.usefixtures("limit_memory")
def test_a_topic_is_deleted_on_a_full_server(run: Components) -> None:
    run.topics.create(TOPIC, 1)
    fill(run, 0)
    before = used(run.store.scripts.client)
    with pytest.raises(StoreFullError):
        run.topics.create(TopicName.parse("another"), 1)
    run.topics.delete(TOPIC)
    assert used(run.store.scripts.client) < before - 1_500_000
    assert run.topics.names() == []
    run.topics.create(TOPIC, 1)
    append(run, 0, b"room")
