"""Create the resource types of infra/efs.py on the embedded AWS, as `pulumi_resources` does the others."""

from __future__ import annotations

from trainer.rehearsal.pulumi_resources import Made, Properties, Resources, makes
from trainer.rehearsal.pulumi_shapes import tag_list


@makes("aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule")
def _security_group_ingress_rule(cloud: Resources, name: str, properties: Properties) -> Made:
    group = properties.pop("securityGroupId")
    source = {
        "groupId": properties.pop("referencedSecurityGroupId"),
        "description": properties.pop("description", ""),
    }
    tags = [{"ResourceType": "security-group-rule", "Tags": _tags(properties)}]
    permission = cloud.shaped(
        "ec2", "IpPermission", {**properties.rest(), "userIdGroupPairs": [source]}, f"rule {name}"
    )
    made = cloud.client("ec2").authorize_security_group_ingress(
        GroupId=group, IpPermissions=[permission], TagSpecifications=tags
    )
    return made["SecurityGroupRules"][0]["SecurityGroupRuleId"], {}


@makes("aws:efs/fileSystem:FileSystem")
def _file_system(cloud: Resources, name: str, properties: Properties) -> Made:
    tags, lifecycle = _tags(properties), properties.pop("lifecyclePolicies", [])
    made = cloud.send("efs", "CreateFileSystem", properties.rest(), Tags=tags)
    rules = {"fileSystemId": made["FileSystemId"], "lifecyclePolicies": lifecycle}
    cloud.send("efs", "PutLifecycleConfiguration", rules)
    return made["FileSystemId"], {"arn": made["FileSystemArn"]}


@makes("aws:efs/accessPoint:AccessPoint")
def _access_point(cloud: Resources, name: str, properties: Properties) -> Made:
    tags = _tags(properties)
    made = cloud.send("efs", "CreateAccessPoint", properties.rest(), ClientToken=name, Tags=tags)
    return made["AccessPointId"], {"arn": made["AccessPointArn"]}


@makes("aws:efs/mountTarget:MountTarget")
def _mount_target(cloud: Resources, name: str, properties: Properties) -> Made:
    return cloud.send("efs", "CreateMountTarget", properties.rest())["MountTargetId"], {}


@makes("aws:efs/fileSystemPolicy:FileSystemPolicy")
def _file_system_policy(cloud: Resources, name: str, properties: Properties) -> Made:
    return str(cloud.send("efs", "PutFileSystemPolicy", properties.rest())["FileSystemId"]), {}


def _tags(properties: Properties) -> list[dict[str, str]]:
    return tag_list(properties.pop("tags", {}))
