"""The sources of a scheduled run: its publication, and its data set as it is now."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.aws.objects import Objects
from trainer.job.job import Job
from trainer.launch.bundle import BundleName
from trainer.launch.inputs import data_now
from trainer.launch.planning import FoundCandles, FoundScript, choose_from_set, listed_inputs
from trainer.launch.uploads import DeskFile
from trainer.launch.work import Account
from trainer.retrains.published import PublishedRetrain, PublishedScript, verified_script


@dataclass(frozen=True, kw_only=True)
class Publication:
    """A retrain as it was published: its name, code and, for a script, its files."""

    name: str
    bundle: BundleName
    published: PublishedScript | None = None

    def find(self, job: Job, account: Account) -> FoundCandles | FoundScript:
        """Return the job's inputs as they are now. Raises a TrainerError for whatever they lack."""
        if self.published is None:
            return self.candles(job, account)
        bucket, pinned = account.outputs.bucket, self.published
        return FoundScript(
            job=job,
            files=pinned.files,
            sha256=pinned.sha256,
            inputs=data_now(job.data.folder, pinned.inputs, account.objects, bucket=bucket),
            names=(job.name, self.name),
        )

    def candles(self, job: Job, account: Account) -> FoundCandles:
        """Choose the set's current files. Raises DataError if none is left."""
        return FoundCandles(job=job, candles=choose_from_set(job, listed_inputs(job, account.objects)))

    def code(self, job: Job) -> BundleName:
        """Return the package that was published."""
        return self.bundle

    def sent(self, job: Job) -> tuple[Job, DeskFile | None]:
        """Return the job, which has no path of a desk, and no file to upload."""
        return job, None


def publication(published: PublishedRetrain, objects: Objects) -> Publication:
    """Return a published retrain; a script's files are read and verified."""
    return Publication(
        name=published.name,
        bundle=BundleName(sha256=published.code_sha256, lock_sha256=published.lock_sha256),
        published=verified_script(objects, published) if published.script_key else None,
    )
