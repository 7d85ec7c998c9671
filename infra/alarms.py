"""The alarms: what would otherwise fail in silence. CloudWatch publishes them to the topic (notify.py)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pulumi
import pulumi_aws as aws

from infra.stack import Stack
from trainer.aws.stack_outputs import RETRAINS_ALARM, metrics_namespace

PERIOD_SECONDS = 300


@dataclass(frozen=True, kw_only=True)
class AlarmRule:
    """One alarm, by Pulumi's names, with a name and a description for the person on call."""

    name: str
    alarm_description: str
    namespace: str
    metric_name: str
    statistic: str = "Maximum"
    comparison_operator: str = "GreaterThanThreshold"
    threshold: float = 0
    evaluation_periods: int = 1  # of five minutes each
    treat_missing_data: str = "notBreaching"
    dimensions: dict[str, str] = field(default_factory=dict)

    def make(self, stack: Stack, topic_arn: pulumi.Input[str], opts: pulumi.ResourceOptions) -> None:
        """Make the alarm. The end of a silence is announced, too: a function may recover by itself."""
        ends = [topic_arn] if self.treat_missing_data == "breaching" else []
        own: dict[str, Any] = {**vars(self), "name": f"{stack.prefix}-{self.name}", "period": PERIOD_SECONDS}
        aws.cloudwatch.MetricAlarm(self.name, **own, alarm_actions=[topic_arn], ok_actions=ends, opts=opts)


def alarms(stack: Stack, *, sweep_minutes: int, control_minutes: int, retrains: bool) -> list[AlarmRule]:
    """Return the stack's alarms. One of them is for scheduled runs, and would be raised without any."""
    own = metrics_namespace(stack.project, stack.name)
    unsettled = "No scheduled run starts, and none is settled."
    return [
        silent("sweeper", own, "SweepsDone", sweep_minutes, "Nothing ends what is past its deadline."),
        silent("control", own, "SettlesDone", control_minutes, unsettled),
        AlarmRule(
            name="instance-overdue",
            alarm_description=(
                "An instance is older than its deadline by ten minutes. Look at it: mayfly status, mayfly"
                " stop RUN."
            ),
            namespace=own,
            metric_name="OverdueMinutes",
            threshold=10,
        ),
        *([retrains_overdue(own)] if retrains else []),
        AlarmRule(
            name="dead-letters",
            alarm_description=(
                "A function failed on an event, or a schedule could not call it. mayfly doctor says where to"
                " read it."
            ),
            namespace="AWS/SQS",
            metric_name="ApproximateNumberOfMessagesVisible",
            dimensions={"QueueName": stack.dead_letters},
        ),
    ]


def retrains_overdue(namespace: str) -> AlarmRule:
    """Return the alarm of scheduled runs that control never began."""
    return AlarmRule(
        name=RETRAINS_ALARM,
        alarm_description=(
            "A scheduled run did not start. mayfly retrains list names it; then see its schedule in"
            " EventBridge."
        ),
        namespace=namespace,
        metric_name="RetrainsOverdue",
        evaluation_periods=3,
        treat_missing_data="breaching",
    )


def silent(name: str, namespace: str, metric: str, every_minutes: int, therefore: str) -> AlarmRule:
    """Return the alarm of a function that counts its calls: three of them missed, and a quarter of an hour at
    least.
    """
    return AlarmRule(
        name=f"{name}-silent",
        alarm_description=(
            f"The {name} has not run, or has failed each time. {therefore} Its log says why:"
            f" /aws/lambda/...-{name}."
        ),
        namespace=namespace,
        metric_name=metric,
        statistic="Sum",
        comparison_operator="LessThanThreshold",
        threshold=1,
        evaluation_periods=max(3, -(-3 * every_minutes * 60 // PERIOD_SECONDS)),
        treat_missing_data="breaching",
    )
