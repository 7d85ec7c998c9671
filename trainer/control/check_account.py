"""Check before a run is registered that the account accepts it: the safety net, quotas, and dry runs of the
request.

In a dry run AWS checks the request of each type, with its template, overrides and tags, and launches nothing.
An instant fleet launches under the caller's own rights, so RunInstances is tried as well as CreateFleet.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from botocore.exceptions import ClientError

from trainer.aws.access import Access, error_code, error_message, meaning_of
from trainer.aws.error_codes import meaning
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import ConnectionFailed, TrainerError
from trainer.control.fleet import create_fleet_request, own_profile
from trainer.launch.checks import account_checks, ask_all
from trainer.runs.attempts import Launch
from trainer.runs.launching import refusal
from trainer.runs.record import RunRecord

_ANOTHER_MAY = ("next_rung", "other_quota")  # steps after which other rungs of the ladder may still succeed
_PASSED = "DryRunOperation"
_PARALLEL = 8


def check_account(access: Access, outputs: StackOutputs, record: RunRecord, *, sweep: bool) -> list[str]:
    """Return notes on a run that is not stored yet. Raises a TrainerError if it would fail.

    `sweep`: invoke the sweeper, too, and require an answer.
    """
    seconds = access.place.answer_seconds
    nodes = record.num_nodes
    checks = account_checks(access, outputs, record.ladder, sweep=sweep, num_nodes=nodes)
    checks["the request"] = partial(dry_run_note, access, outputs, record, seconds=seconds)
    return ask_all(checks, access.place)


def dry_run_note(access: Access, outputs: StackOutputs, record: RunRecord, *, seconds: float) -> str:
    """Try every type and market of a record's ladder; return a note on those that AWS would refuse.

    The record is not stored yet. Raises a TrainerError if all are refused, or if one is refused for a reason
    that applies to all.
    """
    ec2 = access.client("ec2", total_max_attempts=2, timeout_seconds=seconds)
    rungs = {
        (rung.instance_type, rung.market): number for number, rung in reversed(list(enumerate(record.ladder)))
    }
    with ThreadPoolExecutor(max_workers=_PARALLEL) as pool:
        refusals = list(
            pool.map(lambda number: _refusal(ec2, outputs, record, number), sorted(rungs.values()))
        )
    refused = [one for one in refusals if one is not None]
    final = [error for error, another_may in refused if not another_may]
    if final or len(refused) == len(refusals):
        raise (final or [error for error, _ in refused])[0]
    return "; ".join(str(error) for error, _ in refused)


def requests_of(record: RunRecord, outputs: StackOutputs, number: int) -> dict[str, dict[str, Any]]:
    """Return operation -> arguments of the dry runs of one rung: the launch's own, without its token."""
    rung = record.ladder[number]
    launch = Launch(
        rung=number,
        token="dry-run",
        deadline=record.deadline,
        deadline_cause=record.deadline_cause,
        intended_at=record.created_at,
    )
    fleet = create_fleet_request(record.with_new_launch(launch), rung, launch)
    del fleet["ClientToken"]
    (config,) = fleet["LaunchTemplateConfigs"]
    config["Overrides"][0].pop("Placement", None)  # the group does not exist before the run
    run: dict[str, Any] = {
        "LaunchTemplate": config["LaunchTemplateSpecification"],
        "InstanceType": rung.instance_type,
        "ImageId": rung.image_id,
        **own_profile(record),
        "MinCount": record.num_nodes,
        "MaxCount": record.num_nodes,
        # RunInstances takes no subnet beside a template's interface, so the interface is given again.
        "NetworkInterfaces": [
            {
                "DeviceIndex": 0,
                "SubnetId": rung.subnet_id,
                "Groups": outputs.groups_for(num_nodes=record.num_nodes, one_model=record.one_model),
                "AssociatePublicIpAddress": outputs.public_address,
                "DeleteOnTermination": True,
            }
        ],
        "TagSpecifications": [one for one in fleet["TagSpecifications"] if one["ResourceType"] != "fleet"],
    }
    if rung.market == "spot":
        run["InstanceMarketOptions"] = {"MarketType": "spot"}
    return {"create_fleet": {**fleet, "DryRun": True}, "run_instances": {**run, "DryRun": True}}


def _refusal(
    ec2: Any, outputs: StackOutputs, record: RunRecord, number: int
) -> tuple[TrainerError, bool] | None:
    """Return the error of one rung, and whether another rung may succeed; None if AWS would launch it."""
    rung = record.ladder[number]
    for operation, arguments in requests_of(record, outputs, number).items():
        error = _failure(ec2, operation, arguments)
        if error is not None:
            refused = refusal(rung, *error, num_nodes=record.num_nodes)
            return refused, meaning(*error).step(exception=True) in _ANOTHER_MAY
    return None


def _failure(ec2: Any, operation: str, arguments: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return code and message of AWS's refusal; None without one. Raises ClientError while AWS is busy."""
    try:
        getattr(ec2, operation)(**arguments)
    except ClientError as error:
        code = error_code(error)
        if issubclass(meaning_of(error).error, ConnectionFailed):
            raise
        return None if code == _PASSED else (code, error_message(error))
    return None
