"""What a job's options take away of its guarantees; integration/spark/test_job.py has the rest."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pulsar_txn_spark.job import Job
from pulsar_txn_spark.job.guarantees import Verdict, _once

Loader = Callable[..., Job]


@pytest.mark.parametrize(
    "value, verdict", [("true", Verdict.YES), ("false", Verdict.NO), ('"False"', Verdict.NO)]
)
def test_a_job_that_may_skip_rows_is_not_exactly_once(
    loader: Loader, value: str, verdict: Verdict
) -> None:
    option = f'topic = "flights"\nfailOnDataLoss = {value}\n'
    assert _once(loader(('topic = "flights"\n', option))).verdict is verdict
