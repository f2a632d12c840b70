"""The demo's exit code, without a demo."""

from __future__ import annotations

from pathlib import Path

import pytest

from demo import __main__ as demo
from demo.run import Run


@pytest.mark.parametrize("exact, code", [(True, 0), (False, 1)])
def test_the_exit_code_tells_whether_everything_is_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exact: object, code: int
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(Run, "carry_out", lambda _run: exact)
    assert demo.main([]) == code
    assert bool(list(tmp_path.iterdir())) is not exact, "logs are kept after a failure only"
