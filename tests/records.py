"""Records of a run by hand: a run that begins at noon on the first of two zones, and its parts at later seconds."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from tests.pieces import named
from trainer.runs.actions import Store
from trainer.runs.attempts import Attempt, Launch, Rung
from trainer.runs.observation import DescribedInstance
from trainer.runs.record import InstanceSeen, RunPiece, RunRecord

NOON = datetime(2026, 11, 20, 12, 0, 0, tzinfo=timezone.utc)
DEADLINE = NOON + timedelta(hours=1)
RUN = "20261120-120000-crypto-k3v9"


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def rung(
    instance_type: str = "g5.12xlarge", zone: str = "us-east-1a", market: str = "on_demand", **changed: Any
) -> Rung:
    values: dict[str, Any] = {
        "instance_type": instance_type,
        "availability_zone": zone,
        "subnet_id": f"subnet-{zone}",
        "market": market,
        "price_usd_per_hour": 2.0 if market == "spot" else 5.0,
        "on_demand_usd_per_hour": 5.0,
        "launch_template_id": "lt-1",
        "image_id": "ami-1",
        "vcpus": 48,
        "quota_code": "",
        "boot_seconds": 900,
    }
    return Rung(**(values | changed))


def intent(rung: int = 0, **changed: Any) -> Launch:
    """Return a launch that is stored and not called yet."""
    values: dict[str, Any] = {
        "rung": rung,
        "token": f"t{rung}",
        "deadline": DEADLINE,
        "deadline_cause": "max_duration",
        "intended_at": at(1),
    }
    return Launch(**(values | changed))


def created(**changed: Any) -> Launch:
    """Return a launch that made the instance i-1."""
    return intent(**({"outcome": "created", "instance_ids": ("i-1",)} | changed))


def launched(*launches: Launch) -> tuple[Attempt, ...]:
    """Return the attempts of a run that has its instance: one, with these launches."""
    return (Attempt(number=1, launches=launches or (created(),), created_at=at(5)),)


_INSTANCE: dict[str, Any] = {
    "instance_id": "i-1",
    "attempt": 1,
    "instance_type": "g5.12xlarge",
    "market": "on_demand",
    "availability_zone": "us-east-1a",
    "launched_at": at(5),
}


def described(state: str = "running", **changed: Any) -> DescribedInstance:
    """Return the run's instance as EC2 describes it."""
    return DescribedInstance(**(_INSTANCE | {"state": state} | changed))


def seen(state: str = "terminated", **changed: Any) -> InstanceSeen:
    """Return the run's instance as its record has it."""
    proof = "described terminated" if state == "terminated" else ""
    return InstanceSeen(**(_INSTANCE | {"state": state, "proof": proof} | changed))


def piece(symbol: str, *, model: str = "", **changed: Any) -> RunPiece:
    """Return a symbol's piece."""
    fields = {**named(symbol), "series": (symbol,)}
    return RunPiece(model=model or f"lstm_{symbol}_1m", **(fields | changed))


def make_record(**changed: Any) -> RunRecord:
    """Return a starting run of two symbols on two zones, with an hour to live."""
    values: dict[str, Any] = {
        "run_id": RUN,
        "project": "mayfly",
        "stack": "dev",
        "owner": "someone",
        "place": "account",
        "bucket": "mayfly-bucket",
        "instance_role_id": "AROA1",
        "job": {"name": "crypto", "data": {"symbols": ["BTC-USD", "ETH-USD"], "timeframe": "1m"}},
        "pieces": (piece("BTC-USD"), piece("ETH-USD")),
        "ladder": (rung(zone="us-east-1a"), rung(zone="us-east-1b")),
        "bundle_key": "code/abc.whl",
        "bundle_sha256": "abc",
        "budget_usd": 0.0,
        "estimated_usd": 0.5,
        "preflight_at": at(-5),
        "created_at": NOON,
        "deadline": DEADLINE,
        "deadline_cause": "max_duration",
    }
    return RunRecord(**(values | changed))


def starting(*launches: Launch, **fields: Any) -> RunRecord:
    """Return the record of a run whose first attempt has these launches; none: it has not launched yet."""
    return make_record(attempts=(Attempt(number=1, launches=launches),) if launches else (), **fields)


def only_store(actions: tuple[Any, ...]) -> RunRecord:
    """Return the record that the one action stores."""
    assert len(actions) == 1 and isinstance(actions[0], Store), actions
    return actions[0].record
