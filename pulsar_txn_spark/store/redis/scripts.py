"""Loading and calling Lua scripts: one hash tag per script, its identity and history checked."""

from __future__ import annotations

import hashlib
import os
import threading
import time
import uuid as uuid_module
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import resources
from typing import Any, cast

import redis
from redis.exceptions import ClusterError, NoScriptError, RedisClusterException, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from pulsar_txn_spark import metrics, steps
from pulsar_txn_spark.backports import StrEnum
from pulsar_txn_spark.errors import (
    OptionError,
    StoreError,
    StoreFullError,
    StoreRolledBackError,
    StoreUnavailableError,
)
from pulsar_txn_spark.steps import Step
from pulsar_txn_spark.store.records import (
    Answer,
    Code,
    Seen,
    StoreIdentity,
)
from pulsar_txn_spark.store.redis.connection import MAX_CLIENTS, is_full, takes_no_more
from pulsar_txn_spark.store.redis.durability import MAKE_ROOM
from pulsar_txn_spark.store.redis.exchange import Request, idle_connections

SCHEMA_VERSION = "1"
COORDINATORS = 4
"""TC shards of a new store: four drivers rarely meet, and closing a segment stays cheap."""
_LOST_REPLY_TRIES = 4  # a step is sent so often without a reply before the store is called away
_LOST_REPLY_PAUSE_S = 0.05  # doubled each time: 50 + 100 + 200 ms bridge a failover of a proxy
_CALLS_AT_ONCE = 100  # scripts of one round trip: the server runs them without a break
_FULL = (
    "the metadata store is full: its memory has reached 'maxmemory' (OOM), so it begins nothing "
    "new. Nothing of this step was done. Open transactions still end, and sweeps, retention and "
    f"deletions free memory. {MAKE_ROOM} Then start again"
)
_PRELUDE = ("_prelude",)
_INCLUDED = {
    "tag_create": (),
    "store_identity": (),
    "ack_place": ("_prelude", "_acknowledging"),
    "ack_individual": ("_prelude", "_ranges", "_acknowledging"),
    "ack_cumulative": ("_prelude", "_ranges", "_acknowledging"),
    "seg_materialize": ("_prelude", "_ranges"),
    "txn_intend": ("_prelude", "_open_txn"),
    "txn_op": ("_prelude", "_open_txn"),
}
"""What stands in front of a script; of those that are not named here, the prelude."""

MERGED = {
    "txn_begin": ("sink_register", "txn_create", "pointer_cas"),
    "txn_open": ("topology_is", "txn_create", "seg_pin"),
    "txn_admit": ("txn_intend", "seg_pin"),
    "txn_acknowledge": ("txn_intend", "ack_place"),
    "seg_gates": ("seg_gate",),
    "txn_commit": (
        "txn_op",
        "txn_end",
        "txn_read",
        "seg_materialize",
        "txn_forget_ops",
        "txn_ended",
    ),
}
"""Steps of several tags that one script takes, and the scripts that it is made of."""
SINGLE_STEPS = "PULSAR_TXN_SPARK_SINGLE_STEPS"
"""Environment: ``1`` for single steps on one server, too, as a cluster takes them (for tests)."""
_MERGED_AT_ONCE = 160  # calls of a merged script: all others wait for it, some 5 ms
_MERGED_ARGUMENTS = 10_000  # of all its calls, for the same reason; Redis 6.2 refuses a million


class _TagFault(StrEnum):
    """What the prelude of a script may find of its tag, instead of running the script."""

    NO_TAG_RECORD = "NO_TAG_RECORD"
    UNREGISTERED = "UNREGISTERED"
    OTHER_STORE = "OTHER_STORE"
    BEHIND = "BEHIND"
    OVERTAKEN = "OVERTAKEN"


Redis = redis.Redis | redis.RedisCluster
Arg = str | bytes | int
# In a cluster also what was not run: it is down, or a slot is on its way from server to server.
NO_REPLY = (RedisConnectionError, RedisTimeoutError, RedisClusterException, ClusterError)


