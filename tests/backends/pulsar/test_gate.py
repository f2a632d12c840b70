"""Segments that brokers gate: marked before they are loaded, and written to only where they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from unittest import mock

import pyarrow as pa
import pytest

from pulsar_txn_spark.backends.pulsar import log as pulsar_log
from pulsar_txn_spark.backends.pulsar.admin_api import EntryHeader, TransactionState
from pulsar_txn_spark.backends.pulsar.ledgers import ManagedLedger
from pulsar_txn_spark.backends.pulsar.log import PulsarSegmentLog
from pulsar_txn_spark.backends.pulsar.txn_bits import TxnBits
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.errors import OptionError, SegmentLogUnavailableError
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.key_load import cut_by_load
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import Topology, hash_of

SEGMENT = SegmentRef("t/1/s", "topic://public/default/t", "persistent://public/default/t--1--s")
WRITER = "ptxn-0-1-0-aa"
END = Position(3, 5)
GATED = {
    "pulsar_txn_spark.segment": SEGMENT.id,
    "pulsar_txn_spark.gate": "broker",
    "pulsar_txn_spark.store": "a1b2",
}


def state(buffer: str, end: Position = END) -> TransactionState:
    return TransactionState("Ready", end, 0, buffer)


@pytest.fixture
def log() -> Iterator[PulsarSegmentLog]:
    """Give a log whose broker gates the segment; its admin API and its transport are mocks."""
    log = PulsarSegmentLog(PulsarConfig("pulsar://127.0.0.1:1", "http://127.0.0.1:1"))
    log._transport.release()
    with mock.patch.object(log, "_admin"), mock.patch.object(log, "_transport"):
        log._admin.properties.return_value = dict(GATED)  # type: ignore[attr-defined]
        log._admin.settled_transactions_of.return_value = state("pulsar_txn_spark")  # type: ignore[attr-defined]
        log._transport.known_topics.return_value = None  # type: ignore[attr-defined]
        yield log
        log.close()


def test_a_topic_is_marked_as_gated_when_it_is_created(log: PulsarSegmentLog) -> None:
    admin = log._admin
    admin.properties.side_effect = [None, {}]  # type: ignore[attr-defined]
    admin.managed_ledger.return_value.ledgers = []  # type: ignore[attr-defined]
    log.create(SEGMENT, "a1b2")
    # A broker looks for the marks only once, when it loads the topic.
    admin.create_topic.assert_called_once_with(SEGMENT.log_name, GATED)  # type: ignore[attr-defined]


def test_a_topic_is_never_there_without_the_mark_of_its_segment(log: PulsarSegmentLog) -> None:
    """Who lists topics at that moment would take it for a native one from then on."""
    admin = log._admin
    marks = {"pulsar_txn_spark.created": SEGMENT.id}
    admin.properties.side_effect = [None, marks]  # type: ignore[attr-defined]
    admin.managed_ledger.return_value.ledgers = []  # type: ignore[attr-defined]
    log.create(SEGMENT)
    admin.create_topic.assert_called_once_with(SEGMENT.log_name, marks)  # type: ignore[attr-defined]


def test_a_transaction_s_writer_carries_bits_where_the_broker_gates(log: PulsarSegmentLog) -> None:
    log.writer(SEGMENT, WRITER)
    bits = log._transport.writer.call_args.args[3]  # type: ignore[attr-defined]
    assert bits == TxnBits.of_writer(WRITER)
    log.writer(SEGMENT, "outside of transactions")
    assert log._transport.writer.call_args.args[3] is None  # type: ignore[attr-defined]


def test_a_segment_without_a_gate_gets_no_bits(log: PulsarSegmentLog) -> None:
    log._admin.properties.return_value = {"pulsar_txn_spark.segment": SEGMENT.id}  # type: ignore[attr-defined]
    log.writer(SEGMENT, WRITER)
    assert log._transport.writer.call_args.args[3] is None  # type: ignore[attr-defined]


@pytest.mark.parametrize("serving", [None, state("Single"), state("")])
def test_no_bits_go_to_a_broker_without_the_plug_in(
    log: PulsarSegmentLog, serving: TransactionState | None
) -> None:
    log._admin.settled_transactions_of.return_value = serving  # type: ignore[attr-defined]
    with pytest.raises(SegmentLogUnavailableError, match=r"not loaded the plug-in.*Nothing was"):
        log.writer(SEGMENT, WRITER)
    log._transport.writer.assert_not_called()  # type: ignore[attr-defined]


def test_pulsar_client_does_not_write_in_a_gated_segment() -> None:
    config = PulsarConfig("pulsar://127.0.0.1:1", "http://127.0.0.1:1", transport="client")
    log = PulsarSegmentLog(config)
    with mock.patch.object(log, "_admin"):
        log._admin.properties.return_value = dict(GATED)  # type: ignore[attr-defined]
        log._admin.settled_transactions_of.return_value = state("pulsar_txn_spark")  # type: ignore[attr-defined]
        with pytest.raises(OptionError, match=r"transport 'client'.*Nothing was written"):
            log.writer(SEGMENT, WRITER)
    log.close()


def test_a_reader_waits_for_a_broker_that_learns_of_a_decision_later(
    log: PulsarSegmentLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log._check_exists(SEGMENT)
    monkeypatch.setattr(pulsar_log, "_GATE_POLL_SECONDS", 0)
    behind = state("pulsar_txn_spark", Position(3, 0))
    log._admin.settled_transactions_of.side_effect = [behind, behind, state("pulsar_txn_spark")]  # type: ignore[attr-defined]
    log._check_not_stalled(SEGMENT, END, deadline=float("inf"))
    log._admin.settled_transactions_of.side_effect = [behind]  # type: ignore[attr-defined]
    with pytest.raises(SegmentLogUnavailableError, match=r"does not learn of.*Nothing was skipped"):
        log._check_not_stalled(SEGMENT, END, deadline=0.0)


class Rows:
    """Rows of the entries that came, one key each."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []

    def add(self, entry: mock.Mock) -> None:
        self.keys.append(b"key-%d" % entry.position.entry)

    def batches(self, *, everything: bool) -> Iterator[pa.RecordBatch]:
        if everything:
            yield pa.record_batch([pa.array(self.keys, pa.binary())], names=["key"])


