"""Checks of a stack itself: applied, used, taken down, and applied again; with every option, and in a network
that exists.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from tests.live.context import G_ON_DEMAND, G_SPOT, STANDARD, Live, require
from tests.live.runs import RETRAIN, dry_run
from trainer.aws.stack import read_stack
from trainer.aws.stack_outputs import PROJECT, baked_parameter

BUILD_TYPE = "g4dn.xlarge"
# A stack's options, all at once. Pulumi makes numbers of whole numbers alone.
OPTIONS = {
    "attach": "ssm",
    "storage": "efs-cache",
    "cluster": "true",
    "image_pipeline": BUILD_TYPE,
    "retrains[0].name": RETRAIN,
    "retrains[0].weekdays[0]": "SUN",
    "retrains[0].hour": "3",
    "retrains[0].budget": "1",
    "retrains[0].budget_month": "5",
}


def identity(live: Live) -> None:
    found = live.client("sts").get_caller_identity()
    live.say(f"account {found['Account']} as {found['Arn']}, region {live.client('ec2').meta.region_name}")


def quotas(live: Live) -> None:
    """Say what the quotas allow: each check asks for its own."""
    for code in (STANDARD, G_ON_DEMAND, G_SPOT):
        quota = quota_of(live, code)
        live.say(f"{code} {quota['QuotaName']}: {quota['Value']:.0f} vCPU")


def quota_of(live: Live, code: str) -> dict[str, Any]:
    client = live.client("service-quotas")
    return dict(client.get_service_quota(ServiceCode="ec2", QuotaCode=code)["Quota"])


def up(live: Live) -> None:
    _apply(live)
    _same(live)


def _init(live: Live) -> None:
    """Make an empty stack, unless an earlier try made it; the user's current stack stays what it is."""
    live.run("pulumi", "stack", "init", live.stack, "--no-select", codes=(0, 1, 255))


def _setting(live: Live, name: str) -> str:
    """Return a setting of the stack, '' where it is not set."""
    known = json.loads(live.run("pulumi", "config", "--json", "--stack", live.stack))
    return str(known.get(f"{PROJECT}:{name}", {}).get("value", ""))


def _apply(live: Live, settings: Mapping[str, str] = {}) -> None:  # noqa: B006  nobody changes it
    words = [word for key, value in settings.items() for word in ("--config", f"{key}={value}")]
    words += ["--config-path"] if settings else []
    live.run("pulumi", "up", "--yes", "--skip-preview", "--stack", live.stack, *words)


def _same(live: Live) -> None:
    said = live.run("pulumi", "preview", "--expect-no-changes", "--stack", live.stack)
    live.say(said.strip().splitlines()[-1])


def bucket(live: Live) -> None:
    """Require a closed bucket that gives each object a version, which takes S3 a quarter of an hour after it
    was made.
    """
    s3, name, key = live.client("s3"), live.outputs.bucket, "raw-index/live-check.json"
    _require_closed(live, name)

    def version() -> str:
        return str(s3.put_object(Bucket=name, Key=key, Body=b"{}").get("VersionId") or "")

    what = f"a version of an object in {name}"
    given = live.until(version, what, within=timedelta(minutes=25), every=60)
    s3.delete_object(Bucket=name, Key=key, VersionId=given)
    live.say(f"{name}: gives versions ({given})")


def _require_closed(live: Live, name: str) -> None:
    s3 = live.client("s3")
    versioning = s3.get_bucket_versioning(Bucket=name).get("Status")
    block = s3.get_public_access_block(Bucket=name)["PublicAccessBlockConfiguration"]
    live.say(f"{name}: versioning {versioning}, access block {block}")
    require(versioning == "Enabled", f"{name} is not versioned")
    require(all(block.values()), f"{name} is not closed: {block}")


def sweeper(live: Live) -> None:
    answer = live.client("lambda").invoke(FunctionName=live.outputs.sweeper_arn, Payload=b"{}")
    said = answer["Payload"].read().decode()
    require("FunctionError" not in answer, f"the sweeper failed: {said}")
    live.say(f"the sweeper says {said}")


