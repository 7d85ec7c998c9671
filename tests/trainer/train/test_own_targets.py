"""A target of a user's own is trained on like any other, and one whose labels reach further than they say is
refused.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tests.jobs import job_of
from tests.nightly import others_nightly
from tests.predictions import predict_file
from trainer.base.errors import UsageError
from trainer.data.synthetic import synthetic_candles
from trainer.job.job import Job
from trainer.models import MODELS
from trainer.store.card import read_card
from trainer.targets.scoring import Rows
from trainer.train.own.probe_target import measure_target

pytestmark = pytest.mark.slow
FILE = Path(__file__).parents[1] / "outside" / "own_target.py"
SMALL = {
    "lstm": {"hidden": 4, "lookback": 10, "batch": 64},
    "mlp": {"hidden": 4, "lookback": 10, "batch": 64},
    "tcn": {"blocks": 2, "width": 4, "chunk": 32, "batch": 8},
    "transformer": {"preset": "tiny", "lookback": 16, "batch": 64},
}


def tried(file: Path, name: str, **keys: object) -> Job:
    job = job_of(target=f"{file}:{name}", **keys)
    target = replace(job.own_files["target"], sha256=hashlib.sha256(file.read_bytes()).hexdigest())
    return job.with_own_files(
        {"target": measure_target(job.with_own_files({"target": target}), lambda stage: None)}
    )


def test_columns_outputs_reach_and_ends_are_measured():
    one, two = tried(FILE, "Range", **{"target.ahead": 7}).target, tried(FILE, "Both").target
    assert (one.label_columns, one.outputs, one.reach, one.bars_ahead, one.horizon) == (1, 1, 0, 7, 7)
    assert (two.label_columns, two.outputs, two.reach, two.bars_ahead, two.horizon) == (2, 3, 9, 3, 3)


@pytest.mark.parametrize("size", [1e-7, 1.0, 743.0, 1e6])
def test_the_constant_baseline_is_the_best_constant_in_any_unit(size: float) -> None:
    labels_TK = (size * np.random.default_rng(0).lognormal(sigma=0.5, size=(2001, 1))).astype(np.float32)
    rows = Rows(
        candles=synthetic_candles("SIG-USD", bars=10),
        clock=np.arange(2001),
        labels_TK=labels_TK,
        fitted={},
        train=np.arange(2000),
        scored=np.array([2000]),
        features=lambda bars: np.empty((len(bars), 0), dtype=np.float32),
    )
    constant = tried(FILE, "Range").target.baselines(rows)["constant"]
    assert constant[0, 0] == pytest.approx(np.median(labels_TK[:2000]), rel=5e-3)  # of absolute errors


@pytest.mark.parametrize(
    ("model", "name"),
    others_nightly(
        product(MODELS, ("Range", "Both")), lambda pair: pair in (("lstm", "Range"), ("tcn", "Both"))
    ),
)
def test_every_model_takes_it_and_predicts_without_its_file(tmp_path, model, name, write_candles, train):
    write_candles(tmp_path, "SIG-USD", bars=2500, signal=1.0)
    job = tried(FILE, name, model=model, **SMALL[model])
    keys = {
        f"target.{key}": value
        for key, value in job.to_dict()["target"].items()
        if key not in ("name", "file", "class")
    }
    settings = {**SMALL[model], **keys, "epochs": 3, "learning_rate": 1e-2}
    trained = train(tmp_path, tmp_path / "out", model=model, target=f"{FILE}:{name}", **settings)
    card = read_card(trained.file)
    assert card.own_files["target"]["text"] == FILE.read_text() and str(FILE) not in card.to_json()
    assert card.training["history"][-1]["train_loss"] < card.training["history"][0]["train_loss"]
    assert card.metrics["about"]["headline"] == "loss" and card.metrics["test"]["loss"] > 0
    assert (
        card.metrics["test"]["baselines"]["constant"]["loss"] > 0
        and "loss" in card.metrics["test"]["better"]["constant"]
    )
    said = predict_file(trained.file, tmp_path, last=3)
    assert set(said[0].values) == ({"output"} if name == "Range" else {"output_1", "output_2", "output_3"})
    assert all(np.isfinite(value) for one in said for value in one.values.values())


def refusal(folder: Path, *lines: str) -> str:
    (folder / "t.py").write_text(
        "import numpy as np\nclass T:\n" + "".join(f"    {line}\n" for line in lines)
    )
    with pytest.raises(UsageError) as caught:
        tried(folder / "t.py", "T")
    line = str(caught.value)
    assert "\n" not in line
    return line


LOSS = "def loss(self, outputs, labels): return (outputs - labels).square().sum(-1)"
ENDS = "    ends = np.arange(len(c.close)) + 3; ends[-3:] = -1"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([LOSS], "T has no method label"),
        (["def label(self, c): return 1, 2"], "T has no method loss"),
        (
            ["def label(self, c): return c.close", LOSS],
            "T.label returns ndarray (it must return labels and their ends)",
        ),
        (["def label(self, c): raise KeyError('x')", LOSS], "T.label fails (KeyError: 'x')"),
        (
            ["def label(self, c): return c.close[1:], c.timestamp", LOSS],
            "T.label returns labels of shape (5999,)",
        ),
        (["def label(self, c): return c.close, c.close", LOSS], "ends that are not whole numbers"),
        (
            ["def label(self, c): return c.close, np.arange(len(c.close))", LOSS],
            "T.label returns invalid ends",
        ),
        (
            ["def label(self, c): return c.close, np.arange(len(c.close)) + 1", LOSS],
            "T.label returns invalid ends",
        ),
        (
            ["def label(self, c): return c.close * np.nan, np.full(len(c.close), -1)", LOSS],
            "T.label labels none of 6,000 bars",
        ),
        (
            ["def label(self, c):", ENDS, "    return np.roll(c.close, -4) / c.close, ends", LOSS],
            "T.label reads bars after its end",
        ),
        (
            ["def label(self, c):", ENDS, "    return c.close / c.close.mean(), ends", LOSS],
            "T.label reads bars after its end",
        ),
        (
            [
                "def label(self, c):",
                ENDS,
                "    return c.close / np.concatenate([c.close[:2], c.close[:-2]]), ends",
                LOSS,
            ],
            "T.label reads further back than its reach",
        ),
        (["reach = -1", "def label(self, c): pass", LOSS], "T.reach is -1"),
        (
            ["def label(self, c):", ENDS, "    return np.maximum(c.close, 50, out=c.close), ends", LOSS],
            "T.label fails (ValueError: output array is read-only",
        ),
        (
            [
                "def label(self, c):",
                ENDS,
                "    return c.close, ends",
                "def loss(self, outputs, labels): return (outputs - labels).mean()",
            ],
            "T.loss returns shape ()",
        ),
        (
            [
                "def label(self, c):",
                ENDS,
                "    return c.close, ends",
                "def loss(self, outputs, labels): return (outputs - outputs.mean()).square().sum(-1)",
            ],
            "T.loss of a label depends on the batch",
        ),
    ],
)
def test_a_class_that_is_no_target_is_one_line(tmp_path, lines, words):
    assert words in refusal(tmp_path, *lines)
