"""The alarms: what would otherwise fail in silence. CloudWatch publishes them to the topic (notify.py)."""

from __future__ import annotations

from dataclasses import dataclass, field

import pulumi
import pulumi_aws as aws

from infra.stack import Stack
from trainer.aws.stack_outputs import metrics_namespace

PERIOD_SECONDS = 300


@dataclass(frozen=True, kw_only=True)
class AlarmRule:
    """One alarm, with a name and a description for the person on call."""

    name: str
    description: str
    namespace: str
    metric: str
    statistic: str = "Maximum"
    comparison: str = "GreaterThanThreshold"
    threshold: float = 0
    periods: int = 1  # of five minutes each
    missing: str = "notBreaching"
    dimensions: dict[str, str] = field(default_factory=dict)

    def make(self, stack: Stack, topic_arn: pulumi.Input[str], opts: pulumi.ResourceOptions) -> None:
        """Make the alarm. The end of a silence is announced, too: a function may recover by itself."""
        aws.cloudwatch.MetricAlarm(
            self.name,
            name=f"{stack.prefix}-{self.name}",
            alarm_description=self.description,
            namespace=self.namespace,
            metric_name=self.metric,
            dimensions=self.dimensions,
            statistic=self.statistic,
            comparison_operator=self.comparison,
            threshold=self.threshold,
            period=PERIOD_SECONDS,
            evaluation_periods=self.periods,
            treat_missing_data=self.missing,
            alarm_actions=[topic_arn],
            ok_actions=[topic_arn] if self.missing == "breaching" else [],
            opts=opts,
        )


def alarms(stack: Stack, *, sweep_minutes: int, control_minutes: int) -> list[AlarmRule]:
    """Return the stack's alarms."""
    own = metrics_namespace(stack.project, stack.name)
    return [
        silent("sweeper", own, "SweepsDone", sweep_minutes, "Nothing ends what is past its deadline."),
        silent(
            "control", own, "SettlesDone", control_minutes, "No scheduled run starts, and none is settled."
        ),
        AlarmRule(
            name="instance-overdue",
            description=(
                "An instance is older than its deadline by ten minutes. Look at it: mayfly status, mayfly"
                " stop RUN."
            ),
            namespace=own,
            metric="OverdueMinutes",
            threshold=10,
        ),
        AlarmRule(
            name="retrains-overdue",
            description=(
                "A scheduled run did not start. mayfly retrains list names it; then see its schedule in"
                " EventBridge."
            ),
            namespace=own,
            metric="RetrainsOverdue",
            periods=3,
            missing="breaching",
        ),
        AlarmRule(
            name="dead-letters",
            description=(
                "A function failed on an event, or a schedule could not call it. mayfly doctor says where to"
                " read it."
            ),
            namespace="AWS/SQS",
            metric="ApproximateNumberOfMessagesVisible",
            dimensions={"QueueName": stack.dead_letters},
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
    )
