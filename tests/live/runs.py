"""Checks that start runs, each by the product's own commands: at the desk, by control, by another person."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from tests.live.context import ROOT, Live, require
from trainer.aws.access import aws_errors
from trainer.aws.stack_outputs import secrets_path
from trainer.base.instants import from_iso
from trainer.control.observe import reports
from trainer.retrains.entries import ScheduledRun, entry_key, read_entry
from trainer.runs.outcome import EXIT_CODES
from trainer.runs.reports import Heartbeat
from trainer.runs.store import read_record
from trainer.runs.stored_receipt import read_receipt

SMALL = (
    "--symbols",
    "BTC-USD",
    "--set",
    "model.hidden=8",
    "--set",
    "model.lookback=20",
    "--set",
    "train.batch=128",
)
STOPPED = (0, 130)  # exit codes of `stop`, which has the run's
HALF_HOUR = "0.41"  # dollars, of a g6.xlarge: the deadline of its runs
# Small models, which would train for long: by the plan within the half hour.
ENDLESS = ("--epochs", "40000", "--set", "train.patience=40000", "--set", "expert.tune=never", *SMALL)
RETRAIN = "sunday"  # of the throwaway stack
SET = "live"  # its data set
EXAMPLE = ROOT / "examples" / "scripts" / "plain-torch"
JOB = """name = "live-retrain"
[data]
set = "live"
{refresh}
[model]
hidden = 8
lookback = 20
[train]
epochs = 1
batch = 128
[machine]
instance = ["g6.xlarge"]
max_duration = "30m"
"""


def launch(instance: str, budget: str, *words: str) -> Callable[[Live], Any]:
    """Return a check that runs a launch to its receipt."""

    def run(live: Live) -> Any:
        options = ("--data", str(live.candles()), "--epochs", "1", "--budget", budget, "-y", *live.small)
        receipt = live.mayfly("launch", *options, "--instance", instance, *words)
        show(live, receipt, state="done")
        return receipt

    return run


def dry_run(live: Live) -> None:
    words = ("--data", str(live.candles()), "--instance", "g6.xlarge", "--epochs", "1")
    plan = live.mayfly("launch", *words, "--dry-run")
    first = plan["candidates"][0]
    live.say(f"{first['instance_type']} at {first['price_usd_per_hour']} $/h, hard stop {plan['hard_stop']}")


def script(live: Live) -> None:
    """Run the example script of the docs on a GPU, and look for its files."""
    words = ("--script", str(EXAMPLE / "train.py"), "--data", str(EXAMPLE / "points"))
    limits = ("--instance", "g6.xlarge", "--max-duration", "25m", "--budget", HALF_HOUR, "-y")
    receipt = live.mayfly("launch", *words, *limits)
    show(live, receipt, state="done")
    files = sorted(file["file"] for file in receipt["files"])
    require(files == ["model.pt", "scores.json"], f"it left {files}")


def stop(live: Live) -> None:
    with detached(live, *ENDLESS) as run_id:
        show(live, live.mayfly("stop", run_id), state="stopped")


def detach(live: Live) -> None:
    with detached(live, "--epochs", "1", *live.small) as run_id:
        show(live, ended(live, run_id), state="done")


def attach(live: Live) -> None:
    """Look at a machine's GPU without Session Manager and by it."""
    with detached(live, *ENDLESS) as run_id:

        def figures() -> Any:
            return (live.mayfly("status", run_id)["runs"][0]["sample"] or {}).get("gpus")

        gpus = live.until(figures, f"figures of {run_id}", within=timedelta(minutes=15), every=20)
        live.say(json.dumps(gpus))
        said = live.mayfly_text("attach", run_id, "--", "nvidia-smi -L")
        require("GPU 0" in said, f"Session Manager gave no list of GPUs: {said}")
        show(live, live.mayfly("stop", run_id), state="stopped")


def storage(live: Live) -> None:
    """Run in a stack with the cache and a key until the cache gives the inputs: at once, where another run has
    filled it, else the second time.
    """
    for number in (1, 2):
        inputs = launch("g6.xlarge", HALF_HOUR)(live)["inputs"]
        live.say(f"run {number}: {json.dumps(inputs)}")
        require(not inputs["cache_failed"], f"the cache failed: {inputs['cache_failed']}")
        if inputs["cache_files"]:
            return
    require(False, "the cache gave nothing, and nothing says why")


