"""Instances and IAM users are held to their policies, call by call, and refused in the words of each
service.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra import policies
from tests.aws.account import CheckedAccount, Decisions
from tests.iam import instance_policy
from trainer.aws.access import Access
from trainer.aws.stack_outputs import StackOutputs
from trainer.control.fleet import read_answer, read_failure
from trainer.rehearsal.nodes import role_credentials
from trainer.rehearsal.server import EmbeddedAws


@pytest.fixture
def user(aws_server: EmbeddedAws, access: Access) -> Callable[..., Access]:
    """Make an IAM user with these statements, and return its access."""

    def make(*statements: dict[str, Any], name: str = "somebody") -> Access:
        iam = access.client("iam")
        iam.create_user(UserName=name)
        if statements:
            document = policies.document(*({"Effect": "Allow", **one} for one in statements))
            iam.put_user_policy(UserName=name, PolicyName="own", PolicyDocument=json.dumps(document))
        return with_new_key(access, name)

    return make


def with_new_key(access: Access, name: str) -> Access:
    key = access.client("iam").create_access_key(UserName=name)["AccessKey"]
    return replace(access, access_key=key["AccessKeyId"], secret_key=key["SecretAccessKey"])


def refused(call: Callable[..., Any], **arguments: Any) -> tuple[str, str, int]:
    with pytest.raises(ClientError) as failed:
        call(**arguments)
    response = failed.value.response
    error, status = response["Error"], response["ResponseMetadata"]["HTTPStatusCode"]
    return error["Code"], error["Message"], status


# --- who calls
# -------------------------------------------------------------------------------------------------------


def test_a_user_says_who_it_is_and_needs_no_policy_for_it(
    access: Access, user: Callable[..., Access]
) -> None:
    somebody = user()
    told = somebody.client("sts").get_caller_identity()
    account = str(access.access_key)[4:16]
    described = access.client("iam").get_user(UserName="somebody")["User"]
    assert (told["Account"], told["Arn"], told["UserId"]) == (account, described["Arn"], described["UserId"])
    assert described["Arn"] == f"arn:aws:iam::{account}:user/somebody"


def test_an_instance_is_its_role_under_the_name_of_its_id(aws_server: EmbeddedAws, desk: Any) -> None:
    instance_id = desk.launched()
    node = node_of(aws_server, desk.access, instance_id)
    told = node.client("sts").get_caller_identity()
    role_id = desk.access.client("iam").get_role(RoleName="node")["Role"]["RoleId"]
    assert told["UserId"] == f"{role_id}:{instance_id}"
    assert told["Arn"] == f"arn:aws:sts::{told['Account']}:assumed-role/node/{instance_id}"


def test_two_keys_of_a_user_are_two(access: Access, user: Callable[..., Access]) -> None:
    first, second = user(), with_new_key(access, "somebody")
    assert first.access_key != second.access_key and first.secret_key != second.secret_key
    identities = [one.client("sts").get_caller_identity()["Arn"] for one in (first, second)]
    assert len(set(identities)) == 1
    assert refused(access.client("iam").create_access_key, UserName="nobody")[0] == "NoSuchEntity"


@pytest.mark.parametrize(
    ("service", "call", "code"),
    [
        ("ec2", "describe_instances", "AuthFailure"),
        ("s3", "list_buckets", "InvalidAccessKeyId"),
        ("scheduler", "list_schedules", "UnrecognizedClientException"),
    ],
)
def test_a_key_of_a_principal_that_nobody_was_given_is_refused(
    aws_server: EmbeddedAws, access: Access, service: str, call: str, code: str
) -> None:
    own = aws_server.keyring.credentials(str(access.access_key)[4:16], "NODE", "i-unknown")
    stranger = replace(access, access_key=own.access_key, secret_key=own.secret_key)
    assert refused(getattr(stranger.client(service, total_max_attempts=1), call))[0] == code


# --- refusals
# --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("service", "call", "arguments", "code", "status", "asked"),
    [
        ("ec2", "describe_instances", {}, "UnauthorizedOperation", 403, "ec2:DescribeInstances on res"),
        ("s3", "list_buckets", {}, "AccessDenied", 403, "s3:ListBuckets on resource: *"),
        ("s3", "put_object", {"Bucket": "b", "Key": "k"}, "AccessDenied", 403, "arn:aws:s3:::b/k"),
        ("iam", "list_users", {}, "AccessDenied", 403, "iam:ListUsers on resource: *"),
        ("ssm", "get_parameter", {"Name": "/a/b"}, "AccessDeniedException", 400, ":parameter/a/b"),
        ("scheduler", "get_schedule", {"Name": "n"}, "AccessDeniedException", 403, ":schedule/default/n"),
        ("lambda", "invoke", {"FunctionName": "f"}, "AccessDeniedException", 403, "lambda:InvokeFunction"),
    ],
)
def test_each_service_refuses_in_its_own_words(
    user: Callable[..., Access], service: str, call: str, arguments: Any, code: str, status: int, asked: str
) -> None:
    somebody = user()
    said, message, http = refused(getattr(somebody.client(service, total_max_attempts=1), call), **arguments)
    assert (said, http) == (code, status)
    assert "user/somebody is not authorized to perform: " in message and asked in message
    assert "because no identity-based policy allows the" in message
    assert message.startswith("You are not authorized to perform this operation.") is (service == "ec2")


def test_an_explicit_deny_is_said_as_such(user: Callable[..., Access]) -> None:
    somebody = user(
        {"Action": "*", "Resource": "*"},
        {"Effect": "Deny", "Action": "ec2:DescribeInstances", "Resource": "*"},
    )
    somebody.client("ec2").describe_images()
    _, message, _ = refused(somebody.client("ec2").describe_instances)
    assert message.endswith("with an explicit deny in an identity-based policy")


def test_a_permissions_boundary_takes_rights_away(aws_server: EmbeddedAws, desk: Any) -> None:
    iam, own = desk.access.client("iam"), policies.document(policies.allow("Look", "ec2:Describe*", "*"))
    iam.put_role_policy(RoleName="node", PolicyName="own", PolicyDocument=json.dumps(own))
    allowed = policies.allow("Some", ["ec2:DescribeI*", "iam:*"], "*")
    document = policies.document(allowed, {"Effect": "Deny", "Action": "ec2:DescribeImages", "Resource": "*"})
    boundary = iam.create_policy(PolicyName="bounds", PolicyDocument=json.dumps(document))["Policy"]["Arn"]
    iam.put_role_permissions_boundary(RoleName="node", PermissionsBoundary=boundary)
    node = node_of(aws_server, desk.access, desk.launched())
    ec2 = node.client("ec2", total_max_attempts=1)
    ec2.describe_instances()
    said = refused(ec2.describe_vpcs)[1]
    assert said.endswith("because no permissions boundary allows the ec2:DescribeVpcs action")
    assert refused(ec2.describe_images)[1].endswith("with an explicit deny in a permissions boundary")
    said = refused(node.client("iam").list_users)[1]
    assert said.endswith("because no identity-based policy allows the iam:ListUsers action")
    iam.delete_role_permissions_boundary(RoleName="node")
    ec2.describe_vpcs()


def test_a_role_that_does_not_trust_ec2_is_lent_to_no_instance(aws_server: EmbeddedAws, desk: Any) -> None:
    cloud, instance_id = aws_server.cloud(desk.access), desk.launched()
    assert role_credentials(cloud, cloud.world.instances[instance_id]) is not None
    trust = json.dumps(policies.trust("lambda.amazonaws.com"))
    desk.access.client("iam").update_assume_role_policy(RoleName="node", PolicyDocument=trust)
    assert role_credentials(cloud, cloud.world.instances[instance_id]) is None


def test_a_head_that_is_refused_leaves_the_connection_usable(
    access: Access, user: Callable[..., Access]
) -> None:
    bucket = f"heads-{str(access.access_key)[4:16]}"
    access.client("s3").create_bucket(Bucket=bucket)
    s3 = user().client("s3", total_max_attempts=1)
    for _ in range(2):
        assert refused(s3.head_object, Bucket=bucket, Key="k")[0] == "403"
        assert refused(s3.get_object, Bucket=bucket, Key="k")[0] == "AccessDenied"


def test_a_policy_that_was_changed_holds_from_the_next_call_on(
    access: Access, user: Callable[..., Access]
) -> None:
    somebody, iam = user(), access.client("iam")
    assert refused(somebody.client("ec2").describe_instances)[0] == "UnauthorizedOperation"
    document = json.dumps(policies.document(policies.allow("Look", "ec2:Describe*", "*")))
    attached = iam.create_policy(PolicyName="look", PolicyDocument=document)["Policy"]["Arn"]
    iam.attach_user_policy(UserName="somebody", PolicyArn=attached)
    somebody.client("ec2").describe_instances()
    iam.detach_user_policy(UserName="somebody", PolicyArn=attached)
    assert refused(somebody.client("ec2").describe_instances)[0] == "UnauthorizedOperation"


def test_a_policy_that_cant_be_evaluated_is_an_error(user: Callable[..., Access]) -> None:
    at_home = {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}
    somebody = user({"Action": "*", "Resource": "*", "Condition": at_home})
    code, message, _ = refused(somebody.client("ec2", total_max_attempts=1).describe_instances)
    assert code == "UnsupportedOperation" and "IpAddress" in message


# --- policies of resources
# --------------------------------------------------------------------------------------------


def test_the_bucket_refuses_everybody_without_tls(
    aws_server: EmbeddedAws, stack: tuple[Access, StackOutputs], user: Callable[..., Access]
) -> None:
    access, outputs = stack
    cloud, bucket = aws_server.cloud(access), outputs.bucket
    assert isinstance(cloud, CheckedAccount)
    somebody = user({"Action": "*", "Resource": "*"})
    access.client("s3").put_object(Bucket=bucket, Key="raw/x", Body=b"1")
    for caller in (access, somebody):
        s3 = caller.client("s3", total_max_attempts=1)
        calls: list[tuple[Callable[..., Any], dict[str, Any]]] = [
            (s3.get_object, {"Key": "raw/x"}),
            (s3.put_object, {"Key": "raw/y", "Body": b"2"}),
            (s3.delete_object, {"Key": "raw/y"}),
            (s3.list_objects_v2, {"Prefix": "raw/"}),
            (s3.list_object_versions, {}),
            (s3.get_bucket_policy, {}),
        ]
        for call, arguments in calls:
            cloud.over_tls = False
            code, message, status = refused(call, Bucket=bucket, **arguments)
            assert (code, status) == ("AccessDenied", 403)
            assert message.endswith("with an explicit deny in a resource-based policy")
            cloud.over_tls = True
            call(Bucket=bucket, **arguments)


def test_a_buckets_policy_reaches_the_callers_that_it_names(
    access: Access, user: Callable[..., Access]
) -> None:
    account = str(access.access_key)[4:16]
    bucket, named, other = f"names-{account}", user(name="named"), user(name="other")
    s3 = access.client("s3")
    s3.create_bucket(Bucket=bucket)
    s3.put_object(Bucket=bucket, Key="x", Body=b"1")
    everywhere = {"Action": "s3:GetObject", "Resource": f"arn:aws:s3:::{bucket}/*"}

    def read_under(principal: Any, **elements: Any) -> list[str]:
        """Return who may read under a policy of one statement."""
        policy = policies.document({"Effect": "Allow", "Principal": principal, **everywhere, **elements})
        s3.put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))
        may = []
        for name, one in (("desk", access), ("named", named), ("other", other)):
            with suppress(ClientError):
                one.client("s3", total_max_attempts=1).get_object(Bucket=bucket, Key="x")
                may.append(name)
        return may

    arn = f"arn:aws:iam::{account}:user/named"
    assert read_under({"AWS": arn}) == ["desk", "named"]
    assert read_under({"AWS": f"arn:aws:iam::{account}:root"}) == ["desk", "named", "other"]
    assert read_under({"AWS": "arn:aws:iam::999999999999:root"}) == ["desk"]
    assert read_under({"Service": "s3.amazonaws.com"}) == ["desk"]
    own = {"StringEquals": {"aws:PrincipalAccount": account}}
    assert read_under("*", Condition=own) == ["desk", "named", "other"]
    foreign = {"StringNotEquals": {"aws:PrincipalAccount": account}}
    assert read_under("*", Condition=foreign) == ["desk"]
    assert read_under("*", Condition=own, Effect="Deny") == []
    assert read_under({"AWS": arn}, Effect="Deny") == ["desk"]
    read_under("*", Condition={"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}})
    assert refused(s3.get_object, Bucket=bucket, Key="x")[0] == "UnsupportedOperation"


# --- conditions, as calls bring them
# ---------------------------------------------------------------------------------


def test_instances_are_ended_by_who_may_by_their_tags(desk: Any, user: Callable[..., Access]) -> None:
    own, other = (desk.launched(token=project, tags={"project": project}) for project in ("mayfly", "else"))
    condition = {"StringEquals": {"aws:ResourceTag/project": "mayfly"}}
    somebody = user({"Action": "ec2:TerminateInstances", "Resource": "*", "Condition": condition})
    ec2 = somebody.client("ec2", total_max_attempts=1)
    for ids in ([other], [own, other]):
        assert refused(ec2.terminate_instances, InstanceIds=ids)[0] == "UnauthorizedOperation"
    missing = refused(ec2.terminate_instances, InstanceIds=["i-0123456789abcdef0"])
    assert missing[0] == "InvalidInstanceID.NotFound"
    ec2.terminate_instances(InstanceIds=[own])
    assert (desk.state(own), desk.state(other)) == ("terminated", "running")


@pytest.mark.parametrize("missing", ["ec2:RunInstances", "iam:PassRole", "ec2:CreateTags"])
def test_a_refused_launch_is_an_error_in_a_fleets_answer(
    desk: Any, user: Callable[..., Access], missing: str
) -> None:
    """With HTTP 200, and without an instance; sources in `ec2_actions`. The product reads both."""
    rights = {"ec2:CreateFleet", "ec2:RunInstances", "ec2:CreateTags", "iam:PassRole"} - {missing}
    somebody = user({"Action": sorted(rights), "Resource": "*"})
    answer = replace(desk, access=somebody).fleet()
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 200 and answer["Instances"] == []
    (error,) = answer["Errors"]
    assert error["ErrorCode"] == "UnauthorizedOperation" and f"perform: {missing} on" in error["ErrorMessage"]
    read = read_answer(answer)
    assert (read.kind, read.code, read.of_the_call) == ("refused", "UnauthorizedOperation", False)
    assert desk.ec2.describe_instances()["Reservations"] == []
    assert desk.launched(token="t2"), "the next call is another's"


def test_a_fleet_that_its_caller_may_not_create_fails(desk: Any, user: Callable[..., Access]) -> None:
    somebody = user({"Action": ["ec2:RunInstances", "ec2:CreateTags", "iam:PassRole"], "Resource": "*"})
    fleet = replace(desk, access=somebody).fleet
    code, message, status = refused(fleet)
    assert (code, status) == ("UnauthorizedOperation", 403) and "ec2:CreateFleet" in message
    answer = read_failure(ClientError({"Error": {"Code": code, "Message": message}}, "CreateFleet"))
    assert (answer.kind, answer.code, answer.of_the_call) == ("refused", code, True)


def test_listing_goes_by_the_prefix_that_is_asked_for(access: Access, user: Callable[..., Access]) -> None:
    bucket = f"lists-{str(access.access_key)[4:16]}"
    access.client("s3").create_bucket(Bucket=bucket)
    access.client("s3").put_object(Bucket=bucket, Key="raw/x", Body=b"1")
    below = {"StringLike": {"s3:prefix": "raw/*"}}
    lists = {"Action": "s3:ListBucket", "Resource": "*", "Condition": below}
    reads = {"Action": ["s3:GetObject", "s3:GetObjectVersion"], "Resource": f"arn:aws:s3:::{bucket}/raw/*"}
    somebody = user(lists, reads)
    s3 = somebody.client("s3", total_max_attempts=1)
    assert s3.list_objects_v2(Bucket=bucket, Prefix="raw/")["KeyCount"] == 1
    for prefix in ({}, {"Prefix": ""}, {"Prefix": "runs/"}):
        assert refused(s3.list_objects_v2, Bucket=bucket, **prefix)[0] == "AccessDenied"
    assert s3.get_object(Bucket=bucket, Key="raw/x")["Body"].read() == b"1"
    # S3 hides what is missing from who may not list; a read has no prefix, so the permission above does not
    # count.
    assert refused(s3.get_object, Bucket=bucket, Key="raw/y")[0] == "AccessDenied"
    assert refused(s3.head_object, Bucket=bucket, Key="raw/y")[0] == "403"
    lister = user({"Action": "s3:*", "Resource": "*"}, name="lister").client("s3", total_max_attempts=1)
    assert refused(lister.get_object, Bucket=bucket, Key="raw/y")[0] == "NoSuchKey"


def test_a_right_to_add_objects_replaces_none(access: Access, user: Callable[..., Access]) -> None:
    bucket = f"adds-{str(access.access_key)[4:16]}"
    access.client("s3").create_bucket(Bucket=bucket)
    access.client("s3").put_object(Bucket=bucket, Key="raw/x", Body=b"1")
    adds = {"Null": {"s3:if-none-match": "false"}}  # as control's policy has it
    somebody = user(
        {"Action": "s3:PutObject", "Resource": f"arn:aws:s3:::{bucket}/raw/*", "Condition": adds},
        {"Action": "s3:GetObject", "Resource": f"arn:aws:s3:::{bucket}/*"},
    )
    s3, source = somebody.client("s3", total_max_attempts=1), {"Bucket": bucket, "Key": "raw/x"}
    for key in ("raw/x", "raw/y"):
        assert refused(s3.put_object, Bucket=bucket, Key=key, Body=b"2")[0] == "AccessDenied"
        assert refused(s3.copy_object, Bucket=bucket, Key=key, CopySource=source)[0] == "AccessDenied"
    new = {"Bucket": bucket, "Key": "raw/x", "IfNoneMatch": "*"}
    assert refused(s3.put_object, **new, Body=b"2")[0] == "PreconditionFailed"
    assert refused(s3.copy_object, **new, CopySource=source)[0] == "PreconditionFailed"
    s3.put_object(Bucket=bucket, Key="raw/y", Body=b"2", IfNoneMatch="*")
    s3.copy_object(Bucket=bucket, Key="raw/z", CopySource=source, IfNoneMatch="*")


# --- a node
# ----------------------------------------------------------------------------------------------------------


def node_of(aws_server: EmbeddedAws, access: Access, instance_id: str) -> Access:
    """Return access with the credentials that an instance's metadata lends it."""
    cloud = aws_server.cloud(access)
    lent = role_credentials(cloud, cloud.world.instances[instance_id])
    assert lent is not None
    return replace(access, access_key=lent.access_key, secret_key=lent.secret_key)


