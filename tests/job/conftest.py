"""Job files that are right, and a way to change them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pulsar_txn_spark.job import Job, load

Loader = Callable[..., Job]

GOOD = '''\
[job]
name = "flights"
checkpoint = "/checkpoints/flights"

[options]
store.path = "/store"

[[source]]
name = "flights"
topic = "flights"
subscription = "job"
decode = "json"
schema = "id BIGINT, delay INT"

[[step]]
name = "late"
sql = """
SELECT *
FROM flights
WHERE delay > 15
"""

[[sink]]
topic = "late"
encode = "json"
'''


@pytest.fixture
def loader(tmp_path: Path) -> Loader:
    """Give a function that loads the good file, with texts replaced."""

    def loaded(
        *changes: tuple[str, str], environment: dict[str, str] | None = None, **named: object
    ) -> Job:
        text = GOOD
        for before, after in changes:
            assert before in text
            text = text.replace(before, after)
        file = tmp_path / "job.toml"
        file.write_text(text)
        return load(file, environment=environment or {}, **named)  # type: ignore[arg-type]

    return loaded


@pytest.fixture
def complaints(loader: Loader, tmp_path: Path) -> Callable[..., list[str]]:
    """Give a function that returns what is wrong with the good file once it is changed."""

    def refused(*changes: tuple[str, str], **named: object) -> list[str]:
        with pytest.raises(ValueError, match="nothing was started") as caught:
            loader(*changes, **named)
        *lines, count = str(caught.value).splitlines()
        assert count.startswith(f"{len(lines)} problem")
        return [line.replace(f"{tmp_path}/", "") for line in lines]

    return refused
