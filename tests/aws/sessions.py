"""Sessions of the embedded AWS: who may begin one on which instance. They carry no data: only AWS's plugin
opens a channel.

An instance counts as connected while it runs under a role that allows its SSM agent to report and to carry
sessions.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from tests.aws.identities import identity_of
from trainer.rehearsal.account import Principal, Rules
from trainer.rehearsal.identities import principal_of
from trainer.rehearsal.nodes import role_credentials
from trainer.rehearsal.wire import Call, access_key_of
from trainer.rehearsal.world import AwsError

if TYPE_CHECKING:
    from tests.aws.account import CheckedAccount

AGENT_ACTIONS = (
    "ssm:UpdateInstanceInformation",
    *(f"ssmmessages:{verb}{kind}Channel" for verb in ("Create", "Open") for kind in ("Control", "Data")),
)
DESK = "desk"  # it has no policies, and no id in IAM


def start_session(cloud: CheckedAccount, call: Call) -> dict[str, Any]:
    """Begin a session. Raises AwsError (TargetNotConnected) for an instance whose agent can't carry one."""
    target = call.params["Target"]
    gone = AwsError("TargetNotConnected", f"{target} is not connected.", 400)
    if not (role := _role_of(cloud, target)):
        raise gone
    try:
        for action in AGENT_ACTIONS:
            cloud.demand(Principal(kind="NODE", name=target, role=role), "ssm", action, "*")
    except AwsError as error:
        raise gone from error
    session = f"{owner_of(cloud, call)}-{secrets.token_hex(9)[:17]}"
    url = f"wss://ssmmessages.{call.region}.amazonaws.com/v1/data-channel/{session}?role=publish_subscribe"
    return {"SessionId": session, "TokenValue": secrets.token_hex(16), "StreamUrl": url}


def resume_session(cloud: CheckedAccount, call: Call) -> dict[str, Any]:
    """Give a session a new token."""
    return {"SessionId": call.params["SessionId"], "TokenValue": secrets.token_hex(16)}


def terminate_session(cloud: CheckedAccount, call: Call) -> dict[str, Any]:
    """End a session."""
    return {"SessionId": call.params["SessionId"]}


def owner_of(cloud: CheckedAccount, call: Call) -> str:
    """Return the caller's value of IAM's variable aws:userid."""
    principal = principal_of(cloud, access_key_of(call.environ), "ssm")
    return identity_of(cloud, principal, "ssm").user_id if principal else DESK


def _role_of(cloud: CheckedAccount, instance_id: str) -> str:
    """Return the role of a running instance; '' for one that has none or does not run."""
    with cloud.lock:
        known = cloud.world.instances.get(instance_id)
        running = known is not None and known.state(cloud.clock.now()) == "running"
    credentials = role_credentials(cloud, known) if known and running else None
    return credentials.role if credentials else ""


RULES: Rules = {
    ("ssm", "StartSession"): start_session,
    ("ssm", "ResumeSession"): resume_session,
    ("ssm", "TerminateSession"): terminate_session,
}
