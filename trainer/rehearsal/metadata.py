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

from trainer.base.instants import iso

MAX_TOKEN_SECONDS = 21_600
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

    def document(self, now: datetime) -> str:
        """Return the JSON that the metadata service gives."""
        document = {
            "Code": "Success",
            "LastUpdated": _second(now),
            "Type": "AWS-HMAC",
            "AccessKeyId": self.access_key,
            "SecretAccessKey": self.secret_key,
            "Token": self.session_token,
            "Expiration": _second(self.expires_at),
        }
        return json.dumps(document)


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
    recommended_at: datetime | None = None  # of a rebalance recommendation that was given
    taken_at: datetime | None = None  # instant of an interruption of which notice was given

    def texts(self, now: datetime) -> dict[str, str]:
        """Return the text of each path that a node asks for. A spot instance's notices have none before
        they are given (EC2 user guide, "Spot Instance interruption notices" and "EC2 instance rebalance
        recommendations", looked up 2026-11-24).
        """
        texts = {
            "/instance-id": self.instance_id,
            "/instance-life-cycle": self.life_cycle,
            "/instance-type": self.instance_type,
            "/placement/availability-zone": self.availability_zone,
            "/placement/region": self.region,
        }
        if own := self.credentials:
            texts["/iam/security-credentials"] = own.role
            texts[f"/iam/security-credentials/{own.role}"] = own.document(now)
        if self.recommended_at:
            texts["/events/recommendations/rebalance"] = json.dumps(
                {"noticeTime": _second(self.recommended_at)}
            )
        if self.taken_at:
            texts["/spot/instance-action"] = json.dumps(
                {"action": "terminate", "time": _second(self.taken_at)}
            )
            texts["/spot/termination-time"] = _second(self.taken_at)
        if self.tags_enabled:
            texts["/tags/instance"] = "\n".join(sorted(self.tags))
            texts |= {f"/tags/instance/{key}": value for key, value in self.tags.items()}
        return {f"/latest/meta-data{path}": text for path, text in texts.items()}


def _second(at: datetime) -> str:
    return iso(at.replace(microsecond=0))


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
    text = view.texts(now).get(path)
    return (404, "text/plain", b"Not Found") if text is None else (200, "text/plain", text.encode())


def _token(view: MetadataView, tokens: TokenStore, method: str, seconds: str, now: datetime) -> Response:
    if method != "PUT":
        return 405, "text/plain", b"Method Not Allowed"
    if not seconds.isdecimal() or not 1 <= int(seconds) <= MAX_TOKEN_SECONDS:
        return 400, "text/plain", b"Bad Request"
    return 200, "text/plain", tokens.issue(view.instance_id, seconds=int(seconds), now=now).encode()
