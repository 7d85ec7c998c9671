"""The model file that a job's models start from: a pretrained encoder (`model.encoder`), all but its head, or
the same kind of model whole (`train.init`). Standard library only.

The file is identified by its sha256, and names the time until which it has seen bars and labels; both are
read from it before anything is planned (`trainer/train/inputs/encoder.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from trainer.base.errors import UsageError
from trainer.job.job import Job
from trainer.models.pretrained import encoder_of

INIT = "init"  # how a model trains that starts from another one whole


@dataclass(frozen=True, kw_only=True)
class StartModel:
    """A model file to start from."""

    key: str  # of the job, with its table
    path: str
    sha256: str  # "" before it was read
    until: str  # end of the bars that it was trained and chosen by, ISO 8601; "" before it was read
    training: str  # what trains: a value of model.encoder_training, or INIT

    @property
    def is_whole(self) -> bool:
        """Return whether its head is taken, too."""
        return self.training == INIT

    @property
    def noun(self) -> str:
        """Return what it is called in messages."""
        return "model to start from" if self.is_whole else "encoder"

    @property
    def name(self) -> str:
        """Return the name of its file."""
        return Path(self.path).name

    def put(self, job: Job, *, path: str = "", sha256: str = "", until: str = "") -> Job:
        """Return the job with other values for those that are given."""
        names = ("init", "init_sha256", "init_until")
        if not self.is_whole:
            names = ("encoder", "encoder_sha256", "encoder_until")
        given = dict(zip(names, (path, sha256, until), strict=True))
        changed = {name: value for name, value in given.items() if value}
        if self.is_whole:
            return job.with_train(**changed)
        return replace(job, model=replace(job.model, **changed))


def start_model_of(job: Job) -> StartModel | None:
    """Return the model that a job's models start from; None if they start from random weights. Raises
    UsageError for two of them.
    """
    encoder, train = encoder_of(job.model), job.train
    if encoder is not None and train.init:
        raise UsageError(
            "model.encoder and train.init", why="each is a model to start from", do="Leave one out."
        )
    if encoder is not None:
        return StartModel(
            key="model.encoder",
            path=encoder.encoder,
            sha256=encoder.encoder_sha256,
            until=encoder.encoder_until,
            training=encoder.encoder_training,
        )
    if not train.init:
        return None
    return StartModel(
        key="train.init", path=train.init, sha256=train.init_sha256, until=train.init_until, training=INIT
    )
