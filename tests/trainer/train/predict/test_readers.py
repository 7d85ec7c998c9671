"""Windows and chunks that readers gather, and outputs that do not depend on their batch."""

from __future__ import annotations

import numpy as np
import torch

from trainer.models.lstm.network import Lstm
from trainer.train.predict.readers import Inputs, WindowReader, gather


def test_gather_cuts_windows_and_scales_them():
    rows_TF = torch.arange(20.0).view(10, 2)
    mean_F, std_F = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 4.0])
    x_TBF = gather(rows_TF, torch.tensor([0, 5, 7]), torch.arange(3)[:, None], mean_F, std_F)
    expected = [(rows_TF[start : start + 3] - mean_F) / std_F for start in (0, 5, 7)]
    assert torch.equal(x_TBF, torch.stack(expected, dim=1))
    assert torch.equal(rows_TF, torch.arange(20.0).view(10, 2))  # the rows themselves stay unscaled


def test_an_output_does_not_depend_on_other_windows_of_its_batch():
    torch.manual_seed(0)
    model = Lstm(features=7, hidden=24, layers=2, dropout=0.1, outputs=2)
    inputs = Inputs(rows_TF=torch.randn(1200, 7), mean_F=torch.zeros(7), std_F=torch.ones(7))
    reader = WindowReader(inputs, bars_seen=30)
    bars = np.arange(29, 1129)
    every = reader.outputs(model, bars)
    some = np.random.default_rng(0).permutation(1100)[:333]
    assert np.array_equal(reader.outputs(model, bars[some]), every[some]) and every.shape == (1100, 2)
    assert len(reader.outputs(model, np.arange(0))) == 0
