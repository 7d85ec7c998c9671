"""Access for a verb: to the embedded AWS with `--rehearse`, else to the account that AWS's own variables name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from trainer.access import Access, own_access
from trainer.errors import ConfigError


@contextmanager
def connected(*, rehearse: bool, program: bool = True, create: bool = True) -> Iterator[Access]:
    """Give access for as long as a command runs. `program=False`: a look, which needs the bucket alone and creates nothing;
    `create=False`: a look at the whole stack, where there is one.
    """
    if not rehearse:
        yield own_access()
        return
    if sys.platform != "linux":
        raise ConfigError(
            "--rehearse needs Linux or a container",
            why=f"this is {sys.platform}",
            do="Run it in a Linux container, or under WSL.",
        )
    from trainer.rehearsal.client import rehearsal  # late: moto and the program are for rehearsals alone

    with rehearsal(program=program, create=program and create) as access:
        yield access
