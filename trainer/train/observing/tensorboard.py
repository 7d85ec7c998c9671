"""Write TensorBoard's event files without TensorBoard: a file is a sequence of records, each one small
protobuf message.

Only viewing needs the package: `tensorboard --logdir OUT/observed/tensorboard`.

Formats, looked up 2026-11-21: record = length (8 B), masked CRC-32C of it, data, masked CRC-32C of that
(tensorflow/core/lib/io/record_writer.cc); data = Event {1 wall_time double, 2 step int64, 3 file_version
string, 5 summary {1 value {1 tag string, 2 simple_value float}}} (tensorboard/compat/proto/event.proto and
summary.proto).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path

from trainer.base.files import append_whole

_CASTAGNOLI = 0x82F63B78  # CRC-32C's polynomial, bits reversed
_MASK = 0xA282EAD8
_MOST_FLOAT32 = (2 - 2**-23) * 2.0**127


def _table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_CASTAGNOLI if value & 1 else 0)
        table.append(value)
    return tuple(table)


_CRC_TABLE = _table()


class ScalarFile:
    """One run's scalars, in a file in `folder`. It is opened for each append, so that hundreds of models hold
    no file open. Raises OSError where the disk is full.
    """

    def __init__(self, folder: Path, *, now: float, suffix: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"events.out.tfevents.{int(now)}.{suffix}"
        self._head = _record(_double(1, now) + _bytes(3, b"brain.Event:2"))  # readers expect it first

    def add(self, scalars: Mapping[str, float], *, step: int, now: float) -> None:
        """Append one point of each scalar. `now` is seconds since 1970."""
        values = b"".join(
            _bytes(1, _bytes(1, tag.encode()) + _key(2, 5) + _float(value)) for tag, value in scalars.items()
        )
        record = _record(_double(1, now) + _key(2, 0) + _varint(step) + _bytes(5, values))
        append_whole(self._path, self._head + record)
        self._head = b""


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _masked_crc(length) + data + _masked_crc(data)


def _masked_crc(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF)


def _key(number: int, kind: int) -> bytes:
    return bytes((number << 3 | kind,))


def _double(number: int, value: float) -> bytes:
    return _key(number, 1) + struct.pack("<d", value)


def _float(value: float) -> bytes:
    """Return a float32; infinity for a number that is too large for one, which `struct` refuses."""
    return struct.pack("<f", value if abs(value) <= _MOST_FLOAT32 else math.copysign(math.inf, value))


def _bytes(number: int, value: bytes) -> bytes:
    return _key(number, 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))
