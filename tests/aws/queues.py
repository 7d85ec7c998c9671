"""Messages to SQS queues from inside the embedded AWS: dead letters and deliveries of topics. moto keeps the
queues.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from infra.policies import allow, document
from tests.aws.iam_policies import Authorization, lets_service
from trainer.aws.access import Access
from trainer.rehearsal.account import Principal
from trainer.rehearsal.world import AwsError

if TYPE_CHECKING:
    from tests.aws.account import CheckedAccount

SEND = "sqs:SendMessage"


def send_as(cloud: CheckedAccount, principal: Principal, queue_arn: str, body: str) -> None:
    """Send a message under a principal's role. Raises AwsError for a role without permission, and for an
    unknown queue.
    """
    cloud.demand(principal, "sqs", SEND, queue_arn)
    _send(cloud, queue_arn, body)


def send_as_service(cloud: CheckedAccount, service: str, source_arn: str, queue_arn: str, body: str) -> None:
    """Send a message as an AWS service. Raises AwsError if the queue's own policy does not allow it."""
    url = _url(cloud, queue_arn)
    attributes = cloud.moto("sqs", "GetQueueAttributes", {"QueueUrl": url, "AttributeNames": ["Policy"]})
    policy = attributes.get("Attributes", {}).get("Policy") or json.dumps({"Statement": []})
    context = {"aws:sourcearn": source_arn, "aws:sourceaccount": cloud.account}
    if not lets_service(policy, service, Authorization(action=SEND, resource=queue_arn, context=context)):
        what = f"The policy of {queue_arn} does not let {service} send messages."
        raise AwsError("AccessDenied", what, 403)
    _send(cloud, queue_arn, body)


def depth(cloud: CheckedAccount, queue_name: str) -> int:
    """Return how many messages of a queue are visible. Raises AwsError for an unknown queue."""
    asked = {"QueueUrl": _url(cloud, queue_name), "AttributeNames": ["ApproximateNumberOfMessages"]}
    return int(cloud.moto("sqs", "GetQueueAttributes", asked)["Attributes"]["ApproximateNumberOfMessages"])


def _send(cloud: CheckedAccount, queue_arn: str, body: str) -> None:
    cloud.moto("sqs", "SendMessage", {"QueueUrl": _url(cloud, queue_arn), "MessageBody": body})


def _url(cloud: CheckedAccount, queue: str) -> str:
    return str(cloud.moto("sqs", "GetQueueUrl", {"QueueName": queue.rpartition(":")[2]})["QueueUrl"])


def new_queue(access: Access, name: str) -> tuple[str, str]:
    """Make a queue; return its URL and its ARN."""
    sqs = access.client("sqs")
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    described = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
    return url, described["Attributes"]["QueueArn"]


def subscribe_queue(access: Access, topic_arn: str) -> None:
    """Make the queue `messages`, which gets a topic's messages."""
    url, arn = new_queue(access, "messages")
    source = {"ArnEquals": {"aws:SourceArn": topic_arn}}
    statement = {**allow("Receive", SEND, arn, source), "Principal": {"Service": "sns.amazonaws.com"}}
    policy = {"Policy": json.dumps(document(statement))}
    access.client("sqs").set_queue_attributes(QueueUrl=url, Attributes=policy)
    access.client("sns").subscribe(TopicArn=topic_arn, Protocol="sqs", Endpoint=arn)


def queued(access: Access) -> list[dict[str, Any]]:
    """Return up to ten messages of that queue, and hide them from other readers for half a minute."""
    sqs = access.client("sqs")
    url = sqs.get_queue_url(QueueName="messages")["QueueUrl"]
    answer = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)
    return [json.loads(message["Body"]) for message in answer.get("Messages", [])]
