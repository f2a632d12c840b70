"""The option ``options.file``: one file that says how to connect, and is shown nowhere."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from pulsar_txn_spark.errors import OptionError
from pulsar_txn_spark.options import Options, Use

SECRET = "hunter2"
READ = Use.READ | Use.STREAM


def file_of(folder: Path, text: str, mode: int = 0o600) -> str:
    file = folder / "connection.properties"
    file.write_text(text)
    file.chmod(mode)
    return str(file)


def test_the_options_of_a_file_take_the_place_of_its_name(tmp_path: Path) -> None:
    text = f"store.url = redis://h:1\nstore.PASSWORD = {SECRET}\nstore.timeoutMs = 7000\n"
    file = file_of(tmp_path, text)
    options = Options({"Options.File": file, "topic": "t", "store.timeoutMs": "9000"}, READ)
    assert (options.store.url, options.store.password) == ("redis://h:1", SECRET)
    assert options.get("store.timeoutMs") == 9000, "what a query names prevails"
    assert SECRET not in repr(options)
    Path(file).unlink()
    # A task takes what the driver has read: the file is on the driver's machine.
    assert pickle.loads(pickle.dumps(options)).store.password == SECRET


def test_what_a_query_names_also_replaces_what_conflicts_with_it(tmp_path: Path) -> None:
    file = file_of(tmp_path, "store.url = redis://h:1\n")
    options = Options({"options.file": file, "store.path": "/x", "topic": "t"}, READ)
    assert (options.store.url, options.store.path) == (None, "/x")


@pytest.mark.parametrize(
    "text,mode,words",
    [
        (f"store.password = {SECRET}", 0o644, "every user of this machine may read it"),
        (SECRET, 0o600, "line 1: expected KEY=VALUE"),
        (f"topic = {SECRET}", 0o600, "holds 'topic', expected only options that say how to"),
        (f"options.file = {SECRET}", 0o600, "holds 'options.file'"),
        (f"store.pasword = {SECRET}", 0o600, "did you mean 'store.password'"),
        (f"store.url = http://me:{SECRET}@h", 0o600, "'store.url'"),
    ],
)
def test_a_file_that_cannot_be_taken_is_refused_without_its_text(
    tmp_path: Path, text: str, mode: int, words: str
) -> None:
    with pytest.raises(OptionError, match=words) as caught:
        Options({"options.file": file_of(tmp_path, text, mode), "topic": "t"}, READ)
    assert SECRET not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"'options\.file': .*nowhere cannot be read: No such"):
        Options({"options.file": str(tmp_path / "nowhere"), "topic": "t"}, READ)
