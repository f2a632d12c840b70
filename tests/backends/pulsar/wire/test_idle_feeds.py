"""Readers of short ranges that wait for the next range of their segment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from pulsar_txn_spark.backends.pulsar.log import PulsarSegmentLog
from pulsar_txn_spark.backends.pulsar.pulsar_pb2 import BaseCommand
from pulsar_txn_spark.backends.pulsar.wire import idle_pool, reader
from pulsar_txn_spark.backends.pulsar.wire.frames import FrameError
from pulsar_txn_spark.backends.pulsar.wire.idle_feeds import IdleFeeds
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.log import LogRange, SegmentRef
from tests.support.fake_admin_api import FakeAdminApi, fake_admin_api
from tests.support.fake_pulsar import LEDGER, FakePulsar

NAMES = ("s1", "s2")
SEGMENTS = [
    SegmentRef(name, "topic://public/default/t", f"persistent://public/default/{name}")
    for name in NAMES
]


@dataclass
class Tasks:
    """Tasks of one process, each with a log of its own."""

    broker: FakePulsar
    api: FakeAdminApi
    written: int = 0

    def log(self) -> PulsarSegmentLog:
        return PulsarSegmentLog(PulsarConfig(self.broker.url, self.api.url, transport="wire"))

    def write(self, entries: int = 1, rows: int = 1) -> None:
        """Write entries of some equal rows to each segment."""
        log = self.log()
        for segment in SEGMENTS:
            writer = log.writer(segment, f"w{self.written}")
            for number in range(self.written, self.written + entries):
                writer.append(
                    pa.record_batch({"value": pa.array([b"%d" % number] * rows, pa.binary())})
                )
                writer.flush()
            writer.close()
        log.close()
        self.written += entries

    def read(self, after: int, to: int) -> list[int]:
        """Read entries ``(after, to]`` of each segment; return the rows of the first one."""
        log = self.log()
        start, end = Position(LEDGER, after), Position(LEDGER, to)
        ranges = [LogRange(ref, start, end, lambda _name, _at: True) for ref in SEGMENTS]
        found = [
            [int(row) for batch in rows for row in batch.column(0).to_pylist()]
            for rows in log.read_each(ranges, columns=frozenset({"value"}), max_rows=100)
        ]
        log.close()
        assert found[0] == found[1]
        return found[0]

    def opened(self) -> int:
        """Return how many readers were opened of each segment."""
        count, rest = divmod(self.broker.count(BaseCommand.SUBSCRIBE), len(SEGMENTS))
        assert rest == 0
        return count


@pytest.fixture
def tasks(broker: FakePulsar) -> Iterator[Tasks]:
    with fake_admin_api() as api:
        for segment in SEGMENTS:
            api.create(segment)
            api.append(segment, 100)
        found = Tasks(broker, api)
        found.write()
        yield found


def test_one_reader_serves_a_segment_s_micro_batches(tasks: Tasks) -> None:
    for number in range(1, 6):
        tasks.write()
        assert tasks.read(number - 1, number) == [number]
    assert tasks.opened() == 1
    # Its backlog, which brokers report, does not grow.
    tasks.broker.await_heard(BaseCommand.ACK, 5 * len(SEGMENTS))
    acked = [c.ack.message_id[0].entryId for c in tasks.broker.heard if c.type == BaseCommand.ACK]
    assert acked == [n for n in range(1, 6) for _ in SEGMENTS]


def test_a_reader_skips_what_another_process_has_read(tasks: Tasks) -> None:
    tasks.write(6)
    assert tasks.read(0, 1) == [1]
    assert tasks.read(4, 6) == [5, 6]
    assert tasks.opened() == 1
    # What is skipped comes with the entries that are wanted.
    assert [c.flow.messagePermits for c in tasks.broker.heard if c.type == BaseCommand.FLOW][
        -len(SEGMENTS) :
    ] == [5, 5]


def test_large_entries_are_not_skipped(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks.write(6)
    assert tasks.read(0, 1) == [1]
    monkeypatch.setattr(reader, "_MOST_SKIPPED_BYTES", 10)
    assert tasks.read(4, 6) == [5, 6]
    assert tasks.opened() == 2


@pytest.mark.parametrize("after", [0, 1, 3 + reader._MOST_SKIPPED])
def test_a_reader_that_waits_elsewhere_is_closed(tasks: Tasks, after: int) -> None:
    tasks.write(4 + reader._MOST_SKIPPED)
    assert tasks.read(1, 2) == [2]
    assert tasks.read(after, after + 1) == [after + 1]
    assert tasks.opened() == 2
    tasks.broker.await_heard(BaseCommand.CLOSE_CONSUMER, len(SEGMENTS))


def test_a_reader_that_waits_is_sent_nothing(tasks: Tasks) -> None:
    tasks.write()
    assert tasks.read(0, 1) == [1]
    permits = tasks.broker.count(BaseCommand.FLOW)
    tasks.write(3)
    consumers = [c for peer in tasks.broker.peers for c in peer._consumers.values()]
    assert [consumer[1:3] for consumer in consumers] == [[2, 0]] * len(SEGMENTS)
    assert tasks.broker.count(BaseCommand.FLOW) == permits


@pytest.mark.parametrize("rows", [1, 3])
def test_a_reader_of_several_entries_fetches_nothing_behind_them(tasks: Tasks, rows: int) -> None:
    tasks.write(9, rows)
    assert tasks.read(0, 4) == [n for n in range(1, 5) for _ in range(rows)]
    assert tasks.read(4, 9) == [n for n in range(5, 10) for _ in range(rows)]
    assert tasks.opened() == 1


def test_a_reader_of_entries_of_several_sizes_has_no_permits_left(tasks: Tasks) -> None:
    tasks.write(1, rows=3)
    tasks.write(2)
    assert tasks.read(0, 3) == [1, 1, 1, 2, 3]
    tasks.write()
    assert tasks.read(3, 4) == [4]
    assert tasks.opened() == 1


@pytest.mark.parametrize("lose", ["cut", "close_consumers"])
def test_a_reader_that_was_lost_while_it_waited_is_opened_again(tasks: Tasks, lose: str) -> None:
    tasks.write(2)
    assert tasks.read(0, 1) == [1]
    getattr(tasks.broker.peers[-1], lose)()
    assert tasks.read(1, 2) == [2]
    assert tasks.opened() == 2


def test_a_reader_of_a_damaged_entry_does_not_wait(tasks: Tasks) -> None:
    tasks.write()
    topic = tasks.broker.topic(SEGMENTS[0].log_name)
    whole, messages = topic.entries[1]
    topic.entries[1] = whole[:-1] + bytes([whole[-1] ^ 1]), messages
    with pytest.raises(FrameError):
        tasks.read(0, 1)
    topic.entries[1] = whole, messages
    assert tasks.read(0, 1) == [1]


HERE = Position(LEDGER, 1)


@dataclass(eq=False)
class Waiting:
    """A reader that notes whether it was closed."""

    topic: str
    closed: list[str] = field(default_factory=list)

    def can_wait(self) -> bool:
        return True

    def can_go_on_at(self, start: Position) -> bool:
        return start == HERE

    def leave(self) -> None:
        self.closed.append(self.topic)


def idle(count: int, clock: Callable[[], float]) -> tuple[IdleFeeds[Waiting], list[str]]:
    feeds, closed = IdleFeeds[Waiting](clock), list[str]()
    for number in range(count):
        feeds.put(Waiting(f"t{number}", closed=closed))
    return feeds, closed


def test_the_oldest_are_closed_beyond_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_pool, "MOST", 3)
    feeds, closed = idle(5, lambda: 0.0)
    assert closed == ["t0", "t1"]
    assert feeds.take("t0", HERE) is None
    assert feeds.take("t4", HERE) is not None


def test_one_that_has_waited_for_long_is_closed_when_another_one_comes() -> None:
    now = [0.0]
    feeds, closed = idle(3, lambda: now[0])
    now[0] = idle_pool.LONGEST_S + 1
    feeds.put(Waiting("new", closed=closed))
    assert closed == ["t0", "t1", "t2"]


def test_a_topic_has_one_reader_that_waits() -> None:
    feeds, closed = idle(1, lambda: 0.0)
    feeds.put(Waiting("t0"))
    assert closed == ["t0"]
    assert feeds.take("t0", HERE) is not None
    assert feeds.take("t0", HERE) is None


def test_a_reader_of_another_ledger_is_not_used(tasks: Tasks) -> None:
    tasks.write(2)
    assert tasks.read(0, 1) == [1]
    log = tasks.log()
    feed = log._transport.feed(SEGMENTS[0], Position(LEDGER - 1, 1), entries=1)
    assert tasks.broker.count(BaseCommand.SUBSCRIBE) == len(SEGMENTS) + 1
    feed.close()
    log.close()
