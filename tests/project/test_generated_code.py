"""The checked-in protobuf code is what `make proto` makes of the checked-in schema."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCHEMAS = sorted(
    str(path.relative_to(ROOT)) for path in (ROOT / "pulsar_txn_spark").rglob("*.proto")
)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_generated_protobuf_code_is_up_to_date_with_its_schema(schema: str, tmp_path: Path) -> None:
    run = subprocess.run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc", "-I."),
            *(f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", schema),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    stem = schema.removesuffix(".proto") + "_pb2"
    for generated in (f"{stem}.py", f"{stem}.pyi"):
        assert (ROOT / generated).read_text() == (tmp_path / generated).read_text(), (
            f"{generated} does not fit {schema}; run: make proto"
        )
