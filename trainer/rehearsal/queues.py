"""Messages to SQS queues from inside the embedded AWS: dead letters and deliveries of topics. moto keeps the
queues.
"""

from __future__ import annotations

import json

from trainer.rehearsal.account import EmbeddedAccount, Principal
from trainer.rehearsal.authorization import demand
from trainer.rehearsal.iam_policies import Authorization, lets_service
from trainer.rehearsal.world import AwsError

SEND = "sqs:SendMessage"


def send_as(cloud: EmbeddedAccount, principal: Principal, queue_arn: str, body: str) -> None:
    """Send a message under a principal's role. Raises AwsError for a role without permission, and for an
    unknown queue.
    """
    demand(cloud, principal, "sqs", Authorization(action=SEND, resource=queue_arn))
    _send(cloud, queue_arn, body)


def send_as_service(cloud: EmbeddedAccount, service: str, source_arn: str, queue_arn: str, body: str) -> None:
    """Send a message as an AWS service. Raises AwsError if the queue's own policy does not allow it."""
    url = _url(cloud, queue_arn)
    attributes = cloud.moto("sqs", "GetQueueAttributes", {"QueueUrl": url, "AttributeNames": ["Policy"]})
    policy = attributes.get("Attributes", {}).get("Policy") or json.dumps({"Statement": []})
    context = {"aws:sourcearn": source_arn, "aws:sourceaccount": cloud.account}
    if not lets_service(policy, service, Authorization(action=SEND, resource=queue_arn, context=context)):
        raise AwsError(
            "AccessDenied", f"The policy of {queue_arn} does not let {service} send messages.", 403
        )
    _send(cloud, queue_arn, body)


def depth(cloud: EmbeddedAccount, queue_name: str) -> int:
    """Return how many messages of a queue are visible. Raises AwsError for an unknown queue."""
    asked = {"QueueUrl": _url(cloud, queue_name), "AttributeNames": ["ApproximateNumberOfMessages"]}
    return int(cloud.moto("sqs", "GetQueueAttributes", asked)["Attributes"]["ApproximateNumberOfMessages"])


def _send(cloud: EmbeddedAccount, queue_arn: str, body: str) -> None:
    cloud.moto("sqs", "SendMessage", {"QueueUrl": _url(cloud, queue_arn), "MessageBody": body})


def _url(cloud: EmbeddedAccount, queue: str) -> str:
    return str(cloud.moto("sqs", "GetQueueUrl", {"QueueName": queue.rpartition(":")[2]})["QueueUrl"])
