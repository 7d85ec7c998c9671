"""The Pulumi program applied to the embedded AWS: the account then holds what `pulumi up` would have made."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import shutil
import zipfile
from dataclasses import fields
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulumi
import pytest

from trainer.aws.access import Access
from trainer.aws.stack_outputs import StackOutputs, baked_parameter, parameter_name
from trainer.base.errors import ConfigError, UsageError
from trainer.base.instants import utc_now
from trainer.launch import health
from trainer.launch.preflight import find_image
from trainer.machines.storage import RootDisk
from trainer.rehearsal import pulumi_apply
from trainer.rehearsal.applied_program import AppliedProgram, from_json, replay, to_json
from trainer.rehearsal.pulumi_resources import Resources
from trainer.rehearsal.pulumi_shapes import zip_archive

if TYPE_CHECKING:
    from trainer.rehearsal.server import EmbeddedAws

NAMES = {field.name for field in fields(StackOutputs)}
ROOT = Path(__file__).resolve().parents[3]
CONFIG = {"owner": "somebody", "max_lifetime_minutes": "60", "image_pipeline": "g4dn.xlarge"}
TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
_CHOSEN_BY_AWS = re.compile(
    r"\b[a-z]+-[0-9a-f]{17}\b|\b\d{12}\b|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]+\b|\bA[A-Z0-9]{19,}\b"
    r'|(?<=ProfileId": ")\w+'
)


@pytest.fixture(scope="module")
def application(aws_server: EmbeddedAws, fork_server: Path) -> tuple[Access, AppliedProgram]:
    """One account with the program applied, and the calls that did it; from a shell with another region."""
    access = aws_server.account()
    known = {"config": CONFIG, "module": "tests.aws.pulumi_apply", "server": fork_server}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_REGION", "eu-west-1")
        return access, pulumi_apply.apply(access, **known)


@pytest.fixture
def applied(application: tuple[Access, AppliedProgram]) -> tuple[Access, dict[str, Any]]:
    """The same account, and the program's outputs."""
    return application[0], application[1].outputs


@pytest.fixture
def resources(access: Access) -> Resources:
    return Resources(access, account="000000000000")


# --- what is there afterwards


def test_the_stacks_parameter_holds_what_the_program_exports(
    applied: tuple[Access, dict[str, Any]],
) -> None:
    access, outputs = applied
    value = access.client("ssm").get_parameter(Name=parameter_name("mayfly", "dev"))["Parameter"]["Value"]
    exports = {name: told for name, told in outputs.items() if not name.endswith("_policy_arn")}
    assert StackOutputs.from_json(value) == StackOutputs(**exports)
    assert outputs["owner"] == "somebody"
    assert len(outputs["subnets"]) == 6


def test_the_launch_template_holds_what_makes_an_instance_end(applied: tuple[Access, dict[str, Any]]) -> None:
    access, outputs = applied
    versions = access.client("ec2").describe_launch_template_versions(
        LaunchTemplateId=outputs["launch_template"], Versions=["$Default"]
    )
    data = versions["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    assert data["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert data["MetadataOptions"]["HttpTokens"] == "required"
    assert data["MetadataOptions"]["InstanceMetadataTags"] == "enabled"
    assert data["BlockDeviceMappings"][0]["Ebs"]["Encrypted"] is True
    assert data["NetworkInterfaces"][0]["Groups"] == [outputs["security_group"]]
    user_data = base64.b64decode(data["UserData"]).decode()
    assert outputs["bucket"] in user_data and "@@" not in user_data and "cap_minutes='60'" in user_data


def test_both_templates_size_the_images_root_disk(applied: tuple[Access, dict[str, Any]]) -> None:
    access, outputs = applied
    told = StackOutputs(**{name: value for name, value in outputs.items() if name in NAMES})
    training = RootDisk(gib=100, iops=4000, throughput=500)
    for template, disk in ((told.launch_template, training), (told.prepare_template, RootDisk(gib=100))):
        image = find_image(access, access.client("ec2"), outputs=told, template=template)
        assert image["RootDisk"] == disk


def test_launches_boot_the_baked_image_once_there_is_one(
    applied: tuple[Access, dict[str, Any]],
) -> None:
    access, outputs = applied
    told = StackOutputs(**{name: value for name, value in outputs.items() if name in NAMES})
    ec2, line = access.client("ec2"), outputs["image_line"]
    assert find_image(access, ec2, outputs=told)["Description"] == line  # nothing was baked yet
    assert "is baked yet: aws imagebuilder start-image-pipeline-execution" in health.image_age(access, told)
    disk = {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 100}}
    image = {"Name": "baked", "RootDeviceName": "/dev/sda1", "BlockDeviceMappings": [disk]}
    baked = ec2.register_image(**image)["ImageId"]
    # As the pipeline's distribution does after a build that its smoke test let pass.
    name = baked_parameter("mayfly", "dev", line)
    access.client("ssm").put_parameter(Name=name, Value=baked, Type="String")
    tags = [{"Key": key, "Value": outputs[key]} for key in ("project", "stack")]
    ec2.create_tags(Resources=[baked], Tags=tags)
    assert find_image(access, ec2, outputs=told)["ImageId"] == baked
    later = utc_now() + timedelta(days=60, hours=1)
    assert f"baked image of {line} is 60 days old" in health.image_age(access, told, later)
    ec2.deregister_image(ImageId=baked)
    assert find_image(access, ec2, outputs=told)["Description"] == line


