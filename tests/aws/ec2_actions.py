"""IAM's questions about calls of EC2: launches with all that they create and pass on, and calls on resources
by their tags.

An instant fleet launches under its caller's rights. Source: the policy that Karpenter publishes and runs
under (looked up 2026-11-22). A missing ec2:CreateFleet fails the call (kubernetes-sigs/karpenter issue 2813, from
CloudTrail); a missing right of the launches that it makes is an error in its answer, with HTTP 200
(aws/karpenter-provider-aws issues 1488, on a launch template, and 7370, on an instance; looked up 2026-11-26).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tests.aws.iam_policies import Authorization, Values
from trainer.rehearsal.launches import find_image, merged_request, own_request, template_data
from trainer.rehearsal.wire import Call

if TYPE_CHECKING:
    from tests.aws.account import CheckedAccount

Asked = list[Authorization]
BY_ID = {  # operation -> the resource's type and its member in the call
    "DescribeVpcAttribute": ("vpc", "VpcId"),
    "DeleteVolume": ("volume", "VolumeId"),
    "DeleteNetworkInterface": ("network-interface", "NetworkInterfaceId"),
}
_CREATED = ("instance", "volume", "network-interface")


def create_fleet(cloud: CheckedAccount, call: Call) -> Asked:
    """Ask for everything that a fleet uses, as CreateFleet. A dry run asks for its launches as well: it has no
    answer that could hold their errors.
    """
    params = call.params
    of_fleet = [one for one in params.get("TagSpecifications", []) if one["ResourceType"] == "fleet"]
    fleet, fleet_tags = ec2_arn(cloud, call, "fleet/*"), _request_tags(of_fleet)
    asked = [Authorization(action="ec2:CreateFleet", resource=fleet, context=fleet_tags)]
    if fleet_tags:
        asked.append(_tagging(cloud, call, "fleet", fleet_tags, "CreateFleet"))
    for request, specification in _requests(cloud, call):
        asked += _used(cloud, call, "ec2:CreateFleet", request, specification)
        asked += _made(cloud, call, "ec2:CreateFleet", request)
    return [*asked, *launches_of(cloud, call)] if params.get("DryRun") else asked


def launches_of(cloud: CheckedAccount, call: Call) -> Asked:
    """Ask for everything that a fleet's launches use and assign, as RunInstances."""
    asked: Asked = []
    for request, specification in _requests(cloud, call):
        asked += _used(cloud, call, "ec2:RunInstances", request, specification)
        asked += _made(cloud, call, "ec2:RunInstances", request)
        asked += _beside(cloud, call, request)
    return asked


