"""Pulumi mocks of a rehearsal: they create resources and answer look-ups with the embedded AWS."""

from __future__ import annotations

import threading
from typing import Any

from pulumi.runtime.mocks import MockCallArgs, MockResourceArgs, Mocks

from trainer.access import Access
from trainer.errors import ConfigError
from trainer.rehearsal import pulumi_messages as pulumi_messages  # registers its resource types
from trainer.rehearsal import pulumi_storage as pulumi_storage  # and this one
from trainer.rehearsal.applied_program import Recorder
from trainer.rehearsal.pulumi_resources import Resources


class EmbeddedCloud(Mocks):
    """Pulumi's mocks, whose new resources are real ones of the embedded AWS."""

    def __init__(self, access: Access, *, account: str) -> None:
        self.recorder = Recorder()
        self.resources = Resources(access, account=account, recorder=self.recorder)
        self._lock = threading.Lock()  # Pulumi registers resources from several threads

    def new_resource(self, args: MockResourceArgs) -> tuple[str | None, dict[Any, Any]]:
        if not args.custom:  # a component, or the stack itself: nothing on AWS
            return "", dict(args.inputs)
        with self._lock:
            resource_id, outputs = self.resources.make(args.typ, args.name, args.inputs)
        echoed = {key: value for key, value in args.inputs.items() if key != "code"}  # an archive is never read back
        return resource_id, {**echoed, **outputs}

    def call(self, args: MockCallArgs) -> tuple[dict[Any, Any], list[tuple[str, str]] | None]:
        with self._lock:
            return self._look_up(args.token, args.args), []

    def _look_up(self, token: str, given: dict[str, Any]) -> dict[str, Any]:
        if token == "aws:index/getCallerIdentity:getCallerIdentity":
            identity = self.resources.client("sts").get_caller_identity()
            return {
                "accountId": identity["Account"],
                "arn": identity["Arn"],
                "userId": identity["UserId"],
                "id": identity["Account"],
            }
        if token == "aws:index/getRegion:getRegion":
            return {"region": self.resources.region, "name": self.resources.region, "id": self.resources.region}
        if token == "aws:index/getAvailabilityZones:getAvailabilityZones":
            filters = [{"Name": item["name"], "Values": list(item["values"])} for item in given.get("filters", [])]
            zones = self.resources.client("ec2").describe_availability_zones(Filters=filters)["AvailabilityZones"]
            return {
                "names": [zone["ZoneName"] for zone in zones],
                "zoneIds": [zone["ZoneId"] for zone in zones],
                "id": self.resources.region,
            }
        if token == "aws:ssm/getParameter:getParameter":
            parameter = self.resources.client("ssm").get_parameter(Name=given["name"])["Parameter"]
            return {"insecureValue": parameter["Value"], "type": parameter["Type"], "id": given["name"]}
        if token == "aws:ec2/getAmi:getAmi":
            filters = [{"Name": item["name"], "Values": list(item["values"])} for item in given["filters"]]
            (image,) = self.resources.client("ec2").describe_images(Filters=filters)["Images"]
            return {
                "rootDeviceName": image["RootDeviceName"],
                "architecture": image["Architecture"],
                "imageId": image["ImageId"],
                "id": image["ImageId"],
            }
        raise ConfigError(
            f"the embedded AWS does not know the look-up {token}", do="Add it to trainer/rehearsal/pulumi_mocks.py."
        )
