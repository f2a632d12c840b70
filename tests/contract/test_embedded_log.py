"""The contract suite of the segment log over the embedded backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from pulsar_txn_spark.backends import entry_codec
from pulsar_txn_spark.backends.embedded.log import EmbeddedSegmentLog
from tests.contract.segment_log import Harness, SegmentLogContract


class TestEmbeddedLog(SegmentLogContract):
    @pytest.fixture
    def harness(self, redis_client: redis.Redis) -> Iterator[Harness]:
        harness = Harness(
            log=EmbeddedSegmentLog(redis_client),
            log_name_prefix="",
            too_large_bytes=entry_codec.MAX_MESSAGE_BYTES + 1,
        )
        yield harness
        harness.close()
