"""Agents in environments of the user's own: rollouts, resumed to the bit, scored by what their actions bring."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.jobs import job_of, with_settings
from tests.models import card_of
from tests.trainer.train.rosters import Roster, WorkerKilled, always
from trainer.base.errors import TrainerError, TrainingFailed, UsageError
from trainer.data.synthetic import synthetic_candles
from trainer.job.job import Job
from trainer.job.reading import job_from
from trainer.store.card_reading import MOST_INPUTS
from trainer.store.weights import save
from trainer.targets.environment_steps import Steps, class_of
from trainer.train.agents.episodes import EpisodeReader
from trainer.train.agents.lanes import HereLanes, LanePlace, Processes
from trainer.train.evaluate.scores import outputs_by_span, score_series
from trainer.train.inputs.encoder import check_inputs, known_scaler, pinned
from trainer.train.inputs.rows import prepare
from trainer.train.inputs.series import alone
from trainer.train.own import probe_environment
from trainer.train.packs.environments import Environments, processes_of
from trainer.train.packs.pack import Member, new_model
from trainer.train.packs.strategy import form_pack
from trainer.train.packs.tensors import tensors_of
from trainer.train.piece import episodes_of
from trainer.train.piece import run_of as run_in_piece
from trainer.train.run import Run

pytest.importorskip("gymnasium", reason="an extra: pip install 'mayfly[agents]'")

SMALL = {"lanes": 4, "episode": 40, "minibatches": 2, "updates": 2}


@pytest.fixture
def file() -> Path:
    return Path(__file__).with_name("own_envs.py")


@cache
def job_in(file: Path, name: str = "Long", *, tried: bool = True, **keys: Any) -> Job:
    """Return a job in an environment, tried in this process."""
    from trainer.train.own.check import _with_hash
    from trainer.train.own.probe_environment import measure_environment

    job = job_from(
        {
            "data": {"timeframe": "1h"},
            "model": {"name": "mlp", "hidden": 4, "layers": 1},
            "agent": {"environment": f"{file}:{name}", **SMALL},
            "target": keys,
            "train": {
                "batch": 20,
                "learning_rate": 1e-2,
                "clip_norm": 0.5,
                "epochs": 3,
                "checkpoint_seconds": 1,
            },
        }
    )
    job = job.with_own_files({"target": _with_hash(job.own_files["target"])})
    return job.with_own_files({"target": measure_environment(job, lambda stage: None)}) if tried else job


def candles_of(bars: int = 300, seed: int = 0) -> Any:
    return synthetic_candles("AAA", bars=bars, timeframe="1h", seed=seed)


def member_of(number: int) -> Member:
    rows = torch.zeros(300, 5)
    labels, zeros, ones = torch.zeros(300, 1), torch.zeros(5), torch.ones(5)
    return Member(
        name=f"agent {number}",
        rows_TF=rows,
        labels_TK=labels,
        mean_F=zeros,
        std_F=ones,
        candles=candles_of(seed=number),
        seed=number,
    )


def run_of(number: int, job: Job) -> Run:
    return Run(
        member=member_of(number),
        title=f"A{number}",
        reads=torch.arange(120),
        validation=always(1.0),
        learning_rate=job.train.learning_rate,
        most_reads=job.reads_of_epoch(120),
        episodes=episodes_of(job),
    )


ANY = torch.zeros(40, 2, dtype=torch.int64)  # windows of a step, which say only how many bars it has


class Watched(Environments):
    """Keeps its rollouts and what they taught."""

    def _experience(self, made: Any) -> Any:
        self.made, self.learnt = made, super()._experience(made)
        return self.learnt


@pytest.mark.parametrize(("name", "ruin"), [("Long", 0), ("Long", 17), ("Two", 17)])
def test_a_rollout_is_what_the_environment_does(file: Path, name: str, ruin: int) -> None:
    job = job_in(file, name, ruin=ruin)
    pack = Watched([member_of(0)], job)
    env_class: Any = job.target.load()  # type: ignore[attr-defined]
    space = env_class.action_space
    envs: dict[int, Any] = {}
    seen = dict(enumerate(pack._side.seen()))
    for _ in range(3):
        pack.step([True], [ANY])
        made = pack.made
        for lane in range(4):
            for bar in range(10):
                assert np.array_equal(made.seen[0, lane, bar].numpy(), seen[lane]), (
                    "what the last step showed"
                )
                action = made.action[0, lane, bar].numpy()
                if name == "Long":
                    given: Any = 3 + int(action)
                else:
                    low, high = space.low.astype(float), space.high.astype(float)
                    given = (low + (action.clip(-1, 1) + 1) / 2 * (high - low)).astype(np.float32)
                if lane not in envs:
                    envs[lane] = begun(env_class, job, lane=lane, number=0)[0]
                after, reward, terminated, truncated, _ = envs[lane].step(given)
                assert made.reward[0, lane, bar] == reward
                assert (made.terminated[0, lane, bar], made.ended[0, lane, bar]) == (
                    terminated,
                    terminated or truncated,
                )
                if terminated or truncated:
                    number = envs[lane].number + 1
                    envs[lane], after = begun(env_class, job, lane=lane, number=number)
                seen[lane] = after
        check_advantages(pack, job)
    assert max(env.number for env in envs.values()) >= (3 if ruin else 0)


def begun(env_class: Any, job: Job, *, lane: int, number: int) -> tuple[Any, np.ndarray]:
    """Return an environment of the lane's episode with this number, and its first observation."""
    from trainer.train.seeds import derive

    random = np.random.default_rng([derive(0, "agent 0", "lane", lane), number])
    candles, bars = member_of(0).candles, job.agent.episode
    assert candles is not None
    start = int(random.integers(300 - bars + 1))
    env = env_class(candles.rows(start, start + bars), **job.target.given)  # type: ignore[attr-defined]
    env.number = number
    return env, env.reset(seed=int(random.integers(1 << 31)))[0]