def test_a_node_writes_under_its_own_id_and_nowhere_else(aws_server: EmbeddedAws, desk: Any) -> None:
    iam, s3 = desk.access.client("iam"), desk.access.client("s3")
    bucket = f"nodes-{str(desk.access.access_key)[4:16]}"
    s3.create_bucket(Bucket=bucket)
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    iam.put_role_policy(RoleName="node", PolicyName="own", PolicyDocument=instance_policy(bucket))
    mine, other = desk.launched(token="1"), desk.launched(token="2")
    node = node_of(aws_server, desk.access, mine)
    own = node.client("s3", total_max_attempts=1)
    me = node.client("sts").get_caller_identity()["UserId"]
    them = me.replace(mine, other)
    for prefix in ("live/", "attempts/", "models/experiments/", "checkpoints/"):
        key = f"{prefix}{me}/run/1/x"
        own.put_object(Bucket=bucket, Key=key, Body=b"1")
        for foreign in (f"{prefix}{them}/run/1/x", f"{prefix}{them}/{me}/x", f"{prefix}x"):
            assert refused(own.put_object, Bucket=bucket, Key=foreign, Body=b"1")[0] == "AccessDenied"
        s3.put_object(Bucket=bucket, Key=f"{prefix}{them}/run/1/x", Body=b"1")
        assert refused(own.get_object, Bucket=bucket, Key=f"{prefix}{them}/run/1/x")[0] == "AccessDenied"
    assert own.head_object(Bucket=bucket, Key=f"models/experiments/{me}/run/1/x")["ContentLength"] == 1
    foreign = (
        "raw/x",
        "checkpoints/x",
        "resumed/r/2/x",
        "runs/r/attempts/2/start.json",
        "code/x.whl",
        "models/production/m.safetensors",
    )
    for key in (*foreign, "runs/r/run.json", "memory/measurements.json"):
        assert refused(own.put_object, Bucket=bucket, Key=key, Body=b"1")[0] == "AccessDenied"
    assert refused(own.delete_object, Bucket=bucket, Key=f"live/{me}/run/1/x")[0] == "AccessDenied"
    assert refused(own.get_object, Bucket=bucket, Key=f"checkpoints/{me}/run/1/x")[0] == "AccessDenied"
    # The caller's copy of another node's checkpoint is read in one version, which its start file names.
    copied = s3.put_object(Bucket=bucket, Key="resumed/r/2/x", Body=b"1")["VersionId"]
    assert own.get_object(Bucket=bucket, Key="resumed/r/2/x", VersionId=copied)["Body"].read() == b"1"
    assert refused(own.get_object, Bucket=bucket, Key="memory/measurements.json")[0] == "AccessDenied"


