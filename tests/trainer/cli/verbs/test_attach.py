"""`mayfly attach` as it is typed: refused where a stack lets nobody in, by Session Manager with stubs of
AWS's programs, and by SSH to a server on loopback.
"""

from __future__ import annotations

import json
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra import policies
from infra.attach import agent_messages, sessions
from infra.stack import Stack
from tests.iam import assert_allowed_is_needed, instance_policy
from tests.running import Running
from tests.session_manager import write_stubs
from tests.sshd import key_pair, paramiko_server
from tests.trainer.conftest import CLOSED_RUN, OPEN_RUN
from trainer.attach import by_ssh
from trainer.attach.keys import find_key, make_key
from trainer.attach.ssh import connection
from trainer.aws.access import Access
from trainer.aws.objects import Objects
from trainer.aws.place import ACCOUNT
from trainer.aws.stack import read_stack
from trainer.base.errors import ConfigError, ConnectionFailed
from trainer.cli.main import main
from trainer.cli.verbs.attach import address_of
from trainer.cli.verbs.doctor import attach_checks, finding
from trainer.rehearsal.server import EmbeddedAws

pytestmark = pytest.mark.slow  # an account in which a machine is up
ROLE = "mayfly-dev-us-east-1-instance"
Attach = Callable[..., tuple[int, str, str]]


@pytest.fixture
def stack_with(access: Access, account: Objects) -> Callable[[str], None]:
    """Set the stack's `attach`, as pulumi up would."""

    def set_attach(mode: str) -> None:
        outputs = replace(read_stack(access, stack="dev"), attach=mode)
        access.client("ssm").put_parameter(
            Name="/mayfly/mayfly/dev", Value=outputs.to_json(), Type="String", Overwrite=True
        )

    return set_attach


