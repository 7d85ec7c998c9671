"""The desk's local folder, which MAYFLY_LOCAL names: candles/<set>/ and models/<run>/. It works with any
stack.
"""

from __future__ import annotations

from pathlib import Path

from trainer.base import environment
from trainer.job.job import Job


def local_candles(job: Job, root: Path | None = None) -> Path | None:
    """Return the folder of a job's data set; None if the job names its candles or there is no such folder.

    `root` is used instead of the local folder.
    """
    root = root or environment.local_folder()
    if root is None or job.data.path:
        return None
    folder = root / "candles" / job.data.set
    return folder if folder.is_dir() else None


def folder_of_run(run_id: str) -> Path:
    """Return the folder for a run's models: in the local folder, or below the current one without it."""
    root = environment.local_folder()
    return root / "models" / run_id if root else Path(run_id)
