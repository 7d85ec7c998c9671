"""Spot machines are taken back by an experiment under a role that may, and no other machines."""

from __future__ import annotations

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra import policies
from tests.aws.experiments import FIS, INTERRUPT
from tests.aws.server import CheckedAws
from trainer.aws.access import error_code

PARAMETERS = {"parameters": {"durationBeforeInterruption": "PT2M"}}
MAY = policies.document(policies.allow("End", "ec2:SendSpotInstanceInterruptions", "*"))


def start(desk: Any, instance_id: str, *, service: str = FIS, policy: dict[str, Any] = MAY) -> None:
    iam, fis = desk.access.client("iam"), desk.access.client("fis")
    trust = json.dumps(policies.trust(service))
    role = iam.create_role(RoleName="takes", AssumeRolePolicyDocument=trust)["Role"]
    iam.put_role_policy(RoleName="takes", PolicyName="own", PolicyDocument=json.dumps(policy))
    arn = f"arn:aws:ec2:us-east-1:{role['Arn'].split(':')[4]}:instance/{instance_id}"
    target = {"resourceType": "aws:ec2:spot-instance", "resourceArns": [arn], "selectionMode": "ALL"}
    template = fis.create_experiment_template(
        description="take one back",
        targets={"one": target},
        actions={"interrupt": {"actionId": INTERRUPT, "targets": {"SpotInstances": "one"}, **PARAMETERS}},
        stopConditions=[{"source": "none"}],
        roleArn=role["Arn"],
    )["experimentTemplate"]["id"]
    try:
        fis.start_experiment(experimentTemplateId=template)
    finally:
        fis.delete_experiment_template(id=template)
    with pytest.raises(ClientError, match="There is no template"):
        fis.start_experiment(experimentTemplateId=template)


def test_an_experiment_takes_a_spot_machine_back(aws_server: CheckedAws, desk: Any) -> None:
    taken, other = desk.launched(token="1", market="spot"), desk.launched(token="2", market="spot")
    start(desk, taken)
    assert desk.state(taken) == "running"
    aws_server.cloud(desk.access).advance(120)
    assert (desk.state(taken), desk.state(other)) == ("terminated", "running")
    assert desk.instance(taken)["StateReason"]["Code"] == "Server.SpotInstanceTermination"


@pytest.mark.parametrize(
    ("market", "changed", "code"),
    [
        ("on-demand", {}, "ValidationException"),
        ("spot", {"service": "ec2.amazonaws.com"}, "ValidationException"),
        ("spot", {"policy": policies.document(policies.allow("Look", "s3:GetObject", "*"))}, "Unauthorized"),
    ],
)
def test_an_experiment_is_refused(desk: Any, market: str, changed: dict[str, Any], code: str) -> None:
    instance_id = desk.launched(market=market)
    with pytest.raises(ClientError) as refused:
        start(desk, instance_id, **changed)
    assert error_code(refused.value).startswith(code)
    assert desk.state(instance_id) == "running"
