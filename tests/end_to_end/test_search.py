"""Searches whose spot machine is taken away: no trial that ended begins again, and the best one's model is that of
a run that nobody interrupted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.desk import QUICK, Desk
from tests.end_to_end.test_survival import ONE_GPU, same, uninterrupted
from tests.jobs import sets
from tests.taken import TakenRun, adds_up

FOUR_GPUS = "g5.12xlarge"
TRIALS, HELD_AT = 50, (12, 30)  # trials that are done when the machine is taken
SCRIPT = """
import json, os, time
from pathlib import Path

gate, value = Path({gate!r}), os.environ["MAYFLY_VALUE_RATE"]
done = lambda: len(list(gate.glob("done-*")))
while any(done() >= held and not (gate / f"go-{{held}}").exists() for held in {held}):
    time.sleep(0.1)
with open(os.environ["MAYFLY_EVENTS"], "a") as events:
    events.write(json.dumps({{"step": 1, "error": abs(float(value) - 0.01)}}) + chr(10))
Path(os.environ["MAYFLY_OUT"], "made.txt").write_text(value)
(gate / f"done-{{value}}-{{os.getpid()}}").touch()
"""

HELD, FAR = (
    4,
    1.0,
)  # trials that are done when the machine is taken; error from which a trial ends by a signal alone
TRIES = 24
TPE = """
import json, math, os, time
from pathlib import Path

gate, value = Path({gate!r}), os.environ["MAYFLY_VALUE_RATE"]
error = abs(math.log10(float(value)) + 2)
while len(list(gate.glob("done-*"))) >= {held} and not (gate / "go").exists():
    time.sleep(0.1)
report = 0
while error > {far} or report < 30:
    report += 1
    with open(os.environ["MAYFLY_EVENTS"], "a") as events:
        events.write(json.dumps({{"epoch": report, "error": error + 1 / report}}) + chr(10))
    time.sleep(0.1 if error > {far} else 0.01)
Path(os.environ["MAYFLY_OUT"], "made.txt").write_text(value)
(gate / f"done-{{value}}-{{os.getpid()}}").touch()
"""


def listed(run: TakenRun, attempt: int) -> list[dict[str, Any]]:
    """Return the pieces that S3 knows to have ended on an attempt's machine."""
    record = run.record()
    assert record is not None
    (keys,) = record.as_of(attempt).nodes
    body = run.desk.stored(keys.output_index).get(keys.output_index, b"{}")
    ends: list[dict[str, Any]] = json.loads(body).get("scripts", [])
    return ends


@pytest.mark.nightly
@pytest.mark.timeout(3000)
def test_each_of_50_script_trials_ends_once_on_killed_machines(desk: Desk) -> None:
    gate, script = desk.folder / "gate", desk.folder / "mine" / "train.py"
    gate.mkdir()
    script.parent.mkdir()
    script.write_text(SCRIPT.format(gate=str(gate), held=HELD_AT))
    over = "search.over={rate={low=1e-4,high=1e-1,log=true}}"
    words = sets(
        over,
        f"search.trials={TRIALS}",
        "search.score=error:min",
        "script.gpus=0.5",
        "machine.spot_without_checkpoints=true",
    )
    run = TakenRun(desk, "--script", str(script), *words, "--instance", FOUR_GPUS)
    for attempt, held in enumerate(HELD_AT, 1):
        run.await_(lambda held=held: len(list(gate.glob("done-*"))) >= held)
        ended = len(list(gate.glob("done-*")))
        before = len(run.start_file(attempt).scripts)
        run.await_(lambda attempt=attempt, left=ended - before: len(listed(run, attempt)) >= left)
        run.take(attempt, notice=False)
        run.await_(lambda attempt=attempt: len(run.record().attempts) > attempt)
        (gate / f"go-{held}").touch()
    receipt = run.receipt()
    adds_up(receipt, *[FOUR_GPUS] * 3, causes=("lost", "lost", ""))
    ends = receipt["scripts"]
    assert len(ends) == TRIALS == len({one["piece"] for one in ends}) and all(one["done"] for one in ends)
    scores = [one["best"]["value"] for one in ends]
    assert scores == sorted(scores) and len(receipt["files"]) == TRIALS
    assert len(list(gate.glob("done-*"))) == TRIALS, "each ran to its end once"


