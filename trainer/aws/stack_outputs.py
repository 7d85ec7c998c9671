"""Outputs of the stack: the one SSM parameter that Pulumi writes and preflight reads. Standard library only.

The names here are the program's exports; `tests/infra/test_program.py` holds both sides to this file.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any

from trainer.base.errors import ConfigError

PROJECT = "mayfly"  # name of the Pulumi program, by which commands find its stacks
PARAMETER_LIMIT_BYTES = 4096  # SSM's standard tier, https://docs.aws.amazon.com/systems-manager/ (2026-11-20)
# Names of alarms, each after "<project>-<stack>-".
ALARMS = ("sweeper-silent", "control-silent", "instance-overdue", "dead-letters")
RETRAINS_ALARM = "retrains-overdue"  # of a stack with retrains
FORMAT = 4
PIECES, ONE_MODEL = "pieces", "model"  # what machines of one run share


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


def image_recipe(project: str, stack: str, image_line: str) -> str:
    """Return the name of the recipe of baked images. Image Builder's names have no dots."""
    return f"{project}-{stack}-{image_line.replace('.', '-')}"


def image_log(project: str, stack: str, image_line: str) -> str:
    """Return the name of the log of image builds."""
    return f"/aws/imagebuilder/{image_recipe(project, stack, image_line)}"


@dataclass(frozen=True, kw_only=True)
class StackOutputs:
    """Everything a launch needs to know about the account's standing resources.

    Its defaults are those of a stack without resources; the parameter has every field.
    """

    format: int = FORMAT
    project: str
    stack: str
    owner: str = ""
    region: str = ""
    bucket: str
    launch_template: str = ""  # its id
    image_line: str = ""
    image_parameter: str = ""  # SSM parameter that holds the line's newest image's id
    image_pipeline: bool = False  # images are baked: a launch boots the newest one of its line, if any
    subnets: dict[str, str] = field(default_factory=dict)  # availability zone -> subnet id
    security_group: str = ""
    # Of runs of several machines, by PIECES and ONE_MODEL: ids. {}: runs have one machine
    cluster_templates: dict[str, str] = field(default_factory=dict)
    cluster_groups: dict[str, str] = field(default_factory=dict)
    public_address: bool = True  # of an instance: false if its subnets reach the internet through a NAT
    schedule_group: str = ""
    instance_role_id: str = ""  # unique id (AROA...): what an instance writes begins with it
    prepare_template: str = ""  # id of the launch template of prepare runs
    prepare_role_id: str = ""  # unique id of the role of their instances
    prepare_type: str = ""  # the instance type of prepare and score runs
    score_template: str = ""  # id of the launch template of score runs
    score_role_id: str = ""  # unique id of the role of their instances
    script_profile_arn: str = ""  # instance profile of machines whose script gets secrets
    script_role_id: str = ""  # unique id of its role
    scheduler_role_arn: str = ""
    sweeper_arn: str = ""
    control_arn: str = ""
    control_types: list[str] = field(default_factory=list)  # patterns of the types that control may start
    template_condition: bool = True  # whether IAM holds control to the stack's launch templates
    retrains: list[dict[str, Any]] = field(default_factory=list)  # as retrains/schedule.py reads them
    retrain_format: int = 0  # of publications that the deployed control reads
    max_lifetime_minutes: int = 0  # the cap in the template's user data: no deadline may lie beyond it
    experiment_days: int = 0  # that models of experiments are kept; 0: for ever
    account_budget: int = 0  # dollars of a month that plans warn beyond; 0: none
    checkpoint_days: int = 7  # that the newest checkpoints are kept after their run
    attach: str = "off"  # whether people may get onto a running instance: off, ssm, ssh
    attach_from: str = ""  # the one address that may connect by SSH
    storage: str = "s3"  # or efs-cache
    file_system: str = ""  # of the cache, if there is one
    efs_throughput: str = ""  # of that

    def template_for(self, *, num_nodes: int, one_model: bool) -> str:
        """Return the launch template of a training. Raises ConfigError for several machines in a stack whose
        machines don't reach one another.
        """
        if num_nodes == 1:
            return self.launch_template
        template = self.cluster_templates.get(ONE_MODEL if one_model else PIECES)
        if template is None:
            raise ConfigError(
                f"machine.nodes is {num_nodes}, and the stack's machines don't reach one another",
                why="its setting cluster is false",
                do="Run pulumi config set cluster true, then pulumi up; or leave machine.nodes out.",
            )
        return template

    def groups_for(self, *, num_nodes: int, one_model: bool) -> list[str]:
        """Return the security groups of a training's machines, as its template has them."""
        cluster = self.cluster_groups.get(ONE_MODEL if one_model else PIECES, "") if num_nodes > 1 else ""
        return [self.security_group, *([cluster] if cluster else [])]

    def control_may_start(self, instance_type: str) -> bool:
        """Return whether control may start this type."""
        return any(fnmatchcase(instance_type, pattern) for pattern in self.control_types)

    @property
    def topic_arn(self) -> str:
        """Return the ARN of the topic that alarms and summaries are published to."""
        account = self.sweeper_arn.split(":")[4]
        return f"arn:aws:sns:{self.region}:{account}:{messages_topic(self.project, self.stack)}"

    @property
    def alarms(self) -> tuple[str, ...]:
        """Return the names of the stack's alarms, each after "<project>-<stack>-"."""
        return (*ALARMS, RETRAINS_ALARM) if self.retrains else ALARMS

    @property
    def left_behind(self) -> tuple[tuple[str, str, str], ...]:
        """Return what may be in the account after the stack is gone, and would make the next `pulumi up` fail
        if it is not in Pulumi's state: type, name in the program, id.

        The bucket stays. A build of an image that is under way makes its log again.
        """
        bucket = ("aws:s3/bucket:Bucket", "bucket", self.bucket)
        log = image_log(self.project, self.stack, self.image_line)
        builds = ("aws:cloudwatch/logGroup:LogGroup", f"{self.image_line}-builds", log)
        return (bucket, builds) if self.image_pipeline else (bucket,)

    def to_json(self) -> str:
        """Return the parameter's value. Raises ValueError above the parameter's 4 KB."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        if (size := len(text.encode())) > PARAMETER_LIMIT_BYTES:
            raise ValueError(
                f"stack outputs take {size} bytes, an SSM parameter holds {PARAMETER_LIMIT_BYTES}"
            )
        return text

    @classmethod
    def from_json(cls, text: str) -> StackOutputs:
        """Read the parameter's value. Raises ValueError for another format, and unless it has every field."""
        values = json.loads(text)
        if not isinstance(values, dict):
            raise ValueError("stack outputs are not a JSON object")
        if values.get("format") != FORMAT:
            raise ValueError(f"stack outputs have format {values.get('format')}, this version reads {FORMAT}")
        names = {item.name for item in fields(cls)}
        if missing := sorted(names - values.keys()):
            raise ValueError(f"stack outputs lack {', '.join(missing)}")
        return cls(**{name: values[name] for name in names})
