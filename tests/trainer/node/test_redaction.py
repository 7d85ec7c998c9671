"""A script's output in the log: without secrets, in lines, and not without end."""

from __future__ import annotations

import io
import logging
import os
from urllib.parse import quote

import pytest

from trainer.node import redaction
from trainer.node.redaction import MOST_LINE, Redaction

KEY = "k3y/with+signs"
SECRETS = {"API_KEY": KEY, "PEM": "-----BEGIN-----\nMIIEvQ\n-----END-----"}


def logged(text: bytes, caplog: pytest.LogCaptureFixture) -> str:
    made = Redaction(SECRETS)
    with caplog.at_level(logging.INFO), made.follow(io.BytesIO(text), logging.getLogger("trainer.node")):
        pass
    return "\n".join(record.getMessage() for record in caplog.records)


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
def test_a_secret_is_left_out_however_it_is_spelled(text: str, caplog: pytest.LogCaptureFixture) -> None:
    said = logged(f"GET /bars?key={text}&x=1\n".encode(), caplog)
    assert said.startswith("refresh: GET /bars?key=") and ("[API_KEY]" in said or "[PEM]" in said)
    assert "signs" not in said and "MIIEvQ" not in said


def test_the_last_line_is_kept_for_the_error_without_secrets() -> None:
    made = Redaction(SECRETS)
    with made.follow(
        io.BytesIO(b"Traceback ...\nKeyError: 'k3y/with+signs'\n\n"), logging.getLogger("trainer.node")
    ):
        pass
    assert made.last_line == "KeyError: '[API_KEY]'"


def test_a_line_without_end_is_cut_and_no_secret_shows_at_the_cut(caplog: pytest.LogCaptureFixture) -> None:
    for shift in range(len(SECRETS["API_KEY"])):
        caplog.clear()
        said = logged(
            b"x" * (MOST_LINE - shift) + SECRETS["API_KEY"].encode() + b"y" * 3 * MOST_LINE + b"\nnext\n",
            caplog,
        )
        first, last = said.splitlines()
        assert set(first.removeprefix("refresh: ")) == {"x"} and last == "refresh: next"


def test_a_script_that_prints_for_ever_fills_no_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redaction, "MOST_LINES", 3)
    assert logged(b"a\nb\nc\nd\ne\n", caplog).count("refresh: ") == 3


def test_a_secret_of_the_environment_may_be_any_bytes() -> None:
    made = Redaction({"KEY": os.fsdecode(b"caf\xe9-9")})
    assert made.redacted_bytes(b"key caf\xe9-9, key caf%E9-9") == b"key [KEY], key [KEY]"
