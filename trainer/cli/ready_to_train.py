"""A launch of a training after preflight: its candles, its record, and the commands printed below its
receipt.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from trainer.aws.access import Access
from trainer.cli.output import counted
from trainer.cli.ready import Ready
from trainer.cli.sources.bucket import is_in_bucket
from trainer.cli.sources.candles import CheckedCandles, upload_candles
from trainer.cli.terminal import Console
from trainer.launch.inputs import ChosenCandles
from trainer.launch.script_files import DataFile, upload_data
from trainer.launch.start import new_record, register
from trainer.launch.tasks import training_task
from trainer.runs.receipt import Receipt
from trainer.runs.record import RunRecord

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, kw_only=True)
class ReadyToTrain(Ready):
    """A launch of a training; its job has the symbols and the timeframe of the candles."""

    checked: CheckedCandles
    candles: ChosenCandles
    encoder: DataFile | None  # that the models start from, at the desk
    given_path: str  # of the candles, as the user named them; empty: those of the data set

    @property
    def data(self) -> dict[str, Any]:
        return self.candles.to_dict()

    def view(self) -> RenderableType:
        from trainer.cli.views.plan import plan_view  # late, as in `run`

        return plan_view(self.plan, self.job, self.candles)

    def record(self, *, preflight_at: datetime, now: datetime) -> RunRecord:
        return new_record(self.job, self.plan, self.bundle, self.outputs, preflight_at=preflight_at, now=now)

    def upload(self, access: Access, console: Console) -> ChosenCandles:
        files, bucket = self.checked.files, self.outputs.bucket
        if self.encoder:
            console.update(
                f"uploading the encoder, {self.encoder.bytes / 1e6:.1f} MB, unless it is in the bucket ..."
            )
            upload_data([self.encoder], access, bucket=bucket)
        if not files:
            return self.candles
        size = sum(file.bytes for file in files) / 1e6
        data_set = self.job.data.set
        console.update(
            f"uploading {counted(len(files), 'file')}, {size:.1f} MB, to s3://{bucket}/raw/{data_set}/ ..."
        )
        return upload_candles(self.candles, files, access, bucket=bucket, data_set=data_set)

    def register(self, record: RunRecord, uploaded: ChosenCandles, ssh_key: str) -> None:
        task = training_task(record, self.job, uploaded, self.objects, self.offers)
        register(record, task, self.bundle, self.objects, offers=self.offers, ssh_key=ssh_key)

    def looks(self, receipt: Receipt) -> list[str]:
        run_id, here = receipt["run_id"], self.checked.job.data.path
        looks = [
            f"logs {run_id}",
            *([f"logs {run_id} --metrics", f"pull {run_id}"] if receipt["models"] else []),
        ]
        if receipt["models"] and here and not is_in_bucket(self.given_path):
            looks.append(f"predict --run {run_id} --data {shlex.quote(here)} --last 5")
        return looks
