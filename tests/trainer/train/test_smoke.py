"""The smoke test of a device."""

from __future__ import annotations

import json

import pytest
import torch

from trainer.train.smoke import main


def test_a_device_that_works_says_so_in_one_json_line(capsys):
    assert main(["--device", "cpu"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] and found["device"] == "cpu" and found["last_loss"] < found["first_loss"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_missing_device_exits_100_with_one_json_line(capsys):
    assert main(["--device", "cuda:0"]) == 100
    found = json.loads(capsys.readouterr().out)
    assert not found["ok"] and found["error"]
