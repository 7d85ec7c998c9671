"""The tags of every resource."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.infra.program import STACK

if TYPE_CHECKING:
    from tests.infra.program import Recorded


def test_a_resource_keeps_its_own_tags_beside_the_stacks(program: Recorded) -> None:
    assert program.inputs("aws:ec2/vpc:Vpc")["tags"] == {**STACK.tags, "Name": "mayfly-dev"}
    assert program.inputs("aws:sqs/queue:Queue")["tags"] == STACK.tags


def test_untaggable_resources_get_no_tags(program: Recorded) -> None:
    assert "tags" not in program.inputs("aws:sns/topicSubscription:TopicSubscription")