def test_a_cut_by_load_goes_by_the_rows_that_a_gating_broker_shows(log: PulsarSegmentLog) -> None:
    """Behind the lowest bound of an open transaction it delivers nothing."""
    shown = Position(3, 2)
    ledger = {"ledgerId": 3, "entries": 0, "size": 0}
    admin = log._admin
    admin.properties.return_value = {**GATED, "pulsar_txn_spark.origin": "-1:-1,3"}  # type: ignore[attr-defined]
    admin.settled_transactions_of.return_value = state("pulsar_txn_spark", shown)  # type: ignore[attr-defined]
    admin.messages_since_load.return_value = (6, 600)  # type: ignore[attr-defined]
    admin.entry_header.return_value = EntryHeader(False, "", 0, 1, bytes=100)  # type: ignore[attr-defined]
    log._headers = admin  # type: ignore[assignment]
    admin.managed_ledger.return_value = ManagedLedger.of(  # type: ignore[attr-defined]
        {
            "lastConfirmedEntry": str(END),
            "currentLedgerSize": 600,
            "entriesAddedCounter": 6,
            "ledgers": [ledger],
        }
    )
    assert log.deliverable_end(SEGMENT) == shown
    entries = [mock.Mock(position=Position(3, n), producer_name=WRITER) for n in range(3)]
    transport = log._transport
    transport.drops_chunks = transport.creates_missing = False
    transport.rows.side_effect = lambda *_: Rows()  # type: ignore[attr-defined]
    transport.feed.return_value.next_entry.side_effect = entries  # type: ignore[attr-defined]
    [segment] = Topology.plan(TopicName.parse("t"), 1, "pulsar").segments
    hashes = sorted(hash_of(b"key-%d" % n) for n in range(3))
    assert cut_by_load(log, replace(segment, ref=SEGMENT)) in hashes[1:]
    # Nothing at all is shown: the cut is in the middle.
    admin.settled_transactions_of.return_value = state("pulsar_txn_spark", EARLIEST)  # type: ignore[attr-defined]
    assert cut_by_load(log, replace(segment, ref=SEGMENT)) is None


def test_a_segment_without_a_gate_is_read_to_its_end(log: PulsarSegmentLog) -> None:
    admin = log._admin
    admin.properties.return_value = {"pulsar_txn_spark.segment": SEGMENT.id}  # type: ignore[attr-defined]
    admin.managed_ledger.return_value.last = END  # type: ignore[attr-defined]
    assert log.deliverable_end(SEGMENT) == END
    admin.settled_transactions_of.assert_not_called()  # type: ignore[attr-defined]