@cache
def script(name: str) -> tuple[str, str]:
    """Return a script's text and SHA1."""
    body = _merged(MERGED[name]) if name in MERGED else _text(*_INCLUDED.get(name, _PRELUDE), name)
    return body, hashlib.sha1(body.encode(), usedforsecurity=False).hexdigest()


def _text(*parts: str) -> str:
    folder = resources.files("pulsar_txn_spark.store.redis") / "lua"
    return "".join((folder / f"{part}.lua").read_text(encoding="utf-8") for part in parts)


def _merged(names: Sequence[str]) -> str:
    """Return a script in which each of several scripts is a function."""
    functions = [f"scripts.{n} = function(KEYS, ARGV)\n{script(n)[0]}\nend\n" for n in names]
    prelude = _text("_without_writes", *_PRELUDE)
    identity = f"local function identity(KEYS, ARGV)\n{prelude}\nend\n"
    return "".join([_text("_once"), "local scripts = {}\n", *functions, identity, _text("_merged")])


class Call:
    """One script call: name, tag, keys after the tag record, arguments after the identity."""

    __slots__ = ("args", "keys", "name", "registered", "seen", "step", "tag")

    def __init__(
        self,
        name: str,
        tag: str,
        keys: Sequence[str],
        args: Sequence[Arg],
        step: Step | None = None,
    ) -> None:
        self.name = name
        self.tag = tag
        self.keys = [f"{{{tag}}}:{key}" for key in keys]
        self.args = list(args)
        self.step = step
        self.seen: Sequence[Seen] = ()  # the states that were compared when it was sent
        self.registered = False  # whether {meta} is known to say that the tag was initialized

    @property
    def all_keys(self) -> list[str]:
        """What the script gets as KEYS: the tag record first."""
        return [f"{{{self.tag}}}:birth", *self.keys]


def text(value: Any) -> str:
    """Return a value of a reply as text."""
    return value.decode() if isinstance(value, bytes) else str(value)


def pairs(values: Sequence[bytes]) -> list[tuple[str, bytes]]:
    """Return a flat list of names and values as pairs."""
    return [(text(values[i]), values[i + 1]) for i in range(0, len(values), 2)]


def flat(counts: Mapping[str, int]) -> list[Arg]:
    """Return counts as a flat list of fields and amounts."""
    return [part for field, amount in counts.items() for part in (field, amount)]


def code_of(reply: list[Any]) -> Code:
    """Return the code of a reply."""
    return Code(text(reply[1]))


