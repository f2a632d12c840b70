"""The standard streams of a command: what cannot be written to them, and lines of the log."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any, TextIO, cast


class OutputError(Exception):
    """Standard output takes nothing more, and not because its reader has gone."""


@contextmanager
def standard_streams() -> Iterator[None]:
    """Prepare the streams for a command.

    Raises
    ------
    OutputError
        If standard output cannot be written, for example because the disk is full.
    """
    _open_closed()
    for stream in (sys.stdout, sys.stderr):
        # A character that a terminal does not know must not end a command that has done its work.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    if logging.lastResort is not None:  # prints what is logged, as nothing here sets up logging
        logging.lastResort.setFormatter(_LogLine())
    before, errors = sys.stdout, sys.stderr
    sys.stdout = output = cast("TextIO", _Output(before))
    try:
        yield
    finally:
        if sys.stdout is output:  # not what Typer has put in front of a broken pipe
            sys.stdout = before
        for stream in (before, errors):
            try:
                stream.flush()
            except OSError:
                # What is left in its buffer would be an exit code of its own when Python ends.
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _open_closed() -> None:
    """Open each standard stream that is closed on the null device.

    Else the next file or socket would be it, and an output without a stream would be an error.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # it is the lowest that is free, so that `open` takes it
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(null, mode, encoding="utf-8", closefd=False))


class _Output:
    """Standard output, whose errors are known from those of other files and of sockets.

    Parameters
    ----------
    stream : TextIO
        Or the bytes below it.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def buffer(self) -> _Output:
        """The bytes below, to which Click writes where the encoding is ASCII."""
        return _Output(self._stream.buffer)

    def write(self, text: Any) -> Any:
        """Write a text, or bytes."""
        with _output_errors():
            return self._stream.write(text)

    def flush(self) -> None:
        """Write what is buffered."""
        with _output_errors():
            self._stream.flush()


@contextmanager
def _output_errors() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"the output cannot be written: {error.strerror or error}") from error


class _LogLine(logging.Formatter):
    """A line of the log as a line of the command: ``warning: ...``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the message behind its level."""
        return f"{record.levelname.lower()}: {super().format(record)}"
