"""The embedded segment log: a segment is a pair of Redis Streams, next to its metadata.

All keys are under the segment's own hash tag ``{seg:<id>}``:

- ``log`` contains the payloads, see :mod:`pulsar_txn_spark.backends.entry_codec`;
- ``log-index`` describes each entry: writer, counts, running totals, publish time;
- ``log-state`` describes the segment itself.

An entry's id is ``1-<entry>`` in both streams. Entries are numbered from 0 without a gap, so a
reader notices a missing one. The index keeps measuring cheap, and lets a reader skip entries that
it may not see without fetching them. Each operation that writes is one Lua script.

An append counts as a change of the segment's tag. So whoever has seen its receipt, or has read the
segment since, finds its loss out (INV-14).
"""

from __future__ import annotations

import enum
import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import pyarrow as pa
import redis
from redis.exceptions import (
    MovedError,
    NoScriptError,
    RedisClusterException,
    RedisError,
    ResponseError,
)

from pulsar_txn_spark.backends import entry_codec
from pulsar_txn_spark.backends.embedded.append_lane import AppendLane, Request
from pulsar_txn_spark.backends.receipts import ReceiptSums
from pulsar_txn_spark.backends.row_buffer import RowBuffer
from pulsar_txn_spark.errors import (
    DataLossError,
    SegmentLogError,
    SegmentLogUnavailableError,
    SegmentNotFoundError,
    SegmentSealedError,
    StoreUnavailableError,
    UnverifiedReceiptError,
)
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import (
    Appended,
    EndSnapshot,
    LogRange,
    RangeSize,
    Receipt,
    SegmentRef,
    SegmentWriter,
    Visible,
)
from pulsar_txn_spark.segments.publish_times import CLOCK_SKEW_MS, SCANNED_ENTRIES
from pulsar_txn_spark.store.records import Seen
from pulsar_txn_spark.store.redis.connection import Client, exchange, is_full
from pulsar_txn_spark.store.redis.durability import MAKE_ROOM
from pulsar_txn_spark.store.redis.exchange import idle_connections
from pulsar_txn_spark.store.redis.scripts import as_seen

NoteSeen = Callable[[Mapping[str, Seen]], None]
"""Takes states of tags, by tag, that a receipt shows."""

LEDGER = 1
"""The only ledger of an embedded segment: a stream's ids never start anew."""

_NO_ENTRY = -1  # number before the first entry
_COALESCE_BYTES = 512 * 1024  # row batches are gathered up to this before they become an entry
_FETCH_BYTES = 4 * 1024 * 1024  # payloads per round trip: bounds memory, and how long Redis is busy
_SCAN_ENTRIES = 512  # index records per round trip, about 60 KiB
_INLINE_BYTES = 256 * 1024  # payloads up to this come with the index records of their entries
_RANGES_AT_ONCE = 64  # ranges of a task that one round trip scans
_TRIM_ENTRIES = 256  # entries removed in one step, so that others get their turn
_FEW_ROWS = 1024  # entries of fewer rows are joined: a batch costs Spark some 100 us


class _Refused(enum.IntEnum):
    """What append.lua and seal.lua answer instead of a number of entries."""

    NOT_FOUND = -1
    SEALED = -2


@cache
def _script(name: str) -> tuple[str, str]:
    """Return a script's text and SHA1."""
    folder = resources.files("pulsar_txn_spark.backends.embedded") / "lua"
    body = (folder / f"{name}.lua").read_text(encoding="utf-8")
    return body, hashlib.sha1(body.encode(), usedforsecurity=False).hexdigest()


def _state_key(segment: SegmentRef) -> str:
    return f"{{seg:{segment.id}}}:log-state"


def _log_key(segment: SegmentRef) -> str:
    return f"{{seg:{segment.id}}}:log"


def _index_key(segment: SegmentRef) -> str:
    return f"{{seg:{segment.id}}}:log-index"


