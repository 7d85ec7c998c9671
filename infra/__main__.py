"""The permanent resources of the account, from top to bottom. Run it with `pulumi up`; rehearsals apply it to
the embedded AWS.

Instances are not here: a launch makes each by one CreateFleet call from the template below, and the safety
net ends it.
"""

from dataclasses import replace
from typing import Any

import pulumi
import pulumi_aws as aws

from infra.access_logs import AccessLogs, AccessLogsArgs
from infra.attach import SSM, AttachPolicy, AttachPolicyArgs, agent_messages
from infra.budget import AccountBudget, AccountBudgetArgs
from infra.control import ControlFunction, ControlFunctionArgs, Sweeper, SweeperArgs
from infra.efs import EfsCache, EfsCacheArgs
from infra.encryption import KeyUse, KeyUseArgs, StackKey, StackKeyArgs, own_key
from infra.identity import Identity, IdentityArgs
from infra.image import ImagePipelines, ImagePipelinesArgs
from infra.image_lines import read_image_lines
from infra.launch_templates import LaunchTemplates, LaunchTemplatesArgs, bootstrap_template, render_user_data
from infra.launcher import LauncherPolicy, LauncherPolicyArgs
from infra.network import Network, NetworkArgs
from infra.notify import DeadLetters, DeadLettersArgs, Notifications, NotificationsArgs
from infra.replication import Replica, ReplicaArgs, other_region
from infra.schedule import Retrains, RetrainsArgs, Schedule, ScheduleArgs
from infra.settings import look_up_account, read_settings
from infra.storage import ModelStore, ModelStoreArgs, beside_bucket
from infra.subnets import look_up_vpc
from trainer.aws.stack_outputs import (
    FORMAT,
    StackOutputs,
    baked_parameter,
    dead_letters_queue,
    messages_topic,
    parameter_name,
)
from trainer.retrains.schedule import PUBLISHED_FORMAT

CONTROL_MINUTES = 5  # between two calls of control
PREPARE_MINUTES = 30  # after its boot, a prepare run's instance powers itself off whatever happens

settings = read_settings()
account = look_up_account()
existing_vpc = look_up_vpc(settings, zones=account.availability_zones) if settings.vpc_id else None
lines = read_image_lines(x86_64=settings.image_line, arm64=settings.image_line_arm64)

# Names are fixed here, before anything exists, so that each policy can name exactly what it allows.
bucket_name = f"{settings.prefix}-{account.id}-{account.region}"
sweeper_name = f"{settings.prefix}-sweeper"
sweeper_log_group = f"/aws/lambda/{sweeper_name}"
control_name = f"{settings.prefix}-control"
dead_letters_name = dead_letters_queue(settings.project, settings.stack)
schedule_group = settings.prefix
retrain_group = f"{settings.prefix}-retrains"
topic_name = messages_topic(settings.project, settings.stack)

log_bucket_name, replica_name = (
    beside_bucket(settings.prefix, kind, account) for kind in ("logs", "replica")
)

key: pulumi.Input[str] | None
if settings.kms_key == "create":
    key = StackKey("key", StackKeyArgs(account=account.id, alias=settings.prefix, tags=settings.tags)).arn
else:
    key = own_key(settings.kms_key, account.region)

store = ModelStore(
    "store",
    ModelStoreArgs(
        bucket_name=bucket_name,
        noncurrent_days=settings.noncurrent_days,
        experiment_days=settings.experiment_days,
        tags=settings.tags,
        key=key,
    ),
)

if settings.access_logs:
    AccessLogs(
        "access-logs",
        AccessLogsArgs(
            account=account.id,
            bucket=store.bucket,
            bucket_name=bucket_name,
            log_bucket_name=log_bucket_name,
            log_days=settings.log_days,
            tags=settings.tags,
        ),
    )

roles = IdentityArgs(
    account=account.id,
    region=account.region,
    project=settings.project,
    stack=settings.stack,
    bucket=bucket_name,
    sweeper_name=sweeper_name,
    sweeper_log_group=sweeper_log_group,
    control_name=control_name,
    dead_letters=dead_letters_name,
    schedule_group=schedule_group,
    retrain_group=retrain_group if settings.retrains else "",
    training_also=(agent_messages(),) if settings.attach == SSM else (),
    tags=settings.tags,
)
identity = Identity("identity", roles)

if key is not None:  # the policies of control and of people include it, too (launcher.py)
    KeyUse(
        "key-use",
        KeyUseArgs(
            region=account.region,
            key=key,
            writers={
                "instance": identity.instance.role_name,
                "prepare": identity.prepare.role_name,
                "script": identity.script.role_name,
            },
            readers={"sweeper": identity.sweeper.role_name},
        ),
    )