def check_advantages(pack: Watched, job: Job) -> None:
    """Check targets of values by the recursion of GAE, bar by bar."""
    made, agent, unit = pack.made, job.agent, float(pack._units_M[0])
    value = made.outputs[..., -1].double()
    for lane in range(4):
        trace = 0.0
        for bar in reversed(range(10)):
            ended = bool(made.ended[0, lane, bar])
            following = made.after if ended or bar == 9 else value
            nxt = float(following[0, lane, bar if ended or bar == 9 else bar + 1])
            nxt = 0.0 if made.terminated[0, lane, bar] else nxt
            error = (
                float(made.reward[0, lane, bar]) / unit + agent.discount * nxt - float(value[0, lane, bar])
            )
            trace = error + (0.0 if ended else agent.discount * agent.trace * trace)
            expected = trace + float(value[0, lane, bar])
            got = float(pack.learnt.value_target[0, lane * 10 + bar])
            assert got == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_the_value_after_a_time_limit_is_bootstrapped(file: Path) -> None:
    job = job_in(file)
    pack = Watched([member_of(0)], job)
    for _ in range(4):  # 36 steps of an episode are 4 rollouts of 10 bars
        pack.step([True], [ANY])
    ended = pack.made.ended[0] & ~pack.made.terminated[0]
    assert ended.sum() == 4 and bool((pack.made.after[0][ended] != 0).all())


def test_early_ends_do_not_shrink_the_unit_of_rewards(file: Path) -> None:
    """A change of position costs about 1: the sum of an episode of up to 16 bars is several times as large."""
    endless, ruined = (Environments([member_of(0)], job_in(file, ruin=ruin)) for ruin in (0, 17))
    assert 2 < float(ruined._units_M[0]) < float(endless._units_M[0])


@pytest.mark.parametrize(
    ("name", "steps", "least"),
    [("Told", 15, 1.5), pytest.param("ToldTwo", 60, 3.0, marks=pytest.mark.nightly)],
)
def test_an_agent_learns_what_is_in_plain_view(file: Path, name: str, steps: int, least: float) -> None:
    job = job_in(file, name)
    pack = Environments([member_of(0)], job)
    bars, unseen = np.arange(250), candles_of(seed=7)
    reader = EpisodeReader(job.target, unseen)  # type: ignore[arg-type]
    before = reader.outputs(pack.model(0), bars).mean()
    for _ in range(steps):
        pack.step([True], [ANY])
    # A move brings 5 for a whole position, and a change of one costs 1. Always right is 1.92, or with shares from
    # -1 to 1.5, of which values are large, 4.57: they must not drown the policy.
    assert reader.outputs(pack.model(0), bars).mean() > least >= before


