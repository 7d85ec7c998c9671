"""Messages to people: a topic with its subscribers, alarms and budget, and a queue of dead letters.

The topic has no key: alarms can't publish to one with the service's default key, and no message holds a
secret. The notifier's code is trainer/control/functions/notify.py; the webhook that it posts to is a
SecureString that a person sets, never in Pulumi's state.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import pulumi
import pulumi_aws as aws

from infra import policies
from infra.alarms import AlarmRule
from infra.functions import LoggedFunction
from infra.identity import ServiceRole
from infra.packing import function_files, reached_files
from infra.stack import Component, Stack

NOTIFIER = "trainer.control.functions.notify"
SERVICES = ("ssm", "sts")
LETTER_DAYS = 14  # the longest that SQS keeps a message
WARNINGS = (("ACTUAL", 80), ("FORECASTED", 100), ("ACTUAL", 100))  # percent of a budget, spent or to be spent


class DeadLetters(Component):
    """The dead-letter queue: events that a function failed on, and calls that a schedule could not make."""

    arn: pulumi.Output[str]

    def __init__(self, name: str, stack: Stack) -> None:
        super().__init__(name, stack)
        queue = aws.sqs.Queue(
            name,
            name=stack.dead_letters,
            message_retention_seconds=LETTER_DAYS * 24 * 3600,
            sqs_managed_sse_enabled=True,
            opts=self.child,
        )
        self.arn = queue.arn
        self.register_outputs({"arn": self.arn})


class Notifications(Component):
    """The topic with its subscribers, and the alarms that publish to it."""

    topic_arn: pulumi.Output[str]

    def __init__(
        self,
        name: str,
        stack: Stack,
        *,
        email: str,  # "": none
        budgets: bool,  # whether the account's budgets publish, too
        alarms: Iterable[AlarmRule],
        dead_letters_arn: pulumi.Input[str],
    ) -> None:
        super().__init__(name, stack)
        policy = policies.topic(stack, budgets=budgets)
        topic = aws.sns.Topic(name, name=stack.topic, policy=json.dumps(policy), opts=self.child)
        if email:
            aws.sns.TopicSubscription(
                "email", topic=topic.arn, protocol="email", endpoint=email, opts=self.child
            )
        self._notifier(stack, topic, dead_letters_arn)
        for alarm in alarms:
            alarm.make(stack, topic.arn, self.child)
        self.topic_arn = topic.arn
        self.register_outputs({"topic_arn": self.topic_arn})

    def _notifier(self, stack: Stack, topic: aws.sns.Topic, dead_letters_arn: pulumi.Input[str]) -> None:
        role = ServiceRole(
            "notifier",
            stack,
            self.child,
            description="The notifier: read the webhook's URL.",
            trust=policies.trust("lambda.amazonaws.com"),
            policy=policies.notifier(stack),
        )
        function = LoggedFunction(
            "notifier",
            stack,
            self.child,
            description="Posts the topic's messages to a webhook.",
            handler=f"{NOTIFIER}.handler",
            files=function_files(reached_files(NOTIFIER), SERVICES),
            role_arn=role.arn,
            dead_letters_arn=dead_letters_arn,
            timeout_seconds=30,
            memory_mib=256,
        )
        aws.lambda_.Permission(
            "notifier",
            action="lambda:InvokeFunction",
            function=function.name,
            principal="sns.amazonaws.com",
            source_arn=topic.arn,
            opts=self.child,
        )
        aws.sns.TopicSubscription(
            "notifier", topic=topic.arn, protocol="lambda", endpoint=function.arn, opts=self.child
        )


class AccountBudget(Component):
    """A monthly budget of all that the account costs, Mayfly's or not, by AWS's own count. It lags, and ends
    nothing.
    """

    def __init__(self, name: str, stack: Stack, *, usd: int, topic_arn: pulumi.Input[str]) -> None:
        super().__init__(name, stack)
        aws.budgets.Budget(
            name,
            name=f"{stack.prefix}-{stack.region}-account",
            budget_type="COST",
            limit_amount=str(usd),
            limit_unit="USD",
            time_unit="MONTHLY",
            notifications=[
                {
                    "comparison_operator": "GREATER_THAN",
                    "notification_type": kind,
                    "threshold": percent,
                    "threshold_type": "PERCENTAGE",
                    "subscriber_sns_topic_arns": [topic_arn],
                }
                for kind, percent in WARNINGS
            ],
            opts=self.child,
        )
        self.register_outputs({})
