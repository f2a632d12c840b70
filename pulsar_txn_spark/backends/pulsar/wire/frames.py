"""Frames of Pulsar's binary protocol: bytes to commands and entries and back, without any I/O.

A frame is ``[size 4][command size 4][command]``. A command with an entry is followed by
``[0x0e01][CRC32-C 4][metadata size 4][metadata][payload]``. Before that a broker may send
``[0x0e02][size 4][broker's metadata]``. All numbers are big-endian; a size does
not count itself; the checksum covers everything behind it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import google_crc32c
from google.protobuf.message import DecodeError

from pulsar_txn_spark.backends.pulsar.pulsar_pb2 import BaseCommand, MessageMetadata
from pulsar_txn_spark.errors import SegmentLogError

CHECKSUM_MAGIC = 0x0E01
BROKER_METADATA_MAGIC = 0x0E02
FRAME_PADDING_BYTES = 10 * 1024
"""What a frame may hold beyond the broker's largest message: its metadata and the command."""

_SIZE = struct.Struct(">I")
_MAGIC = struct.Struct(">H")
_FRAME = struct.Struct(">II")
_CHECKED = struct.Struct(">HI")


class FrameError(SegmentLogError):
    """What came is not Pulsar's protocol, or was damaged on its way."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A command, and the bytes behind it (empty where it carries no entry)."""

    command: BaseCommand
    body: bytes


def encode_command(command: BaseCommand) -> bytes:
    """Return the frame of a command that carries no entry."""
    encoded = command.SerializeToString()
    return _FRAME.pack(len(encoded) + 4, len(encoded)) + encoded


def encode_send(command: BaseCommand, metadata: MessageMetadata, payload: bytes) -> list[bytes]:
    """Return the frame of a SEND in pieces; the payload is not copied."""
    encoded, header = command.SerializeToString(), metadata.SerializeToString()
    checked = _SIZE.pack(len(header)) + header
    checksum = google_crc32c.extend(google_crc32c.value(checked), payload)
    size = 4 + len(encoded) + _CHECKED.size + len(checked) + len(payload)
    front = _FRAME.pack(size, len(encoded)) + encoded + _CHECKED.pack(CHECKSUM_MAGIC, checksum)
    return [front + checked, payload]


def decode_entry(body: bytes) -> tuple[MessageMetadata, memoryview]:
    """Split what is behind a MESSAGE command into the entry's metadata and payload.

    Raises
    ------
    FrameError
        If the checksum does not fit, or the parts do not fit into the frame.
    """
    at = 0
    if len(body) >= _MAGIC.size and _MAGIC.unpack_from(body)[0] == BROKER_METADATA_MAGIC:
        at = _MAGIC.size + _SIZE.size + _number(body, _MAGIC.size, "the broker's metadata")
    if len(body) < at + _CHECKED.size:
        raise FrameError(
            f"expected an entry of at least {at + _CHECKED.size} bytes, found {len(body)}: it was "
            "cut off; nothing of it is used"
        )
    magic, expected = _CHECKED.unpack_from(body, at)
    if magic != CHECKSUM_MAGIC:
        raise FrameError(
            f"expected an entry with a checksum (magic {CHECKSUM_MAGIC:#06x}), found {magic:#06x}: "
            "its bytes cannot be verified, so none of them is used"
        )
    at += _CHECKED.size
    checksum = google_crc32c.value(body[at:])  # it takes bytes only, no view
    if checksum != expected:
        raise FrameError(
            f"expected an entry with the checksum {expected:#010x}, found {checksum:#010x}: it was "
            "damaged on its way or in the log. Nothing of it is used, try again"
        )
    size = _number(body, at, "the entry's metadata")
    at += _SIZE.size
    metadata = MessageMetadata()
    try:
        metadata.ParseFromString(body[at : at + size])
    except (DecodeError, UnicodeDecodeError):
        raise FrameError("the metadata of an entry is not the protobuf message expected") from None
    return metadata, memoryview(body)[at + size :]


def _number(body: bytes, at: int, what: str) -> int:
    left = len(body) - at - _SIZE.size
    size: int = _SIZE.unpack_from(body, at)[0] if left >= 0 else 1
    if size > left:
        raise FrameError(f"expected {size} bytes of {what}, found {max(left, 0)}: it was cut off")
    return size


class FrameParser:
    """Cuts a stream of bytes into frames; holds one incomplete frame at most.

    Parameters
    ----------
    max_frame_bytes : int
        A larger frame is refused as soon as its size is known, before it is gathered.
    """

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._buffered = bytearray()
        self._broken: FrameError | None = None

    @property
    def buffered_bytes(self) -> int:
        """Return how much of an incomplete frame is buffered."""
        return len(self._buffered)

    def feed(self, data: bytes | memoryview) -> Iterator[Frame]:
        """Yield the frames that `data` completes.

        Raises
        ------
        FrameError
            If the stream is not Pulsar's protocol; the parser is of no use afterwards.
        """
        if self._broken is not None:
            raise self._broken
        self._buffered += data
        at = 0
        try:
            while len(self._buffered) - at >= _SIZE.size:
                size = self._frame_size(at)
                if len(self._buffered) - at - _SIZE.size < size:
                    break
                frame = _frame(bytes(memoryview(self._buffered)[at + 4 : at + 4 + size]))
                at += _SIZE.size + size
                yield frame
        except FrameError as broken:
            self._broken = broken
            raise
        finally:
            del self._buffered[:at]

    def _frame_size(self, at: int) -> int:
        size: int = _SIZE.unpack_from(self._buffered, at)[0]
        if not _SIZE.size < size <= self.max_frame_bytes:
            raise FrameError(
                f"expected a frame of {_SIZE.size + 1} to {self.max_frame_bytes} bytes, found one "
                f"of {size}: what answers is no Pulsar broker, or speaks TLS where none is "
                "expected. Check service.url"
            )
        return size


def _frame(content: bytes) -> Frame:
    size = _number(content, 0, "a command")
    command = BaseCommand()
    try:
        command.ParseFromString(content[4 : 4 + size])
    except DecodeError:
        raise FrameError("a command is not the protobuf message expected") from None
    return Frame(command, content[4 + size :])
