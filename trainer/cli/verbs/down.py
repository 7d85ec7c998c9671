"""`mayfly down`: remove the stack except its bucket. Refuses while a run is open, since that run would lose
its safety net.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys

from trainer.aws.access import own_access
from trainer.aws.objects import open_objects
from trainer.aws.place import REHEARSAL
from trainer.aws.stack import read_stack
from trainer.base import environment
from trainer.base.errors import ConfigError, UsageError
from trainer.cli.output import say_json, warn
from trainer.control.settle import settle_unwatched
from trainer.rehearsal.pulumi_apply import program_folder
from trainer.runs.index import enter_missing

CLI = "https://www.pulumi.com/docs/install/"


def run(arguments: argparse.Namespace) -> int:
    """Refuse while a run is open, then run `pulumi destroy --exclude-protected`, which keeps the bucket."""
    if environment.rehearses():
        what = "a rehearsal has no stack to take down"
        raise UsageError(what, why="MAYFLY_REHEARSE is set", do=f"Unset it for AWS. {REHEARSAL.no_down}")
    access = own_access()
    if access.place.no_down:
        what = f"this shell's AWS is a {access.place.name}: there is no stack to take down"
        raise UsageError(what, do=access.place.no_down)
    pulumi = shutil.which("pulumi")
    if pulumi is None:
        do = f"Install the Pulumi CLI: {CLI}"
        raise ConfigError("`pulumi`, which removes the stack, is not on PATH", do=do)
    outputs = read_stack(access, stack=arguments.stack)
    enter_missing(open_objects(access, outputs.bucket))
    settling = settle_unwatched(access, outputs)
    for run_id, problem in settling.problems.items():
        do = "Look at the EC2 console before the stack goes."
        raise ConfigError(f"cannot tell whether run {run_id} has ended", why=str(problem), do=do)
    for run in settling.settled:
        if run.receipt is None:
            why, do = "without the stack nothing would end its machine", f"mayfly stop {run.run_id} ends it."
            raise UsageError(f"run {run.run_id} is open ({run.look.record.state})", why=why, do=do)
    command = [pulumi, "destroy", "--exclude-protected", "--stack", outputs.stack]
    command += ["--yes"] if arguments.yes else []
    warn(f"{' '.join(command)}  (the bucket {outputs.bucket} stays, with its versions, closed as it is)")
    # Under --json, stdout is for our document alone.
    done = subprocess.run(
        command, cwd=program_folder(), check=False, stdout=sys.stderr if arguments.json else None
    )
    if done.returncode:
        why, do = "see its output above", f"Correct that, then: {' '.join(command)}"
        raise ConfigError(f"pulumi destroy ended with exit code {done.returncode}", why=why, do=do)
    warn("the bucket stays in Pulumi's state; if the next `pulumi up` says that something exists, import it:")
    for resource_type, name, identifier in outputs.left_behind:
        warn(f"  pulumi import --stack {outputs.stack} {resource_type} {name} {identifier}")
    if arguments.json:
        say_json({"stack": outputs.stack, "region": outputs.region, "bucket": outputs.bucket})
    return 0
