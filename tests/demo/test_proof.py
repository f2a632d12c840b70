"""The demo's proof is worth something only if it fails when something is not exact."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from demo.proof import Expected, Message, by_key, compare, disordered, expectation
from demo.topics import DELAYS, ON_TIME

Outputs = dict[str, list[Message]]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole() -> dict[int, Expected]:
    return expectation()


@pytest.fixture(scope="module")
def expected(whole: dict[int, Expected]) -> dict[int, Expected]:
    """Give the first week: enough to spoil."""
    return {number: whole[number] for number in range(5000)}


@pytest.fixture
def outputs(expected: dict[int, Expected]) -> Outputs:
    """Give what a job without a fault leaves behind."""
    found: Outputs = {DELAYS: [], ON_TIME: []}
    for flight in expected.values():
        found[flight.topic].append((flight.key, json.dumps(flight.value).encode()))
    return found


def test_the_expectation_splits_all_flights_by_delay_and_cancellation(
    whole: dict[int, Expected],
) -> None:
    assert sorted(whole) == list(range(336_776))
    late = [flight for flight in whole.values() if flight.topic == DELAYS]
    assert sum("dep_delay" not in flight.value for flight in late) == 8255  # cancelled
    assert all(
        flight.topic == DELAYS or int(str(flight.value["dep_delay"])) <= 15
        for flight in whole.values()
    )
    assert min(int(str(flight.value.get("dep_delay", 16))) for flight in late) == 16


def test_what_is_exact_is_found_exact(expected: dict[int, Expected], outputs: Outputs) -> None:
    verdict = compare(expected, outputs)
    assert verdict.exact
    assert verdict.examples == []
    assert verdict.read.total() == 5000


def test_order_does_not_matter(expected: dict[int, Expected], outputs: Outputs) -> None:
    outputs[DELAYS].reverse()
    assert compare(expected, outputs).exact


def test_rows_of_a_key_that_overtake_each_other_are_found() -> None:
    before = {"a": [1, 2, 3, 4], "b": [5, 6]}
    assert disordered(before, {DELAYS: {"a": [1, 4], "b": [5]}, ON_TIME: {"a": [2, 3]}}) == []
    assert disordered(before, {DELAYS: {"a": [4, 1]}, ON_TIME: {"b": [5, 6]}}) == ["a"]
    assert disordered(before, {DELAYS: {}, ON_TIME: {"b": [6, 5], "a": [1, 2]}}) == ["b"]


def test_flights_without_a_plane_have_no_order() -> None:
    messages: list[Message] = [("a", b'{"id": 2}'), (None, b'{"id": 3}'), ("a", b'{"id": 1}')]
    assert by_key(messages) == {"a": [2, 1]}


def _drop_one(outputs: Outputs) -> None:
    del outputs[DELAYS][7]


def _drop_a_topic(outputs: Outputs) -> None:
    del outputs[ON_TIME]


def _double_one(outputs: Outputs) -> None:
    outputs[ON_TIME].append(outputs[ON_TIME][3])


def _swap_one_for_a_copy_of_another(outputs: Outputs) -> None:
    outputs[ON_TIME][4] = outputs[ON_TIME][3]


def _double_in_the_other_topic(outputs: Outputs) -> None:
    outputs[DELAYS].append(outputs[ON_TIME][3])


def _misroute_one(outputs: Outputs) -> None:
    outputs[DELAYS].append(outputs[ON_TIME].pop())


def _change_a_value(outputs: Outputs) -> None:
    key, value = outputs[DELAYS][0]
    assert value is not None
    outputs[DELAYS][0] = (key, json.dumps(json.loads(value) | {"distance": 1}).encode())


def _lose_a_field(outputs: Outputs) -> None:
    key, value = outputs[DELAYS][0]
    assert value is not None
    row = json.loads(value)
    del row["airline"]
    outputs[DELAYS][0] = (key, json.dumps(row).encode())


def _change_a_key(outputs: Outputs) -> None:
    outputs[DELAYS][0] = ("N00000", outputs[DELAYS][0][1])


def _turn_a_null_key_into_an_empty_one(outputs: Outputs) -> None:
    index = next(i for i, (key, _) in enumerate(outputs[DELAYS]) if key is None)
    outputs[DELAYS][index] = ("", outputs[DELAYS][index][1])


def _add_a_flight_that_never_was(outputs: Outputs) -> None:
    outputs[DELAYS].append((None, b'{"id": 336776}'))


def _add_something_that_is_no_json(outputs: Outputs) -> None:
    outputs[DELAYS].append((None, b"\xff{"))


def _add_a_null_value(outputs: Outputs) -> None:
    outputs[DELAYS].append((None, None))


@pytest.mark.parametrize(
    "spoil, missing, doubled, wrong",
    [
        (_drop_one, 1, 0, 0),
        (_drop_a_topic, None, 0, 0),
        (_double_one, 0, 1, 0),
        (_swap_one_for_a_copy_of_another, 1, 1, 0),
        (_double_in_the_other_topic, 0, 1, 1),
        (_misroute_one, 0, 0, 1),
        (_change_a_value, 0, 0, 1),
        (_lose_a_field, 0, 0, 1),
        (_change_a_key, 0, 0, 1),
        (_turn_a_null_key_into_an_empty_one, 0, 0, 1),
        (_add_a_flight_that_never_was, 0, 0, 1),
        (_add_something_that_is_no_json, 0, 0, 1),
        (_add_a_null_value, 0, 0, 1),
    ],
)
def test_the_proof_fails_on(
    spoil: Callable[[Outputs], None],
    missing: int | None,
    doubled: int,
    wrong: int,
    expected: dict[int, Expected],
    outputs: Outputs,
) -> None:
    everything_on_time = len(outputs[ON_TIME])
    spoil(outputs)
    verdict = compare(expected, outputs)
    assert not verdict.exact
    assert verdict.missing == (everything_on_time if missing is None else missing)
    assert (verdict.doubled, verdict.wrong) == (doubled, wrong)
    assert verdict.examples