def _tag_key(segment: SegmentRef) -> str:
    return f"{{seg:{segment.id}}}:birth"


def _number(position: Position) -> int:
    """Return the number of the last entry that is not after `position`."""
    if position.ledger < LEDGER:
        return _NO_ENTRY
    if position.ledger > LEDGER:
        raise DataLossError(
            f"Position {position} cannot belong to an embedded segment, whose only ledger is "
            f"{LEDGER}: the checkpoint comes from a topic on another backend."
        )
    return position.entry


def _position(number: int) -> Position:
    return Position(LEDGER, number) if number > _NO_ENTRY else EARLIEST


@contextmanager
def _server_errors(segment: SegmentRef, what: str) -> Iterator[None]:
    """Turn the errors of the server and of its connection into those of the segment log."""
    try:
        yield
    except (RedisError, RedisClusterException, StoreUnavailableError) as error:
        if is_full(error):
            raise SegmentLogUnavailableError(
                f"Could not {what} segment {segment.id} of {segment.topic}: the server is full, as "
                f"its memory has reached 'maxmemory'. {MAKE_ROOM}"
            ) from error
        raise SegmentLogUnavailableError(
            f"Could not {what} segment {segment.id} of {segment.topic} on the embedded log: {error}"
        ) from error


def _not_found(segment: SegmentRef) -> SegmentNotFoundError:
    return SegmentNotFoundError(
        f"Segment {segment.id} of {segment.topic} has no log on this server. It was deleted, or "
        "the options point to another server than the one that the topic was created on."
    )


def _sealed(segment: SegmentRef) -> SegmentSealedError:
    return SegmentSealedError(
        f"Segment {segment.id} of {segment.topic} is sealed: it takes no more entries. Its "
        "children take them."
    )


def _check_open(segment: SegmentRef, replies: Sequence[Any]) -> None:
    """Check the replies to the opening of a writer."""
    for reply in replies:
        if isinstance(reply, ResponseError):
            raise reply
    _, (count, sealed) = replies
    if count is None:
        raise _not_found(segment)
    if sealed != b"0":
        raise _sealed(segment)


@dataclass(frozen=True, slots=True)
class _Entry:
    """An index record."""

    number: int
    writer: str
    messages: int
    bytes: int
    publish_time_ms: int

    @classmethod
    def parse(cls, record: Sequence[Any]) -> _Entry:
        stream_id, fields = record
        of = dict(zip(fields[::2], fields[1::2], strict=True))
        return cls(
            number=int(stream_id.partition(b"-")[2]),
            writer=of[b"w"].decode(),
            messages=int(of[b"n"]),
            bytes=int(of[b"b"]),
            publish_time_ms=int(of[b"t"]),
        )


@dataclass(frozen=True, slots=True)
class _Scan:
    """What a scan of a range has shown, as of one moment.

    Parameters
    ----------
    count : int
        How many entries were ever appended.
    trimmed : int or None
        Number of the last entry that is gone; None where there is no such segment.
    entries : list of _Entry
        At most `_SCAN_ENTRIES`.
    payloads : dict of int to bytes
        Of these entries, by number; empty if they would have been too large.
    """

    count: int
    trimmed: int | None
    entries: list[_Entry]
    payloads: dict[int, bytes]

    @classmethod
    def of(cls, reply: Sequence[Any]) -> _Scan:
        if not reply:
            return cls(0, None, [], {})
        count, trimmed, records, payloads = reply
        numbered = {int(of.partition(b"-")[2]): fields[1] for of, fields in payloads}
        return cls(count, trimmed, [_Entry.parse(record) for record in records], numbered)


def _scan_of(
    segment: SegmentRef, first: int, last: int, most_bytes: int
) -> tuple[list[str], list[int]]:
    """Return keys and arguments of scan.lua."""
    keys = [_state_key(segment), _index_key(segment), _log_key(segment)]
    return keys, [first, last, _SCAN_ENTRIES, most_bytes]


