"""Compression of an entry's payload, as Pulsar numbers and frames it; the codecs are Arrow's."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import pyarrow as pa

from pulsar_txn_spark.backends.pulsar.wire.frames import FrameError

NUMBERS: Mapping[str, int] = {"NONE": 0, "LZ4": 1, "ZLIB": 2, "ZSTD": 3, "SNAPPY": 4}
"""Name, as in ``pulsar.producer.compressionType``, -> number in an entry's metadata."""

MAX_PAYLOAD_BYTES = 256 * 1024 * 1024
"""Bound on what a payload may claim to be when it is unpacked; entries are a few MiB."""

_LZ4, _ZLIB, _SNAPPY = 1, 2, 4
_CODECS = {1: "lz4_raw", 3: "zstd", 4: "snappy"}  # blocks without a container; zstd is a frame


def compress(payload: bytes, number: int) -> bytes:
    """Return the payload compressed with the codec of that number."""
    if number == 0:
        return payload
    if number == _ZLIB:
        return zlib.compress(payload)
    packed: bytes = pa.Codec(_CODECS[number]).compress(payload, asbytes=True)
    return packed


def decompress(payload: bytes | memoryview, number: int, size: int) -> bytes:
    """Return the payload unpacked; `size` is what the entry's metadata claims it to be.

    Raises
    ------
    FrameError
        If the codec is not known, or the payload does not unpack to just that size.
    """
    if number == 0:
        return bytes(payload)
    if size > MAX_PAYLOAD_BYTES:
        raise FrameError(
            f"expected an entry of at most {MAX_PAYLOAD_BYTES} bytes unpacked, found one that "
            f"claims {size}: it would not fit into memory"
        )
    if number != _ZLIB and number not in _CODECS:
        raise FrameError(
            f"expected a compression out of {dict(NUMBERS)}, found number {number}: it was written "
            "by a newer client; read it with the transport 'client'"
        )
    if size == 0:
        return b""
    try:
        if number == _ZLIB:
            # One byte more than claimed, so that a longer one is noticed and none is unbounded.
            unpacked = zlib.decompressobj().decompress(payload, size + 1)
        else:
            unpacked = _unpack(bytes(payload), number, size)
    except (zlib.error, OSError, ValueError) as damaged:
        raise FrameError(f"an entry cannot be unpacked: {damaged}; it is damaged") from None
    if len(unpacked) != size:
        raise FrameError(f"expected an entry of {size} bytes unpacked, found {len(unpacked)}")
    return unpacked


def _unpack(payload: bytes, number: int, size: int) -> bytes:
    codec = pa.Codec(_CODECS[number])
    unpacked: bytes = codec.decompress(payload, decompressed_size=size, asbytes=True)
    # Arrow returns as many bytes as were asked for, also where fewer were packed: the rest would
    # be whatever stood in memory before.
    if number == _SNAPPY:
        real = _leading_varint(payload)
    elif number == _LZ4 and _fits(codec, payload, size - 1):
        real = size - 1  # or fewer: a block does not say how long it is
    else:
        real = size
    if real != size:
        raise ValueError(f"it claims {size} bytes and holds {real} or fewer")
    return unpacked


def _fits(codec: pa.Codec, payload: bytes, size: int) -> bool:
    try:
        codec.decompress(payload, decompressed_size=size)
    except OSError:
        return False
    return True


def _leading_varint(payload: bytes) -> int:
    """Return the length that a snappy block begins with."""
    number = 0
    for place, byte in enumerate(payload[:5]):
        number |= (byte & 0x7F) << 7 * place
        if not byte & 0x80:
            break
    return number
