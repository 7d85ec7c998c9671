"""Checks of the deployed stack: everything that could keep a run from starting, ending or sending messages.

As in `checks`, some of which it reuses, a check raises a TrainerError, or botocore's error, for a problem,
and returns a note for the user, '' for none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from botocore.exceptions import ClientError

from trainer.aws.access import Access, error_code
from trainer.aws.error_codes import NO_PARAMETER
from trainer.aws.stack_outputs import StackOutputs, dead_letters_queue, webhook_parameter
from trainer.base.errors import ConfigError, QuotaError
from trainer.base.instants import utc_now
from trainer.launch import checks
from trainer.launch.network_reach import network
from trainer.launch.preflight import find_image, is_baked
from trainer.launch.quotas import read_quotas
from trainer.machines.instances import catalogue
from trainer.machines.storage import EFS_USD_PER_GB_MONTH, GB
from trainer.runs.launching import QUOTA_CONSOLE

# AWS drops images of discontinued lines; drivers and fixes are that old by then
OLD_IMAGE = timedelta(days=180)
OLD_BUILD = timedelta(days=45)  # a pipeline builds once a month
FIRST_DATA = timedelta(minutes=15)  # by then sweeper and control have counted their first calls
START_BUILD = (
    "aws imagebuilder start-image-pipeline-execution --image-pipeline-arn ARN, by aws imagebuilder"
    " list-image-pipelines"
)
SEE_BUILDS = "aws imagebuilder list-image-pipeline-images --image-pipeline-arn ARN says why"
STANDING = {"standing-sweep": "the sweeper", "standing-control": "control"}
# An event that control drops after one describe call: it proves that control runs, and settles nothing.
_DROPPED = {"source": "aws.ec2", "detail": {"instance-id": "i-00000000000000000"}}

_AGAIN = "Run pulumi up --refresh, which restores it. Until then runs read S3."


def stack_checks(access: Access, outputs: StackOutputs) -> dict[str, Callable[[], str]]:
    """Return the checks of a stack by name. They invoke the sweeper, as before a launch."""
    return {
        "bucket": partial(checks.versioning, access, outputs),
        "sweeper": partial(checks.sweeper, access, outputs),
        "control": partial(control, access, outputs),
        "schedules": partial(schedules, access, outputs),
        "alarms": partial(alarms, access, outputs),
        "messages": partial(messages, access, outputs),
        "dead letters": partial(dead_letters, access, outputs),
        "image": partial(image_age, access, outputs),
        "quotas": partial(quotas, access, outputs),
        "spot role": partial(checks.spot_role, access),
        "network": partial(network, access, outputs),
        **({"cache": partial(cache, access, outputs)} if outputs.file_system else {}),
    }


def control(access: Access, outputs: StackOutputs) -> str:
    """Check that the control function answers. Returns a note if it may start machines from any template."""
    without = "Runs that nobody watches are not settled, and scheduled ones not started, without it."
    checks.function_answers(access, outputs.control_arn, "control function", _DROPPED, without=without)
    if outputs.template_condition:
        return ""
    return (
        "it may start machines from any launch template, since template_condition is off:"
        " pulumi config set template_condition true, then pulumi up, holds it to the stack's own"
    )


def schedules(access: Access, outputs: StackOutputs) -> str:
    """Check that the schedules that call the functions exist and are enabled, retrains included. Raises
    ConfigError.
    """
    scheduler = access.client("scheduler")
    retrain_group = f"{outputs.project}-{outputs.stack}-retrains"
    wanted = [(outputs.schedule_group, name, target) for name, target in STANDING.items()]
    wanted += [(retrain_group, str(one["name"]), "a scheduled run") for one in outputs.retrains]
    for group, name, target in wanted:
        try:
            state = scheduler.get_schedule(GroupName=group, Name=name)["State"]
        except ClientError as error:
            if error_code(error) != "ResourceNotFoundException":
                raise
            state = "missing"
        if state != "ENABLED":
            what, why = f"the schedule {group}/{name} is {state.lower()}", f"nothing else calls {target}"
            raise ConfigError(what, why=why, do="Run pulumi up --refresh, which restores it.")
    return ""


def alarms(access: Access, outputs: StackOutputs, now: datetime | None = None) -> str:
    """Check the alarms. Raises ConfigError for one that is missing, disabled or raised; a raised one that no
    data has reached yet is a note.
    """
    prefix, names = f"{outputs.project}-{outputs.stack}-", outputs.alarms
    asked = [f"{prefix}{name}" for name in names]
    kept = access.client("cloudwatch").describe_alarms(AlarmNames=asked)["MetricAlarms"]
    by_name = {alarm["AlarmName"].removeprefix(prefix): alarm for alarm in kept}
    if missing := [name for name in names if not by_name.get(name, {}).get("ActionsEnabled")]:
        what = f"the alarm {', '.join(missing)} is missing or switched off"
        do = "Run pulumi up --refresh, which restores it."
        raise ConfigError(what, why="nobody would be notified", do=do)
    raised = [name for name in names if by_name[name]["StateValue"] == "ALARM"]
    early = [name for name in raised if _waits_for_data(by_name[name], now or utc_now())]
    if old := [name for name in raised if name not in early]:
        why = "; ".join(str(by_name[name]["StateReason"]) for name in old)
        do = " ".join(str(by_name[name].get("AlarmDescription", "")) for name in old)
        raise ConfigError(f"the alarm {', '.join(old)} is raised", why=why, do=do)
    waiting = early + [name for name in names if by_name[name]["StateValue"] == "INSUFFICIENT_DATA"]
    again = "look again a quarter of an hour after pulumi up"
    return f"no data yet for {', '.join(waiting)}: {again}" if waiting else ""


def _waits_for_data(alarm: Mapping[str, Any], now: datetime) -> bool:
    """Return whether an alarm is younger than a quarter of an hour and takes missing data for a failure."""
    young = now - alarm["AlarmConfigurationUpdatedTimestamp"] < FIRST_DATA
    return young and alarm.get("TreatMissingData") == "breaching"


def messages(access: Access, outputs: StackOutputs) -> str:
    """Check the topic's subscriptions. Returns a note for an unconfirmed address, and if there is no
    subscriber.
    """
    pages = (
        access.client("sns").get_paginator("list_subscriptions_by_topic").paginate(TopicArn=outputs.topic_arn)
    )
    subscribed = [one for page in pages for one in page["Subscriptions"]]
    pending = [one["Endpoint"] for one in subscribed if one["SubscriptionArn"] == "PendingConfirmation"]
    if pending:
        return (
            f"{', '.join(pending)} has not confirmed yet: follow the link in AWS's first message, or nothing"
            " arrives there"
        )
    notifier = [one for one in subscribed if one["Protocol"] == "lambda"]
    if len(subscribed) > len(notifier) or _has_webhook(access, outputs):
        return ""
    webhook = webhook_parameter(outputs.project, outputs.stack)
    return (
        "nobody is notified: pulumi config set notify_email ADDRESS, or put a webhook's URL in the"
        f" SecureString {webhook}"
    )


def dead_letters(access: Access, outputs: StackOutputs) -> str:
    """Check for permanently failed invocations. Raises ConfigError if the dead-letter queue is not empty."""
    sqs, name = access.client("sqs"), dead_letters_queue(outputs.project, outputs.stack)
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    asked = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])
    if not (number := int(asked["Attributes"]["ApproximateNumberOfMessages"])):
        return ""
    what = f"{number} dead letters are in the queue {name}"
    why = "a function failed on an event, or a schedule could not call it"
    purge = f"aws sqs purge-queue --queue-url {url}"
    do = f"Read them: aws sqs receive-message --queue-url {url}. Once the cause is fixed: {purge}."
    raise ConfigError(what, why=why, do=do)


def image_age(access: Access, outputs: StackOutputs, now: datetime | None = None) -> str:
    """Check the image of the next launches. Raises ConfigError as a launch does; an old or unbaked one is a
    note.
    """
    image, line = find_image(access, access.client("ec2"), outputs=outputs), outputs.image_line
    age = (now or utc_now()) - datetime.fromisoformat(image["CreationDate"].replace("Z", "+00:00"))
    if outputs.image_pipeline and not is_baked(image, outputs):
        return f"no image of {line} is baked yet: {START_BUILD}"
    if outputs.image_pipeline and age > OLD_BUILD:
        return f"the newest baked image of {line} is {age.days} days old, so its builds fail: {SEE_BUILDS}"
    if age > OLD_IMAGE:
        newest = f"{image['ImageId']}, the newest of {line}, is {age.days} days old"
        return f"{newest}: set a newer image_line, then pulumi up"
    return ""


def quotas(access: Access, outputs: StackOutputs) -> str:
    """Check the quotas of GPU instances. Raises QuotaError if all are 0; those that are 0 are a note."""
    codes = sorted(
        {
            code
            for one in catalogue().values()
            for code in (one.on_demand_quota_code, one.spot_quota_code)
            if code
        }
    )
    known, unread = read_quotas(access, codes, seconds=access.place.answer_seconds)
    none = [quota for quota in known.values() if quota.value == 0]
    links = ", ".join(f"{quota.name}: {QUOTA_CONSOLE}/{quota.code}" for quota in none)
    if none and len(none) == len(known):
        raise QuotaError(
            "the account may run no GPU instance", why="each quota is 0 vCPUs", do=f"Ask for more at {links}."
        )
    notes = [f"0 vCPUs; ask for more where you need them: {links}"] if none else []
    return "; ".join([*notes, *(f"quota {code} can't be read ({error})" for code, error in unread.items())])


def cache(access: Access, outputs: StackOutputs) -> str:
    """Return the cache's size and monthly cost. Raises ConfigError if nodes of some zone can't mount it."""
    efs, name = access.client("efs"), outputs.file_system
    try:
        (files,) = efs.describe_file_systems(FileSystemId=name)["FileSystems"]
        targets = efs.describe_mount_targets(FileSystemId=name)["MountTargets"]
    except ClientError as error:
        if error_code(error) != "FileSystemNotFound":
            raise
        raise ConfigError(
            f"the cache {name} is gone", why="the stack's outputs name it", do=_AGAIN
        ) from error
    if files["LifeCycleState"] != "available" or not files["Encrypted"]:
        state = files["LifeCycleState"] if files["Encrypted"] else "not encrypted"
        raise ConfigError(
            f"the cache {name} is {state}", why="nodes mount one that is available and encrypted", do=_AGAIN
        )
    mounted = {target["SubnetId"] for target in targets if target["LifeCycleState"] == "available"}
    if missing := sorted(zone for zone, subnet in outputs.subnets.items() if subnet not in mounted):
        why = "nodes of that zone can't reach it"
        raise ConfigError(f"the cache {name} has no mount target in {', '.join(missing)}", why=why, do=_AGAIN)
    size = files["SizeInBytes"]["Value"] / GB
    return f"{size:.2f} GB, ${size * EFS_USD_PER_GB_MONTH:.2f} a month at the most"


def _has_webhook(access: Access, outputs: StackOutputs) -> bool:
    """Return whether a webhook is set; its URL stays encrypted."""
    try:
        access.client("ssm").get_parameter(Name=webhook_parameter(outputs.project, outputs.stack))
    except ClientError as error:
        if error_code(error) in NO_PARAMETER:
            return False
        raise
    return True
