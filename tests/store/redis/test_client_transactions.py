"""Transactions of Pulsar's own clients: the steps of a broker's coordinator in the store."""

from __future__ import annotations

import pytest

from pulsar_txn_spark.position import EARLIEST
from pulsar_txn_spark.store.records import Code, EndedBy, TxnId, TxnState
from pulsar_txn_spark.store.redis import scripts
from pulsar_txn_spark.txn.participants import Participants, write_intent
from pulsar_txn_spark.txn.sweeper import SegmentEnds, Sweeper, SweepReport
from tests.support.scenario import SEGMENT, TIMEOUT_MS, World

PULSAR_TC = 5
TAG = "tc1"
INDEX = "idx:txn-pulsar"
ORDINARY = "N|persistent%3A%2F%2Fa%2Fb%2Fc|"


def run(world: World, name: str, keys: list[str], args: list[scripts.Arg]) -> list[str]:
    """Run a script; return its code and what comes behind it."""
    reply = world.store.scripts.run(scripts.Call(name, TAG, keys, args))
    return [scripts.text(value) for value in reply[1:]]


def opened(world: World) -> int:
    code, epoch = run(world, "tc_open", ["pulsar-epochs"], [PULSAR_TC])
    assert code == Code.OK
    return int(epoch)


def create(world: World, nonce: str) -> list[str]:
    indexes = ["nonces", "idx:txn-by-deadline", "idx:txn-open", INDEX, "pulsar-epochs"]
    prefixes = [f"{{{TAG}}}:txn:", f"{{{TAG}}}:intents:"]
    args: list[scripts.Arg] = [*prefixes, 1, nonce, "role", "", "", "", TIMEOUT_MS]
    return run(world, "txn_create", ["txn-counter", *indexes], args)


def created(world: World) -> tuple[TxnId, str]:
    nonce = f"pulsar-{PULSAR_TC}-{opened(world)}-aa"
    code, txn, _ = create(world, nonce)
    assert code == Code.OK
    return TxnId.parse(txn), nonce


def ended(world: World, txn: TxnId) -> list[str]:
    return run(world, "txn_ended", [f"txn:{txn.key}", INDEX], [txn.key])


def sweep(world: World) -> SweepReport:
    def ends(segment: str) -> SegmentEnds:
        return SegmentEnds(world.log.last_confirmed(segment), EARLIEST)

    return Sweeper(world.coordinator, ends, retention_ms=0).sweep()


def test_only_the_broker_that_opened_the_coordinator_last_creates(world: World) -> None:
    first = f"pulsar-{PULSAR_TC}-{opened(world)}-aa"
    second = f"pulsar-{PULSAR_TC}-{opened(world)}-bb"
    assert create(world, first) == ["FENCED"]
    code, txn, state = create(world, second)
    assert (code, state) == (Code.OK, TxnState.OPEN)
    assert create(world, second) == [Code.EXISTS, txn, state]
    header = world.store.transactions.read(TxnId.parse(txn))
    assert header is not None
    assert header.owner == "role"
    # Whoever comes now has to find it.
    assert world.client.zrange(f"{{{TAG}}}:{INDEX}", 0, -1) == [txn.encode()]


def test_who_takes_a_transaction_over_fences_who_had_it(world: World) -> None:
    txn, nonce = created(world)
    slow = f"pulsar-{PULSAR_TC}-{opened(world)}-bb"
    epoch = opened(world)
    following, late = (f"pulsar-{PULSAR_TC}-{epoch}-{own}" for own in ("cc", "dd"))
    keys = [f"txn:{txn.key}", "nonces", "pulsar-epochs"]
    assert run(world, "txn_adopt", keys, [txn.key, nonce, slow]) == [Code.FENCED]
    for _ in range(2):  # the first reply may be lost
        assert run(world, "txn_adopt", keys, [txn.key, nonce, following]) == [Code.OK]
    assert run(world, "txn_adopt", keys, [txn.key, nonce, late]) == [Code.FENCED]
    assert run(world, "txn_adopt", keys, [txn.key, following, slow]) == [Code.FENCED]
    transactions = world.store.transactions
    assert transactions.intend(txn, nonce, TIMEOUT_MS, ()).code is Code.FENCED
    end = transactions.end(txn, TxnState.COMMITTED, b"", EndedBy.OWNER, nonce)
    assert end.code is Code.FENCED
    assert transactions.of_nonce(1, nonce) is None
    assert transactions.of_nonce(1, following) == txn
    transactions.end(txn, TxnState.ABORTED, b"", EndedBy.OWNER, following)
    assert run(world, "txn_adopt", keys, [txn.key, following, late]) == [Code.DECIDED, "ABORTED"]
    gone = TxnId(1, 99)
    keys = [f"txn:{gone.key}", *keys[1:]]
    assert run(world, "txn_adopt", keys, [gone.key, nonce, late]) == [Code.ABSENT]


def test_a_header_stays_until_the_broker_has_ended_it_in_pulsars_topics(world: World) -> None:
    txn, nonce = created(world)
    writer = f"ptxn-1-{txn.counter}-pulsar-{PULSAR_TC}"
    intents = [ORDINARY, ORDINARY + "a|subscription", write_intent(SEGMENT, writer)]
    world.store.transactions.intend(txn, nonce, TIMEOUT_MS, intents)
    world.store.segments.pin(txn, writer, [SEGMENT])
    assert Participants.of(intents).segments == [SEGMENT]
    assert Participants.of(intents).pulsars == {"persistent://a/b/c": ["a|subscription"]}
    assert ended(world, txn) == ["OPEN"]
    world.coordinator.abort(txn, EndedBy.ADMIN, cause="a test")
    report = sweep(world)
    assert report.headers_removed == 0
    assert "has not ended it in every topic" in " ".join(report.stuck)
    assert world.store.transactions.read(txn) is not None
    assert ended(world, txn) == [Code.OK]
    assert ended(world, txn) == [Code.ALREADY]
    report = sweep(world)
    assert (report.headers_removed, report.stuck) == (1, ())
    assert world.store.transactions.read(txn) is None


def test_a_counter_is_raised_and_never_goes_back(world: World) -> None:
    for last, answer in ((40, [Code.OK, "40"]), (7, [Code.ALREADY, "40"])):
        assert run(world, "tc_raise", ["txn-counter"], [last]) == answer
    txn, _ = created(world)
    assert txn == TxnId(1, 41)


@pytest.mark.parametrize("lowest,expected", [("1", ["1:1", "1:2"]), ("(1", ["1:2"])])
def test_an_index_is_listed_from_a_score_on(world: World, lowest: str, expected: list[str]) -> None:
    nonce = f"pulsar-{PULSAR_TC}-{opened(world)}-"
    for name in ("aa", "bb"):
        create(world, nonce + name)
    _, _, *found = run(world, "txn_list", [INDEX], ["+inf", 9, lowest])
    assert found[::2] == expected
