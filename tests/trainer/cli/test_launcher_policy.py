"""The stack's launcher policy is enough for every verb and no more: an IAM user who has it alone launches,
watches, stops and fetches, each of its permissions is used, and what lies outside is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.finished import finish
from tests.iam import assert_allowed_is_needed
from tests.retrains import CONFIG, JOB
from tests.sessions import forget_sessions, sign_in
from trainer.aws.access import Access
from trainer.aws.objects import open_objects
from trainer.aws.place import ACCOUNT
from trainer.aws.stack import read_stack
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import ConfigError
from trainer.base.instants import from_iso, utc_now
from trainer.cli.main import main
from trainer.control.cloud import AwsCloud
from trainer.launch.checks import spot_role
from trainer.launch.preflight import query_offers
from trainer.launch.prices import list_prices
from trainer.machines.instances import instance_type
from trainer.rehearsal.server import EmbeddedAws
from trainer.runs.store import read_record

pytestmark = pytest.mark.slow  # each begins with a stack in which runs have been


@dataclass(frozen=True, kw_only=True)
class LauncherAccount:
    """An account with a stack, its administrator, and a user who has the launcher policy and nothing else."""

    aws: EmbeddedAws
    admin: Access
    user: Access
    outputs: StackOutputs
    policy: dict[str, Any]

    def finish(self, run_id: str) -> None:
        """Do as a run's node."""
        finish(self.aws.cloud(self.admin), self.admin, self.outputs.bucket, run_id)


@pytest.fixture(scope="module")
def account(aws_server: EmbeddedAws) -> LauncherAccount:
    admin = aws_server.account()
    exports = aws_server.apply_program(admin, {**CONFIG, "cluster": "true"})
    iam = admin.client("iam")
    iam.create_user(UserName="launcher")
    iam.attach_user_policy(UserName="launcher", PolicyArn=exports["launcher_policy_arn"])
    key = iam.create_access_key(UserName="launcher")["AccessKey"]
    version = iam.get_policy_version(PolicyArn=exports["launcher_policy_arn"], VersionId="v1")[
        "PolicyVersion"
    ]
    return LauncherAccount(
        aws=aws_server,
        admin=admin,
        user=replace(admin, access_key=key["AccessKeyId"], secret_key=key["SecretAccessKey"]),
        outputs=read_stack(admin, stack="dev"),
        policy=version["Document"],
    )


