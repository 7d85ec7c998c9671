"""A Gymnasium environment over one symbol's candles: the account of the target `position`, step by step.

    env = environment(Path("job.toml"), Path("candles"), "BTC-USD")    # of the job's training span

For learners of other libraries, and to check ours by: an agent of ours trains on the same accounts as one
program of tensors (`rollout`). Needs gymnasium: pip install 'mayfly[agents]'.

- Observation: the scaled features of the last `model.lookback` bars, oldest first, then the position held.
- Action: the place of the next position among the target's, or with continuous actions its share of the
  money.
- Reward: the log growth of the bar that is held, after costs (`targets/position_account.py`).
- An episode begins flat, at a bar that the seed draws, and is truncated after `episode` bars, or where the
  span ends. Ruin terminates it. Before a hole, and where the span ends, the position is closed at its cost.

Shapes: N bars of the span, L bars of a window, F features, K label columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainer.bars.job_plan import folder_of
from trainer.base.errors import ConfigError, DataError, UsageError, nearest
from trainer.base.files import HeldFolder
from trainer.base.settings import CHUNKS
from trainer.base.text import some_of
from trainer.data.read.candles import Candles, time_text
from trainer.job.job import Job
from trainer.job.reading import load_job, parse_job
from trainer.targets.position_account import Terms, follows, growth, ruined
from trainer.train.inputs.rows import SymbolData, prepare
from trainer.train.own.check import checked
from trainer.train.predict.readers import INPUT_LIMIT

try:
    import gymnasium
    from gymnasium.spaces import Box, Discrete
except ImportError as error:
    raise ConfigError(
        "gymnasium is not installed",
        why="an environment of one symbol's candles is one of its library",
        do="pip install 'mayfly[agents]'",
    ) from error

SPANS = ("train", "validation", "test")
EPISODE = 512  # bars
MOST_NAMED = 6  # symbols, in a message


@dataclass(frozen=True, kw_only=True)
class Market:
    """The data of an environment: the bars of a span, their rows of features, and their labels."""

    terms: Terms
    rows: np.ndarray  # (T, F) float32, scaled
    lookback: int
    bars: np.ndarray  # (N,) int64 rows, ascending
    times: np.ndarray  # (N,) int64 ns
    labels: np.ndarray  # (N, K) float64

    def window(self, place: int) -> np.ndarray:
        """Return what is seen (L x F,) at the bar with this place among those of the span."""
        last = int(self.bars[place]) + 1
        return self.rows[last - self.lookback : last].reshape(-1)


class CandleEnvironment(gymnasium.Env):
    """One account on one symbol's candles."""

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, market: Market, *, episode: int = EPISODE) -> None:
        if not len(market.bars):
            raise DataError("the span has no bar with a label", do="Give more bars.")
        self.market, self.episode = market, episode
        self.follows = follows(market.labels)
        seen = market.lookback * market.rows.shape[1] + 1
        self.observation_space = Box(-INPUT_LIMIT, INPUT_LIMIT, (seen,), np.float32)
        low, high = market.terms.positions[0], market.terms.positions[-1]
        self.action_space = (
            Box(low, high, (1,), np.float32)
            if market.terms.is_continuous
            else Discrete(len(market.terms.positions))
        )
        self.place, self.steps, self.held = 0, 0, 0.0

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode, flat, at a bar that is drawn, or at the bar with the place `options["place"]`."""
        super().reset(seed=seed)
        bars = len(self.market.bars)
        drawn = int(self.np_random.integers(0, max(1, bars - self.episode + 1)))
        self.place = int((options or {}).get("place", drawn))
        if not 0 <= self.place < bars:
            raise UsageError(
                f"place {self.place} is not a bar of the span", do=f"Give one from 0 to {bars - 1:,}."
            )
        self.steps, self.held = 0, 0.0
        return self._observation(), {"time": int(self.market.times[self.place])}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take a position, hold it for a bar, and go to the next one."""
        market, place = self.market, self.place
        position, log_return = self._position(action), float(market.labels[place, 0])
        reward = float(growth(self.held, position, log_return, market.terms.cost))
        is_ruined = bool(ruined(position, log_return))
        is_last = place + 1 == len(market.bars)
        closes = is_last or not self.follows[place + 1]
        if closes and not is_ruined:
            reward += float(growth(position, 0.0, 0.0, market.terms.cost))
        self.held = 0.0 if closes or is_ruined else position
        self.place, self.steps = min(place + 1, len(market.bars) - 1), self.steps + 1
        truncated = not is_ruined and (is_last or self.steps >= self.episode)
        info = {"time": int(market.times[self.place]), "share": position, "closed": closes}
        return self._observation(), reward, is_ruined, truncated, info

    def _position(self, action: Any) -> float:
        """Return the share of the money that an action takes."""
        terms = self.market.terms
        if not terms.is_continuous:
            if not 0 <= action < len(terms.positions):
                why = f"an action is the place of a position, 0 to {len(terms.positions) - 1}"
                raise DataError(f"the policy returns action {action}", why=why, do="Return one of these.")
            return terms.positions[int(action)]
        share = float(np.asarray(action, dtype=np.float64).reshape(-1)[0])
        if not np.isfinite(share):
            raise DataError("the policy returns an action that is not a number", do="Look at its loss.")
        return min(max(share, terms.positions[0]), terms.positions[-1])

    def _observation(self) -> np.ndarray:
        window = self.market.window(self.place)
        return np.append(window, np.float32(self.held))


