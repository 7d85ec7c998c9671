"""Pulumi mocks of a rehearsal: they create resources and answer look-ups with the embedded AWS.

A rehearsal has no network of yours, so that of the setting `subnets` is not found.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from pulumi.runtime.mocks import MockCallArgs, MockResourceArgs, Mocks

from trainer.aws.access import Access
from trainer.base.errors import ConfigError
from trainer.rehearsal import pulumi_network as pulumi_network  # registers its resource types
from trainer.rehearsal.applied_program import Recorder
from trainer.rehearsal.pulumi_resources import Resources

Given = Mapping[str, Any]
LookUp = Callable[[Resources, Given], dict[str, Any]]


class EmbeddedCloud(Mocks):
    """Pulumi's mocks that create each resource on the embedded AWS."""

    def __init__(self, access: Access, *, account: str) -> None:
        self.recorder = Recorder()
        self.resources = Resources(access, account=account, recorder=self.recorder)
        self._lock = threading.Lock()  # Pulumi registers resources from several threads

    def new_resource(self, args: MockResourceArgs) -> tuple[str | None, dict[Any, Any]]:
        if not args.custom:  # a component, or the stack itself: nothing on AWS
            return "", dict(args.inputs)
        with self._lock:
            resource_id, outputs = self.resources.make(args.typ, args.name, args.inputs)
        # An archive is never read back.
        inputs = {key: value for key, value in args.inputs.items() if key != "code"}
        return resource_id, {**inputs, **outputs}

    def call(self, args: MockCallArgs) -> tuple[dict[Any, Any], list[tuple[str, str]] | None]:
        if args.token not in LOOK_UPS:
            do = "Add it to trainer/rehearsal/pulumi_mocks.py."
            raise ConfigError(f"the embedded AWS does not know the look-up {args.token}", do=do)
        with self._lock:
            return LOOK_UPS[args.token](self.resources, args.args), []


def _identity(cloud: Resources, given: Given) -> dict[str, Any]:
    identity = cloud.client("sts").get_caller_identity()
    account = identity["Account"]
    return {"accountId": account, "arn": identity["Arn"], "userId": identity["UserId"], "id": account}


def _region(cloud: Resources, given: Given) -> dict[str, Any]:
    return {"region": cloud.region, "name": cloud.region, "id": cloud.region}


def _zones(cloud: Resources, given: Given) -> dict[str, Any]:
    zones = cloud.client("ec2").describe_availability_zones(Filters=filters(given))["AvailabilityZones"]
    return {"names": [zone["ZoneName"] for zone in zones], "id": cloud.region}


def _parameter(cloud: Resources, given: Given) -> dict[str, Any]:
    parameter = cloud.client("ssm").get_parameter(Name=given["name"])["Parameter"]
    return {"insecureValue": parameter["Value"], "type": parameter["Type"], "id": given["name"]}


def _image(cloud: Resources, given: Given) -> dict[str, Any]:
    (image,) = cloud.client("ec2").describe_images(Filters=filters(given))["Images"]
    return {"rootDeviceName": image["RootDeviceName"], "imageId": image["ImageId"], "id": image["ImageId"]}


def filters(given: Given) -> list[dict[str, Any]]:
    """Return a look-up's filters as EC2 takes them."""
    return [{"Name": one["name"], "Values": list(one["values"])} for one in given.get("filters") or []]


LOOK_UPS: dict[str, LookUp] = {
    "aws:index/getCallerIdentity:getCallerIdentity": _identity,
    "aws:index/getRegion:getRegion": _region,
    "aws:index/getAvailabilityZones:getAvailabilityZones": _zones,
    "aws:ssm/getParameter:getParameter": _parameter,
    "aws:ec2/getAmi:getAmi": _image,
}