def retrain(*, prepared: bool) -> Callable[[Live], None]:
    """Return a check that publishes a job and has control run it, with no command attached."""

    def run(live: Live) -> None:
        live.folder.mkdir(parents=True, exist_ok=True)
        job = live.folder / "job.toml"
        refresh = 'refresh = "fetch.py"\nsecrets = ["API_KEY"]' if prepared else ""
        job.write_text(JOB.format(refresh=refresh))
        (live.folder / "fetch.py").write_bytes((ROOT / "scripts" / "weekly_fetch.py").read_bytes())
        for file in live.candles().glob("BTC-USD*.parquet"):
            live.cloud.objects.put(key=f"raw/{SET}/{file.name}", body=file.read_bytes())
        paused = live.cleaning("the pause of the retrain", lambda: live.mayfly("retrains", "pause", RETRAIN))
        with _secret(live) if prepared else nullcontext():
            live.mayfly("retrains", "publish", RETRAIN, "--job", str(job))
            live.mayfly("retrains", "pause", RETRAIN, "--off")
            with paused:  # no Sunday starts it again
                called = live.mayfly("retrains", "run", RETRAIN)
                entry = _settled(live, from_iso(called["scheduled_at"]))
        _show_entry(live, entry, prepared=prepared)

    return run


def _settled(live: Live, at: datetime) -> ScheduledRun:
    """Wait for control to begin and end a scheduled time, and return its entry."""
    objects, key = live.cloud.objects, entry_key(RETRAIN, at)

    def look() -> ScheduledRun | None:
        entry = read_entry(objects, key)[0] if objects.head(key=key) else None
        return entry if entry and not entry.is_open and not entry.is_untold else None

    within = timedelta(minutes=75)  # a prepare run, a run, and control's five minutes between both
    entry: ScheduledRun = live.until(look, f"the end of {key}", within=within)
    live.say(f"{key}: {entry.state}, {entry.spent_usd:.2f} $, {entry.refreshed or 'no refresh'}")
    require(entry.state == "done", f"{key} is {entry.state}: {entry.error}")
    return entry


def _show_entry(live: Live, entry: ScheduledRun, *, prepared: bool) -> None:
    """Say what both runs of a scheduled time prove, and require what control makes of them."""
    require(bool(entry.prepare_run_id) == prepared, f"its prepare run: {entry.prepare_run_id or 'none'}")
    for run_id in filter(None, (entry.prepare_run_id, entry.run_id)):
        show(live, live.mayfly("receipts", run_id), state="done")
    require(bool(entry.refreshed) == prepared, f"the refresh: {entry.refreshed or 'none'}")
    kept = live.cloud.objects.list(prefix=f"models/retrains/{RETRAIN}/{entry.run_id}/")
    require(kept, f"control kept no model of {entry.run_id}")
    live.say(f"{len(kept)} objects under models/retrains/{RETRAIN}/{entry.run_id}/")


@contextmanager
def _secret(live: Live) -> Iterator[None]:
    """Have the stack keep the secret of a refresh script."""
    ssm, name = live.client("ssm"), f"{secrets_path(live.outputs.project, live.outputs.stack)}API_KEY"
    ssm.put_parameter(Name=name, Value="a-key-of-nobody", Type="SecureString", Overwrite=True)
    with live.cleaning(f"the deletion of {name}", lambda: ssm.delete_parameter(Name=name)):
        yield


def launcher(live: Live) -> None:
    """Launch as a person who has the launcher policy and nothing else, by a role that is assumed."""
    account = f"arn:aws:iam::{live.account}"
    trust = {"Effect": "Allow", "Principal": {"AWS": f"{account}:root"}, "Action": "sts:AssumeRole"}
    with _role(live, "live-launcher", trust) as arn:
        policy = f"{account}:policy/{live.role('launcher')}"
        live.client("iam").attach_role_policy(RoleName=live.role("live-launcher"), PolicyArn=policy)
        sts, wait = live.client("sts"), timedelta(minutes=2)

        def assumed() -> Any:  # IAM tells a new role to its other services within seconds
            with aws_errors(f"cannot assume {arn}", but=("AccessDenied",)):
                return sts.assume_role(RoleArn=arn, RoleSessionName="live")["Credentials"]

        lent = live.until(assumed, f"the role {arn}", within=wait, every=5)
        names = {"AccessKeyId": "AWS_ACCESS_KEY_ID", "SecretAccessKey": "AWS_SECRET_ACCESS_KEY"}
        names["SessionToken"] = "AWS_SESSION_TOKEN"
        keys = {variable: lent[name] for name, variable in names.items()}
        live.pause(15)  # so does its policy
        launch("g6.xlarge", HALF_HOUR)(replace(live, environment={**live.environment, **keys}))


