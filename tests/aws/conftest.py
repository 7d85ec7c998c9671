"""The small account to launch in that the tests of rehearsals have."""

from __future__ import annotations

from tests.trainer.rehearsal.conftest import desk as desk
from tests.trainer.rehearsal.conftest import make_desk as make_desk
from tests.trainer.rehearsal.conftest import scheduler_role as scheduler_role
from tests.trainer.rehearsal.conftest import wait_until as wait_until