class Scripts:
    """Runs Lua scripts, and remembers which state of each tag this process has seen.

    Parameters
    ----------
    client : redis.Redis or redis.RedisCluster
    coordinators : int, optional
        Both as of :class:`~pulsar_txn_spark.store.redis.store.RedisStore`, and so are the errors.
    """

    def __init__(self, client: Redis, coordinators: int | None = None) -> None:
        self.client = client
        self._direct = client if isinstance(client, redis.Redis) else None
        self._lock = threading.Lock()
        # tag -> history -> the highest sequence number of it that was seen or told of. More than
        # one history only until the next step on the tag has compared them all.
        self._seen: dict[str, dict[str, int]] = {}
        self._single_steps = os.environ.get(SINGLE_STEPS) == "1"
        self.round_trips = 0
        self.counters = metrics.Counters()
        self.identity = self._read_identity(coordinators)

    def seen(self, tag: str) -> Seen:
        """Return the newest state of a tag that this process has seen."""
        with self._lock:
            states = [Seen(seq, history) for history, seq in self._seen.get(tag, {}).items()]
        return max(states, default=Seen(0))

    def raise_last_seen(self, states: Mapping[str, Seen]) -> None:
        """Refuse from now on any tag whose past lacks a state that others have seen of it."""
        with self._lock:
            for tag, state in states.items():
                self._note(tag, state)

    def _note(self, tag: str, state: Seen) -> None:
        known = self._seen.setdefault(tag, {})
        known[state.history] = max(state.seq, known.get(state.history, 0))

    def run(self, call: Call, uninitialized: list[Any] | None = None) -> list[Any]:
        """Run one call. A new tag is initialized, unless `uninitialized` is given as the reply."""
        reply = self._ask(call)
        if call.step is not None and steps.reply_is_lost(call.step):
            reply = self._ask(call)
        return self.checked(call, reply, uninitialized)

    def answer(self, call: Call) -> Answer:
        """Run one call of whose reply only the code counts."""
        return Answer(code_of(self.run(call)))

    def run_all(self, calls: Sequence[Call]) -> list[list[Any]]:
        """Run any number of calls, a bounded number of them in one round trip."""
        step = _CALLS_AT_ONCE
        chunks = (calls[at : at + step] for at in range(0, len(calls), step))
        return [reply for chunk in chunks for reply in self._run_together(chunk)]

    def _run_together(self, calls: Sequence[Call]) -> list[list[Any]]:
        """Run calls on several tags in one round trip, whichever servers hold them."""
        if len(calls) == 1:
            return [self.run(calls[0])]
        results = []
        for call, reply in zip(calls, self._send_together(calls), strict=True):
            lost = call.step is not None and steps.reply_is_lost(call.step)
            # No reply, or the slot has moved: one by one, as every script may be repeated.
            if not isinstance(reply, list) or lost:
                results.append(self.run(call))
            else:
                results.append(self.checked(call, reply))
        return results

    def _by_server(self, calls: Sequence[Call]) -> list[tuple[redis.Redis, list[int]]]:
        """Return the servers that hold the tags of calls, each with the places of its calls."""
        if not isinstance(self.client, redis.RedisCluster):
            return [(self.client, list(range(len(calls))))]
        by_server: dict[str, tuple[redis.Redis, list[int]]] = {}
        for index, call in enumerate(calls):
            try:
                node = self.client.get_node_from_key(call.all_keys[0])  # type: ignore[no-untyped-call]
            except RedisClusterException:
                continue  # nobody has the slot now: the call is run by itself
            server = self.client.get_redis_connection(node)
            by_server.setdefault(node.name, (server, []))[1].append(index)
        return list(by_server.values())

    def _send_together(self, calls: Sequence[Call]) -> list[Any]:
        """Send calls in one round trip, in two where a server does not have the scripts.

        Returns
        -------
        list
            A reply to each call, or an error, or None where no reply came.
        """
        replies: list[Any] = [None] * len(calls)
        groups, loads = self._by_server(calls), False
        while groups:
            for (_, own), answers in zip(
                groups, self._pipelined(groups, calls, loads), strict=True
            ):
                for index, reply in zip(own, answers, strict=True):
                    replies[index] = reply
            if loads:
                break
            unknown = [
                (server, [index for index in own if isinstance(replies[index], NoScriptError)])
                for server, own in groups
            ]
            groups, loads = [(server, own) for server, own in unknown if own], True
        return replies

    def _pipelined(
        self,
        groups: Sequence[tuple[redis.Redis, Sequence[int]]],
        calls: Sequence[Call],
        loads: bool,
    ) -> list[list[Any]]:
        """Send some of the calls to each server, and then read the replies of all of them."""
        requests: list[tuple[redis.Redis, list[list[Arg]]]] = []
        for server, indices in groups:
            own = [calls[index] for index in indices]
            names = dict.fromkeys(call.name for call in own) if loads else {}
            commands: list[list[Arg]] = [["SCRIPT", "LOAD", script(name)[0]] for name in names]
            commands += [_evalsha(script(c.name)[1], c.all_keys, self._args(c)) for c in own]
            requests.append((server, commands))
        # All are under way before the first reply is waited for.
        self._note_round_trip()
        answers = _exchange(requests)
        return [
            [None] * len(own) if reply is None else reply[-len(own) :]
            for (_, own), reply in zip(groups, answers, strict=True)
        ]

    def _ask(self, call: Call) -> list[Any]:
        body, sha = script(call.name)
        return self._send(sha, body, call.all_keys, self._args(call))

    def ask_once(self, call: Call) -> list[Any]:
        """Send one call; a lost reply is an error at once. Let `checked` judge the reply.

        What a cluster has refused, as the slot is on its way, was not run: it is sent again.
        """
        body, sha = script(call.name)
        return self._send(sha, body, call.all_keys, self._args(call), repeats=(ClusterError,))

    @property
    def merges(self) -> bool:
        """Whether one server holds all tags, so that one script may touch several of them."""
        return not isinstance(self.client, redis.RedisCluster) and not self._single_steps

    def merged(
        self, name: str, calls: Sequence[Call], *, once: bool = False
    ) -> list[list[Any]] | None:
        """Run calls on several tags as one step (``_merged.lua``).

        Parameters
        ----------
        name : str
            Of the merged script, as in `MERGED`.
        calls : sequence of Call
        once : bool
            Whether a lost reply is an error at once.

        Returns
        -------
        list of replies or None
            Up to the first behind which nothing may follow. None: nothing was changed, and the
            single steps have to be taken.
        """
        if not self.merges or len(calls) > _MERGED_AT_ONCE:
            return None
        if sum(len(call.args) for call in calls) > _MERGED_ARGUMENTS:
            return None
        body, sha = script(name)
        args: list[Arg] = [len(calls)]
        for call in calls:
            own = self._args(call)
            args += [call.name, len(call.all_keys), len(own), *own]
        keys = [key for call in calls for key in call.all_keys]
        send = self._send_once if once else self._send
        code, *replies = send(sha, body, keys, args)
        passed = dict.fromkeys(call.step for call in calls if call.step is not None)
        if any([steps.reply_is_lost(step) for step in passed]):  # noqa: C419 - each is counted
            if once:
                raise RedisTimeoutError("the reply was lost on purpose")
            code, *replies = send(sha, body, keys, args)
        if text(code) != Code.OK:
            return None
        return [self.checked(*pair) for pair in zip(calls, replies, strict=False)]

    @contextmanager
    def timed(self, index: str) -> Iterator[None]:
        """Measure how long a query of an index takes."""
        began = time.perf_counter()
        yield
        self.counters.observe(metrics.INDEX_QUERY, time.perf_counter() - began, index)

    def _send(
        self,
        sha: str,
        body: str,
        keys: list[str],
        args: Sequence[Arg],
        *,
        repeats: tuple[type[Exception], ...] = (*NO_REPLY, StoreUnavailableError),
    ) -> list[Any]:
        """Run one script; a lost reply is answered by asking again (every script allows it)."""
        pause_s = _LOST_REPLY_PAUSE_S
        for attempt in range(1, _LOST_REPLY_TRIES + 1):
            try:
                return self._send_once(sha, body, keys, args)
            except repeats as error:
                if attempt == _LOST_REPLY_TRIES:
                    raise _unavailable(error, attempt) from error
            time.sleep(pause_s)
            pause_s *= 2
        raise AssertionError("unreachable")

    def _send_once(self, sha: str, body: str, keys: list[str], args: Sequence[Arg]) -> list[Any]:
        self._note_round_trip()
        command = _evalsha(sha, keys, args)
        try:
            try:
                return self._call(command)
            except NoScriptError:
                self._note_round_trip()
                return self._call(["EVAL", body, *command[2:]])
        except ClusterError:
            raise
        except ResponseError as error:
            if is_full(error):
                raise StoreFullError(_FULL) from error
            raise StoreError(f"the metadata store refused a step: {error}") from error

    def _call(self, command: Sequence[Arg]) -> list[Any]:
        client = cast("Any", self.client)
        if self._direct is not None and client is self._direct:
            idle = idle_connections(self._direct.connection_pool)
            return cast("list[Any]", idle.call(*command))
        name, *parts = command
        return cast("list[Any]", getattr(client, str(name).lower())(*parts))

    def _note_round_trip(self) -> None:
        self.round_trips += 1
        self.counters.count(metrics.ROUND_TRIPS)

    def _read_identity(self, wanted: int | None) -> StoreIdentity:
        body, sha = script("store_identity")
        initial_record: list[Arg] = [
            uuid_module.uuid4().hex,
            SCHEMA_VERSION,
            wanted or COORDINATORS,
        ]
        reply = self._send(sha, body, ["{meta}:birth"], initial_record)
        uuid, store_epoch, seq, schema, coordinators = (text(value) for value in reply[:5])
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
        self._note("meta", Seen(int(seq), text(reply[5] or "")))
        return StoreIdentity(uuid, store_epoch, int(coordinators))

    def _args(self, call: Call) -> list[Arg]:
        with self._lock:
            call.seen = [Seen(seq, name) for name, seq in self._seen.get(call.tag, {}).items()]
        states = [f"{state.seq} {state.history or '-'}" for state in call.seen]
        known = " ".join(["+", *states] if call.registered else states)
        return [self.identity.uuid, self.identity.store_epoch, known, *call.args]

    def checked(
        self, call: Call, reply: list[Any], uninitialized: list[Any] | None = None
    ) -> list[Any]:
        """Judge the identity and the history that a reply shows, and return the reply."""
        state, code = as_seen(reply[0]), text(reply[1])
        if code == _TagFault.NO_TAG_RECORD:
            if self._is_initialized(call.tag):
                return self._again_or_lost(call)
            if uninitialized is not None:
                return uninitialized
            self._initialize(call.tag)
            call.registered = True
            return self.run(call)
        if code == _TagFault.UNREGISTERED:
            # Its creator died before {meta} said so: if lost now, it would be initialized again.
            if call.tag != "meta":
                self._tag_state(call.tag, "born")
            call.registered = True
            return self.run(call, uninitialized)
        if code == _TagFault.OTHER_STORE:
            raise StoreRolledBackError(
                f"tag {{{call.tag}}} belongs to store {text(reply[2])} epoch {text(reply[3])}, "
                f"expected {self.identity.uuid} epoch {self.identity.store_epoch}: part of the "
                "metadata store was replaced. Nothing was read or written; restore the store that "
                "the checkpoint knew, or start with a new checkpoint and new topics"
            )
        if code == _TagFault.BEHIND:
            raise StoreRolledBackError(
                f"tag {{{call.tag}}} is at step {state.seq}, but step {max(call.seen).seq} of "
                "it was seen before. The metadata store lost acknowledged writes (a restored "
                "backup, or a failover to a replica that lagged). Nothing was read or written; "
                "restore the newest state of the store"
            )
        if code == _TagFault.OVERTAKEN:
            raise StoreRolledBackError(_overtaken(call.tag, state, *map(text, reply[2:])))
        self._saw(call, state)
        return reply

    def _saw(self, call: Call, state: Seen) -> None:
        """Note the state that a reply shows; it contains all that were compared for it."""
        with self._lock:
            known = self._seen.setdefault(call.tag, {})
            for old in call.seen:
                if known.get(old.history) == old.seq:
                    del known[old.history]
            self._note(call.tag, state)

    def _is_initialized(self, tag: str) -> bool:
        return tag in self._seen or self._tag_state(tag, "") == "born"

    def _again_or_lost(self, call: Call) -> list[Any]:
        """Read again a tag that is known to have been there by now, and fail if it is not.

        Another task may have initialized it since the first request.
        """
        reply = self._ask(call)
        if text(reply[1]) == _TagFault.NO_TAG_RECORD:
            raise StoreRolledBackError(
                f"tag {{{call.tag}}} is gone, although the metadata store knows that it was there: "
                "a shard was wiped or keys were deleted or evicted. Nothing was read or written; "
                "restore the store"
            )
        return self.checked(call, reply)

    def _initialize(self, tag: str) -> None:
        """Create the record of a tag that was never used."""
        self._tag_state(tag, "creating")
        call = Call("tag_create", tag, [], [])
        self.checked(call, self._ask(call))
        self._tag_state(tag, "born")

    def _tag_state(self, tag: str, state: str) -> str:
        call = Call("tag_state", "meta", ["tags"], [tag, state])
        reply = self._ask(call)
        if text(reply[1]) == _TagFault.NO_TAG_RECORD:
            raise StoreRolledBackError(
                "the metadata store's own identity is gone: the server was wiped while in use. "
                "Nothing was read or written; restore the store"
            )
        return text(self.checked(call, reply)[2])


