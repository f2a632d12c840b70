from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fake_pulsar import FakePulsar


@pytest.fixture
def broker() -> Iterator[FakePulsar]:
    """Give a broker of a few topics in this process."""
    broker = FakePulsar()
    yield broker
    broker.close()
