"""The nodes of one attempt, if it has several: who they are for each other. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.runs.actions import DeleteTokens
from trainer.runs.keys import NodeKeys
from trainer.runs.observation import Observation
from trainer.runs.record import Launch


def addresses_of(launch: Launch, observed: Observation) -> tuple[str, ...] | None:
    """Return the private addresses of a launch's instances in their order, () for one; None until AWS shows
    all of them.
    """
    if len(launch.instance_ids) < 2:
        return ()
    known = {instance.instance_id: instance.private_address for instance in observed.alive}
    addresses = tuple(known.get(instance_id, "") for instance_id in launch.instance_ids)
    return addresses if all(addresses) else None


def tokens_of(nodes: Sequence[NodeKeys]) -> tuple[DeleteTokens, ...]:
    """Return the deletion of the tokens of an attempt's nodes, or of several attempts'; none for one node."""
    attempts = [node.attempt for node in nodes]
    several = tuple(node for node in nodes if attempts.count(node.attempt) > 1)
    return (DeleteTokens(nodes=several),) if several else ()
