"""The work of a scheduled run: its publication, and its data set as it is now."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.job.job import Job
from trainer.launch.bundle import BundleName
from trainer.launch.inputs import ChosenCandles, data_now
from trainer.launch.planning import choose_from_set, listed_inputs, with_candles
from trainer.launch.work import Account, ScriptWork, TrainingWork
from trainer.retrains.published import PublishedRetrain, PublishedScript, verified_script


@dataclass(frozen=True, kw_only=True)
class Publication:
    """A retrain as it was published: its name, code and, for a script, its files."""

    name: str
    code: BundleName
    account: Account
    published: PublishedScript | None = None

    def resolve(self, job: Job) -> TrainingWork | ScriptWork:
        """Return the work of its job. Raises a TrainerError for whatever its data lacks."""
        if self.published is None:
            candles = self.candles(job)
            return TrainingWork(job=with_candles(job, candles), code=self.code, candles=candles)
        bucket, objects = self.account.outputs.bucket, self.account.objects
        return ScriptWork(
            job=job,
            code=self.code,
            files=self.published.files,
            sha256=self.published.sha256,
            inputs=data_now(job.data.folder, self.published.inputs, objects, bucket=bucket),
            names=(job.name, self.name),
        )

    def candles(self, job: Job) -> ChosenCandles:
        """Choose the set's current files. Raises DataError if none is left."""
        return choose_from_set(job, listed_inputs(job, self.account.objects))


def publication(published: PublishedRetrain, account: Account) -> Publication:
    """Return a published retrain; a script's files are read and verified."""
    return Publication(
        name=published.name,
        code=BundleName(sha256=published.code_sha256, lock_sha256=published.lock_sha256),
        account=account,
        published=verified_script(account.objects, published) if published.script_key else None,
    )
