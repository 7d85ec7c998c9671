"""A budget of the whole account: AWS's own count of a month's dollars, announced on the topic. It lags, and
ends nothing.
"""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from infra.component import Component
from infra.stack import Stack

# Percent of the budget that are spent, or will be.
WARNINGS = (("ACTUAL", 80), ("FORECASTED", 100), ("ACTUAL", 100))


class AccountBudget(Component):
    """A monthly budget of all that the account costs, Mayfly's or not."""

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
                aws.budgets.BudgetNotificationArgs(
                    comparison_operator="GREATER_THAN",
                    notification_type=kind,
                    threshold=percent,
                    threshold_type="PERCENTAGE",
                    subscriber_sns_topic_arns=[topic_arn],
                )
                for kind, percent in WARNINGS
            ],
            opts=self.child,
        )
        self.register_outputs({})
