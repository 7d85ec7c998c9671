"""The boot log of a machine whose agent never reported: bootstrap.log in S3, else the console output that EC2
keeps.
"""

from __future__ import annotations

import functools

from trainer.control.cloud import Cloud
from trainer.runs.keys import NodeKeys
from trainer.runs.store import Objects, given

MOST_BOOT_LOG_BYTES = 256 * 1024  # bootstrap.sh sends no more; EC2 keeps 64 KB of a console


def boot_log(cloud: Cloud, keys: NodeKeys) -> str:
    """Return bootstrap.log, or without one the console's output; '' if neither exists yet. Raises
    TrainerError.
    """
    return bootstrap_log(cloud.objects, keys) or cloud.console_output(instance_id=keys.instance_id)


def bootstrap_log(objects: Objects, keys: NodeKeys) -> str:
    """Return the log that the bootstrap sent to S3, '' if it sent none."""
    stored = given(functools.partial(objects.get, key=keys.bootstrap_log, first_bytes=MOST_BOOT_LOG_BYTES))
    return stored.body.decode(errors="replace") if stored else ""
