"""The steps of a boot: as reported by a node, as written in the receipt, and as stored in the bucket by
instance type.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trainer.base.strict_json import Fields, Unsound, read_object
from trainer.runs.record import RunRecord
from trainer.runs.reports import MOST_BOOT_SECONDS, NODE_STEPS, NodeResult

OBJECT = "memory/boots.json"
STEPS = ("machine", *NODE_STEPS)  # "machine": from the launch to the first command of user data
BAKED, PLAIN = "baked", "plain"  # whether the image had the environment
MOST_BYTES, MOST_TYPES = 1 << 20, 1_000
WEIGHT = 9  # earlier runs that a remembered mean counts as, at most

Boots = dict[str, dict[str, dict[str, float]]]  # type -> baked or plain -> step -> seconds, and `runs`


def boot_steps(record: RunRecord, result: NodeResult | None) -> dict[str, Any]:
    """Return the seconds of each step of the last boot and whether its image was baked; {} if no node
    reported them.
    """
    began = record.attempt.created_at if record.attempt else None
    if result is None or not result.boot or began is None:
        return {}
    booted = result.phases.get("boot")
    machine = (booted - began).total_seconds() if booted else 0.0
    return {"machine": round(min(max(machine, 0.0), MOST_BOOT_SECONDS), 3), **result.boot}


def boots_from(body: bytes) -> Boots:
    """Read the stored boot times; {} if they are damaged."""
    kept: Boots = {}
    try:
        for instance_type, kinds in read_object(body, most_bytes=MOST_BYTES, name="the boots").tables(
            "types", most=MOST_TYPES
        ):
            kept[instance_type] = {
                kind: _entry(kinds.table(kind)) for kind in (BAKED, PLAIN) if kinds.values.get(kind)
            }
    except Unsound:
        return {}
    return kept


def with_boot(known: Boots, instance_type: str, boot: Mapping[str, Any]) -> Boots:
    """Return the stored boot times with one more boot of a type, as a mean that weighs later runs more."""
    kind = BAKED if boot.get("baked") else PLAIN
    before = known.get(instance_type, {}).get(kind, {"runs": 0})
    weight = min(before["runs"], WEIGHT)
    steps = {
        step: (before.get(step, 0.0) * weight + float(boot.get(step, 0.0))) / (weight + 1) for step in STEPS
    }
    entry = {"runs": int(before["runs"]) + 1, **{step: round(seconds, 3) for step, seconds in steps.items()}}
    return {**known, instance_type: {**known.get(instance_type, {}), kind: entry}}


def to_bytes(boots: Boots) -> bytes:
    """Return the stored form."""
    return (json.dumps({"types": boots}, indent=1, sort_keys=True) + "\n").encode()


def _entry(fields: Fields) -> dict[str, float]:
    steps = {step: fields.number(step, least=0, most=MOST_BOOT_SECONDS) or 0.0 for step in STEPS}
    return {"runs": fields.whole("runs", least=1), **steps}
