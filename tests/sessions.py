"""Forget boto3's clients and sessions of this process: they keep the credentials that they found first."""

from __future__ import annotations

from trainer.aws import access


def forget_sessions() -> None:
    """Let the next client look for credentials and region anew."""
    access._client.cache_clear()
    access._session.cache_clear()
