"""Checks of the account before a launch: each refusal is one line that says what to do."""

from __future__ import annotations

import io
import json
import threading
import zipfile
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.records import rung
from tests.trainer.launch.test_start import OUTPUTS
from trainer.aws.access import Access
from trainer.aws.place import ACCOUNT
from trainer.aws.stack import read_stack
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import ConfigError, ConnectionFailed, QuotaError
from trainer.launch.checks import account_checks, ask_all, spot_role, sweeper, versioning
from trainer.launch.quotas import counted, quota_note
from trainer.machines.instances import instance_type
from trainer.rehearsal.server import EmbeddedAws
from trainer.runs.attempts import Rung

Applied = tuple[Access, StackOutputs]
PATIENT = replace(ACCOUNT, answer_seconds=500.0, function_seconds=500.0)
HASTY = replace(ACCOUNT, answer_seconds=0.01, function_seconds=0.01)


@pytest.fixture
def net(applied: Access) -> Applied:
    """The account that tests share, and its stack."""
    return applied, read_stack(applied, stack="dev")


# --- asking
# ------------------------------------------------------------------------------------------


def test_everything_is_asked_at_once_and_notes_keep_their_order() -> None:
    meeting = threading.Barrier(3, timeout=500)  # passes only where three ask side by side

    def note(text: str) -> Callable[[], str]:
        def check() -> str:
            meeting.wait()
            return text

        return check

    assert ask_all({"a": note("one"), "b": note(""), "c": note("two")}, PATIENT) == ["one", "two"]


def test_a_late_answer_is_named_unless_something_failed() -> None:
    release = threading.Event()

    def late() -> str:
        release.wait()
        return ""

    def failed() -> str:
        raise ConfigError("the bucket is gone")

    try:
        line = r"cannot check the sweeper, the quotas \(no answer within 0 s\)"
        with pytest.raises(ConnectionFailed, match=line):
            ask_all({"the sweeper": late, "the quotas": late}, HASTY)
        done = threading.Event()

        def told() -> str:
            done.set()
            return failed()

        with pytest.raises(ConfigError, match="the bucket is gone"):
            ask_all({"late": lambda: str(done.wait() and ""), "failed": told}, PATIENT)
    finally:
        release.set()


def test_the_sweeper_alone_is_given_longer() -> None:
    release = threading.Event()

    def late() -> str:
        release.wait()
        return ""

    place = replace(ACCOUNT, answer_seconds=0.0, function_seconds=500.0)
    try:
        with pytest.raises(ConnectionFailed, match=r"cannot check the quotas \(no answer within 0 s\)"):
            ask_all({"the sweeper": lambda: "", "the quotas": late}, place)
    finally:
        release.set()


def test_a_cold_sweeper_has_25_seconds_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}

    class Client:
        def invoke(self, **_: object) -> dict[str, object]:
            return {}

    def client(self: Access, service: str, **options: object) -> Client:
        asked[service] = options
        return Client()

    monkeypatch.setattr(Access, "client", client)
    assert sweeper(Access(place=ACCOUNT), OUTPUTS) == ""
    # and it is not called twice: a second sweep would only begin later
    assert asked == {"lambda": {"total_max_attempts": 1, "timeout_seconds": 25.0}}


def test_the_limit_is_ten_seconds_but_for_a_rehearsal(net: Applied) -> None:
    assert ACCOUNT.answer_seconds == 10
    assert net[0].place.answer_seconds > 60  # its sweeper runs here, beside whatever else does


def test_a_check_is_left_out_where_it_does_not_apply(net: Applied) -> None:
    def asked(market: str, *, sweep: bool) -> set[str]:
        asked = set(account_checks(*net, (rung(market=market),), sweep=sweep))
        return asked - {"the bucket's versioning", "the quotas"}

    assert asked("on_demand", sweep=False) == set()
    assert asked("spot", sweep=True) == {"the sweeper", "the spot role"}


# --- the safety net
# ------------------------------------------------------------------------------------------


