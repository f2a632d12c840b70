"""``pulsar-txn op-log``: the batching of operation records is shown and changed."""

from __future__ import annotations

from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.store.records import OpLogSettings
from tests.support.command_line import call


def test_the_gathering_of_operation_records_is_shown_and_changed(
    option: str, run: Components
) -> None:
    shown = call("op-log", "show", "-o", option)
    assert [row["coordinator"] for row in shown] == list(range(run.store.identity.coordinators))
    assert {row["enabled"] for row in shown} == {False}
    args = ("--on", "--max-records", "100", "--max-delay-ms", "2", "-o", option)
    for row in call("op-log", "set", *args):
        assert row["enabled"]
        assert (row["max_records"], row["max_bytes"], row["max_delay_ms"]) == (100, 1 << 22, 2)
    assert run.store.op_log.read_settings(3) == OpLogSettings(True, 100, 1 << 22, 2)
    for switch, enabled in (("--off", False), ("--on", True)):
        call("op-log", "set", switch, "-o", option)
        # What was not named stays as it was.
        assert run.store.op_log.read_settings(3) == OpLogSettings(enabled, 100, 1 << 22, 2)
    call("op-log", "set", "--off", "--max-bytes", "4096", "-o", option)
    assert run.store.op_log.read_settings(0) == OpLogSettings(False, 100, 4096, 2)
