"""Secrets in whatever a command prints or tells, however they are spelled."""

from __future__ import annotations

import io
import os
from urllib.parse import quote

import pytest

from trainer.node.redaction import RedactedStream, Redaction

KEY = "k3y/with+signs"
SECRETS = {"API_KEY": KEY, "PEM": "-----BEGIN-----\nMIIEvQ\n-----END-----"}


@pytest.mark.parametrize(
    "text",
    [
        "k3y/with+signs",
        quote("k3y/with+signs"),
        quote("k3y/with+signs", safe=""),
        "a line: MIIEvQ",
        r"-----BEGIN-----\nMI",
    ],
)
def test_a_secret_is_left_out_however_it_is_spelled(text: str) -> None:
    made = Redaction(SECRETS)
    said = made.redacted(f"GET /bars?key={text}&x=1")
    assert said.startswith("GET /bars?key=") and ("[API_KEY]" in said or "[PEM]" in said)
    assert "signs" not in said and "MIIEvQ" not in said
    assert made.redacted_bytes(f"GET /bars?key={text}&x=1".encode()) == said.encode()


@pytest.mark.parametrize("block", range(1, 40))
def test_a_secret_that_begins_with_another_is_left_out_whole(block: int) -> None:
    """Wherever a long line is cut, such as a progress bar without an end."""
    made = Redaction({"USER": "admin", "PASSWORD": "admin-2024-hunter"})
    with RedactedStream(io.BytesIO(b"as admin with admin-2024-hunter, and on"), made) as stream:
        said = b"".join(iter(lambda: stream.readline(block), b""))
    assert said == b"as [USER] with [PASSWORD], and on"


def test_a_secret_of_the_environment_may_be_any_bytes() -> None:
    made = Redaction({"KEY": os.fsdecode(b"caf\xe9-9")})
    assert made.redacted_bytes(b"key caf\xe9-9, key caf%E9-9") == b"key [KEY], key [KEY]"
