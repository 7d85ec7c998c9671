"""The encoder of a job: its file at the desk, and its object in the bucket, raw/.files/<sha256>, pinned by
version.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainer.base.errors import DataError
from trainer.job.job import Job
from trainer.launch.script_files import DATA_PREFIX, DataFile
from trainer.models.pretrained import encoder_of
from trainer.runs.store import Objects


def encoder_file(job: Job) -> DataFile | None:
    """Return the file of a pinned job's encoder; None without one."""
    encoder = encoder_of(job.model)
    if encoder is None:
        return None
    place = Path(encoder.encoder)
    return DataFile(place=place, path=place.name, sha256=encoder.encoder_sha256, bytes=place.stat().st_size)


def pinned_encoder(job: Job, objects: Objects) -> dict[str, Any] | None:
    """Return the manifest's entry of the job's encoder; None without one. Raises DataError if the bucket
    lacks it.
    """
    encoder = encoder_of(job.model)
    if encoder is None:
        return None
    key = f"{DATA_PREFIX}{encoder.encoder_sha256}"
    stored = objects.head(key=key) if encoder.encoder_sha256 else None
    if stored is None:
        why = f"there is no {key}" if encoder.encoder_sha256 else "the job does not pin it"
        do = "Launch, or publish, from a desk that has it."
        raise DataError(f"the encoder {encoder.encoder} is not in the bucket", why=why, do=do)
    return {
        "key": key,
        "version_id": stored.version_id,
        "sha256": encoder.encoder_sha256,
        "bytes": stored.size,
    }
