"""Find the stack that a command works on: sign-in, then the one SSM parameter that Pulumi wrote. Reads only.

Every verb that needs an account starts here. Each failure is one line that names what is missing.
"""

from __future__ import annotations

from typing import Any

from trainer.aws.access import Access, aws_error, error_code, user_session
from trainer.aws.error_codes import NO_PARAMETER
from trainer.aws.stack_outputs import PROJECT, StackOutputs, parameter_name
from trainer.base.errors import ConfigError, PermissionDenied, nearest

REHEARSE = "or add --rehearse to run the same on this machine, without an account"


def require_sign_in(access: Access) -> None:
    """Raise PermissionDenied or ConfigError if boto3 finds no credentials or no region; a rehearsal brings
    its own.
    """
    if access.access_key or access.folder is not None:
        return
    from botocore.exceptions import BotoCoreError  # late: --help and --dry-run errors must not wait for it

    try:
        session = user_session()
        missing = [] if session.get_credentials() else ["credentials"]
        missing += [] if access.region or session.get_config_variable("region") else ["region"]
    except BotoCoreError as error:
        raise aws_error(error, "cannot sign in to AWS") from error
    if not missing:
        return
    what = f"no AWS {' and no AWS '.join(missing)} found, so there is no stack to ask"
    why = "looked where boto3 looks: environment, ~/.aws, instance metadata"
    names = {"credentials": "AWS_PROFILE", "region": "AWS_REGION"}
    settings = " and ".join(names[name] for name in missing)
    do = f"Set {settings}, and create the stack with pulumi up if there is none yet, {REHEARSE}."
    raise (PermissionDenied if "credentials" in missing else ConfigError)(what, why=why, do=do)


def read_stack(access: Access, *, stack: str, project: str = PROJECT) -> StackOutputs:
    """Return this stack's outputs. Raises ConfigError if there are none, or of another version."""
    if access.folder is not None:
        return StackOutputs(project=PROJECT, stack="local", bucket=str(access.folder))  # nothing to launch by
    from botocore.exceptions import BotoCoreError, ClientError

    require_sign_in(access)
    name = parameter_name(project, stack)
    ssm = access.client("ssm")
    region = ssm.meta.region_name
    try:
        text = ssm.get_parameter(Name=name)["Parameter"]["Value"]
    except (BotoCoreError, ClientError) as error:
        if error_code(error) in NO_PARAMETER:
            others = _other_stacks(ssm, project)
            create = f"{nearest(stack, others)} If it is in another region, set AWS_REGION; else create it"
            create += f" with pulumi up --stack {stack}, {REHEARSE}."
            what, do = f"there is no stack '{stack}' in {region}", access.place.no_stack or create.lstrip()
            raise ConfigError(what, why=f"no SSM parameter {name}", do=do) from error
        raise aws_error(error, f"cannot read the stack's outputs at {name}") from error
    try:
        outputs = StackOutputs.from_json(text)
    except ValueError as error:
        what, do = f"the outputs of stack '{stack}' don't fit", f"Run pulumi up --stack {stack}."
        do = access.place.old_stack or do
        raise ConfigError(what, why=str(error), do=do) from error
    if outputs.region != region:
        why, do = f"its bucket is in {outputs.region}", f"Set AWS_REGION={outputs.region}."
        raise ConfigError(f"the stack cannot be used from {region}", why=why, do=do)
    return outputs


def _other_stacks(ssm: Any, project: str) -> list[str]:
    """Return the names of existing stacks, for the error text; empty if listing is not permitted."""
    from botocore.exceptions import ClientError

    try:
        parameters = ssm.get_parameters_by_path(Path=f"/mayfly/{project}")["Parameters"]
    except ClientError:
        return []
    return [parameter["Name"].rpartition("/")[2] for parameter in parameters]
