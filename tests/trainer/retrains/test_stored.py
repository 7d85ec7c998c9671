"""Publications and entries as they lie in the bucket: what belongs to another key, or leads elsewhere, is one
error.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.trainer.control.conftest import MemoryCloud
from tests.trainer.retrains.test_decision import PUBLISHED, SUNDAY, WEEK, entry
from trainer.base.errors import ConfigError
from trainer.retrains.entries import entry_key, prepare_run_id_of, read_entry, run_id_of
from trainer.retrains.published import published_key, read_published
from trainer.runs.record_json import to_json


@pytest.mark.parametrize(
    "changed",
    [
        {"retrain": "other"},
        {"retrain": "../weekly"},
        {"retrain": "other", "run_id": "", "prepare_run_id": ""},  # no run tells
        {"scheduled_at": SUNDAY + WEEK},
        {"run_id": "../20261122-030000-weekly-abc"},
        {"prepare_run_id": run_id_of("weekly", SUNDAY)},
        {"error": {"what": 5}},
    ],
    ids=str,
)
def test_an_entry_of_another_key_run_or_kind_is_one_error(changed: dict[str, Any]) -> None:
    objects: Any = MemoryCloud(SUNDAY).objects
    sound = entry(run_id=run_id_of("weekly", SUNDAY), prepare_run_id=prepare_run_id_of("weekly", SUNDAY))
    key = entry_key("weekly", SUNDAY)
    objects.write(key, to_json(sound))
    assert read_entry(objects, key)[0] == sound
    objects.write(key, to_json(replace(sound, **changed)))
    with pytest.raises(ConfigError, match="cannot read scheduled/weekly/"):
        read_entry(objects, key)


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "other"},
        {"job_key": "runs/r/run.json"},
        {"code_key": f"code/{'c' * 64}.whl"},
        {"job_key": "code/x.json", "job_sha256": "x"},
    ],
    ids=str,
)
def test_a_publication_that_leads_elsewhere_is_one_error(changed: dict[str, Any]) -> None:
    objects: Any = MemoryCloud(SUNDAY).objects
    objects.write(published_key("weekly"), to_json(PUBLISHED))
    assert read_published(objects, "weekly") is not None
    objects.write(published_key("weekly"), to_json(replace(PUBLISHED, **changed)))
    with pytest.raises(ConfigError, match="cannot read what was published for retrain weekly"):
        read_published(objects, "weekly")
