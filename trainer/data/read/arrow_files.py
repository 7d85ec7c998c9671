"""Read Arrow IPC files: Feather of version 2 (`.feather`), and Arrow files and streams (`.arrow`).

A file is read as the stream that it contains (Arrow columnar format, "IPC file format": the magic, the
stream, a footer; https://arrow.apache.org/docs/format/Columnar.html, read 2026-11-27), so that what is
bounded is what is read: the messages are walked first, and their rows and unpacked sizes refused as those of
a parquet file are. The headers of messages are read here, since pyarrow does not show them; a damaged one is
a ValueError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from trainer.data.read.bounds import MOST_COLUMNS, MOST_ROWS, refuse_much, refuse_types

ARROW_SUFFIXES = (".feather", ".arrow")
_MAGIC, _MAGIC_BYTES, _FEATHER_1 = b"ARROW1", 8, b"FEA1"
_BATCH, _DICTIONARY = "record batch", "dictionary"
_MOST_MESSAGES = 1_000_000


def is_arrow(path: Path) -> bool:
    """Return whether a file's suffix is that of an Arrow file."""
    return path.suffix.lower() in ARROW_SUFFIXES


def arrow_schema(path: Path) -> pa.Schema:
    """Return a file's schema once its size is checked. Raises DataError if it is too large; pyarrow's errors,
    and ValueError, for a malformed file.
    """
    stream = _stream(path)
    with pa.ipc.open_stream(stream) as reader:
        schema = reader.schema
    if len(schema.names) > MOST_COLUMNS:
        raise ValueError(f"it has {len(schema.names):,} columns")
    rows, size = _contents(stream)
    if rows > MOST_ROWS:
        raise ValueError(f"it has {rows:,} rows")
    refuse_much(path, rows=rows, text=size)
    return schema


def arrow_rows(path: Path) -> int:
    """Return the number of a file's rows. Raises as `arrow_schema`."""
    return _contents(_stream(path))[0]


def arrow_batches(path: Path, names: Sequence[str], *, rows: int = 0) -> Iterator[pa.RecordBatch]:
    """Yield columns by their names, in this order, in parts of at most so many rows (0: as they are stored).
    Raises as `arrow_schema`, and DataError for a column whose values are no numbers, texts or times.
    """
    schema = arrow_schema(path)
    refuse_types(path, schema, names)
    wanted = sorted({schema.get_field_index(name) for name in names})
    options = pa.ipc.IpcReadOptions(included_fields=wanted, use_threads=False)
    with pa.ipc.open_stream(_stream(path), options=options) as reader:
        for batch in reader:
            batch.validate(full=True)  # offsets of texts may point anywhere
            batch = batch.select(list(names))
            step = rows or max(1, batch.num_rows)
            for start in range(0, batch.num_rows, step):
                yield batch.slice(start, step)


def arrow_table(path: Path, names: Sequence[str]) -> pa.Table:
    """Return columns by their names as one table, with the file's metadata. Raises as `arrow_batches`."""
    schema = arrow_schema(path)
    refuse_types(path, schema, names)
    fields = pa.schema([schema.field(name) for name in names], metadata=schema.metadata)
    return pa.Table.from_batches(list(arrow_batches(path, names)), schema=fields)


def _stream(path: Path) -> pa.Buffer:
    """Return the stream in a file, mapped into memory."""
    content = pa.memory_map(str(path)).read_buffer()
    begin = bytes(content[:_MAGIC_BYTES])
    if begin.startswith(_FEATHER_1):
        raise ValueError("it is Feather of version 1: write it with version 2, the default since 2020")
    return content[_MAGIC_BYTES:] if begin.startswith(_MAGIC) else content


def _contents(stream: pa.Buffer) -> tuple[int, int]:
    """Return the rows of a stream, and the bytes of its columns when unpacked."""
    rows = size = 0
    for number, message in enumerate(pa.ipc.MessageReader.open_stream(stream)):
        if number > _MOST_MESSAGES:
            raise ValueError(f"it has more than {_MOST_MESSAGES:,} parts")
        if message.type in (_BATCH, _DICTIONARY):
            length, unpacked = _batch(bytes(message.metadata), message.body, message.type)
            rows += length if message.type == _BATCH else 0
            size += unpacked
    return rows, size


def _batch(metadata: bytes, body: pa.Buffer, kind: str) -> tuple[int, int]:
    """Return the rows of a batch, or of a dictionary, and the bytes of its buffers when unpacked: each packed
    buffer begins with its size (Message.fbs and Schema.fbs of Arrow's format).
    """
    header = _Table(metadata, _Table.root(metadata)).table(2)
    batch = header if kind == _BATCH else header.table(1)
    length = batch.long(0)
    if length < 0:
        raise ValueError(f"it has a part of {length} rows")
    if not batch.has(3):
        return length, body.size
    unpacked = 0
    for offset, packed in batch.pairs(2):
        if not packed:
            continue
        if offset < 0 or packed < 8 or offset + packed > body.size:
            raise ValueError("a column lies outside of it")
        (size,) = struct.unpack("<q", bytes(body[offset : offset + 8]))
        unpacked += packed if size == -1 else size  # -1: this one is not packed
        if size < -1:
            raise ValueError("a column has no size")
    return length, unpacked


class _Table:
    """A table of a flatbuffer: its fields by number, each checked to lie in the message."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        fields = at - self._read("<i", at)
        self._fields = fields
        self._count = (self._read("<H", fields) - 4) // 2

    @staticmethod
    def root(data: bytes) -> int:
        """Return where the first table begins."""
        if len(data) < 4:
            raise ValueError("a part of it has no header")
        return int(struct.unpack_from("<I", data, 0)[0])

    def has(self, field: int) -> bool:
        """Return whether a field is there."""
        return self._offset(field) > 0

    def long(self, field: int) -> int:
        """Return a whole number, 0 where the field is missing."""
        offset = self._offset(field)
        return self._read("<q", self._at + offset) if offset else 0

    def table(self, field: int) -> _Table:
        """Return a table. Raises ValueError if the field is missing."""
        return _Table(self._data, self._target(field))

    def pairs(self, field: int) -> list[tuple[int, int]]:
        """Return a vector of pairs of whole numbers; [] where the field is missing."""
        if not self.has(field):
            return []
        begin = self._target(field)
        count = self._read("<I", begin)
        if begin + 4 + 16 * count > len(self._data):
            raise ValueError("a part of it lists columns outside of its header")
        numbers = struct.unpack_from(f"<{2 * count}q", self._data, begin + 4)
        return list(zip(numbers[::2], numbers[1::2], strict=True))

    def _target(self, field: int) -> int:
        offset = self._offset(field)
        if not offset:
            raise ValueError("a part of it lacks its header")
        return self._at + offset + self._read("<I", self._at + offset)

    def _offset(self, field: int) -> int:
        return self._read("<H", self._fields + 4 + 2 * field) if field < self._count else 0

    def _read(self, form: str, at: int) -> int:
        if at < 0 or at + struct.calcsize(form) > len(self._data):
            raise ValueError("a part of it points outside of its header")
        return int(struct.unpack_from(form, self._data, at)[0])
