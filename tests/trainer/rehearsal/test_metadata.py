"""Instance metadata as IMDSv2 gives it."""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime, timedelta, timezone

from trainer.rehearsal.metadata import MetadataView, Response, RoleCredentials, TokenStore, respond

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)
KEYS = {"access_key": "ASIA1", "secret_key": "s", "session_token": "t"}
LENT = RoleCredentials(role="node", expires_at=NOW + timedelta(hours=6), **KEYS)
VIEW = MetadataView(
    instance_id="i-1",
    instance_type="p3.8xlarge",
    availability_zone="us-east-1b",
    region="us-east-1",
    tags={"run_id": "r", "attempt": "1"},
    credentials=LENT,
)


def ask(path: str, *, view: MetadataView = VIEW, now: datetime = NOW) -> Response:
    tokens = TokenStore()
    status, _, token = respond(
        view, tokens, "PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, NOW
    )
    assert status == 200
    return respond(view, tokens, "GET", f"/latest/{path}", {"X-aws-ec2-metadata-token": token.decode()}, now)


def test_metadata_answers_an_instances_questions() -> None:
    assert ask("meta-data/instance-id")[::2] == (200, b"i-1")
    assert ask("meta-data/instance-type")[2] == b"p3.8xlarge"
    assert ask("meta-data/placement/availability-zone")[2] == b"us-east-1b"
    assert ask("meta-data/placement/region")[2] == b"us-east-1"
    assert ask("meta-data/tags/instance")[2] == b"attempt\nrun_id"
    assert ask("meta-data/tags/instance/run_id")[2] == b"r"
    assert ask("user-data")[0] == 404


def test_role_credentials_are_listed_and_given() -> None:
    assert ask("meta-data/iam/security-credentials/")[2] == b"node"
    given = json.loads(ask("meta-data/iam/security-credentials/node")[2])
    assert (given["AccessKeyId"], given["Token"]) == ("ASIA1", "t")
    assert given["Expiration"] == "2026-11-20T18:00:00Z"
    without = dataclasses.replace(VIEW, credentials=None)
    assert ask("meta-data/iam/security-credentials/", view=without)[0] == 404


def test_metadata_wants_a_valid_token_of_this_instance() -> None:
    tokens = TokenStore()
    others = {"x-aws-ec2-metadata-token": tokens.issue("i-2", seconds=60, now=NOW)}
    for headers in ({}, others):
        assert respond(VIEW, tokens, "GET", "/latest/meta-data/instance-id", headers, NOW)[0] == 401
    assert ask("meta-data/instance-id", now=NOW + timedelta(seconds=60))[0] == 401


def test_a_token_is_put_with_a_lifetime() -> None:
    for seconds, status in (("60", 200), ("21600", 200), ("21601", 400), ("0", 400), ("", 400)):
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": seconds}
        assert respond(VIEW, TokenStore(), "PUT", "/latest/api/token", headers, NOW)[0] == status
    assert respond(VIEW, TokenStore(), "GET", "/latest/api/token", {}, NOW)[0] == 405


def test_there_is_no_spot_notice_and_no_tag_that_was_not_set() -> None:
    assert ask("meta-data/spot/instance-action")[0] == 404
    assert ask("meta-data/tags/instance/other")[0] == 404
    assert ask("meta-data/tags/instance/run_id", view=dataclasses.replace(VIEW, tags_enabled=False))[0] == 404
