"""`mayfly rehearse`: point a shell at this desk's embedded AWS, or end it.

eval "$(mayfly rehearse --env)"     # boto3, the AWS CLI and mayfly use it from now on
mayfly rehearse --stop
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys

from trainer.base import environment
from trainer.rehearsal.client import ACCOUNT, default_root, lease_server, stop_server
from trainer.rehearsal.leases import shell_of_our_output


def run(args: argparse.Namespace) -> int:
    """Print the variables of a shell's lease, or end the embedded AWS. Returns 0."""
    root = default_root()
    if args.stop:
        ended = stop_server(root)
        said = "stopped" if ended else "nothing was running"
        print(json.dumps({"stopped": ended}) if args.json else said)
        return 0
    server = lease_server(root, holder=shell_of_our_output())  # it ends with the shell
    server.apply_program(ACCOUNT)
    access = server.access(ACCOUNT)
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
