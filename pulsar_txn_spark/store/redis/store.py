"""The metadata store on Redis: one Lua script per operation, one hash tag per script."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
import uuid as uuid_module
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import resources
from typing import Any, cast

import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisClusterException, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from pulsar_txn_spark import metrics, steps
from pulsar_txn_spark.errors import (
    CommitStateUnknownError,
    OptionError,
    StoreCorruptError,
    StoreError,
    StoreRolledBackError,
    StoreUnavailableError,
)
from pulsar_txn_spark.position import EARLIEST, MessagePosition, Position
from pulsar_txn_spark.steps import Step
from pulsar_txn_spark.store.ack_ranges import AckInterval, HeldRange, SubscriptionState
from pulsar_txn_spark.store.protocol import (
    AckRequest,
    Answer,
    Code,
    Cursor,
    CursorStart,
    DueTxns,
    EndedBy,
    Gate,
    OpGroup,
    OpLogSettings,
    OpsAnswer,
    Pin,
    PointerRead,
    RawOps,
    Seen,
    SegmentDecision,
    SegmentHolds,
    SinkEntry,
    StoreIdentity,
    SubscriptionRef,
    TcState,
    TxnHeader,
    TxnId,
    TxnState,
)
from pulsar_txn_spark.store.redis.connection import MAX_CLIENTS, takes_no_more
from pulsar_txn_spark.store.redis.event_feed import RedisEventFeed

SCHEMA_VERSION = "1"
COORDINATORS = 4
"""TC shards of a new store: four drivers rarely meet, and closing a segment stays cheap."""

_LOST_REPLY_TRIES = (
    4  # a step is repeated so often after a lost reply before the store is called away
)
_LOST_REPLY_PAUSE_S = 0.05  # doubled each time: 50 + 100 + 200 ms bridge a failover of a proxy
_PINS_READ = 64  # lowest pins that a gate returns: whoever helps, helps these and reads again
_SINKS_KEPT = 256  # sinks of a query that are remembered: a job has a handful of them
_PLANS_KEPT = 8  # batches whose plans are kept: Spark replays one, the rest is for diagnosis
_RANGES_KEPT = 10_000  # acknowledged ranges of a subscription: 1 MB that a replay reads in one step
_OPS_FORGOTTEN = 512  # records deleted in one step: a step must not hold the server up for long
_MARKS_REMOVED = 512  # the same, of a segment's resolved marks
_CALLS_AT_ONCE = 100  # the same, of scripts that the server runs without a break in between
_DROPPED_IN_A_GROUP = 64  # a look reads these and about as many more: some 10 kB
_DROPPED_AT_ONCE = 1_024  # looked at in one step: a step must not hold the server up for long
_DELIVERED_TO = 0  # the coordinator that keeps counts which belong to none
_OF_A_SEGMENT = (
    "pins",
    "pin-order",
    "dropped",
    "resolved",
    "closed",
    "floor",
    "floor-pair",
    "dropped-groups",
    "dropped-floors",
    "dropped-from",
    "state",
    "events",
)
"""Keys of a segment's tag that do not have a subscription's name, without those of its log."""
_OWN_PRELUDE = frozenset({"birth", "store_identity"})
_WITH_RANGES = frozenset({"ack_individual", "ack_cumulative", "seg_materialize"})

Redis = redis.Redis | redis.RedisCluster
_Arg = str | bytes | int
_Connect = Callable[[], Redis]
_NO_REPLY = (RedisConnectionError, RedisTimeoutError, RedisClusterException)


@cache
def _script(name: str) -> tuple[str, str]:
    """Return a script's text and SHA1."""
    folder = resources.files("pulsar_txn_spark.store.redis") / "lua"
    parts = [] if name in _OWN_PRELUDE else ["_prelude"]
    parts += ["_ranges"] if name in _WITH_RANGES else []
    body = "".join((folder / f"{part}.lua").read_text(encoding="utf-8") for part in (*parts, name))
    return body, hashlib.sha1(body.encode(), usedforsecurity=False).hexdigest()


class _Call:
    """One script call: name, tag, keys after the birth record, arguments after the identity."""

    __slots__ = ("args", "keys", "name", "registered", "seen", "step", "tag")

    def __init__(
        self,
        name: str,
        tag: str,
        keys: Sequence[str],
        args: Sequence[_Arg],
        step: Step | None = None,
    ) -> None:
        self.name = name
        self.tag = tag
        self.keys = [f"{{{tag}}}:{key}" for key in keys]
        self.args = list(args)
        self.step = step
        self.seen: Sequence[Seen] = ()  # the states that were compared when it was sent
        self.registered = False  # whether {meta} is known to say that the tag was born


def _as_seen(value: Any) -> Seen:
    seq, _, history = _text(value).partition(" ")
    return Seen(int(seq), history)


def _overtaken(tag: str, state: Seen, seq: str, history: str, last: str) -> str:
    known = f"goes to step {last}" if last else "is not known"
    return (
        f"tag {{{tag}}} is at step {state.seq}, and step {seq} of its history {history} was seen "
        f"before, but here that history {known}: the metadata store lost acknowledged writes (a "
        "restart without the end of its append-only file, a restored backup, or a failover to a "
        "replica that lagged), and went on from there. Nothing was read or written; restore the "
        "newest state of the store, or start with a new checkpoint and new topics"
    )


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _pairs(values: Sequence[bytes]) -> list[tuple[str, bytes]]:
    return [(_text(values[i]), values[i + 1]) for i in range(0, len(values), 2)]


def _sink_entries(values: Sequence[bytes]) -> dict[str, SinkEntry]:
    found = {}
    for sink, entry in _pairs(values):
        batch, _, attempt = _text(entry).partition("|")
        found[sink] = SinkEntry(int(batch), attempt)
    return found


def _split_bound(value: bytes) -> tuple[Position, str]:
    bound, _, rest = _text(value).partition("|")
    return Position.from_padded(bound), rest


