"""The permanent resources of the account, from top to bottom. Run it with `pulumi up`; rehearsals apply it to
the embedded AWS.

Instances are not here: a launch makes each by one CreateFleet call from the templates below, and the safety
net ends it.
"""

from dataclasses import replace

import pulumi

from infra.alarms import alarms
from infra.attach import sessions
from infra.control import ControlFunction, Sweeper, control_limits
from infra.efs import EfsCache
from infra.identity import Identity
from infra.image import BakedImages
from infra.launch_templates import LaunchTemplates, read_image_line
from infra.launcher import LaunchedFrom, LauncherPolicy
from infra.managed_policy import ManagedPolicy
from infra.network import Network
from infra.notify import AccountBudget, DeadLetters, Notifications
from infra.outputs import publish
from infra.prune import pruner
from infra.schedule import Caller, Retrains, Schedule
from infra.stack_settings import look_up_stack, read_settings
from infra.storage import ModelStore
from infra.subnets import look_up_vpc

SWEEP_MINUTES, CONTROL_MINUTES = 2, 5  # between two calls of the sweeper, and of control

settings = read_settings()
stack = look_up_stack(settings)
builds, mounts = bool(settings.image_pipeline), bool(settings.efs_throughput)
existing = None
if settings.subnets:
    existing = look_up_vpc(settings.subnets, zones=stack.zones, builds=builds, mounts=mounts)
line = read_image_line(settings.image_line)

store = ModelStore(
    "store",
    stack,
    retention=settings.retention,
    life_minutes=settings.max_lifetime_minutes,
    nodes=settings.cluster,
)
identity = Identity(
    "identity", stack, sessions=settings.sessions, retrains=bool(settings.retrains), nodes=settings.cluster
)
letters = DeadLetters("dead-letters", stack).arn
caller = Caller(role_arn=identity.scheduler.arn, dead_letters_arn=letters)

# The safety net. Launches depend on it only so that Pulumi deletes them first.
sweeper = Sweeper("sweeper", stack, role=identity.sweeper, bucket=store.bucket, dead_letters_arn=letters)
schedule = Schedule("schedule", stack, minutes=SWEEP_MINUTES, sweeper_arn=sweeper.arn, caller=caller)
after_net = pulumi.ResourceOptions(depends_on=[sweeper, schedule])

network = Network(
    "network",
    stack,
    after_net,
    existing=existing,
    cidr=settings.vpc_cidr,
    ssh_from=settings.ssh_from,
    file_system=mounts,
    cluster=settings.cluster,
    public_addresses=builds,
)
cache = None
if throughput := settings.efs_throughput:
    cache = EfsCache("cache", stack, throughput=throughput, network=network, instance_role=identity.instance)
templates = LaunchTemplates(
    "templates",
    stack,
    after_net,
    line=line,
    volume_gib=settings.volume_gib,
    cap_minutes=settings.max_lifetime_minutes,
    reservation=settings.capacity_reservation,
    identity=identity,
    network=network,
    cache=cache,
)
if builds:
    BakedImages(
        "images",
        stack,
        line=line,
        build_type=settings.image_pipeline,
        volume_gib=settings.volume_gib,
        bucket=store.bucket,
        network=network,
    )

trains_from = (templates.training, *templates.cluster.values())
launched_from = LaunchedFrom(
    line=line,
    baked=builds,
    launch_templates=trains_from,
    security_group=network.security_group_id,
    cluster_groups=tuple(network.cluster_group_ids.values()),
    vpc=network.vpc_id,
    subnets=existing.subnet_ids if existing else (),
    reservation=settings.capacity_reservation,
)
launcher = LauncherPolicy("launcher", stack, launched_from=launched_from)
control = ControlFunction(
    "control",
    stack,
    minutes=CONTROL_MINUTES,
    launched_from=replace(launched_from, launch_templates=(*trains_from, templates.prepare, templates.score)),
    limits=control_limits(
        (*settings.control_types, settings.prepare_type), own_templates=settings.template_condition
    ),
    schedule_group=schedule.group,
    caller=caller,
)
Retrains("retrains", stack, schedules=settings.retrains, control_arn=control.arn, caller=caller)

notifications = Notifications(
    "notifications",
    stack,
    email=settings.notify_email,
    budgets=settings.account_budget > 0,
    alarms=alarms(
        stack,
        sweep_minutes=SWEEP_MINUTES,
        control_minutes=CONTROL_MINUTES,
        retrains=bool(settings.retrains),
    ),
    dead_letters_arn=letters,
)
if settings.account_budget:
    AccountBudget("account-budget", stack, usd=settings.account_budget, topic_arn=notifications.topic_arn)

made = {"bucket": store.bucket, "schedule_group": schedule.group}
made |= {"sweeper_arn": sweeper.arn, "control_arn": control.arn}
publish(stack, settings, line, identity, network, templates, cache, **made)
pulumi.export("launcher_policy_arn", launcher.arn)  # for whoever gives people the right to launch
prunes = "Delete old models of this stack that nothing needs."
pulumi.export("prune_policy_arn", ManagedPolicy("prune", stack, description=prunes, policy=pruner(stack)).arn)
if settings.sessions:
    attaches = "Sessions on running instances of this stack."
    attach = ManagedPolicy("attach", stack, description=attaches, policy=sessions(stack))
    pulumi.export("attach_policy_arn", attach.arn)
