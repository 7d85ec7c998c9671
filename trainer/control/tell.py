"""Publish to the stack's topic what came of a run that nobody watched. Who is told is the topic's: docs/notifications.md."""

from __future__ import annotations

from botocore.exceptions import BotoCoreError, ClientError

from trainer.access import Access, aws_error
from trainer.control.summary import PersonalMessage
from trainer.stack_outputs import StackOutputs


def publish(access: Access, outputs: StackOutputs, message: PersonalMessage) -> None:
    """Publish a message. Raises ours where the topic does not take it."""
    try:
        access.client("sns").publish(TopicArn=outputs.topic_arn, Subject=message.subject, Message=message.text)
    except (BotoCoreError, ClientError) as error:
        raise aws_error(error, f"cannot tell anybody: {message.subject}") from error