@pytest.mark.nightly
@pytest.mark.timeout(3000)
def test_a_scripts_tpe_search_survives_its_machine(desk: Desk) -> None:
    gate, script = desk.folder / "gate", desk.folder / "mine" / "train.py"
    gate.mkdir()
    script.parent.mkdir()
    script.write_text(TPE.format(gate=str(gate), held=HELD, far=FAR))
    words = sets(
        "search.over={rate={low=1e-4,high=1.0,log=true}}",
        f"search.trials={TRIES}",
        "search.method=tpe",
        "search.prune=halving",
        "search.score=error:min",
        "search.within=2h",
        "script.gpus=0.25",
        "machine.spot_without_checkpoints=true",
    )
    run = TakenRun(desk, "--script", str(script), *words, "--instance", ONE_GPU)
    run.await_(lambda: len(list(gate.glob("done-*"))) >= HELD)
    run.await_(lambda: len(listed(run, 1)) >= HELD)
    run.take(1, notice=False)
    run.await_(lambda: len(run.record().attempts) > 1)
    (gate / "go").touch()
    receipt = run.receipt()
    adds_up(receipt, ONE_GPU, ONE_GPU, causes=("lost", ""))
    known = {str(one["piece"]) for one in run.start_file(2).trials}
    begun = [str(one["piece"]) for one in run.events(2, "model_started")]
    assert len(known) >= HELD and not known & {*begun} and len(begun) == len({*begun})
    assert known | {*begun} == {f"t{number}" for number in range(1, TRIES + 1)}
    ends = receipt["scripts"]
    assert len(ends) == TRIES == len({one["piece"] for one in ends}) and all(one["done"] for one in ends)
    assert {one["end"] for one in ends} == {"done", "pruned"}, "a pruned trial fails no run"
    whole = [one for one in ends if one["end"] == "done"]
    scores = [one["best"]["value"] for one in whole]
    assert scores == sorted(scores) and ends[: len(whole)] == whole
    assert {one["file"] for one in receipt["files"]} >= {f"{one['piece']}/made.txt" for one in whole}


@pytest.mark.nightly
@pytest.mark.timeout(3000)
def test_a_search_goes_on_where_its_machine_was_lost(desk: Desk, candles: Path) -> None:
    over = "search.over={train={learning_rate=[0.001,0.003,0.01]},model={hidden=[4,8]}}"
    grid = sets(over, "search.method=grid", "train.patience=200", "expert.tune=never")
    words = ("--data", str(candles), "--symbols", "AAA", *QUICK, "--epochs", "150", *grid)
    run = TakenRun(desk, *words, "--instance", ONE_GPU)
    run.stop_at(1, "AAA t2", 3)
    run.await_(lambda: len(listed(run, 1)) >= len(run.events(1, "trial_done")) > 0)
    run.take(1, notice=False)
    receipt = run.receipt()
    adds_up(receipt, ONE_GPU, ONE_GPU, causes=("lost", ""))
    known = {str(one["piece"]) for one in run.start_file(2).trials}
    begun = {str(one["piece"]) for one in run.events(2, "model_started")}
    assert known and not known & begun and known | begun == {"AAA", *(f"AAA t{n}" for n in range(1, 7))}
    assert sorted(one["piece"] for one in receipt["trials"]) == [f"AAA t{n}" for n in range(1, 7)]
    whole = uninterrupted(desk, *words, "--instance", ONE_GPU)
    assert [one["piece"] for one in whole["trials"]] == [one["piece"] for one in receipt["trials"]]
    same(desk, receipt, whole, tolerance=0)