def _requests(cloud: CheckedAccount, call: Call) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield each launch that a fleet may make, with its template."""
    params = call.params
    spot = params["TargetCapacitySpecification"].get("DefaultTargetCapacityType") == "spot"
    tags = [one for one in params.get("TagSpecifications", []) if one["ResourceType"] != "fleet"]
    for config in params["LaunchTemplateConfigs"]:
        specification = config["LaunchTemplateSpecification"]
        template = template_data(cloud, specification)
        for override in config.get("Overrides") or [{}]:
            yield merged_request(template, own_request(override, spot=spot), tags), specification


def run_instances(cloud: CheckedAccount, call: Call) -> Asked:
    specification = call.params.get("LaunchTemplate")
    own = {name: value for name, value in call.params.items() if name != "LaunchTemplate"}
    request = merged_request(template_data(cloud, specification), own, own.get("TagSpecifications", []))
    asked = [
        *_used(cloud, call, "ec2:RunInstances", request, specification),
        *_made(cloud, call, "ec2:RunInstances", request),
    ]
    return asked + _beside(cloud, call, request)


def _used(cloud: CheckedAccount, call: Call, action: str, request: dict[str, Any], template: Any) -> Asked:
    """Ask for the inputs of an instance: template, image, subnet, security groups."""
    image = find_image(cloud, request)
    owner = {"ec2:owner": image.get("ImageOwnerAlias") or image["OwnerId"]}
    asked = [
        Authorization(
            action=action, resource=f"arn:aws:ec2:{call.region}::image/{image['ImageId']}", context=owner
        )
    ]
    names = []
    if template:
        names.append(f"launch-template/{_template_id(request)}")
    interfaces = request.get("NetworkInterfaces") or [request]
    asked += [_subnet(cloud, call, action, one["SubnetId"]) for one in interfaces if one.get("SubnetId")]
    groups = [group for one in interfaces for group in one.get("Groups") or one.get("SecurityGroupIds") or []]
    names += [f"security-group/{group}" for group in groups]
    names += [f"placement-group/{one}" for one in [request.get("Placement", {}).get("GroupName")] if one]
    return asked + [Authorization(action=action, resource=ec2_arn(cloud, call, name)) for name in names]


def _subnet(cloud: CheckedAccount, call: Call, action: str, subnet_id: str) -> Authorization:
    (subnet,) = cloud.moto("ec2", "DescribeSubnets", {"SubnetIds": [subnet_id]})["Subnets"]
    vpc: dict[str, Values] = {"ec2:vpc": ec2_arn(cloud, call, f"vpc/{subnet['VpcId']}")}
    return Authorization(action=action, resource=ec2_arn(cloud, call, f"subnet/{subnet_id}"), context=vpc)


def _made(cloud: CheckedAccount, call: Call, action: str, request: dict[str, Any]) -> Asked:
    """Ask for the new resources: the instance and its parts, with their tags."""
    tags = {one["ResourceType"]: one for one in request["TagSpecifications"]}
    asked = []
    for kind in _CREATED:
        context = _request_tags([tags[kind]] if kind in tags else [])
        if (kind, action) == ("instance", "ec2:RunInstances"):
            context["ec2:instancetype"] = request["InstanceType"]
            if template := _template_id(request):
                context["ec2:launchtemplate"] = ec2_arn(cloud, call, f"launch-template/{template}")
        asked.append(
            Authorization(action=action, resource=ec2_arn(cloud, call, f"{kind}/*"), context=context)
        )
    if request.get("InstanceMarketOptions", {}).get("MarketType") == "spot":
        asked.append(Authorization(action=action, resource=ec2_arn(cloud, call, "spot-instances-request/*")))
    return asked


def _template_id(request: dict[str, Any]) -> str:
    """Return the launch template that a merged request is made from; '' where it has none."""
    return next(
        (mark["Value"] for mark in request.get("_marks", []) if mark["Key"] == "aws:ec2launchtemplate:id"), ""
    )


def _beside(cloud: CheckedAccount, call: Call, request: dict[str, Any]) -> Asked:
    """Ask for the tags and the role that a launch assigns."""
    asked = [  # moto keeps the tags of a template itself among those of its instances
        _tagging(cloud, call, one["ResourceType"], _request_tags([one]), "RunInstances")
        for one in request["TagSpecifications"]
        if one["ResourceType"] in (*_CREATED, "spot-instances-request")
    ]
    profile = request.get("IamInstanceProfile", {})
    name = profile.get("Name") or profile.get("Arn", "").rpartition("/")[2]
    if name:
        instance_profile = cloud.moto("iam", "GetInstanceProfile", {"InstanceProfileName": name})[
            "InstanceProfile"
        ]
        asked += [passing(role["Arn"], "ec2.amazonaws.com") for role in instance_profile["Roles"]]
    return asked


def _tagging(cloud: CheckedAccount, call: Call, kind: str, tags: dict[str, Values], by: str) -> Authorization:
    context = {**tags, "ec2:createaction": by}
    return Authorization(action="ec2:CreateTags", resource=ec2_arn(cloud, call, f"{kind}/*"), context=context)


def passing(role_arn: str, service: str) -> Authorization:
    """Ask for passing a role to a service."""
    return Authorization(action="iam:PassRole", resource=role_arn, context={"iam:passedtoservice": service})


def instances_by_id(cloud: CheckedAccount, call: Call) -> Asked:
    """Ask for instances by their tags. A missing one is not asked for: the call itself fails."""
    with cloud.lock:
        asked = call.params.get("InstanceIds") or [call.params["InstanceId"]]
        known = [cloud.world.instances[one] for one in asked if one in cloud.world.instances]
    action = f"ec2:{call.operation}"
    # ModifyInstanceAttribute's context, as AWS showed it of a dry run: the attribute, and what it is set to
    set_to = {name: one["Value"] for name, one in call.params.items() if isinstance(one, dict)}
    attributes: dict[str, Values] = {
        f"ec2:attribute/{name.lower()}": str(value).lower() for name, value in set_to.items()
    }
    return [
        Authorization(
            action=action,
            resource=ec2_arn(cloud, call, f"instance/{one.id}"),
            context=_resource_tags(one.tags) | attributes,
        )
        for one in known
    ]


def resource_by_id(cloud: CheckedAccount, call: Call) -> Asked:
    """Ask for the one resource that a call names, by its tags."""
    kind, member = BY_ID[call.operation]
    described = cloud.moto(
        "ec2", "DescribeTags", {"Filters": [{"Name": "resource-id", "Values": [call.params[member]]}]}
    )
    tags = _resource_tags({tag["Key"]: tag["Value"] for tag in described["Tags"]})
    return [
        Authorization(
            action=f"ec2:{call.operation}",
            resource=ec2_arn(cloud, call, f"{kind}/{call.params[member]}"),
            context=tags,
        )
    ]


def _request_tags(specifications: Iterable[dict[str, Any]]) -> dict[str, Values]:
    tags = {tag["Key"]: tag.get("Value", "") for one in specifications for tag in one.get("Tags", [])}
    return {f"aws:requesttag/{key.lower()}": value for key, value in tags.items()}


def _resource_tags(tags: dict[str, str]) -> dict[str, Values]:
    return {f"aws:resourcetag/{key.lower()}": value for key, value in tags.items()}


def ec2_arn(cloud: CheckedAccount, call: Call, name: str) -> str:
    """Return the ARN of a resource of EC2, such as instance/i-1."""
    return f"arn:aws:ec2:{call.region}:{cloud.account}:{name}"
