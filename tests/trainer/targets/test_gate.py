"""The gate: a challenger has to be better than its baselines and than the champion, beyond chance over a year."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from benchmarks.coverage import GAINS
from benchmarks.gate import replaced
from tests.models import losses_of
from trainer.targets import TARGETS
from trainer.targets.gate import Decision, GateRule, decide
from trainer.targets.logistic import logistic
from trainer.targets.losses import MODEL, Losses
from trainer.train.evaluate.evaluation import Cells, compare

DAY = 86_400
TARGET = TARGETS["direction"]()  # log loss decides, Brier may not be worse
RULE = GateRule()
CELLS = 200
NOISE = np.random.default_rng(0).normal(size=(3, CELLS))


def losses(
    log_loss: float, *, brier: float = 0.0, cells: int = CELLS, first: int = 0, noise: int = 0, bars: int = 24
) -> Losses:
    """Return the losses of a model with these means and a noise by cell, beside a baseline of 1.0 each."""

    def sums(mean: float) -> list[float]:
        return [bars * (mean + 0.5 * one) for one in NOISE[noise, :cells].tolist()]

    flat = [bars * 1.0] * cells
    return Losses(
        begins=tuple(DAY * (first + place) for place in range(cells)),
        bars=(bars,) * cells,
        sums={"log_loss": {MODEL: sums(log_loss), "base_rate": flat},
              "brier": {MODEL: sums(brier), "base_rate": flat}},
    )  # fmt: skip


def against(champion: Losses | None, challenger: Losses, rule: GateRule = RULE) -> Decision:
    return decide(TARGET, rule, challenger=challenger, champion=champion, challenge=1)


def test_a_better_challenger_replaces_the_champion():
    made = against(losses(0.5, noise=1), losses(0.2, brier=-0.3))
    assert made.promote and made.reason.startswith("log loss gains +0.2481 [")
    numbers = json.loads(json.dumps(made.numbers, allow_nan=False))
    assert numbers["champion"]["mark"] == numbers["baselines"]["mark"] == "better"
    assert numbers["champion"]["low"] > 0 and numbers["cells"] == CELLS and numbers["challenge"] == 1
    assert numbers["alpha"] == pytest.approx(0.05 / 52)


def test_a_tie_keeps_the_champion():
    same = losses(0.2)
    assert not against(same, same).promote
    assert not against(losses(0.2, noise=1), losses(0.2)).promote
    assert not against(losses(0.2), losses(0.5, noise=1)).promote


def test_a_gain_enough_for_one_decision_is_not_for_a_year():
    champion, challenger = losses(0.4, noise=1), losses(0.2)
    once = against(champion, challenger, GateRule(challenges=1))
    p = once.numbers["champion"]["p"]
    assert once.promote and 0.05 / 52 < p < 0.05
    made = against(champion, challenger)
    assert not made.promote and made.reason.startswith("not beyond chance")
    assert against(champion, challenger, GateRule(level=p * 52.01)).promote
    assert not against(champion, challenger, GateRule(level=p * 51.99)).promote


def test_the_best_of_many_trials_has_to_show_more():
    champion, challenger = losses(0.4, noise=1), losses(0.2)
    wide = {"challenger": challenger, "champion": champion, "challenge": 1}
    once = decide(TARGET, GateRule(challenges=1), **wide)
    p = once.numbers["champion"]["p"]
    few, many = (
        decide(TARGET, GateRule(challenges=1), **wide, tried=count)
        for count in (math.floor(0.05 / p), math.ceil(0.05 / p))
    )
    assert few.promote and few.numbers["tried"] == math.floor(0.05 / p)
    assert not many.promote and many.reason.startswith("too little to tell")
    doubt = losses(0.8852, brier=0.8852)
    alone = decide(TARGET, GateRule(challenges=1), challenger=doubt, champion=None, challenge=1)
    best = decide(TARGET, GateRule(challenges=1), challenger=doubt, champion=None, challenge=1, tried=2_000)
    assert alone.promote and not best.promote, "nor over its baselines"


def test_a_gain_within_the_margin_keeps_the_champion():
    champion, challenger = losses(0.5, noise=1), losses(0.1)
    wide = against(champion, challenger, GateRule(margin=0.3))
    assert against(champion, challenger).promote and not wide.promote
    told, plain = (made.numbers["champion"] for made in (wide, against(champion, challenger)))
    for key in ("gain", "low", "high"):  # as they are, without the margin
        assert told[key] == pytest.approx(plain[key])


def test_a_challenger_worse_in_another_proper_score_is_kept_out():
    champion = losses(0.5, brier=0.0, noise=1)
    assert against(champion, losses(0.1, brier=0.0)).promote
    made = against(champion, losses(0.1, brier=0.4))
    assert not made.promote and made.numbers["baselines"]["mark"] == "better"


def test_a_challenger_has_to_beat_its_baselines_too():
    made = against(losses(1.9, brier=2.0, noise=1), losses(1.0, brier=1.0))
    assert not made.promote and made.numbers["champion"]["mark"] == "better"
    assert against(None, losses(0.2, brier=0.2)).promote
    first = against(None, losses(1.0, brier=1.0))
    assert not first.promote and first.numbers["champion"] is None
    doubt = against(None, losses(0.8852, brier=0.8852))
    assert 0.05 / 52 < doubt.numbers["baselines"]["p"] < 0.05 and not doubt.promote


def test_few_cells_in_common_keep_the_champion():
    few = RULE.least_cells - 1
    challenger = losses(0.1, first=CELLS - few)
    made = against(losses(0.9, brier=1.0, noise=1), challenger)
    assert (made.promote, made.numbers["cells"]) == (False, few) and str(RULE.least_cells) in made.reason
    assert not against(losses(0.9, bars=23), losses(0.1)).promote, "other bars in each cell"
    assert not against(None, losses(0.1, cells=few)).promote
    assert against(None, losses(0.1, cells=few + 1)).promote


def test_losses_without_score_or_baseline_promote_nothing():
    good = losses(0.1)
    for sums in (
        {},
        {**good.sums, "log_loss": {MODEL: None, "base_rate": good.sums["brier"]["base_rate"]}},
        {name: {MODEL: its[MODEL]} for name, its in good.sums.items()},
        {"log_loss": good.sums["log_loss"]},
    ):
        bare = Losses(begins=good.begins, bars=good.bars, sums=sums)
        assert not against(None, bare).promote and not against(losses(0.9, noise=1), bare).promote
    no_score = Losses(begins=good.begins, bars=good.bars, sums={"brier": good.sums["brier"]})
    assert not against(no_score, good).promote


@pytest.mark.parametrize("change", [{"level": 0.0}, {"level": 1.0}, {"margin": -1.0}, {"least_cells": 19}])
def test_a_rule_out_of_bounds_is_refused(change):
    with pytest.raises(ValueError, match="rule|cells"):
        GateRule(**change)
    with pytest.raises(ValueError, match="challenge 0"):
        decide(TARGET, RULE, challenger=losses(0.1), champion=None, challenge=0)


def trained(rows: int, *, shuffled: bool = False, seed: int = 0) -> Losses:
    """Return the test losses of a regression that learned from so many rows, or from shuffled labels."""
    random = np.random.default_rng(99)
    x, weights = random.normal(size=(9_000, 20)), 0.15 * random.normal(size=20)
    ups = random.random(9_000) < 1 / (1 + np.exp(-x @ weights))
    learned = np.random.default_rng(seed).permutation(4_000)[:rows]
    labels = ups[np.random.default_rng(seed).permutation(learned)] if shuffled else ups[learned]
    forecast = logistic(x[learned], labels, x[4_000:])[:, 1]
    bars = np.arange(5_000)
    cells = Cells(of_bar=bars // 24, length="1 day", times=bars * 3_600 * 10**9)
    base = {"base_rate": np.full(5_000, float(ups[:4_000].mean()))}
    tested = compare(forecast, TARGET, ups[4_000:, None], cells=cells, forecasts=base)
    return losses_of(tested)


def test_shuffled_labels_and_a_tenth_of_the_data_are_kept_out():
    whole = trained(4_000)
    assert against(None, whole).promote
    assert against(trained(150), whole).promote, "the other way round it is let in"
    for seed in range(3):
        shuffled, tenth = trained(4_000, shuffled=True, seed=seed), trained(400, seed=seed)
        assert not against(None, shuffled).promote and not against(whole, shuffled).promote
        assert not against(whole, tenth).promote


def test_few_champions_are_replaced_in_a_year_without_a_gain():
    """A small form of `benchmarks/gate.py`."""
    row = replaced(target="direction", null="champion", cells=250, alike=0.0, gain=0.0, champions=25)
    assert row["replaced"] <= 0.16, "5 %, and two and a half standard errors of 25"
    row = replaced(target="volatility", null="champion", cells=250, alike=0.9, gain=0.5, champions=10)
    assert row["replaced"] >= 0.8


@pytest.mark.nightly
@pytest.mark.parametrize("null", ["champion", "baseline"])
@pytest.mark.parametrize("target", sorted(json.loads(GAINS.read_text())))
def test_false_promotions_are_as_rare_as_stated(target, null):
    """1,000 champions over 52 Sundays; at most 5 % and two standard errors."""
    for alike in (0.0, 0.9):
        row = replaced(target=target, null=null, cells=250, alike=alike, gain=0.0, champions=1_000)
        assert row["replaced"] <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 1_000)
