"""The jar for a broker: it builds, its own tests pass, and it brings nothing that could collide."""

from __future__ import annotations

import shutil
import zipfile

import pytest

from pulsar_txn_spark.store.redis import scripts
from pulsar_txn_spark.testing.broker_jar import verified_broker_jar

pytestmark = pytest.mark.skipif(
    shutil.which("mvn") is None, reason="there is no 'mvn' on the PATH to build the jar with"
)


@pytest.mark.timeout(900)  # failovers of a cluster among its tests
def test_the_jar_builds_with_its_tests_and_keeps_to_a_package_of_its_own() -> None:
    with zipfile.ZipFile(verified_broker_jar()) as jar:
        files = [name for name in jar.namelist() if not name.endswith("/")]
        packages = {name.partition("/")[0] for name in files if name.endswith(".class")}
        assert packages == {"pulsartxnspark"}
        assert "pulsartxnspark/broker/MetadataTransactionBufferProvider.class" in files
        # One text of each script, for both languages.
        for name in ("seg_gate", "seg_fates"):
            packed = [jar.read(f"pulsartxnspark/lua/{part}.lua") for part in ("_prelude", name)]
            assert b"".join(packed).decode() == scripts.script(name)[0]
