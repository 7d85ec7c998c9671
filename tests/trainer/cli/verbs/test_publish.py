"""Jobs that are not published for retrains."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.jobs import job_of
from trainer.base.errors import UsageError
from trainer.cli.verbs.publish import refuse_k_folds, track_notes


def test_a_job_of_k_folds_is_no_retrain():
    with pytest.raises(UsageError, match="data.split = kfold in a retrain .*never compared.*split = walk"):
        refuse_k_folds(job_of(folds=3, split="kfold"))
    refuse_k_folds(job_of(folds=3))


def test_a_job_with_trackers_is_told_that_a_desk_alone_tracks():
    (note,) = track_notes(replace(job_of(), track=("mlflow", "wandb")))
    assert note.startswith("no desk tracks") and note.endswith("mayfly pull RUN --track mlflow --track wandb")
    assert track_notes(job_of()) == []
