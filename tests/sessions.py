"""Forget boto3's clients and sessions of this process: they keep the credentials that they found first."""

from __future__ import annotations

import pytest

from trainer.aws import access


def forget_sessions() -> None:
    """Let the next client look for credentials and region anew."""
    access._client.cache_clear()
    access._session.cache_clear()


def sign_in(user: access.Access, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let AWS's own variables name these credentials, for this process too."""
    variables = {
        "AWS_ENDPOINT_URL": user.endpoint_url,
        "AWS_ACCESS_KEY_ID": user.access_key,
        "AWS_SECRET_ACCESS_KEY": user.secret_key,
        "AWS_REGION": "us-east-1",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    forget_sessions()