def test_the_pipeline_is_made_of_what_the_account_holds(
    aws_server: EmbeddedAws, applied: tuple[Access, dict[str, Any]]
) -> None:
    access, outputs = applied
    made = aws_server.cloud(access).image_builder
    kinds = [arn.split(":")[5].split("/")[0] for arn in made]
    configurations = ["infrastructure-configuration", "distribution-configuration"]
    each = ["image-recipe", "image-pipeline", "lifecycle-policy", *configurations]
    assert sorted(kinds) == sorted(["component"] * 2 + each)
    for arn, given in made.items():
        if ":image-recipe/" in arn:
            parameters = {one["name"]: one["value"][0] for one in given["components"][0]["parameters"]}
            source = parameters["Source"]
            key = source.removeprefix(f"s3://{outputs['bucket']}/")
            parts = access.client("s3").get_object(Bucket=outputs["bucket"], Key=key)["Body"].read()
            assert hashlib.sha256(parts).hexdigest() in key


def test_the_security_group_has_one_way_out_and_none_in(applied: tuple[Access, dict[str, Any]]) -> None:
    access, outputs = applied
    described = access.client("ec2").describe_security_groups(GroupIds=[outputs["security_group"]])
    (group,) = described["SecurityGroups"]
    (way_out,) = group["IpPermissionsEgress"]
    assert (way_out["IpProtocol"], way_out["FromPort"], way_out["ToPort"]) == ("tcp", 443, 443)
    assert group["IpPermissions"] == []


def test_the_bucket_keeps_versions_and_its_lifecycle(applied: tuple[Access, dict[str, Any]]) -> None:
    access, outputs = applied
    s3 = access.client("s3")
    assert s3.get_bucket_versioning(Bucket=outputs["bucket"])["Status"] == "Enabled"
    rules = s3.get_bucket_lifecycle_configuration(Bucket=outputs["bucket"])["Rules"]
    names = {"old-versions", "unfinished-uploads", "heartbeats", "checkpoints", "resumed"}
    assert {rule["ID"] for rule in rules} == names
    block = s3.get_public_access_block(Bucket=outputs["bucket"])["PublicAccessBlockConfiguration"]
    assert all(block.values())


def test_objects_can_be_written_under_the_tls_only_policy(applied: tuple[Access, dict[str, Any]]) -> None:
    access, outputs = applied
    s3 = access.client("s3")
    policy = json.loads(s3.get_bucket_policy(Bucket=outputs["bucket"])["Policy"])
    assert policy["Statement"][0]["Sid"] == "TlsOnly"
    assert s3.put_object(Bucket=outputs["bucket"], Key="raw/x", Body=b"x")["VersionId"]


def test_the_standing_sweep_calls_the_sweeper(
    applied: tuple[Access, dict[str, Any]],
) -> None:
    access, outputs = applied
    group, scheduler = outputs["schedule_group"], access.client("scheduler")
    schedule = scheduler.get_schedule(GroupName=group, Name="standing-sweep")
    assert schedule["ScheduleExpression"] == "rate(2 minutes)"
    assert schedule["Target"]["Arn"] == outputs["sweeper_arn"]
    assert schedule["Target"]["RoleArn"] == outputs["scheduler_role_arn"]


def test_the_function_received_a_zip_with_the_sweeper_in_it(applied: tuple[Access, dict[str, Any]]) -> None:
    access, outputs = applied
    function = access.client("lambda").get_function(FunctionName=outputs["sweeper_arn"])
    assert function["Configuration"]["Handler"] == "trainer.control.functions.sweep.handler"
    assert function["Configuration"]["Environment"]["Variables"]["BUCKET"] == outputs["bucket"]
    assert function["Configuration"]["CodeSize"] > 1_000_000


def test_roles_have_their_policies(applied: tuple[Access, dict[str, Any]]) -> None:
    iam = applied[0].client("iam")
    name = "mayfly-dev-us-east-1-instance"
    policy = iam.get_role_policy(RoleName=name, PolicyName="instance")["PolicyDocument"]
    assert policy["Statement"][0]["Sid"] == "ReadInputs"
    profile = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
    assert [role["RoleName"] for role in profile["Roles"]] == [name]


