"""Functions that run from their zip alone, as processes."""

from __future__ import annotations

import base64
import errno
import hashlib
import io
import json
import os
import threading
import zipfile
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra import policies
from tests.aws.clock import StoppedClock
from trainer.aws.access import Access
from trainer.rehearsal import lambdas
from trainer.rehearsal.account import EXECUTIONS, EventInvocation
from trainer.rehearsal.server import EmbeddedAws

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)
ECHO = """
import os, sys
from datetime import datetime, timezone
def handler(event, context):
    print("hello from", context.function_name)
    left = context.get_remaining_time_in_millis() > 0
    return {"event": event, "stage": os.environ["STAGE"], "left": left, "day": datetime.now(timezone.utc).strftime("%F")}
"""


def create(access: Access, role: str, code: str, *, name: str = "work", timeout_seconds: int = 500) -> str:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        # Without a date: the same code is the same zip.
        archive.writestr(zipfile.ZipInfo("work/__init__.py"), "")
        archive.writestr(zipfile.ZipInfo("work/main.py"), code)
    answer = access.client("lambda").create_function(
        FunctionName=name,
        Runtime="python3.13",
        Role=role,
        Handler="work.main.handler",
        Code={"ZipFile": data.getvalue()},
        Timeout=timeout_seconds,
        Environment={"Variables": {"STAGE": "test"}},
    )
    return str(answer["FunctionArn"])


def invoke(access: Access, **event: Any) -> tuple[Any, str]:
    answer = access.client("lambda").invoke(FunctionName="work", Payload=json.dumps(event).encode())
    return json.loads(answer["Payload"].read()), answer.get("FunctionError", "")


@pytest.fixture
def role(access: Access) -> str:
    return role_of(access)


def role_of(access: Access) -> str:
    iam, trust = access.client("iam"), json.dumps(policies.trust("lambda.amazonaws.com"))
    arn = str(iam.create_role(RoleName="work", AssumeRolePolicyDocument=trust)["Role"]["Arn"])
    logs = policies.allow("Log", ["logs:CreateLogStream", "logs:PutLogEvents"], "*")
    document = json.dumps(policies.document(logs))
    iam.put_role_policy(RoleName="work", PolicyName="logs", PolicyDocument=document)
    return arn


def test_an_event_that_waits_as_its_server_ends_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = lambdas.wait_for_invocations
    with EmbeddedAws() as server, ExitStack() as slots:
        access = server.account()
        arn, cloud = create(access, role_of(access), ECHO), server.cloud(access)
        for _ in range(EXECUTIONS):
            slots.enter_context(cloud.executions)
        lambdas.invoke_event(cloud, lambdas.function_name(arn), b"{}")
        taken = slots.pop_all()
        monkeypatch.setattr(lambdas, "wait_for_invocations", lambda one: (taken.close(), real(one)))
    taken.close()
    real(cloud)
    assert not server.root.exists()


def test_a_function_gets_its_event_and_environment(
    aws_server: EmbeddedAws, access: Access, role: str
) -> None:
    aws_server.cloud(access).clock = StoppedClock(NOON + timedelta(days=7))  # which a function reads, too
    create(access, role, ECHO)
    expected = {"event": {"run_id": "r1"}, "stage": "test", "left": True, "day": "2026-11-27"}
    assert invoke(access, run_id="r1") == (expected, "")
    assert "hello from work" in lambdas.log_file(aws_server.cloud(access), "work").read_text()


def test_nothing_of_ours_can_be_imported(access: Access, role: str) -> None:
    create(
        access,
        role,
        "import importlib.util, sys\n"
        "def handler(event, context):\n"
        "    return [name for name in event['names'] if importlib.util.find_spec(name)], sys.path\n",
    )
    (found, path), _ = invoke(access, names=["trainer", "boto3", "botocore", "moto", "torch", "json"])
    assert found == ["json"]
    assert not [entry for entry in path if "site-packages" in entry or entry in ("", str(Path.cwd()))]