def interruption(live: Live) -> None:
    """Have AWS's Fault Injection Service take a spot machine back, with the two minutes' notice of a real
    interruption.
    """
    trust = {"Effect": "Allow", "Principal": {"Service": "fis.amazonaws.com"}, "Action": "sts:AssumeRole"}
    # What AWS's own sample allows (ec2-spot-workshops, looked up 2026-11-24).
    ends = {"Effect": "Allow", "Action": "ec2:SendSpotInstanceInterruptions"}
    ends["Resource"] = f"arn:aws:ec2:{live.outputs.region}:{live.account}:instance/*"
    looks = {"Effect": "Allow", "Action": "ec2:DescribeInstances", "Resource": "*"}
    fis = live.client("fis")
    with _role(live, "live-interruption", trust, ends, looks) as role_arn:
        with detached(live, *ENDLESS, "--spot") as run_id:
            what, within = f"the training of {run_id}", timedelta(minutes=15)
            instance_id = live.until(lambda: _training(live, run_id), what, within=within)
            template = fis.create_experiment_template(**_experiment(live, instance_id, role_arn))
            template_id = template["experimentTemplate"]["id"]
            with live.cleaning(template_id, lambda: fis.delete_experiment_template(id=template_id)):
                started = fis.start_experiment(experimentTemplateId=template_id)["experiment"]
                live.say(f"experiment {started['id']} takes {instance_id} back")
                what = f"the training of {run_id} on another machine"
                live.until(lambda: _training(live, run_id, but=instance_id), what, within=within)
                live.mayfly("stop", run_id, codes=tuple({0, *EXIT_CODES.values()}))
                receipt = ended(live, run_id)
        show(live, receipt, state="stopped")
        first = receipt["attempts"][0]
        require(first["cause"] == "lost", f"its first attempt ended as {first['cause'] or 'nothing'}")
        reason = read_record(live.cloud.objects, run_id)[0].instances[0].reason
        taken = ("Server.SpotInstanceTermination", "Client.InstanceInitiatedShutdown")  # or it was faster
        require(reason in taken, f"EC2's reason is {reason}")


def resume(live: Live) -> None:
    """Stop a run once S3 has a checkpoint of it, and have another run go on from there."""
    within = timedelta(minutes=15)

    def told(run_id: str) -> Heartbeat | None:
        seen = reports(live.cloud, read_record(live.cloud.objects, run_id)[0]).get(1)
        return seen.heartbeat if seen else None

    def durable(run_id: str) -> bool:
        beat = told(run_id)
        return beat is not None and bool(beat.durable)

    def begun(run_id: str) -> list[int]:
        beat = told(run_id)
        pieces = beat.progress.values() if beat else ()
        return [
            piece["began"] for piece in pieces if "began" in piece and piece.get("steps")
        ]  # it takes steps

    with detached(live, *ENDLESS) as first:
        live.until(lambda: durable(first), f"a checkpoint of {first} in S3", within=within)
        show(live, live.mayfly("stop", first, codes=STOPPED), state="stopped")
    with detached(live, *ENDLESS, "--resume", first) as second:
        steps = live.until(lambda: begun(second), f"the training of {second}", within=within)
        live.say(f"{second} goes on from step {steps[0]} of {first}")
        receipt = live.mayfly("stop", second, codes=STOPPED)
        show(live, receipt, state="stopped")
    require(receipt["parent"] == first, f"{second} continues {receipt['parent'] or 'nothing'}")
    require(steps[0] > 0, f"{second} began its training anew")


def _training(live: Live, run_id: str, *, but: str = "") -> str:
    """Return the instance of a run once its training has told something; '' before, and for `but`."""
    objects = live.cloud.objects
    nodes = [keys for keys in read_record(objects, run_id)[0].nodes if keys.instance_id != but]
    return next((keys.instance_id for keys in nodes if objects.list(prefix=keys.metrics, most=1)), "")