def test_a_bucket_that_is_already_there_keeps_its_objects(
    aws_server: EmbeddedAws, resources: Resources
) -> None:
    s3 = resources.client("s3")
    kind, made = "aws:s3/bucket:Bucket", {"bucket": "kept-from-before"}
    resources.make(kind, "bucket", made)
    s3.put_object(Bucket="kept-from-before", Key="models/m", Body=b"m")
    resources.make(kind, "bucket", {**made, "tags": {"project": "mayfly"}})
    assert s3.get_object(Bucket="kept-from-before", Key="models/m")["Body"].read() == b"m"


# --- a replay


def account_as_text(access: Access, outputs: dict[str, Any], image_builder: dict[str, Any]) -> str:
    """Describe what the program made, without identifiers and dates, which AWS chooses."""
    ec2, iam, lambdas, scheduler = (access.client(name) for name in ("ec2", "iam", "lambda", "scheduler"))
    templates = [
        ec2.describe_launch_template_versions(LaunchTemplateId=outputs[name])["LaunchTemplateVersions"]
        for name in ("launch_template", "prepare_template")
    ]
    user_data = [
        base64.b64decode(version["LaunchTemplateData"].pop("UserData")).decode() for (version,) in templates
    ]
    roles = sorted(iam.list_roles()["Roles"], key=lambda role: role["RoleName"])
    seen = [
        outputs,
        ec2.describe_subnets(SubnetIds=sorted(outputs["subnets"].values()))["Subnets"],
        ec2.describe_security_groups(GroupIds=[outputs["security_group"]])["SecurityGroups"],
        ec2.describe_route_tables()["RouteTables"],
        ec2.describe_vpc_endpoints()["VpcEndpoints"],
        templates,
        user_data,
        image_builder,
        roles,
        [iam.get_role_policy(RoleName=role["RoleName"], PolicyName=name) for role in roles
         for name in iam.list_role_policies(RoleName=role["RoleName"])["PolicyNames"]],
        iam.list_instance_profiles()["InstanceProfiles"],
        [{**item, "LastModified": ""} for item in lambdas.list_functions()["Functions"]],
        [scheduler.get_schedule(GroupName=outputs["schedule_group"], Name=item["Name"])
         for item in scheduler.list_schedules(GroupName=outputs["schedule_group"])["Schedules"]],
        access.client("s3").get_bucket_policy(Bucket=outputs["bucket"])["Policy"],
        access.client("s3").get_bucket_lifecycle_configuration(Bucket=outputs["bucket"])["Rules"],
    ]  # fmt: skip
    for item in seen:
        for part in item if isinstance(item, list) else [item]:
            if isinstance(part, dict):
                part.pop("ResponseMetadata", None)
    text = _CHOSEN_BY_AWS.sub("ID", json.dumps(seen, default=lambda value: "", sort_keys=True))
    return "\n".join(sorted(re.findall(r"[^{}\[\]]+", text)))  # lists come in the order of random ids


@pytest.mark.slow
def test_a_replay_leaves_the_account_as_an_application_does(
    aws_server: EmbeddedAws, application: tuple[Access, AppliedProgram]
) -> None:
    (one, program), other = application, aws_server.account()
    cloud = aws_server.cloud(other)
    send = partial(aws_server.call, cloud.account)
    outputs = replay(from_json(to_json(program)), account=cloud.account, send=send)
    assert outputs["bucket"].split("-")[2] == cloud.account
    assert outputs["subnets"] != program.outputs["subnets"]
    sweeper = cloud.moto("lambda", "GetFunction", {"FunctionName": "mayfly-dev-sweeper"})["Configuration"]
    assert sweeper["FunctionArn"] == outputs["sweeper_arn"]
    images = aws_server.cloud(one).image_builder
    replayed = account_as_text(other, outputs, cloud.image_builder)
    assert images and replayed == account_as_text(one, program.outputs, images)
    parameter = other.client("ssm").get_parameter(Name="/mayfly/mayfly/dev")["Parameter"]["Value"]
    stored = {name: value for name, value in outputs.items() if not name.endswith("_policy_arn")}
    assert json.loads(parameter) == stored | {"rehearsal": True}


# --- what is refused


def test_an_unknown_resource_type_is_an_error(resources: Resources) -> None:
    with pytest.raises(ConfigError, match="aws:ec2/natGateway:NatGateway"):
        resources.make("aws:ec2/natGateway:NatGateway", "nat", {})


