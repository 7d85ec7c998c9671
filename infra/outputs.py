"""The outputs of the stack, which a launch needs: exports for people, and one SSM parameter, which a launcher
reads without Pulumi.
"""

from __future__ import annotations

from typing import Any

import pulumi
import pulumi_aws as aws

from infra.efs import EfsCache
from infra.identity import Identity
from infra.launch_templates import ImageLine, LaunchTemplates
from infra.network import Network
from infra.stack import Stack
from infra.stack_settings import Settings
from trainer.aws.stack_outputs import FORMAT, StackOutputs, parameter_name
from trainer.retrains.schedule import PUBLISHED_FORMAT


def publish(
    stack: Stack,
    settings: Settings,
    line: ImageLine,
    identity: Identity,
    network: Network,
    templates: LaunchTemplates,
    cache: EfsCache | None,
    **made: pulumi.Output[str],
) -> None:
    """Export the stack's outputs, and write them to the parameter. `made` are further ones, by name."""
    outputs: dict[str, Any] = {
        "format": FORMAT,
        "project": stack.project,
        "stack": stack.name,
        "owner": stack.owner,
        "region": stack.region,
        "launch_template": templates.training,
        "image_line": line.name,
        "image_parameter": line.parameter,
        "subnets": network.subnet_ids,
        "security_group": network.security_group_id,
        "cluster_templates": templates.cluster,
        "cluster_groups": network.cluster_group_ids,
        "public_address": network.public_address,
        "instance_role_id": identity.instance.unique_id,
        "prepare_template": templates.prepare,
        "prepare_role_id": identity.prepare.unique_id,
        "prepare_type": settings.prepare_type,
        "score_template": templates.score,
        "score_role_id": identity.score.unique_id,
        "script_profile_arn": identity.script_profile.arn,
        "script_role_id": identity.script.unique_id,
        "scheduler_role_arn": identity.scheduler.arn,
        "control_types": list(settings.control_types),
        "retrains": [retrain.to_dict() for retrain in settings.retrains],
        "retrain_format": PUBLISHED_FORMAT,
        "max_lifetime_minutes": settings.max_lifetime_minutes,
        "experiment_days": settings.retention.experiment_days,
        "checkpoint_days": settings.retention.checkpoint_days,
        "account_budget": settings.account_budget,
        "template_condition": settings.template_condition,
        "image_pipeline": bool(settings.image_pipeline),
        "storage": "efs-cache" if cache else "s3",
        "file_system": cache.file_system_id if cache else "",
        "efs_throughput": settings.efs_throughput,
        "attach": "ssh" if settings.ssh_from else settings.attach,
        "attach_from": settings.ssh_from,
        **made,
    }
    text = pulumi.Output.from_input(outputs).apply(lambda values: StackOutputs(**values).to_json())
    aws.ssm.Parameter(
        "outputs",
        name=parameter_name(stack.project, stack.name),
        description="What mayfly launches with. Written by Pulumi.",
        type="String",
        tier="Standard",
        insecure_value=text,
        tags=stack.tags,
    )
    for name, value in outputs.items():
        pulumi.export(name, value)