def function(access: Access, name: str, source: str) -> str:
    """Create a function of one file, and return its ARN."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("code.py", source)
    trusted = {"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}}
    trust = json.dumps({"Version": "2012-10-17", "Statement": [{**trusted, "Action": "sts:AssumeRole"}]})
    role = access.client("iam").create_role(RoleName=name, AssumeRolePolicyDocument=trust)["Role"]["Arn"]
    made = access.client("lambda").create_function(
        FunctionName=name,
        Runtime="python3.13",
        Role=role,
        Handler="code.handler",
        Code={"ZipFile": packed.getvalue()},
        Timeout=300,
    )
    return str(made["FunctionArn"])


def test_the_stacks_own_bucket_and_the_accounts_spot_role_pass(net: Applied) -> None:
    assert versioning(*net) == spot_role(net[0]) == ""


def test_a_sweeper_that_fails_is_refused_with_its_own_words(net: Applied, access: Access) -> None:
    _, outputs = net
    source = "def handler(event, context):\n    raise RuntimeError('no permission')\n"
    arn = function(access, "broken-sweeper", source)
    with pytest.raises(ConfigError) as refused:
        sweeper(access, replace(outputs, sweeper_arn=arn))
    line = "the sweeper broken-sweeper fails (RuntimeError: no permission). Nothing is launched without it."
    assert str(refused.value) == f"{line} Read its log, /aws/lambda/broken-sweeper, or run pulumi up."


def test_a_sweeper_that_is_gone_is_refused(net: Applied) -> None:
    access, outputs = net
    gone = replace(outputs, sweeper_arn=f"{outputs.sweeper_arn}-gone")
    with pytest.raises(ConfigError, match=r"cannot check the sweeper \(ResourceNotFoundException"):
        ask_all({"the sweeper": lambda: sweeper(access, gone)}, PATIENT)


def test_a_bucket_without_versions_is_refused(net: Applied, access: Access) -> None:
    _, outputs = net
    bucket = f"plain-{str(access.access_key)[4:16]}"
    access.client("s3").create_bucket(Bucket=bucket)
    with pytest.raises(ConfigError, match=f"the bucket {bucket} keeps no versions .its versioning is disab"):
        versioning(access, replace(outputs, bucket=bucket))


def test_whether_there_is_a_spot_role_may_be_unknown(access: Access) -> None:
    iam = access.client("iam")
    iam.create_user(UserName="nobody")
    key = iam.create_access_key(UserName="nobody")["AccessKey"]
    nobody = replace(access, access_key=key["AccessKeyId"], secret_key=key["SecretAccessKey"])
    unknown = (
        "whether the account has the role AWSServiceRoleForEC2Spot, without which spot fails, is unknown"
    )
    assert spot_role(nobody) == f"{unknown} (AccessDenied)"
    note = quota_note(nobody, (priced("g6.xlarge"),), seconds=500)
    assert note == "quota L-DB2E81BA can't be read (AccessDeniedException)"


# --- quotas
# ------------------------------------------------------------------------------------------


def priced(name: str, market: str = "on_demand") -> Rung:
    machine = instance_type(name)
    code = machine.spot_quota_code if market == "spot" else machine.on_demand_quota_code
    return replace(rung(name, market=market), vcpus=machine.vcpus, quota_code=code)


@pytest.fixture
def limited(aws_server: EmbeddedAws, access: Access, image: dict[str, Any]) -> Callable[[float], Access]:
    """Return access to an account in which a g6.xlarge (4 vCPUs) runs, with so many vCPUs of G instances on
    demand.
    """

    def limit(vcpus: float) -> Access:
        aws_server.cloud(access).quotas["L-DB2E81BA"] = vcpus
        return access

    access.client("ec2").run_instances(InstanceType="g6.xlarge", **image)
    return limit


@pytest.fixture
def image(access: Access) -> dict[str, Any]:
    """Return a request for one machine, but for its type."""
    line = "oss-nvidia-driver-gpu-pytorch-2.13-ubuntu-26.04"
    parameter = f"/aws/service/deeplearning/ami/x86_64/{line}/latest/ami-id"
    image_id = access.client("ssm").get_parameter(Name=parameter)["Parameter"]["Value"]
    return {"ImageId": image_id, "MinCount": 1, "MaxCount": 1}


def test_a_quota_is_refused_with_its_use_and_a_link(
    limited: Callable[[float], Access], image: dict[str, Any]
) -> None:
    access = limited(48)
    with pytest.raises(QuotaError) as refused:
        quota_note(access, (priced("g6.12xlarge"), priced("g5.12xlarge")), seconds=500)
    use = "Running On-Demand G and VT instances (L-DB2E81BA) is 48 vCPUs, 4 in use"
    link = "https://console.aws.amazon.com/servicequotas/home/services/ec2/quotas/L-DB2E81BA"
    assert str(refused.value) == (
        "the account's quota does not allow g6.12xlarge on-demand"
        f" ({use}; g6.12xlarge needs 48; {use}; g5.12xlarge needs 48)."
        f" Ask for more at {link}, end what uses it, or name a smaller --instance."
    )
    assert refused.value.exit_code == 102
    ec2 = access.client("ec2", total_max_attempts=1)
    with pytest.raises(Exception, match="VcpuLimitExceeded"):
        ec2.run_instances(InstanceType="g6.12xlarge", **image)
    limited(52)
    assert quota_note(access, (priced("g6.12xlarge"), priced("g5.12xlarge")), seconds=500) == ""


def test_a_type_that_does_not_fit_beside_one_that_does_is_a_note(limited: Callable[[float], Access]) -> None:
    spot = (priced(name, "spot") for name in ("g6.12xlarge", "p6-b300.48xlarge"))
    note = quota_note(limited(8), (priced("g6.12xlarge"), priced("g6.xlarge"), *spot), seconds=500)
    use = "Running On-Demand G and VT instances (L-DB2E81BA) is 8 vCPUs, 4 in use"
    assert note == f"will not fit: {use}; g6.12xlarge needs 48"


def test_vcpus_are_counted_by_quota_of_known_types() -> None:
    names = ("g6.xlarge", "g5.12xlarge", "p4d.24xlarge", "m5.24xlarge", "c7i.8xlarge", "x9.large")
    described = [{"InstanceType": name} for name in names]
    described += [{"InstanceType": name, "InstanceLifecycle": "spot"} for name in ("g5.12xlarge", "t3.large")]
    with_gpus = {"L-DB2E81BA": 52, "L-3819A6DF": 48, "L-417A185B": 96}
    assert counted(described) == {**with_gpus, "L-1216C47A": 96 + 32, "L-34B43A08": 2}
