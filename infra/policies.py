"""IAM policies: plain functions from names to dictionaries, tested as dictionaries.

No statement allows a wildcard action, and none allows a resource that this stack doesn't own, save the few
actions for which AWS takes no resource; those are alone in statements whose Sid ends in `HasNoResource`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainer.aws.stack_outputs import metrics_namespace

Document = dict[str, Any]

# Keys that an instance may write: they begin with its own id, `<role id>:<instance id>`, and hold no
# decisions. The id follows a fixed prefix: a `*` before the variable would match slashes, and with them
# another instance's id.
OWN = "${aws:userid}/*"
INSTANCE_WRITES = tuple(f"{prefix}{OWN}" for prefix in ("live/", "attempts/", "models/experiments/"))
# What it reads by its newest version: code, its run, and after a lost answer whether a model that lies there
# is its own.
INSTANCE_READS = ("code/*", "runs/*", f"models/experiments/{OWN}")

PREPARE_WRITES = tuple(f"{prefix}{OWN}" for prefix in ("live/", "attempts/"))
# The only keys of its run that an instance with secrets reads.
OWN_RUN_READS = ("code/*.whl", "runs/*/manifest.json", "runs/*/attempts/*/stop.json")


def document(*statements: Document) -> Document:
    """Return a policy of these statements."""
    return {"Version": "2012-10-17", "Statement": list(statements)}


def allow(sid: str, actions: str | list[str], resources: Any, condition: Document | None = None) -> Document:
    """Return a statement that allows actions on resources (ARNs, or Pulumi's outputs of them)."""
    statement = {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resources}
    return {**statement, "Condition": condition} if condition else statement


def trust(service: str, condition: Document | None = None) -> Document:
    """Return the trust policy of a role that an AWS service takes on, such as `ec2.amazonaws.com`."""
    statement: Document = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
    return document({**statement, "Condition": condition} if condition else statement)


def trust_scheduler(*, account: str, region: str, schedule_groups: tuple[str, ...]) -> Document:
    """Let EventBridge Scheduler take the role on, for these groups of this account only.

    Without the conditions another account's schedule could name our role and have Scheduler act on it (the
    confused deputy).
    """
    groups = [f"arn:aws:scheduler:{region}:{account}:schedule-group/{name}" for name in schedule_groups]
    return trust(
        "scheduler.amazonaws.com", {"StringEquals": {"aws:SourceAccount": account, "aws:SourceArn": groups}}
    )


def instance(*, bucket: str, also: tuple[Document, ...] = ()) -> Document:
    """Return the policy of a training instance: read inputs, add results. It can't delete, list elsewhere, or
    touch EC2.

    Without permission to list, S3 answers 403 instead of 404 for a missing key; the node treats both alike.

    Inputs are read by VersionId, which is an action of its own. The role is in the launch template and can't
    know the run, but `${aws:userid}` is the instance's: no instance can write where another does. `also` are
    further statements.
    """
    return document(
        allow("ReadInputs", "s3:GetObjectVersion", _objects(bucket, "raw/*")),
        allow("ReadRun", "s3:GetObject", [_objects(bucket, prefix) for prefix in INSTANCE_READS]),
        allow("AddResults", "s3:PutObject", [_objects(bucket, prefix) for prefix in INSTANCE_WRITES]),
        *also,
    )


def prepare(*, account: str, region: str, bucket: str, secrets: str) -> Document:
    """Return the policy of a prepare run's instance: read data sets, its code, manifest and stop request; add
    what it made.

    `secrets` is the prefix of its SecureStrings; AWS's own key of SecureStrings needs no permission. Like the
    training role it can't know the run, so it reads every data set and every secret of the stack.
    """
    return document(
        allow("ReadCandles", "s3:GetObjectVersion", _objects(bucket, "raw/*")),
        _read_own_run(bucket),
        allow("AddFiles", "s3:PutObject", [_objects(bucket, pattern) for pattern in PREPARE_WRITES]),
        _read_secrets(f"arn:aws:ssm:{region}:{account}:parameter{secrets}*"),
    )


def _read_own_run(bucket: str) -> Document:
    """Return the statement that reads code, manifest and stop request of a run."""
    resources = [_objects(bucket, pattern) for pattern in OWN_RUN_READS]
    return allow("ReadOwnRun", "s3:GetObject", resources)


def _read_secrets(resource: str) -> Document:
    """Return the statement that reads SecureStrings; AWS's own key needs no more."""
    return allow("ReadSecrets", "ssm:GetParameter", resource)


def script(*, account: str, region: str, bucket: str, secrets: str) -> Document:
    """Return the policy of an instance whose script gets secrets: read scripts' data, its code, manifest and
    stop request, and secrets; add results.

    It reads no candles and no other run's record. `secrets` is the prefix of its SecureStrings; AWS's own key
    of SecureStrings needs no more. The role can't know the run, so it reads every such secret of the stack.
    """
    return document(
        allow("ReadData", "s3:GetObjectVersion", _objects(bucket, "raw/.files/*")),
        _read_own_run(bucket),
        allow("AddResults", "s3:PutObject", [_objects(bucket, prefix) for prefix in INSTANCE_WRITES]),
        _read_secrets(f"arn:aws:ssm:{region}:{account}:parameter{secrets}*"),
    )


def use_cache(*, file_system: str, access_point: str) -> Document:
    """Return the permissions of a training instance on the cache, by ARN: mount and write, through its access
    point only.
    """
    return document(
        allow(
            "UseCache",
            ["elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite"],
            file_system,
            {"StringEquals": {"elasticfilesystem:AccessPointArn": access_point}},
        )
    )


def file_system(*, file_system: str, access_point: str) -> Document:
    """Refuse NFS clients without TLS, and those past the access point.

    A file system with a policy admits only clients that it or the caller's role allows; without one, all
    clients.
    """
    uses = [f"elasticfilesystem:Client{verb}" for verb in ("Mount", "Write", "RootAccess")]
    refused: Document = {"Effect": "Deny", "Principal": {"AWS": "*"}, "Action": uses, "Resource": file_system}
    other = {"StringNotEquals": {"elasticfilesystem:AccessPointArn": access_point}}
    return document(
        {"Sid": "TlsOnly", **refused, "Condition": {"Bool": {"aws:SecureTransport": "false"}}},
        {"Sid": "AccessPointOnly", **refused, "Condition": other},
    )


def use_key(*, region: str, key: str, writes: bool) -> Document:
    """Allow S3, and no other service, to use the bucket's KMS key for a role; a role that only reads decrypts
    alone.
    """
    return allow(
        "UseKey",
        ["kms:Decrypt", "kms:GenerateDataKey"] if writes else "kms:Decrypt",
        key,
        {"StringEquals": {"kms:ViaService": f"s3.{region}.amazonaws.com"}},
    )


def key(*, account: str) -> Document:
    """Leave a key to the account's IAM, as KMS's own default does: a key whose policy names nobody is lost
    for good.
    """
    owner = {"AWS": f"arn:aws:iam::{account}:root"}
    return document(
        {"Sid": "Account", "Effect": "Allow", "Principal": owner, "Action": "kms:*", "Resource": "*"}
    )


def access_logs(*, account: str, bucket: str, log_bucket: str) -> Document:
    """Let S3's logging service write the accesses of one bucket of this account, and refuse requests without
    TLS.
    """
    source = {"aws:SourceAccount": account}
    return document(
        *tls_only(log_bucket)["Statement"],
        {
            "Sid": "WriteLogs",
            "Effect": "Allow",
            "Principal": {"Service": "logging.s3.amazonaws.com"},
            "Action": "s3:PutObject",
            "Resource": _objects(log_bucket, "s3/*"),
            "Condition": {"StringEquals": source, "ArnLike": {"aws:SourceArn": f"arn:aws:s3:::{bucket}"}},
        },
    )


def replication(
    *, bucket: str, replica: str, prefixes: tuple[str, ...], keys: Sequence[str], regions: tuple[str, str]
) -> Document:
    """Return the policy of S3's replication: read these prefixes, write the replica; no deletion.

    `keys` and `regions`: the bucket's, then the replica's; without a KMS key both are empty.
    """
    read = [f"s3:GetObjectVersion{what}" for what in ("ForReplication", "Acl", "Tagging")]
    (own_key, its_key), (own_region, its_region) = keys, regions
    by_key = [
        {**use_key(region=own_region, key=own_key, writes=False), "Sid": "ReadByKey"},
        {
            **use_key(region=its_region, key=its_key, writes=True),
            "Sid": "WriteByKey",
            "Action": ["kms:Encrypt", "kms:GenerateDataKey"],
        },
    ]
    return document(
        allow("ReadRules", ["s3:GetReplicationConfiguration", "s3:ListBucket"], f"arn:aws:s3:::{bucket}"),
        allow("ReadVersions", read, [_objects(bucket, f"{prefix}*") for prefix in prefixes]),
        allow("WriteReplica", ["s3:ReplicateObject", "s3:ReplicateTags"], _objects(replica, "*")),
        *(by_key if own_key else ()),
    )


def sweeper(
    *,
    account: str,
    region: str,
    project: str,
    stack: str,
    bucket: str,
    schedule_group: str,
    log_group: str,
    dead_letters: str,
) -> Document:
    """Return the policy of the sweeper: see and end instances of this stack, read heartbeats, delete
    schedules, log, count.
    """
    return document(
        allow("SeeInstancesHasNoResource", "ec2:DescribeInstances", "*"),
        end_own_instances(account=account, region=region, project=project, stack=stack),
        allow("ReadHeartbeats", "s3:GetObject", _objects(bucket, "live/*")),
        # Without a prefix: S3 reports a missing heartbeat only to callers that may list the bucket, and a
        # read has no prefix.
        allow("MissHeartbeats", "s3:ListBucket", f"arn:aws:s3:::{bucket}"),
        allow("SeeSchedulesHasNoResource", "scheduler:ListSchedules", "*"),
        allow(
            "ClearOwnSchedules",
            "scheduler:DeleteSchedule",
            f"arn:aws:scheduler:{region}:{account}:schedule/{schedule_group}/{project}-*",
        ),
        count_own_work(project=project, stack=stack),
        keep_dead_letters(account=account, region=region, queue=dead_letters),
        write_own_log(account=account, region=region, log_group=log_group),
    )


def notifier(*, account: str, region: str, parameter: str, log_group: str, dead_letters: str) -> Document:
    """Return the policy of the notifier: read the webhook's URL, log. AWS's own key of SecureStrings needs no
    more.
    """
    return document(
        allow("ReadWebhook", "ssm:GetParameter", f"arn:aws:ssm:{region}:{account}:parameter{parameter}"),
        keep_dead_letters(account=account, region=region, queue=dead_letters),
        write_own_log(account=account, region=region, log_group=log_group),
    )


def scheduler(
    *, account: str, region: str, project: str, stack: str, functions: tuple[str, ...], dead_letters: str
) -> Document:
    """Return the policy of a schedule: call the functions, and end this stack's instances where the sweeper
    is broken.
    """
    return document(
        allow(
            "CallFunctions",
            "lambda:InvokeFunction",
            [f"arn:aws:lambda:{region}:{account}:function:{name}" for name in functions],
        ),
        end_own_instances(account=account, region=region, project=project, stack=stack),
        keep_dead_letters(account=account, region=region, queue=dead_letters),
    )


def topic(*, account: str, region: str, topic_arn: str, budgets: bool) -> Document:
    """Let the account's alarms publish to a topic, its budgets where it has one, and no other service.

    Callers with a role need its permission as well.
    """
    services = {"Alarms": ("cloudwatch.amazonaws.com", f"arn:aws:cloudwatch:{region}:{account}:alarm:*")}
    if budgets:  # they belong to no region
        services["Budgets"] = ("budgets.amazonaws.com", f"arn:aws:budgets::{account}:*")
    return document(
        *(
            {
                "Sid": f"{name}Publish",
                "Effect": "Allow",
                "Principal": {"Service": service},
                "Action": "sns:Publish",
                "Resource": topic_arn,
                "Condition": {
                    "StringEquals": {"aws:SourceAccount": account},
                    "ArnLike": {"aws:SourceArn": sources},
                },
            }
            for name, (service, sources) in services.items()
        )
    )


def count_own_work(*, project: str, stack: str) -> Document:
    """Allow a function to publish the stack's own metrics, which its alarms watch."""
    return allow(
        "CountOwnWorkHasNoResource",
        "cloudwatch:PutMetricData",
        "*",
        {"StringEquals": {"cloudwatch:namespace": metrics_namespace(project, stack)}},
    )


def publish_messages(*, account: str, region: str, topic: str) -> Document:
    """Allow a function to publish messages about runs."""
    return allow("TellPeople", "sns:Publish", f"arn:aws:sns:{region}:{account}:{topic}")


def keep_dead_letters(*, account: str, region: str, queue: str) -> Document:
    """Allow a function, or a schedule, to send failed events to the dead-letter queue."""
    return allow("KeepDeadLetters", "sqs:SendMessage", f"arn:aws:sqs:{region}:{account}:{queue}")


def write_own_log(*, account: str, region: str, log_group: str) -> Document:
    """Allow a function to write its log."""
    return allow(
        "WriteOwnLog",
        ["logs:CreateLogStream", "logs:PutLogEvents"],
        f"arn:aws:logs:{region}:{account}:log-group:{log_group}:log-stream:*",
    )


def tls_only(bucket: str) -> Document:
    """Refuse every request to the bucket without TLS, by any caller."""
    return document(
        {
            "Sid": "TlsOnly",
            "Effect": "Deny",
            "Principal": "*",
            "Action": "s3:*",
            "Resource": [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"],
            "Condition": {"Bool": {"aws:SecureTransport": "false"}},
        }
    )


def end_own_instances(
    *, account: str, region: str, project: str, stack: str, also: tuple[str, ...] = ()
) -> Document:
    """Allow terminating instances with this stack's tags, and no others; `also` names further actions on
    them.
    """
    return allow(
        "EndOwnInstances",
        ["ec2:TerminateInstances", *also] if also else "ec2:TerminateInstances",
        f"arn:aws:ec2:{region}:{account}:instance/*",
        {"StringEquals": {"aws:ResourceTag/project": project, "aws:ResourceTag/stack": stack}},
    )


def _objects(bucket: str, pattern: str) -> str:
    return f"arn:aws:s3:::{bucket}/{pattern}"
