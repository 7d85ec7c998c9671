"""Pools that were full a moment ago, in `memory/capacity.json`: later launches ask the others first.

Whoever gets a refusal adds its pool, by compare-and-swap (`control.learn`); an entry counts for three
minutes, as in Karpenter (its cache of unavailable offerings, read 2026-08). A damaged object counts as empty.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta

from trainer.base.instants import iso
from trainer.base.strict_json import Unsound, read_object
from trainer.runs.attempts import Rung

OBJECT = "memory/capacity.json"
FORMAT = 1
FULL_FOR = timedelta(minutes=3)
AHEAD = timedelta(minutes=1)  # a caller's clock may be; a later instant would be remembered for too long
MOST_BYTES, MOST_POOLS = 1 << 20, 10_000

Full = Mapping[str, datetime]  # pool -> the instant of its last refusal


def pool_of(rung: Rung) -> str:
    """Return the pool of a rung: `g5.12xlarge spot us-east-1a`."""
    return f"{rung.instance_type} {rung.market} {rung.availability_zone}"


def full_from(body: bytes, now: datetime) -> dict[str, datetime]:
    """Read the pools that were full within the last three minutes; {} if the object is damaged."""
    try:
        stored = read_object(body, most_bytes=MOST_BYTES, name="the full pools")
        stored.whole("format", least=FORMAT, most=FORMAT)
        pools = stored.instants("pools", most=MOST_POOLS)
    except Unsound:
        return {}
    return {pool: at for pool, at in pools.items() if now - FULL_FOR < at <= now + AHEAD}


def with_full(known: Full, rung: Rung, now: datetime) -> dict[str, datetime]:
    """Return the full pools with one more, or the same one again."""
    newest = sorted({**known, pool_of(rung): now}.items(), key=lambda item: item[1])[-MOST_POOLS:]
    return dict(newest)


def to_bytes(full: Full) -> bytes:
    """Return the stored form."""
    pools = {pool: iso(at) for pool, at in full.items()}
    return (json.dumps({"format": FORMAT, "pools": pools}, indent=1, sort_keys=True) + "\n").encode()