def doctor(live: Live) -> None:
    found = live.mayfly("doctor", codes=(0, *range(100, 111)))["checks"]
    for one in found:
        live.say(f"{one['check']}: {one['state']} {one['what']}")
    wrong = {one["check"] for one in found if one["state"] in ("failed", "unknown")} - {"quotas"}
    require(not wrong, f"not well, or not to be looked at: {', '.join(sorted(wrong))}")


def toggles(live: Live) -> None:
    """Make the throwaway stack with every option on, a key of its own among them, and apply it twice."""
    _init(live)
    key = _setting(live, "kms_key")
    if not key:
        made = live.client("kms").create_key(Description=f"Checks of {live.stack}")
        key = str(made["KeyMetadata"]["Arn"])
    live.say(f"{key} costs $1 a month until the check `again` has it deleted")
    _apply(live, {**OPTIONS, "kms_key": key})
    _same(live)
    bucket(live)


def existing_vpc(live: Live) -> None:
    """Make a stack in the account's default VPC, ask AWS for a launch there, and take it down again."""
    subnets = default_subnets(live)
    _init(live)
    with live.cleaning(f"mayfly down --stack {live.stack}", lambda: live.mayfly("down", "-y")):
        _apply(live, {f"subnets[{number}]": subnet for number, subnet in enumerate(subnets)})
        require(set(live.outputs.subnets.values()) == set(subnets), f"it launches in {live.outputs.subnets}")
        dry_run(live)
        doctor(live)


def default_subnets(live: Live) -> list[str]:
    """Return the subnets of the account's default VPC; none where it has no such VPC."""
    rules = [{"Name": "default-for-az", "Values": ["true"]}]
    return [one["SubnetId"] for one in live.client("ec2").describe_subnets(Filters=rules)["Subnets"]]


def image(live: Live) -> None:
    """Have Image Builder bake and test an image, and see that the next launch would boot it."""
    builder, prefix = live.client("imagebuilder"), f"{live.outputs.project}-{live.outputs.stack}-"
    listed = builder.list_image_pipelines()["imagePipelineList"]
    (pipeline,) = [one["arn"] for one in listed if one["name"].startswith(prefix)]
    build = builder.start_image_pipeline_execution(imagePipelineArn=pipeline)["imageBuildVersionArn"]
    live.say(f"{build} is built and tested on {BUILD_TYPE}")

    def state() -> Any:
        known = builder.get_image(imageBuildVersionArn=build)["image"]
        return known if known["state"]["status"] in ("AVAILABLE", "FAILED", "CANCELLED") else None

    def cancel() -> None:
        if state() is None:
            builder.cancel_image_creation(imageBuildVersionArn=build)

    with live.cleaning(f"the end of {build}", cancel):
        known = live.until(state, f"the end of {build}", within=timedelta(hours=3), every=60)
    told = known["state"]
    require(told["status"] == "AVAILABLE", f"{build} is {told['status']}: {told.get('reason', 'no reason')}")
    made = [one["image"] for one in known["outputResources"]["amis"]]
    name = baked_parameter(live.outputs.project, live.outputs.stack, live.outputs.image_line)
    stored = live.client("ssm").get_parameter(Name=name)["Parameter"]["Value"]
    live.say(f"baked {', '.join(made)}; {name} says {stored}")
    require([stored] == made, f"{name} says {stored}, not {made}")


def again(live: Live) -> None:
    """Take the throwaway stack down, apply it again over what stayed, and take it down for good."""
    name = live.outputs.bucket
    live.mayfly("down", "-y")
    _require_closed(live, name)
    _apply(live)
    _same(live)
    made = read_stack(live.access, stack=live.stack).bucket
    require(made == name, f"it has another bucket, {made}")
    live.mayfly("down", "-y")
    key = _setting(live, "kms_key")
    live.client("kms").schedule_key_deletion(KeyId=key, PendingWindowInDays=7)
    live.say(f"{key} is deleted in seven days, and all that it encrypted can't be read then")
    live.say(
        f"empty and delete the rest by hand: aws s3 rb s3://{name} --force; pulumi stack rm --force {live.stack}"
    )
