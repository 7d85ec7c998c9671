"""The files of a data set as a run read them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.records import NOON, RUN
from tests.trainer.control.conftest import MemoryCloud
from trainer.base.errors import ConfigError
from trainer.launch.data_sets import files_of_run
from trainer.runs.store import manifest_key


def test_an_unreadable_manifest_is_one_line() -> None:
    objects: Any = MemoryCloud(NOON).objects
    for body in (b'{"format": 5}', b"spoiled"):  # the first: of an earlier version
        objects.write(manifest_key(RUN), body)
        with pytest.raises(ConfigError, match="cannot read the manifest of run"):
            files_of_run(objects, RUN)
