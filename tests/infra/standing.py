"""Whole stacks held to rules, whatever their settings are: security, tags, parents, and that they can be
taken down.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pulumi_aws as aws

from tests.iam import listed
from tests.infra.program import NAMED_BY, Recorded
from trainer.aws.stack_outputs import StackOutputs

# Types whose resources AWS can't tag.
UNTAGGABLE = {
    "aws:ec2/routeTableAssociation:RouteTableAssociation",
    "aws:cloudwatch/eventTarget:EventTarget",
    "aws:efs/fileSystemPolicy:FileSystemPolicy",
    "aws:efs/mountTarget:MountTarget",
    "aws:iam/rolePolicy:RolePolicy",
    "aws:iam/rolePolicyAttachment:RolePolicyAttachment",
    "aws:lambda/functionEventInvokeConfig:FunctionEventInvokeConfig",
    "aws:lambda/permission:Permission",
    "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration",
    "aws:s3/bucketOwnershipControls:BucketOwnershipControls",
    "aws:s3/bucketPolicy:BucketPolicy",
    "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock",
    "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration",
    "aws:s3/bucketVersioning:BucketVersioning",
    "aws:scheduler/schedule:Schedule",
    "aws:sns/topicSubscription:TopicSubscription",
}
PARENTLESS = {"aws:ssm/parameter:Parameter"}  # of the program itself
_ENCRYPTED = "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration"
_RULE = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
_PRIVATE = "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock"


def assert_stands(stack: Recorded, config: Mapping[str, str]) -> None:
    """Hold a stack to all of these rules. Raises AssertionError with the first that it breaks."""
    assert_closed(stack, config)
    assert_owned(stack, config)
    assert len(assert_can_be_taken_down(stack)) > 40
    parameter = stack.inputs("aws:ssm/parameter:Parameter")["insecureValue"]
    exported = {name: value for name, value in stack.outputs.items() if not name.endswith("_policy_arn")}
    assert json.loads(parameter) == json.loads(StackOutputs(**exported).to_json())


def assert_closed(stack: Recorded, config: Mapping[str, str]) -> None:
    """Nobody gets in, metadata wants tokens, everything at rest is encrypted, and no policy lets everybody do
    something.
    """
    for kind in {one.typ for one in stack.resources if "ecurityGroup" in one.typ.rpartition(":")[2]}:
        assert kind in ("aws:ec2/securityGroup:SecurityGroup", _RULE)  # where this looks for rules
    for rule in stack.all(_RULE):
        assert rule["referencedSecurityGroupId"] == "instances-id"
        assert not {"cidrIpv4", "cidrIpv6"} & rule.keys()
    for group in stack.all("aws:ec2/securityGroup:SecurityGroup"):
        for rule in group.get("ingress", []):
            if rule.get("self"):  # members of a run of several machines
                assert config.get("cluster") and group["name"].startswith("mayfly-dev-cluster-")
                assert not rule.keys() & {"cidrBlocks", "ipv6CidrBlocks", "securityGroups", "prefixListIds"}
                continue
            addresses = rule.get("cidrBlocks") or []
            assert addresses == [f"{config.get('attach')}/32"], f"{group['name']} lets {addresses} in"
            assert not rule.keys() & {"ipv6CidrBlocks", "securityGroups", "prefixListIds"}
    for template in stack.all("aws:ec2/launchTemplate:LaunchTemplate"):
        assert template["metadataOptions"]["httpTokens"] == "required"
        assert template["instanceInitiatedShutdownBehavior"] == "terminate"
        volumes = [one["ebs"] for one in template["blockDeviceMappings"]]
        assert all((one["encrypted"], one["deleteOnTermination"]) == ("true", "true") for one in volumes)
    for machine in stack.all("aws:imagebuilder/infrastructureConfiguration:InfrastructureConfiguration"):
        assert machine["instanceMetadataOptions"]["httpTokens"] == "required"
    for recipe in stack.all("aws:imagebuilder/imageRecipe:ImageRecipe"):
        assert all(one["ebs"]["encrypted"] == "true" for one in recipe["blockDeviceMappings"])
    buckets = sorted(f"{one.name}-id" for one in stack.resources if one.typ == "aws:s3/bucket:Bucket")
    for kind in (_ENCRYPTED, _PRIVATE):
        assert sorted(one["bucket"] for one in stack.all(kind)) == buckets
    blocked = [all(value for key, value in one.items() if key != "bucket") for one in stack.all(_PRIVATE)]
    assert blocked == [True] * len(buckets)
    assert all(one["encrypted"] for one in stack.all("aws:efs/fileSystem:FileSystem"))
    # A file system that replaces another one is made while that one exists, so it can't have its token.
    assert not any("creationToken" in one for one in stack.all("aws:efs/fileSystem:FileSystem"))
    assert all(one["sqsManagedSseEnabled"] for one in stack.all("aws:sqs/queue:Queue"))
    for name, statement in _statements(stack):
        if statement["Effect"] == "Allow":
            principal, actions = statement.get("Principal", {}), listed(statement["Action"])
            people = principal if isinstance(principal, str) else listed(principal.get("AWS", []))
            assert "*" not in people, f"{name} lets everybody {actions}"
            assert not any("*" in action for action in actions), f"{name}: {actions}"


def _statements(stack: Recorded) -> Iterator[tuple[str, dict[str, Any]]]:
    for one in stack.resources:
        for key in ("policy", "assumeRolePolicy"):
            if isinstance(one.inputs.get(key), str) and one.inputs[key].startswith("{"):
                for statement in json.loads(one.inputs[key])["Statement"]:
                    yield f"{one.typ} {one.name}", statement


def assert_owned(stack: Recorded, config: Mapping[str, str]) -> None:
    """Every resource that AWS can tag has the stack's tags, and every one a component as its parent."""
    tags = {"project": "mayfly", "stack": "dev", "owner": config.get("owner", "mayfly")}
    for one in stack.resources:
        if one.typ not in UNTAGGABLE:
            assert tags.items() <= one.inputs.get("tags", {}).items(), one.typ
    for untagged in UNTAGGABLE & {one.typ for one in stack.resources}:
        assert not hasattr(_class(untagged), "tags"), f"{untagged} could be tagged"
    for request in stack.requests:
        if request.type.startswith("aws:") and request.type not in PARENTLESS:
            assert stack.urns[request.parent].type.startswith("mayfly:"), f"{request.name}: no component"


