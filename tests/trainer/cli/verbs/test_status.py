"""`mayfly status` and `receipts` of a script: its pieces are values, or the script itself, and never
models.
"""

from __future__ import annotations

from dataclasses import replace

from tests.trainer.cli.views.test_progress import TRAIN
from tests.trainer.cli.views.test_watch import NOW
from trainer.cli.verbs.receipts import _made
from trainer.cli.verbs.status import _detail, _done, _of_progress
from trainer.cli.views.drawing import drawn


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


def test_a_script_and_a_prepare_run_made_files():
    made = {"models": [], "files": [{}, {}]}
    assert _made({**made, "work": "script"}) == "2 files"
    assert _made({**made, "work": "train", "models": [{}]}) == "1 model"


def test_a_status_names_the_run_that_is_continued():
    shown = _of_progress(replace(TRAIN, parent="run-0"), NOW)
    assert shown["parent"] == "run-0"
    assert "continues  run-0" in drawn(_detail(shown, 0), width=80)
