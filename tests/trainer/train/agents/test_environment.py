"""The Gymnasium environment: its library's checker, the account's arithmetic, episodes, and no look-ahead."""

from __future__ import annotations

import importlib
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.jobs import job_of
from trainer.base.errors import ConfigError, DataError, UsageError
from trainer.data.read.writing import write_candles
from trainer.data.synthetic import synthetic_candles
from trainer.train.inputs.rows import prepare

pytest.importorskip("gymnasium", reason="an extra: pip install 'mayfly[agents]'")

from gymnasium.utils.env_checker import check_env  # noqa: E402

from trainer.targets.position_account import account  # noqa: E402
from trainer.train.agents.environment import (  # noqa: E402
    CandleEnvironment,
    environment,
    environment_of,
    refuse_look_ahead,
)

JOB = job_of(model="lstm", target="position", lookback=8, test_fraction=0.3, validation_fraction=0.2)
FREE = job_of(
    model="lstm", target="position", lookback=8, actions="continuous", short=False, test_fraction=0.3
)
BOTH = pytest.mark.parametrize("job", [JOB, FREE], ids=["discrete", "continuous"])


def candles_of(bars: int = 900):
    return synthetic_candles("AAA", bars=bars, timeframe="1h", seed=3)


def with_hole(candles, at: int, missing: int = 5):
    """Return the candles without some bars from `at` on."""
    kept = np.r_[0:at, at + missing : len(candles)]
    names = ("timestamp", "open", "high", "low", "close", "volume")
    return replace(candles, **{name: getattr(candles, name)[kept] for name in names})


@pytest.mark.filterwarnings("ignore::UserWarning")
@BOTH
def test_the_librarys_checker_accepts_it(job):
    check_env(environment_of(prepare(candles_of(), job), job), skip_render_check=True)


@BOTH
def test_a_whole_span_brings_what_the_account_does(job):
    candles = with_hole(candles_of(), 820)
    data = prepare(candles, job)
    env = environment_of(data, job, span="test", episode=10_000)
    bars = len(data.bars("test"))
    outputs = np.random.default_rng(0).normal(size=(bars, job.target.outputs))
    forecast, labels = job.target.forecast(outputs, {}), data.labels("test")
    expected = account(job.target, forecast, labels)
    env.reset(seed=0, options={"place": 0})
    rewards, closed = [], 0
    for place in range(bars):
        action = np.interp(env.held, job.target.positions, forecast[place])
        if not job.target.is_continuous:
            action = job.target.positions.index(action)
        _, reward, terminated, truncated, info = env.step(action)
        rewards.append(reward)
        closed += info["closed"]
        assert not terminated and truncated == (place == bars - 1)
    np.testing.assert_allclose(rewards, expected.growth, rtol=0, atol=1e-12)
    assert closed == 2, "before the hole, and at the end"


def test_an_observation_is_the_window_and_the_position_held():
    data = prepare(candles_of(), JOB)
    env = environment_of(data, JOB)
    seen, _ = env.reset(seed=3)
    bar = int(data.rows("train")[env.place])
    rows = ((data.rows_TF - data.mean_F) / data.std_F).clamp(-10, 10).numpy()
    assert np.array_equal(seen[:-1], rows[bar - 7 : bar + 1].ravel()) and seen[-1] == 0
    seen, *_ = env.step(2)
    assert np.array_equal(seen[:-1], rows[bar - 6 : bar + 2].ravel()) and seen[-1] == 1


def test_episodes_stay_in_the_span_and_are_truncated():
    data = prepare(candles_of(), JOB)
    env = environment_of(data, JOB, episode=20)
    places = []
    for seed in range(50):
        env.reset(seed=seed)
        places.append(env.place)
        ends = [env.step(1)[2:4] for _ in range(20)]
        assert ends[-1] == (False, True) and set(ends[:-1]) == {(False, False)}
    assert max(places) <= len(data.bars("train")) - 20 and len(set(places)) > 20
    env.reset(seed=7)
    again = env.place
    env.reset(seed=7)
    assert env.place == again, "the seed decides"
    env = environment_of(data, JOB, episode=len(data.bars("train")) - 1)
    assert {env.reset(seed=seed)[1]["time"] for seed in range(20)} == {*env.market.times[:2]}
    last = data.candles.timestamp[data.bars("train")[-1]]
    assert env.market.times[-1] == last < data.candles.timestamp[data.spans.validation.start]


