"""The example of a Redis user: what the scripts call, it may."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "conf" / "redis-acl.conf"


def test_the_user_of_the_example_may_run_what_the_scripts_call() -> None:
    allowed = set(re.findall(r" \+([a-z|]+)", EXAMPLE.read_text(encoding="utf-8")))
    folder = resources.files("pulsar_txn_spark.store.redis") / "lua"
    called = {
        command.lower()
        for script in folder.iterdir()
        for command in re.findall(r"redis\.p?call\('([A-Z]+)'", script.read_text(encoding="utf-8"))
    }
    assert "zrangebylex" in called
    assert called <= allowed
