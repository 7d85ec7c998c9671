"""Checksums as S3 writes them, and AWS's common runtime (awscrt), which computes CRC64NVME."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_RUNTIME = "awscrt"


def sha256_sum(sha256: str) -> str:
    """Return a SHA-256, in hexadecimal digits, as S3 writes it."""
    return base64.b64encode(bytes.fromhex(sha256)).decode()


def crc64nvme(block: bytes) -> str:
    """Return the CRC64NVME of bytes as S3 writes it."""
    from awscrt import checksums  # late: 50 ms

    return base64.b64encode(checksums.crc64nvme(block).to_bytes(8)).decode()


@contextmanager
def without_runtime() -> Iterator[None]:
    """Keep botocore, which is imported in the block, from the common runtime. It would load all of it, 45 ms
    in each command, and sign by it.
    """
    is_hidden = _RUNTIME not in sys.modules and "botocore.compat" not in sys.modules
    if is_hidden:
        sys.modules[_RUNTIME] = None  # type: ignore[assignment]  # an import of it fails, as if it were missing
    try:
        yield
    finally:
        if is_hidden:
            del sys.modules[_RUNTIME]