if settings.replicate_to:
    Replica(
        "replica",
        ReplicaArgs(
            account=account.id,
            region=account.region,
            to_region=other_region(settings.replicate_to, account.region),
            prefix=settings.prefix,
            bucket_name=bucket_name,
            replica_name=replica_name,
            role_name=roles.replication_role,
            noncurrent_days=settings.noncurrent_days,
            experiment_days=settings.experiment_days,
            tags=settings.tags,
            key=key,
        ),
        store,
    )

dead_letters = DeadLetters("dead-letters", DeadLettersArgs(queue_name=dead_letters_name, tags=settings.tags))

sweeper = Sweeper(
    "sweeper",
    SweeperArgs(
        function_name=sweeper_name,
        log_group=sweeper_log_group,
        log_days=settings.log_days,
        role_arn=identity.sweeper.arn,
        bucket=store.bucket,
        project=settings.project,
        stack=settings.stack,
        schedule_group=schedule_group,
        dead_letters_arn=dead_letters.arn,
        tags=settings.tags,
    ),
)

schedule = Schedule(
    "schedule",
    ScheduleArgs(
        group_name=schedule_group,
        sweep_minutes=settings.sweep_minutes,
        sweeper_arn=sweeper.arn,
        scheduler_role_arn=identity.scheduler.arn,
        dead_letters_arn=dead_letters.arn,
        tags=settings.tags,
    ),
)

# Launches need these. They depend on the safety net only so that Pulumi deletes them first.
network = Network(
    "network",
    NetworkArgs(
        prefix=settings.prefix,
        region=account.region,
        vpc_cidr=settings.vpc_cidr,
        availability_zones=account.availability_zones[: settings.max_availability_zones],
        existing=existing_vpc,
        ipv6=settings.ipv6,
        endpoints=settings.endpoints,
        ssh_from=settings.attach_from,
        tags=settings.tags,
        file_system=settings.storage == "efs-cache",
        public_addresses=settings.image_pipeline,
    ),
    opts=pulumi.ResourceOptions(depends_on=[sweeper, schedule]),
)

cache = None
if network.file_system_group_id is not None:
    cache = EfsCache(
        "cache",
        EfsCacheArgs(
            prefix=settings.prefix,
            throughput=settings.efs_throughput,
            subnet_ids=network.subnet_ids,
            security_group_id=network.file_system_group_id,
            instance_role=identity.instance.role_name,
            tags=settings.tags,
            key=key,
        ),
    )

bootstrap: dict[str, Any] = {"bucket": bucket_name, "region": account.region, "project": settings.project}


def training_user_data(file_system: str) -> str:
    text = bootstrap_template()
    cap = settings.max_lifetime_minutes
    return render_user_data(
        text, **bootstrap, cap_minutes=cap, lock="requirements.lock", file_system=file_system
    )


training = LaunchTemplatesArgs(
    prefix=settings.prefix,
    purpose="Training instances",
    image_lines=lines,
    user_data=cache.source.apply(training_user_data) if cache else training_user_data(""),
    instance_profile_arn=identity.instance_profile.arn,
    security_group_id=network.security_group_id,
    public_address=existing_vpc is None or existing_vpc.public,
    ipv6=settings.ipv6,
    volume_gib=settings.volume_gib,
    tags=settings.tags,
)
prepare = replace(
    training,
    prefix=f"{settings.prefix}-prepare",
    purpose="Prepare runs' instances",
    user_data=render_user_data(
        bootstrap_template(), **bootstrap, cap_minutes=PREPARE_MINUTES, lock="prepare.lock"
    ),
    instance_profile_arn=identity.prepare_profile.arn,
)
after_net = pulumi.ResourceOptions(depends_on=[sweeper, schedule])
templates = LaunchTemplates("training", training, opts=after_net)
prepare_templates = LaunchTemplates("prepare", prepare, opts=after_net)

if settings.image_pipeline:
    ImagePipelines(
        "images",
        ImagePipelinesArgs(
            account=account.id,
            region=account.region,
            project=settings.project,
            stack=settings.stack,
            prefix=settings.prefix,
            bucket=store.bucket,
            bucket_name=bucket_name,
            image_lines=lines,
            build_type=settings.image_build_type,
            volume_gib=settings.volume_gib,
            log_days=settings.log_days,
            vpc_id=network.vpc_id,
            subnet_id=next(iter(network.subnet_ids.values())),
            tags=settings.tags,
        ),
    )
baked = (
    [baked_parameter(settings.project, settings.stack, line.name) for line in lines]
    if settings.image_pipeline
    else []
)

permissions = LauncherPolicyArgs(
    account=account.id,
    region=account.region,
    project=settings.project,
    stack=settings.stack,
    bucket=bucket_name,
    schedule_group=schedule_group,
    sweeper_name=sweeper_name,
    control_name=control_name,
    instance_roles=(roles.instance_role, roles.script_role),
    scheduler_role=roles.scheduler_role,
    image_parameters=tuple(line.parameter for line in lines),
    baked_parameters=tuple(baked),
    launch_templates=list(templates.template_ids.values()),
    vpc=network.vpc_id,
    subnets=existing_vpc.subnet_ids if existing_vpc else (),
    security_group=network.security_group_id,
    tags=settings.tags,
    backups=settings.storage == "local",
    key=key or "",
)
launcher = LauncherPolicy("launcher", permissions)

