"""The program run once, against mocks that only write down what it registers."""

from __future__ import annotations

import runpy
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulumi
import pytest
from pulumi.runtime import get_root_resource
from pulumi.runtime.config import set_all_config
from pulumi.runtime.mocks import MockCallArgs, MockMonitor, MockResourceArgs, Mocks, set_mocks

from trainer.rehearsal.pulumi_apply import settings

ROOT = Path(__file__).resolve().parents[2]
ACCOUNT, REGION, ZONES = "123456789012", "eu-west-1", ["eu-west-1a", "eu-west-1b", "eu-west-1c"]
NAMED_BY = ("name", "bucket", "functionName")


@dataclass
class Recorded:
    """What the program registered, and what it exports."""

    resources: list[MockResourceArgs] = field(default_factory=list)
    requests: list[Any] = field(default_factory=list)
    urns: dict[str, Any] = field(default_factory=dict)  # urn -> its request
    zones_asked: list[dict[str, Any]] = field(default_factory=list)
    outputs: dict[str, Any] = field(default_factory=dict)

    def inputs(self, resource_type: str, name: str = "") -> dict[str, Any]:
        """Return the inputs of the only resource of a type, or of the one with that logical name."""
        found = [item.inputs for item in self.resources if item.typ == resource_type and name in ("", item.name)]
        assert len(found) == 1, f"{len(found)} resources {resource_type} {name}"
        return found[0]

    def all(self, resource_type: str) -> list[dict[str, Any]]:
        """Return the inputs of every resource of a type, by logical name: they are registered side by side, in any order."""
        return [item.inputs for item in sorted(self.resources, key=lambda item: item.name) if item.typ == resource_type]

    def outlives(self, last: str, first: str) -> bool:
        """Return whether Pulumi deletes all of the type `first` before `last`: whether each depends on one of that."""

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
    """Answers as an account with three zones would, and makes nothing."""

    def __init__(self, recorded: Recorded) -> None:
        self.recorded = recorded

    def new_resource(self, args: MockResourceArgs) -> tuple[str | None, dict[Any, Any]]:
        if args.custom:
            self.recorded.resources.append(args)
        physical = next((args.inputs[key] for key in NAMED_BY if key in args.inputs), f"{args.name}-id")
        return f"{args.name}-id", {**args.inputs, "arn": f"arn:aws:mock:::{physical}", "name": physical, "uniqueId": "AROA1"}

    def call(self, args: MockCallArgs) -> tuple[dict[Any, Any], list[tuple[str, str]] | None]:
        answers: dict[str, dict[str, Any]] = {
            "aws:index/getCallerIdentity:getCallerIdentity": {"accountId": ACCOUNT, "arn": "", "userId": "", "id": ACCOUNT},
            "aws:index/getRegion:getRegion": {"region": REGION, "id": REGION},
            "aws:index/getAvailabilityZones:getAvailabilityZones": {"names": ZONES, "zoneIds": [], "id": REGION},
        }
        if args.token == "aws:ssm/getParameter:getParameter":
            return {"insecureValue": f"ami-{args.args['name'].split('/')[5]}", "id": args.args["name"]}, []
        if args.token == "aws:ec2/getAmi:getAmi":
            (image,) = args.args["filters"][0]["values"]
            system = image.removeprefix("ami-")
            return {"architecture": system, "rootDeviceName": f"/dev/{system}-root", "id": image}, []
        if args.token.endswith("AvailabilityZones"):
            self.recorded.zones_asked.append(args.args)
        return answers[args.token], []


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


@pytest.fixture(scope="session")
def program() -> Recorded:
    """Run infra/__main__.py once with the defaults of Pulumi.yaml."""
    recorded = Recorded()
    mocks = Recorder(recorded)
    set_mocks(mocks, project="mayfly", stack="dev", preview=False, monitor=RecordingMonitor(mocks, recorded))
    set_all_config({f"mayfly:{key}": value for key, value in settings(ROOT, stack="dev", overrides={}).items()})
    sys.path.insert(0, str(ROOT))  # as Pulumi finds `infra` in a checkout that is installed

    def run() -> Any:
        runpy.run_path(str(ROOT / "infra" / "__main__.py"), run_name="__main__")
        return pulumi.Output.all(**get_root_resource().outputs).apply(recorded.outputs.update)

    pulumi.runtime.test(run)()
    return recorded
