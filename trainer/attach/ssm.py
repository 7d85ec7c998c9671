"""Sessions through AWS's Session Manager: command lines of the AWS CLI and its plugin, and a check that both
are installed.

Nothing listens on the machine, and no key is needed: IAM decides (infra/attach.py). A session's user is
`ssm-user`, who may become root. Session Manager reports no exit code of a command: one that ends by itself
counts as 0.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Sequence

from trainer.attach.request import AttachRequest, Forward
from trainer.base.errors import ConfigError

CLI, PLUGIN = "aws", "session-manager-plugin"
_GUIDES = {
    CLI: "https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html",
    PLUGIN: "https://docs.aws.amazon.com/systems-manager/latest/userguide/session-manager-working-with-install-plugin.html",
}
ANSWER_SECONDS = 30.0  # of `--version`; the CLI is a Python program, on a cold disk


def check_tools() -> None:
    """Raise ConfigError for the first of the two programs that is missing or does not start."""
    for name in (CLI, PLUGIN):
        _check(name)


def _check(name: str) -> None:
    path = shutil.which(name)
    if path is None:
        what = f"attaching through Session Manager needs {name}"
        raise ConfigError(what, why="it is not on PATH", do=f"Install it: {_GUIDES[name]}")
    try:
        subprocess.run([path, "--version"], capture_output=True, timeout=ANSWER_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        do = f"Reinstall it: {_GUIDES[name]}"
        raise ConfigError(f"{path} does not work", why=str(error), do=do) from error


def shell_command(instance_id: str, *, region: str, line: str) -> list[str]:
    """Return the command line of a shell on an instance, or of one command."""
    if not line:
        return _start(instance_id, region)
    return _start(instance_id, region, "AWS-StartInteractiveCommand", {"command": [line]})


def forward_command(instance_id: str, *, region: str, forward: Forward) -> list[str]:
    """Return the command line that forwards a port."""
    ports = {"portNumber": [str(forward.remote)], "localPortNumber": [str(forward.local)]}
    return _start(instance_id, region, "AWS-StartPortForwardingSession", ports)


def _start(
    instance_id: str, region: str, document: str = "", parameters: dict[str, list[str]] | None = None
) -> list[str]:
    """Return a command line of start-session. Without a document the account's default one opens a shell."""
    named = ["--document-name", document, "--parameters", json.dumps(parameters)] if document else []
    return [CLI, "ssm", "start-session", "--region", region, "--target", instance_id, *named]


def attach_by_session_manager(instance_id: str, request: AttachRequest, *, region: str) -> int:
    """Forward ports until Ctrl-C, or run a line or a shell; return the CLI's exit code.

    Raises ConfigError if one of the two programs is missing.
    """
    check_tools()
    for forward in request.forwards:
        request.announce(forward)
    commands = [forward_command(instance_id, region=region, forward=forward) for forward in request.forwards]
    return _run(commands or [shell_command(instance_id, region=region, line=request.line)])


def _run(commands: Sequence[Sequence[str]]) -> int:
    """Run the commands concurrently with this process's streams until all have ended; return the first exit
    code that is not 0.

    They handle Ctrl-C: a shell sends it to the machine, a forwarded port ends.
    """
    before = signal.signal(signal.SIGINT, lambda *_: None)  # not SIG_IGN, which a child would inherit
    try:
        children = [subprocess.Popen(list(command)) for command in commands]
        codes = [child.wait() for child in children]
    finally:
        signal.signal(signal.SIGINT, before)
    return next((code for code in codes if code), 0)
