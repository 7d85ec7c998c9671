"""Cost of a stack while nothing runs and its bucket is empty, by type of resource; docs/infrastructure.md
shows the table.

List prices of us-east-1 in dollars, without the free tiers, which cover most of it. A type that is in neither
table is an error: look up its price when you add one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

HOURS = 730  # a month
MINUTES = HOURS * 60
CALL_GB_SECONDS = 0.8  # of the sweeper (0.5 GiB) and control (1 GiB), on average: a second or two each
PER_CALL = 1.00e-6 + 0.20e-6 + CALL_GB_SECONDS * 1.66667e-5  # Scheduler, Lambda's request, Lambda's time
Inputs = Mapping[str, Any]  # of a resource, by Pulumi's names


@dataclass(frozen=True, kw_only=True)
class IdlePrice:
    """The price of a type of resource while nothing runs."""

    usd_a_month: Callable[[Inputs], float]
    words: str
    source: str  # the page of AWS's, and when it was looked up


def _calls(inputs: Inputs) -> float:
    """Return the price of a schedule's calls; a cron of some calls a month costs nothing that counts."""
    rate = re.fullmatch(r"rate\((\d+) minutes?\)", inputs["scheduleExpression"])
    return MINUTES / int(rate[1]) * PER_CALL if rate else 0.0


def _endpoint(inputs: Inputs) -> float:
    return 0.01 * HOURS * len(inputs["subnetIds"]) if inputs["vpcEndpointType"] == "Interface" else 0.0


PRICES: Mapping[str, IdlePrice] = {
    "aws:cloudwatch/metricAlarm:MetricAlarm": IdlePrice(
        usd_a_month=lambda inputs: 0.10,
        words="$0.10 each; ten are free",
        source="aws.amazon.com/cloudwatch/pricing, 2026-11-20",
    ),
    "aws:ec2/vpcEndpoint:VpcEndpoint": IdlePrice(
        usd_a_month=_endpoint,
        words=(
            "$7.30 for each zone of an interface endpoint ($0.01 an hour), and $0.01 a GB; the gateway"
            " endpoint is free"
        ),
        source="aws.amazon.com/privatelink/pricing, 2026-11-22",
    ),
    "aws:imagebuilder/imagePipeline:ImagePipeline": IdlePrice(
        usd_a_month=lambda inputs: 10.53,  # as trainer/machines/baking.py has it, which this may not import
        words=(
            "$10.53: snapshots of two baked images of 100 GiB ($0.05 a GB), and a build of an hour on"
            " g4dn.xlarge"
        ),
        source="aws.amazon.com/ebs/pricing, 2026-11-20",
    ),
    "aws:kms/key:Key": IdlePrice(
        usd_a_month=lambda inputs: 1.00,
        words="$1.00 each, and $1.00 more for each of the first two rotations",
        source="aws.amazon.com/kms/pricing, 2026-11-22",
    ),
    "aws:scheduler/schedule:Schedule": IdlePrice(
        usd_a_month=_calls,
        words=(
            "$14.53 a million calls: $1 Scheduler, $0.20 requests, $13.33 their 0.8 GB-seconds, of which"
            " 400,000 are free"
        ),
        source="aws.amazon.com/eventbridge/pricing and lambda/pricing, 2026-11-20",
    ),
}
# Billed by what they hold or carry, of which there is nothing while nothing runs, or not at all.
FREE = frozenset(
    [
        "aws:budgets/budget:Budget",
        "aws:cloudwatch/eventRule:EventRule",
        "aws:cloudwatch/eventTarget:EventTarget",
        "aws:cloudwatch/logGroup:LogGroup",
        "aws:ec2/egressOnlyInternetGateway:EgressOnlyInternetGateway",
        "aws:ec2/internetGateway:InternetGateway",
        "aws:ec2/launchTemplate:LaunchTemplate",
        "aws:ec2/routeTable:RouteTable",
        "aws:ec2/routeTableAssociation:RouteTableAssociation",
        "aws:ec2/securityGroup:SecurityGroup",
        "aws:ec2/subnet:Subnet",
        "aws:ec2/vpc:Vpc",
        "aws:efs/accessPoint:AccessPoint",
        "aws:efs/fileSystem:FileSystem",
        "aws:efs/fileSystemPolicy:FileSystemPolicy",
        "aws:efs/mountTarget:MountTarget",
        "aws:iam/instanceProfile:InstanceProfile",
        "aws:iam/policy:Policy",
        "aws:iam/role:Role",
        "aws:iam/rolePolicy:RolePolicy",
        "aws:imagebuilder/component:Component",
        "aws:imagebuilder/distributionConfiguration:DistributionConfiguration",
        "aws:imagebuilder/imageRecipe:ImageRecipe",
        "aws:imagebuilder/infrastructureConfiguration:InfrastructureConfiguration",
        "aws:imagebuilder/lifecyclePolicy:LifecyclePolicy",
        "aws:kms/alias:Alias",
        "aws:lambda/function:Function",
        "aws:lambda/functionEventInvokeConfig:FunctionEventInvokeConfig",
        "aws:lambda/permission:Permission",
        "aws:s3/bucket:Bucket",
        "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration",
        "aws:s3/bucketLogging:BucketLogging",
        "aws:s3/bucketObjectv2:BucketObjectv2",
        "aws:s3/bucketOwnershipControls:BucketOwnershipControls",
        "aws:s3/bucketPolicy:BucketPolicy",
        "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock",
        "aws:s3/bucketReplicationConfig:BucketReplicationConfig",
        "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration",
        "aws:s3/bucketVersioning:BucketVersioning",
        "aws:scheduler/scheduleGroup:ScheduleGroup",
        "aws:sns/topic:Topic",
        "aws:sns/topicSubscription:TopicSubscription",
        "aws:sqs/queue:Queue",
        "aws:ssm/parameter:Parameter",
        "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule",
    ]
)


def idle_usd_a_month(resources: Iterable[tuple[str, Inputs]]) -> float:
    """Return the dollars a month of these resources, each a type and its inputs. Raises KeyError for a type
    without a price.
    """
    return sum(PRICES[kind].usd_a_month(inputs) for kind, inputs in resources if kind not in FREE)
