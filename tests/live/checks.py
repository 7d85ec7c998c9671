"""The checks of a first day on an account, in the order of the day. Each says what it saw; the first that
fails ends it.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, replace
from datetime import timedelta
from typing import Any

from tests.live.context import HUNG, Live, require
from trainer.attach.ssm import check_tools
from trainer.control.observe import boot_log
from trainer.runs.actions import kill_schedule, sweep_schedule
from trainer.runs.keys import NodeKeys
from trainer.runs.outcome import EXIT_CODES
from trainer.runs.record import utc_now

G_ON_DEMAND, G_SPOT = "L-DB2E81BA", "L-3819A6DF"
NO_PULUMI = "needs the Pulumi CLI and a state of its own; a rehearsal applies the program without either"


@dataclass(frozen=True)
class Check:
    """One check. `dollars` is the most that it can cost: its machines have a budget or a deadline that sees
    to it.
    """

    name: str
    what: str
    run: Callable[[Live], None]
    _: KW_ONLY
    minutes: float
    dollars: float = 0
    not_embedded: str = ""  # why the embedded AWS can't show it


def identity(live: Live) -> None:
    found = live.client("sts").get_caller_identity()
    live.say(f"account {found['Account']} as {found['Arn']}, region {live.client('ec2').meta.region_name}")


def quotas(live: Live) -> None:
    client, missing = live.client("service-quotas"), []
    for code in (G_ON_DEMAND, G_SPOT):
        quota = client.get_service_quota(ServiceCode="ec2", QuotaCode=code)["Quota"]
        live.say(f"{code} {quota['QuotaName']}: {quota['Value']:.0f} vCPU")
        missing += [code] if quota["Value"] < 48 else []
    require(
        not missing,
        f"too small for g6.12xlarge (48 vCPU): {', '.join(missing)}. Ask for more in Service Quotas.",
    )


def up(live: Live) -> None:
    _apply(live)
    said = live.run("pulumi", "preview", "--expect-no-changes", "--stack", live.stack)
    live.say(said.strip().splitlines()[-1])


def bucket(live: Live) -> None:
    s3, name, key = live.client("s3"), live.outputs.bucket, "raw-index/live-check.json"
    require(s3.get_bucket_versioning(Bucket=name).get("Status") == "Enabled", f"{name} is not versioned")
    block = s3.get_public_access_block(Bucket=name)["PublicAccessBlockConfiguration"]
    require(all(block.values()), f"{name} is not closed: {block}")
    version = s3.put_object(Bucket=name, Key=key, Body=b"{}").get("VersionId")
    require(
        version,
        f"{name} gave no version: versioning was enabled less than a quarter of an hour ago. Try again then",
    )
    s3.delete_object(Bucket=name, Key=key, VersionId=version)
    live.say(f"{name}: versioned ({version}), closed in four ways")


def sweeper(live: Live) -> None:
    answer = live.client("lambda").invoke(FunctionName=live.outputs.sweeper_arn, Payload=b"{}")
    said = answer["Payload"].read().decode()
    require("FunctionError" not in answer, f"the sweeper failed: {said}")
    live.say(f"the sweeper says {said}")


def policies(live: Live) -> None:
    """Ask AWS itself what the roles of the stack may do, and what not."""
    outputs, iam = live.outputs, live.client("iam")
    own = {"aws:ResourceTag/project": outputs.project, "aws:ResourceTag/stack": outputs.stack}
    others = {**own, "aws:ResourceTag/project": "somebody-elses"}
    account = live.client("sts").get_caller_identity()["Account"]
    machine = f"arn:aws:ec2:{outputs.region}:{account}:instance/i-0123456789abcdef0"
    bucket_arn = f"arn:aws:s3:::{outputs.bucket}"
    for role, action, resource, tags, allowed in (
        ("instance", "s3:GetObject", f"{bucket_arn}/raw/x", {}, True),
        ("instance", "s3:PutObject", f"{bucket_arn}/runs/x/run.json", {}, False),
        ("instance", "s3:DeleteObject", f"{bucket_arn}/models/experiments/x", {}, False),
        ("instance", "ec2:TerminateInstances", machine, own, False),
        ("sweeper", "ec2:TerminateInstances", machine, own, True),
        ("sweeper", "ec2:TerminateInstances", machine, others, False),
        ("sweeper", "s3:GetObject", f"{bucket_arn}/live/x", {}, True),
        ("sweeper", "s3:GetObject", f"{bucket_arn}/models/x", {}, False),
        ("scheduler", "lambda:InvokeFunction", outputs.sweeper_arn, {}, True),
        ("scheduler", "ec2:TerminateInstances", machine, others, False),
        ("scheduler", "iam:PassRole", outputs.scheduler_role_arn, {}, False),
    ):
        name = f"{outputs.project}-{outputs.stack}-{outputs.region}-{role}"
        given = {"ContextKeyType": "string"}
        answer = iam.simulate_principal_policy(
            PolicySourceArn=iam.get_role(RoleName=name)["Role"]["Arn"],
            ActionNames=[action],
            ResourceArns=[resource],
            ContextEntries=[
                {"ContextKeyName": key, "ContextKeyValues": [tags[key]], **given} for key in tags
            ],
        )
        decided = answer["EvaluationResults"][0]["EvalDecision"]
        live.say(f"{role}: {action} on {resource} {tags or ''}: {decided}")
        require((decided == "allowed") == allowed, f"{role}: {action} on {resource} is {decided}")


def doctor(live: Live) -> None:
    found = live.mayfly("doctor", codes=(0, *range(100, 111)))["checks"]
    for one in found:
        live.say(f"{one['check']}: {one['state']} {one['what']}")
    wrong = {one["check"] for one in found if one["state"] in ("failed", "unknown")} - {"quotas"}
    require(not wrong, f"not well, or not to be looked at: {', '.join(wrong)}")


def dry_run(live: Live) -> None:
    words = ("--data", str(live.candles()), "--instance", "g6.xlarge", "--epochs", "1")
    plan = live.mayfly("launch", *words, "--dry-run")
    first = plan["candidates"][0]
    live.say(f"{first['instance_type']} at {first['price_usd_per_hour']} $/h, hard stop {plan['hard_stop']}")


def layers(live: Live) -> None:
    """End three machines in three ways: their own refusal of code with another hash, the kill schedule, the
    sweep schedule.
    """
    wait, most = timedelta(seconds=5 if live.embedded else 120), timedelta(minutes=15)
    deadline, later = utc_now() + wait + timedelta(seconds=10), utc_now() + timedelta(minutes=30)
    live.cloud.objects.put(key="code/live-check.whl", body=b"other code than the tag says")
    with ExitStack() as ended:
        refused = ended.enter_context(live.machine("hash", deadline=later))
        killed = ended.enter_context(live.machine("kill", deadline=later, user_data=HUNG))
        swept = ended.enter_context(live.machine("sweep", deadline=deadline, user_data=HUNG))
        runs = {one: _tags(live, one)["run_id"] for one in (refused, killed, swept)}
        live.cloud.arm_kill(name=kill_schedule(runs[killed], 1), instance_ids=(killed,), at=utc_now() + wait)
        live.cloud.arm_sweep(name=sweep_schedule(runs[swept]), run_id=runs[swept], at=deadline)
        ends = {refused: "its own refusal", killed: "the kill schedule", swept: "the sweep schedule"}
        for one, how in ends.items():
            seconds, reason = live.wait_for_end(one, within=most)
            live.say(f"{one} ended by {how} after {seconds:.0f} s: {reason}")
        role_id = live.outputs.instance_role_id
        keys = NodeKeys(role_id=role_id, instance_id=refused, run_id=runs[refused], attempt=1)
        said = boot_log(live.cloud, keys)
        live.say(said.strip().splitlines()[-1] if said else "no log")
        require("the tag says 0000" in said, "the log of the machine that refused does not say why")


def hung_boot(live: Live) -> None:
    """Leave a machine that never speaks to the standing sweep, with a boot allowance of its own."""
    hour = utc_now() + timedelta(hours=1)
    with live.machine("hung", deadline=hour, user_data=HUNG, boot_seconds="60") as hung:
        seconds, reason = live.wait_for_end(hung, within=timedelta(minutes=12))
        live.say(f"{hung} was ended after {seconds:.0f} s without a word: {reason}")


def launch(instance: str, budget: str, *words: str) -> Callable[[Live], Any]:
    """Return a check that runs a launch to its receipt."""

    def run(live: Live) -> Any:
        options = ("--data", str(live.candles()), "--epochs", "1", "--budget", budget, "-y")
        receipt = live.mayfly("launch", *options, "--instance", instance, *words)
        _show(live, receipt, state="done")
        return receipt

    return run


def stop(live: Live) -> None:
    run_id = _detached(live)
    receipt = live.mayfly("stop", run_id)
    _show(live, receipt, state="stopped")


def detach(live: Live) -> None:
    run_id = _detached(live)
    ends = time.monotonic() + timedelta(minutes=30).total_seconds()
    while (state := live.mayfly("status", run_id)["runs"][0]["state"]) not in EXIT_CODES:
        require(time.monotonic() < ends, f"{run_id} is {state} after 30 minutes")
        time.sleep(1 if live.embedded else 20)
    _show(live, live.mayfly("receipts", run_id), state="done")


def attach(live: Live) -> None:
    """Open the stack for Session Manager, look at a machine's GPU without it and by it, and close the stack
    again.
    """
    check_tools()
    _set(live, "attach", "ssm")
    try:
        _apply(live)
        run_id = _detached(live, "--epochs", "5000", "--set", "train.patience=5000")
        ends = time.monotonic() + timedelta(minutes=15).total_seconds()
        while not (seen := live.mayfly("status", run_id)["runs"][0]["sample"] or {}).get("gpus"):
            require(time.monotonic() < ends, f"no figures of {run_id} after 15 minutes: {seen}")
            time.sleep(20)
        live.say(json.dumps(seen))
        words = ("attach", run_id, "--stack", live.stack, "--", "nvidia-smi -L")
        said = live.run(sys.executable, "-m", "trainer.cli.main", *words)
        require("GPU 0" in said, f"Session Manager gave no list of GPUs: {said}")
        _show(live, live.mayfly("stop", run_id), state="stopped")
    finally:
        _set(live, "attach", "off")
        _apply(live)


def storage(live: Live) -> None:
    """Add the cache and a key to the stack, run twice, and take the cache back. The image may lack
    mount.efs.
    """
    key = live.client("kms").create_key(Description=f"A check of {live.stack}")["KeyMetadata"]["Arn"]
    for name, value in (("storage", "efs-cache"), ("kms_key", key)):
        _set(live, name, value)
    try:
        up(live)
        for number in (1, 2):
            inputs = launch("g6.xlarge", "0.41")(live)["inputs"]
            live.say(f"run {number}: {json.dumps(inputs)}")
        cached = inputs["cache_files"] or inputs["cache_failed"]
        require(cached, f"the cache gave nothing and nothing says why: {inputs}")
    finally:
        _set(live, "storage", "s3")
        _apply(live)
    live.say(f"{key} stays; it costs $1 a month until it is deleted, with all that it encrypted")


def bill(live: Live) -> None:
    """Compare what the receipts say with what AWS bills; on the day after, since its data lags."""
    receipts = live.mayfly("receipts")["receipts"]
    today = utc_now().date()
    day = {"Start": str(today - timedelta(days=2)), "End": str(today + timedelta(days=1))}
    service = {"Dimensions": {"Key": "SERVICE", "Values": ["Amazon Elastic Compute Cloud - Compute"]}}
    found = live.client("ce").get_cost_and_usage(
        TimePeriod=day, Granularity="DAILY", Metrics=["UnblendedCost"], Filter=service
    )["ResultsByTime"]
    billed = sum(float(item["Total"]["UnblendedCost"]["Amount"]) for item in found)
    bounds = [sum(item["dollars"][name] for item in receipts) for name in ("spent_low", "spent_high")]
    live.say(f"EC2 billed {billed:.2f} $ in three days; receipts say {bounds[0]:.2f} to {bounds[1]:.2f} $")


def existing_vpc(live: Live) -> None:
    """Make a stack in the account's default VPC, ask AWS for a launch there, and take it down again."""
    ec2 = live.client("ec2")
    vpcs = ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
    require(vpcs, "the account has no default VPC: aws ec2 create-default-vpc, or skip this check by --only")
    rules = [{"Name": "vpc-id", "Values": [vpcs[0]["VpcId"]]}, {"Name": "default-for-az", "Values": ["true"]}]
    subnets = [one["SubnetId"] for one in ec2.describe_subnets(Filters=rules)["Subnets"]]
    config = {f"subnets[{number}]": subnet for number, subnet in enumerate(subnets)}
    own = _own_stack(live, f"{live.stack[:10]}-vpc", config)
    try:
        require(set(own.outputs.subnets.values()) == set(subnets), f"it launches in {own.outputs.subnets}")
        dry_run(own)
        doctor(own)
    finally:
        own.mayfly("down", "-y")