@pytest.mark.parametrize("name", ["Long", "Two"])
def test_an_agent_does_not_depend_on_its_pack(file: Path, name: str) -> None:
    job = job_in(file, name, ruin=17)
    both = Environments([member_of(0), member_of(1)], job)
    alone = Environments([member_of(1)], job)
    for step in range(4):
        together = both.step([step < 2, True], [ANY, ANY])
        assert together[1] == alone.step([True], [ANY])[0] and torch.isnan(together[0]) == (step >= 2)
    ours, theirs = (pack.model(number).state_dict() for pack, number in ((both, 1), (alone, 0)))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert set(alone.told(0)) == {"entropy", "rollout_return"}


@pytest.mark.parametrize(
    ("name", "dies_after"), [("Long", 2), pytest.param("Two", 5, marks=pytest.mark.nightly)]
)
def test_a_killed_agent_ends_bit_identically(file: Path, tmp_path: Path, name: str, dies_after: int) -> None:
    job = job_in(file, name, ruin=29)
    whole = Roster(run_of(0, job), run_of(1, job)).train(Environments, job, places=2)
    with pytest.raises(WorkerKilled):
        dying = Roster(run_of(0, job), run_of(1, job), folder=tmp_path, dies_after=dies_after)
        dying.train(Environments, job, places=2)
    resumed = Roster(run_of(0, job), run_of(1, job), folder=tmp_path).train(Environments, job)
    assert resumed.resumed
    for name, run in whole.done.items():
        assert resumed.done[name].history == run.history
        ended = resumed.models[name].state_dict()
        assert all(torch.equal(ended[key], tensor) for key, tensor in whole.models[name].state_dict().items())


def test_processes_are_for_lanes_that_take_longer_than_to_ask() -> None:
    assert processes_of(16, cores=8, step_seconds=2e-5) == 1
    assert processes_of(256, cores=8, step_seconds=2e-5) == 7
    assert processes_of(4, cores=8, step_seconds=1.0) == 4
    assert processes_of(16, cores=1, step_seconds=1.0) == 1


@pytest.mark.nightly
def test_processes_step_lanes_as_this_one_does(file: Path) -> None:
    target: Any = job_in(file, "Two", ruin=13).target
    places = [LanePlace(candles=candles_of(), bars=40, seed=seed) for seed in range(5)]
    here, there = HereLanes(target, places), Processes(target, places, processes=2)
    random = np.random.default_rng(0)
    for lanes in (here, there):
        lanes.begin([1, 4], [3, 2], [np.zeros((2, 2)), np.ones((1, 2))])
    assert np.array_equal(here.seen(), there.seen())
    for _ in range(60):
        actions, active = random.uniform(-2, 2, (5, 2)), random.random(5) < 0.8
        ours, theirs = here.step(actions, active), there.step(actions, active)
        for field in ("seen", "after", "reward", "terminated", "truncated"):
            assert np.array_equal(getattr(ours, field), getattr(theirs, field))
    processes = there._started
    there.close()
    assert all(process.poll() is not None for process in processes)


