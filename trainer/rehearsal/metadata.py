"""The instance-metadata endpoint of a rehearsal's node (IMDSv2), as a pure function of the instance's data.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-categories.html (looked up 2026-11-20).
No network and no clock here: the front mounts `respond` at
http://127.0.0.1:PORT/imds/<instance-id>/<secret>/latest/...
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from trainer.runs.record import iso

MAX_TOKEN_SECONDS = 21_600
_META_DATA = "/latest/meta-data"
TOKEN_HEADER = "x-aws-ec2-metadata-token"
TOKEN_TTL_HEADER = "x-aws-ec2-metadata-token-ttl-seconds"
Response = tuple[int, str, bytes]  # status, content type, body


@dataclass(frozen=True, kw_only=True)
class RoleCredentials:
    """Temporary credentials of the instance's role."""

    role: str
    access_key: str
    secret_key: str
    session_token: str
    expires_at: datetime


@dataclass(frozen=True, kw_only=True)
class MetadataView:
    """Data of one instance for its metadata service."""

    instance_id: str
    instance_type: str
    availability_zone: str
    region: str
    life_cycle: str = "on-demand"
    tags: Mapping[str, str] = field(default_factory=dict)
    tags_enabled: bool = True  # the template's InstanceMetadataTags
    credentials: RoleCredentials | None = None  # None: no instance profile


@dataclass(kw_only=True)
class TokenStore:
    """Session tokens, each for one instance and a limited time."""

    _tokens: dict[str, tuple[str, datetime]] = field(default_factory=dict)

    def issue(self, instance_id: str, *, seconds: int, now: datetime) -> str:
        """Return a new token for one instance."""
        self._tokens = {token: entry for token, entry in self._tokens.items() if entry[1] > now}
        token = secrets.token_urlsafe(40)
        self._tokens[token] = (instance_id, now + timedelta(seconds=seconds))
        return token

    def holds(self, instance_id: str, token: str, *, now: datetime) -> bool:
        """Return whether the token belongs to this instance and is still valid."""
        owner, expires_at = self._tokens.get(token, ("", now))
        return owner == instance_id and expires_at > now


def respond(
    view: MetadataView, tokens: TokenStore, method: str, path: str, headers: Mapping[str, str], now: datetime
) -> Response:
    """Answer one request; `path` begins with /latest. Without a token the answer is 401 (IMDSv2 only)."""
    given = {name.lower(): value for name, value in headers.items()}
    path = path.rstrip("/")
    if path == "/latest/api/token":
        return _token(view, tokens, method, given.get(TOKEN_TTL_HEADER, ""), now)
    if method != "GET":
        return 405, "text/plain", b"Method Not Allowed"
    if not tokens.holds(view.instance_id, given.get(TOKEN_HEADER, ""), now=now):
        return 401, "text/plain", b"Unauthorized"
    known = path.startswith(_META_DATA)
    text = _meta_data(view, path.removeprefix(_META_DATA), now) if known else None
    return (404, "text/plain", b"Not Found") if text is None else (200, "text/plain", text.encode())


def _token(view: MetadataView, tokens: TokenStore, method: str, seconds: str, now: datetime) -> Response:
    if method != "PUT":
        return 405, "text/plain", b"Method Not Allowed"
    if not seconds.isdecimal() or not 1 <= int(seconds) <= MAX_TOKEN_SECONDS:
        return 400, "text/plain", b"Bad Request"
    return 200, "text/plain", tokens.issue(view.instance_id, seconds=int(seconds), now=now).encode()


def _meta_data(view: MetadataView, path: str, now: datetime) -> str | None:
    """Return the text at a path below meta-data that a node asks for, or None (spot/instance-action: no
    notice).
    """
    plain = {
        "/instance-id": view.instance_id,
        "/instance-life-cycle": view.life_cycle,
        "/instance-type": view.instance_type,
        "/placement/availability-zone": view.availability_zone,
        "/placement/region": view.region,
    }
    if path in plain:
        return plain[path]
    if view.credentials and path == "/iam/security-credentials":
        return view.credentials.role
    if view.credentials and path == f"/iam/security-credentials/{view.credentials.role}":
        return json.dumps(_credentials(view.credentials, now))
    if view.tags_enabled and path == "/tags/instance":
        return "\n".join(sorted(view.tags))
    if view.tags_enabled and path.startswith("/tags/instance/"):
        return view.tags.get(path.removeprefix("/tags/instance/"))
    return None


def _credentials(credentials: RoleCredentials, now: datetime) -> dict[str, str]:
    return {
        "Code": "Success",
        "LastUpdated": iso(now.replace(microsecond=0)),
        "Type": "AWS-HMAC",
        "AccessKeyId": credentials.access_key,
        "SecretAccessKey": credentials.secret_key,
        "Token": credentials.session_token,
        "Expiration": iso(credentials.expires_at.replace(microsecond=0)),
    }
