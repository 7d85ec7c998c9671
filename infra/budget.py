"""A budget of the whole account: AWS's own count of a month's dollars, announced on the topic. It lags, and
ends nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

WARNINGS = (
    ("ACTUAL", 80),
    ("FORECASTED", 100),
    ("ACTUAL", 100),
)  # percent of the budget that are spent, or will be


@dataclass(frozen=True, kw_only=True)
class AccountBudgetArgs:
    budget_name: str
    usd_a_month: int
    topic_arn: pulumi.Input[str]
    tags: dict[str, str]


class AccountBudget(pulumi.ComponentResource):
    """A monthly budget of all that the account costs, Mayfly's or not."""

    def __init__(
        self, name: str, args: AccountBudgetArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("mayfly:budget:AccountBudget", name, None, opts)
        aws.budgets.Budget(
            name,
            name=args.budget_name,
            budget_type="COST",
            limit_amount=str(args.usd_a_month),
            limit_unit="USD",
            time_unit="MONTHLY",
            notifications=[
                aws.budgets.BudgetNotificationArgs(
                    comparison_operator="GREATER_THAN",
                    notification_type=kind,
                    threshold=percent,
                    threshold_type="PERCENTAGE",
                    subscriber_sns_topic_arns=[args.topic_arn],
                )
                for kind, percent in WARNINGS
            ],
            tags=args.tags,
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.register_outputs({})