control = ControlFunction(
    "control",
    ControlFunctionArgs(
        function_name=control_name,
        role_name=roles.control_role,
        log_group=f"/aws/lambda/{control_name}",
        log_days=settings.log_days,
        every_minutes=CONTROL_MINUTES,
        permissions=replace(
            permissions,
            instance_roles=(roles.instance_role, roles.prepare_role, roles.script_role),
            launch_templates=[*permissions.launch_templates, *prepare_templates.template_ids.values()],
        ),
        instance_types=(*settings.control_types, settings.prepare_type),
        scheduler_role_arn=identity.scheduler.arn,
        topic=topic_name,
        dead_letters=dead_letters_name,
        dead_letters_arn=dead_letters.arn,
        tags=settings.tags,
    ),
    opts=pulumi.ResourceOptions(depends_on=[schedule]),
)

Retrains(
    "retrains",
    RetrainsArgs(
        group_name=retrain_group,
        schedules=settings.retrains,
        target_arn=control.arn,
        role_arn=identity.scheduler.arn,
        dead_letters_arn=dead_letters.arn,
        tags=settings.tags,
    ),
)

notifications = Notifications(
    "notifications",
    NotificationsArgs(
        account=account.id,
        region=account.region,
        project=settings.project,
        stack=settings.stack,
        topic_name=topic_name,
        function_name=f"{settings.prefix}-notifier",
        role_name=roles.notifier_role,
        log_days=settings.log_days,
        email=settings.notify_email,
        account_has_budget=settings.account_budget > 0,
        dead_letters_name=dead_letters_name,
        dead_letters_arn=dead_letters.arn,
        sweep_minutes=settings.sweep_minutes,
        control_minutes=CONTROL_MINUTES,
        tags=settings.tags,
    ),
)

if settings.account_budget:
    AccountBudget(
        "account-budget",
        AccountBudgetArgs(
            budget_name=f"{settings.prefix}-{account.region}-account",
            usd_a_month=settings.account_budget,
            topic_arn=notifications.topic_arn,
            tags=settings.tags,
        ),
    )

# What a launch needs to know, for people as exports and for the launcher as one parameter: it reads that
# without Pulumi.
outputs: dict[str, Any] = {
    "format": FORMAT,
    "project": settings.project,
    "stack": settings.stack,
    "owner": settings.owner,
    "region": account.region,
    "bucket": store.bucket,
    "launch_templates": templates.template_ids,
    "images": {line.name: line.parameter for line in lines},
    "subnets": network.subnet_ids,
    "security_group": network.security_group_id,
    "public_address": training.public_address,
    "schedule_group": schedule.group,
    "instance_role_id": identity.instance.unique_id,
    "prepare_templates": prepare_templates.template_ids,
    "prepare_role_id": identity.prepare.unique_id,
    "prepare_type": settings.prepare_type,
    "script_profile_arn": identity.script_profile.arn,
    "script_role_id": identity.script.unique_id,
    "scheduler_role_arn": identity.scheduler.arn,
    "sweeper_arn": sweeper.arn,
    "control_arn": control.arn,
    "control_types": list(settings.control_types),
    "retrains": [retrain.to_dict() for retrain in settings.retrains],
    "retrain_format": PUBLISHED_FORMAT,
    "max_lifetime_minutes": settings.max_lifetime_minutes,
    "experiment_days": settings.experiment_days,
    "image_pipeline": settings.image_pipeline,
    "storage": settings.storage,
    "file_system": cache.file_system_id if cache else "",
    "efs_throughput": settings.efs_throughput if cache else "",
    "attach": settings.attach,
    "attach_from": settings.attach_from,
}
aws.ssm.Parameter(
    "outputs",
    name=parameter_name(settings.project, settings.stack),
    description="What mayfly launches with. Written by Pulumi.",
    type="String",
    tier="Standard",
    insecure_value=pulumi.Output.from_input(outputs).apply(lambda values: StackOutputs(**values).to_json()),
    tags=settings.tags,
)
for name, value in outputs.items():
    pulumi.export(name, value)
pulumi.export("launcher_policy_arn", launcher.arn)  # for whoever gives people the right to launch

if settings.attach == SSM:
    place = {
        "account": account.id,
        "region": account.region,
        "project": settings.project,
        "stack": settings.stack,
    }
    pulumi.export(
        "attach_policy_arn", AttachPolicy("attach", AttachPolicyArgs(**place, tags=settings.tags)).arn
    )
