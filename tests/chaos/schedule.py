"""A schedule: everything about one simulated run that chance, or an enumeration, decides. Frozen values, and how a seed
becomes one.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from typing import Any

from trainer.aws.error_codes import ROWS

START = datetime(2026, 11, 20, 12, 0, 0, 250_000, tzinfo=timezone.utc)
LAYERS = ("L1", "L2", "L3", "L4")
SWEEP_SECONDS, CONTROL_SECONDS = 120.0, 300.0
BOOT_SECONDS = 240  # boot allowance of the simulated type
# Every code of the table, each of which a request may fail with.
CODES = tuple(sorted({code for _, codes in ROWS for code in codes if code.isalpha() or "." in code}))
PASSING = ("InternalError", "ServiceUnavailable", "SlowDown", "ThrottlingException", "ReadTimeoutError")
# What an outage may be of: services, functions, and the networks of callers and nodes.
OUT_OF_ORDER = (
    "s3", "ec2", "scheduler", "cloudwatch", "control", "sweeper", "net:desk", "net:node", "net:control", "net:sweeper",
)  # fmt: skip
FATES = (
    "works",
    "never_reports",
    "hangs",
    "stalls",
    "zombie",
    "dies",
    "panics",
    "taken",
    "taken_unseen",
    "stays_on",
    "spoils",
    "fails",
    "forges",
)


@dataclass(frozen=True)
class NodeLife:
    """What becomes of one machine. Seconds count from the instant at which it runs."""

    boot: float = 40.0
    work: float = 200.0
    fate: str = "works"
    at: float = 100.0  # when its fate comes
    writes: int = 0  # to S3, right after the last of which its fate comes instead; 0: at its time
    locked: int = 0  # the one of its writes that S3 refuses to return; 0: none
    lock: str = (
        "InvalidRequest"  # under a key of its own; or "InvalidObjectState": archived, which HEAD shows
    )


@dataclass(frozen=True)
class Outage:
    """Something is out of order for a while: a service, a function (`control`, `sweeper`), or the network of a role."""

    what: str
    since: float
    until: float


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """One run and its weather. Seconds count from its start; requests and side effects by role, from 1."""

    seed: int = 0
    minutes: float = 20.0  # until the run's deadline
    budget_usd: float = 0.0
    driver: str = "desk"
    work: str = "train"  # what the run's command does: `run.WORKS`
    parent: str = (
        ""  # what counts of the run that it continues: "all" or "checkpoints"; "": it continues none
    )
    markets: tuple[str, ...] = ("on_demand", "on_demand")
    detached: bool = False
    poll: float = 30.0  # between two looks of a command
    stop_at: float = 0.0  # when the user asks for the end; 0: never
    returns: str = ""  # who comes after a killed command: "" nobody, "look" (any verb), "drive"
    returns_after: float = 60.0
    two_desks: bool = False
    nodes: tuple[NodeLife, ...] = (NodeLife(),)  # of each machine, or of each attempt's head
    cluster: int = 1  # machines of an attempt
    one_model: bool = False  # that they train; else they share the pieces
    peers: tuple[
        NodeLife, ...
    ] = ()  # of the machines besides the heads, in their order; as the head's where it is short
    fleet: Mapping[int, str] = field(default_factory=dict)  # call -> its answer, such as "refuse:CODE"
    full: frozenset[str] = frozenset()  # pools
    full_until: float = 0.0  # when they have room again; 0: never
    queue_minutes: float = 0.0  # for which it waits in line for capacity at most
    kills: frozenset[tuple[str, int]] = frozenset()  # role, after so many side effects
    lost: frozenset[tuple[str, int]] = frozenset()  # answers to side effects that never arrive
    errors: Mapping[tuple[str, int], str] = field(default_factory=dict)  # role, request -> code
    # Seconds for which a caller sleeps, its request carried out and its answer not yet seen: a laptop may for long.
    stalls: Mapping[tuple[str, int], float] = field(default_factory=dict)
    # Seconds that a request takes to arrive: less than five minutes, after which AWS refuses its signature.
    delays: Mapping[tuple[str, int], float] = field(default_factory=dict)
    error_rate: float = 0.0
    lost_rate: float = 0.0
    codes: tuple[str, ...] = PASSING
    outages: tuple[Outage, ...] = ()
    off: frozenset[str] = frozenset()  # layers that are switched off
    promotes: bool = False  # whether control and a desk put its models into production, at once
    desk_skew: float = 0.0
    node_skew: float = 0.0
    function_skew: float = 0.0  # of control and sweeper
    events: str = "once"  # EC2's events: once, never, late, twice
    latency: float = 0.05
    pending_seconds: float = 8.0
    shutting_down_seconds: float = 25.0
    shown_after: float = 0.0  # until DescribeInstances shows a new instance

    def __str__(self) -> str:
        """Return the call that makes it again, with what differs from the usual."""
        usual = Schedule()
        named = {item.name: getattr(self, item.name) for item in fields(self)}
        changed = {name: value for name, value in named.items() if value != getattr(usual, name)}
        return f"Schedule({', '.join(f'{name}={value!r}' for name, value in changed.items())})"


def from_seed(seed: int, **fixed: Any) -> Schedule:
    """Return the schedule of a seed; `fixed` replaces some of its values."""
    dice = random.Random(seed)
    values: dict[str, Any] = {"seed": seed}
    values["minutes"] = dice.choice((8.0, 12.0, 20.0, 30.0))
    values["budget_usd"] = dice.choice((0.0, 0.0, 0.5, 1.5))
    values["driver"] = "control" if dice.random() < 0.2 else "desk"
    values["markets"] = dice.choice(
        (("on_demand",), ("on_demand", "on_demand"), ("spot", "on_demand"), ("spot",))
    )
    values["detached"] = dice.random() < 0.15
    values["two_desks"] = dice.random() < 0.1
    values["poll"] = dice.uniform(10.0, 60.0)
    values["stop_at"] = dice.uniform(0.0, 500.0) if dice.random() < 0.15 else 0.0
    values["returns"] = dice.choice(("", "look", "drive"))
    values["returns_after"] = dice.choice((2.0, 60.0, 400.0, 3000.0))
    values["nodes"] = tuple(_life(dice) for _ in range(6))
    values["fleet"] = _answers(dice)
    if dice.random() < 0.1:
        values["full"] = frozenset(pool for pool in pools(values["markets"]) if dice.random() < 0.5)
    if dice.random() < 0.1:
        values["full"] = frozenset(pools(values["markets"]))
        values["full_until"] = dice.choice((30.0, 300.0, 900.0, 0.0))
        values["queue_minutes"] = dice.choice((2.0, 10.0, 20.0))
    elif dice.random() < 0.4:
        values["queue_minutes"] = dice.choice((5.0, 15.0))
    values["work"] = dice.choice(("train", "train", "train", "ranks", "script", "prepare"))
    if values["work"] == "prepare" and dice.random() < 0.5:
        values["work"] = "score"
    if values["work"] == "train" and dice.random() < 0.15:
        values["parent"] = dice.choice(("all", "checkpoints"))
    values["kills"] = _kills(dice)
    values["lost"] = frozenset((_role(dice), dice.randint(1, 14)) for _ in range(dice.choice((0, 0, 1, 2))))
    values["errors"] = {
        (_role(dice), dice.randint(1, 60)): dice.choice(CODES) for _ in range(dice.choice((0, 0, 1, 3)))
    }
    if dice.random() < 0.3:
        role = _role(dice)
        longest = (
            (3.0, 40.0, 200.0, 900.0, 4000.0) if role == "desk" else (3.0, 40.0)
        )  # a function's time is limited
        values["stalls"] = {(role, dice.randint(1, 60)): dice.choice(longest)}
    if dice.random() < 0.2:
        values["delays"] = {(_role(dice), dice.randint(1, 40)): dice.choice((2.0, 30.0, 200.0))}
    if dice.random() < 0.2:
        values["error_rate"], values["lost_rate"] = dice.choice((0.02, 0.1)), dice.choice((0.0, 0.05))
    values["outages"] = _outages(dice)
    values["promotes"] = values["work"] in ("train", "ranks") and dice.random() < 0.2
    values["desk_skew"] = dice.choice((0.0, 0.0, -200.0, 150.0, 2.0))
    values["node_skew"] = dice.choice((0.0, 0.0, 2.0, -2.0))
    values["function_skew"] = dice.choice((0.0, 0.0, 0.0, 2.0, -2.0))
    values["events"] = dice.choice(("once", "once", "never", "late", "twice"))
    values["latency"] = dice.choice((0.02, 0.05, 0.4))
    values["pending_seconds"] = dice.choice((3.0, 8.0, 40.0))
    values["shutting_down_seconds"] = dice.choice((2.0, 25.0, 240.0))
    values["shown_after"] = dice.choice((0.0, 0.0, 5.0, 60.0))
    return Schedule(**(_several(random.Random(f"{seed}, several machines"), values) | fixed))


def _several(dice: random.Random, values: dict[str, Any]) -> dict[str, Any]:
    """Return values of which some are for a run of several machines, by dice of their own: the others stay."""
    if values["work"] not in ("train", "ranks", "script") or values.get("parent") or dice.random() > 0.15:
        return values
    count = dice.choice((2, 3))
    fleet = values["fleet"] | {dice.randint(1, 4): f"part:{count - 1}"}
    return values | {
        "cluster": count,
        "one_model": values["work"] == "ranks" or dice.random() < 0.3,
        "peers": tuple(_life(dice) for _ in range(6)),
        "fleet": fleet if dice.random() < 0.5 else values["fleet"],
    }


def pools(markets: tuple[str, ...]) -> list[str]:
    """Return the pools of a ladder, as the world names them."""
    return [
        f"g5.12xlarge us-east-1{zone} {market.replace('_', '-')}"
        for zone, market in zip("abc", markets, strict=False)
    ]


def _role(dice: random.Random) -> str:
    return dice.choice(("desk", "desk", "desk", "control", "sweeper"))


def _kills(dice: random.Random) -> frozenset[tuple[str, int]]:
    return frozenset((_role(dice), dice.randint(0, 16)) for _ in range(dice.choice((0, 1, 1, 2, 3))))


def _life(dice: random.Random) -> NodeLife:
    fate = dice.choice(FATES) if dice.random() < 0.5 else "works"
    return NodeLife(
        boot=dice.choice((15.0, 40.0, 200.0)),
        work=dice.choice((30.0, 200.0, 500.0, 3000.0)),
        fate=fate,
        at=dice.uniform(0.0, 500.0),
        writes=dice.randint(1, 12) if dice.random() < 0.3 else 0,
    )


def _answers(dice: random.Random) -> dict[int, str]:
    if dice.random() < 0.5:
        return {}
    code = dice.choice(CODES)
    words = (
        f"refuse:{code}", f"raise:{code}", "refuse:InsufficientInstanceCapacity", "empty", "both", "lost", "unsent",
        "failed:InternalError", f"late:{dice.choice((20, 120, 240))}",
    )  # fmt: skip
    return {number: dice.choice(words) for number in range(1, 5) if dice.random() < 0.6}


def _outages(dice: random.Random) -> tuple[Outage, ...]:
    found = []
    for _ in range(dice.choice((0, 0, 1, 1, 2))):
        since = dice.uniform(0.0, 1500.0)
        found.append(
            Outage(dice.choice(OUT_OF_ORDER), since, since + dice.choice((20.0, 120.0, 700.0, 2000.0)))
        )
    return tuple(found)
