"""Service Quotas of the embedded AWS: vCPUs of instances that an account may run at once, described and
enforced; and Lambda's, of which a new account may reserve nothing.

Codes and families: EC2 user guide, "On-Demand Instance quotas" and "Spot Instance quotas" (looked up
2026-11-22).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainer.rehearsal.account import EXECUTIONS, Rules
from trainer.rehearsal.catalogue import types
from trainer.rehearsal.compute import QUOTA_VCPUS
from trainer.rehearsal.wire import Call
from trainer.rehearsal.world import AwsError, Pool

if TYPE_CHECKING:
    from tests.aws.account import CheckedAccount

STANDARD = "L-1216C47A"
NAMES = {
    STANDARD: "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
    "L-DB2E81BA": "Running On-Demand G and VT instances",
    "L-3819A6DF": "All G and VT Spot Instance Requests",
    "L-417A185B": "Running On-Demand P instances",
    "L-7212CCBC": "All P4, P3 and P2 Spot Instance Requests",
    "L-C4BD4855": "All P5 Spot Instance Requests",
}


def code_of(pool: Pool) -> str:
    """Return the code of a pool's quota, '' if it has none here."""
    family, spot = pool.instance_type.split(".")[0], pool.market == "spot"
    if family.startswith(("g", "vt")):
        return "L-3819A6DF" if spot else "L-DB2E81BA"
    if not family.startswith("p"):
        return STANDARD if not spot and family[0] in "acdhimrtz" else ""
    if not spot:
        return "L-417A185B"
    if family.startswith("p5"):
        return "L-C4BD4855"
    return "L-7212CCBC" if family[:2] in ("p2", "p3", "p4") else ""


def check_quota(cloud: CheckedAccount, pool: Pool, count: int) -> None:
    """Raise AwsError if `count` more instances of a pool would exceed their quota. The caller holds the
    account's lock.
    """
    code = code_of(pool)
    if not code:
        return
    alive = [one.pool for one in cloud.world.alive(cloud.clock.now())]
    used = sum(_vcpus(one.instance_type) for one in alive if code_of(one) == code)
    limit = cloud.quotas.get(code, QUOTA_VCPUS)
    if used + count * _vcpus(pool.instance_type) <= limit:
        return
    if pool.market == "spot":
        raise AwsError("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
    raise AwsError(
        "VcpuLimitExceeded",
        f"You have requested more vCPU capacity than your current vCPU limit of {limit:.0f} allows for the"
        " instance bucket that the specified instance type belongs to.",
    )


def _vcpus(instance_type: str) -> int:
    """Return the number of vCPUs of a type."""
    return int(types()[instance_type]["VCpuInfo"]["DefaultVCpus"])


def get_service_quota(cloud: CheckedAccount, call: Call) -> dict[str, Any]:
    """Describe a quota of EC2."""
    code = call.params["QuotaCode"]
    if call.params["ServiceCode"] != "ec2" or code not in NAMES:
        what = "The request failed because the specified service quota does not exist."
        raise AwsError("NoSuchResourceException", what)
    known = {"ServiceCode": "ec2", "QuotaCode": code, "QuotaName": NAMES[code], "Adjustable": True}
    return {"Quota": {**known, "Value": cloud.quotas.get(code, QUOTA_VCPUS)}}


def put_function_concurrency(cloud: CheckedAccount, call: Call) -> dict[str, Any]:
    """Refuse reserved concurrency: a new account has no more executions than must stay unreserved."""
    raise AwsError(
        "InvalidParameterValueException",
        "Specified ReservedConcurrentExecutions for function decreases account's"
        f" UnreservedConcurrentExecution below its minimum value of [{EXECUTIONS}].",
    )


RULES: Rules = {
    ("service-quotas", "GetServiceQuota"): get_service_quota,
    ("lambda", "PutFunctionConcurrency"): put_function_concurrency,
}
