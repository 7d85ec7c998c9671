"""Rules of SNS beyond a rehearsal's: messages reach queues, too, and AWS's services publish.

A subscriber's own policy has to allow the topic. Other protocols and filters are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.aws.iam_policies import Authorization, lets_service
from trainer.rehearsal import messages
from trainer.rehearsal.account import Rules
from trainer.rehearsal.wire import Answer, Call, collect
from trainer.rehearsal.world import AwsError

if TYPE_CHECKING:
    from tests.aws.account import CheckedAccount

PROTOCOLS = ("lambda", "sqs", "email")
_SERVICES_KEY = "alias/aws/sns"


def subscribe(cloud: CheckedAccount, call: Call) -> dict[str, Any] | Answer:
    """Subscribe to a topic."""
    if call.params["Protocol"] not in PROTOCOLS:
        what = f"The embedded AWS subscribes {', '.join(PROTOCOLS)}, and not {call.params['Protocol']}."
        raise AwsError("UnsupportedOperation", what)
    if unknown := sorted(call.params.get("Attributes", {})):
        raise AwsError("UnsupportedOperation", f"The embedded AWS subscribes without {', '.join(unknown)}.")
    if call.params["Protocol"] != "email":
        return collect(call.environ, call.account)
    cloud.moto("sns", "Subscribe", call.params)
    return {"SubscriptionArn": "pending confirmation"}


def publish_as_service(
    cloud: CheckedAccount, service: str, source_arn: str, topic_arn: str, *, subject: str, message: str
) -> None:
    """Publish as an AWS service. Raises AwsError if the topic's policy refuses, and for a topic with SNS's
    default key.
    """
    attributes = cloud.moto("sns", "GetTopicAttributes", {"TopicArn": topic_arn})["Attributes"]
    if attributes.get("KmsMasterKeyId", "").endswith(
        _SERVICES_KEY
    ):  # its fixed policy lets no other service use it
        raise AwsError("KMSAccessDenied", f"{service} can't use the key {_SERVICES_KEY} of {topic_arn}.", 403)
    context = {
        "aws:sourcearn": source_arn,
        "aws:sourceaccount": cloud.account,
        "aws:sourceowner": cloud.account,
    }
    if not lets_service(
        attributes["Policy"],
        service,
        Authorization(action="sns:Publish", resource=topic_arn, context=context),
    ):
        raise AwsError(
            "AuthorizationError", f"The policy of {topic_arn} does not let {service} publish.", 403
        )
    messages.deliver(cloud, topic_arn, subject=subject, message=message)


RULES: Rules = {("sns", "Subscribe"): subscribe}