@pytest.mark.nightly
def test_an_agent_does_not_depend_on_processes(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_in(file, "Two", ruin=17)
    alone = Environments([member_of(1)], job)
    monkeypatch.setattr("trainer.train.packs.environments.processes_of", lambda *_, **__: 3)
    apart = Environments([member_of(0), member_of(1)], job, cores=3)
    for step in range(3):
        assert apart.step([step < 2, True], [ANY, ANY])[1] == alone.step([True], [ANY])[0]
    state = apart.snapshot(1)
    again = Environments([member_of(1)], job, cores=3)
    again.restore(0, state)
    assert again.step([True], [ANY]) == alone.step([True], [ANY])


def test_a_process_whose_first_episode_fails_says_why(file: Path) -> None:
    target: Any = job_in(file).target
    lanes = Processes(target, [LanePlace(candles=candles_of(), bars=4, seed=0)], processes=1)
    for ask in (lanes.seen, lanes.seen):
        with pytest.raises(UsageError, match="Long can't be built over 4 bars") as caught:
            ask()
        assert caught.value.why == "ValueError: too few bars"


@pytest.mark.nightly
def test_a_process_that_dies_or_fails_is_one_line(file: Path) -> None:
    places = [LanePlace(candles=candles_of(), bars=40, seed=seed) for seed in range(2)]
    target: Any = job_in(file).target
    broken = replace(target, class_name="Broken", measured=replace(target.measured, of=""))
    broken = replace(broken, measured=replace(broken.measured, of=broken.code))
    with pytest.raises(UsageError, match="returns the reward nan"):
        lanes = Processes(broken, places, processes=2)
        for _ in range(20):
            lanes.step(np.zeros(2, dtype=np.int64), np.ones(2, dtype=bool))
    lanes = Processes(target, places, processes=2)
    lanes.seen()
    lanes._started[1].kill()
    with pytest.raises(TrainingFailed, match="a process that steps Long has ended"):
        for _ in range(2):
            lanes.step(np.zeros(2, dtype=np.int64), np.ones(2, dtype=bool))


def test_an_episode_ends_after_as_many_steps_as_bars(file: Path) -> None:
    class Endless(class_of(job_in(file).target)):  # type: ignore[misc]
        def step(self, action):
            return self.seen(), 0.0, False, False, {"time": 0}

    steps = Steps(job_in(file).target, candles_of().rows(0, 20))  # type: ignore[arg-type]
    steps.env.__class__ = Endless
    steps.reset(0)
    assert [steps.step(0).truncated for _ in range(20)] == [*[False] * 19, True]


def test_a_span_is_scored_by_one_episode_over_its_own_bars(file: Path) -> None:
    job = job_in(file, noise=0.0)
    candles, bars = candles_of(), np.arange(100, 180)
    model = new_model(member_of(3), job)  # which goes in and out; untrained ones of other seeds stay flat
    made = EpisodeReader(job.target, candles).outputs(model, bars)  # type: ignore[arg-type]
    moved = replace(candles, close=candles.close * np.where(np.arange(300) < 183, 1, 2.0))
    moved = replace(moved, close=moved.close * np.where(np.arange(300) < 100, 3.0, 1))
    again = EpisodeReader(job.target, moved).outputs(model, bars)  # type: ignore[arg-type]
    assert np.array_equal(made, again), "no bar of another span is seen"
    held, expected = 0.0, np.zeros(80)
    closes = 100 * np.log(candles.close)
    for place in range(3, 80):  # a window of 3 moves is there from the fourth bar on
        bar = bars[place]
        seen = torch.tensor([*np.diff(closes[bar - 3 : bar + 1]), held], dtype=torch.float32)
        position = float(model(seen[None, None])[0, :2].argmax())
        expected[place] = position * (closes[bar + 1] - closes[bar]) - abs(position - held)
        held = position
    assert made.shape == (80, 1) and np.count_nonzero(expected) > 40
    np.testing.assert_allclose(made[:, 0], expected, rtol=0, atol=1e-4)
    assert job.target.loss_of_span(made, np.zeros((80, 1))) == -made.mean()


def test_a_piece_trains_on_its_own_bars_and_has_baselines(file: Path) -> None:
    job = with_settings(job_in(file), epochs=1)
    data = alone(prepare(candles_of(900), job))
    run = run_in_piece(data, job, model="AAA", seed=0)
    candles, train = run.member.candles, data.series[0].spans.train
    assert candles is not None and candles.timestamp[-1] <= data.series[0].candles.timestamp[train.stop - 1]
    roster = Roster(run).train(form_pack, job)
    outputs = outputs_by_span(roster.models["AAA"], data, job)
    scored = score_series({span: made[0] for span, made in outputs.items()}, data.series[0])
    test = scored.scores["test"]
    assert test["reward"] == outputs["test"][0].mean() and test["n"] == len(data.series[0].bars("test"))
    assert test["baselines"]["idle"]["reward"] == 0 > test["baselines"]["random"]["reward"]
    assert test["better"].keys() == {"idle", "random"} and scored.losses["sums"]["reward"].keys() >= {"idle"}
    assert roster.done["AAA"].best_loss == -outputs["validation"][0].mean()


LINES = {
    "Ahead": "looks ahead: an observation at",
    "Escapes": "looks ahead: the end of an episode at",
    "Chance": "is not deterministic",
    "Timeless": 'has no info["time"]',
    "Late": "which is not a later bar of its candles",
    "Broken": "reward nan",
    "Blind": "not finite",
    "Pictures": "observation_space is not a Box of one dimension",
    "Endless": "neither Discrete nor a bounded Box",
    "Wrong": "fails Gymnasium's checker",
    "Plain": "is not a gymnasium.Env",
    "Missing": "has no class Missing",
}


@pytest.mark.parametrize("name", LINES)
def test_each_mistake_gets_one_line(file: Path, name: str) -> None:
    with warnings.catch_warnings(), pytest.raises(TrainerError) as error:
        warnings.simplefilter("error")  # none of its checker's reaches the user
        job_in(file, name)
    line = str(error.value)
    assert LINES[name] in line and "\n" not in line


def test_an_observation_has_as_many_numbers_as_a_card_names(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert probe_environment.MOST_SEEN == MOST_INPUTS
    monkeypatch.setattr(probe_environment, "MOST_SEEN", 3)
    with pytest.raises(UsageError, match="Long shows 4 numbers .a card has 3 at most.*Show fewer"):
        probe_environment.measure_environment(job_in(file, tried=False), lambda stage: None)


def test_what_fails_in_training_is_one_line(file: Path) -> None:
    job = job_in(file)
    few = replace(member_of(0), candles=candles_of(4))
    with pytest.raises(
        UsageError, match="Long can't be built over 4 bars: ValueError: too few bars|too few bars"
    ):
        Environments([few], job)


def test_a_job_in_an_environment_is_checked(file: Path) -> None:
    def refused(**tables: Any) -> str:
        given = {"model": {"name": "mlp"}, "agent": {"environment": f"{file}:Long"}, **tables}
        with pytest.raises(UsageError) as error:
            job_from(given)
        return str(error.value)

    assert "lstm can't act in an environment" in refused(model={"name": "lstm"})
    assert "model.lookback is 5" in refused(model={"name": "mlp", "lookback": 5})
    assert "several symbols" in refused(data={"pooled": True})
    assert "target.name = direction" in refused(target={"name": "direction"})
    assert "names no class" in refused(agent={"environment": str(file)})
    assert "FILE.py:CLASS" in refused(agent={"environment": "cartpole"})
    assert "target.file" in refused(agent={}, target={"name": "environment"})


def test_an_agent_starts_from_one_of_its_environment(file: Path, tmp_path: Path) -> None:
    job = job_in(file, window=5)
    seen = job.target.names_of_features(job.data.inputs)
    card = card_of("mlp", "direction", symbols=("AAA",), features=seen)
    architecture = job.model.architecture(features=len(seen), outputs=job.target.outputs)
    own = {
        "target": "environment",
        "target_settings": job.target.card_keys(),
        "trained_until": "2024-01-01T00:00:00Z",
    }
    card = replace(card, architecture=architecture, timeframe="1h", lookback=1, **own)
    earlier = new_model(member_of(1), job)
    save(tmp_path / "earlier.safetensors", tensors_of(earlier), card)
    init = str(tmp_path / "earlier.safetensors")
    started = pinned(replace(job, train=replace(job.train, init=init)))
    check_inputs(started)
    assert known_scaler(started, "AAA") is None, "its own scaler is that of observations"
    network = new_model(member_of(2), started)
    assert all(torch.equal(one, tensors_of(earlier)[name]) for name, one in tensors_of(network).items())


def test_the_environment_is_the_target_of_its_job(file: Path) -> None:
    job = job_in(file, window=5)
    assert job.target.words == "an agent acts in Long of own_envs.py; times leave out its own steps"
    assert (job.model.bars_seen, job.target.outputs, job.target.features(37)) == (1, 3, 6)
    assert job.cost.weights == 4 * 6 + 4 * 3 + 4 + 3
    again = job_from(job.to_dict())
    assert again == job and again.target.is_tried  # type: ignore[attr-defined]
    changed = job_of(**{"model": "mlp", "agent.environment": f"{file}:Two"})
    assert changed.own_files["target"].class_name == "Two" and changed.model.bars_seen == 1
