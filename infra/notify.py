"""Messages to people: a topic with its subscribers, a queue of dead letters, and the alarms.

The topic has no key: alarms can't publish to one with the service's default key, and no message holds a
secret. The notifier's code is trainer/control/functions/notify.py; the webhook that it posts to is a
SecureString that a person sets, never in Pulumi's state.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra import policies
from infra.functions import LoggedFunction, LoggedFunctionArgs
from infra.identity import ServiceRole, ServiceRoleArgs
from infra.packing import archive, function_files, reached_files
from trainer.aws.stack_outputs import metrics_namespace, webhook_parameter

NOTIFIER = "trainer.control.functions.notify"
SERVICES = ("ssm", "sts")
LETTER_DAYS = 14  # the longest that SQS keeps a message
PERIOD_SECONDS = 300


@dataclass(frozen=True, kw_only=True)
class DeadLettersArgs:
    queue_name: str
    tags: dict[str, str]


class DeadLetters(pulumi.ComponentResource):
    """The dead-letter queue: events that a function failed on, and calls that a schedule could not make."""

    arn: pulumi.Output[str]

    def __init__(self, name: str, args: DeadLettersArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("mayfly:notify:DeadLetters", name, None, opts)
        queue = aws.sqs.Queue(
            name,
            name=args.queue_name,
            message_retention_seconds=LETTER_DAYS * 24 * 3600,
            sqs_managed_sse_enabled=True,
            tags=args.tags,
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.arn = queue.arn
        self.register_outputs({"arn": self.arn})


@dataclass(frozen=True, kw_only=True)
class NotificationsArgs:
    account: str
    region: str
    project: str
    stack: str
    topic_name: str
    function_name: str
    role_name: str
    log_days: int
    email: str  # "": none
    account_has_budget: bool
    dead_letters_name: str
    dead_letters_arn: pulumi.Input[str]
    sweep_minutes: int
    control_minutes: int
    tags: dict[str, str]


class Notifications(pulumi.ComponentResource):
    """The topic with its subscribers, and the alarms that publish to it."""

    topic_arn: pulumi.Output[str]

    def __init__(
        self, name: str, args: NotificationsArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("mayfly:notify:Notifications", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        topic_arn = f"arn:aws:sns:{args.region}:{args.account}:{args.topic_name}"
        policy = policies.topic(
            account=args.account, region=args.region, topic_arn=topic_arn, budgets=args.account_has_budget
        )
        topic = aws.sns.Topic(
            name, name=args.topic_name, policy=json.dumps(policy), tags=args.tags, opts=child
        )
        if args.email:
            aws.sns.TopicSubscription(
                "email", topic=topic.arn, protocol="email", endpoint=args.email, opts=child
            )
        self._notifier(topic, args)
        for alarm in alarms(args):
            aws.cloudwatch.MetricAlarm(
                alarm.name,
                name=f"{args.project}-{args.stack}-{alarm.name}",
                alarm_description=alarm.description,
                namespace=alarm.namespace,
                metric_name=alarm.metric,
                dimensions=alarm.dimensions,
                statistic=alarm.statistic,
                comparison_operator=alarm.comparison,
                threshold=alarm.threshold,
                period=PERIOD_SECONDS,
                evaluation_periods=alarm.periods,
                treat_missing_data=alarm.missing,
                alarm_actions=[topic.arn],
                ok_actions=[topic.arn] if alarm.tells_its_end else [],
                tags=args.tags,
                opts=child,
            )
        self.topic_arn = topic.arn
        self.register_outputs({"topic_arn": self.topic_arn})

    def _notifier(self, topic: aws.sns.Topic, args: NotificationsArgs) -> None:
        child = pulumi.ResourceOptions(parent=self)
        log_group = f"/aws/lambda/{args.function_name}"
        where = {"account": args.account, "region": args.region}
        role = ServiceRole(
            "notifier",
            ServiceRoleArgs(
                role_name=args.role_name,
                description="The notifier: read the webhook's URL.",
                trust=policies.trust("lambda.amazonaws.com"),
                policy=policies.notifier(
                    **where,
                    parameter=webhook_parameter(args.project, args.stack),
                    log_group=log_group,
                    dead_letters=args.dead_letters_name,
                ),
                tags=args.tags,
            ),
            opts=child,
        )
        function = LoggedFunction(
            "notifier",
            LoggedFunctionArgs(
                function_name=args.function_name,
                description="Posts the topic's messages to a webhook.",
                handler=f"{NOTIFIER}.handler",
                code=archive(function_files(reached_files(NOTIFIER), SERVICES)),
                role_arn=role.arn,
                log_group=log_group,
                log_days=args.log_days,
                timeout_seconds=30,
                memory_mib=256,
                dead_letters_arn=args.dead_letters_arn,
                variables={"PROJECT": args.project, "STACK": args.stack},
                tags=args.tags,
            ),
            opts=child,
        )
        aws.lambda_.Permission(
            "notifier",
            action="lambda:InvokeFunction",
            function=function.name,
            principal="sns.amazonaws.com",
            source_arn=topic.arn,
            opts=child,
        )
        aws.sns.TopicSubscription(
            "notifier", topic=topic.arn, protocol="lambda", endpoint=function.arn, opts=child
        )


@dataclass(frozen=True, kw_only=True)
class AlarmRule:
    """One alarm, with a name and a description for the person on call."""

    name: str
    description: str
    namespace: str
    metric: str
    statistic: str
    comparison: str
    threshold: float
    periods: int  # of five minutes each
    missing: str
    dimensions: dict[str, str]

    @property
    def tells_its_end(self) -> bool:
        """Return whether its end is announced, too: a silent function may recover by itself."""
        return self.missing == "breaching"


def alarms(args: NotificationsArgs) -> list[AlarmRule]:
    """Return the stack's alarms."""
    own = metrics_namespace(args.project, args.stack)
    return [
        silent("sweeper", own, "SweepsDone", args.sweep_minutes, "Nothing ends what is past its deadline."),
        silent(
            "control",
            own,
            "SettlesDone",
            args.control_minutes,
            "No scheduled run starts, and none is settled.",
        ),
        AlarmRule(
            name="instance-overdue",
            description=(
                "An instance is older than its deadline by ten minutes. Look at it: mayfly status, mayfly"
                " stop RUN."
            ),
            namespace=own,
            metric="OverdueMinutes",
            statistic="Maximum",
            comparison="GreaterThanThreshold",
            threshold=10,
            periods=1,
            missing="notBreaching",
            dimensions={},
        ),
        AlarmRule(
            name="retrains-overdue",
            description=(
                "A scheduled run did not start. mayfly retrains list names it; then see its schedule in"
                " EventBridge."
            ),
            namespace=own,
            metric="RetrainsOverdue",
            statistic="Maximum",
            comparison="GreaterThanThreshold",
            threshold=0,
            periods=3,
            missing="breaching",
            dimensions={},
        ),
        AlarmRule(
            name="dead-letters",
            description=(
                "A function failed on an event, or a schedule could not call it. mayfly doctor says where to"
                " read it."
            ),
            namespace="AWS/SQS",
            metric="ApproximateNumberOfMessagesVisible",
            statistic="Maximum",
            comparison="GreaterThanThreshold",
            threshold=0,
            periods=1,
            missing="notBreaching",
            dimensions={"QueueName": args.dead_letters_name},
        ),
    ]


def silent(name: str, namespace: str, metric: str, every_minutes: int, therefore: str) -> AlarmRule:
    """Return the alarm of a function that counts its calls: three of them missed, and a quarter of an hour at
    least.
    """
    return AlarmRule(
        name=f"{name}-silent",
        description=(
            f"The {name} has not run, or has failed each time. {therefore} Its log says why:"
            f" /aws/lambda/...-{name}."
        ),
        namespace=namespace,
        metric=metric,
        statistic="Sum",
        comparison="LessThanThreshold",
        threshold=1,
        periods=max(3, -(-3 * every_minutes * 60 // PERIOD_SECONDS)),
        missing="breaching",
        dimensions={},
    )
