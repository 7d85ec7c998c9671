"""Read the secrets of a user's script, for that script alone.

On EC2 they are the stack's SecureStrings, which the machine's role may read; on the caller's own machine,
environment variables of the agent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from botocore.exceptions import ClientError

from trainer.aws.access import aws_error, error_code
from trainer.aws.error_codes import NO_PARAMETER
from trainer.base import environment
from trainer.base.errors import ConfigError
from trainer.node.redaction import FEWEST_LETTERS
from trainer.node.shared import Node
from trainer.node.stage import read_patiently
from trainer.node.uplink import AWS_ERRORS


def read_secrets(node: Node, parameters: Mapping[str, str]) -> dict[str, str]:
    """Return the secrets' values by the names of their variables, asked for as long as an input is. Raises a
    TrainerError for a missing or unredactable one.
    """
    if not parameters:
        return {}
    ssm, values = node.uplink.client("ssm"), {}
    for name, parameter in parameters.items():
        read = partial(_read, ssm, name, parameter)
        try:
            values[name] = read_patiently(read, parameter, stopped=node.is_stopping)
        except AWS_ERRORS as error:
            raise aws_error(error, f"the secret {name} can't be read") from error
        _refuse_unfit(name, values[name], f"Set another value of {parameter}.")
    return values


def _read(ssm: Any, name: str, parameter: str) -> str:
    try:
        return str(ssm.get_parameter(Name=parameter, WithDecryption=True)["Parameter"]["Value"])
    except ClientError as error:
        if error_code(error) not in NO_PARAMETER:
            raise
        do = f"Set it: aws ssm put-parameter --type SecureString --name {parameter} --value file://FILE"
        what = f"the secret {name} is not set"
        raise ConfigError(what, why=f"there is no {parameter}", do=do) from error


def own_secrets(names: Sequence[str]) -> dict[str, str]:
    """Return the secrets' values from this process's environment. Raises ConfigError as
    `read_secrets` does.
    """
    values = environment.variables_named(names)
    for name in names:
        if name not in values:
            why, do = "on your own machine it comes from the environment", f"Set it: export {name}=..."
            raise ConfigError(f"the secret {name} is not set", why=why, do=do)
        _refuse_unfit(name, values[name], f"Set another value: export {name}=...")
    return values


def _refuse_unfit(name: str, value: str, do: str) -> None:
    if len(value.strip()) < FEWEST_LETTERS or "\0" in value:
        why = f"it needs {FEWEST_LETTERS} characters or more, to be redacted in logs, and no NUL"
        raise ConfigError(f"the secret {name} can't be used", why=why, do=do)
