"""IAM policies: plain functions from a stack to dictionaries, tested as dictionaries.

No statement allows a wildcard action, and none allows a resource that this stack doesn't own, save the few
actions for which AWS takes no resource; those are alone in statements whose Sid ends in `HasNoResource`.
"""

from __future__ import annotations

from typing import Any

from infra.stack import Stack
from trainer.aws.stack_outputs import metrics_namespace, script_secrets_path, secrets_path, webhook_parameter

Document = dict[str, Any]

# Keys that an instance may write: they begin with its own id, `<role id>:<instance id>`, and hold no
# decisions. The id follows a fixed prefix: a `*` before the variable would match slashes, and with them
# another instance's id.
OWN = "${aws:userid}/*"
INSTANCE_WRITES = tuple(
    f"{prefix}{OWN}" for prefix in ("live/", "attempts/", "models/experiments/", "checkpoints/")
)
PREPARE_WRITES = tuple(f"{prefix}{OWN}" for prefix in ("live/", "attempts/", "checkpoints/"))
SCORE_WRITES = tuple(f"{prefix}{OWN}" for prefix in ("live/", "attempts/"))
# The only keys of its run that an instance reads. The index of runs and records are not: a node learns no
# other run's id.
OWN_RUN_READS = (
    *("code/*.whl", "runs/*/manifest.json"),
    *(f"runs/*/attempts/*/{name}.json" for name in ("start", "stop")),
)
# A training also reads the plan of its bars and, after a lost answer, whether a model that lies there is its
# own.
INSTANCE_READS = (*OWN_RUN_READS, "runs/*/plan.json", f"models/experiments/{OWN}")
OWN_TOKEN = f"tokens/{OWN}"  # of an attempt of several nodes: no node reads another's copy
# What a lost node left: manifests of its snapshots, cards of its models, ends of its values.
LEFT = ("checkpoints/*.json", "models/experiments/*.json", "attempts/*/outputs.json")
SCORED = ("models/retrains/*", "models/production/*")  # that control alone writes
# Copies of an earlier attempt's checkpoints, which the run's caller makes. A node reads another's own keys
# only where a stack runs several together (LEFT).
RESUMED = "resumed/*"


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


def trust_scheduler(stack: Stack, *schedule_groups: str) -> Document:
    """Let EventBridge Scheduler take the role on, for these groups of this account only.

    Without the conditions another account's schedule could name our role and have Scheduler act on it (the
    confused deputy).
    """
    groups = [stack.arn("scheduler", f"schedule-group/{name}") for name in schedule_groups]
    source = {"aws:SourceAccount": stack.account, "aws:SourceArn": groups}
    return trust("scheduler.amazonaws.com", {"StringEquals": source})


def instance(stack: Stack, *also: Document, nodes: bool = False) -> Document:
    """Return the policy of a training instance: read inputs, add results. It can't delete, list elsewhere, or
    touch EC2.

    Without permission to list, S3 answers 403 instead of 404 for a missing key; the node treats both alike.

    Inputs are read by VersionId, which is an action of its own. The role is in the launch template and can't
    know the run, but `${aws:userid}` is the instance's: no instance can write where another does. `also` are
    further statements; `nodes`: it may be one of several, which share a token.
    """
    return document(
        _read_versions(stack, "ReadInputs", "raw/*"),
        allow("ReadRun", "s3:GetObject", [stack.objects(pattern) for pattern in INSTANCE_READS]),
        allow("AddResults", "s3:PutObject", [stack.objects(pattern) for pattern in INSTANCE_WRITES]),
        *_read_nodes(stack, nodes=nodes),
        *use_key(stack),
        *also,
    )


def prepare(stack: Stack) -> Document:
    """Return the policy of a prepare run's instance: read data sets and copies of checkpoints by version, its
    code, manifest, start file and stop request; add what it made.

    Like the training role it can't know the run, so it reads every data set and every secret of the stack
    that is for prepare runs.
    """
    return document(
        _read_versions(stack, "ReadCandles", "raw/*"),
        _read_own_run(stack),
        allow("AddFiles", "s3:PutObject", [stack.objects(pattern) for pattern in PREPARE_WRITES]),
        _read_secrets(stack, secrets_path(stack.project, stack.name)),
        *use_key(stack),
    )


