"""The local folder of the storage mode `local`: candles/<set>/ and models/<run>/, at the desk. Other modes have none."""

from __future__ import annotations

from pathlib import Path

from trainer import environment
from trainer.job import Job
from trainer.stack_outputs import StackOutputs


def local_candles(outputs: StackOutputs, job: Job, root: Path | None = None) -> Path | None:
    """Return the folder of a job's data set; None where the job names its candles, and where there is no such folder.

    `root`: that folder, where it is not the user's own.
    """
    folder = (root or environment.local_folder()) / "candles" / job.data.set
    return folder if outputs.storage == "local" and not job.data.path and folder.is_dir() else None


def folder_of_run(outputs: StackOutputs, run_id: str) -> Path:
    """Return where the models of a run belong: in the local folder, or below the current one."""
    return environment.local_folder() / "models" / run_id if outputs.storage == "local" else Path(run_id)