def test_ruin_terminates_and_is_no_truncation():
    env = environment_of(prepare(candles_of(), JOB), JOB)
    env.reset(seed=0, options={"place": 5})
    env.market.labels[6, 0] = math.log(3)
    env.step(0)
    _, reward, terminated, truncated, _ = env.step(0)
    assert (terminated, truncated) == (True, False) and env.held == 0
    assert reward == pytest.approx(math.log(1e-3))


@BOTH
def test_no_later_bar_changes_an_observation_or_reward(job):
    def make(candles):
        return environment_of(prepare(candles, job), job, span="test")

    refuse_look_ahead(make, candles_of(), ahead=job.target.bars_ahead)


class Peeking(CandleEnvironment):
    """Sees one bar too many."""

    def _observation(self) -> np.ndarray:
        seen = self.market.rows[int(self.market.bars[self.place]) - 6 :][:8].reshape(-1)
        return np.append(seen, np.float32(self.held))


@pytest.mark.parametrize("planted", ["observation", "reward"])
def test_one_bar_of_look_ahead_is_caught(planted):
    def make(candles):
        env = environment_of(prepare(candles, JOB), JOB, span="test")
        return Peeking(env.market) if planted == "observation" else env

    ahead = JOB.target.bars_ahead - (planted == "reward")
    with pytest.raises(DataError, match=f"looks ahead: an? {planted} at"):
        refuse_look_ahead(make, candles_of(), ahead=ahead)


def test_one_is_made_from_a_folder_and_a_job(tmp_path):
    write_candles(tmp_path / "AAA_1h.parquet", [candles_of()])
    (tmp_path / "job.toml").write_text(
        '[model]\nname = "lstm"\nlookback = 8\n[target]\nname = "position"\nlevels = 5\n'
    )
    env = environment(tmp_path / "job.toml", tmp_path, "AAA", episode=30)
    assert env.action_space.n == 5 and env.observation_space.shape == (8 * env.market.rows.shape[1] + 1,)
    with pytest.raises(DataError, match=r"holds no bars of BBB.* It has AAA"):
        environment(tmp_path / "job.toml", tmp_path, "BBB")
    with pytest.raises(UsageError, match="has no environment"):
        environment_of(prepare(candles_of(), JOB), job_of(model="lstm", target="direction"))
    with pytest.raises(UsageError, match="there is no span 'all'"):
        environment_of(prepare(candles_of(), JOB), JOB, span="all")


def test_features_of_the_users_own_begin_as_in_training(tmp_path):
    """The first ten bars of `slope` are made of the last ones: np.roll."""
    file = Path(__file__).parents[1] / "own_features.py"
    own = job_of(
        model="mlp", target="position", lookback=5, features=["bar_range", f"{file}:slope"], timeframe="1h"
    )
    write_candles(tmp_path / "AAA_1h.parquet", [candles_of()])
    env = environment(own, tmp_path, "AAA")
    assert env.market.bars[0] == 10 + 5 - 1


def test_without_the_library_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    monkeypatch.delitem(sys.modules, "trainer.train.agents.environment")
    with pytest.raises(ConfigError, match=r"gymnasium is not installed .*mayfly\[agents\]"):
        importlib.import_module("trainer.train.agents.environment")


def test_an_action_that_is_no_number_is_refused():
    env = environment_of(prepare(candles_of(), FREE), FREE)
    env.reset(seed=0)
    with pytest.raises(DataError, match="not a number"):
        env.step(np.array([math.nan]))
    env = environment_of(prepare(candles_of(), JOB), JOB)
    env.reset(seed=0)
    for action in (3, -1, math.nan):
        with pytest.raises(DataError, match=f"returns action {action}"):
            env.step(action)