def _own_stack(live: Live, stack: str, config: Mapping[str, str]) -> Live:
    """Make a stack with settings of its own."""
    live.run("pulumi", "stack", "init", stack, codes=(0, 255))
    settings = [word for key, value in config.items() for word in ("--config", f"{key}={value}")]
    live.run("pulumi", "up", "--yes", "--skip-preview", "--stack", stack, "--config-path", *settings)
    return replace(live, stack=stack)


def destroy(live: Live) -> None:
    """Make a stack of its own, take it down, and look at the bucket that stays."""
    stack = f"{live.stack[:10]}-tmp"
    own = _own_stack(live, stack, {})
    name = own.outputs.bucket
    own.mayfly("down", "-y")
    versioning = live.client("s3").get_bucket_versioning(Bucket=name).get("Status")
    block = live.client("s3").get_public_access_block(Bucket=name)["PublicAccessBlockConfiguration"]
    live.say(f"{name} is left: versioning {versioning}, access block {block}")
    require(versioning == "Enabled" and all(block.values()), f"{name} did not stay as it was")
    live.say(f"empty and delete it by hand: aws s3 rb s3://{name} --force; pulumi stack rm --force {stack}")


NO_SIMULATION, NO_BILL = "moto does not simulate policies", "nobody sends a bill for it"
NO_MACHINES = "its machines are processes of the desk"
CHECKS = (
    Check("identity", "who and where", identity, minutes=0.1),
    Check("quotas", "G quotas for 48 vCPU", quotas, minutes=0.1, not_embedded="it keeps no quotas"),
    Check("up", "pulumi up twice, the second without a diff", up, minutes=8, not_embedded=NO_PULUMI),
    Check("bucket", "versioned, closed, gives versions", bucket, minutes=0.1),
    Check("sweeper", "answers a synchronous call without an error", sweeper, minutes=0.2),
    Check("policies", "AWS's simulation of the roles", policies, minutes=0.2, not_embedded=NO_SIMULATION),
    Check("dry-run", "a plan without a write", dry_run, minutes=0.5),
    Check("doctor", "each check of the account says ok, or what to do", doctor, minutes=0.3),
    Check("layers", "a wrong hash and two schedules end three t3.large", layers, dollars=0.15, minutes=10),
    Check("hung-boot", "a t3.large that never speaks is swept", hung_boot, dollars=0.05, minutes=8),
    Check("on-demand", "a run on g6.xlarge", launch("g6.xlarge", "0.41"), dollars=0.41, minutes=15),
    Check(
        "spot", "a run on g6.xlarge, spot", launch("g6.xlarge", "0.41", "--spot"), dollars=0.41, minutes=15
    ),
    Check("stop", "a detached run is stopped", stop, dollars=0.41, minutes=12),
    Check("detach", "a detached run ends by itself", detach, dollars=0.41, minutes=15),
    Check("four-gpus", "a run on g6.12xlarge", launch("g6.12xlarge", "2.70"), dollars=2.70, minutes=20),
    Check(
        "attach", "a GPU by status and by attach", attach, dollars=0.41, minutes=25, not_embedded=NO_MACHINES
    ),
    Check(
        "storage", "two runs with cache and key", storage, dollars=0.90, minutes=45, not_embedded=NO_PULUMI
    ),
    Check("bill", "the next day: receipts and bill", bill, dollars=0.01, minutes=0.2, not_embedded=NO_BILL),
    Check("existing-vpc", "a stack in the default VPC", existing_vpc, minutes=15, not_embedded=NO_PULUMI),
    Check("destroy", "mayfly down; its bucket stays closed", destroy, minutes=15, not_embedded=NO_PULUMI),
)


