"""Metrics against values worked out by hand, and evaluation that does not depend on its batches."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from trainer.models.lstm import LstmClassifier
from trainer.train.score import Evaluator, gather, loss_of, metrics, probabilities_of


def test_metrics_of_a_small_example_are_those_worked_out_by_hand():
    found = metrics(np.array([0.9, 0.8, 0.3, 0.6, 0.2]), np.array([1, 1, 1, 0, 0]))
    assert found["n"] == 5
    assert found["accuracy"] == 3 / 5  # 0.3 is a missed rise, 0.6 a false one
    assert found["base_rate"] == 3 / 5
    assert found["auc"] == 5 / 6  # of six pairs, 0.3 under 0.6 is the one that is wrong
    assert found["mcc"] == pytest.approx((2 * 1 - 1 * 1) / math.sqrt(3 * 3 * 2 * 2))
    assert found["log_loss"] == pytest.approx(-np.mean(np.log([0.9, 0.8, 0.3, 0.4, 0.8])))
    assert found["brier"] == pytest.approx(np.mean([0.01, 0.04, 0.49, 0.36, 0.04]))


def test_tied_probabilities_count_half_in_the_auc():
    assert metrics(np.array([0.5, 0.5, 0.5, 0.5]), np.array([1, 0, 1, 0]))["auc"] == 0.5
    assert metrics(np.array([0.7, 0.5, 0.5, 0.1]), np.array([1, 1, 0, 0]))["auc"] == (3 + 0.5) / 4


def test_the_auc_equals_a_count_of_all_pairs():
    random = np.random.default_rng(0)
    chances, labels = random.integers(0, 20, 200) / 20, random.integers(0, 2, 200)
    ones, zeros = chances[labels == 1], chances[labels == 0]
    wins = (ones[:, None] > zeros).sum() + 0.5 * (ones[:, None] == zeros).sum()
    assert metrics(chances, labels)["auc"] == pytest.approx(wins / (len(ones) * len(zeros)), abs=1e-15)


def test_one_class_only_has_no_auc_and_a_constant_answer_no_correlation():
    assert metrics(np.array([0.9, 0.8]), np.array([1, 1]))["auc"] is None
    assert metrics(np.array([0.9, 0.8]), np.array([1, 0]))["mcc"] == 0.0


def test_certain_and_wrong_is_a_large_loss_but_a_finite_one():
    assert math.isfinite(metrics(np.array([1.0, 0.0]), np.array([0, 1]))["log_loss"])


def test_loss_of_logits_is_the_log_loss_of_their_probabilities():
    logits, labels = np.array([-800.0, 2.0, 0.0]), np.array([0.0, 1.0, 1.0])
    assert loss_of(logits, labels) == pytest.approx(metrics(probabilities_of(logits), labels)["log_loss"])


def test_gather_cuts_the_windows_that_slices_would_and_scales_them():
    rows_TF = torch.arange(20.0).view(10, 2)
    mean_F, std_F = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 4.0])
    x_TBF = gather(rows_TF, torch.tensor([0, 5, 7]), torch.arange(3)[:, None], mean_F, std_F)
    expected = [(rows_TF[start : start + 3] - mean_F) / std_F for start in (0, 5, 7)]
    assert torch.equal(x_TBF, torch.stack(expected, dim=1))
    assert torch.equal(rows_TF, torch.arange(20.0).view(10, 2))  # the rows themselves stay unscaled


def test_a_windows_logit_does_not_depend_on_the_windows_evaluated_with_it():
    torch.manual_seed(0)
    model = LstmClassifier(features=7, hidden=24, layers=2, dropout=0.1)
    evaluator = Evaluator(rows_TF=torch.randn(1200, 7), mean_F=torch.zeros(7), std_F=torch.ones(7), lookback=30)
    every = evaluator.logits(model, torch.arange(1100))
    some = torch.randperm(1100)[:333]
    assert np.array_equal(evaluator.logits(model, some), every[some.numpy()])
    assert len(evaluator.logits(model, torch.arange(0))) == 0
