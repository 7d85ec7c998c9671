"""Turn a Pulumi resource's inputs into the parameters of an AWS request, guided by botocore's description of
that request; pack the archive of a function.

Pulumi writes `httpPutResponseHopLimit` and EC2 `HttpPutResponseHopLimit`: names differ only in case, except
those in RENAMED. A property that fits no member of the request is an error, so that a misspelt one can't pass
a rehearsal.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pulumi
from botocore.model import Shape

from trainer.base.errors import ConfigError

# (shape, Pulumi's name) -> AWS's name, where they differ by more than case.
RENAMED = {
    ("LaunchTemplateInstanceNetworkInterfaceSpecificationRequest", "securityGroups"): "Groups",
    ("CreateRouteRequest", "cidrBlock"): "DestinationCidrBlock",
    ("IpPermission", "protocol"): "IpProtocol",
    ("CreateRoleRequest", "assumeRolePolicy"): "AssumeRolePolicyDocument",
    ("CreatePolicyRequest", "policy"): "PolicyDocument",
    ("PutRolePolicyRequest", "policy"): "PolicyDocument",
    ("PutRolePolicyRequest", "role"): "RoleName",
    ("AddPermissionRequest", "function"): "FunctionName",
    ("SubscribeInput", "topic"): "TopicArn",
}
ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same sources make the same zip
_SCALARS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "character": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
}


def to_parameters(value: Any, shape: Shape, path: str) -> Any:
    """Convert a Pulumi value to the given shape. Raises ConfigError, naming `path`, for a value that does not
    fit.
    """
    kind = shape.type_name
    if kind == "structure":
        return _structure(value, shape, path)
    if kind == "list":
        return _list(value, shape, path)
    if kind == "map":
        return {
            str(key): to_parameters(item, shape.value, f"{path}.{key}")
            for key, item in _mapping(value, path).items()
        }
    if kind == "blob" and isinstance(value, bytes):
        return value
    return _scalar(value, shape, path)


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return tags as a list of Key and Value, as most services take them."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def _structure(value: Any, shape: Any, path: str) -> dict[str, Any]:
    members = {member.lower(): member for member in shape.members}
    parameters: dict[str, Any] = {}
    for key, item in _mapping(value, path).items():
        if item is None:
            continue
        member = members.get(RENAMED.get((shape.name, key), key).lower())
        if member is None:
            raise _unknown(f"{path}.{key}", f"AWS's {shape.name} has no such member")
        parameters[member] = to_parameters(item, shape.members[member], f"{path}.{key}")
    return parameters


def _list(value: Any, shape: Any, path: str) -> list[Any]:
    if isinstance(value, Mapping) and shape.member.name == "Tag":
        return tag_list(value)
    if isinstance(value, Mapping) and shape.member.name == "Dimension":
        return [{"Name": name, "Value": item} for name, item in value.items()]
    if not isinstance(value, list):
        raise _unknown(path, f"AWS takes a list there, not {value!r}")
    return [to_parameters(item, shape.member, f"{path}[{position}]") for position, item in enumerate(value)]


def _scalar(value: Any, shape: Any, path: str) -> Any:
    kind = shape.type_name
    if kind == "boolean" and value in (
        "true",
        "false",
    ):  # launch templates carry three-valued booleans as text
        return value == "true"
    if (
        isinstance(value, float) and value.is_integer() and kind in ("integer", "long")
    ):  # protobuf has one kind of number
        value = int(value)
    allowed = _SCALARS.get(kind)
    if allowed is None or not isinstance(value, allowed) or (isinstance(value, bool) and kind != "boolean"):
        raise _unknown(path, f"AWS takes a {kind} there, not {value!r}")
    if (choices := getattr(shape, "enum", None)) and value not in choices:
        raise _unknown(path, f"AWS knows {', '.join(choices)}, not {value!r}")
    return value


def _mapping(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _unknown(path, f"AWS takes a structure there, not {value!r}")
    return value


def _unknown(path: str, why: str) -> ConfigError:
    return ConfigError(f"the embedded AWS can't apply {path}", why=why, do="Correct it in infra/.")


def zip_archive(archive: pulumi.AssetArchive) -> bytes:
    """Pack an archive as Pulumi would, paths in order: the same bytes from the same files."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive_file:
        for path, asset in sorted(archive.assets.items()):
            if isinstance(asset, pulumi.FileAsset):
                content = Path(str(asset.path)).read_bytes()
            else:
                assert isinstance(asset, pulumi.StringAsset), path  # infra/ packs no others
                content = str(asset.text).encode()
            entry = zipfile.ZipInfo(path, ZIP_EPOCH)
            entry.external_attr = 0o644 << 16  # readable, or Lambda could not load it
            archive_file.writestr(entry, content, zipfile.ZIP_DEFLATED, 1)
    return packed.getvalue()