def _exchange(
    requests: Sequence[tuple[redis.Redis, Sequence[Sequence[Arg]]]],
) -> list[list[Any] | None]:
    """Send commands to several servers at once; None for a server of which no reply came."""
    sent: list[Request | list[Any] | None] = []
    answers: list[list[Any] | None] = []
    try:
        for server, commands in requests:
            sent.append(_sent(server, commands))
        while len(answers) < len(sent):
            answers.append(_answered(sent[len(answers)]))
        return answers
    finally:
        for request in sent:
            if isinstance(request, Request):
                request.give_up()


def _sent(server: redis.Redis, commands: Sequence[Sequence[Arg]]) -> Request | list[Any] | None:
    """Send commands; where a server is played by a test, return the replies at once."""
    try:
        if isinstance(server, redis.Redis):
            return idle_connections(server.connection_pool).send_all(commands)
        pipe = server.pipeline(transaction=False)
        for command, *parts in commands:
            if command == "EVALSHA":
                pipe.evalsha(*cast("list[Any]", parts))
            else:
                pipe.script_load(cast("str", parts[-1]))
        return cast("list[Any]", pipe.execute(raise_on_error=False))
    except (*NO_REPLY, StoreUnavailableError):
        return None


def _answered(request: Request | list[Any] | None) -> list[Any] | None:
    try:
        return request.replies() if isinstance(request, Request) else request
    except (*NO_REPLY, StoreUnavailableError):
        return None


