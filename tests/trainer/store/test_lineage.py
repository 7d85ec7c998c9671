"""The run of a model, its code by hash, and the versions of its data that are still there."""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import replace
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trainer.store.test_listing import CLOSED_RUN
from tests.trainer.store.test_reproduction import TRAINING
from tests.trainer.store.test_weights import CARD
from trainer.aws.objects import Stored
from trainer.base.errors import ConfigError, DataError, UsageError
from trainer.cli.views.drawing import UNLIMITED, drawn
from trainer.cli.views.lineage import lineage_view
from trainer.runs.manifest import ManifestInput
from trainer.store.lineage import LOCK, code_of, lineage_of, lock_of, past_run, refuse_deleted

NOW = datetime(2026, 11, 27, tzinfo=timezone.utc)


class Shelf:
    """Objects by key, each in one version."""

    def __init__(self, **bodies: bytes) -> None:
        self.bodies = bodies

    def get(self, *, key: str, version_id: str = "", first_bytes: int = 0) -> Stored | None:
        body = self.bodies.get(key)
        if body is None or version_id not in ("", "v1"):
            return None
        return Stored(key=key, etag="", version_id="v1", size=len(body), modified_at=NOW, body=body)

    head = get


def wheel(name: str, text: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(name, text)
    return made.getvalue()


def test_code_is_taken_by_its_hash_and_has_its_lock() -> None:
    body = wheel(LOCK, "numpy==2.4.6\n")
    code = {"key": "code/a.whl", "sha256": hashlib.sha256(body).hexdigest()}
    manifest: Any = SimpleNamespace(run_id="r", code=code)
    shelf: Any = Shelf(**{"code/a.whl": body})
    assert lock_of(code_of(shelf, manifest)) == "numpy==2.4.6\n"
    shelf.bodies["code/a.whl"] += b" "
    with pytest.raises(ConfigError, match="the code of run r is damaged"):
        code_of(shelf, manifest)
    with pytest.raises(ConfigError, match=r"the code of run r is gone \(there is no code/a.whl"):
        code_of(Shelf(), manifest)  # type: ignore[arg-type]
    for odd in (b"no wheel", wheel("trainer/x.py", "")):
        with pytest.raises(ConfigError, match="has no trainer/node/requirements.lock"):
            lock_of(odd)


def test_versions_that_are_deleted_are_named() -> None:
    inputs = [
        ManifestInput(path=f"data/{key}", key=f"raw/main/{key}", version_id=version, sha256="", bytes=1)
        for key, version in (("a", "v1"), ("b", "v0"), ("c", "v1"))
    ]
    shelf: Any = Shelf(**{f"raw/main/{key}": b"1" for key in "abc"})
    refuse_deleted(shelf, inputs[:1])
    with pytest.raises(DataError, match=r"1 version that the run read is deleted \(raw/main/b \(v0\)\)"):
        refuse_deleted(shelf, inputs)


def test_an_unknown_run_and_one_without_manifest_are_refused(account) -> None:
    with pytest.raises(ConfigError, match=f"the manifest of run {CLOSED_RUN} is gone"):
        past_run(account, CLOSED_RUN)
    account.put(key=f"runs/{CLOSED_RUN}/manifest.json", body=b'{"format": 1}')
    with pytest.raises(ConfigError, match="Use the Mayfly that launched it"):
        past_run(account, f"{CLOSED_RUN}/lstm_BTC-USD_1m")
    with pytest.raises(UsageError, match="no model 'nothing'"):
        past_run(account, "nothing")


@pytest.mark.parametrize("training", [{}, {"choice": [], "threads": "many"}, None])
def test_a_lineage_is_shown_as_far_as_the_card_says_it(training: dict[str, Any] | None) -> None:
    item = ManifestInput(path="data/a", key="raw/main/a", version_id="v1", sha256="", bytes=7)
    manifest = SimpleNamespace(
        code={"key": "code/a.whl"},
        lock_sha256="1" * 64,
        job={"model": {"name": "lstm"}},
        inputs=(item,),
        image={},
    )
    record = SimpleNamespace(instances=(), host="desk", place="here", attempts=(1,))
    past: Any = SimpleNamespace(manifest=manifest, record=record, run_id="r")
    model: Any = SimpleNamespace(full_name="r/m", sha256="2" * 64)
    card = CARD if training is None else replace(CARD, training=training)
    known = TRAINING if training is None else card.training
    found = lineage_of(past, model, replace(card, training=known), lock_here=lambda: "1" * 64)
    text = drawn(lineage_view(found, where=" --rehearse"), width=UNLIMITED)
    assert "mayfly models reproduce r/m --steps 32 --rehearse" in text
    assert "code/a.whl" in text and "raw/main/a" in text and "that of this checkout" in text
    assert ("AMD EPYC" if training is None else "an earlier version made it") in text
