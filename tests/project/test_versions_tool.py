"""The table of versions says what came of each cell, also of one that died."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from integration.support.version_cell import PARTS
from tools import versions
from tools.versions import BEGIN, END, Cells, Outcome, interpreters, shown, table, write

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


def outcome(part: str, *, ok: bool = True) -> Outcome:
    return Outcome(part, ok=ok, note="", seconds=1.0)


def test_a_cell_names_the_parts_that_failed() -> None:
    assert shown([outcome("batch"), outcome("stream")]) == "2"
    assert shown([outcome(part) for part in PARTS]) == f"all {len(PARTS)}"
    found = [outcome("batch"), outcome("stream", ok=False), outcome("kills", ok=False)]
    assert shown(found) == "1 of 3; not stream, kills"


def test_the_table_is_put_between_its_marks(tmp_path: Path) -> None:
    results: versions.Results = {
        f"{pyspark} {python}": {"day": "2026-01-02", "text": f"{pyspark}/{python}"}
        for pyspark in versions.PYSPARKS
        for python in versions.PYTHONS
    }
    del results["4.3.0 3.14"]
    results["4.0.0 3.11"]["day"] = "2026-01-01"
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{BEGIN}\n\nold\n\n{END}\n\nafter\n")
    write(page, table(results))
    text = page.read_text()
    assert text.startswith(f"before\n\n{BEGIN}\n\nRun since 2026-01-01 ")
    assert text.endswith(f" |\n\n{END}\n\nafter\n")
    assert "old" not in text
    assert "| 4.0.0 | 4.0.0/3.10 | 4.0.0/3.11 |" in text
    assert "4.3.0/3.13 | not run |" in text
    with pytest.raises(SystemExit, match="no place for the table"):
        write(Path(__file__).with_name("test_words.py"), "x")


def test_an_interpreter_of_another_version_is_refused() -> None:
    assert interpreters([f"{HERE}={sys.executable}"])[HERE] == Path(sys.executable)
    with pytest.raises(SystemExit, match=r"is not Python 3\.10"):
        interpreters([f"3.10={sys.executable}"])


def test_a_cell_with_one_jvm_keeps_the_classes_that_later_ones_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = tmp_path / "cell.py"
    cell.write_text(
        "import json, os, pathlib, re, sys\n"
        "options = os.environ['SPARK_SUBMIT_OPTS']\n"
        "kept = re.search('ArchiveClassesAtExit=([^\"]+)', options)\n"
        "if kept: pathlib.Path(kept[1]).write_bytes(b'classes')\n"
        "for part in sys.argv[2:]:\n"
        "    print(json.dumps({'part': part, 'ok': True, 'note': options, 'seconds': 1}))\n"
    )
    monkeypatch.setattr(versions, "CELL", cell)
    monkeypatch.setattr(Cells, "environment", lambda *_: Path(sys.executable))
    cells = Cells(tmp_path / "cells", {})
    notes = [
        cells.run("4.0.0", HERE, parts)[0].note
        for parts in (PARTS, versions.CORE, versions.CORE, PARTS)
    ]
    assert ["ArchiveClassesAtExit" in note for note in notes] == [False, True, False, False]
    assert ["SharedArchiveFile" in note for note in notes] == [False, False, True, True]
    [archive] = (tmp_path / "cells").glob("*.jsa")
    assert archive.read_bytes() == b"classes"
    assert str(archive) in notes[2]


def test_a_part_of_a_cell_that_died_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = tmp_path / "cell.py"
    cell.write_text(
        "import sys\n"
        'print(\'{"part": "batch", "ok": true, "note": "", "seconds": 1}\', flush=True)\n'
        "sys.exit('it died')\n"
    )
    monkeypatch.setattr(versions, "CELL", cell)
    monkeypatch.setattr(Cells, "environment", lambda *_: Path(sys.executable))
    found = Cells(tmp_path / "cells", {}).run("4.0.0", HERE, ["batch", "stream"])
    assert [(one.part, one.ok) for one in found] == [("batch", True), ("stream", False)]
    assert "it died" in found[1].note


@pytest.mark.slow
def test_a_cell_that_takes_too_long_is_stopped_with_what_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell, mark = tmp_path / "cell.py", tmp_path / "ended"
    cell.write_text(
        "import pathlib, signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))\n"
        'print(\'{"part": "batch", "ok": true, "note": "", "seconds": 1}\', flush=True)\n'
        "try:\n"
        "    signal.pause()\n"
        "finally:\n"
        f"    pathlib.Path({str(mark)!r}).touch()\n"
    )
    monkeypatch.setattr(versions, "CELL", cell)
    monkeypatch.setattr(versions, "CELL_SECONDS", 3)
    monkeypatch.setattr(Cells, "environment", lambda *_: Path(sys.executable))
    found = Cells(tmp_path / "cells", {}).run("4.0.0", HERE, ["batch", "stream"])
    assert [(one.part, one.ok) for one in found] == [("batch", True), ("stream", False)]
    assert found[1].note == "the cell was stopped after 3 s"
    assert mark.exists()