def test_the_deskside_environment_does_not_reach_a_function(
    access: Access, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DESK_SECRET", "hush")
    create(access, role, "import os\ndef handler(event, context): return dict(os.environ)\n")
    told, _ = invoke(access)
    assert "DESK_SECRET" not in told
    assert told["AWS_ENDPOINT_URL"] == access.endpoint_url
    assert access.access_key is not None
    assert access.access_key[4:16] in told["AWS_ACCESS_KEY_ID"]
    assert told["HOME"] != str(Path.home())


@pytest.mark.parametrize(
    ("code", "seconds", "expected"),
    [
        ("def handler(event, context): raise KeyError('bucket')\n", 500, "KeyError"),
        ("import time\ndef handler(event, context): time.sleep(60)\n", 1, "Sandbox.Timedout"),
    ],
)
def test_a_function_that_fails_or_hangs_says_so(
    access: Access, role: str, code: str, seconds: int, expected: str
) -> None:
    create(access, role, code, timeout_seconds=seconds)
    told, error = invoke(access)
    assert (told["errorType"], error) == (expected, "Unhandled")


def test_an_event_is_accepted_and_runs_later(
    aws_server: EmbeddedAws, access: Access, role: str, wait_until: Callable[..., None]
) -> None:
    create(access, role, ECHO)
    assert access.client("lambda").invoke(FunctionName="work", InvocationType="Event")["StatusCode"] == 202
    output = lambdas.log_file(aws_server.cloud(access), "work")
    wait_until(lambda: output.exists() and "hello" in output.read_text())


def test_a_function_that_its_servers_end_stops_has_not_failed(
    aws_server: EmbeddedAws,
    access: Access,
    role: str,
    wait_until: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    create(
        access,
        role,
        "import time\ndef handler(event, context):\n    print('hello', flush=True)\n    time.sleep(600)",
    )
    access.client("lambda").invoke(FunctionName="work", InvocationType="Event")
    cloud = aws_server.cloud(access)
    output = lambdas.log_file(cloud, "work")
    wait_until(lambda: output.exists() and "hello" in output.read_text())
    lambdas.stop_all()
    lambdas.wait_for_invocations(cloud)
    assert "failed" not in caplog.text


def test_ten_run_at_once_a_call_more_is_refused_an_event_waits(
    aws_server: EmbeddedAws, access: Access, role: str
) -> None:
    cloud = aws_server.cloud(access)
    create(access, role, ECHO)
    client, output = access.client("lambda", total_max_attempts=1), lambdas.log_file(cloud, "work")
    with ExitStack() as others:
        for _ in range(EXECUTIONS):
            others.enter_context(cloud.executions)
        with pytest.raises(ClientError) as refused:
            client.invoke(FunctionName="work")
        assert refused.value.response["Error"]["Code"] == "TooManyRequestsException"
        assert client.invoke(FunctionName="work", InvocationType="Event")["StatusCode"] == 202
        assert len(cloud.invocations) == 1 and not output.exists()
    lambdas.wait_for_invocations(cloud)
    assert output.read_text().count("hello") == 1
    assert invoke(access)[1] == ""


def test_a_rate_schedule_runs_the_function(
    aws_server: EmbeddedAws, access: Access, role: str, scheduler_role: str, wait_until: Callable[..., None]
) -> None:
    arn = create(access, role, "def handler(event, context): print('swept', event)\n")
    access.client("scheduler").create_schedule(
        Name="sweep",
        ScheduleExpression="rate(2 minutes)",
        FlexibleTimeWindow={"Mode": "OFF"},
        Target={"Arn": arn, "RoleArn": scheduler_role, "Input": '{"at": "<aws.scheduler.attempt-number>"}'},
    )
    cloud = aws_server.cloud(access)
    cloud.advance(121)
    cloud.fire_schedules = True
    output = lambdas.log_file(cloud, "work")
    wait_until(lambda: output.exists() and "swept {'at': '1'}" in output.read_text())
    cloud.fire_schedules = False


def test_a_dry_run_is_refused_and_runs_nothing(aws_server: EmbeddedAws, access: Access, role: str) -> None:
    create(access, role, ECHO)
    with pytest.raises(ClientError, match="does not carry out Invoke"):
        access.client("lambda").invoke(FunctionName="work", InvocationType="DryRun")
    assert not lambdas.log_file(aws_server.cloud(access), "work").exists()


def test_an_unknown_function_is_not_found(access: Access) -> None:
    with pytest.raises(ClientError) as failed:
        access.client("lambda").invoke(FunctionName="nothing")
    assert failed.value.response["Error"]["Code"] == "ResourceNotFoundException"


FULL = "# a zip that is not there yet\n"


def test_a_function_can_be_created_again_after_a_full_disk(
    access: Access, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def extractall(archive: zipfile.ZipFile, path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(zipfile.ZipFile, "extractall", extractall)
        with pytest.raises(ClientError) as failed:
            create(access, role, ECHO + FULL)
    assert failed.value.response["Error"]["Code"] == "DiskFull"
    create(access, role, ECHO + FULL)


def test_size_and_hash_are_those_of_the_zip(access: Access, role: str) -> None:
    own = {"FunctionName": "work", "Runtime": "python3.13", "Role": role, "Handler": "work.main.handler"}
    code = io.BytesIO()
    with zipfile.ZipFile(code, "w") as archive:
        archive.writestr("work/main.py", ECHO)
    functions, sha256 = access.client("lambda"), hashlib.sha256(code.getvalue()).digest()
    made = functions.create_function(**own, Code={"ZipFile": code.getvalue()})
    read = functions.get_function(FunctionName="work")["Configuration"]
    assert made["ResponseMetadata"]["HTTPStatusCode"] == 201
    for one in (made, read, *functions.list_functions()["Functions"]):
        assert one["CodeSize"] == len(code.getvalue())
        assert one["CodeSha256"] == base64.b64encode(sha256).decode()
        assert (one["FunctionArn"], one["Handler"]) == (made["FunctionArn"], own["Handler"])


@pytest.mark.parametrize("name", ["../../x", "a/b", "."])
def test_a_function_whose_name_is_a_path_is_refused(access: Access, role: str, name: str) -> None:
    with pytest.raises(ClientError):
        create(access, role, ECHO, name=name)


def test_accounts_share_unpacked_zips_and_unused_ones_go(
    aws_server: EmbeddedAws, access: Access, role: str
) -> None:
    folder = aws_server.cloud(access).function_code
    (unused := folder / "unused").mkdir(parents=True)
    os.utime(unused, (0, 0))
    create(access, role, ECHO + "\n# a zip of its own\n")
    assert not unused.exists() and folder.stat().st_mode & 0o022 == 0
    create(access, role, ECHO + "\n# a zip of its own\n", name="again")
    functions = aws_server.cloud(access).functions
    assert functions["work"].folder == functions["again"].folder


def test_an_invocation_that_has_yet_to_start_is_waited_for(
    aws_server: EmbeddedAws, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud, held, go = aws_server.cloud(access), threading.Event(), threading.Event()
    start, ended = threading.Thread.start, list[str]()

    def late(thread: threading.Thread) -> None:
        if thread.name == "lambda-gone":
            held.set()
            assert go.wait(500)
        start(thread)

    def wait() -> None:
        lambdas.wait_for_invocations(cloud)
        ended.append("waited")

    monkeypatch.setattr(threading.Thread, "start", late)
    event = EventInvocation(
        function_name="gone", payload=b"", request_id="1"
    )  # deleted meanwhile: nothing runs
    starting = threading.Thread(target=lambdas.start, args=(cloud, event))
    waiting = threading.Thread(target=wait)
    starting.start()
    assert held.wait(500)
    waiting.start()
    go.set()
    starting.join()
    waiting.join()
    assert ended == ["waited"]
