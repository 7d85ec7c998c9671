"""Outputs of the stack: the one SSM parameter that Pulumi writes and preflight reads. Standard library only.

The names here are the program's exports; `tests/infra/test_program.py` holds both sides to this file.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

PARAMETER_LIMIT_BYTES = (
    4096  # SSM standard tier, https://docs.aws.amazon.com/systems-manager/ (looked up 2026-11-20)
)
ALARMS = (
    "sweeper-silent",
    "control-silent",
    "instance-overdue",
    "retrains-overdue",
    "dead-letters",
)  # each after "<project>-<stack>-"
# 2: no control and no retrains; 1, before 2026-11-22: no instance_role_id, and nodes wrote under keys of
# their run
FORMAT = 3


def parameter_name(project: str, stack: str) -> str:
    """Return the SSM parameter's name, `/mayfly/<project>/<stack>`."""
    return f"/mayfly/{project}/{stack}"


def webhook_parameter(project: str, stack: str) -> str:
    """Return the name of the SecureString with the webhook's URL; a person sets it, Pulumi never sees it."""
    return f"{parameter_name(project, stack)}/webhook"


def secrets_path(project: str, stack: str) -> str:
    """Return the prefix, with a slash, of the names of SecureStrings that prepare runs may read."""
    return f"{parameter_name(project, stack)}/secrets/"


def script_secrets_path(project: str, stack: str) -> str:
    """Return the prefix, with a slash, of the names of SecureStrings that scripts may get; prepare runs read
    none.
    """
    return f"{parameter_name(project, stack)}/script-secrets/"


def messages_topic(project: str, stack: str) -> str:
    """Return the name of the topic that alarms and summaries are published to."""
    return f"{project}-{stack}-messages"


def dead_letters_queue(project: str, stack: str) -> str:
    """Return the name of the queue of events that functions failed on and of calls that schedules could not
    make.
    """
    return f"{project}-{stack}-dead-letters"


def metrics_namespace(project: str, stack: str) -> str:
    """Return the CloudWatch namespace of a stack's own metrics."""
    return f"Mayfly/{project}/{stack}"


def baked_parameter(project: str, stack: str, image_line: str) -> str:
    """Return the SSM parameter with a line's newest baked image, below the only path that Image Builder's
    role can write.
    """
    return f"/imagebuilder/{project}/{stack}/{image_line}"


@dataclass(frozen=True, kw_only=True)
class StackOutputs:
    """Everything a launch needs to know about the account's standing resources."""

    format: int
    project: str
    stack: str
    owner: str
    region: str
    bucket: str
    launch_template: str  # its id
    image_line: str
    image_parameter: str  # SSM parameter that holds the line's newest image's id
    subnets: dict[str, str]  # availability zone -> subnet id
    security_group: str
    schedule_group: str
    instance_role_id: str  # unique id (AROA...): what an instance writes begins with it
    prepare_template: str  # id of the launch template of prepare runs
    prepare_role_id: str  # unique id of the role of their instances
    prepare_type: str  # their instance type
    scheduler_role_arn: str
    sweeper_arn: str
    control_arn: str
    control_types: list[str]  # patterns of the instance types that control may start
    retrains: list[dict[str, Any]]  # schedules of the stack's setting, as retrains/schedule.py reads them
    retrain_format: int  # of publications that the deployed control reads
    max_lifetime_minutes: int  # the cap in the template's user data: no deadline may lie beyond it
    public_address: bool = True  # of an instance: false if its subnets reach the internet through a NAT
    attach: str = "off"  # whether people may get onto a running instance: off, ssm, ssh
    attach_from: str = ""  # the one address that may connect by SSH
    experiment_days: int = (
        0  # that models of experiments are kept; 0 in outputs older than 2026-11-22, which lack it
    )
    image_pipeline: bool = (
        False  # whether images are baked: a launch boots the newest one of its line, if there is any
    )
    script_profile_arn: str = (
        ""  # instance profile of machines whose script gets secrets; '' in outputs older than 2026-11-22
    )
    script_role_id: str = ""  # unique id of its role
    storage: str = "s3"  # or efs-cache
    file_system: str = ""  # of the cache, if there is one
    efs_throughput: str = ""  # of that

    @property
    def topic_arn(self) -> str:
        """Return the ARN of the topic that alarms and summaries are published to."""
        account = self.sweeper_arn.split(":")[4]
        return f"arn:aws:sns:{self.region}:{account}:{messages_topic(self.project, self.stack)}"

    def to_json(self) -> str:
        """Return the parameter's value. Raises ValueError above the parameter's 4 KB."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        if len(text.encode()) > PARAMETER_LIMIT_BYTES:
            raise ValueError(
                f"stack outputs take {len(text.encode())} bytes, an SSM parameter holds"
                f" {PARAMETER_LIMIT_BYTES}"
            )
        return text

    @classmethod
    def from_json(cls, text: str) -> StackOutputs:
        """Read the parameter's value. Raises ValueError naming what is missing or unknown."""
        values = json.loads(text)
        if not isinstance(values, dict):
            raise ValueError("stack outputs are not a JSON object")
        names = {field.name for field in fields(cls)}
        if missing := sorted(
            {field.name for field in fields(cls) if field.default is MISSING} - values.keys()
        ):
            raise ValueError(f"stack outputs lack {', '.join(missing)}")
        if values["format"] != FORMAT:
            raise ValueError(f"stack outputs have format {values['format']}, this version reads {FORMAT}")
        return cls(**{name: values[name] for name in names & values.keys()})
