"""Access to running instances, if the stack's setting `attach` is `ssm` or `ssh`.

`ssm` widens the training instances' role and adds a policy for people; no port opens. `ssh` opens port 22 for
one address, and widens no role: keys come with each run. `off` leaves nothing of this file in the stack.
"""

from __future__ import annotations

import ipaddress
import json
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.policies import Document, allow, document

OFF, SSM, SSH = "off", "ssm", "ssh"
MODES = (OFF, SSM, SSH)
# Without a document, a session is the account's default one, a shell. Those of AWS run a command and forward
# a port.
OWN_DOCUMENTS = ("SSM-SessionManagerRunShell",)
AWS_DOCUMENTS = ("AWS-StartInteractiveCommand", "AWS-StartPortForwardingSession")


def is_one_address(text: str) -> bool:
    """Return whether a text is one address, with or without its /32 or /128; not a loopback, multicast or
    unspecified one.
    """
    try:
        network = ipaddress.ip_network(text)  # strict: refuses a range with host bits set
    except ValueError:
        return False
    address = network.network_address
    return network.num_addresses == 1 and not (
        address.is_unspecified or address.is_loopback or address.is_multicast
    )


def check_attach(attach: str, attach_from: str, *, ipv6: bool) -> None:
    """Raise ValueError if the settings don't go together; `ipv6`: whether machines have an address of that
    kind.
    """
    if (attach == SSH) != bool(attach_from):
        must = "one address, such as 203.0.113.7" if attach == SSH else "empty"
        raise ValueError(
            f"Setting 'attach_from' is {attach_from!r}; with attach = {attach} it must be {must}."
        )
    if ":" in attach_from and not ipv6:
        raise ValueError(
            f"Setting 'attach_from' is {attach_from!r}; machines have an IPv6 address only with ipv6 = true."
        )


def ssh_ingress(attach_from: str) -> list[aws.ec2.SecurityGroupIngressArgs]:
    """Return the rules that let one address in at port 22; none for no address."""
    if not attach_from:
        return []
    network = ipaddress.ip_network(attach_from)
    return [
        aws.ec2.SecurityGroupIngressArgs(
            description="SSH from one address: the setting attach_from",
            protocol="tcp",
            from_port=22,
            to_port=22,
            cidr_blocks=[str(network)] if network.version == 4 else None,
            ipv6_cidr_blocks=[str(network)] if network.version == 6 else None,
        )
    ]


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


def sessions(*, account: str, region: str, project: str, stack: str) -> Document:
    """Return the policy of people who attach: sessions on this stack's instances by three documents, and the
    end of their own.

    As in the Systems Manager user guide, "Sample IAM policies for Session Manager" and "Additional sample IAM
    policies" (looked up 2026-11-22): a session is tagged with its owner's id, and its own id begins with it.
    """
    ssm = f"arn:aws:ssm:{region}"
    return document(
        allow(
            "StartSessionsOnOwnInstances",
            "ssm:StartSession",
            f"arn:aws:ec2:{region}:{account}:instance/*",
            {
                "StringEquals": {"ssm:resourceTag/project": project, "ssm:resourceTag/stack": stack},
                "BoolIfExists": {"ssm:SessionDocumentAccessCheck": "true"},  # the next statement counts, too
            },
        ),
        allow(
            "UseSessionDocuments",
            "ssm:StartSession",
            [
                *(f"{ssm}:{account}:document/{name}" for name in OWN_DOCUMENTS),
                *(f"{ssm}::document/{name}" for name in AWS_DOCUMENTS),
            ],
        ),
        allow("OpenOwnSessions", "ssmmessages:OpenDataChannel", f"{ssm}:{account}:session/${{aws:userid}}-*"),
        allow(
            "EndAndResumeOwnSessions",
            ["ssm:ResumeSession", "ssm:TerminateSession"],
            f"{ssm}:{account}:session/*",
            {"StringLike": {"ssm:resourceTag/aws:ssmmessages:session-id": "${aws:userid}"}},
        ),
    )


@dataclass(frozen=True, kw_only=True)
class AttachPolicyArgs:
    account: str
    region: str
    project: str
    stack: str
    tags: dict[str, str]


class AttachPolicy(pulumi.ComponentResource):
    """The policy of people who attach through Session Manager, as a managed policy that is attached to
    nobody.
    """

    arn: pulumi.Output[str]

    def __init__(self, name: str, args: AttachPolicyArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("mayfly:attach:AttachPolicy", name, None, opts)
        own = {"account": args.account, "region": args.region, "project": args.project, "stack": args.stack}
        policy = aws.iam.Policy(
            name,
            name=f"{args.project}-{args.stack}-{args.region}-attach",
            description="Sessions on running instances of this stack.",
            policy=json.dumps(sessions(**own)),
            tags=args.tags,
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.arn = policy.arn
        self.register_outputs({"arn": self.arn})
