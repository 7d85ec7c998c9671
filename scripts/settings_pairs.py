"""Apply the Pulumi program in each pair of its settings to the embedded AWS: `scripts/settings-pairs`. No
account.

Each combination (tests/infra/pairs.py) runs against mocks first and is held to the rules of
tests/infra/standing.py: closed, tagged, owned, taken down in reverse. Then it gets an account of its own,
with a VPC where it launches in an existing one. Every id and every ARN in a call must name an existing
resource. Prints a line for each combination; exits with 1 if one fails. About seven core-seconds each.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from tests.aws.server import CheckedAws
from tests.infra.pairs import EXISTING_KEY, VALUES, pairwise
from tests.infra.program import EXISTING_SUBNETS, run_program
from tests.infra.standing import assert_stands
from trainer.aws.access import Access
from trainer.base.errors import TrainerError
from trainer.rehearsal import pulumi_apply
from trainer.rehearsal.applied_program import AppliedProgram

ID = re.compile(r"\b(?:vpc|subnet|sg|lt|rtb|igw|vpce|fs|fsap|fsmt)-[0-9a-f]{8,17}\b")
ARN = re.compile(r"arn:aws:([a-z0-9-]+):[a-z0-9-]*:(\d{12}|):([^\s\"',\\]+)")
# Made by others: roles, documents and images by AWS, the webhook by a person, the parameter of an image by
# its build.
NOT_THE_STACKS = re.compile(
    r"aws-service-role/|^root$|document/|parameter/aws/|parameter/imagebuilder/|/webhook$"
)


def main() -> int:
    """Apply every combination; return 1 if one could not be applied or refers to something missing."""
    failed = 0
    with CheckedAws(run_nodes=False, fire_schedules=False) as aws:
        for number, config in enumerate(pairwise(VALUES), start=1):
            recorded = run_program(config)
            try:
                assert_stands(recorded, config)
                dangling = sorted(applied(aws, config))
                outcome = f"dangling: {', '.join(dangling)}" if dangling else "ok"
            except (TrainerError, AssertionError) as error:
                outcome = f"failed: {error}"
            failed += outcome != "ok"
            shown = " ".join(f"{key}={value}" for key, value in sorted(config.items())) or "the defaults"
            print(f"{number:3} {len(recorded.resources):4} resources  {outcome}  {shown}", flush=True)
    return 1 if failed else 0


def applied(aws: CheckedAws, config: Mapping[str, str], *, server: Path | None = None) -> Iterator[str]:
    """Apply one combination to a fresh account (as a fork of `server`), and yield each reference to something
    missing.
    """
    access = aws.account()
    given = existing_network(access) if "subnets" in config else {}
    if "kms_key" in config:
        given[EXISTING_KEY] = access.client("kms").create_key()["KeyMetadata"]["Arn"]
    text = json.dumps(config)
    for placeholder, identifier in given.items():
        text = text.replace(placeholder, identifier)
    program = pulumi_apply.apply(access, config=json.loads(text), module=aws.applier, server=server)
    yield from dangling_ids(program, set(given.values()))
    yield from dangling_arns(program, access, known=aws.cloud(access).image_builder)


def existing_network(access: Access) -> dict[str, str]:
    """Make a VPC with subnets in two zones, as the tests' mocks have it; return placeholder -> id."""
    ec2, ids = access.client("ec2"), {}
    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]
    # Nodes find a cache by its name, which has an address only then.
    ec2.modify_vpc_attribute(VpcId=vpc["VpcId"], EnableDnsHostnames={"Value": True})
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc["VpcId"])
    (main_table,) = ec2.describe_route_tables(Filters=[{"Name": "vpc-id", "Values": [vpc["VpcId"]]}])[
        "RouteTables"
    ]
    table = main_table["RouteTableId"]
    ec2.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)
    for number, placeholder in enumerate(EXISTING_SUBNETS):
        subnet = ec2.create_subnet(
            VpcId=vpc["VpcId"],
            CidrBlock=f"10.9.{number}.0/24",
            AvailabilityZone=f"us-east-1{'ab'[number]}",
        )
        with_address = {"SubnetId": subnet["Subnet"]["SubnetId"], "MapPublicIpOnLaunch": {"Value": True}}
        ec2.modify_subnet_attribute(**with_address)  # which image builds need
        ids[placeholder] = subnet["Subnet"]["SubnetId"]
    return ids