@pytest.fixture
def mayfly(
    account: LauncherAccount, capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[..., Any]]:
    """Run one command as the user, as AWS's own variables name it, and return what it printed as JSON."""
    monkeypatch.setenv("MAYFLY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    sign_in(account.user, monkeypatch)

    def call(*words: object) -> Any:
        code = main([*map(str, words), "--json"])
        out, err = capsys.readouterr()
        assert code == 0, out + err
        return json.loads(out)

    yield call
    forget_sessions()


def launched(mayfly: Callable[..., Any], *words: object) -> str:
    return str(mayfly("launch", "--detach", "-y", "--instance", "g6.xlarge", "--epochs", 1, *words)["run_id"])


def agent_here(mayfly: Callable[..., Any]) -> Any:
    """Run a script by an agent on this machine, under the user's own id, and return its receipt."""
    Path("data").mkdir()
    Path("data/n.txt").write_text("7")
    text = (
        "import os\nfrom pathlib import Path\nn = (Path(os.environ['MAYFLY_DATA']) / 'n.txt').read_text()\n"
    )
    Path("square.py").write_text(
        text + "(Path(os.environ['MAYFLY_OUT']) / 'n2.txt').write_text(str(int(n) ** 2))\n"
    )
    return mayfly("agent", "--here", "--script", "square.py", "--data", "data")


@pytest.mark.nightly
def test_verbs_use_every_permission_and_lack_none(
    account: LauncherAccount, mayfly: Any, candles: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.aws.cloud(account.admin).decisions.clear()  # other tests ask for what is refused
    first = launched(mayfly, "--data", candles, "--symbols", "BTC-USD")
    mayfly("plan", "--stack", "dev", "--symbols", 2, "--bars", 9_000)  # asks for commitments, too
    account.finish(first)
    assert [run["state"] for run in mayfly("status")["runs"]] == ["done"]  # settled by this look
    second = launched(mayfly, "--spot")  # of what raw/ holds by now
    mayfly("logs", second)  # nothing of its node: the console
    until = read_record(open_objects(account.admin, account.outputs.bucket), second)[0].effective_deadline.at
    account.aws.cloud(account.admin).advance(
        (until - utc_now()).total_seconds() + 1
    )  # it has no node that could stop
    assert (
        mayfly("stop", second)["state"] == "expired"
    )  # by AWS's clock, which the desk reads from each answer
    receipts = mayfly("receipts")["receipts"]
    assert {receipt["run_id"] for receipt in receipts} == {
        first,
        second,
    }  # their order is random within one second
    assert len(mayfly("models", "list")["models"]) == 1
    assert mayfly("pull", first, "--out", "pulled")["state"] == "done"
    mayfly("logs", first)
    assert mayfly("backup", "pulled")["moved"]
    assert mayfly("data", "push", candles)["unchanged"]  # as the launch did
    assert mayfly("data", "pull", "--at", first)["pulled"] and mayfly("data", "ls")["sets"]
    assert mayfly("data", "ls", "main", "--at", "2099-01-01")["files"]

    here = agent_here(mayfly)
    assert (here["state"], here["instances"], here["dollars"]["spent_high"]) == ("done", [], 0)
    Path("train.py").write_text("import os")  # with secrets, under a role of its own
    words = ("--script", "train.py", "--max-duration", "2h", "--set", "script.secrets=WANDB_API_KEY")
    third = str(mayfly("launch", "--detach", "-y", "--instance", "g6.xlarge", *words)["run_id"])
    assert mayfly("stop", third)["state"] == "stopped"

    Path("job.toml").write_text(JOB)
    nodes = ("--max-duration", "2h", "--set", "machine.nodes=2")
    one_model = launched(mayfly, *nodes, "--set", "train.distributed=always")
    assert mayfly("stop", one_model)["state"] == "stopped"
    assert mayfly("stop", launched(mayfly, *nodes))["state"] == "stopped"  # machines that share models

    assert mayfly("retrains", "publish", "sunday", "--job", "job.toml")["retrain"]["state"] == "on"
    mayfly("retrains", "run", "night")  # which was never published: control refuses it

    # What the verbs do in an account that is not a rehearsal, in another region, and after a lost answer.
    as_aws = replace(account.user, place=ACCOUNT)
    types = [instance_type("g6.xlarge")]
    query_offers(as_aws, outputs=account.outputs, machines=types, spot=True)
    list_prices(as_aws, types, region="eu-west-1", today=utc_now().date())
    embedded = account.aws.cloud(account.admin)
    embedded.has_spot_role = False
    with pytest.raises(ConfigError, match="create-service-linked-role --aws-service-name spot.amazonaws.com"):
        spot_role(account.user)
    embedded.has_spot_role = True
    cloud = AwsCloud(account.user, account.outputs)
    for _ in range(2):
        cloud.arm_sweep(name=f"mayfly-{first}-sweep", run_id=first, at=from_iso("2099-01-01T00:00:00Z"))

    decided = [(asked, by) for who, asked, by in embedded.decisions if who.kind == "USER"]
    assert_allowed_is_needed(decided, account.policy, {})

    (model,) = mayfly("receipts", first)["models"]  # production is not a launcher's
    name = f"{first}/{Path(model['key']).stem}"
    assert main(["models", "promote", name]) == 103
    said = capsys.readouterr().err
    assert "AccessDenied" in said and "It takes s3:PutObject on models/production/*" in said
    sign_in(account.admin, monkeypatch)
    assert mayfly("models", "promote", name)["promoted"]
    forget_sessions()
    sign_in(account.user, monkeypatch)  # who may look at it
    assert mayfly("models", "production")["production"]
    assert mayfly("models", "verify")["models"]
    assert not mayfly("models", "prune", "--older-than", 90)["models"]


def fleet(account: LauncherAccount, **changed: Any) -> dict[str, Any]:
    """Return a request of CreateFleet as a launch makes it, but for what is changed."""
    template = account.outputs.launch_template
    subnet = next(iter(account.outputs.subnets.values()))
    parameter = account.admin.client("ssm").get_parameter(Name=account.outputs.image_parameter)
    tags = [
        {"Key": key, "Value": value}
        for key, value in changed.get("tags", {"project": "mayfly", "stack": "dev"}).items()
    ]
    override = {"InstanceType": "g6.xlarge", "SubnetId": subnet, "ImageId": parameter["Parameter"]["Value"]}
    return {
        "Type": "instant",
        "TargetCapacitySpecification": {"TotalTargetCapacity": 1, "DefaultTargetCapacityType": "on-demand"},
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {
                    "LaunchTemplateId": changed.get("template", template),
                    "Version": "$Default",
                },
                "Overrides": [{**override, **changed.get("override", {})}],
            }
        ],
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": tags}
            for kind in ("instance", "volume", "network-interface", "fleet")
        ],
        "DryRun": True,
    }


