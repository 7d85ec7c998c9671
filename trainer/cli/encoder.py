"""The local file of a job's pretrained encoder, for upload by a launch or a publication."""

from __future__ import annotations

from pathlib import Path

from trainer.job import Job
from trainer.launch.script_files import DataFile
from trainer.pretrained import encoder_of


def encoder_file(job: Job) -> DataFile | None:
    """Return the file of a pinned job's encoder; None without one."""
    encoder = encoder_of(job.model)
    if encoder is None:
        return None
    place = Path(encoder.encoder)
    return DataFile(place=place, path=place.name, sha256=encoder.encoder_sha256, bytes=place.stat().st_size)