def test_no_image_is_baked(resources: Resources) -> None:
    arn, made = resources.make("aws:imagebuilder/imagePipeline:ImagePipeline", "monthly", {"name": "x"})
    assert made == {"arn": arn} and arn.startswith("arn:aws:imagebuilder:")


def test_an_unknown_property_is_an_error(resources: Resources) -> None:
    with pytest.raises(ConfigError, match="colour"):
        resources.make("aws:s3/bucket:Bucket", "b", {"bucket": "painted", "colour": "red"})


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        ({"metadataOptions": {"httpToken": "required"}}, "metadataOptions.httpToken"),
        ({"metadataOptions": {"httpTokens": "demanded"}}, "metadataOptions.httpTokens"),
        ({"metadataOptions": {"httpPutResponseHopLimit": "one"}}, "metadataOptions.httpPutResponseHopLimit"),
        (
            {"blockDeviceMappings": [{"ebs": {"encrypted": "perhaps"}}]},
            r"blockDeviceMappings\[0\].ebs.encrypted",
        ),
        ({"blockDeviceMappings": {"ebs": {}}}, "blockDeviceMappings"),
        ({"tagSpecifications": [{"resourceType": "instance", "tags": ["project"]}]}, "tags"),
    ],
)
def test_a_property_without_a_place_in_the_request_is_named(
    resources: Resources, inputs: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        resources.make(TEMPLATE, "t", inputs)


def test_a_refusal_of_aws_names_the_resource(resources: Resources) -> None:
    with pytest.raises(ConfigError, match=r"RolePolicy 'p'.*NoSuchEntity"):
        resources.make("aws:iam/rolePolicy:RolePolicy", "p", {"name": "p", "role": "nobody", "policy": "{}"})


def test_a_zip_holds_files_and_texts_in_order(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("a = 1\n")
    files = {"z.py": pulumi.StringAsset("z = 1\n"), "a.py": pulumi.FileAsset(str(tmp_path / "a.py"))}
    archive = pulumi.AssetArchive(files)
    packed = zipfile.ZipFile(io.BytesIO(zip_archive(archive)))
    assert packed.namelist() == ["a.py", "z.py"]
    assert packed.read("a.py") == b"a = 1\n"


def test_a_setting_that_the_program_refuses_is_told_in_one_line(access: Access, fork_server: Path) -> None:
    with pytest.raises(ConfigError, match="Setting 'volume_gib' is 9; it must be between 75 and 16384"):
        pulumi_apply.apply(access, config={"volume_gib": "9"}, server=fork_server)


def test_a_shells_region_is_not_that_of_a_rehearsal(applied: tuple[Access, dict[str, Any]]) -> None:
    """The program refuses a region that differs from the shell's; the embedded AWS has its own."""
    assert applied[1]["region"] == "us-east-1"


def test_an_account_is_never_touched() -> None:
    with pytest.raises(ConfigError, match="pulumi up"):
        pulumi_apply.apply(Access(region="us-east-1"))


# --- settings and the folder they stand in


def test_settings_are_defaults_then_the_stacks_then_the_callers(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Pulumi.yaml", tmp_path)
    (tmp_path / "Pulumi.prod.yaml").write_text(
        "config:\n  aws:region: eu-west-1\n  mayfly:owner: ops\n  volume_gib: 200\n"
    )
    values = pulumi_apply.settings(tmp_path, stack="prod", overrides={"volume_gib": "300"})
    assert (values["owner"], values["volume_gib"], values["retention"]) == ("ops", "300", "{}")
    assert json.loads(values["control_types"]) == ["g4dn.*", "g5.*", "g6.*", "g6e.*"]
    assert pulumi_apply.settings(tmp_path, stack="none", overrides={})["owner"] == "mayfly"


def test_an_unknown_setting_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"'retentions'.*retention"):
        pulumi_apply.settings(ROOT, stack="dev", overrides={"retentions": "{}"})


def test_a_setting_of_another_type_is_refused() -> None:
    with pytest.raises(UsageError, match="'volume_gib' is 'much'.*integer"):
        pulumi_apply.settings(ROOT, stack="dev", overrides={"volume_gib": "much"})


def test_the_program_is_the_checkouts_or_the_one_in_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pulumi_apply.program_folder() == ROOT
    package = tmp_path / "site-packages" / "trainer"
    (package / "_infra" / "infra").mkdir(parents=True)
    monkeypatch.setattr(pulumi_apply.trainer, "__path__", [str(package)])
    with pytest.raises(ConfigError, match="missing"):
        pulumi_apply.program_folder()
    (package / "_infra" / "Pulumi.yaml").write_text("name: mayfly\n")
    (package / "_infra" / "infra" / "__main__.py").write_text("")
    assert pulumi_apply.program_folder() == package / "_infra"
