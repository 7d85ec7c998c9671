"""An agent in the loop: it learns, whole rollouts an epoch, and a killed one ends as an uninterrupted one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.train.packs.test_agents import JOB, member_of
from tests.trainer.train.rosters import Roster, WorkerKilled, always
from trainer.bars.symbol_plan import refuse_large_batch
from trainer.base.errors import DataError, UsageError
from trainer.job.job import Job
from trainer.job.reading import job_from
from trainer.train.packs.agents import Agents
from trainer.train.piece import episodes_of
from trainer.train.run import Run, rate_of, steps_of

EPOCHS = 3
TRAINED = job_from(
    {**JOB.to_dict(), "train": {**JOB.to_dict()["train"], "epochs": EPOCHS, "checkpoint_seconds": 1}}
)


def run_of(number: int, job: Job = TRAINED) -> Run:
    reads = torch.arange(120)
    return Run(
        member=member_of(number, dtype=torch.float32),
        title=f"A{number}",
        reads=reads,
        validation=always(1.0),
        learning_rate=job.train.learning_rate,
        most_reads=job.reads_of_epoch(len(reads)),
        episodes=episodes_of(job),
    )


@pytest.mark.parametrize("dies_after", [2, 5])
def test_a_killed_agent_ends_bit_identically(tmp_path: Path, dies_after: int) -> None:
    whole = Roster(run_of(0), run_of(1)).train(Agents, TRAINED, places=2)
    with pytest.raises(WorkerKilled):
        Roster(run_of(0), run_of(1), folder=tmp_path, dies_after=dies_after).train(Agents, TRAINED, places=2)
    resumed = Roster(run_of(0), run_of(1), folder=tmp_path).train(Agents, TRAINED)  # each alone, even
    assert resumed.resumed
    for name, run in whole.done.items():
        assert resumed.done[name].history == run.history
        ended = resumed.models[name].state_dict()
        assert all(torch.equal(ended[key], tensor) for key, tensor in whole.models[name].state_dict().items())


def test_an_epoch_is_whole_rollouts_of_about_as_many_bars() -> None:
    events: list[dict[str, Any]] = []
    roster = Roster(run_of(0)).train(Agents, TRAINED, events.append)
    run = roster.done["agent 0"]
    assert TRAINED.reads_of_step == 40 and run.num_windows == 120
    assert roster.checkpoints == list(range(2, EPOCHS * 3)), "a rollout each; the last one ends the run"
    run.epoch, run.position = 1, 40
    assert steps_of(run, TRAINED) == 4
    told = [event for event in events if event["event"] == "epoch"]
    assert [event["epoch"] for event in told] == [1, 2, 3]
    assert {"entropy", "rollout_return", "rollout_drawdown", "train_loss"} <= told[0].keys()
    steps = {event["steps"] for event in events if event["event"] == "progress"}
    assert steps == {3}


def test_a_policy_that_is_no_number_fails_by_one_line() -> None:
    run = run_of(0)
    run.member.rows_TF[:] = torch.nan
    failed = Roster(run, run_of(1)).train(Agents, TRAINED, places=2).done
    assert failed["agent 0"].failure.startswith("the loss is not finite, even after halving the learning")
    assert not failed["agent 1"].failure and failed["agent 1"].epoch == EPOCHS


def test_a_warm_up_counts_the_optimizer_steps_of_rollouts() -> None:
    job = TRAINED.with_train(warmup_steps=8)  # of 4 in a rollout
    run = run_of(0, job)
    rates = []
    for step in range(3):
        run.position = step * job.reads_of_step
        rates.append(rate_of(run, job) / job.train.learning_rate)
    assert rates == [1 / 8, 5 / 8, 1.0]


def test_steps_per_epoch_count_optimizer_steps() -> None:
    job = TRAINED.with_train(steps_per_epoch=8)  # of 4 in a rollout
    assert job.reads_of_epoch(10_000) == 2 * job.reads_of_step
    assert TRAINED.reads_of_epoch(3) == TRAINED.reads_of_step  # one rollout at least


def test_a_rollout_is_not_longer_than_training() -> None:
    with pytest.raises(DataError, match="10 bars in each lane, more than the 9 training windows of AAA"):
        refuse_large_batch("AAA", TRAINED, 9)
    refuse_large_batch("AAA", TRAINED.with_train(batch=TRAINED.model.default_batch), 128)


def refused(**tables: Any) -> str:
    acting = {"model": {"name": "mlp"}, "target": {"name": "position"}, **tables}
    with pytest.raises(UsageError) as error:
        job_from(acting)
    return str(error.value)


def test_a_job_of_an_agent_is_checked() -> None:
    assert "300 lanes" in refused(agent={"lanes": 300})
    assert "divides 1,024" in refused(agent={"lanes": 300})
    assert "windows" in refused(model={"name": "tcn"})
    assert "panel" in refused(data={"panel": True})
    assert "train.batch = auto" in refused(train={"batch": "auto"})
    assert "one device" in refused(train={"distributed": "always"})
    assert "not for this job" in refused(target={"name": "direction"}, agent={"lanes": 16})
    assert "'agent.clip'" in refused(agent={"clip": 0})
    plain = job_from({"target": {"name": "direction"}})
    assert "agent" not in plain.to_dict() and plain.reads_of_step == plain.train.batch
    acting = job_from({"model": {"name": "mlp"}, "target": {"name": "position"}, "agent": {"lanes": 8}})
    assert acting.to_dict()["agent"]["lanes"] == 8 and job_from(acting.to_dict()) == acting
