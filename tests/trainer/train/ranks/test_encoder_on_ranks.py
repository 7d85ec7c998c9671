"""Heads on a pretrained encoder, of a panel and on two ranks, train as in one process."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.planted import planted_panel
from tests.jobs import job_of
from tests.models import SETTINGS, make_model
from tests.pieces import piece_of
from tests.trainer.train.ranks.ranks import TwoRanks
from tests.trainer.train.ranks.test_equivalence import batches_of, member_of
from tests.trainer.train.ranks.test_layout import layout_of
from trainer.base.errors import DataError
from trainer.data.read.candles import Candles
from trainer.data.read.shapes import FIELDS
from trainer.data.read.writing import write_candles
from trainer.job.job import Job
from trainer.models.pretrained import FINE_TUNED, FROZEN, UNFREEZE
from trainer.store.card import CardSeries, read_card
from trainer.store.weights import load
from trainer.train.inputs.encoder import check_inputs, pinned
from trainer.train.packs.layout import ONE, Layout
from trainer.train.packs.strategy import form_pack
from trainer.train.ranks.group import Ranks

ENDS = "2020-01-01T00:00:00Z"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an untrained transformer of three inputs."""
    path = tmp_path_factory.mktemp("encoder") / "transformer.safetensors"
    numbers = {"mean": [0.0] * 3, "std": [1.0] * 3, "limit": 10.0}
    splits = {"validation": {"first": ENDS, "last": ENDS}}
    one = CardSeries(symbol="S", calendar="24x7", horizon=1, scaler=numbers, splits=splits)
    make_model(path, "transformer", features=("a", "b", "c"), series=[one], seed=5)
    return path


def losses_and_weights(
    job: Job, layout: Layout, total: Callable[[torch.Tensor], torch.Tensor]
) -> list[float]:
    """Return the losses of 10 steps, then the sum of each of the weights."""
    member = member_of(torch.float64)
    pack = form_pack([member], job, layout)
    losses = [float(total(pack.step([True], [starts]))[0]) for starts in batches_of(job, member)[:10]]
    return [*losses, *(float(weight.detach().sum()) for weight in pack.model(0).parameters())]


def on_rank(ranks: Ranks, job: Job, layout: str) -> list[float]:
    """Return `losses_and_weights` of one of two ranks."""
    return losses_and_weights(job, layout_of(ranks, layout, job), ranks.sum_)


@pytest.mark.parametrize(
    "training", [UNFREEZE, *(pytest.param(way, marks=pytest.mark.nightly) for way in (FROZEN, FINE_TUNED))]
)
def test_two_ranks_train_a_head_as_one_process_does(training: str, encoder: Path, two_ranks: TwoRanks):
    sizes = {
        **SETTINGS["transformer"],
        "model": "transformer",
        "target": "direction",
        "batch": 8,
        "micro_batch": 2,
    }
    job = pinned(
        job_of(**sizes, dropout=0.2, encoder=str(encoder), encoder_training=training, unfreeze_steps=3)
    )
    alone = losses_and_weights(job, ONE, lambda losses: losses)
    for layout in ("ddp", "fsdp"):
        first, second = two_ranks(on_rank, job, layout)
        assert first == second
        np.testing.assert_allclose(first, alone, rtol=1e-9)


def before(candles: Candles, time: int) -> Candles:
    """Return the bars of a series before a time."""
    early = candles.timestamp < time
    return replace(
        candles,
        timestamp=candles.timestamp[early],
        **{name: getattr(candles, name)[early] for name in FIELDS},
    )


@pytest.mark.nightly
@pytest.mark.slow
def test_a_panels_head_trains_on_a_panels_encoder_on_two_ranks(python, train_piece, tmp_path: Path):
    panel = planted_panel(0, series=8, dates=400)  # two series begin late, or end early
    ends = int(panel[0].timestamp[220])
    sets = {"early": [one for candles in panel if len(one := before(candles, ends))], "all": panel}
    for name, series in sets.items():
        (tmp_path / name).mkdir()
        write_candles(tmp_path / name / "panel_1d.parquet", series)
    inputs = {"panel": True, "scaler": "rank", "timeframe": "1d", "calendar": "sessions", "horizon": 1}
    sizes = {"model": "transformer", "preset": "tiny", "lookback": 8, "batch": 64, "epochs": 1}
    common: dict[str, Any] = {**inputs, **sizes, "features": "volume_zscore_15,log_return_1"}
    job = job_of(**common, target="direction")
    symbols = [one.symbol for one in sets["early"]]
    made = train_piece(piece_of(job, *symbols, timeframe="1d"), job, tmp_path / "early", tmp_path / "encoder")
    file = tmp_path / "encoder" / made["file"]
    keys = {
        **common,
        "target": "return",
        "volatility_bars": 20,
        "encoder": str(file),
        "encoder_training": "frozen",
    }
    (tmp_path / "job.json").write_text(json.dumps(job_of(**keys).to_dict()))
    folders = ["--data", str(tmp_path / "all"), "--out", str(tmp_path / "out"), "--events", str(tmp_path)]
    ended = subprocess.run(
        [
            *python,
            "-m",
            "trainer.train",
            *folders,
            "--job",
            str(tmp_path / "job.json"),
            "--workers",
            "2",
            "--device",
            "cpu",
        ],
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    by_name = {event["event"]: event for event in events}
    assert by_name["torchrun_started"]["ranks"] == 2
    trained = tmp_path / "out" / by_name["model_done"]["file"]
    card, parent = read_card(trained), read_card(file)
    assert card.parent["model"] == parent.model and card.panel is not None and parent.panel is not None
    assert card.panel.scaler == parent.panel.scaler and len(card.series) == len(panel)
    tensors, theirs = load(trained)[0], load(file)[0]
    moved = {name for name in tensors if not torch.equal(tensors[name], theirs[name])}
    assert moved == {"head.weight", "head.bias", "context.tables.series"}
    with pytest.raises(
        DataError, match="another scaler [(]its inputs are those of a panel, scaled as rank, this job's those"
    ):
        check_inputs(pinned(job_of(**{**keys, "panel": False, "scaler": "pooled", "calendar": "auto"})))
