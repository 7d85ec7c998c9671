"""`mayfly attach RUN`: a shell, a command or a port of a run's machine, if the stack's setting `attach`
allows it.
"""

from __future__ import annotations

import argparse

from trainer.attach.host_keys import read_host_keys
from trainer.attach.keys import find_key, forget_ended
from trainer.attach.request import AttachRequest, Forward, parse_forward, shell_line
from trainer.attach.ssm import attach_by_session_manager
from trainer.aws.access import Access
from trainer.aws.stack import read_stack
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import ConfigError, ConnectionFailed, UsageError
from trainer.base.extras import needs
from trainer.cli.connect import connected, named_run
from trainer.cli.output import warn
from trainer.control.cloud import AwsCloud, Cloud
from trainer.control.settle import settle_run
from trainer.runs.keys import NodeKeys

CLOSED = {  # commands whose machines nobody gets onto
    "prepare": "its machine may read the stack's secrets, and lets nobody in",
    "score": "its machine's scores decide what goes to production, and it lets nobody in",
}
HOW = (
    "Set it: docs/scripts-and-machines.md. mayfly status, logs and pull --live show a running machine"
    " without it."
)


def run(arguments: argparse.Namespace) -> int:
    """Attach to the run's machine; return the exit code of the command or shell, 0 for ports that were
    forwarded.
    """
    forwards = [parse_forward(text) for text in arguments.forward]
    if forwards and arguments.command:
        raise UsageError("a command and forwarded ports don't go together", do="Use two terminals.")
    with connected(rehearse=arguments.rehearse, program=False) as access:
        outputs = read_stack(access, stack=arguments.stack)
        cloud = AwsCloud(access, outputs)
        arguments.run = named_run(cloud.objects, arguments.run)
        keys = find_machine(access, outputs, cloud, arguments.run)
        line = shell_line(arguments.command)
        request = AttachRequest(line=line, forwards=tuple(forwards), announce=_announce)
        if outputs.attach != "ssh":
            return attach_by_session_manager(keys.instance_id, request, region=outputs.region)
        needs("paramiko")
        from trainer.attach.by_ssh import attach_by_ssh  # late: paramiko takes a third of a second

        key_file = find_key(arguments.run)
        pinned = read_host_keys(cloud.objects, keys)
        address = address_of(access, keys.instance_id)
        return attach_by_ssh(address, request, pinned=pinned, key_file=key_file)


def find_machine(access: Access, outputs: StackOutputs, cloud: Cloud, run_id: str) -> NodeKeys:
    """Return the keys of a run's machine. Raises UsageError for a run without one, ConfigError if the stack
    has attach = off.
    """
    settled = settle_run(cloud, run_id)
    if settled.receipt is not None:
        forget_ended(cloud.objects, ended=[run_id])
        do = f"mayfly logs {run_id} and mayfly pull {run_id} have what it left."
        raise UsageError(f"{run_id} has ended: there is no machine to attach to", do=do)
    if why := access.place.no_attach:
        do = "mayfly status, logs and pull show it."
        raise UsageError(f"there is no machine to attach to: {run_id}", why=why, do=do)
    if outputs.attach == "off":
        what = f"machines of {outputs.project}-{outputs.stack} can't be attached to"
        raise ConfigError(what, why="attach is off", do=HOW)
    if why := CLOSED.get(settled.look.record.work, ""):
        do = f"mayfly logs {run_id} shows what it does."
        raise UsageError(f"{run_id} is a {settled.look.record.work} run", why=why, do=do)
    running = [seen.instance_id for seen in settled.look.observed.instances if seen.state == "running"]
    nodes = [keys for keys in settled.look.record.nodes if keys.instance_id in running]
    if not nodes:
        do = f"mayfly status {run_id} shows where it is; then try again."
        raise UsageError(f"{run_id} has no running machine yet", do=do)
    return nodes[0]  # of several the head


def _announce(forward: Forward) -> None:
    warn(f"http://127.0.0.1:{forward.local} leads to port {forward.remote} of the machine, until Ctrl-C")


def address_of(access: Access, instance_id: str) -> str:
    """Return an instance's public address. Raises ConnectionFailed if it has none."""
    answer = access.client("ec2").describe_instances(InstanceIds=[instance_id])
    if not (address := answer["Reservations"][0]["Instances"][0].get("PublicIpAddress")):
        do = "Set attach to ssm, which needs no public address, then pulumi up."
        raise ConnectionFailed(f"{instance_id} has no public address", do=do)
    return str(address)