def _evalsha(sha: str, keys: Sequence[str], args: Sequence[Arg]) -> list[Arg]:
    return ["EVALSHA", sha, len(keys), *keys, *args]


def as_seen(value: Any) -> Seen:
    """Read the state of a tag, ``<seq> <history>``, as each reply begins with it."""
    seq, _, history = text(value).partition(" ")
    return Seen(int(seq), history)


def _overtaken(tag: str, state: Seen, seq: str, history: str, last: str) -> str:
    known = f"goes to step {last}" if last else "is not known"
    return (
        f"tag {{{tag}}} is at step {state.seq}, and step {seq} of its history {history} was seen "
        f"before, but here that history {known}. The metadata store lost acknowledged writes, and "
        "went on from there. It was a restart without the end of its append-only file, a restored "
        "backup, or a failover to a replica that lagged. Nothing was read or written; restore the "
        "newest state of the store, or start with a new checkpoint and new topics"
    )


def _unavailable(error: Exception, attempts: int) -> StoreUnavailableError:
    advice = "Check that the Redis server runs and can be reached;"
    if takes_no_more(error):
        advice = f"{MAX_CLIENTS} After that"
    elif isinstance(error, ClusterError):
        advice = "A server or a slot of the cluster is missing, or being moved: see CLUSTER INFO;"
    return StoreUnavailableError(
        f"no reply from the metadata store after {attempts} tries ({type(error).__name__}: "
        f"{error}). {advice} the step is repeated when the query starts again, nothing is lost"
    )
