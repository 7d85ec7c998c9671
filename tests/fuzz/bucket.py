"""Properties of what `pull`, `models list` and `backup --restore` read from the bucket: all of it is written
inside the folder and listed, or each problem is one error.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from botocore.exceptions import ClientError
from botocore.response import StreamingBody
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.cards import CARDS, header_of
from tests.fuzz.drawn import bodies, changed, is_shown
from tests.records import NOON, RUN, created, launched, make_record, piece
from tests.trainer.control.conftest import MemoryCloud
from trainer.base.errors import ConfigError, TrainerError, UsageError
from trainer.base.strict_json import Unsound, read_object
from trainer.cli.verbs.models import _as_dict, models_table
from trainer.cli.views.drawing import drawn
from trainer.job.model_names import MODEL_SUFFIX, is_model_file
from trainer.runs.observation import Observation
from trainer.runs.receipt import make_receipt
from trainer.runs.record_json import to_json
from trainer.runs.reports import NodeResult, read_outputs
from trainer.runs.store import receipt_key, record_key
from trainer.store.backup import INDEX, restore
from trainer.store.listing import list_models, save_model
from trainer.store.production import PRODUCTION

CONTENT = b"weights"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
GOOD = ("a", "b", "a/b", "a/b/c", "A", "é/a", "link/x", "pipe", "folder", "file", "file/x", "x" * 200)
BAD = ("x" * 300, "../up", "/etc/passwd", ".hidden", "a/../b", "a//b", "a\\b", "a\nb", "\ud800", "")
PATHS = st.lists(st.sampled_from(GOOD), max_size=4) | st.lists(st.sampled_from((*GOOD, *BAD)), max_size=4)
MODEL = "lstm-direction_A_1m"
CLOSED = make_record(
    pieces=(piece("A", model=MODEL),),
    state="closed",
    outcome="done",
    closed_at=NOON,
    attempts=launched(created()),
)
KEYS = CLOSED.nodes[0]
MADE = {
    "piece": "A",
    "kind": "symbol",
    "series": ["A"],
    "fold": 0,
    "seed": 0,
    "family": "lstm",
    "target": "direction",
    "key": f"{KEYS.models}{MODEL}{MODEL_SUFFIX}",
    "version_id": "v1",
    "sha256": SHA256,
    "metrics": {},
}
RECEIPT = make_receipt(CLOSED, Observation(result=NodeResult(state="done", models=(MADE,))))


def outputs_at(paths: list[str]) -> bytes:
    """Return a node's list of outputs at these paths."""
    entry = {"key": f"{KEYS.outputs}{SHA256}", "version_id": "v", "sha256": SHA256, "bytes": 7}
    return json.dumps({"files": [{"file": path, **entry} for path in paths]}).encode()


@given(PATHS.map(outputs_at))
def outputs_can_be_written_or_are_refused(body: bytes) -> None:
    try:
        files = read_outputs(read_object(body, most_bytes=10**6, name="the list"), prefix=KEYS.outputs)
    except Unsound as error:
        assert is_shown(str(error))
        return
    with tempfile.TemporaryDirectory(prefix="mayfly-fuzz-") as place:
        for item in files:
            path = Path(place, item["file"])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(CONTENT)
        assert sum(path.is_file() for path in Path(place).rglob("*")) == len(files)


@given(
    st.one_of(bodies(json.loads(to_json(CLOSED))), st.just(to_json(CLOSED))),
    st.one_of(st.none(), bodies(RECEIPT), st.just(json.dumps(RECEIPT).encode())),
    st.one_of(
        changed(CARDS["lstm"]).map(lambda card: header_of(card, {})),
        changed(CARDS["panel"]).map(lambda card: header_of(card, {})),
        st.binary(max_size=40),
    ),
    st.sampled_from((MODEL, "..", ".hidden", "a/b", "lstm", "x" * 300, "\x1b[31m")),
)
def models_are_listed_or_named_as_a_problem(
    record: bytes, receipt: bytes | None, model: bytes, name: str
) -> None:
    objects = MemoryCloud(NOON).objects
    objects.write(record_key(RUN), record)
    if receipt is not None:
        objects.write(receipt_key(RUN), receipt)
    for key in (f"{PRODUCTION}{name}{MODEL_SUFFIX}", f"{KEYS.models}{MODEL}{MODEL_SUFFIX}"):
        objects.write(key, model)
    listing = list_models(objects)
    assert all(is_shown(str(problem)) for problem in listing.problems.values())
    assert all(is_shown(line) for line in drawn(models_table(listing.models, 180), width=90).splitlines())
    with tempfile.TemporaryDirectory(prefix="mayfly-fuzz-") as place:
        for one in listing.models:
            json.dumps(_as_dict(one, 180))
            try:
                path = save_model(objects, one, Path(place, "into"))
            except TrainerError as error:
                assert is_shown(str(error))
            else:
                assert is_model_file(path.name) and path.read_bytes() == model
        assert {path.name for path in Path(place).iterdir()} <= {"into"}


def index_of(paths: list[str], sha256: str = SHA256) -> bytes:
    """Return the index of a backup of these paths."""
    entry = {"bytes": len(CONTENT), "sha256": sha256, "version_id": "v"}
    return json.dumps({"format": 1, "files": [{"file": path, **entry} for path in paths]}).encode()


def bucket_of(content: bytes, *, is_gone: bool) -> Any:
    """Return access to a bucket whose every object has this content, or is gone."""

    def get_object(**_: Any) -> Any:
        if is_gone:
            raise ClientError({"Error": {"Code": "NoSuchVersion"}}, "GetObject")
        return {"Body": StreamingBody(io.BytesIO(content), len(content))}

    return SimpleNamespace(client=lambda *_, **__: SimpleNamespace(get_object=get_object))


@given(
    st.one_of(
        bodies(json.loads(index_of(["a", "b/c"]))),
        st.tuples(PATHS, st.sampled_from((SHA256, "0" * 64))).map(lambda drawn: index_of(*drawn)),
    ),
    st.booleans(),
    st.booleans(),
)
def index_is_restored_inside_its_folder_or_refused(body: bytes, overwrite: bool, is_gone: bool) -> None:
    objects = MemoryCloud(NOON).objects
    objects.write(INDEX, body)
    with tempfile.TemporaryDirectory(prefix="mayfly-fuzz-") as place:
        folder, outside = Path(place, "mine"), Path(place, "outside")
        for made in (folder / "folder", outside):
            made.mkdir(parents=True)
        (folder / "link").symlink_to(outside)
        (folder / "file").write_text("mine")
        os.mkfifo(folder / "pipe")
        access = bucket_of(CONTENT, is_gone=is_gone)
        try:
            report = restore(folder, access, objects, bucket="b", overwrite=overwrite, on_file=lambda _: None)
        except (ConfigError, UsageError) as error:
            assert is_shown(str(error))
        else:
            assert all((folder / name).read_bytes() == CONTENT for name in report.moved)
            assert all(is_shown(why) for why in (*report.failed.values(), *report.skipped.values()))
            json.dumps(asdict(report))
        assert {path.name for path in Path(place).iterdir()} == {"mine", "outside"}
        assert not list(outside.iterdir())
        assert overwrite or (folder / "file").read_text() == "mine"


PROPERTIES = (
    outputs_can_be_written_or_are_refused,
    models_are_listed_or_named_as_a_problem,
    index_is_restored_inside_its_folder_or_refused,
)
