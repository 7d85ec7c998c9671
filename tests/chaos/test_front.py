"""The simulator against the embedded AWS over HTTP: the same operations, the same answers."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from tests.aws.clock import StoppedClock
from tests.chaos.front import Side, operations, simulated_side
from tests.chaos.schedule import Schedule
from tests.records import make_record, rung
from trainer.aws.stack import read_stack
from trainer.control.cloud import AwsCloud
from trainer.rehearsal.world import Delays

pytestmark = pytest.mark.slow
SEEDS, MORE_SEEDS = 8, 300


@pytest.fixture(scope="module")
def applied(aws_server):
    """One account with the program applied, whose clock stands still."""
    access = aws_server.account()
    aws_server.apply_program(access)
    outputs = read_stack(access, stack="dev")
    image = access.client("ssm").get_parameter(Name=outputs.image_parameter)["Parameter"]["Value"]
    made_from = {"launch_template_id": outputs.launch_template, "image_id": image}
    zones = sorted(outputs.subnets)[:2]
    ladder = tuple(rung(zone=zone, **made_from, subnet_id=outputs.subnets[zone]) for zone in zones)
    return access, outputs, aws_server.cloud(access), ladder


def front_side(access, outputs, account, record) -> Side:
    account.clock = StoppedClock(record.created_at)
    usual = Schedule()
    account.world.delays = Delays(
        pending_seconds=usual.pending_seconds, shutting_down_seconds=usual.shutting_down_seconds
    )
    account.world.instances.clear()
    account.world.faults.clear()
    account.world.refusals.clear()
    account.world.parts.clear()

    def meet(word: str) -> None:
        account.world.faults.clear()
        account.world.refusals.clear()
        account.world.parts.clear()
        kind, _, code = word.partition(":")
        if kind == "refuse":
            account.world.refuse_next(code)
        elif kind in ("raise", "failed"):
            status = 500 if code.startswith("Internal") else 400
            account.world.fail_next("CreateFleet", code, status=status, after=kind == "failed")
        elif kind == "part":
            account.world.shorten_next(int(code))

    return Side(AwsCloud(access, outputs), record, account.clock.advance, meet)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_front_and_simulator_answer_alike(applied, seed):
    answer_alike(applied, seed)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(SEEDS, MORE_SEEDS))
def test_front_and_simulator_answer_alike_at_length(applied, seed):
    answer_alike(applied, seed)


def answer_alike(applied, seed):
    access, outputs, account, ladder = applied
    now = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(days=seed)
    record = make_record(
        run_id=f"20261120-120000-chaos-{seed:04d}",
        bucket=outputs.bucket,
        ladder=ladder,
        preflight_at=now,
        created_at=now,
        deadline=now + timedelta(hours=1),
        place="rehearsal",
        num_nodes=1 + 2 * (seed % 2),
    )
    front, simulated = front_side(access, outputs, account, record), simulated_side(outputs, record)
    said = []
    for operation in operations(seed):
        said.append((operation, front.do(operation), simulated.do(operation)))
        assert said[-1][1] == about(said[-1][2]), said


def about(answer: Any) -> Any:
    """Return an answer whose times may be a second off: the product's own waits pass on the simulator's clock alone."""
    if not isinstance(answer, list):
        return answer
    known = [(began, *((ended,) if ended is not None else ())) for _, _, began, ended in answer]
    near = [[pytest.approx(second, abs=1) for second in seconds] for seconds in known]
    return [
        (number, seen, one[0], one[1] if one[1:] else None)
        for (number, seen, _, _), one in zip(answer, near, strict=True)
    ]