def _set(live: Live, setting: str, value: str) -> None:
    live.run("pulumi", "config", "set", setting, value, "--stack", live.stack)


def _apply(live: Live) -> None:
    live.run("pulumi", "up", "--yes", "--skip-preview", "--stack", live.stack)


def _tags(live: Live, instance_id: str) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in live.described(instance_id)["Tags"]}


def _detached(live: Live, *words: str) -> str:
    options = ("--data", str(live.candles()), "--budget", "0.41", "--instance", "g6.xlarge", "-y", "--detach")
    return str(live.mayfly("launch", *options, *(words or ("--epochs", "1")))["run_id"])


def _show(live: Live, receipt: dict[str, Any], *, state: str) -> None:
    """Say what a receipt proves, and require its state and the end of every machine."""
    live.say(f"{receipt['run_id']}: {receipt['state']}, {len(receipt['models'])} models")
    live.say(f"seconds {json.dumps(receipt['seconds'])}, dollars {json.dumps(receipt['dollars'])}")
    for one in receipt["instances"]:
        name = f"{one['instance_id']} {one['instance_type']} {one['market']}"
        live.say(f"{name}: {one['state']} ({one['proof']})")
        require(one["proof"], f"{name} was not seen to end")
    require(receipt["state"] == state, f"{receipt['run_id']} ended {receipt['state']}: {receipt['error']}")
    seen = live.cloud.instances(run_id=receipt["run_id"])
    alive = [one.instance_id for one in seen if one.state in ("pending", "running")]
    require(not alive, f"still there: {', '.join(alive)}")


def missing_tools() -> str:
    """Return what an account's checks need and this machine lacks, as text; '' where nothing is missing."""
    missing = f"pulumi is not on PATH ({sys.platform}): https://www.pulumi.com/docs/install/"
    return "" if shutil.which("pulumi") else missing
