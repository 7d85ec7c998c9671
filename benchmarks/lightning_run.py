"""A whole training by PyTorch Lightning's Trainer: the contender of `benchmarks.whole_run`.

    python -m benchmarks.lightning_run --data FOLDER --symbols A,B --set model.hidden=64

Trains an LSTM a symbol, one after another, on the rows, labels and split that ours trains on, with the same
network, optimizer, batch, clipping and epochs: a Dataset of windows and its DataLoader, a validation each
epoch, then the best weights' outputs on validation and test. It makes no baselines, scores or cards.
`--our-set-up` gives it a worker's: one thread, an allocator that keeps freed memory, and neither progress bar
nor logger, which are among its defaults. Lightning is not installed with Mayfly: pip install --no-deps -r
benchmarks/requirements.lock, into an environment of its own.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.contenders import PlainNet, PlainWindows
from trainer.base.settings import WINDOWS
from trainer.job.job import Job
from trainer.job.reading import parse_job
from trainer.train.cpu import keep_freed_memory
from trainer.train.inputs.source import plan_and_open, read_source
from trainer.train.inputs.survey import survey
from trainer.train.packs.pack import Member, loss_for
from trainer.train.piece import open_piece
from trainer.train.run import Run

EVALUATED = 256  # windows of a batch of validation and test
BARE: dict[str, Any] = {  # a Trainer that shows and logs nothing, as a worker
    "logger": False,
    "num_sanity_val_steps": 0,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def train_by_lightning() -> None:
    """Train each symbol."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--data", type=Path, required=True)
    parse.add_argument("--symbols", required=True)
    parse.add_argument("--set", action="append", dest="settings", default=[])
    parse.add_argument("--our-set-up", action="store_true")
    asked = parse.parse_args()
    if asked.our_set_up:
        torch.set_num_threads(1)
        keep_freed_memory()
    import pytorch_lightning

    warnings.filterwarnings("ignore", module="pytorch_lightning")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    job = parse_job({}, {"data.symbols": asked.symbols.split(",")}, asked.settings)
    assert job.model.reads == WINDOWS
    with TemporaryDirectory() as scratch:
        data = plan_and_open(job, asked.data, scratch=Path(scratch))
        job = job.with_data(timeframe=data.plan.timeframe)
        for piece in survey(job, data.plan).pieces:
            opened = open_piece(piece, job, read_source(piece, job, data))
            (series,) = opened.data.series
            rows = {span: series.starts[span] for span in ("validation", "test")}
            labels_TK = torch.from_numpy(series.labels_TK)
            train(pytorch_lightning, job, opened.run, labels_TK, rows, BARE if asked.our_set_up else {})


def train(
    lightning: Any,
    job: Job,
    run: Run,
    labels_TK: torch.Tensor,
    starts: dict[str, torch.Tensor],
    settings: dict[str, Any],
) -> list[torch.Tensor]:
    """Train one network, its Trainer with such settings; return its best weights' outputs on validation and
    test.
    """
    loss_of = loss_for(job)

    class Module(lightning.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self, member: Member) -> None:
            super().__init__()
            self.net = PlainNet(member, job)

        def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
            return self._loss(batch)

        def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> None:
            self.log("validation_loss", self._loss(batch), batch_size=len(batch[0]))

        def predict_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
            outputs: torch.Tensor = self.net(batch[0].transpose(0, 1))
            return outputs

        def configure_optimizers(self) -> torch.optim.Optimizer:
            rate, decay = job.train.learning_rate, job.train.weight_decay
            return torch.optim.AdamW(self.net.parameters(), lr=rate, weight_decay=decay)

        def _loss(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            return loss_of(self.net(batch[0].transpose(0, 1)), batch[1]).mean()

    windows = PlainWindows(run.member, job)
    windows._labels_TK = labels_TK  # of all spans: the member has those of training

    def loader(part: torch.Tensor, batch: int, *, shuffle: bool = False) -> Any:
        chosen = torch.utils.data.Subset(windows, part.tolist())
        return torch.utils.data.DataLoader(chosen, batch_size=batch, shuffle=shuffle)

    with TemporaryDirectory() as folder:
        best = lightning.callbacks.ModelCheckpoint(dirpath=folder, monitor="validation_loss")
        trainer = lightning.Trainer(
            max_epochs=job.train.epochs,
            gradient_clip_val=job.train.clip_norm,
            accelerator="cpu",
            callbacks=[best],
            default_root_dir=folder,
            **settings,
        )
        module = Module(run.member)
        validation = loader(starts["validation"], EVALUATED)
        trainer.fit(module, loader(run.reads, job.train.batch, shuffle=True), validation)
        module.load_state_dict(torch.load(best.best_model_path, weights_only=True)["state_dict"])
        loaders = (validation, loader(starts["test"], EVALUATED))
        return [torch.cat(trainer.predict(module, one)) for one in loaders]


if __name__ == "__main__":
    train_by_lightning()
