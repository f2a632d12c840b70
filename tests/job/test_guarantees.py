"""What a job's options take away of its guarantees; integration/spark/test_job.py has the rest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pulsar_txn_spark.job import Job
from pulsar_txn_spark.job.guarantees import Verdict, _input, _once, _place

Loader = Callable[..., Job]


@pytest.mark.parametrize(
    "value, verdict", [("true", Verdict.YES), ("false", Verdict.NO), ('"False"', Verdict.NO)]
)
def test_a_job_that_may_skip_rows_is_not_exactly_once(
    loader: Loader, value: str, verdict: Verdict
) -> None:
    option = f'topic = "flights"\nfailOnDataLoss = {value}\n'
    assert _once(loader(('topic = "flights"\n', option))).verdict is verdict


@pytest.mark.parametrize(
    "sinks, source, verdict",
    [
        ('store.path = "/store"', "", Verdict.YES),
        ('store.path = "/store"', 'store.path = "/store"', Verdict.YES),
        ('store.path = "/store"', 'store.path = "/other"', Verdict.NO),
        ('store.path = "/store"', 'store.url = "redis://metadata"', Verdict.NO),
        ('store.url = "redis://metadata"', 'store.url = "redis://other"', Verdict.NO),
        ('store.url = "redis://metadata"', 'store.url = "redis://metadata:6379/0"', Verdict.YES),
        ('store.url = "redis://metadata"', 'store.url = "redis://metadata/1"', Verdict.NO),
        ('store.url = "redis://metadata"', 'store.username = "reader"', Verdict.YES),
    ],
)
def test_input_on_another_store_than_the_sinks_is_not_in_their_transaction(
    loader: Loader, sinks: str, source: str, verdict: Verdict
) -> None:
    changes = (
        ('store.path = "/store"', sinks),
        ('topic = "flights"\n', f'topic = "flights"\n{source}\n'),
    )
    assert _input(loader(*changes)).verdict is verdict


def test_a_file_of_options_says_where_the_store_is_and_its_secrets_are_hidden(
    loader: Loader, tmp_path: Path
) -> None:
    file = tmp_path / "connection.properties"
    file.write_text("store.url=redis://metadata\nstore.password=hunter2\n")
    file.chmod(0o600)
    spark = '[spark]\nmaster = "spark://cluster"\n\n[options]'
    assert [found.verdict for found in _place(loader(("[options]", spark)))] == [Verdict.NO]
    job = loader(("[options]", spark), ('store.path = "/store"', f'options.file = "{file}"'))
    assert list(_place(job)) == []
    assert job.secrets.hidden("refused: hunter2") == "refused: ***"
