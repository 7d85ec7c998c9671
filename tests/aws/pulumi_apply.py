"""Apply the Pulumi program as a rehearsal does, with its image builds, and in an existing network."""

from __future__ import annotations

import sys

from tests.aws import pulumi_images as pulumi_images  # registers its resource types
from tests.aws import pulumi_lookups as pulumi_lookups  # and its look-ups
from trainer.rehearsal.pulumi_apply import main

if __name__ == "__main__":
    sys.exit(main())
