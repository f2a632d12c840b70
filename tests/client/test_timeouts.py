"""Times that a caller names: which are taken, and what the error says of the others."""

from __future__ import annotations

import numpy as np
import pytest

from pulsar_txn_spark.client.timeouts import lease_ms, require_wait
from pulsar_txn_spark.errors import OptionError


@pytest.mark.parametrize("number", [30_000, np.int64(30_000), np.uint16(30_000)])
def test_a_lease_is_a_whole_number_of_any_type(number: object) -> None:
    lease = lease_ms(number)
    assert (lease, type(lease)) == (30_000, int)


@pytest.mark.parametrize(
    "wrong, shown",
    [(3e4, r"30000\.0 \(float\)"), (999, r"999 \(int\)"), (None, r"None \(NoneType\)")],
)
def test_the_error_of_a_lease_names_its_type(wrong: object, shown: str) -> None:
    expected = f"timeout_ms: expected a whole number from 1000 to 86400000, found {shown}"
    with pytest.raises(OptionError, match=expected):
        lease_ms(wrong)


@pytest.mark.parametrize("number", [None, 0, 5, 0.5, float("inf"), np.int64(5), np.float32(5)])
def test_a_wait_is_a_number_or_none(number: object) -> None:
    require_wait(number)


@pytest.mark.parametrize(
    "wrong, shown",
    [(-1, r"-1 \(int\)"), ("x", r"'x' \(str\)"), (float("nan"), r"nan \(float\)")],
)
def test_the_error_of_a_wait_names_its_type(wrong: object, shown: str) -> None:
    expected = f"timeout_ms: expected a number of at least 0, or None, found {shown}"
    with pytest.raises(OptionError, match=expected):
        require_wait(wrong)
