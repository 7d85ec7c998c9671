"""The gate on real candles: models of shuffled labels, and of a tenth of the windows, do not replace one that
learned from all; it replaces them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from tests.jobs import job_of
from tests.pieces import piece_of
from tests.trainer.train.conftest import OnePiece
from trainer.job.job import Job
from trainer.store.scores import Asked, AskedModel, AskedPiece, Side, read_scores
from trainer.targets.gate import Decision, GateRule, decide
from trainer.train.loop import train as train_pack
from trainer.train.packs.strategy import form_pack
from trainer.train.run import Run
from trainer.train.score import main

CANDLES = Path(__file__).parents[4] / "shared/data/raw/CRYPTO_1h_2021-2022.parquet"
SYMBOLS = ("BTC-USD", "ETH-USD", "SOL-USD")

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.slow,
    pytest.mark.skipif(not CANDLES.exists(), reason="the real candles are not here"),
]


class Tampered(OnePiece):
    """A piece whose node trains on something else than it was given."""

    def __init__(self, *given: Any, how: str) -> None:
        super().__init__(*given)
        self._how = how

    def arrivals(self, free: int, *, wait: bool, make_room: Callable[[], None]) -> list[Run]:
        """See `loop.Roster`."""
        runs = super().arrivals(free, wait=wait, make_room=make_room)
        for run in runs:
            if self._how == "shuffled labels":
                rows = run.reads + self._job.model.bars_seen - 1
                labels_TK = run.member.labels_TK.clone()
                order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
                labels_TK[rows] = labels_TK[rows[order]]
                run.member = replace(run.member, labels_TK=labels_TK)
            elif self._how == "a tenth":
                run.reads = run.reads[: len(run.reads) // 10]
                run.most_reads = len(run.reads)
        return runs


class Gate:
    """Models of one symbol, trained each in its way, and decisions between them."""

    def __init__(self, symbol: str, job: Job, data: Path, folder: Path) -> None:
        self.symbol, self._job, self._data, self._folder = symbol, job, data, folder
        self._piece = piece_of(job, symbol, timeframe="1h")
        self._files = {how: self._train(how) for how in ("honest", "shuffled labels", "a tenth")}

    def decided(self, challenger: str, champion: str = "") -> Decision:
        """Decide between two of the models, by their scores alone."""
        given, out = self._folder / "given", self._folder / "out"
        sides: list[tuple[Side, str]] = [("challenger", challenger)]
        sides += [("champion", champion)] if champion else []
        models = []
        for side, how in sides:
            body = self._files[how].read_bytes()
            sha256 = hashlib.sha256(body).hexdigest()
            place = given / "models" / f"{sha256}.safetensors"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(body)
            path = f"models/{place.name}"
            models.append(AskedModel(side=side, path=path, key=how, version_id="v", sha256=sha256))
        piece = AskedPiece(piece=self._piece.title, since=0, models=tuple(models))
        asked = Asked(pieces=(piece,), until=4_000_000_000)
        (given / "job.json").write_text(json.dumps(self._job.to_dict()))
        (given / "asked.json").write_text(json.dumps(asked.to_json()))
        out.mkdir(exist_ok=True)
        folders = {"data": self._data, "out": out, "events": self._folder, "given": given}
        assert main([word for name, path in folders.items() for word in (f"--{name}", str(path))]) == 0
        target = self._job.target
        scored = read_scores((out / "scores.json").read_bytes(), asked, proper=target.proper)[piece.piece]
        assert scored.challenger is not None, scored.reason
        losses: dict[str, Any] = {"challenger": scored.challenger, "champion": scored.champion}
        return decide(target, GateRule(), challenge=1, **losses)

    def _train(self, how: str) -> Path:
        out = self._folder / how
        out.mkdir()
        roster = Tampered(self._piece, self._job, self._data, out, how=how)
        train_pack(roster, lambda members: form_pack(members, self._job), self._job, lambda event: None)
        return out / str(roster.done["file"])


@pytest.fixture(scope="module", params=SYMBOLS)
def gate(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Gate:
    """A volatility of the next day from hourly bars, which a small LSTM learns in a few epochs."""
    folder, symbol = tmp_path_factory.mktemp("gate"), request.param
    table = pq.read_table(CANDLES)
    (folder / "data").mkdir()
    pq.write_table(table.filter(pc.equal(table["symbol"], symbol)), folder / "data" / f"{symbol}_1h.parquet")
    sizes = {"hidden": 16, "lookback": 48, "batch": 64, "epochs": 4, "learning_rate": 3e-3}
    job = job_of(target="volatility", horizon_sessions=1, timeframe="1h", symbols=(symbol,), **sizes)
    return Gate(symbol, job, folder / "data", folder)


@pytest.mark.parametrize("how", ["shuffled labels", "a tenth"])
def test_a_model_that_learned_less_is_kept_out(gate: Gate, how: str) -> None:
    against = gate.decided(how, champion="honest")
    assert not against.promote
    assert gate.decided(how).promote <= gate.decided("honest").promote, "nor where there is no champion"


def test_the_decision_the_other_way_round_sees_a_gain(gate: Gate) -> None:
    """Three months of real days tell an honest model from one of shuffled labels for one of three coins."""
    decision = gate.decided("honest", champion="shuffled labels")
    champion = decision.numbers["champion"]
    expected = "better" if gate.symbol == "SOL-USD" else "too little to tell"
    assert champion["gain"] > 0 and champion["mark"] == expected, decision.reason