def assert_can_be_taken_down(stack: Recorded) -> list[str]:
    """Take the recorded graph down in reverse, as `pulumi destroy --exclude-protected` does; return the names
    in that order.

    What goes is not referred to by what is still there, by id, ARN or dependency; what is kept refers to
    nothing that goes.
    """
    kept = {urn for urn, request in stack.urns.items() if request.retainOnDelete}
    assert {urn for urn, request in stack.urns.items() if request.protect} <= kept
    made = {urn: request for urn, request in stack.urns.items() if request.custom}
    left = {urn: {*request.dependencies, request.parent} for urn, request in made.items()}
    texts = {urn: json.dumps(_inputs(stack, urn), default=str) for urn in left}
    names = Counter(name for urn in left for name in _names(stack, urn))
    # Those that tell it from all others.
    own = {urn: [name for name in _names(stack, urn) if names[name] == 1] for urn in left}
    removed = []
    while True:
        needed = kept.union(*left.values())
        if not (going := left.keys() - needed):
            break
        for urn in sorted(going):
            del left[urn]
            users = [other for other in left if any(f'"{name}"' in texts[other] for name in own[urn])]
            assert not users, f"{urn} goes, and these still use it: {users}"
            removed.append(stack.urns[urn].name)
    assert set(left) == kept, f"these depend on one another: {sorted(set(left) - kept)}"
    return removed


def _names(stack: Recorded, urn: str) -> set[str]:
    """Return what others call a resource by: the id that the mocks gave it, and its ARN where such a resource
    has one.
    """
    request, inputs = stack.urns[urn], _inputs(stack, urn)
    physical = next((inputs[key] for key in NAMED_BY if key in inputs), f"{request.name}-id")
    arns = {f"arn:aws:mock:::{physical}"} if hasattr(_class(request.type), "arn") else set()
    return {f"{request.name}-id"} | arns


def _inputs(stack: Recorded, urn: str) -> Mapping[str, Any]:
    request = stack.urns[urn]
    (inputs,) = (one.inputs for one in stack.resources if (one.typ, one.name) == (request.type, request.name))
    return inputs


def _class(resource_type: str) -> type:
    """Return the provider's class of a type such as aws:ec2/vpc:Vpc."""
    module, _, name = resource_type.removeprefix("aws:").replace("lambda", "lambda_").partition("/")
    found: type = getattr(getattr(aws, module), name.partition(":")[2])
    return found
