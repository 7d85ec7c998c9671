"""Jobs that are not published for retrains."""

from __future__ import annotations

import pytest

from tests.jobs import job_of
from trainer.base.errors import UsageError
from trainer.cli.verbs.publish import refuse_k_folds


def test_a_job_of_k_folds_is_no_retrain():
    with pytest.raises(UsageError, match="data.split = kfold in a retrain .*never compared.*split = walk"):
        refuse_k_folds(job_of(folds=3, split="kfold"))
    refuse_k_folds(job_of(folds=3))