@pytest.fixture
def attach(
    access: Access,
    account: Objects,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Attach:
    """Run the verb on an account that counts as a real one; return exit code, stdout and stderr, those of
    children included.
    """

    @contextmanager
    def connected(**_: object) -> Iterator[Access]:
        yield replace(access, place=ACCOUNT)

    monkeypatch.setattr("trainer.cli.verbs.attach.connected", connected)
    monkeypatch.setenv("MAYFLY_HOME", str(tmp_path / "home"))

    def call(*words: str) -> tuple[int, str, str]:
        code = main(["attach", *words])
        out, err = capfd.readouterr()
        return code, out, err

    return call


def machine(access: Access, account: Objects, *, sessions: bool) -> Running:
    """Start a machine under the training role, with or without what the setting `ssm` adds to it."""
    iam = access.client("iam")
    trust = json.dumps(policies.trust("ec2.amazonaws.com"))
    iam.create_role(RoleName=ROLE, AssumeRolePolicyDocument=trust)
    document = instance_policy("b", *([agent_messages()] if sessions else []))
    iam.put_role_policy(RoleName=ROLE, PolicyName="instance", PolicyDocument=document)
    iam.create_instance_profile(InstanceProfileName=ROLE)
    iam.add_role_to_instance_profile(InstanceProfileName=ROLE, RoleName=ROLE)
    return Running(access, account, IamInstanceProfile={"Name": ROLE})


def own_policy(access: Access) -> dict[str, Any]:
    account = str(access.access_key)[4:16]
    return sessions(
        Stack(account=account, region="us-east-1", project="mayfly", name="dev", owner="mayfly", log_days=1)
    )


@pytest.fixture
def person(access: Access, account: Objects, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Access:
    """An IAM user with the attach policy alone, whose credentials AWS's CLI finds, and stubs of it and its
    plugin on PATH.
    """
    iam = access.client("iam")
    iam.create_user(UserName="ada")
    iam.put_user_policy(UserName="ada", PolicyName="attach", PolicyDocument=json.dumps(own_policy(access)))
    key = iam.create_access_key(UserName="ada")["AccessKey"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
    write_stubs(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return replace(access, access_key=key["AccessKeyId"], secret_key=key["SecretAccessKey"])


def test_an_ended_or_unknown_run_has_nothing_to_attach_to(
    attach: Attach, stack_with: Any, account: Objects
) -> None:
    make_key(CLOSED_RUN)
    code, _, err = attach(CLOSED_RUN)
    assert code == 2 and "there is no machine to attach to" in err
    with pytest.raises(ConfigError, match="this desk has no SSH key"):
        find_key(CLOSED_RUN)  # forgotten
    assert attach("20261120-120000-crypto-k3v8")[0] == 2
    for words in (("--forward", "1:2", "--", "ls"), ("--forward", "x")):
        code, _, err = attach(CLOSED_RUN, *words)
        assert code == 2 and err.count("\n") == 1


def test_status_and_stop_forget_the_keys_of_runs_that_have_ended(account: Objects, attach: Attach) -> None:
    for words, run in ((["status"], CLOSED_RUN), (["stop", OPEN_RUN], OPEN_RUN)):
        make_key(run)
        assert main(words) == 0
        with pytest.raises(ConfigError, match="this desk has no SSH key"):
            find_key(run)


def test_refusals_to_attach_are_one_line_each(
    access: Access, account: Objects, attach: Attach, stack_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = Running(access, account)
    code, _, err = attach(OPEN_RUN)
    assert (
        code == 103
        and "machines of mayfly-dev can't be attached to (attach is off)" in err
        and "docs/scripts-and-machines.md" in err
    )
    stack_with("ssh")
    code, _, err = attach(OPEN_RUN, "--", "hostname")
    assert code == 103 and f"this desk has no SSH key of {OPEN_RUN}" in err
    make_key(OPEN_RUN)
    code, _, err = attach(OPEN_RUN, "--", "hostname")
    assert (
        code == 103
        and f"{running.instance_id} has not published its host keys yet" in err
        and err.count("\n") == 1
    )
    monkeypatch.setattr("trainer.cli.verbs.attach.connected", lambda **_: nullcontext(access))
    code, _, err = attach(OPEN_RUN)
    assert code == 2 and "there is no machine to attach to" in err and err.count("\n") == 1


def test_a_shell_a_command_and_a_port_by_session_manager(
    aws_server: EmbeddedAws,
    access: Access,
    account: Objects,
    attach: Attach,
    stack_with: Any,
    person: Access,
    tmp_path: Path,
) -> None:
    running = machine(access, account, sessions=True)
    stack_with("ssm")
    assert attach(OPEN_RUN, "--", "echo $((6*7))")[:2] == (0, "42\n")
    assert attach(OPEN_RUN)[0] == 0  # a shell, which reads the end of stdin

    (tmp_path / "page").write_text(OPEN_RUN)
    files = partial(SimpleHTTPRequestHandler, directory=tmp_path)
    web = ThreadingHTTPServer(("127.0.0.1", 0), files)
    threading.Thread(target=web.serve_forever, args=(0.05,), daemon=True).start()
    pages: list[bytes] = []
    port = free_port()

    def fetch() -> None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while not pages:
            try:
                with opener.open(f"http://127.0.0.1:{port}/page", timeout=500) as answer:
                    pages.append(answer.read())
            except OSError:
                continue

    reader = threading.Thread(target=fetch)
    reader.start()
    code, _, err = attach(OPEN_RUN, "--forward", f"{port}:{web.server_port}")
    reader.join()
    web.shutdown()
    web.server_close()
    assert code == 0 and f"http://127.0.0.1:{port} leads to port {web.server_port} of the machine" in err
    assert pages == [OPEN_RUN.encode()]

    # What role and people may do is what was needed: by the CLI, and by its plugin, which resumes, ends and
    # opens a channel.
    ssm = person.client("ssm")
    session = ssm.start_session(Target=running.instance_id)["SessionId"]
    ssm.resume_session(SessionId=session)
    ssm.terminate_session(SessionId=session)
    embedded = aws_server.cloud(access)
    actions = (
        "ssmmessages:",
        "ssm:UpdateInstance",
        "ssm:StartSession",
        "ssm:ResumeSession",
        "ssm:TerminateSession",
    )
    asked = [one for one in embedded.decisions if one[1].action.startswith(actions)]
    channel = f"OpenOwnSessions ssmmessages:OpenDataChannel {own_policy(access)['Statement'][2]['Resource']}"
    people = [(question, decision) for who, question, decision in asked if who.kind == "USER"]
    assert_allowed_is_needed(
        people, own_policy(access), {channel: "asked by AWS's plugin, for which a stub stands in"}
    )
    agent = [(question, decision) for who, question, decision in asked if who.kind == "NODE"]
    assert_allowed_is_needed(agent, policies.document(agent_messages()), {})


def test_the_attach_policy_covers_this_stack_and_own_sessions(
    access: Access, account: Objects, attach: Attach, stack_with: Any, person: Access
) -> None:
    running = machine(access, account, sessions=False)
    stack_with("ssm")
    code, out, err = attach(OPEN_RUN, "--", "hostname")
    assert code in (254, 255) and not out and "TargetNotConnected" in err  # its role allows no session
    ssm, target = person.client("ssm"), running.instance_id
    running.ec2.create_tags(Resources=[target], Tags=[{"Key": "stack", "Value": "prod"}])
    for call, arguments in (
        (ssm.start_session, {"Target": target}),
        (ssm.start_session, {"Target": target, "DocumentName": "AWS-StartSSHSession"}),
        (ssm.terminate_session, {"SessionId": "AIDAOTHER-0123456789abcdef0"}),
        (ssm.resume_session, {"SessionId": "AIDAOTHER-0123456789abcdef0"}),
        (ssm.send_command, {"DocumentName": "AWS-RunShellScript", "InstanceIds": [target]}),
    ):
        with pytest.raises(ClientError, match="AccessDenied"):
            call(**arguments)


def test_a_missing_program_of_aws_is_one_line_with_its_page(
    access: Access, account: Objects, attach: Attach, stack_with: Any, person: Access, tmp_path: Path
) -> None:
    machine(access, account, sessions=True)
    stack_with("ssm")
    outputs = read_stack(access, stack="dev")
    check = attach_checks(outputs)["attach"]
    assert finding("attach", check).state == "ok" and not attach_checks(replace(outputs, attach="off"))
    (tmp_path / "bin/session-manager-plugin").unlink()
    found = finding("attach", check)
    assert (
        found.state == "failed"
        and "session-manager-plugin" in found.what
        and "install-plugin.html" in found.do
    )
    code, _, err = attach(OPEN_RUN, "--", "hostname")
    assert code == 103 and err.count("\n") == 1 and "needs session-manager-plugin (it is not on PATH)" in err


def test_by_ssh_a_command_runs_on_the_pinned_machine_alone(
    access: Access,
    account: Objects,
    attach: Attach,
    stack_with: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    running = Running(access, account)
    stack_with("ssh")
    public = make_key(OPEN_RUN)
    monkeypatch.setattr("trainer.cli.verbs.attach.address_of", lambda *_, **__: "127.0.0.1")
    with paramiko_server(tmp_path / "sshd", public) as server:
        monkeypatch.setattr(by_ssh, "connection", to_port(server.port))
        account.put(key=running.keys.host_keys, body=key_pair(tmp_path / "other").encode())
        code, out, err = attach(OPEN_RUN, "--", "hostname")
        assert (
            code == 103
            and not out
            and err.count("\n") == 1
            and "is not the run's" in err
            and not server.asked
        )
        account.put(key=running.keys.host_keys, body=server.published)
        assert attach(OPEN_RUN, "--", "echo out; echo err >&2; exit 7") == (7, "out\n", "err\n")
        code, _, err = attach(OPEN_RUN)
        assert code == 2 and "a shell needs a terminal" in err
        running.end()
        assert attach(OPEN_RUN, "--", "hostname")[0] == 2
        with pytest.raises(ConfigError, match="this desk has no SSH key"):
            find_key(OPEN_RUN)


def test_the_address_is_the_machines_public_one(access: Access, account: Objects) -> None:
    running = Running(access, account)
    known = running.ec2.describe_instances(InstanceIds=[running.instance_id])["Reservations"][0]["Instances"][
        0
    ]
    assert address_of(access, running.instance_id) == known["PublicIpAddress"]
    running.end()
    with pytest.raises(ConnectionFailed, match=r"has no public address. Set attach to ssm"):
        address_of(access, running.instance_id)


def to_port(port: int) -> Any:
    """Return `connection` to another port than sshd's own, which tests can't listen on."""

    def to(host: str, **more: Any) -> Any:
        return connection(host, **{**more, "port": port})

    return to


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])
