"""Propose values for a study's next trial by optuna's TPE, from the ends of the others, and find the trials
that have fallen behind by its pruner.

A proposal is a function of the table, the study's name, the trial's number and the other trials: optuna's
study is made anew each time, in memory. Trials under way count as bad ones nearby (its constant liar), so
that parallel proposals differ.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from trainer.job.script import PICK, Better
from trainer.job.search import Range, SearchSettings, Space, Values

if TYPE_CHECKING:
    from trainer.job.trials import TrialEnd

ETA = 3  # of successive halving: 1 of 3 goes on


def propose(
    search: SearchSettings,
    *,
    study: str,
    trial: int,
    ended: Iterable[TrialEnd],
    running: Mapping[int, Values],
) -> Values:
    """Return the values of a trial. The first ten are random. Loads optuna, which takes half a second."""
    from optuna.trial import TrialState, create_trial

    optuna = _optuna()
    space, seed = search.space, hashlib.sha256(f"{search.seed} {study} {trial}".encode()).digest()
    with warnings.catch_warnings():  # that the liar may change: the lock has its version
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=int.from_bytes(seed[:4], "big"), constant_liar=True)
    made = optuna.create_study(sampler=sampler, direction=f"{search.better}imize")
    known: Any = {"distributions": _distributions(space)}
    for one in sorted((one for one in ended if one.values), key=lambda one: one.trial):
        known["params"] = _indices(space, one.values)
        if one.end == "done" and one.score is not None:
            made.add_trial(create_trial(state=TrialState.COMPLETE, value=one.score, **known))
        elif one.end in ("done", "pruned", "failed"):
            told = {one.epochs: one.score} if one.score is not None else {}
            made.add_trial(create_trial(state=TrialState.PRUNED, intermediate_values=told, **known))
    for _, values in sorted(running.items()):
        known["params"] = _indices(space, values)
        made.add_trial(create_trial(state=TrialState.RUNNING, **known))
    asked = made.ask(known["distributions"])
    return tuple((key, _value(space[key], asked.params[key])) for key in space)


class Pruner:
    """Optuna's successive halving of a study's trials (Li and others 2020, https://arxiv.org/abs/1810.05934).

    It has seen this process alone: a trial that goes on from an earlier one's checkpoint is not judged, and
    no bar for others.
    """

    def __init__(self, better: Better) -> None:
        optuna = _optuna()
        halving = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=ETA)
        self._study = optuna.create_study(direction=f"{better}imize", pruner=halving)
        self._pick = PICK[better]
        self._trials: dict[str, Any] = {}
        self._best: dict[str, float] = {}

    def is_behind(self, name: str, *, report: int, score: float) -> bool:
        """Return whether a trial is not among the best third, by the best of its scores so far, of those that
        have come as far as report 1, 3, 9, ...; reports count from 1 on.
        """
        if report == 1 and name not in self._trials:
            self._trials[name] = self._study.ask()
        if (trial := self._trials.get(name)) is None:
            return False
        self._best[name] = self._pick(score, self._best.get(name, score))
        with warnings.catch_warnings():  # of a report that came before its worker died
            warnings.simplefilter("ignore")
            trial.report(self._best[name], report)
        return bool(trial.should_prune())


def _optuna() -> Any:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _distributions(space: Space) -> dict[str, Any]:
    """Return optuna's distributions; choices by their numbers, as they may be of several types."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    made: dict[str, Any] = {}
    for key, values in space.items():
        if not isinstance(values, Range):
            made[key] = CategoricalDistribution(tuple(range(len(values))))
        elif values.is_whole:
            made[key] = IntDistribution(int(values.low), int(values.high), log=values.log)
        else:
            made[key] = FloatDistribution(values.low, values.high, log=values.log)
    return made


def _indices(space: Space, values: Values) -> dict[str, Any]:
    return {key: value if isinstance(its := space[key], Range) else its.index(value) for key, value in values}


def _value(values: Range | tuple[Any, ...], proposed: Any) -> Any:
    return values.rounded(proposed) if isinstance(values, Range) else values[proposed]
