"""The vCPU quotas of a launch: allowed, in use and needed, queried before anything is launched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from trainer.aws.access import Access, error_code
from trainer.base.errors import QuotaError
from trainer.machines.cpu_types import cpu_types
from trainer.machines.instances import catalogue
from trainer.runs.attempts import Rung
from trainer.runs.launching import QUOTA_CONSOLE

COUNTED = ("pending", "running")  # states of instances that count against a quota


@dataclass(frozen=True, kw_only=True)
class Quota:
    """One vCPU quota of EC2's, and how much of it is in use."""

    code: str
    name: str
    value: float
    used: int

    def allows(self, rung: Rung, nodes: int) -> bool:
        """Return whether so many instances of a rung's type may be added."""
        return self.used + nodes * rung.vcpus <= self.value

    def refusal(self, rung: Rung, nodes: int = 1) -> str:
        """Return the numbers that show why a rung's type does not fit."""
        needed = f"{rung.instance_type} needs {rung.vcpus}"
        if nodes > 1:
            needed = f"{nodes} {rung.instance_type} need {nodes * rung.vcpus}"
        return f"{self.name} ({self.code}) is {self.value:g} vCPUs, {self.used} in use; {needed}"


def quota_note(access: Access, ladder: Sequence[Rung], *, seconds: float, nodes: int = 1) -> str:
    """Check the quotas of a ladder for so many instances. Returns a note if some types do not fit; raises
    QuotaError if none does.

    A quota that can't be read is only a note.
    """
    codes = sorted({rung.quota_code for rung in ladder if rung.quota_code})
    quotas, unread = read_quotas(access, codes, seconds=seconds)
    types = {(rung.instance_type, rung.market): rung for rung in ladder}.values()
    over = [
        rung
        for rung in types
        if rung.quota_code in quotas and not quotas[rung.quota_code].allows(rung, nodes)
    ]
    if len(over) == len(types):
        first = over[0]
        links = ", ".join(
            f"{QUOTA_CONSOLE}/{code}" for code in dict.fromkeys(rung.quota_code for rung in over)
        )
        raise QuotaError(
            f"the account's quota does not allow {first.instance_type} {first.market.replace('_', '-')}",
            why="; ".join(quotas[rung.quota_code].refusal(rung, nodes) for rung in over),
            do=f"Ask for more at {links}, end what uses it, or name a smaller --instance.",
        )
    notes = [f"will not fit: {quotas[rung.quota_code].refusal(rung, nodes)}" for rung in over]
    return "; ".join([*notes, *(f"quota {code} can't be read ({error})" for code, error in unread.items())])


def read_quotas(
    access: Access, codes: Sequence[str], *, seconds: float
) -> tuple[dict[str, Quota], dict[str, str]]:
    """Return the quotas with their use, by code, and for each that can't be read the code of the error."""
    with ThreadPoolExecutor(max_workers=len(codes) + 1) as pool:
        used = pool.submit(vcpus_in_use, access, seconds=seconds)
        asked = {code: pool.submit(_read, access, code, seconds=seconds) for code in codes}
    answers = {code: answer.result() for code, answer in asked.items()}
    quotas = {
        code: Quota(
            code=code, name=quota["QuotaName"], value=float(quota["Value"]), used=used.result().get(code, 0)
        )
        for code, quota in answers.items()
        if isinstance(quota, dict)
    }
    return quotas, {code: error for code, error in answers.items() if isinstance(error, str)}


def vcpus_in_use(access: Access, *, seconds: float) -> dict[str, int]:
    """Return quota code -> vCPUs of the account's instances in the region that count against it."""
    ec2 = access.client("ec2", total_max_attempts=2, timeout_seconds=seconds)
    filters = [{"Name": "instance-state-name", "Values": list(COUNTED)}]
    pages = ec2.get_paginator("describe_instances").paginate(Filters=filters)
    return counted(item for page in pages for group in page["Reservations"] for item in group["Instances"])


def counted(instances: Iterable[Any]) -> dict[str, int]:
    """Add up the vCPUs of described instances by quota; unknown types don't count."""
    used: dict[str, int] = {}
    for item in instances:
        if known := catalogue().get(item["InstanceType"]) or cpu_types().get(item["InstanceType"]):
            code = (
                known.spot_quota_code
                if item.get("InstanceLifecycle") == "spot"
                else known.on_demand_quota_code
            )
            used[code] = used.get(code, 0) + known.vcpus
    return used


def _read(access: Access, code: str, *, seconds: float) -> dict[str, Any] | str:
    """Return a quota from Service Quotas, or the code of the error."""
    client = access.client("service-quotas", total_max_attempts=2, timeout_seconds=seconds)
    try:
        quota: dict[str, Any] = client.get_service_quota(ServiceCode="ec2", QuotaCode=code)["Quota"]
    except (BotoCoreError, ClientError) as error:
        return error_code(error)
    return quota