def _experiment(live: Live, instance_id: str, role_arn: str) -> dict[str, Any]:
    """Return the request for an experiment that interrupts one instance."""
    arn = f"arn:aws:ec2:{live.outputs.region}:{live.account}:instance/{instance_id}"
    target = {"resourceType": "aws:ec2:spot-instance", "resourceArns": [arn], "selectionMode": "ALL"}
    action = {"actionId": "aws:ec2:send-spot-instance-interruptions", "targets": {"SpotInstances": "one"}}
    return {
        "description": f"Take {instance_id} back, for a check of {live.stack}",
        "targets": {"one": target},
        "actions": {"interrupt": {**action, "parameters": {"durationBeforeInterruption": "PT2M"}}},
        "stopConditions": [{"source": "none"}],
        "roleArn": role_arn,
    }


@contextmanager
def _role(live: Live, kind: str, trust: Mapping[str, Any], *policy: Mapping[str, Any]) -> Iterator[str]:
    """Make a role of the check's own, and yield its ARN. One that an earlier try left is taken over."""
    iam, name = live.client("iam"), live.role(kind)
    document = {"Version": "2012-10-17", "Statement": [trust]}
    with aws_errors(f"cannot make the role {name}", but=("EntityAlreadyExists",)):
        iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(document))

    def clean() -> None:
        for attached in iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"]:
            iam.detach_role_policy(RoleName=name, PolicyArn=attached["PolicyArn"])
        for own in iam.list_role_policies(RoleName=name)["PolicyNames"]:
            iam.delete_role_policy(RoleName=name, PolicyName=own)
        iam.delete_role(RoleName=name)

    with live.cleaning(f"the deletion of {name}", clean):
        if policy:
            own = {"Version": "2012-10-17", "Statement": list(policy)}
            iam.put_role_policy(RoleName=name, PolicyName="own", PolicyDocument=json.dumps(own))
        iam.get_waiter("role_exists").wait(RoleName=name)
        yield str(iam.get_role(RoleName=name)["Role"]["Arn"])


def detached(live: Live, *words: str) -> AbstractContextManager[str]:
    """Launch on a g6.xlarge as `left_alone` does."""
    where = ("--data", str(live.candles()), "--instance", "g6.xlarge", "--budget", HALF_HOUR)
    return left_alone(live, *where, "-y", *words)


@contextmanager
def left_alone(live: Live, *words: str) -> Iterator[str]:
    """Launch, leave the run alone, and yield its id; stop it in the end, if it still runs."""
    run_id = str(live.mayfly("launch", *words, "--detach")["run_id"])

    def clean() -> None:
        if read_receipt(live.cloud.objects, run_id) is None:
            live.mayfly("stop", run_id, codes=tuple({0, *EXIT_CODES.values()}))

    with live.cleaning(f"the stop of {run_id}", clean):
        yield run_id


def ended(live: Live, run_id: str) -> Any:
    """Wait until control has closed a run that nobody watches, and return its receipt."""
    objects = live.cloud.objects
    within = timedelta(minutes=40)
    live.until(lambda: read_receipt(objects, run_id), f"the end of {run_id}", within=within, every=20)
    return live.mayfly("receipts", run_id)


def show(live: Live, receipt: Mapping[str, Any], *, state: str) -> None:
    """Say what a receipt proves, keep its dollars for the bill, and require its state and the end of every
    machine.
    """
    dollars = receipt["dollars"]
    live.spent[receipt["run_id"]] = (dollars["spent_low"], dollars["spent_high"])
    live.say(f"{receipt['run_id']}: {receipt['state']}, {len(receipt['models'])} models")
    live.say(f"seconds {json.dumps(receipt['seconds'])}, dollars {json.dumps(dollars)}")
    for one in receipt["instances"]:
        name = f"{one['instance_id']} {one['instance_type']} {one['market']}"
        live.say(f"{name}: {one['state']} ({one['proof']})")
        require(one["proof"], f"{name} was not seen to end")
    require(receipt["state"] == state, f"{receipt['run_id']} ended {receipt['state']}: {receipt['error']}")
    seen = live.cloud.instances(run_id=receipt["run_id"])
    alive = [one.instance_id for one in seen if one.state in ("pending", "running")]
    require(not alive, f"still there: {', '.join(alive)}")
