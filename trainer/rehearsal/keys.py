"""Keys of an embedded AWS: one random secret per server, an access key for each principal, signatures for its
own endpoints.

A principal's secret key is HMAC(server secret, access key): one key can't be derived from another, so a node
can't get the desk's. Only readers of the server's private note (`home`) can derive them all.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Literal

from trainer.aws.access import Access
from trainer.aws.place import REHEARSAL

# The caller's own (an administrator), an instance's, a function's, a schedule's, an IAM user's.
Kind = Literal["DESK", "NODE", "FUNC", "TIME", "USER"]
REGION = "us-east-1"
FRESH_SECONDS = 900.0  # allowed difference of a request's time from this machine's, as on AWS
TIME_HEADER, NONCE_HEADER, SIGNATURE_HEADER = "X-Mayfly-Time", "X-Mayfly-Nonce", "X-Mayfly-Signature"


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """An access key and its secret key."""

    access_key: str
    secret_key: str

    def access(self, endpoint_url: str) -> Access:
        """Return access to an embedded AWS by these keys."""
        return Access(
            region=REGION,
            endpoint_url=endpoint_url,
            access_key=self.access_key,
            secret_key=self.secret_key,
            place=REHEARSAL,
        )


class Keyring:
    """Derives all credentials of one server from its secret (32 bytes; random unless given)."""

    def __init__(self, secret: bytes | None = None) -> None:
        self.secret = secret or secrets.token_bytes(32)

    def credentials(self, account: str, kind: Kind = "DESK", name: str = "") -> Credentials:
        """Return a principal's credentials in an account (12 digits); `name` distinguishes those of a
        kind.
        """
        key = access_key(account, kind, name)
        return Credentials(access_key=key, secret_key=self.secret_key(key))

    def secret_key(self, access_key: str) -> str:
        """Return the secret key of an access key."""
        return self._derived(f"key {access_key}")

    def metadata_secret(self, instance_id: str) -> str:
        """Return the secret part of an instance's metadata address."""
        return self._derived(f"metadata {instance_id}")

    def request_signature(self, path: str, at: str, nonce: str, body: bytes) -> str:
        """Return the signature of a request to the server's own endpoints; `at` is in seconds of the
        epoch.
        """
        return self._derived(f"ask {path} {at} {nonce} {hashlib.sha256(body).hexdigest()}")

    def answer_signature(self, nonce: str, body: bytes) -> str:
        """Return the signature of an answer, which proves to the desk that the server knows the note's
        secret.
        """
        return self._derived(f"answer {nonce} {hashlib.sha256(body).hexdigest()}")

    def _derived(self, text: str) -> str:
        return hmac.new(self.secret, text.encode(), hashlib.sha256).hexdigest()


def access_key(account: str, kind: Kind = "DESK", name: str = "") -> str:
    """Return the access key of a principal. It names its account; Amazon's own keys contain no 0, 1,
    8 or 9.
    """
    mark = "" if kind == "DESK" else hashlib.sha256(name.encode()).hexdigest()[:16].upper()
    prefix = "AKIA" if kind in ("DESK", "USER") else "ASIA"  # AKIA: long-term; ASIA: a role's, temporary
    return f"{prefix}{account}{kind}{mark}"
