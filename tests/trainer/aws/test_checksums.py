"""Checksums as S3 writes them, and the common runtime that botocore does not load."""

from __future__ import annotations

import hashlib
import subprocess
import sys

from trainer.aws.checksums import crc64nvme, sha256_sum

PROGRAM = """
import sys
from trainer.aws.access import Access
Access(region="eu-central-1", endpoint_url="http://127.0.0.1:1", access_key="a", secret_key="b").client("s3")
from botocore import compat
print(compat.HAS_CRT, [name for name in sys.modules if "awscrt" in name])
from trainer.aws.checksums import crc64nvme
print(crc64nvme(b"123456789"))
"""


def test_sums_are_those_of_their_definitions() -> None:
    # "check" of CRC-64/NVME in the catalogue of parametrised CRC algorithms: AE8B14860A799888
    assert crc64nvme(b"123456789") == "rosUhgp5mIg=" and crc64nvme(b"") == "AAAAAAAAAAA="
    empty = hashlib.sha256(b"").hexdigest()
    assert sha256_sum(empty) == "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="


def test_botocore_loads_no_common_runtime_and_ours_does_later() -> None:
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, timeout=300
    ).stdout
    assert told.splitlines() == ["False []", "rosUhgp5mIg="]
