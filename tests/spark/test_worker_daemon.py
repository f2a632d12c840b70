from __future__ import annotations

import json
import subprocess
import sys

NEEDED = ("pandas", "pulsar_txn_spark.spark.sink.task", "pulsar_txn_spark.spark.source.task")
CODE = f"""
import sys
import pulsar_txn_spark.spark.worker_daemon
print([name for name in {NEEDED} if name not in sys.modules])
"""
DRAWS = """
import json, os, random
import numpy as np
import pulsar_txn_spark.spark.worker_daemon
for _ in range(2):
    if os.fork() == 0:
        print(json.dumps([np.random.random(), random.random()]), flush=True)
        os._exit(0)
    os.wait()
"""


def test_the_daemon_imports_what_tasks_need_and_starts_nothing_by_its_import() -> None:
    ran = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.returncode) == ("[]\n", 0), ran.stderr


def test_no_two_workers_draw_the_same_random_numbers() -> None:
    ran = subprocess.run([sys.executable, "-c", DRAWS], capture_output=True, text=True, check=True)
    first, second = (json.loads(line) for line in ran.stdout.splitlines())
    assert not set(first) & set(second)