def score(stack: Stack) -> Document:
    """Return the policy of a score run's instance: read data sets and the permanent models by version, its
    code, manifest, start file and stop request; add its scores.

    It writes no model and no candle, and reads nothing that a training node could change after its end.
    """
    models = [stack.objects(pattern) for pattern in SCORED]
    return document(
        allow("ReadModelsAndCandles", "s3:GetObjectVersion", [stack.objects("raw/*"), *models]),
        _read_own_run(stack),
        allow("AddScores", "s3:PutObject", [stack.objects(pattern) for pattern in SCORE_WRITES]),
        *use_key(stack),
    )


def script(stack: Stack, *, nodes: bool = False) -> Document:
    """Return the policy of an instance whose script gets secrets: read scripts' data and copies of
    checkpoints, its code, manifest, start file and stop request, and secrets; add results.

    It reads no candles and no other run's record. The role can't know the run, so it reads every secret of
    the stack that is for scripts. `nodes`: as for `instance`.
    """
    return document(
        _read_versions(stack, "ReadData", "raw/.files/*"),
        _read_own_run(stack),
        allow("AddResults", "s3:PutObject", [stack.objects(pattern) for pattern in INSTANCE_WRITES]),
        _read_secrets(stack, script_secrets_path(stack.project, stack.name)),
        *_read_nodes(stack, nodes=nodes),
        *use_key(stack),
    )


def _read_versions(stack: Stack, sid: str, inputs: str) -> Document:
    """Return the statement that reads what a command begins with, by VersionId: inputs and checkpoints."""
    return allow(sid, "s3:GetObjectVersion", [stack.objects(inputs), stack.objects(RESUMED)])


def _read_own_run(stack: Stack) -> Document:
    """Return the statement that reads code, manifest, start file and stop request of a run."""
    return allow("ReadOwnRun", "s3:GetObject", [stack.objects(pattern) for pattern in OWN_RUN_READS])


def _read_nodes(stack: Stack, *, nodes: bool) -> list[Document]:
    """Return the statements of a stack that runs several nodes together: they read the node's own copy of a
    token, and what another node left of a piece that goes on here. The role can't know who the others are, so
    it reads every run's checkpoints, and whether a piece is done.
    """
    if not nodes:
        return []
    return [
        allow("ReadOwnToken", "s3:GetObject", stack.objects(OWN_TOKEN)),
        allow("FindLeft", "s3:GetObject", [stack.objects(pattern) for pattern in LEFT]),
        allow("ReadLeft", "s3:GetObjectVersion", stack.objects("checkpoints/*/data/*")),
    ]


def _read_secrets(stack: Stack, path: str) -> Document:
    """Return the statement that reads SecureStrings below a path; AWS's own key of them needs no more."""
    return allow("ReadSecrets", "ssm:GetParameter", stack.arn("ssm", f"parameter{path}*"))


def use_cache(*, file_system: str, access_point: str) -> Document:
    """Return the permissions of a training instance on the cache, by ARN: mount and write, through its access
    point only.
    """
    uses = ["elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite"]
    through = {"StringEquals": {"elasticfilesystem:AccessPointArn": access_point}}
    return document(allow("UseCache", uses, file_system, through))


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


def use_key(stack: Stack, *, writes: bool = True) -> list[Document]:
    """Allow S3, and no other service, to use the bucket's KMS key for a role, if there is one; a role that
    only reads decrypts alone.
    """
    actions = ["kms:Decrypt", "kms:GenerateDataKey"] if writes else "kms:Decrypt"
    through = {"StringEquals": {"kms:ViaService": f"s3.{stack.region}.amazonaws.com"}}
    return [allow("UseKey", actions, stack.kms_key, through)] if stack.kms_key else []


def sweeper(stack: Stack) -> Document:
    """Return the policy of the sweeper: see and end instances of this stack, read heartbeats, delete
    schedules, log, count.
    """
    return document(
        allow("SeeInstancesHasNoResource", "ec2:DescribeInstances", "*"),
        end_own_instances(stack),
        lift_own_protection(stack),
        allow("ReadHeartbeats", "s3:GetObject", stack.objects("live/*")),
        # Without a prefix: S3 reports a missing heartbeat only to callers that may list the bucket, and a
        # read has no prefix.
        allow("MissHeartbeats", "s3:ListBucket", f"arn:aws:s3:::{stack.bucket}"),
        allow("SeeSchedulesHasNoResource", "scheduler:ListSchedules", "*"),
        allow(
            "ClearOwnSchedules",
            "scheduler:DeleteSchedule",
            stack.arn("scheduler", f"schedule/{stack.schedule_group}/{stack.project}-*"),
        ),
        count_own_work(stack),
        keep_dead_letters(stack),
        write_own_log(stack, stack.log_group("sweeper")),
        *use_key(stack, writes=False),
    )


