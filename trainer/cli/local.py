"""The local folder of the storage mode `local`: candles/<set>/ and models/<run>/, on this machine. Other
modes have none.
"""

from __future__ import annotations

from pathlib import Path

from trainer import environment
from trainer.job import Job
from trainer.stack_outputs import StackOutputs


def local_candles(outputs: StackOutputs, job: Job, root: Path | None = None) -> Path | None:
    """Return the folder of a job's data set; None if the job names its candles or the folder does not exist.

    `root`: the local folder, if it is not the default one.
    """
    folder = (root or environment.local_folder()) / "candles" / job.data.set
    return folder if outputs.storage == "local" and not job.data.path and folder.is_dir() else None


def folder_of_run(outputs: StackOutputs, run_id: str) -> Path:
    """Return the folder for a run's models: in the local folder, else below the current one."""
    return environment.local_folder() / "models" / run_id if outputs.storage == "local" else Path(run_id)