def dangling_ids(program: AppliedProgram, given: set[str]) -> Iterator[str]:
    """Yield ids in calls that neither an earlier answer nor `given` contains."""
    known = set(given)
    for call in program.calls:
        yield from set(ID.findall(json.dumps(call.params, default=str))) - known
        known |= {one for one in call.identifiers if ID.fullmatch(one)}
    yield from set(ID.findall(json.dumps(program.outputs))) - known


def dangling_arns(program: AppliedProgram, access: Access, *, known: Container[str]) -> Iterator[str]:
    """Yield ARNs of the account in calls, policies included, that name nothing; patterns are left out."""
    text = json.dumps([call.params for call in program.calls], default=str).replace('\\"', '"')
    for arn in sorted({match[0] for match in ARN.finditer(text)}):
        service, account, name = ARN.fullmatch(arn).groups()  # type: ignore[union-attr]  # it was found by it
        if (
            "*" in name
            or "${" in name
            or account not in ("", program.account)
            or NOT_THE_STACKS.search(name)
            or arn in known
        ):
            continue
        if (check := EXISTS.get(service)) is None:
            yield f"{service} (no check of its ARNs)"
            continue
        try:
            check(access, name)
        except (ClientError, LookupError):
            yield f"{service}:{name}"


def _iam(access: Access, name: str) -> None:
    kind, _, own = name.partition("/")
    iam = access.client("iam")
    if kind == "role":
        iam.get_role(RoleName=own)
    elif kind == "instance-profile":
        iam.get_instance_profile(InstanceProfileName=own)
    else:
        raise LookupError(kind)


def _ec2(access: Access, name: str) -> None:
    kind, _, own = name.partition("/")
    operation, member = {
        "launch-template": ("describe_launch_templates", "LaunchTemplateIds"),
        "security-group": ("describe_security_groups", "GroupIds"),
        "subnet": ("describe_subnets", "SubnetIds"),
        "vpc": ("describe_vpcs", "VpcIds"),
    }[kind]
    getattr(access.client("ec2"), operation)(**{member: [own]})


def _scheduler(access: Access, name: str) -> None:
    kind, _, own = name.partition("/")
    scheduler = access.client("scheduler")
    if kind == "schedule-group":
        scheduler.get_schedule_group(Name=own)
    else:
        group, _, schedule = own.partition("/")
        scheduler.get_schedule(GroupName=group, Name=schedule)


def _file_system(access: Access, name: str) -> None:
    kind, _, own = name.partition("/")
    efs = access.client("efs")
    if kind == "file-system":
        efs.describe_file_systems(FileSystemId=own)
    else:
        efs.describe_access_points(AccessPointId=own)


def _log_group(access: Access, name: str) -> None:
    group = name.removeprefix("log-group:").partition(":")[0]
    if not access.client("logs").describe_log_groups(logGroupNamePrefix=group)["logGroups"]:
        raise LookupError(group)


def _rule(access: Access, name: str) -> None:
    access.client("events").describe_rule(Name=name.removeprefix("rule/"))


EXISTS: dict[str, Callable[[Access, str], Any]] = {
    "iam": _iam,
    "ec2": _ec2,
    "scheduler": _scheduler,
    "ssm": lambda access, name: access.client("ssm").get_parameter(Name=name.removeprefix("parameter")),
    "elasticfilesystem": _file_system,
    "kms": lambda access, name: access.client("kms").describe_key(KeyId=name.removeprefix("key/")),
    "logs": _log_group,
    "events": _rule,
    "s3": lambda access, name: access.client("s3").head_bucket(Bucket=name.partition("/")[0]),
    "lambda": (
        lambda access, name: access.client("lambda").get_function(FunctionName=name.removeprefix("function:"))
    ),
    "sqs": lambda access, name: access.client("sqs").get_queue_url(QueueName=name),
    "sns": (
        lambda access, name: access.client("sns").get_topic_attributes(
            TopicArn=(
                f"arn:aws:sns:{access.region}:{access.access_key[4:16] if access.access_key else ''}:{name}"
            )
        )
    ),
}


if __name__ == "__main__":
    sys.exit(main())
