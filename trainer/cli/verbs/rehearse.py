"""`mayfly rehearse`: point a shell at this desk's embedded AWS, end it, or set its stack's settings.

eval "$(mayfly rehearse --env)"            # boto3, the AWS CLI and mayfly use it from now on
mayfly rehearse --settings retrains.yaml   # as in Pulumi.<stack>.yaml: the rehearsal's `pulumi up`
mayfly rehearse --stop
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from trainer.base import environment
from trainer.base.errors import ConfigError, UsageError
from trainer.cli.output import say, say_json
from trainer.rehearsal import home
from trainer.rehearsal.client import default_root, lease_server, rehearsal, stop_server
from trainer.rehearsal.leases import shell_of_our_output
from trainer.rehearsal.pulumi_apply import settings_in

ALIVE = ["pending", "running", "shutting-down", "stopping"]


def run(args: argparse.Namespace) -> int:
    """Print the variables of a shell's lease, end the embedded AWS, or set its stack's settings.
    Returns 0.
    """
    root = default_root()
    if args.settings is not None:
        return _set(root, Path(args.settings), as_json=args.json)
    if args.stop:
        ended = stop_server(root)
        said = "stopped" if ended else "nothing was running"
        print(json.dumps({"stopped": ended}) if args.json else said)
        return 0
    server = lease_server(root, holder=shell_of_our_output())  # it ends with the shell
    server.apply_program()
    access = server.access()
    variables = {
        "AWS_ENDPOINT_URL": access.endpoint_url or "",
        "AWS_ACCESS_KEY_ID": access.access_key or "",
        "AWS_SECRET_ACCESS_KEY": access.secret_key or "",
        "AWS_REGION": access.region or "",
        "AWS_DEFAULT_REGION": access.region or "",
        **environment.without_proxy("127.0.0.1"),
    }
    # A profile or a token of an account's would win, or not fit the keys.
    stale = environment.stale_aws_variables(variables)
    if args.json:
        print(json.dumps({**variables, **dict.fromkeys(stale)}))
    else:
        print("\n".join([f"export {name}={shlex.quote(value)}" for name, value in variables.items()]))
        if stale:
            print(f"unset {' '.join(stale)}")
    whose = f"the embedded AWS of {root.absolute()} is this shell's until it ends"
    print(f"{whose}; it checks no permissions", file=sys.stderr)
    return 0


def _set(root: Path, file: Path, *, as_json: bool) -> int:
    """Apply the program with the settings of a file from now on, in place of those of an earlier one.

    Raises UsageError while an instance runs, ConfigError for
    settings that the program refuses: the earlier ones stay.
    """
    settings, root = settings_in(file), home.open_home(root)
    _refuse_running(root)
    before = home.read_stack_settings(root)
    try:
        _apply(root, settings)
    except ConfigError:
        _apply(root, before)
        raise
    if as_json:
        say_json({"settings": settings})
    else:
        say(*(f"{key}: {value}" for key, value in sorted(settings.items())))
    return 0


def _apply(root: Path, settings: Mapping[str, str]) -> None:
    stop_server(root)  # it has the program with other settings, or half of it
    home.write_stack_settings(root, settings)
    with rehearsal(root):
        pass


def _refuse_running(root: Path) -> None:
    with rehearsal(root, program=False) as access:
        states = [{"Name": "instance-state-name", "Values": ALIVE}]
        found = access.client("ec2").describe_instances(Filters=states)["Reservations"]
    for instance in (instance for reservation in found for instance in reservation["Instances"]):
        do = "Wait for the end of its run, or end it: mayfly status --rehearse names it."
        raise UsageError(f"instance {instance['InstanceId']} of the rehearsal is running", do=do)