def notifier(stack: Stack) -> Document:
    """Return the policy of the notifier: read the webhook's URL, log. AWS's own key of SecureStrings needs no
    more.
    """
    webhook = stack.arn("ssm", f"parameter{webhook_parameter(stack.project, stack.name)}")
    return document(
        allow("ReadWebhook", "ssm:GetParameter", webhook),
        keep_dead_letters(stack),
        write_own_log(stack, stack.log_group("notifier")),
    )


def scheduler(stack: Stack) -> Document:
    """Return the policy of a schedule: call the functions, and end this stack's instances where the sweeper
    is broken.
    """
    functions = [stack.arn("lambda", f"function:{stack.function(kind)}") for kind in ("sweeper", "control")]
    return document(
        allow("CallFunctions", "lambda:InvokeFunction", functions),
        end_own_instances(stack),
        keep_dead_letters(stack),
    )


def topic(stack: Stack, *, budgets: bool) -> Document:
    """Let the account's alarms publish to the topic, its budgets where it has one, and no other service.

    Callers with a role need its permission as well.
    """
    services = {"Alarms": ("cloudwatch.amazonaws.com", stack.arn("cloudwatch", "alarm:*"))}
    if budgets:  # they belong to no region
        services["Budgets"] = ("budgets.amazonaws.com", f"arn:aws:budgets::{stack.account}:*")
    own = {"StringEquals": {"aws:SourceAccount": stack.account}}
    statements = []
    for name, (service, sources) in services.items():
        source = {**own, "ArnLike": {"aws:SourceArn": sources}}
        publish = allow(f"{name}Publish", "sns:Publish", stack.arn("sns", stack.topic), source)
        statements.append({**publish, "Principal": {"Service": service}})
    return document(*statements)


def count_own_work(stack: Stack) -> Document:
    """Allow a function to publish the stack's own metrics, which its alarms watch."""
    own = {"cloudwatch:namespace": metrics_namespace(stack.project, stack.name)}
    return allow("CountOwnWorkHasNoResource", "cloudwatch:PutMetricData", "*", {"StringEquals": own})


def publish_messages(stack: Stack) -> Document:
    """Allow a function to publish messages about runs."""
    return allow("TellPeople", "sns:Publish", stack.arn("sns", stack.topic))


def keep_dead_letters(stack: Stack) -> Document:
    """Allow a function, or a schedule, to send failed events to the dead-letter queue."""
    return allow("KeepDeadLetters", "sqs:SendMessage", stack.arn("sqs", stack.dead_letters))


def write_own_log(stack: Stack, log_group: str) -> Document:
    """Allow a function to write its log."""
    streams = stack.arn("logs", f"log-group:{log_group}:log-stream:*")
    return allow("WriteOwnLog", ["logs:CreateLogStream", "logs:PutLogEvents"], streams)


def tls_only(bucket: str) -> Document:
    """Refuse every request to a bucket without TLS, by any caller."""
    arn = f"arn:aws:s3:::{bucket}"
    return document(
        {
            "Sid": "TlsOnly",
            "Effect": "Deny",
            "Principal": "*",
            "Action": "s3:*",
            "Resource": [arn, f"{arn}/*"],
            "Condition": {"Bool": {"aws:SecureTransport": "false"}},
        }
    )


def end_own_instances(stack: Stack, *also: str) -> Document:
    """Allow terminating instances with this stack's tags, and no others; `also` names further actions on
    them.
    """
    return allow(
        "EndOwnInstances",
        ["ec2:TerminateInstances", *also] if also else "ec2:TerminateInstances",
        stack.arn("ec2", "instance/*"),
        {"StringEquals": _own_tags(stack)},
    )


def lift_own_protection(stack: Stack) -> Document:
    """Allow switching termination protection off, never on, on instances with this stack's tags."""
    off = {"ec2:Attribute/DisableApiTermination": ["false", "False"]}  # AWS documents no form
    return allow(
        "LiftOwnProtection",
        "ec2:ModifyInstanceAttribute",
        stack.arn("ec2", "instance/*"),
        {"StringEquals": _own_tags(stack) | off},
    )


def _own_tags(stack: Stack) -> dict[str, str]:
    return {"aws:ResourceTag/project": stack.project, "aws:ResourceTag/stack": stack.name}
