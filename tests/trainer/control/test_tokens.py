"""The token of an attempt's nodes: one for all, read by each under its own key alone, and gone with them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra import policies
from tests.iam import instance_policy
from tests.records import NOON
from tests.trainer.control.conftest import MemoryCloud
from trainer.aws.access import Access, error_code
from trainer.aws.objects import open_objects
from trainer.base.errors import ConfigError, ConnectionFailed, PermissionDenied
from trainer.control.tokens import TOKEN, delete_tokens, give_token
from trainer.rehearsal.server import EmbeddedAws
from trainer.runs.keys import NodeKeys

NODES = tuple(NodeKeys(role_id="AROA1", instance_id=f"i-{n}", run_id="r", attempt=1) for n in (3, 1, 2))


def test_each_node_has_the_same_token_and_each_attempt_another() -> None:
    objects = MemoryCloud(NOON).objects
    give_token(objects, NODES)
    held = {objects.body(keys.token).decode() for keys in NODES}
    assert len(held) == 1 and re.fullmatch(TOKEN, held.pop())
    assert NODES[0].token == "tokens/AROA1:i-3/r/1"
    later = tuple(NodeKeys(role_id="AROA1", instance_id="i-9", run_id="r", attempt=2) for _ in (1,))
    give_token(objects, later)
    assert objects.body(later[0].token) != objects.body(NODES[0].token)


def test_a_second_caller_changes_no_token() -> None:
    objects = MemoryCloud(NOON).objects
    give_token(objects, NODES)
    before = {key: objects.body(key) for key in objects.stored}
    objects.stored.pop(NODES[2].token)  # the first caller was killed before it
    give_token(objects, NODES)
    assert {key: objects.body(key) for key in objects.stored} == before
    assert all(len(versions) == 1 for versions in objects.stored.values())


def test_a_token_that_is_none_is_refused() -> None:
    objects = MemoryCloud(NOON).objects
    objects.write(NODES[0].token, b"guess")
    with pytest.raises(ConfigError, match="tokens/AROA1:i-3/r/1 is not a token"):
        give_token(objects, NODES)


def test_every_version_is_deleted() -> None:
    objects = MemoryCloud(NOON).objects
    give_token(objects, NODES)
    objects.write(NODES[1].token, b"a second version")
    objects.write("runs/r/run.json", b"{}")
    delete_tokens(objects, NODES)
    assert list(objects.stored) == ["runs/r/run.json"]
    delete_tokens(objects, NODES)  # once more changes nothing


@pytest.mark.parametrize("error", [ConnectionFailed("S3"), PermissionDenied("no")])
def test_a_refused_deletion_holds_up_no_run(error: ConfigError, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = MemoryCloud(NOON).objects
    give_token(objects, NODES)

    def refuse(**_: str) -> None:
        raise error

    monkeypatch.setattr(objects, "delete", refuse)
    if isinstance(error, ConnectionFailed):  # the next look tries again
        with pytest.raises(ConnectionFailed):
            delete_tokens(objects, NODES)
    else:
        delete_tokens(objects, NODES)


@pytest.fixture
def lend(aws_server: EmbeddedAws, access: Access) -> Callable[[str], tuple[Any, NodeKeys]]:
    """Return a function that returns an S3 client with the rights of an instance, and its keys. All have one
    role, as all of a stack do.
    """
    cloud, trust = aws_server.cloud(access), json.dumps(policies.trust("ec2.amazonaws.com"))
    access.client("s3").create_bucket(Bucket="tokens-bucket")
    access.client("s3").put_bucket_versioning(
        Bucket="tokens-bucket", VersioningConfiguration={"Status": "Enabled"}
    )
    role = {"RoleName": "node", "AssumeRolePolicyDocument": trust}
    made = access.client("iam").create_role(**role)["Role"]["RoleId"]
    own = {
        "RoleName": "node",
        "PolicyName": "own",
        "PolicyDocument": instance_policy("tokens-bucket", nodes=True),
    }
    aws_server.call(cloud.account, "iam", "PutRolePolicy", own)

    def lent(instance_id: str, run_id: str = "r") -> tuple[Any, NodeKeys]:
        keys = cloud.credentials("NODE", instance_id, role="node")
        mine = Access(
            region=access.region,
            endpoint_url=access.endpoint_url,
            access_key=keys.access_key,
            secret_key=keys.secret_key,
        )
        of = NodeKeys(role_id=made, instance_id=instance_id, run_id=run_id, attempt=1)
        return mine.client("s3"), of

    return lent


def test_a_node_of_another_run_cannot_read_the_token(
    access: Access, lend: Callable[..., tuple[Any, NodeKeys]]
) -> None:
    """It knows every name, has the same role, and may read the victims' start file."""
    head, first = lend("i-1")
    _, second = lend("i-2")
    objects = open_objects(access, "tokens-bucket")
    give_token(objects, (first, second))
    objects.put(key="runs/r/attempts/1/start.json", body=b"{}")
    token = head.get_object(Bucket="tokens-bucket", Key=first.token)["Body"].read()
    assert re.fullmatch(TOKEN, token.decode())

    hostile, own = lend("i-3", "other")
    assert hostile.get_object(Bucket="tokens-bucket", Key="runs/r/attempts/1/start.json")
    stored = objects.head(key=first.token)
    assert stored is not None
    version = {"Key": first.token, "VersionId": stored.version_id}
    tries: list[tuple[str, dict[str, Any]]] = [
        *(("get_object", {"Key": keys.token}) for keys in (first, second)),
        *(("head_object", {"Key": keys.token}) for keys in (first, second)),
        *((name, version) for name in ("get_object", "delete_object")),
        ("list_objects_v2", {"Prefix": "tokens/"}),
        ("list_object_versions", {"Prefix": "tokens/"}),
        *(("put_object", {"Key": keys.token, "Body": b"0" * 64}) for keys in (first, own)),
        (
            "copy_object",
            {"Key": f"attempts/{own.role_id}:i-3/x", "CopySource": f"tokens-bucket/{first.token}"},
        ),
    ]
    for operation, arguments in tries:
        with pytest.raises(ClientError) as refused:
            getattr(hostile, operation)(Bucket="tokens-bucket", **arguments)
        assert error_code(refused.value) in ("AccessDenied", "403"), (operation, arguments)
    assert objects.get(key=second.token).body == token  # type: ignore[union-attr]
    delete_tokens(objects, (first, second))
    assert "Versions" not in access.client("s3").list_object_versions(
        Bucket="tokens-bucket", Prefix="tokens/"
    )
