"""Rules of AWS's Fault Injection Service, which moto lacks: one action, which takes spot instances back.

Source: AWS FIS user guide, "Actions reference", and EC2 user guide, "Initiate a Spot Instance interruption"
(looked up 2026-11-24). An experiment recommends to rebalance at once, gives notice two minutes before the end, and
takes the instance back after `durationBeforeInterruption`.
"""

from __future__ import annotations

import re
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from trainer.rehearsal.account import Principal, Rules
from trainer.rehearsal.wire import Call
from trainer.rehearsal.world import AwsError

if TYPE_CHECKING:
    from tests.aws.account import CheckedAccount

FIS = "fis.amazonaws.com"
INTERRUPT = "aws:ec2:send-spot-instance-interruptions"
DURATION = re.compile(r"PT(1[0-5]|[2-9])M", re.ASCII)  # 2 to 15 minutes


def create_template(cloud: CheckedAccount, call: Call) -> dict[str, Any]:
    """Keep a template. Raises AwsError for another action than the one that is known here."""
    params = call.params
    unknown = {one["actionId"] for one in params["actions"].values()} - {INTERRUPT}
    targets = {one["resourceType"] for one in params["targets"].values()}
    if unknown or targets != {"aws:ec2:spot-instance"}:
        raise AwsError("ValidationException", f"The embedded AWS has no action {unknown} on {targets}.")
    (action,) = params["actions"].values()
    duration = DURATION.fullmatch(action.get("parameters", {}).get("durationBeforeInterruption", ""))
    if not duration:
        raise AwsError("ValidationException", "durationBeforeInterruption must be PT2M to PT15M.")
    template = {
        "minutes": int(duration[1]),
        "id": f"EXT{uuid.uuid4().hex[:17]}",
        "roleArn": params["roleArn"],
        "targets": params["targets"],
    }
    with cloud.lock:
        cloud.experiments[template["id"]] = template
    return {"experimentTemplate": _shown(template)}


def start(cloud: CheckedAccount, call: Call) -> dict[str, Any]:
    """Take a template's instances back, under its role. Raises AwsError for one that is not on spot."""
    template = _known(cloud, call.params["experimentTemplateId"])
    role = template["roleArn"].rpartition("/")[2]
    experiment = f"EXP{uuid.uuid4().hex[:17]}"
    if not cloud.trusts(role, FIS, f"arn:aws:fis:{call.region}:{cloud.account}:experiment/{experiment}"):
        raise AwsError("ValidationException", f"FIS can't assume the role {template['roleArn']}.")
    arns = [arn for target in template["targets"].values() for arn in target["resourceArns"]]
    principal = Principal(kind="TIME", name=experiment, role=role)
    for arn in arns:
        cloud.demand(principal, "ec2", "ec2:SendSpotInstanceInterruptions", arn)
    for instance_id in (arn.rpartition("/")[2] for arn in arns):
        with cloud.lock:
            now, minutes = cloud.clock.now(), timedelta(minutes=template["minutes"])
            cloud.world.recommend(instance_id, now)
            cloud.world.interrupt(instance_id, now, after=minutes)
    return {"experiment": {"id": experiment, "experimentTemplateId": template["id"]}}


def delete_template(cloud: CheckedAccount, call: Call) -> dict[str, Any]:
    template = _known(cloud, call.params["id"])
    with cloud.lock:
        del cloud.experiments[template["id"]]
    return {"experimentTemplate": _shown(template)}


def _shown(template: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in template.items() if name != "minutes"}


def _known(cloud: CheckedAccount, template_id: str) -> dict[str, Any]:
    with cloud.lock:
        if template_id not in cloud.experiments:
            raise AwsError("ResourceNotFoundException", f"There is no template {template_id}.", 404)
        return cloud.experiments[template_id]


RULES: Rules = {
    ("fis", "CreateExperimentTemplate"): create_template,
    ("fis", "StartExperiment"): start,
    ("fis", "DeleteExperimentTemplate"): delete_template,
}