def refusal(call: Callable[..., Any], **arguments: Any) -> str:
    """Make a call that fails, and return AWS's code and message."""
    with pytest.raises(ClientError) as failed:
        call(**arguments)
    error = failed.value.response["Error"]
    return f"{error['Code']}: {error['Message']}"


def test_a_fleet_as_a_launch_asks_for_it_passes_a_dry_run(account: LauncherAccount) -> None:
    ec2 = account.user.client("ec2", total_max_attempts=1)
    assert refusal(ec2.create_fleet, **fleet(account)).startswith("DryRunOperation")


def test_launches_are_of_this_stack_alone(account: LauncherAccount) -> None:
    admin, ec2 = account.admin.client("ec2"), account.user.client("ec2", total_max_attempts=1)
    template = account.outputs.launch_template
    data = admin.describe_launch_template_versions(LaunchTemplateId=template, Versions=["$Default"])
    own = data["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    copy = {name: own[name] for name in ("NetworkInterfaces", "IamInstanceProfile")}
    other = admin.create_launch_template(LaunchTemplateName="other", LaunchTemplateData=copy)[
        "LaunchTemplate"
    ]
    vpc = admin.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    subnet = admin.create_subnet(VpcId=vpc, CidrBlock="10.9.0.0/24")["Subnet"]["SubnetId"]
    image = admin.register_image(Name="own", RootDeviceName="/dev/sda1")["ImageId"]
    for changed, resource in (
        ({"template": other["LaunchTemplateId"]}, f":launch-template/{other['LaunchTemplateId']}"),
        ({"override": {"SubnetId": subnet}}, f":subnet/{subnet}"),
        ({"override": {"ImageId": image}}, f":image/{image}"),
        ({"tags": {"project": "mayfly", "stack": "prod"}}, ":fleet/*"),
        ({"tags": {"run_id": "r1"}}, ":fleet/*"),
    ):
        said = refusal(ec2.create_fleet, **fleet(account, **changed))
        assert said.startswith("UnauthorizedOperation") and resource in said, said
    bare = {"ImageId": image, "InstanceType": "g6.xlarge", "MinCount": 1, "MaxCount": 1}
    assert refusal(ec2.run_instances, **bare).startswith("UnauthorizedOperation")


def test_no_other_role_is_passed(account: LauncherAccount) -> None:
    iam, ec2 = account.admin.client("iam"), account.user.client("ec2", total_max_attempts=1)
    iam.create_role(
        RoleName="admin", AssumeRolePolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": []})
    )
    iam.create_instance_profile(InstanceProfileName="admin")
    iam.add_role_to_instance_profile(InstanceProfileName="admin", RoleName="admin")
    own = fleet(account)
    profile = {"IamInstanceProfile": {"Name": "admin"}, "MinCount": 1, "MaxCount": 1, "DryRun": True}
    override = own["LaunchTemplateConfigs"][0]["Overrides"][0]
    tags = [one for one in own["TagSpecifications"] if one["ResourceType"] != "fleet"]
    interface = {
        "DeviceIndex": 0,
        "SubnetId": override["SubnetId"],
        "Groups": [account.outputs.security_group],
    }
    said = refusal(
        ec2.run_instances,
        LaunchTemplate=own["LaunchTemplateConfigs"][0]["LaunchTemplateSpecification"],
        ImageId=override["ImageId"],
        InstanceType="g6.xlarge",
        NetworkInterfaces=[interface],
        TagSpecifications=tags,
        **profile,
    )
    assert said.startswith("UnauthorizedOperation") and "iam:PassRole" in said and ":role/admin" in said, said
    scheduler = account.user.client("scheduler")
    target = {
        "Arn": account.outputs.sweeper_arn,
        "RoleArn": account.outputs.scheduler_role_arn.replace("scheduler", "sweeper"),
    }
    when = {"ScheduleExpression": "at(2099-01-01T00:00:00)", "FlexibleTimeWindow": {"Mode": "OFF"}}
    group = account.outputs.schedule_group
    said = refusal(scheduler.create_schedule, Name="mayfly-x", GroupName=group, Target=target, **when)
    assert said.startswith("AccessDeniedException") and "iam:PassRole" in said


def test_what_no_verb_does_is_refused(account: LauncherAccount) -> None:
    bucket, group = account.outputs.bucket, account.outputs.schedule_group
    ec2, s3, scheduler, iam, ssm = (
        account.user.client(name) for name in ("ec2", "s3", "scheduler", "iam", "ssm")
    )
    foreign = account.admin.client("ec2").run_instances(
        ImageId=fleet(account)["LaunchTemplateConfigs"][0]["Overrides"][0]["ImageId"],
        InstanceType="g6.xlarge",
        MinCount=1,
        MaxCount=1,
    )["Instances"][0]["InstanceId"]
    tags = [{"Key": "project", "Value": "mayfly"}, {"Key": "stack", "Value": "dev"}]
    for call, arguments in (
        (ec2.terminate_instances, {"InstanceIds": [foreign]}),
        (ec2.get_console_output, {"InstanceId": foreign}),
        (ec2.create_tags, {"Resources": [foreign], "Tags": tags}),  # and then end it
        (s3.delete_object, {"Bucket": bucket, "Key": "raw/x"}),
        (s3.put_object, {"Bucket": bucket, "Key": "models/production/m.safetensors", "Body": b"x"}),
        (s3.put_object, {"Bucket": bucket, "Key": "live/AROA1:i-1/x.json", "Body": b"x"}),
        (
            s3.put_object,
            {"Bucket": bucket, "Key": "attempts/AIDASOMEBODYELSE/run/1/0/result.json", "Body": b"{}"},
        ),
        (s3.put_bucket_versioning, {"Bucket": bucket, "VersioningConfiguration": {"Status": "Suspended"}}),
        (s3.get_object, {"Bucket": "another-bucket", "Key": "x"}),
        (scheduler.delete_schedule, {"Name": "standing-sweep", "GroupName": group}),
        (scheduler.delete_schedule, {"Name": "mayfly-x", "GroupName": "default"}),
        (scheduler.list_schedules, {}),
        (
            ssm.put_parameter,
            {"Name": "/mayfly/mayfly/dev", "Value": "{}", "Type": "String", "Overwrite": True},
        ),
        (ssm.get_parameter, {"Name": "/mayfly/mayfly/prod"}),
        (
            iam.attach_user_policy,
            {"UserName": "launcher", "PolicyArn": "arn:aws:iam::aws:policy/AdministratorAccess"},
        ),
    ):
        said = refusal(call, **arguments)
        assert said.startswith(("UnauthorizedOperation", "AccessDenied")), (arguments, said)
