from __future__ import annotations

import subprocess
import sys

NEEDED = ("pandas", "pulsar_txn_spark.spark.sink.task", "pulsar_txn_spark.spark.source.task")
CODE = f"""
import sys
import pulsar_txn_spark.spark.worker_daemon
print([name for name in {NEEDED} if name not in sys.modules])
"""


def test_the_daemon_imports_what_tasks_need_and_starts_nothing_by_its_import() -> None:
    ran = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.returncode) == ("[]\n", 0), ran.stderr
