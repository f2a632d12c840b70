"""The entries that a Pulsar writer has in flight, and their receipts."""

from __future__ import annotations

import threading

import pytest

from pulsar_txn_spark.backends.pulsar.receipt_ledger import InFlight, ReceiptLedger, SentEntry
from pulsar_txn_spark.backends.receipts import NO_RECEIPT
from pulsar_txn_spark.errors import (
    PulsarTxnError,
    SegmentLogError,
    SegmentLogUnavailableError,
    UnverifiedReceiptError,
)
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.log import Receipt, SegmentRef

SEGMENT = SegmentRef("s1", "topic://public/default/t", "persistent://public/default/s1")


def ledger_of(
    entries: int = 0, in_flight: InFlight | None = None, timeout_s: float = 0.02
) -> ReceiptLedger:
    """Return a ledger with a bound of 100 bytes, and entries of 2 rows and 40 bytes in flight."""
    ledger = ReceiptLedger(SEGMENT, in_flight or InFlight(), 100, timeout_s)
    for _ in range(entries):
        ledger.register(SentEntry(ledger.next_number, 2, 20, 40))
    return ledger


def test_receipts_in_order_are_summed_up() -> None:
    in_flight = InFlight()
    ledger = ledger_of(2, in_flight)
    ledger.settle(0, Position(7, 0), rows=2)
    assert [entry.number for entry in ledger.unacknowledged()] == [1]
    assert not ledger.is_settled()
    ledger.settle(1, Position(7, 1))  # a receipt need not say how many rows it stands for
    ledger.wait(ledger.is_settled)
    assert ledger.drain() == Receipt(Position(7, 0), Position(7, 1), 2, 4, 40)
    assert ledger.drain() == NO_RECEIPT
    assert ledger.total.entries == 2
    assert (ledger.acknowledged_number, in_flight.bytes) == (1, 0)


@pytest.mark.parametrize(
    "number, position, rows, fault",
    [
        (2, Position(7, 1), 2, "expected the receipt of entry 1, found 2"),
        (0, Position(7, 1), 2, "expected the receipt of entry 1, found 0"),
        (1, Position(-1, -1), 2, "'deduplicated' is no acknowledgement"),
        (1, Position(7, -1), 2, "'deduplicated' is no acknowledgement"),
        (1, Position(7, 1), 1, "expected a batch of 2 rows, found 1"),
        (1, Position(7, 0), 2, "expected a position after 7:0, found 7:0"),
    ],
)
def test_a_receipt_that_proves_nothing_is_final(
    number: int, position: Position, rows: int, fault: str
) -> None:
    ledger = ledger_of(3)
    ledger.settle(0, Position(7, 0), rows=2)
    ledger.settle(number, position, rows)
    # What follows is no proof either: the acknowledged entries are a prefix of those sent.
    ledger.settle(1, Position(7, 1), rows=2)
    ledger.settle(2, Position(7, 2), rows=2)
    for _ in range(2):
        with pytest.raises(UnverifiedReceiptError, match=fault):
            ledger.wait(ledger.is_settled)
    assert ledger.total == Receipt(Position(7, 0), Position(7, 0), 1, 2, 20)


def test_a_receipt_of_nothing_that_was_sent_is_final() -> None:
    ledger = ledger_of()
    ledger.settle(0, Position(7, 0))
    with pytest.raises(UnverifiedReceiptError, match="entry None, found 0"):
        ledger.check()


def test_nothing_is_sent_behind_the_back_of_whoever_closes_the_writer() -> None:
    ledger = ledger_of(1)
    ledger.settle(0, Position(7, 0))
    assert ledger.close()
    with pytest.raises(SegmentLogError, match="is closed"):
        ledger.register(SentEntry(ledger.next_number, 2, 20, 40))


def test_the_first_failure_is_explained_once_and_on_the_writers_thread() -> None:
    explained: list[threading.Thread] = []

    def explain() -> PulsarTxnError:
        explained.append(threading.current_thread())
        return SegmentLogError("the first one")

    def fail() -> None:
        ledger.fail(explain)
        ledger.fail(lambda: SegmentLogError("the second one"))

    ledger = ledger_of(1)
    other = threading.Thread(target=fail)
    other.start()
    other.join()
    for _ in range(2):
        with pytest.raises(SegmentLogError, match="the first one"):
            ledger.check()
    assert explained == [threading.current_thread()]


def test_the_bound_holds_for_all_writers_and_lets_each_one_send_something() -> None:
    in_flight = InFlight()
    first, second = ledger_of(2, in_flight), ledger_of(0, in_flight)
    assert in_flight.bytes == 80
    assert first.has_room(20)
    assert not first.has_room(21)
    assert second.has_room(1000)  # nothing of its own would ever make room for it
    first.settle(0, Position(7, 0))
    assert first.has_room(21)


def test_a_log_that_acknowledges_nothing_in_time_fails_the_writer() -> None:
    ledger = ledger_of(1)
    with pytest.raises(SegmentLogUnavailableError, match="Timeout") as raised:
        ledger.wait(ledger.is_settled)
    for named in ("sendTimeoutMs", "publish rate limit", "batchingMaxMessages"):
        assert named in str(raised.value)
    ledger.settle(0, Position(7, 0))  # too late: the rows go out under another name
    assert ledger.total == NO_RECEIPT


def test_each_receipt_grants_the_whole_time_again() -> None:
    ledger = ledger_of(3)

    def settle_one() -> bool:
        number = ledger.acknowledged_number + 1
        if number < 3:
            ledger.settle(number, Position(7, number))
            return False
        return True

    ledger.wait(settle_one)  # nobody notifies: each turn takes all of the time
    assert ledger.total.entries == 3


def test_numbers_go_on_after_what_the_broker_has_stored() -> None:
    ledger = ledger_of()
    ledger.start_after(41)
    ledger.register(SentEntry(42, 2, 20, 40))
    ledger.settle(42, Position(7, 0))
    assert (ledger.acknowledged_number, ledger.next_number) == (42, 43)


def test_a_closed_ledger_buffers_nothing_and_believes_nothing() -> None:
    in_flight = InFlight()
    ledger, other = ledger_of(2, in_flight), ledger_of(1, in_flight)
    assert ledger.close()
    assert not ledger.close()
    assert (in_flight.bytes, ledger.is_settled(), other.is_settled()) == (40, True, False)
    ledger.settle(0, Position(7, 0))
    ledger.fail(lambda: SegmentLogError("of a connection that is no longer ours"))
    assert ledger.total == NO_RECEIPT
    with pytest.raises(SegmentLogError, match="is closed"):
        ledger.check()
