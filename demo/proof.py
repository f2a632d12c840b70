"""What the job must have produced, and how what it did produce differs from it.

Nothing here uses Spark, Arrow or this package's own reading of the input. The expectation comes
from the CSV file by plain Python. So a mistake of the job's cannot be in the yardstick too.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from demo.data import NOT_KNOWN, csv_airlines, csv_rows
from demo.topics import DELAYS, LATE_MINUTES, ON_TIME

_EXAMPLES = 5  # of each kind of difference: enough to look into, few enough to read

Message = tuple[str | None, bytes | None]
"""Key and value, as they were read from a topic."""


@dataclass(frozen=True, slots=True)
class Expected:
    """One flight, as it must come out: exactly once, in this topic, with this key and value."""

    topic: str
    key: str | None
    value: Mapping[str, object]


@dataclass(slots=True)
class Verdict:
    """How the outputs differ from the expectation.

    Parameters
    ----------
    expected, read : Counter of str
        Topic → how many messages.
    missing, doubled : int
        Flights.
    wrong : int
        Messages with a wrong value or key, or in the wrong topic.
    examples : list of str
        Some of these, in words.
    """

    expected: Counter[str] = field(default_factory=Counter)
    read: Counter[str] = field(default_factory=Counter)
    missing: int = 0
    doubled: int = 0
    wrong: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def exact(self) -> bool:
        """Whether every flight came out once, in the right topic, with the right values."""
        return (
            not (self.missing or self.doubled or self.wrong)
            and self.read.total() == self.expected.total()
        )


def expectation() -> dict[int, Expected]:
    """Compute the job's result from the CSV file: number of the row → what becomes of it."""
    names = csv_airlines()
    result: dict[int, Expected] = {}
    for number, row in enumerate(csv_rows()):
        delay = None if row["dep_delay"] in NOT_KNOWN else int(row["dep_delay"])
        tail = None if row["tailnum"] in NOT_KNOWN else row["tailnum"]
        value = {
            "id": number,
            "carrier": row["carrier"],
            "airline": names[row["carrier"]],
            "flight": int(row["flight"]),
            "tailnum": tail,
            "origin": row["origin"],
            "dest": row["dest"],
            "dep_delay": delay,
            "distance": int(row["distance"]),
            "time_hour": row["time_hour"],
        }
        late = delay is None or delay > LATE_MINUTES
        # JSON as Spark writes it leaves out what is null.
        result[number] = Expected(
            DELAYS if late else ON_TIME,
            tail,
            {name: content for name, content in value.items() if content is not None},
        )
    return result


def compare(expected: Mapping[int, Expected], outputs: Mapping[str, Iterable[Message]]) -> Verdict:
    """Hold what was read from the output topics against what had to be there.

    Parameters
    ----------
    expected : Mapping[int, Expected]
        From :func:`expectation`.
    outputs : Mapping[str, Iterable[Message]]
        Topic → its messages.
    """
    verdict = Verdict(expected=Counter(flight.topic for flight in expected.values()))
    seen: Counter[int] = Counter()
    for topic, messages in outputs.items():
        for message in messages:
            verdict.read[topic] += 1
            number, complaint = _judge(expected, topic, message)
            if number is not None:
                seen[number] += 1
            if complaint:
                verdict.wrong += 1
                _example(verdict, f"wrong in {topic}: {complaint}")
    for number in expected:
        if not seen[number]:
            verdict.missing += 1
            _example(verdict, f"missing: flight {number}")
        elif seen[number] > 1:
            verdict.doubled += 1
            _example(verdict, f"doubled: flight {number} came out {seen[number]} times")
    return verdict


Order = Mapping[str, Sequence[int]]
"""Key → the numbers of its flights, in the order of their messages."""


def by_key(messages: Iterable[Message]) -> dict[str, list[int]]:
    """Sort flights by their keys; those without one have no order."""
    positions: dict[str, list[int]] = {}
    for key, value in messages:
        if key is not None and value is not None:
            positions.setdefault(key, []).append(json.loads(value)["id"])
    return positions


def disordered(before: Order, after: Mapping[str, Order]) -> list[str]:
    """Return the keys whose rows came out of some topic in another order than they went in.

    Parameters
    ----------
    before : mapping
        What went in.
    after : mapping
        Topic → what came out there; each of them may have a part of it.
    """
    wrong = []
    for key in sorted(set(before).union(*after.values())):
        place = {number: at for at, number in enumerate(before.get(key, ()))}
        for positions in after.values():
            came = [place.get(number, -1) for number in positions.get(key, ())]
            if came != sorted(came):
                wrong.append(key)
                break
    return wrong


def _judge(
    expected: Mapping[int, Expected], topic: str, message: Message
) -> tuple[int | None, str | None]:
    """Return the flight's number, and what is wrong with the message (None = nothing)."""
    key, value = message
    try:
        row = json.loads(value) if value is not None else None
    except ValueError:
        row = None
    number = row.get("id") if isinstance(row, dict) else None
    if not isinstance(number, int) or number not in expected:
        return None, f"{value!r:.200} is not one of the flights"
    want = expected[number]
    if topic != want.topic:
        return number, f"flight {number} belongs to {want.topic}"
    if key != want.key:
        return number, f"flight {number} has the key {key!r}, expected {want.key!r}"
    if row != want.value:
        return number, f"flight {number} is {row}, expected {dict(want.value)}"
    return number, None


def _example(verdict: Verdict, text: str) -> None:
    kind = text.split(maxsplit=1)[0].rstrip(":")
    if sum(example.startswith(kind) for example in verdict.examples) < _EXAMPLES:
        verdict.examples.append(text)
