"""Scripts whose spot machine is taken away three times: a new user's own, and Lightning's example. Both end with
the weights of a run that nobody interrupted.

The test holds a script after an epoch until its machine was taken, or told that it is.
"""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.desk import ROOT, Desk
from tests.end_to_end.test_script_examples import EXAMPLES, WHEELS, laid_out
from tests.end_to_end.test_survival import LOST, ONE_GPU, TWO_GPUS, TYPES, uninterrupted
from tests.jobs import sets
from tests.taken import TakenRun, adds_up

HELD_AT = (2, 4, 6)  # epochs: with notice, without, and with notice that leads to two GPUs
HOLD = """
def hold(epoch, gate=__import__("pathlib").Path({gate!r})):
    import time

    (gate / f"at-{{epoch}}").touch()
    while gate.joinpath("held").exists() and epoch in {held} and not (gate / f"go-{{epoch}}").exists():
        time.sleep(0.05)


"""


def held(script: Path, before: str, epoch: str) -> Path:
    """Have a script wait after its epochs, before a line of it; return the folder by which it is let go."""
    gate = script.parent / "gate"
    gate.mkdir()
    indent = before[: len(before) - len(before.lstrip())]
    text = script.read_text()
    assert text.count(before) == 1 and "\nimport " in text
    first, rest = text.split("\nimport ", 1)
    waits = rest.replace(before, f"{indent}hold({epoch})\n{before}")
    hold = HOLD.format(gate=str(gate), held=HELD_AT)
    script.write_text(f"{first}\n{hold}import {waits}")
    (gate / "held").touch()
    return gate


def interrupted(desk: Desk, gate: Path, *words: str) -> tuple[dict[str, Any], TakenRun]:
    """Run a script whose machine is taken at each of HELD_AT; return its receipt."""
    run = TakenRun(desk, *words, *TYPES)
    for attempt, epoch in enumerate(HELD_AT, 1):
        run.await_((gate / f"at-{epoch}").exists)
        run.take(attempt, notice=attempt != 2)
        (gate / f"go-{epoch}").touch()
    run.fill(ONE_GPU, until_attempt=4)
    receipt = run.receipt()
    adds_up(receipt, ONE_GPU, ONE_GPU, ONE_GPU, TWO_GPUS, causes=LOST)
    assert receipt["steps_twice"] is None, "nobody knows how a script counts"
    (gate / "held").unlink()
    return receipt, run


def file_of(desk: Desk, receipt: dict[str, Any], name: str) -> bytes:
    (file,) = (item for item in receipt["files"] if item["file"] == name)
    return desk.stored(file["key"])[file["key"]]


def epochs_told(run: TakenRun) -> list[list[int]]:
    """Return the epochs that each attempt's script told, in order."""
    told = [run.events(attempt, "script") for attempt in range(1, 5)]
    return [[event["epoch"] for event in events] for events in told]


@pytest.mark.nightly
@pytest.mark.timeout(3000)
def test_a_new_users_script_survives_three_machines(desk):
    script = desk.folder / "mine" / "train.py"
    script.parent.mkdir()
    shutil.copy(ROOT / "tests/trainer/outside/survivor.py", script)
    gate = held(script, "    if NOTICE.exists() and", "epoch")
    words = ("--script", str(script), "--data", str(EXAMPLES / "plain-torch" / "points"))
    receipt, run = interrupted(desk, gate, *words)
    assert epochs_told(run)[0] == [1, 2], "told to stop, it ended"
    assert epochs_told(run)[1][0] == 3 and epochs_told(run)[3] == [7, 8], "no epoch twice after a notice"
    whole = uninterrupted(desk, *words, "--instance", ONE_GPU, "--max-duration", "3h")
    assert {item["file"] for item in receipt["files"]} == {"network.pt", "steps.json"}
    ours, theirs = (torch.load(io.BytesIO(file_of(desk, one, "network.pt"))) for one in (receipt, whole))
    assert all(torch.equal(tensor, ours[name]) for name, tensor in theirs.items()) and len(ours) == 4
    assert file_of(desk, receipt, "steps.json") == file_of(desk, whole, "steps.json")


@pytest.mark.nightly
@pytest.mark.timeout(3000)
@pytest.mark.skipif(
    not list(WHEELS.glob("pytorch_lightning-*.whl")),
    reason="set-up could not fetch the examples' wheels (scripts/setup.py)",
)
def test_lightnings_example_survives_three_machines(desk):
    job = laid_out(desk, "lightning")
    seven = sets('script.files=["train.py", "wheels"]', "script.command=python train.py --epochs 7")
    words = ("--job", str(job), *seven)
    gate = held(
        job.parent / "train.py", "        self.trainer.should_stop = is_taken()", "self.current_epoch + 1"
    )
    receipt, _ = interrupted(desk, gate, *words)
    whole = uninterrupted(desk, *words, "--instance", ONE_GPU, "--max-duration", "3h")
    ours, theirs = (
        torch.load(io.BytesIO(file_of(desk, one, "autoencoder.ckpt")))["state_dict"]
        for one in (receipt, whole)
    )
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, ours[name]) for name, tensor in theirs.items())