class _Lanes(threading.local):
    """Of each thread: a lane for each server."""

    def __init__(self) -> None:
        self.by_pool: dict[redis.ConnectionPool, AppendLane] = {}


class EmbeddedSegmentLog:
    """A :class:`~pulsar_txn_spark.segments.log.SegmentLog` on Redis Streams.

    Parameters
    ----------
    client : redis.Redis or redis.RedisCluster
        From :func:`pulsar_txn_spark.store.redis.connection.connect`. It stays the caller's:
        closing the log does not close it.
    note_seen : callable, optional
        Called with the states of tags that receipts show: what a store was seen to have.
    """

    backend = "embedded"
    at_once = 1

    def __init__(self, client: Client, note_seen: NoteSeen = lambda _: None) -> None:
        self._client = client
        self._note_seen = note_seen
        self._lanes = _Lanes()

    def create(self, segment: SegmentRef, gate_store: str = "") -> None:
        """Create the segment's log; idempotent. No broker stands before it, to gate it.

        Raises
        ------
        SegmentNotFoundError
            If the segment was deleted.
        """
        del gate_store
        keys = [_state_key(segment), _tag_key(segment)]
        if self._run("create", segment, keys) == _Refused.NOT_FOUND:
            raise SegmentNotFoundError(
                f"Segment {segment.id} of {segment.topic} was deleted: its log is not made anew. "
                "Whoever asks for it has planned that before the deletion."
            )

    def adopt(self, segment: SegmentRef) -> None:
        """Take a log that is there already; see the Protocol. Here, each is a segment's anyway."""
        self._state(segment, "next")

    def check_adoptable(self, segment: SegmentRef) -> None:
        """Refuse what :meth:`adopt` would refuse now, and change nothing; see the Protocol."""
        self._state(segment, "next")

    def delete(self, segment: SegmentRef) -> None:
        """Remove the segment's log and all that is in it; idempotent."""
        # The state goes in the same step: a writer that is still there finds no segment.
        with _server_errors(segment, "delete"):
            self._client.unlink(_state_key(segment), _log_key(segment), _index_key(segment))

    def give_back(self, segment: SegmentRef, *, others: Sequence[SegmentRef] = ()) -> None:
        """Remove the log; see the Protocol. Here, nobody else has made it."""
        del others
        self.delete(segment)

    def backlogs_of_others(self, segment: SegmentRef) -> list[str]:
        """Return an empty list; see the Protocol. Here, the store knows all subscriptions."""
        del segment
        return []

    def seal(self, segment: SegmentRef) -> Position:
        """Seal the segment and return its last position; idempotent.

        Raises
        ------
        SegmentNotFoundError, SegmentLogUnavailableError
        """
        count = self._run("seal", segment, [_state_key(segment)])
        if count == _Refused.NOT_FOUND:
            raise _not_found(segment)
        return _position(count - 1)

    def protect_each(self, segments: Sequence[SegmentRef]) -> None:
        """Do nothing; see the Protocol. Here, only a trim removes entries."""

    def trim(self, segment: SegmentRef, up_to: Position) -> Position:
        """Remove every entry up to `up_to`, and return the last position that is gone.

        Raises
        ------
        SegmentNotFoundError, SegmentLogUnavailableError
        """
        keys = [_state_key(segment), _log_key(segment), _index_key(segment)]
        while True:  # each round removes at least one entry or is the last
            answer = self._run("trim", segment, keys, _number(up_to), _TRIM_ENTRIES)
            if not answer:
                raise _not_found(segment)
            gone, goal = answer
            if gone == goal:
                return _position(gone)

    def check_access(self, segment: SegmentRef) -> None:
        """Raise unless the server answers and knows the segment.

        Raises
        ------
        SegmentNotFoundError, SegmentLogUnavailableError
        """
        self.last_confirmed(segment)

    def writer(self, segment: SegmentRef, name: str) -> SegmentWriter:
        """Open a writer; all of a thread share one connection, while something is in flight.

        On one server it sends nothing: a writer learns by its first receipt whether its segment
        takes rows. In a cluster a slot may have moved, which has to be found out before the first
        append: nothing of that is ever sent twice.

        Raises
        ------
        SegmentNotFoundError, SegmentSealedError
            In a cluster.
        SegmentLogUnavailableError
        """
        if not isinstance(self._client, redis.RedisCluster):
            load = ("SCRIPT", "LOAD", _script("append")[0])
            lane = self._lane(self._client.connection_pool, load)
            return _EmbeddedWriter(segment, name, lane, self._note_seen)
        with _server_errors(segment, "open"):
            try:
                return self._open_writer(segment, name)
            except MovedError:
                # Nothing was written yet, so asking the right node is safe.
                assert isinstance(self._client, redis.RedisCluster)
                self._client.nodes_manager.initialize()
                return self._open_writer(segment, name)

    def _open_writer(self, segment: SegmentRef, name: str) -> SegmentWriter:
        pool = self._pool(_state_key(segment))
        # SCRIPT LOAD ahead of any append on a connection: EVALSHA then needs no fallback.
        load = ("SCRIPT", "LOAD", _script("append")[0])
        connection = pool.get_connection()
        try:
            commands = [load, ("HMGET", _state_key(segment), "next", "sealed")]
            _check_open(segment, exchange(connection, commands))
        finally:
            pool.release(connection)
        return _EmbeddedWriter(segment, name, self._lane(pool, load), self._note_seen)

    def _lane(self, pool: redis.ConnectionPool, prepare: Sequence[str]) -> AppendLane:
        """Return this thread's lane to a server."""
        lanes = self._lanes.by_pool
        if pool not in lanes:
            lanes[pool] = AppendLane(idle_connections(pool), prepare)
        return lanes[pool]

    def _pool(self, key: str) -> redis.ConnectionPool:
        """Return the connections to the server that holds a key."""
        if not isinstance(self._client, redis.RedisCluster):
            return self._client.connection_pool
        node = self._client.get_node_from_key(key)  # type: ignore[no-untyped-call]
        return self._client.get_redis_connection(node).connection_pool

    def last_confirmed(self, segment: SegmentRef) -> Position:
        """Return the position of the last entry, EARLIEST if there is none.

        A reply that shows an entry is sent only after the entry was synced to disk.
        """
        return _position(self._state(segment, "next") - 1)

    def deliverable_end(self, segment: SegmentRef) -> Position:
        """Return the LAC; see the Protocol."""
        return self.last_confirmed(segment)

    def snapshot_each(
        self,
        segments: Sequence[SegmentRef],
        *,
        patient: bool = False,  # noqa: ARG002 - what the server says is what there is
    ) -> list[EndSnapshot]:
        """Take a snapshot of each segment; see the Protocol."""
        return [
            EndSnapshot(self, segment, _position(after - 1), _position(trimmed))
            for segment, (after, trimmed) in zip(
                segments, self._state_of_each(segments, "next", "trimmed"), strict=True
            )
        ]

    def trimmed_to(self, segment: SegmentRef) -> Position:
        """Return the last position that is gone, EARLIEST if none is."""
        return _position(self._state(segment, "trimmed"))

    def trimmed_to_of_each(self, segments: Sequence[SegmentRef]) -> list[Position]:
        """Return of each segment the last position that is gone; see the Protocol."""
        return [_position(number) for (number,) in self._state_of_each(segments, "trimmed")]

    def _state(self, segment: SegmentRef, field: str) -> int:
        return self._state_of_each([segment], field)[0][0]

    def _state_of_each(self, segments: Sequence[SegmentRef], *fields: str) -> list[list[int]]:
        """Read fields of each segment's state, in one round trip to each server."""
        if not segments:
            return []
        pipe = self._client.pipeline(transaction=False)
        for segment in segments:
            pipe.hmget(_state_key(segment), *fields)
        with _server_errors(segments[0], "read the state of"):
            values: list[Any] = pipe.execute()
        for segment, value in zip(segments, values, strict=True):
            if None in value:
                raise _not_found(segment)
        return [[int(number) for number in value] for value in values]

    def published_before(self, segment: SegmentRef, time_ms: int) -> Position:
        """Return the last position that was published before `time_ms` by the server's clock."""
        return _position(self._published_before(segment, time_ms))

    def _published_before(self, segment: SegmentRef, time_ms: int) -> int:
        keys = [_state_key(segment), _index_key(segment)]
        number = self._run("published", segment, keys, time_ms)
        if number is None:
            raise _not_found(segment)
        return int(number)

    def position_at(self, segment: SegmentRef, time_ms: int) -> Position | None:
        """Return the position before the first entry at or after a time; see the Protocol.

        Times are those of the server's clock, which rise as long as nobody sets it back.
        """
        while True:  # again only if retention has removed what was there meanwhile
            boundary = self._published_before(segment, time_ms)
            earlier = self._published_before(segment, time_ms - CLOCK_SKEW_MS)
            read_to = min(boundary, max(earlier, boundary - SCANNED_ENTRIES))
            while read_to <= boundary:
                keys, args = _scan_of(segment, read_to + 1, boundary + 1, 0)
                scan = _Scan.of(self._run("scan", segment, keys, *args))
                if scan.trimmed is None:
                    raise _not_found(segment)
                for entry in scan.entries:
                    if entry.publish_time_ms >= time_ms:
                        return _position(entry.number - 1)
                    read_to = entry.number
                if not scan.entries:
                    break
            if scan.trimmed is not None and scan.trimmed <= boundary:
                return None

    def appended(self, segment: SegmentRef) -> Appended:
        """Return what was ever appended."""
        with _server_errors(segment, "read the state of"):
            totals: Any = self._client.hmget(_state_key(segment), "messages", "bytes")
        if totals[0] is None:
            raise _not_found(segment)
        return Appended(int(totals[0]), int(totals[1]))

    def measure(self, segment: SegmentRef, start: Position, end: Position) -> RangeSize:
        """Count what is in ``(start, end]``, exactly; what is trimmed counts nothing."""
        first, last, messages, size = self._measure(segment, start, end)
        return RangeSize(entries=last - first, messages=messages, bytes=size, exact=True)

    def _measure(
        self, segment: SegmentRef, start: Position, end: Position, *amounts: str | int
    ) -> list[int]:
        keys = [_state_key(segment), _index_key(segment)]
        reply: list[int] = self._run(
            "measure", segment, keys, _number(start), _number(end), *amounts
        )
        if not reply:
            raise _not_found(segment)
        return reply

    def limit(
        self,
        segment: SegmentRef,
        start: Position,
        end: Position,
        max_messages: int | None,
        max_bytes: int | None,
    ) -> Position:
        """Return the furthest position in ``(start, end]`` that keeps within both limits."""
        amounts: list[str | int] = []
        if max_messages is not None:
            amounts += ["m", max_messages]
        if max_bytes is not None:
            amounts += ["c", max_bytes]
        if not amounts:
            return end
        first, last, _, _, *reached = self._measure(segment, start, end, *amounts)
        furthest = max(first + 1, min(reached))
        return end if furthest >= last else _position(furthest)

    def split(
        self, segment: SegmentRef, start: Position, end: Position, parts: int
    ) -> list[Position]:
        """Return the ascending ends of up to `parts` sub-ranges of about equal bytes."""
        if start >= end:
            return []
        first, last, _, size = self._measure(segment, start, end)
        if first >= last:
            return [end]  # all of it was trimmed: whoever reads it has to find that out
        shares: list[str | int] = []
        for part in range(1, parts):
            shares += ["c", size * part // parts]
        reached = self._measure(segment, start, end, *shares)[4:] if shares else []
        inner = sorted({number for number in reached if first < number < last})
        return [*map(_position, inner), end]

    def read(
        self,
        segment: SegmentRef,
        start: Position,
        end: Position,
        *,
        visible: Visible,
        columns: frozenset[str],
        max_rows: int,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the visible rows of ``(start, end]`` in log order, at most `max_rows` a batch.

        Raises
        ------
        DataLossError
            If an entry of the range is gone, or the log ends before `end`.
        SegmentNotFoundError, SegmentLogUnavailableError
        """
        wanted = LogRange(segment, start, end, visible)
        yield from self._read(wanted, None, columns, max_rows)

    def read_each(
        self, ranges: Sequence[LogRange], *, columns: frozenset[str], max_rows: int
    ) -> Iterator[Iterator[pa.RecordBatch]]:
        """Read ranges, short ones in one round trip together; see the Protocol."""
        for at in range(0, len(ranges), _RANGES_AT_ONCE):
            chunk = ranges[at : at + _RANGES_AT_ONCE]
            for wanted, scan in zip(chunk, self._first_scans(chunk), strict=True):
                yield self._read(wanted, scan, columns, max_rows)

    def _first_scans(self, ranges: Sequence[LogRange]) -> list[_Scan | None]:
        """Scan the beginnings of ranges in one round trip; None where it has to be asked."""
        scans: list[_Scan | None] = [None] * len(ranges)
        if len(ranges) == 1 or isinstance(self._client, redis.RedisCluster):
            return scans  # the tags of a cluster's segments are on several servers
        digest = _script("scan")[1]
        pipe = self._client.pipeline(transaction=False)
        sent = []
        for at, wanted in enumerate(ranges):
            first, last = _number(wanted.start) + 1, _number(wanted.end)
            if first <= last:
                keys, args = _scan_of(wanted.segment, first, last, _FETCH_BYTES // len(ranges))
                pipe.evalsha(digest, len(keys), *keys, *args)
                sent.append(at)
        with _server_errors(ranges[0].segment, "read"):
            replies = pipe.execute(raise_on_error=False)
        for at, reply in zip(sent, replies, strict=True):
            if isinstance(reply, list):  # else the read asks for itself, and reports the error
                scans[at] = _Scan.of(reply)
        return scans

    def _read(
        self,
        wanted: LogRange,
        first_scan: _Scan | None,
        columns: frozenset[str],
        max_rows: int,
    ) -> Iterator[pa.RecordBatch]:
        gathered: list[pa.RecordBatch] = []
        count = 0
        for entry, payload in self._payloads(wanted, first_scan):
            rows = entry_codec.present(
                entry_codec.decode(payload, entry.messages),
                columns,
                ledger=LEDGER,
                entry=entry.number,
                publish_time_ms=entry.publish_time_ms,
                producer_name=entry.writer,
            )
            # A large entry passes without being copied, small ones are joined.
            if gathered and (rows.num_rows >= _FEW_ROWS or count + rows.num_rows > max_rows):
                yield _joined(gathered)
                gathered, count = [], 0
            if rows.num_rows >= min(_FEW_ROWS, max_rows):
                for offset in range(0, rows.num_rows, max_rows):
                    yield rows.slice(offset, max_rows)
            else:
                gathered.append(rows)
                count += rows.num_rows
        if gathered:
            yield _joined(gathered)

    def _payloads(
        self, wanted: LogRange, first_scan: _Scan | None
    ) -> Iterator[tuple[_Entry, bytes]]:
        """Yield the visible entries of a range, after checking that all of it is there."""
        segment = wanted.segment
        neighbours: list[_Entry] = []  # visible neighbours, fetched in one round trip
        size = 0
        for entry, payload in self._entries(wanted, first_scan):
            seen = wanted.visible(entry.writer, _position(entry.number))
            is_here = payload is not None
            if neighbours and (is_here or not seen or size + entry.bytes > _FETCH_BYTES):
                yield from self._fetch(segment, neighbours)
                neighbours, size = [], 0
            if seen and payload is not None:
                yield entry, payload
            elif seen:
                neighbours.append(entry)
                size += entry.bytes
        if neighbours:
            yield from self._fetch(segment, neighbours)

    def _entries(
        self, wanted: LogRange, scan: _Scan | None
    ) -> Iterator[tuple[_Entry, bytes | None]]:
        """Yield the index records of a range, none of which may be missing.

        With each comes its payload, where the scan has brought that along.
        """
        segment = wanted.segment
        expected, end = _number(wanted.start) + 1, _number(wanted.end)
        while expected <= end:
            if scan is None:
                keys, args = _scan_of(segment, expected, end, _INLINE_BYTES)
                scan = _Scan.of(self._run("scan", segment, keys, *args))
            if scan.trimmed is None:
                raise _not_found(segment)
            if expected <= scan.trimmed:
                raise _trimmed(segment, expected, scan.trimmed)
            if end >= scan.count:
                raise DataLossError(
                    f"Segment {segment.id} of {segment.topic} was to be read up to "
                    f"{_position(end)}, which was acknowledged once, but ends at "
                    f"{_position(scan.count - 1)}. The server has lost data, or is not the same "
                    "one."
                )
            if not scan.entries:
                raise _missing(segment, expected)
            for entry in scan.entries:
                if entry.number != expected:
                    raise _missing(segment, expected)
                yield entry, scan.payloads.get(entry.number)
                expected += 1
            scan = None

    def _fetch(
        self, segment: SegmentRef, neighbours: Sequence[_Entry]
    ) -> Iterator[tuple[_Entry, bytes]]:
        first, last = neighbours[0].number, neighbours[-1].number
        with _server_errors(segment, "read"):
            payloads: Any = self._client.xrange(
                _log_key(segment), f"{LEDGER}-{first}", f"{LEDGER}-{last}"
            )
        for entry, (stream_id, fields) in zip(neighbours, payloads, strict=False):
            if stream_id != b"%d-%d" % (LEDGER, entry.number):
                break
            yield entry, fields[b"p"]
        else:
            if len(payloads) == len(neighbours):
                return
        # Read after the miss: trimming removes and notes in one step.
        trimmed = _number(self.trimmed_to(segment))
        if first <= trimmed:
            raise _trimmed(segment, first, trimmed)
        raise _missing(segment, first)

    def _run(self, name: str, segment: SegmentRef, keys: list[str], *args: str | int) -> Any:
        body, digest = _script(name)
        with _server_errors(segment, name):
            try:
                return self._client.evalsha(digest, len(keys), *keys, *map(str, args))
            except NoScriptError:
                return self._client.eval(body, len(keys), *keys, *map(str, args))

    def close(self) -> None:
        """Do nothing: the client is shared with the metadata store, and closed by its owner."""


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _trimmed(segment: SegmentRef, wanted: int, trimmed: int) -> DataLossError:
    return DataLossError(
        f"Segment {segment.id} of {segment.topic} was to be read from {_position(wanted)} on, but "
        f"everything up to {_position(trimmed)} has been removed by retention. Data that was not "
        "read is lost to this query: lengthen the retention, or start the query anew from what "
        "is still there."
    )


def _missing(segment: SegmentRef, wanted: int) -> DataLossError:
    return DataLossError(
        f"Segment {segment.id} of {segment.topic} lacks the entry at {_position(wanted)} or one "
        "soon after it, although nothing there was removed by retention. The server has lost data."
    )


class _EmbeddedWriter:
    """Appends rows of one writer, a bounded number of bytes ahead of receipts.

    It shares its lane's connection with the other writers of its thread, and has none while nothing
    of its own is in flight. Nothing is ever sent twice, on whichever connection.
    """

    def __init__(
        self, segment: SegmentRef, name: str, lane: AppendLane, note_seen: NoteSeen
    ) -> None:
        self._segment = segment
        self._name = name
        self._lane = lane
        self._note_seen = note_seen
        self._digest = _script("append")[1]
        self._keys = (
            _state_key(segment),
            _log_key(segment),
            _index_key(segment),
            _tag_key(segment),
        )
        self._failed = False
        self._closed = False
        self._error: Exception | None = None  # what a reply that another writer received said
        self._buffer = RowBuffer()
        self._in_flight = 0
        self._last = _NO_ENTRY
        self._sums = ReceiptSums()

    def append(self, rows: pa.RecordBatch) -> None:
        """Queue rows; waits for receipts while too much is in flight."""
        with self._used():
            if rows.num_rows == 0:
                return
            rows = entry_codec.normalize(rows)
            for piece in entry_codec.split(rows):
                size = piece.nbytes
                if self._buffer.rows and self._buffer.bytes + size > entry_codec.ENTRY_BYTES:
                    self._send_buffered()
                self._buffer.add(piece, size)
                if self._buffer.bytes >= _COALESCE_BYTES:
                    self._send_buffered()

    def send(self) -> None:
        """Send what is queued; the receipts come on the thread's connection, in its order."""
        with self._used():
            if self._buffer.rows:
                self._send_buffered()

    def flush(self) -> Receipt:
        """Send what is queued, and wait for every receipt."""
        with self._used():
            if self._buffer.rows:
                self._send_buffered()
            self._lane.wait(lambda: not self._in_flight or self._error is not None)
            self._raise_error()
            return self._sums.drain()

    def acknowledged(self) -> Receipt:
        """Return what was acknowledged since the writer was opened."""
        return self._sums.total

    def close(self) -> None:
        """Forget what is in flight: its receipts are read by nobody."""
        self._closed = True
        self._lane.abandon()

    @contextmanager
    def _used(self) -> Iterator[None]:
        """Refuse to go on after an error: what was sent is unknown from then on."""
        if self._failed or self._closed:
            raise SegmentLogError(
                f"The writer {self._name} on segment {self._segment.id} has failed or was closed. "
                "What is left goes out under a new name."
            )
        try:
            with _server_errors(self._segment, "append to"):
                self._raise_error()
                yield
        except BaseException:
            self._failed = True
            raise

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _send_buffered(self) -> None:
        rows = self._buffer.drain()
        payload = entry_codec.encode(rows)
        messages, size = rows.num_rows, len(payload)
        command = ("EVALSHA", self._digest, len(self._keys), *self._keys)
        request = Request(
            size,
            lambda reply: self._answered(reply, messages, size),
            self._lost,
            lambda: not (self._closed or self._failed),
        )
        self._in_flight += 1
        self._lane.send((*command, self._name, messages, payload), request)
        self._raise_error()

    def _lost(self, error: Exception) -> None:
        self._in_flight -= 1
        self._error = self._error or error

    def _answered(self, reply: Any, messages: int, size: int) -> None:
        self._in_flight -= 1
        # After the first that failed no other counts: a writer's bound has no holes below it.
        if self._error is not None or self._failed:
            return
        number, state = reply if isinstance(reply, list) else (reply, None)
        self._error = self._refusal(number)
        if self._error is None:
            if state is not None:
                self._note_seen({f"seg:{self._segment.id}": as_seen(state)})
            self._last = number
            self._sums.add(_position(number), messages, size)

    def _refusal(self, reply: Any) -> Exception | None:
        if isinstance(reply, ResponseError):
            return reply
        if reply == _Refused.NOT_FOUND:
            return _not_found(self._segment)
        if reply == _Refused.SEALED:
            return _sealed(self._segment)
        if not isinstance(reply, int) or reply <= self._last:
            return UnverifiedReceiptError(
                f"Expected the number of an entry after {self._last} as the receipt of an append "
                f"to segment {self._segment.id}, found {reply!r}: it proves nothing."
            )
        return None
