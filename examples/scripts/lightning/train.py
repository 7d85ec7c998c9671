"""An autoencoder of points with PyTorch Lightning, in the shape of its tutorial.

https://lightning.ai/docs/pytorch/stable/starter/introduction.html has digits in the place of the points. What
else differs: the folders, a line of log per epoch, a restart that resumes from last.ckpt, with the weights of
a training that was never interrupted, and an early end when a spot machine is taken away.
"""

import argparse
import csv
import os
from pathlib import Path

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from torch import nn, utils

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
options = parser.parse_args()

data = Path(os.environ["MAYFLY_DATA"])
out = Path(os.environ["MAYFLY_OUT"])
checkpoints = Path(os.environ["MAYFLY_CHECKPOINTS"])
notice = Path(os.environ["MAYFLY_NOTICE"])


def is_taken():
    """Return whether AWS takes this spot machine away."""
    return notice.exists() and notice.read_text() == "stop\n"


class LitAutoEncoder(pl.LightningModule):
    def __init__(self, features):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(nn.Linear(features, 16), nn.ReLU(), nn.Linear(16, 2))
        self.decoder = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, features))

    def training_step(self, batch, batch_idx):
        (x,) = batch
        loss = nn.functional.mse_loss(self.decoder(self.encoder(x)), x)
        self.log("train_loss", loss, on_epoch=True)
        return loss

    def on_train_epoch_end(self):
        loss = self.trainer.callback_metrics["train_loss"]
        print(f"epoch {self.current_epoch + 1}  loss {loss:.4f}", flush=True)
        self.trainer.should_stop = is_taken()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


with (data / "points.csv").open() as file:
    rows = torch.tensor([[float(value) for value in row[:-1]] for row in csv.reader(file)])
pl.seed_everything(0)
points = utils.data.TensorDataset(rows)
# It shuffles by the epoch, of which Lightning tells it: a resumed training goes on in the same order.
order = utils.data.DistributedSampler(points, num_replicas=1, rank=0)
train_loader = utils.data.DataLoader(points, batch_size=64, sampler=order)
autoencoder = LitAutoEncoder(features=rows.shape[1])

trainer = pl.Trainer(
    max_epochs=options.epochs,
    default_root_dir=checkpoints,
    # Without a counter last.ckpt is the newest on every machine, not only on the first.
    callbacks=[ModelCheckpoint(dirpath=checkpoints, save_last=True, enable_version_counter=False)],
    logger=CSVLogger(out),
    enable_progress_bar=False,
)
last = checkpoints / "last.ckpt"
if last.exists():  # started again, on this machine or after one that was lost
    print("resumes from last.ckpt")
trainer.fit(autoencoder, train_loader, ckpt_path=str(last) if last.exists() else None)
if is_taken():
    raise SystemExit("stopped: another machine goes on from last.ckpt")
trainer.save_checkpoint(out / "autoencoder.ckpt", weights_only=True)