def environment(
    job: Job | Path, data: Path, symbol: str, *, span: str = "train", episode: int = EPISODE
) -> CandleEnvironment:
    """Return the environment of a symbol's candles in a file or folder, as a job (or its TOML file) reads
    them: its features and scaler, spans, costs and actions. An episode stays within the span.

    Features of the user's own are tried first, as before any training. Raises UsageError for a job whose
    target does not act, and for features that look ahead; DataError for candles that can't be read.
    """
    job = checked(job if isinstance(job, Job) else parse_job(load_job(Path(job)), {}))
    with HeldFolder("candles") as scratch:
        folder = folder_of(job, Path(data), scratch=Path(scratch))
        if symbol not in folder.symbols:
            do = nearest(symbol, folder.symbols) or f"It has {some_of(list(folder.symbols), MOST_NAMED)}."
            raise DataError(f"{data} holds no bars of {symbol}", do=do)
        candles = folder.read(symbol)
        job = job.with_data(timeframe=folder.timeframe)
    return environment_of(prepare(candles, job), job, span=span, episode=episode)


def environment_of(
    data: SymbolData, job: Job, *, span: str = "train", episode: int = EPISODE
) -> CandleEnvironment:
    """Return the environment of a symbol that was prepared for training."""
    if not job.target.acts or job.model.reads == CHUNKS:
        what = f"a {job.model.name} of {job.target.name} has no environment"
        raise UsageError(what, why="it takes a target that acts, and windows", do="Set target.name.")
    if span not in SPANS:
        raise UsageError(f"there is no span {span!r}", do=f"Choose {', '.join(SPANS)}.")
    scaled = ((data.rows_TF - data.mean_F) / data.std_F).clamp(-INPUT_LIMIT, INPUT_LIMIT)
    bars = data.bars(span)
    market = Market(
        terms=job.target,  # type: ignore[arg-type]
        rows=scaled.numpy(),
        lookback=data.bars_seen,
        bars=data.rows(span),
        times=data.candles.timestamp[bars],
        labels=data.labels(span),
    )
    return CandleEnvironment(market, episode=episode)


def refuse_look_ahead(
    make: Callable[[Candles], gymnasium.Env],
    candles: Candles,
    *,
    ahead: int,
    steps: int = 64,
    cuts: int = 8,
    seed: int = 0,
) -> None:
    """Raise DataError for an environment over candles that knows later bars than it may.

    It is run with random actions; then all bars after one are changed, each by its own, and the same actions
    are taken again: no observation up to that bar may differ, nor the reward of one whose `ahead` next bars
    are all before, nor whether its action ends the episode. `make` builds it; its `info` has the time of each
    observation's bar (ns), as ours has.
    """
    random = np.random.default_rng(seed)
    env = make(candles)
    env.action_space.seed(seed)
    actions = [env.action_space.sample() for _ in range(steps)]
    first = _run(env, actions, seed)
    times = [time for time, *_ in first]
    known = times[:-ahead] or times  # an episode may end early
    for cut in random.choice(known, size=min(cuts, len(known)), replace=False):
        last = int(np.searchsorted(candles.timestamp, cut))
        again = _run(make(_moved(candles, last, random)), actions, seed)
        for (time, seen, reward, over), (_, other, rewarded, ended) in zip(first, again, strict=False):
            bar = int(np.searchsorted(candles.timestamp, time))
            if bar <= last and not np.array_equal(seen, other):
                raise _looks_ahead("an observation", time, cut)
            if bar + ahead <= last and reward != rewarded:
                raise _looks_ahead("a reward", time, cut)
            if bar + ahead <= last and over != ended:
                raise _looks_ahead("the end of an episode", time, cut)


def _run(env: gymnasium.Env, actions: list[Any], seed: int) -> list[tuple[int, np.ndarray, float, bool]]:
    """Return the time of each bar, what was seen at it, what the action there brought, and whether it ended
    the episode.
    """
    seen, info = env.reset(seed=seed)
    made = []
    for action in actions:
        time = int(info["time"])
        after, reward, terminated, truncated, info = env.step(action)
        made.append((time, np.array(seen), float(reward), bool(terminated or truncated)))
        seen = after
        if terminated or truncated:
            break
    return made


def _moved(candles: Candles, last: int, random: np.random.Generator) -> Candles:
    """Return candles with prices and volume of every bar after `last` changed, each by its own."""
    factors = np.ones(len(candles))
    factors[last + 1 :] = np.exp(random.normal(0, 0.05, len(candles) - last - 1))
    names = ("open", "high", "low", "close", "volume")
    changed = {name: getattr(candles, name) * factors for name in names}
    columns = {name: values * factors for name, values in candles.columns.items()}
    return Candles(
        symbol=candles.symbol,
        timeframe=candles.timeframe,
        timestamp=candles.timestamp,
        columns=columns,
        **changed,
    )


def _looks_ahead(what: str, time: int, cut: int) -> DataError:
    return DataError(
        f"the environment looks ahead: {what} at {time_text(time)} depends on bars after {time_text(cut)}",
        do="Compute it from bars up to its own.",
    )
