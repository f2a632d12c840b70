"""Archives of classes: made once, by one process, and never needed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pulsar_txn_spark.testing.class_archive import shared_classes

SHARED, DUMPED = "-XX:SharedArchiveFile=", "-XX:ArchiveClassesAtExit="
Load = Callable[[Sequence[str]], None]


def path_in(options: Sequence[str], name: str) -> Path:
    (path,) = [option.removeprefix(name) for option in options if option.startswith(name)]
    return Path(path)


def dump(options: Sequence[str]) -> None:
    """Stand for a JVM that writes its archive when it ends."""
    path_in(options, DUMPED).write_text("classes")


def must_not_load(_options: Sequence[str]) -> None:
    raise AssertionError("there is an archive")


def shared(folder: Path, load: Load, java: str = "17") -> tuple[str, ...]:
    return shared_classes(folder, "broker", [java, "a.jar"], load)


def test_the_options_name_the_archive_that_was_made(tmp_path: Path) -> None:
    assert path_in(shared(tmp_path, dump), SHARED).read_text() == "classes"


def test_an_archive_is_made_once_and_again_when_it_was_deleted(tmp_path: Path) -> None:
    options = shared(tmp_path, dump)
    assert shared(tmp_path, must_not_load) == options
    path_in(options, SHARED).unlink()
    assert shared(tmp_path, dump) == options
    assert path_in(options, SHARED).exists()


def test_the_archive_of_another_java_is_replaced(tmp_path: Path) -> None:
    other_name = shared_classes(tmp_path, "client", ["17"], dump)
    old, new = (path_in(shared(tmp_path, dump, java), SHARED) for java in ("17", "21"))
    assert not old.exists()
    assert new.exists()
    assert path_in(other_name, SHARED).exists()


def fail(_options: Sequence[str]) -> None:
    raise OSError("no memory")


def make_nothing(_options: Sequence[str]) -> None:
    """Stand for a JVM that cannot write archives."""


@pytest.mark.parametrize("load", [fail, make_nothing])
def test_without_an_archive_there_are_no_options_and_it_is_tried_once_a_day(
    tmp_path: Path, load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shared(tmp_path, load) == ()
    assert "No archive of classes for broker" in capsys.readouterr().err
    assert shared(tmp_path, must_not_load) == ()
    (failure,) = tmp_path.glob("*.failure")
    os.utime(failure, (0, 0))
    assert path_in(shared(tmp_path, dump), SHARED).exists()


def test_half_of_an_archive_is_none(tmp_path: Path) -> None:
    def die(options: Sequence[str]) -> None:
        dump(options)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shared(tmp_path, die)
    assert path_in(shared(tmp_path, dump), SHARED).exists()


def test_a_folder_that_cannot_be_written_to_has_no_archive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    no_folder = tmp_path / "file"
    no_folder.touch()
    assert shared(no_folder, must_not_load) == ()
    assert "No archive of classes for broker" in capsys.readouterr().err


def test_one_makes_it_and_the_others_wait(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slowly(options: Sequence[str]) -> None:
        begun.set()
        assert go_on.wait(30)
        dump(options)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(shared, tmp_path, slowly)
        assert begun.wait(30)
        second = pool.submit(shared, tmp_path, must_not_load)
        go_on.set()
        assert first.result() == second.result() != ()
