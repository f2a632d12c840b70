"""Keys go to the partition that Pulsar's clients for the JVM and Go send them to."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_txn_spark.backends.pulsar.partitioning import java_hashes, partitions_of

# What String.hashCode() says in Java.
KNOWN = {
    "": 0,
    "a": 97,
    "hello": 99162322,
    "polygenelubricants": 0x80000000,
    "\u00e9": 233,
    "\U0001f600": (0xD83D * 31 + 0xDE00) & 0xFFFFFFFF,
}


def plainly(text: str) -> int:
    units = text.encode("utf-16-be")
    found = 0
    for at in range(0, len(units), 2):
        found = (found * 31 + int.from_bytes(units[at : at + 2])) % (1 << 32)
    return found


@pytest.mark.parametrize("text, expected", KNOWN.items())
def test_a_text_has_the_hash_that_java_gives_it(text: str, expected: int) -> None:
    assert java_hashes(pa.array([text.encode()], pa.binary())).tolist() == [expected]


def test_a_key_that_is_no_text_is_hashed_as_its_base64() -> None:
    assert java_hashes(pa.array([b"\xff\x00"], pa.binary())).tolist() == [plainly("/wA=")]


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=40)), st.integers(0, 5))
def test_keys_of_any_length_are_hashed_as_one_by_one(texts: list[str], skipped: int) -> None:
    keys = pa.array([text.encode() for text in texts], pa.binary()).slice(skipped)
    assert java_hashes(keys).tolist() == [plainly(text) for text in texts[skipped:]]


def test_rows_go_by_their_keys_and_those_without_one_together() -> None:
    keys = pa.array([b"a", None, b"hello", None, b"polygenelubricants"], pa.binary())
    assert partitions_of(keys, 5, 3, 7).tolist() == [97 % 3, 1, 99162322 % 3, 1, 0]
    assert partitions_of(None, 2, 3, 5).tolist() == [2, 2]
    assert partitions_of(keys, 5, 1, 7).tolist() == [0] * 5
