"""Access to running instances: the setting `attach` is `off`, `ssm`, or an address.

`ssm` widens the training instances' role and adds a policy for people; no port opens. An address opens port
22 for it alone, and widens no role: keys come with each run. `off` leaves nothing of this file in the stack.
"""

from __future__ import annotations

import ipaddress

import pulumi_aws as aws

from infra.policies import Document, allow, document
from infra.stack import Stack

SSM = "ssm"
MODES = ("off", SSM)  # besides an address
# Without a document, a session is the account's default one, a shell. Those of AWS run a command and forward
# a port.
OWN_DOCUMENTS = ("SSM-SessionManagerRunShell",)
AWS_DOCUMENTS = ("AWS-StartInteractiveCommand", "AWS-StartPortForwardingSession")


def is_one_address(text: str) -> bool:
    """Return whether a text is one IPv4 address, with or without its /32; not a loopback, multicast or
    unspecified one.
    """
    try:
        network = ipaddress.IPv4Network(text)  # strict: refuses a range with host bits set
    except ValueError:
        return False
    one = network.network_address
    return network.num_addresses == 1 and not (one.is_unspecified or one.is_loopback or one.is_multicast)


def ssh_ingress(address: str) -> list[aws.ec2.SecurityGroupIngressArgs]:
    """Return the rules that let one address in at port 22; none for no address."""
    if not address:
        return []
    why, blocks = "SSH from one address: the setting attach", [str(ipaddress.IPv4Network(address))]
    rule = aws.ec2.SecurityGroupIngressArgs
    return [rule(description=why, protocol="tcp", from_port=22, to_port=22, cidr_blocks=blocks)]


def agent_messages() -> Document:
    """Allow an instance's SSM agent to report and to carry sessions.

    The least that Session Manager works with (Systems Manager user guide, "Create a custom IAM role for
    Session Manager", looked up 2026-11-22), on all resources, as in the guide: the four actions on messages
    take none.
    """
    channels = [
        f"ssmmessages:{verb}{kind}Channel" for verb in ("Create", "Open") for kind in ("Control", "Data")
    ]
    return allow("CarrySessionsHasNoResource", ["ssm:UpdateInstanceInformation", *channels], "*")


def sessions(stack: Stack) -> Document:
    """Return the policy of people who attach: sessions on this stack's instances by three documents, and the
    end of their own.

    As in the Systems Manager user guide, "Sample IAM policies for Session Manager" and "Additional sample IAM
    policies" (looked up 2026-11-22): a session is tagged with its owner's id, and its own id begins with it.
    """
    own_instances = {
        "StringEquals": {"ssm:resourceTag/project": stack.project, "ssm:resourceTag/stack": stack.name},
        "BoolIfExists": {"ssm:SessionDocumentAccessCheck": "true"},  # the next statement counts, too
    }
    documents = [stack.arn("ssm", f"document/{name}") for name in OWN_DOCUMENTS]
    documents += [f"arn:aws:ssm:{stack.region}::document/{name}" for name in AWS_DOCUMENTS]
    start, instances = "ssm:StartSession", stack.arn("ec2", "instance/*")
    return document(
        allow("StartSessionsOnOwnInstances", start, instances, own_instances),
        allow("UseSessionDocuments", start, documents),
        allow("OpenOwnSessions", "ssmmessages:OpenDataChannel", stack.arn("ssm", "session/${aws:userid}-*")),
        allow(
            "EndAndResumeOwnSessions",
            ["ssm:ResumeSession", "ssm:TerminateSession"],
            stack.arn("ssm", "session/*"),
            {"StringLike": {"ssm:resourceTag/aws:ssmmessages:session-id": "${aws:userid}"}},
        ),
    )