class RedisStore:
    """The metadata store on one Redis, or on a Redis Cluster.

    Parameters
    ----------
    connect : callable
        Returns a verified client; called again when the process was forked.
    coordinators : int, optional
        How many TC shards the store must have; a new one gets so many, or `COORDINATORS`.

    Raises
    ------
    StoreUnavailableError
        If the server cannot be reached.
    OptionError
        If the store was made with another number of coordinators.
    StoreError
        If the store was made by a version of this package with another schema.
    """

    def __init__(self, connect: _Connect, coordinators: int | None = None) -> None:
        self._connect = connect
        self._client = connect()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        # tag -> history -> the highest sequence number of it that was seen or told of. More than
        # one history only until the next step on the tag has compared them all.
        self._seen: dict[str, dict[str, int]] = {}
        self.round_trips = 0
        self.tally = metrics.Tally()
        self._identity = self._read_identity(coordinators)

    @property
    def identity(self) -> StoreIdentity:
        """The store's identity, read when it was opened."""
        return self._identity

    def seen(self, tag: str) -> Seen:
        """Return the newest state of a tag that this process has seen."""
        with self._lock:
            states = [Seen(seq, history) for history, seq in self._seen.get(tag, {}).items()]
        return max(states, default=Seen(0))

    def bear_witness(self, states: Mapping[str, Seen]) -> None:
        """Refuse from now on any tag whose past lacks a state that others have seen of it."""
        with self._lock:
            for tag, state in states.items():
                self._note(tag, state)

    def _note(self, tag: str, state: Seen) -> None:
        known = self._seen.setdefault(tag, {})
        known[state.history] = max(state.seq, known.get(state.history, 0))

    def event_feed(self) -> RedisEventFeed:
        """Return a feed that follows nothing yet; close it."""
        return RedisEventFeed(self._client, self._newest_events)

    def _newest_events(self, tags: Sequence[str]) -> list[str]:
        calls = [_Call("events_newest", tag, ["events"], []) for tag in tags]
        return [_text(reply[2]) for reply in self._run_all(calls)]

    # -- running scripts ---------------------------------------------------------------------

    def _read_identity(self, wanted: int | None) -> StoreIdentity:
        body, sha = _script("store_identity")
        born_with: list[_Arg] = [uuid_module.uuid4().hex, SCHEMA_VERSION, wanted or COORDINATORS]
        reply = self._send(sha, body, ["{meta}:birth"], born_with)
        uuid, epoch, seq, schema, coordinators = (_text(value) for value in reply[:5])
        if schema != SCHEMA_VERSION:
            raise StoreError(
                f"the metadata store has schema version {schema}, this package needs "
                f"{SCHEMA_VERSION}: use the version of pulsar_txn_spark that made the store"
            )
        if wanted is not None and wanted != int(coordinators):
            # An attempt finds its transaction by the shard of its nonce: with another number it
            # would look elsewhere, and open a second one.
            raise OptionError(
                f"option 'store.coordinators' is {wanted}, but the metadata store was made with "
                f"{coordinators} coordinators, and keeps them: transactions are found by their "
                f"number. Leave the option out or set it to {coordinators}, or use a new store"
            )
        self._note("meta", Seen(int(seq), _text(reply[5] or "")))
        return StoreIdentity(uuid, epoch, int(coordinators))

    def _send(self, sha: str, body: str, keys: list[str], args: Sequence[_Arg]) -> list[Any]:
        """Run one script; a lost reply is answered by asking again (every script allows it)."""
        pause_s = _LOST_REPLY_PAUSE_S
        for attempt in range(1, _LOST_REPLY_TRIES + 1):
            try:
                return self._send_once(sha, body, keys, args)
            except (*_NO_REPLY, StoreUnavailableError) as error:
                if attempt == _LOST_REPLY_TRIES:
                    raise _unavailable(error, attempt) from error
            time.sleep(pause_s)
            pause_s *= 2
        raise AssertionError("unreachable")

    def _send_once(self, sha: str, body: str, keys: list[str], args: Sequence[_Arg]) -> list[Any]:
        client = cast("Any", self._client)
        self._note_round_trip()
        try:
            return cast("list[Any]", client.evalsha(sha, len(keys), *keys, *args))
        except NoScriptError:
            self._note_round_trip()
            return cast("list[Any]", client.eval(body, len(keys), *keys, *args))
        except ResponseError as error:
            raise StoreError(f"the metadata store refused a step: {error}") from error

    def _note_round_trip(self) -> None:
        self.round_trips += 1
        self.tally.count(metrics.ROUND_TRIPS)

    @contextmanager
    def _query_of(self, index: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.tally.observe(metrics.INDEX_QUERY, time.perf_counter() - began, index)

    def _args(self, call: _Call) -> list[_Arg]:
        with self._lock:
            call.seen = [Seen(seq, name) for name, seq in self._seen.get(call.tag, {}).items()]
        states = [f"{state.seq} {state.history or '-'}" for state in call.seen]
        known = " ".join(["+", *states] if call.registered else states)
        return [self._identity.uuid, self._identity.epoch, known, *call.args]

    def _run(self, call: _Call, unborn: list[Any] | None = None) -> list[Any]:
        """Run one call; a tag that was never used is born now, or `unborn` is the reply."""
        body, sha = _script(call.name)
        keys = [f"{{{call.tag}}}:birth", *call.keys]
        reply = self._send(sha, body, keys, self._args(call))
        if call.step is not None and steps.reply_is_lost(call.step):
            reply = self._send(sha, body, keys, self._args(call))
        return self._checked(call, reply, unborn)

    def _checked(self, call: _Call, reply: list[Any], unborn: list[Any] | None = None) -> list[Any]:
        state, code = _as_seen(reply[0]), _text(reply[1])
        if code == "NO_BIRTH":
            if self._was_born(call.tag):
                return self._again_or_lost(call)
            if unborn is not None:
                return unborn
            self._give_birth(call.tag)
            call.registered = True
            return self._run(call)
        if code == "UNREGISTERED":
            # Whoever made the tag died before {meta} said so: lost now, it would be born again.
            if call.tag != "meta":
                self._tag_state(call.tag, "born")
            call.registered = True
            return self._run(call, unborn)
        if code == "OTHER_STORE":
            raise StoreRolledBackError(
                f"tag {{{call.tag}}} belongs to store {_text(reply[2])} epoch {_text(reply[3])}, "
                f"expected {self._identity.uuid} epoch {self._identity.epoch}: part of the "
                "metadata store was replaced. Nothing was read or written; restore the store that "
                "the checkpoint knew, or start with a new checkpoint and new topics"
            )
        if code == "BEHIND":
            raise StoreRolledBackError(
                f"tag {{{call.tag}}} is at step {state.seq}, but step {max(call.seen).seq} of "
                "it was seen before: the metadata store lost acknowledged writes (a restored "
                "backup, or a failover to a replica that lagged). Nothing was read or written; "
                "restore the newest state of the store"
            )
        if code == "OVERTAKEN":
            raise StoreRolledBackError(_overtaken(call.tag, state, *map(_text, reply[2:])))
        self._saw(call, state)
        return reply

    def _saw(self, call: _Call, state: Seen) -> None:
        """Note the state that a reply shows; it contains all that were compared for it."""
        with self._lock:
            known = self._seen.setdefault(call.tag, {})
            for old in call.seen:
                if known.get(old.history) == old.seq:
                    del known[old.history]
            self._note(call.tag, state)

    def _run_all(self, calls: Sequence[_Call]) -> list[list[Any]]:
        """Run calls on several tags in one round trip where the server allows it."""
        if len(calls) == 1 or isinstance(self._client, redis.RedisCluster):
            return [self._run(call) for call in calls]
        pipe = self._client.pipeline(transaction=False)
        for call in calls:
            _, sha = _script(call.name)
            keys = [f"{{{call.tag}}}:birth", *call.keys]
            pipe.evalsha(sha, len(keys), *keys, *self._args(call))
        self._note_round_trip()
        try:
            replies = pipe.execute(raise_on_error=False)
        except (*_NO_REPLY, StoreUnavailableError):
            replies = [None] * len(calls)
        results = []
        for call, reply in zip(calls, replies, strict=True):
            lost = call.step is not None and steps.reply_is_lost(call.step)
            # No script there yet, or no reply: one by one, as every script may be repeated.
            if not isinstance(reply, list) or lost:
                results.append(self._run(call))
            else:
                results.append(self._checked(call, reply))
        return results

    def _run_many(self, calls: Sequence[_Call]) -> list[list[Any]]:
        """Run any number of calls, a bounded number of them in one round trip."""
        step = _CALLS_AT_ONCE
        chunks = (calls[at : at + step] for at in range(0, len(calls), step))
        return [reply for chunk in chunks for reply in self._run_all(chunk)]

    def _was_born(self, tag: str) -> bool:
        return tag in self._seen or self._tag_state(tag, "") == "born"

    def _again_or_lost(self, call: _Call) -> list[Any]:
        """Look again for a tag that is known to have been there by now, and fail if it is not.

        Another task may have given birth to it since the first look.
        """
        body, sha = _script(call.name)
        reply = self._send(sha, body, [f"{{{call.tag}}}:birth", *call.keys], self._args(call))
        if _text(reply[1]) == "NO_BIRTH":
            raise StoreRolledBackError(
                f"tag {{{call.tag}}} is gone, although the metadata store knows that it was there: "
                "a shard was wiped or keys were deleted or evicted. Nothing was read or written; "
                "restore the store"
            )
        return self._checked(call, reply)

    def _give_birth(self, tag: str) -> None:
        """Create the birth record of a tag that was never used."""
        self._tag_state(tag, "creating")
        body, sha = _script("birth")
        call = _Call("birth", tag, [], [])
        reply = self._send(sha, body, [f"{{{tag}}}:birth"], self._args(call))
        self._checked(call, reply)
        self._tag_state(tag, "born")

    def _tag_state(self, tag: str, state: str) -> str:
        call = _Call("tag_state", "meta", ["tags"], [tag, state])
        body, sha = _script(call.name)
        reply = self._send(sha, body, ["{meta}:birth", *call.keys], self._args(call))
        if _text(reply[1]) == "NO_BIRTH":
            raise StoreRolledBackError(
                "the metadata store's own identity is gone: the server was wiped while in use. "
                "Nothing was read or written; restore the store"
            )
        return _text(self._checked(call, reply)[2])

    def _answer(self, call: _Call) -> Answer:
        return _as_answer(self._run(call))

    # -- topics ------------------------------------------------------------------------------

    def read_topology(self, topic: str) -> tuple[int, bytes] | None:
        """Return version and record of a topology, None if there is none."""
        reply = self._run(_Call("topology_read", f"topic:{topic}", ["topology"], []), [0, "ABSENT"])
        if _text(reply[1]) == Code.ABSENT:
            return None
        return int(reply[2]), reply[3]

    def topology_version(self, topic: str) -> int:
        """Return the version of a topology, or that of its absence: 0 if it never was there."""
        call = _Call("topology_read", f"topic:{topic}", ["topology"], [])
        return int(self._run(call, [0, "ABSENT", 0])[2])

    def swap_topology(
        self,
        topic: str,
        expected: int,
        record: bytes,
        step: Step | None = None,
        *,
        incarnation: str = "",
        deleting: bool = False,
    ) -> int | None:
        """Replace version `expected`; return the new version, None on a conflict.

        `incarnation` is noted beside the record, '' leaves it as it is. From a record that is
        `deleting` on, the topic has no properties any more.
        """
        args: list[_Arg] = [str(expected), record, incarnation, "1" if deleting else ""]
        keys = ["topology", "properties", "events"]
        call = _Call("topology_cas", f"topic:{topic}", keys, args, step)
        reply = self._run(call)
        if _text(reply[1]) == Code.OK:
            return int(reply[2])
        # The own write of a request whose reply was lost is no conflict.
        return int(reply[2]) if reply[3] == record else None

    def delete_topology(self, topic: str, expected: int) -> bool:
        """Delete version `expected`, and the topic's properties; False on a conflict."""
        keys = ["topology", "properties", "events"]
        call = _Call("topology_cas", f"topic:{topic}", keys, [str(expected), "", "", ""])
        reply = self._run(call)
        # Whose reply was lost finds that it is gone.
        return _text(reply[1]) != Code.CONFLICT or not reply[3]

    def read_properties(self, topic: str) -> dict[str, str]:
        """Return the properties that users have given a topic."""
        reply = self._run(_Call("topic_properties", f"topic:{topic}", ["properties"], []))
        return {name: _text(value) for name, value in _pairs(reply[2:])}

    def change_property(
        self, topic: str, name: str, value: str | None, *, incarnation: str = ""
    ) -> Answer:
        """Set a property of a topic, or remove it (``topic_property.lua``)."""
        action: list[_Arg] = ["remove"] if value is None else ["set", value]
        keys = ["topology", "properties"]
        args: list[_Arg] = [incarnation, name, *action]
        return self._answer(_Call("topic_property", f"topic:{topic}", keys, args))

    def lease_topic(self, topic: str, owner: str, for_ms: int, *, incarnation: str = "") -> Answer:
        """Keep others from looking after a topic for a while (``topic_lease.lua``)."""
        keys = ["topology", "properties"]
        args: list[_Arg] = [owner, for_ms, incarnation]
        return self._answer(_Call("topic_lease", f"topic:{topic}", keys, args))

    def list_topics(self) -> list[str]:
        """Return the full names of all segmented topics, sorted."""
        reply = self._run(_Call("catalog_list", "meta", ["topics"], []))
        return sorted(_text(value) for value in reply[2:])

    def prepare_segments(self, segments: Sequence[str]) -> None:
        """Give birth to the tags of segments, all of them in four round trips."""
        tags = [f"seg:{segment}" for segment in segments]

        def marked(state: str) -> list[_Call]:
            return [_Call("tag_state", "meta", ["tags"], [tag, state]) for tag in tags]

        before = [_text(reply[2]) for reply in self._run_many(marked("creating"))]
        # One that was born and is gone is lost: whoever uses it says so.
        tags = [tag for tag, state in zip(tags, before, strict=True) if state != "born"]
        births = [_Call("birth", tag, [], []) for tag in tags]
        self._run_many(births)
        self._run_many(marked("born"))
        # Says so in the tag itself: the first to use it need not make sure.
        for call in births:
            call.registered = True
        self._run_many(births)

    def catalogue(self, topic: str) -> None:
        """Put a topic into the catalogue, with a new stamp (``catalog_add.lua``)."""
        self._run(_Call("catalog_add", "meta", ["topics", "topic-stamps"], [topic]))

    def catalogued(self, topic: str) -> str | None:
        """Return the stamp of a topic in the catalogue, None if it is not there."""
        answer = self._answer(_Call("catalog_read", "meta", ["topics", "topic-stamps"], [topic]))
        return answer.values[0] if answer.code is Code.OK else None

    def uncatalogue(self, topic: str, stamp: str) -> Answer:
        """Take a topic out of the catalogue, if its stamp is that one (``catalog_remove.lua``)."""
        keys = ["topics", "topic-stamps"]
        return self._answer(_Call("catalog_remove", "meta", keys, [topic, stamp]))

    # -- transactions ------------------------------------------------------------------------

    def create_txn(
        self,
        *,
        tc: int,
        nonce: str,
        owner: str,
        sink: str,
        query: str,
        batch: str,
        timeout_ms: int,
        intents: Sequence[str],
    ) -> tuple[TxnId, TxnState]:
        """Create the header of a nonce's transaction, OPEN; again = the same one, as it is now."""
        tag = f"tc{tc}"
        keys = ["txn-counter", "nonces", "idx:txn-by-deadline", "idx:txn-open"]
        args: list[_Arg] = [
            f"{{{tag}}}:txn:",
            f"{{{tag}}}:intents:",
            tc,
            nonce,
            owner,
            sink,
            query,
            batch,
        ]
        call = _Call("txn_create", tag, keys, [*args, timeout_ms, *intents], Step.BEGIN)
        reply = self._run(call)
        txn, state = TxnId.parse(_text(reply[2])), _text(reply[3])
        if not state:
            raise StoreCorruptError(
                f"transaction {txn} has a nonce but no header: its outcome cannot be known, and is "
                "not guessed. Restore the metadata store"
            )
        return txn, TxnState(state)

    def txn_of_nonce(self, tc: int, nonce: str) -> TxnId | None:
        """Find the transaction of an attempt nonce."""
        answer = self._answer(_Call("txn_of_nonce", f"tc{tc}", ["nonces"], [nonce]))
        return TxnId.parse(answer.values[0]) if answer.code is Code.OK else None

    def intend(self, txn: TxnId, nonce: str, timeout_ms: int, intents: Sequence[str]) -> Answer:
        """Record participants (none = a heartbeat) and extend the lease (``txn_intend.lua``)."""
        keys = [f"txn:{txn.key}", f"intents:{txn.key}", "idx:txn-by-deadline"]
        args: list[_Arg] = [nonce, txn.key, timeout_ms, *intents]
        step = Step.INTENT if intents else None
        return self._answer(_Call("txn_intend", f"tc{txn.tc}", keys, args, step))

    def append_ops(self, txn: TxnId, nonce: str, ops: Mapping[str, bytes]) -> OpsAnswer:
        """Append named operation records, each by itself (``txn_op.lua``)."""
        keys = [f"txn:{txn.key}", f"txn-op:{txn.key}", "op-log", "metrics"]
        args: list[_Arg] = [nonce]
        for name, record in ops.items():
            args += [name, record]
        reply = self._run(_Call("txn_op", f"tc{txn.tc}", keys, args, Step.OP_RECORD))
        if _text(reply[1]) == Code.OK:
            return OpsAnswer((Answer(Code.OK),), _as_op_log(reply[2:]))
        return OpsAnswer((_as_answer(reply),), None)

    def append_op_batch(
        self, tc: int, entry: str, batch: bytes, groups: Sequence[OpGroup]
    ) -> OpsAnswer:
        """Append operation records of one TC as one entry (``txn_op_batch.lua``)."""
        tag = f"tc{tc}"
        args: list[_Arg] = [f"{{{tag}}}:txn:", f"{{{tag}}}:txn-op:", entry, batch]
        for group in groups:
            args += [group.txn.key, group.nonce, group.reference, group.records]
        keys = [f"op-batch:{entry}", "op-log", "metrics"]
        reply = self._run(_Call("txn_op_batch", tag, keys, args, Step.OP_BATCH))
        answers = (Answer(Code(_text(c)), tuple(map(_text, more))) for c, *more in reply[3:])
        return OpsAnswer(tuple(answers), _as_op_log(reply[2]))

    def read_ops(self, txn: TxnId) -> RawOps:
        """Read the operation records of a transaction, and the batches that they are in."""
        tag = f"tc{txn.tc}"
        reply = self._run(_Call("txn_ops", tag, [f"txn-op:{txn.key}"], [f"{{{tag}}}:op-batch:"]))
        return RawOps(dict(_pairs(reply[2])), dict(_pairs(reply[3])))

    def read_op_log(self, tc: int) -> OpLogSettings | None:
        """Return how a TC's operation records are gathered; None = nobody has set it."""
        return _as_op_log(self._run(_Call("op_log_read", f"tc{tc}", ["op-log"], []))[2:])

    def set_op_log(self, tc: int, settings: OpLogSettings) -> None:
        """Change how a TC's operation records are gathered, for every writer and while it runs."""
        limits = [settings.max_records, settings.max_bytes, settings.max_delay_ms]
        self._run(_Call("op_log_set", f"tc{tc}", ["op-log"], [int(settings.enabled), *limits]))

    def declare_run(self, tc: int, nonce: str, slot: str, run: int) -> Answer:
        """Make `run` the current run of a slot (``txn_stage.lua``)."""
        args: list[_Arg] = ["declare", slot, run, "", nonce]
        return self._answer(_Call("txn_stage", f"tc{tc}", [f"stage:{nonce}", "idx:stages"], args))

    def stage(self, tc: int, nonce: str, slot: str, run: int, write: bytes) -> Answer:
        """Stage the result of a slot's current run (``txn_stage.lua``)."""
        args: list[_Arg] = ["stage", slot, run, write, nonce]
        return self._answer(_Call("txn_stage", f"tc{tc}", [f"stage:{nonce}", "idx:stages"], args))

    def staged(self, tc: int, nonce: str) -> dict[str, bytes]:
        """Read everything staged under a nonce."""
        reply = self._run(_Call("txn_staged", f"tc{tc}", [f"stage:{nonce}"], []))
        return dict(_pairs(reply[2:]))

    def touch_stage(self, tc: int, nonce: str, *, ended: bool = False) -> Answer:
        """Say that a scope is in use, or has ended: then what it has staged goes."""
        keys = [f"stage:{nonce}", "idx:stages"]
        args: list[_Arg] = ["end" if ended else "use", nonce]
        return self._answer(_Call("stage_touch", f"tc{tc}", keys, args))

    def sweep_stages(self, tc: int, *, unused_ms: int, limit: int) -> tuple[int, int]:
        """Delete what dead scopes have staged; return how many were looked at, and deleted."""
        tag = f"tc{tc}"
        args: list[_Arg] = [f"{{{tag}}}:stage:", unused_ms, limit]
        reply = self._run(_Call("stage_sweep", tag, ["idx:stages", "nonces"], args))
        return int(reply[2]), int(reply[3])

    def end_txn(
        self,
        txn: TxnId,
        state: TxnState,
        outcome: bytes,
        by: EndedBy,
        nonce: str = "",
        counts: Mapping[str, int] | None = None,
    ) -> Answer:
        """Decide a transaction by one compare-and-set (``txn_end.lua``), not repeated by itself."""
        keys = [
            f"txn:{txn.key}",
            "idx:txn-by-deadline",
            "idx:txn-open",
            "idx:txn-by-final-state",
            "idx:txn-unmaterialized",
            "events",
            "metrics",
        ]
        own = self.tally.take()
        added = metrics.total([own, counts or {}, _decided(txn.tc, state, by)])
        # To the script an administrator is one more who may fence.
        ground = EndedBy.FENCE if by is EndedBy.ADMIN else by
        args: list[_Arg] = [txn.key, state, outcome, ground, nonce, *_flat(added)]
        call = _Call("txn_end", f"tc{txn.tc}", keys, args)
        body, sha = _script(call.name)
        try:
            reply = self._send_once(
                sha, body, [f"{{{call.tag}}}:birth", *call.keys], self._args(call)
            )
        except _NO_REPLY as error:
            raise _unknown(txn, error) from error
        if state is TxnState.COMMITTED and steps.reply_is_lost(Step.DECIDE):
            raise _unknown(txn, RedisTimeoutError("the reply was lost on purpose"))
        reply = self._checked(call, reply)
        code = Code(_text(reply[1]))
        if code is not Code.OK:
            self.tally.add(own)  # nothing was decided now, so nothing was counted either
            result = "conflict" if code is Code.DECIDED else "reject"
            self.tally.count(metrics.HEADER_CAS, str(txn.tc), result)
        # What a header holds is bytes; its readers get it from read_txn.
        return Answer(code, tuple(_text(v) for v in reply[2:3]))

    def read_txn(self, txn: TxnId) -> TxnHeader | None:
        """Read a header and its intents in one step."""
        [found] = self.read_txns([txn])
        return found

    def read_txns(self, txns: Sequence[TxnId]) -> list[TxnHeader | None]:
        """Read headers, each with its intents in one step."""
        calls = [
            _Call("txn_read", f"tc{txn.tc}", [f"txn:{txn.key}", f"intents:{txn.key}"], [])
            for txn in txns
        ]
        return [_as_header(*one) for one in zip(txns, self._run_many(calls), strict=True)]

    def forget_ops(self, txn: TxnId, nonce: str) -> Answer:
        """Delete the operation records of a transaction that every participant has materialized."""
        tag = f"tc{txn.tc}"
        keys = [
            f"txn:{txn.key}",
            f"txn-op:{txn.key}",
            f"stage:{nonce}",
            "idx:txn-unmaterialized",
            "idx:stages",
            "metrics",
        ]
        cursor = "0"
        while True:
            args: list[_Arg] = ["materialized", txn.key, f"{{{tag}}}:op-batch:", cursor]
            call = _Call("txn_forget_ops", tag, keys, [*args, _OPS_FORGOTTEN])
            answer = self._answer(call)
            if answer.code is not Code.PENDING:
                return answer
            (cursor,) = answer.values

    def list_open(self, tc: int, *, deadline_ms: int | None, limit: int) -> list[tuple[TxnId, int]]:
        """List OPEN transactions with their deadlines, earliest first, due by `deadline_ms`."""
        due = "+inf" if deadline_ms is None else str(deadline_ms)
        call = _Call("txn_list", f"tc{tc}", ["idx:txn-by-deadline"], [due, limit])
        with self._query_of(metrics.BY_DEADLINE):
            reply = self._run(call)
        return [(TxnId.parse(txn), int(deadline)) for txn, deadline in _pairs(reply[3:])]

    def list_final(self, tc: int, *, limit: int) -> list[tuple[TxnId, int]]:
        """List decided transactions that still have a header, with finalized_ms, oldest first."""
        call = _Call("txn_list", f"tc{tc}", ["idx:txn-by-final-state"], ["+inf", limit])
        with self._query_of(metrics.BY_FINAL_STATE):
            reply = self._run(call)
        return [
            (TxnId.parse(member.partition("|")[2]), int(finalized))
            for member, finalized in _pairs(reply[3:])
        ]

    def list_unmaterialized(self, tc: int, *, limit: int) -> list[TxnId]:
        """List decided transactions that are not carried out everywhere, oldest decision first."""
        call = _Call("txn_list", f"tc{tc}", ["idx:txn-unmaterialized"], ["+inf", limit])
        return [TxnId.parse(txn) for txn, _ in _pairs(self._run(call)[3:])]

    def list_due(
        self, tc: int, *, finalized_ms: int, below: int, offset: int, page: int, limit: int
    ) -> DueTxns:
        """List decided transactions whose headers may go (``txn_due.lua``)."""
        args: list[_Arg] = [finalized_ms, below, offset, page, limit]
        reply = self._run(_Call("txn_due", f"tc{tc}", ["idx:txn-by-final-state"], args))
        return DueTxns(
            txns=tuple(TxnId.parse(_text(txn)) for txn in reply[5:]),
            seen=int(reply[2]),
            more=bool(reply[3]),
            waiting=int(reply[4]),
        )

    def lowest_open(self, tc: int) -> tuple[int, int]:
        """Return the lowest counter that may still be open in a TC, and the store's clock in ms."""
        keys = ["idx:txn-open", "txn-counter"]
        reply = self._run(_Call("txn_lowest_open", f"tc{tc}", keys, []))
        return int(reply[2]), int(reply[3])

    def tc_state(self, tc: int, *, limit: int) -> TcState:
        """Tell how a TC is doing, with the `limit` oldest decisions that are not carried out."""
        tag = f"tc{tc}"
        keys = ["idx:txn-open", "idx:txn-by-final-state", "idx:txn-unmaterialized", "metrics"]
        reply = self._run(_Call("tc_state", tag, keys, [f"{{{tag}}}:txn:", limit]))
        oldest, created = _text(reply[4]), _text(reply[5])
        return TcState(
            now_ms=int(reply[2]),
            open=int(reply[3]),
            oldest_open=(TxnId.parse(oldest), int(created)) if oldest and created else None,
            decided=int(reply[6]),
            undone=tuple((TxnId.parse(txn), int(at)) for txn, at in _pairs(reply[7])),
            counts={name: int(amount) for name, amount in _pairs(reply[8])},
        )

    def deliver_tally(self) -> None:
        """Add the tally to the counts in the store; without a reply what is in it is dropped."""
        taken = self.tally.take()
        if not taken:
            return
        call = _Call("metrics_add", f"tc{_DELIVERED_TO}", ["metrics"], _flat(taken))
        body, sha = _script(call.name)
        keys = [f"{{{call.tag}}}:birth", *call.keys]
        try:
            reply = self._send_once(sha, body, keys, self._args(call))
        except (*_NO_REPLY, StoreUnavailableError):
            return  # it may have arrived: sent again it might count twice
        self._checked(call, reply)

    def remove_txn(self, txn: TxnId) -> Answer:
        """Remove the header of a transaction that every participant is through with."""
        [answer] = self.remove_txns([txn])
        return answer

    def remove_txns(self, txns: Sequence[TxnId]) -> list[Answer]:
        """Remove headers, each in a step of its own."""
        calls = []
        for txn in txns:
            own = [f"txn:{txn.key}", f"intents:{txn.key}", f"txn-op:{txn.key}"]
            keys = [*own, "nonces", "idx:txn-by-final-state", "idx:txn-unmaterialized"]
            calls.append(_Call("txn_remove", f"tc{txn.tc}", keys, [txn.key]))
        return [_as_answer(reply) for reply in self._run_many(calls)]

    # -- segments ----------------------------------------------------------------------------

    def pin(self, txn: TxnId, writer: str, segments: Sequence[str]) -> list[Answer]:
        """Pin a writer in each segment (``seg_pin.lua``)."""
        keys = ["pins", "pin-order", "dropped", "closed", "resolved", "state"]
        args: list[_Arg] = [writer, txn.key, txn.tc, txn.counter, EARLIEST.padded()]
        calls = [_Call("seg_pin", f"seg:{segment}", keys, args, Step.PIN) for segment in segments]
        return [_as_answer(reply) for reply in self._run_all(calls)]

    def gates(
        self, segments: Sequence[str], ranges: Sequence[tuple[Position, Position]] | None = None
    ) -> list[Gate]:
        """Read the gate of each segment. Read the LAC before."""
        names = ("pins", "pin-order", "dropped", "floor", "state")
        keys = [*names, "dropped-groups", "dropped-floors"]
        calls = []
        for number, segment in enumerate(segments):
            bounds = [at.padded() for at in ranges[number]] if ranges is not None else ["", ""]
            tag = f"seg:{segment}"
            calls.append(_Call("seg_gate", tag, keys, [_PINS_READ, *bounds, f"{{{tag}}}:dropped:"]))
        with self._query_of(metrics.WRITES_BY_SEGMENT):
            replies = self._run_all(calls)
        return [_as_gate(reply) for reply in replies]

    def materialize(
        self, txn: TxnId, state: TxnState, decisions: Sequence[SegmentDecision]
    ) -> list[Answer]:
        """Carry a decision out, in one step for each segment (``seg_materialize.lua``)."""
        keys = ["pins", "pin-order", "dropped", "closed", "resolved", "state", "events"]
        keys += [f"resolved-order:{txn.tc}", "dropped-from"]
        calls = []
        for decision in decisions:
            tag = f"seg:{decision.segment}"
            args: list[_Arg] = [txn.key, txn.tc, txn.counter, state]
            args += [decision.high.padded() if decision.high else "", len(decision.fates)]
            for fate in decision.fates:
                args += [fate.writer, "WON" if fate.kept_to is None else fate.kept_to.padded()]
            args.append(len(decision.subscriptions))
            for name in decision.subscriptions:
                args += [
                    f"{{{tag}}}:cursor:{name}",
                    f"{{{tag}}}:pending-acks:{name}",
                    f"{{{tag}}}:ack-ranges:{name}",
                    f"{{{tag}}}:pending-ranges:{name}:{txn.key}",
                ]
            calls.append(_Call("seg_materialize", tag, keys, args, Step.MATERIALIZE))
        return [_as_answer(reply) for reply in self._run_all(calls)]

    def close_segment(self, segment: str, tc: int, below: int) -> Answer:
        """Close a segment for transactions of a TC below a counter (``seg_close.lua``)."""
        tag = f"seg:{segment}"
        args: list[_Arg] = [tc, below, f"{{{tag}}}:pending-acks:", _MARKS_REMOVED]
        keys = ["pins", "closed", "resolved", "subscriptions", f"resolved-order:{tc}"]
        return self._answer(_Call("seg_close", tag, keys, args))

    def raise_floor(
        self, segment: str, tc: int, below: int, confirmed: Position, deleted: Position
    ) -> Answer:
        """Let dropped writers go that nothing can be left of (``seg_floor.lua``)."""
        tag = f"seg:{segment}"
        names = ("closed", "floor", "floor-pair", "dropped", "state")
        keys = [*names, "dropped-groups", "dropped-floors", "dropped-from"]
        cursor, removed = "0", 0
        while True:
            args: list[_Arg] = [tc, below, confirmed.padded(), deleted.padded()]
            args += [f"{{{tag}}}:dropped:", _DROPPED_IN_A_GROUP, cursor, _DROPPED_AT_ONCE]
            answer = self._answer(_Call("seg_floor", tag, keys, args))
            if answer.code is not Code.OK:
                return Answer(Code.OK, ("", str(removed))) if removed else answer
            floor, more, cursor = answer.values
            removed += int(more)
            if cursor == "0":
                return Answer(Code.OK, (floor, str(removed)))

    def through(self, txn: TxnId, segments: Sequence[str]) -> list[bool]:
        """Tell for each segment whether it has carried a transaction's decision out."""
        args: list[_Arg] = [txn.key, txn.tc, txn.counter]
        calls = [
            _Call("seg_through", f"seg:{segment}", ["closed", "resolved"], args)
            for segment in segments
        ]
        return [_text(reply[1]) != Code.PENDING for reply in self._run_all(calls)]

    def raise_high(self, segment: str, position: Position) -> None:
        """Note an acknowledged position of a write outside of transactions."""
        self._run(_Call("seg_raise", f"seg:{segment}", ["state", "events"], [position.padded()]))

    def holds(self, segments: Sequence[str]) -> list[SegmentHolds]:
        """Read of each segment who still needs what of it."""
        if not segments:
            return []
        calls = [
            _Call("seg_holds", f"seg:{segment}", ["subscriptions"], [f"{{seg:{segment}}}:cursor:"])
            for segment in segments
        ]
        return [_as_holds(reply) for reply in self._run_all(calls)]

    def mark_trimmed(self, segment: str, position: Position) -> Answer:
        """Note that the log may let go what lies up to a position (``seg_trim.lua``)."""
        tag = f"seg:{segment}"
        args: list[_Arg] = [position.padded(), f"{{{tag}}}:cursor:"]
        return self._answer(_Call("seg_trim", tag, ["subscriptions", "state"], args))

    def retire_segment(self, segment: str, end: Position, handed_over: Sequence[str]) -> Answer:
        """Let nothing be registered in a segment any more (``seg_retire.lua``)."""
        tag = f"seg:{segment}"
        args: list[_Arg] = [end.padded(), f"{{{tag}}}:cursor:", f"{{{tag}}}:pending-acks:"]
        keys = ["pins", "subscriptions", "state"]
        return self._answer(_Call("seg_retire", tag, keys, [*args, *handed_over]))

    def shut_segments(self, segments: Sequence[str]) -> set[TxnId]:
        """Let nothing be registered in segments whose topic goes; return who has pins there."""
        calls = [_Call("seg_shut", f"seg:{segment}", ["pins", "state"], []) for segment in segments]
        return {TxnId.parse(_text(txn)) for reply in self._run_many(calls) for txn in reply[2:]}

    def purge_segment(self, segment: str) -> Answer:
        """Remove what is left of a retired segment whose log is gone (``seg_purge.lua``)."""
        tag = f"seg:{segment}"
        names = ("cursor", "pending-acks", "ack-ranges", "pending-ranges")
        orders = [f"resolved-order:{tc}" for tc in range(self._identity.coordinators)]
        keys = ["subscriptions", *_OF_A_SEGMENT, *orders]
        args: list[_Arg] = [f"{{{tag}}}:{name}:" for name in names]
        args += [f"{{{tag}}}:dropped-groups", f"{{{tag}}}:dropped:"]
        return self._answer(_Call("seg_purge", tag, keys, args))

    # -- subscriptions -----------------------------------------------------------------------

    def inherit_cursor(
        self,
        segment: str,
        subscription: str,
        query: str,
        planted: str = "",
        source_incarnation: int = 0,
    ) -> Answer:
        """Let a subscription stand before a segment's first entry (``cursor_inherit.lua``)."""
        keys = [f"cursor:{subscription}", "subscriptions"]
        args: list[_Arg] = [query, EARLIEST.padded(), subscription, planted, source_incarnation]
        return self._answer(_Call("cursor_inherit", f"seg:{segment}", keys, args))

    def release_cursors(
        self, subscription: str, query: str, positions: Mapping[str, Position]
    ) -> list[Answer]:
        """Note for each segment up to where nobody asks again (``cursor_release.lua``)."""
        calls = [
            _Call(
                "cursor_release",
                f"seg:{segment}",
                [f"cursor:{subscription}"],
                [query, position.padded()],
            )
            for segment, position in positions.items()
        ]
        return [_as_answer(reply) for reply in self._run_all(calls)] if calls else []

    def delete_cursor(self, segment: str, subscription: str) -> Answer:
        """Delete a subscription in a segment (``cursor_delete.lua``)."""
        keys = [
            f"cursor:{subscription}",
            f"pending-acks:{subscription}",
            "subscriptions",
            f"ack-ranges:{subscription}",
        ]
        return self._answer(_Call("cursor_delete", f"seg:{segment}", keys, [subscription]))

    def list_subscriptions(self, segment: str) -> list[str]:
        """Return the names of a segment's subscriptions, sorted."""
        reply = self._run(_Call("subscription_list", f"seg:{segment}", ["subscriptions"], []))
        return sorted(_text(value) for value in reply[2:])

    def read_cursors(self, segments: Sequence[str], subscription: str) -> list[Cursor | None]:
        """Read a subscription's cursor in each segment."""
        calls = [
            _Call("cursor_read", f"seg:{segment}", [f"cursor:{subscription}"], [])
            for segment in segments
        ]
        with self._query_of(metrics.ACKS_BY_SUBSCRIPTION):
            replies = self._run_all(calls)
        return [_as_cursor(reply[2:]) for reply in replies]

    def claim_cursor(
        self,
        segment: str,
        subscription: str,
        query: str,
        source_incarnation: int,
        start: Position,
    ) -> Answer:
        """Claim a subscription for a query (``cursor_claim.lua``)."""
        keys = [f"cursor:{subscription}", "subscriptions"]
        args: list[_Arg] = [query, source_incarnation, start.padded(), subscription, "", ""]
        return self._answer(_Call("cursor_claim", f"seg:{segment}", keys, args))

    def claim_cursors(
        self,
        subscription: str,
        query: str,
        source_incarnation: int,
        starts: Mapping[str, Position],
        *,
        asks_only: bool = False,
    ) -> list[Answer]:
        """Claim a subscription in several segments, only there (``cursor_claim.lua``).

        With `asks_only`, tell what the answers would be, and change nothing.
        """
        asks = "1" if asks_only else ""
        calls = [
            _Call(
                "cursor_claim",
                f"seg:{segment}",
                [f"cursor:{subscription}", "subscriptions"],
                [query, source_incarnation, start.padded(), subscription, "1", asks],
            )
            for segment, start in starts.items()
        ]
        return [_as_answer(reply) for reply in self._run_many(calls)]

    def plant_cursors(
        self, subscription: str, starts: Mapping[str, CursorStart], planted: str = ""
    ) -> list[Answer]:
        """Let a subscription exist where it has no cursor, in this order (``cursor_plant.lua``)."""
        calls = [
            _Call(
                "cursor_plant",
                f"seg:{segment}",
                [f"cursor:{subscription}", "subscriptions", "state"],
                [start.position.padded(), subscription, planted, "1" if start.may_skip else ""],
            )
            for segment, start in starts.items()
        ]
        return [_as_answer(reply) for reply in self._run_many(calls)]

    def reset_cursor(
        self,
        segment: str,
        subscription: str,
        to: CursorStart | None,
        seen: Cursor | None,
        source_incarnation: int = 0,
    ) -> Answer:
        """Put a cursor elsewhere, owned by nobody, unless it has changed (``cursor_reset.lua``)."""
        keys = [
            f"cursor:{subscription}",
            f"pending-acks:{subscription}",
            "subscriptions",
            f"ack-ranges:{subscription}",
            "state",
        ]
        args: list[_Arg] = [
            subscription,
            to.position.padded() if to else "",
            seen.generation if seen else "",
            seen.acknowledged.padded() if seen else "",
            "1" if to and to.may_skip else "",
            source_incarnation,
        ]
        return self._answer(_Call("cursor_reset", f"seg:{segment}", keys, args))

    def place_acks(self, txn: TxnId, acks: Sequence[AckRequest]) -> list[Answer]:
        """Place pending acknowledgements (``ack_place.lua``)."""
        calls = [
            _Call(
                "ack_place",
                f"seg:{ack.segment}",
                [
                    f"cursor:{ack.subscription}",
                    f"pending-acks:{ack.subscription}",
                    "closed",
                    "resolved",
                ],
                [
                    txn.key,
                    txn.tc,
                    txn.counter,
                    ack.query,
                    ack.start.padded(),
                    ack.end.padded(),
                    ack.sink,
                    ack.batch,
                    ack.source_incarnation,
                ],
                Step.PENDING_ACK,
            )
            for ack in acks
        ]
        return [_as_answer(reply) for reply in self._run_all(calls)]

    def ack_individual(
        self,
        txn: TxnId,
        where: SubscriptionRef,
        intervals: Sequence[AckInterval],
        *,
        normal: bool = False,
    ) -> Answer:
        """Hold single messages for a transaction (``ack_individual.lua``)."""
        args: list[_Arg] = ["normal" if normal else "txn", _RANGES_KEPT]
        for interval in intervals:
            args += [interval.start.padded(), interval.end.padded()]
        return self._answer(_ack_call("ack_individual", txn, where, args))

    def ack_cumulative(self, txn: TxnId, where: SubscriptionRef, interval: AckInterval) -> Answer:
        """Hold everything up to a message for a transaction (``ack_cumulative.lua``)."""
        args: list[_Arg] = [interval.start.padded(), interval.end.padded()]
        return self._answer(_ack_call("ack_cumulative", txn, where, args))

    def read_acks(self, segment: str, subscription: str) -> SubscriptionState | None:
        """Read what a subscription has acknowledged; None if nobody has claimed it."""
        keys = [
            f"cursor:{subscription}",
            f"pending-acks:{subscription}",
            f"ack-ranges:{subscription}",
        ]
        reply = self._run(_Call("ack_read", f"seg:{segment}", keys, []))
        return None if _text(reply[1]) == Code.UNCLAIMED else _as_acks(reply)

    # -- sinks and sources -------------------------------------------------------------------

    def read_pointer(self, sink: str, query: str) -> PointerRead:
        """Read a sink's pointers."""
        reply = self._run(_Call("pointer_read", f"sink:{sink}", ["pointers", "current"], [query]))
        return PointerRead(_text(reply[2]), reply[3], reply[4])

    def swap_pointer(
        self, sink: str, query: str, expected: PointerRead, pointer: bytes, *, current: str
    ) -> bool:
        """Write a query's pointer, and which query is alive, if both still are what was read."""
        args: list[_Arg] = [query, expected.current_query, expected.own, pointer, current]
        # A query that takes over has ended what the current pointer names, and no later batch.
        args.append(expected.current)
        call = _Call("pointer_cas", f"sink:{sink}", ["pointers", "current"], args, Step.BEGIN)
        reply = self._run(call)
        if _text(reply[1]) == Code.OK:
            return True
        # The own write of a request whose reply was lost is no conflict.
        return _text(reply[2]) == current and reply[3] == pointer

    def register_sink(
        self, query: str, sink: str, batch: int, attempt: str
    ) -> dict[str, SinkEntry]:
        """Register that a sink of a query begins a batch in an attempt (``sink_register.lua``)."""
        args: list[_Arg] = [sink, batch, attempt, _SINKS_KEPT]
        reply = self._run(_Call("sink_register", f"query:{query}", ["sinks"], args))
        return _sink_entries(reply[2:])

    def read_sinks(self, query: str) -> dict[str, SinkEntry]:
        """Read which batch each sink of a query has begun last, and in which attempt."""
        reply = self._run(_Call("sink_list", f"query:{query}", ["sinks"], []), [0, "OK"])
        return _sink_entries(reply[2:])

    def next_source_incarnation(self) -> int:
        """Count one start of a source."""
        return int(self._run(_Call("source_incarnation", "meta", ["source-counter"], []))[2])

    def register_plan(self, query: str, batch: str, source: str, plan: bytes) -> None:
        """Register what a source reads in a micro-batch."""
        tag = f"query:{query}"
        args: list[_Arg] = [source, plan, batch, f"{{{tag}}}:plans:", _PLANS_KEPT]
        self._run(_Call("plan_register", tag, [f"plans:{batch}", "batches"], args))

    def read_plans(self, query: str, batch: str) -> dict[str, bytes]:
        """Read what was registered for a micro-batch."""
        call = _Call("plan_read", f"query:{query}", [f"plans:{batch}"], [])
        reply = self._run(call, [0, "OK"])
        return dict(_pairs(reply[2:]))


def _ack_call(name: str, txn: TxnId, where: SubscriptionRef, args: Sequence[_Arg]) -> _Call:
    keys = [
        f"cursor:{where.subscription}",
        f"pending-acks:{where.subscription}",
        "closed",
        "resolved",
        f"ack-ranges:{where.subscription}",
        f"pending-ranges:{where.subscription}:{txn.key}",
    ]
    head: list[_Arg] = [txn.key, txn.tc, txn.counter, where.owner, where.incarnation]
    return _Call(name, f"seg:{where.segment}", keys, [*head, *args], Step.PENDING_ACK)


def _as_interval(start: str, end: str) -> AckInterval:
    return AckInterval(MessagePosition.from_padded(start), MessagePosition.from_padded(end))


def _as_acks(reply: list[Any]) -> SubscriptionState:
    ranges = []
    for member in reply[5]:
        start, end, holder = _text(member).split(" ")
        ranges.append(HeldRange(_as_interval(start, end), holder))
    for txn, record in _pairs(reply[4]):
        ack = json.loads(record)
        if "last" in ack:  # a query holds one range, which stands in the record itself
            ranges.append(HeldRange(_as_interval(ack["start"], ack["last"]), txn))
    cursor = MessagePosition.from_padded(_text(reply[2]))
    return SubscriptionState(cursor, int(reply[3]), tuple(sorted(ranges)))


_CAUSES = {
    EndedBy.OWNER: "owner",
    EndedBy.FENCE: "newer-attempt",
    EndedBy.EXPIRED: "lease-over",
    EndedBy.ADMIN: "administrator",
}


def _decided(tc: int, state: TxnState, by: EndedBy) -> dict[str, int]:
    """Return what is counted if a transaction is decided so."""
    tally = metrics.Tally()
    tally.count(metrics.HEADER_CAS, str(tc), "ok")
    if state is TxnState.COMMITTED:
        tally.count(metrics.COMMITS, str(tc))
    elif by in _CAUSES:
        tally.count(metrics.ABORTS, str(tc), _CAUSES[by])
    return tally.take()


def _flat(counts: Mapping[str, int]) -> list[_Arg]:
    return [part for field, amount in counts.items() for part in (field, amount)]


def _as_header(txn: TxnId, reply: list[Any]) -> TxnHeader | None:
    if _text(reply[1]) == Code.ABSENT:
        return None
    fields = dict(_pairs(reply[3]))
    finalized = fields.get("finalized_ms")
    return TxnHeader(
        txn=txn,
        state=TxnState(_text(fields["state"])),
        nonce=_text(fields["nonce"]),
        owner=_text(fields["owner"]),
        sink=_text(fields["sink"]),
        query=_text(fields["query"]),
        batch=_text(fields["batch"]),
        deadline_ms=int(fields["deadline_ms"]),
        created_ms=int(fields["created_ms"]),
        finalized_ms=int(finalized) if finalized else None,
        outcome=fields.get("outcome", b""),
        materialized="materialized" in fields,
        now_ms=int(reply[2]),
        intents=frozenset(_text(value) for value in reply[4]),
    )


def _as_answer(reply: list[Any]) -> Answer:
    return Answer(Code(_text(reply[1])), tuple(_text(value) for value in reply[2:]))


def _as_op_log(values: Sequence[bytes | None]) -> OpLogSettings | None:
    numbers = [int(value) for value in values if value is not None]
    if not numbers:
        return None
    enabled, *limits = numbers
    return OpLogSettings(bool(enabled), *limits)


def _as_gate(reply: list[Any]) -> Gate:
    if _text(reply[1]) == Code.PLAIN:
        return Gate()
    flat = [_text(value) for value in reply[2]]
    pins = tuple(
        Pin(Position.from_padded(flat[i]), flat[i + 1], TxnId.parse(flat[i + 2]))
        for i in range(0, len(flat), 3)
    )
    dropped = {writer: _split_bound(value)[0] for writer, value in _pairs(reply[3])}
    floor = {int(tc): int(counter) for tc, counter in _pairs(reply[4])}
    return Gate(pins, dropped, floor, contains_txn=True, all_dropped=int(reply[5]))


def _as_holds(reply: list[Any]) -> SegmentHolds:
    names, queries, released, planted, sources = (reply[at::5] for at in range(3, 8))
    return SegmentHolds(
        retired=bool(reply[2]),
        released={
            _text(name): MessagePosition.from_padded(_text(at)).taken_after[0]
            for name, at in zip(names, released, strict=True)
        },
        queries={_text(n): _text(q) for n, q in zip(names, queries, strict=True)},
        planted={_text(n): _text(p) for n, p in zip(names, planted, strict=True)},
        sources={_text(n): int(s) for n, s in zip(names, sources, strict=True)},
    )


def _as_cursor(flat: Sequence[bytes]) -> Cursor | None:
    fields = {name: _text(value) for name, value in _pairs(flat)}
    if not fields:
        return None
    try:
        position, taken = MessagePosition.from_padded(fields["position"]).taken_after
        text = fields.get("released", fields["position"])
        released = MessagePosition.from_padded(text).taken_after[0]
        return Cursor(
            position=position,
            query=fields["query"],
            generation=int(fields["generation"]),
            txn=fields.get("txn", ""),
            sink=fields.get("sink", ""),
            batch=fields.get("batch", ""),
            taken=taken,
            incarnation=int(fields.get("source", "0")),
            released=released,
            planted=fields.get("planted", ""),
        )
    except KeyError as error:
        raise StoreCorruptError(f"a cursor lacks its field {error}") from error


def _unavailable(error: Exception, attempts: int) -> StoreUnavailableError:
    advice = "Check that the Redis server runs and can be reached;"
    if takes_no_more(error):
        advice = f"{MAX_CLIENTS} After that"
    return StoreUnavailableError(
        f"no reply from the metadata store after {attempts} tries ({type(error).__name__}: "
        f"{error}). {advice} the step is repeated when the query starts again, nothing is lost"
    )


def _unknown(txn: TxnId, error: Exception) -> CommitStateUnknownError:
    return CommitStateUnknownError(
        f"no reply to the decision of transaction {txn} ({type(error).__name__}: {error}): it may "
        "or may not have taken effect"
    )
