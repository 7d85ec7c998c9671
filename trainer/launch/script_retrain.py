"""Plan a script's retrain: from its published files, and from published data or what its data set has at that
time.

A folder's data is pinned when it is published. `data.folder = "s3://BUCKET/raw/SET"`, of the stack's own
bucket, is listed at each scheduled time, so that new files reach the script. Desk and control share this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.aws.access import Access
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import DataError
from trainer.job.job import Job
from trainer.job.script import MOST_DATA_FILES
from trainer.launch.images import refuse_unfit
from trainer.launch.inputs import RAW, list_inputs
from trainer.launch.knowledge import known_boots
from trainer.launch.machines import machines_of, refuse_retired
from trainer.launch.plan import LaunchPlan
from trainer.launch.preflight import Offers, look
from trainer.launch.script import known_times, plan_script
from trainer.runs.store import Objects


@dataclass(frozen=True, kw_only=True)
class PlannedScript:
    """A retrain's script with its current data, the account's offers, and its plan."""

    job: Job
    files: Mapping[str, str]  # of the script, by path: sha256
    inputs: tuple[Mapping[str, Any], ...]  # entries of the manifest, with their paths
    offers: Offers
    plan: LaunchPlan

    @property
    def data(self) -> dict[str, Any]:
        """Return the data section of a plan."""
        size = sum(int(entry["bytes"]) for entry in self.inputs)
        return {"files": len(self.inputs), "bytes": size, "script_files": dict(self.files)}


def data_set_of(folder: str, bucket: str) -> str:
    """Return the data set of this bucket that a job's `data.folder` names; '' for any other folder."""
    prefix = f"s3://{bucket}/{RAW}"
    data_set = folder.removeprefix(prefix).strip("/") if folder.startswith(prefix) else ""
    return data_set if "/" not in data_set and not data_set.startswith(".") else ""


def data_now(
    folder: str, pinned: Iterable[Mapping[str, Any]], objects: Objects, *, bucket: str
) -> tuple[Mapping[str, Any], ...]:
    """Return the inputs that a script's run reads: the pinned ones, or what its data set holds now. Raises
    DataError.
    """
    if not (data_set := data_set_of(folder, bucket)):
        return tuple(pinned)
    listed, prefix = list_inputs(objects, data_set), f"{RAW}{data_set}/"
    if not listed or len(listed) > MOST_DATA_FILES:
        why = (
            f"there is nothing in {prefix}"
            if not listed
            else f"{len(listed):,} files, a run takes {MOST_DATA_FILES:,}"
        )
        raise DataError(
            f"the data set '{data_set}' can't be read by a script", why=why, do="Correct it, or name another."
        )
    if unknown := [item.key for item in listed if not item.sha256]:
        do = f"Copy it with a hash: aws s3 cp --checksum-algorithm SHA256 FILE s3://{bucket}/{prefix}"
        raise DataError(
            f"{len(unknown)} files of {prefix} have no sha256", why=f"such as {unknown[0]}", do=do
        )
    return tuple({"path": item.key.removeprefix(prefix), **item.pinned()} for item in listed)


def plan_script_retrain(
    job: Job,
    access: Access,
    outputs: StackOutputs,
    objects: Objects,
    *,
    files: Mapping[str, str],
    inputs: Sequence[Mapping[str, Any]],
    sha256: str,
    retrain: str,
    pinned_image: str = "",
) -> PlannedScript:
    """Query the account and earlier runs, and plan a script that is, or will be, published. Raises a
    TrainerError.
    """
    machines = machines_of(job)
    if access.place.binding:
        if job.machine.instance:
            refuse_retired(machines, None)
        refuse_unfit(machines, outputs.image_line, named=bool(job.machine.instance))
    spot = job.machine.market == "spot"
    offers = look(access, outputs=outputs, machines=machines, spot=spot, pinned_image=pinned_image)
    now = data_now(job.data.folder, inputs, objects, bucket=outputs.bucket)
    plan = plan_script(
        job,
        offers,
        outputs,
        known=known_times(objects, (job.name, retrain), sha256, access.place),
        place=access.place,
        input_bytes=sum(int(entry["bytes"]) for entry in now),
        boots=known_boots(objects),
    )
    return PlannedScript(job=job, files=files, inputs=now, offers=offers, plan=plan)
