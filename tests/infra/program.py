"""The Pulumi program run in this process, against mocks that only write down what it registers."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pulumi
from pulumi.runtime import get_root_resource
from pulumi.runtime.config import set_all_config
from pulumi.runtime.mocks import MockCallArgs, MockMonitor, MockResourceArgs, Mocks, set_mocks

from infra.stack import Stack
from trainer.base.environment import REGION_VARIABLES
from trainer.rehearsal.pulumi_apply import settings

ROOT = Path(__file__).resolve().parents[2]
ACCOUNT, REGION, ZONES = "123456789012", "eu-west-1", ["eu-west-1a", "eu-west-1b", "eu-west-1c"]
_NAMED: dict[str, Any] = {"project": "mayfly", "name": "dev", "owner": "mayfly", "log_days": 30}
STACK = Stack(account=ACCOUNT, region=REGION, zones=tuple(ZONES), **_NAMED)
NAMED_BY = ("name", "bucket", "functionName")
# A VPC that is there already, with a private subnet in two zones.
EXISTING_VPC = "vpc-0e"
EXISTING_SUBNETS = {"subnet-0a": "eu-west-1a", "subnet-0b": "eu-west-1b"}
VPC_OF = dict.fromkeys(EXISTING_SUBNETS, EXISTING_VPC)
VPC_ATTRIBUTES = {"enableDnsSupport": True, "enableDnsHostnames": True}
NAME_SERVERS = ["AmazonProvidedDNS"]
ROUTES = [{"cidrBlock": "0.0.0.0/0", "natGatewayId": "nat-0a"}]


@dataclass
class Recorded:
    """The resources that the program registered, and its exports."""

    resources: list[MockResourceArgs] = field(default_factory=list)
    requests: list[Any] = field(default_factory=list)
    urns: dict[str, Any] = field(default_factory=dict)  # urn -> its request
    zones_asked: list[dict[str, Any]] = field(default_factory=list)
    outputs: dict[str, Any] = field(default_factory=dict)

    def inputs(self, resource_type: str, name: str = "") -> dict[str, Any]:
        """Return the inputs of the only resource of a type, or of the one with that logical name."""
        of_type = [item for item in self.resources if item.typ == resource_type]
        (found,) = [item.inputs for item in of_type if name in ("", item.name)]
        return found

    def all(self, resource_type: str) -> list[dict[str, Any]]:
        """Return the inputs of every resource of a type, by logical name: they are registered side by side,
        in any order.
        """
        by_name = sorted(self.resources, key=lambda item: item.name)
        return [item.inputs for item in by_name if item.typ == resource_type]

    def outlives(self, last: str, first: str) -> bool:
        """Return whether Pulumi deletes all of the type `first` before `last`: whether each depends on one of
        that.
        """

        def reaches(request: Any) -> bool:
            depends_on = [self.urns[urn] for urn in request.dependencies]
            return any(other.type == last or reaches(other) for other in depends_on)

        found = [request for request in self.requests if request.type == first]
        return bool(found) and all(map(reaches, found))

    def request(self, resource_type: str) -> Any:
        """Return the registration of the only resource of a type, which carries its options."""
        (found,) = [request for request in self.requests if request.type == resource_type]
        return found


class Recorder(Mocks):
    """Answers as an account with three zones and one VPC would, and makes nothing."""

    def __init__(self, recorded: Recorded) -> None:
        self.recorded = recorded

    def new_resource(self, args: MockResourceArgs) -> tuple[str | None, dict[Any, Any]]:
        if args.custom:
            self.recorded.resources.append(args)
        stack = pulumi.get_stack()
        identifier = f"{args.name}-id" if stack == "dev" else f"{args.name}-id-of-{stack}"
        physical = next((args.inputs[key] for key in NAMED_BY if key in args.inputs), identifier)
        given = {"arn": f"arn:aws:mock:::{physical}", "name": physical, "uniqueId": "AROA1"}
        return identifier, {**args.inputs, **given}

    def call(self, args: MockCallArgs) -> tuple[dict[Any, Any], list[tuple[str, str]] | None]:
        token, asked = args.token.partition("/")[2].partition(":")[0], args.args
        if token == "getAvailabilityZones":
            self.recorded.zones_asked.append(asked)
        if token == "getParameter":  # of an image line
            return {"insecureValue": f"ami-{asked['name'].split('/')[5]}", "id": asked["name"]}, []
        if token == "getAmi":
            (image,) = asked["filters"][0]["values"]
            return {"rootDeviceName": f"/dev/{image.removeprefix('ami-')}-root", "id": image}, []
        wanted = {one["name"]: list(one["values"]) for one in asked.get("filters") or []}
        named = wanted.get("subnet-id", list(EXISTING_SUBNETS))
        answers: dict[str, dict[str, Any]] = {
            "getCallerIdentity": {"accountId": ACCOUNT, "arn": "", "userId": "", "id": ACCOUNT},
            "getRegion": {"region": REGION, "id": REGION},
            "getAvailabilityZones": {"names": ZONES, "zoneIds": [], "id": REGION},
            "getVpc": {
                "id": EXISTING_VPC,
                "cidrBlock": "10.20.0.0/16",
                "dhcpOptionsId": "dopt-0e",
                **VPC_ATTRIBUTES,
            },
            "getVpcDhcpOptions": {"id": "dopt-0e", "domainNameServers": NAME_SERVERS},
            "getSubnets": {"ids": [one for one in named if one in EXISTING_SUBNETS], "id": REGION},
            "getSubnet": {
                "id": asked.get("id"),
                "vpcId": VPC_OF.get(asked.get("id", ""), ""),
                "availabilityZone": EXISTING_SUBNETS.get(asked.get("id", ""), ""),
                "mapPublicIpOnLaunch": False,
            },
            "getRouteTables": {"ids": ["rtb-0a"] if "association.main" in wanted else [], "id": REGION},
            "getRouteTable": {"id": "rtb-0a", "routes": ROUTES},
        }
        return answers[token], []


class RecordingMonitor(MockMonitor):
    """Keeps the requests as well: protection and retention are options, which mocks are not shown."""

    def __init__(self, mocks: Mocks, recorded: Recorded) -> None:
        super().__init__(mocks)
        self.recorded = recorded

    def RegisterResource(self, request: Any) -> Any:
        self.recorded.requests.append(request)
        answer = super().RegisterResource(request)
        self.recorded.urns[answer.urn] = request
        return answer


def run_program(config: Mapping[str, str] | None = None, *, stack: str = "dev") -> Recorded:
    """Run infra/__main__.py with the defaults of Pulumi.yaml and `config` over them. Raises pulumi.RunError
    as it does.
    """
    recorded = Recorded()
    mocks = Recorder(recorded)
    set_mocks(mocks, project="mayfly", stack=stack, preview=False, monitor=RecordingMonitor(mocks, recorded))
    values = settings(ROOT, stack=stack, overrides=config or {})
    set_all_config({**{f"mayfly:{key}": value for key, value in values.items()}, "aws:region": REGION})
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))  # as Pulumi finds `infra` in a checkout that is installed

    def run() -> Any:
        get_root_resource().outputs.clear()  # of the run before
        runpy.run_path(str(ROOT / "infra" / "__main__.py"), run_name="__main__")
        return pulumi.Output.all(**get_root_resource().outputs).apply(recorded.outputs.update)

    with patch.dict("os.environ"):
        for name in REGION_VARIABLES:  # this shell's, which the program would compare
            os.environ.pop(name, None)
        pulumi.runtime.test(run)()
    return recorded
