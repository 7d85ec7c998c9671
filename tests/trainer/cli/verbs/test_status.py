"""`mayfly status` and `receipts` of a script: its pieces are values, or the script itself, and never
models.
"""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.records import NOON, RUN, make_record
from tests.trainer.cli.views.test_progress import TRAIN
from tests.trainer.cli.views.test_watch import NOW
from trainer.aws.folder_bucket import FolderBucket
from trainer.aws.objects import S3Objects
from trainer.base.errors import ConnectionFailed
from trainer.cli.main import main
from trainer.cli.verbs import status
from trainer.cli.verbs.receipts import _made
from trainer.cli.verbs.status import _detail, _done, _followed, _of_progress, _pieces
from trainer.cli.views.drawing import drawn
from trainer.control.progress import Step
from trainer.control.settle import Settled
from trainer.runs.attempts import Attempt
from trainer.runs.index import begin_run, read_index, take_out
from trainer.runs.observation import Observation
from trainer.runs.receipt import make_receipt
from trainer.runs.record_json import to_json
from trainer.runs.store import receipt_key, record_key


def test_a_scripts_pieces_are_values_a_single_one_the_script():
    pieces = {"BTC_0": {"state": "training"}, "BTC_1": {"state": "waiting"}}
    over = _of_progress(replace(TRAIN, work="script", pieces=pieces, models_total=2, models_done=0), NOW)
    shown = drawn(_detail(over, 0), width=80)
    assert _done(over) == "0/2 values" and "  values   value  state\n" in shown and "model" not in shown
    one = _of_progress(
        replace(TRAIN, work="script", pieces={"net": {"state": "training"}}, models_total=1, models_done=0),
        NOW,
    )
    shown = drawn(_detail(one, 0), width=80)
    assert _done(one) == "0/1 script" and "  script   script  state\n" in shown and "model" not in shown


def test_a_scripts_trials_have_best_scores_the_best_first():
    pieces = {"t1": {"score": 0.5}, "t2": {}, "t10": {"score": 0.75}, "t3": {}}
    least = _of_progress(replace(TRAIN, work="script", pieces=pieces), NOW)["pieces"]
    assert list(least) == ["t1", "t10", "t2", "t3"]
    most = _of_progress(replace(TRAIN, work="script", pieces=pieces, better="max"), NOW)["pieces"]
    assert [(name, row["score"]) for name, row in _pieces(most)] == [
        *(("t10", "0.75"), ("t1", "0.5"), ("t2", "-"), ("t3", "-")),
    ]


def test_trials_follow_their_model_the_best_first():
    losses = {"B": None, "A t2": 0.5, "A": None, "A t10": 0.25, "A t1": None, "X t3": 0.1}
    pieces = {name: {"state": "done", "validation_loss": loss} for name, loss in losses.items()}
    rows = _pieces(pieces)
    assert [name for name, _ in rows] == ["A", "A t10", "A t2", "A t1", "B", "X t3"]
    assert [row["validation"] for _, row in rows][:3] == ["-", "0.25000", "0.50000"]
    assert "validation" not in _pieces({"A": pieces["A"]})[0][1]


def test_a_script_and_a_prepare_run_made_files():
    made = {"models": [], "files": [{}, {}]}
    assert _made({**made, "work": "script"}) == "2 files"
    assert _made({**made, "work": "train", "models": [{}]}) == "1 model"


def test_a_status_names_the_run_that_is_continued():
    shown = _of_progress(replace(TRAIN, parent="run-0"), NOW)
    assert shown["parent"] == "run-0"
    assert "continues  run-0" in drawn(_detail(shown, 0), width=80)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("status", RUN), False),
        (("receipts", RUN), False),
        (("status", RUN, "-f"), True),
        (("stop", RUN), True),
    ],
)
def test_an_attached_command_has_told_the_end(words, shown, tmp_path, capsys):
    """Control sends no message about a run whose end was shown by a command that waited for it."""
    objects = S3Objects(FolderBucket(tmp_path), "")
    about = {"place": "here", "user_id": "LOCALUSER", "host": "desk", "ladder": (), "work": "script"}
    open_run = make_record(attempts=(Attempt(number=1, created_at=NOON),), state="running", **about)
    begin_run(objects, open_run)
    error = {"code": 100, "what": "it failed", "why": "", "do": ""}
    closed = replace(open_run.ended("failed", error, NOON), state="closed", closed_at=NOON)
    objects.put(key=receipt_key(RUN), body=json.dumps(make_receipt(closed, Observation())).encode())
    objects.put(key=record_key(RUN), body=to_json(closed))
    take_out(objects, closed=[RUN])
    assert main([*words, "--local", str(tmp_path)]) == 0
    assert "it failed" in capsys.readouterr().out
    assert (RUN not in read_index(objects).untold) == shown


def test_a_followed_run_outlasts_errors_of_the_network(monkeypatch, capsys):
    """As its launch does: only the first look has to succeed."""
    look = Step(record=make_record(), observed=Observation(), actions=(), moved=False)
    open_run = Settled(run_id=RUN, look=look, receipt=None)
    receipt = make_receipt(make_record().ended("done", None, NOON), Observation(models=()))
    failure = ConnectionFailed("cannot read run.json", why="EndpointConnectionError")
    looks = iter([open_run, failure, failure, replace(open_run, receipt=receipt)])

    def settle_run(cloud, run_id):
        found = next(looks)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(status, "settle_run", settle_run)
    cloud = SimpleNamespace(now=lambda: NOON)
    assert _followed(cloud, RUN, seconds=0.0)["state"] == "done"
    assert capsys.readouterr().err.count("warning: cannot read run.json") == 1
    looks = iter([failure])
    with pytest.raises(ConnectionFailed):
        _followed(cloud, RUN, seconds=0.0)