@pytest.mark.parametrize(
    ("service", "call", "arguments"),
    [
        ("ec2", "describe_instances", {}),
        ("ec2", "terminate_instances", {"InstanceIds": ["own"]}),
        ("ec2", "create_tags", {"Resources": ["own"], "Tags": [{"Key": "deadline", "Value": "later"}]}),
        ("scheduler", "delete_schedule", {"Name": "kill"}),
        ("iam", "create_access_key", {"UserName": "x"}),
        ("ssm", "get_parameter", {"Name": "/mayfly/mayfly/dev"}),
    ],
)
def test_a_node_has_no_action_but_those_on_s3(
    aws_server: EmbeddedAws, desk: Any, service: str, call: str, arguments: dict[str, Any]
) -> None:
    document = instance_policy("store")
    desk.access.client("iam").put_role_policy(RoleName="node", PolicyName="own", PolicyDocument=document)
    instance_id = desk.launched()
    client = node_of(aws_server, desk.access, instance_id).client(service, total_max_attempts=1)
    own = {name: [instance_id] if value == ["own"] else value for name, value in arguments.items()}
    codes = ("UnauthorizedOperation", "AccessDenied", "AccessDeniedException")
    assert refused(getattr(client, call), **own)[0] in codes
    assert desk.instance(instance_id)["State"]["Name"] == "running"


def test_decisions_are_read_while_others_are_made() -> None:
    """The server's threads decide while a test looks: a plain deque ends the loop with an error."""
    decision: Any = ("who", "asked", "decision")
    decisions = Decisions([decision], maxlen=10)
    for one in decisions:
        decisions.append(one)
    assert list(decisions) == [decision, decision]
