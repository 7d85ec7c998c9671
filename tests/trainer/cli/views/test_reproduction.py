"""What a reproduction shows: the first, the last and the worst losses, and a verdict that says why."""

from __future__ import annotations

import math

from trainer.cli.views.drawing import UNLIMITED, drawn
from trainer.cli.views.reproduction import document_of, reproduction_view
from trainer.store.reproduction import ComparedFile, ComparedLoss, ComparedModel
from trainer.store.trained import LossPlace

RUN = "20261127-120000-crypto-k3v9"


def model(name: str, count: int, *, apart: int = 0, inexact: str = "", failed: str = "") -> ComparedModel:
    losses = tuple(
        ComparedLoss(
            place=LossPlace(fit=0, unit="step", number=number),
            recorded=0.5,
            computed=math.nextafter(0.5, 1) if number == apart else 0.5,
        )
        for number in range(1, count + 1)
    )
    return ComparedModel(model=name, losses=losses, inexact=inexact, failed=failed)


def shown(*compared: ComparedModel | ComparedFile) -> list[str]:
    return drawn(reproduction_view(compared, RUN), width=UNLIMITED).splitlines()


def test_of_one_model_the_ends_and_the_worst_are_shown() -> None:
    told = shown(model("m", 60, apart=30))
    assert sum("..." in line for line in told) == 2 and len(told) == 1 + 24 + 2 + 3
    assert any(line.startswith("step 30 ") and "e-16 of it" in line for line in told)
    assert told[-2] == "\u2717 m: apart by 2.2e-16 of a loss at most; they are to be equal to the bit"
    assert told[-1] == f"\u2717 m of run {RUN} (60 losses): different"
    assert "..." not in " ".join(shown(model("m", 5)))


def test_a_verdict_counts_models_and_says_what_excuses_them() -> None:
    told = shown(model("a", 2), model("b", 9, apart=2, inexact="a GPU may add in another order"))
    assert told[-2].endswith("they are within 0.2%, since a GPU may add in another order")
    assert told[-1] == f"\u2248 2 models of run {RUN} (11 losses): 1 equal to the bit, 1 within the tolerance"
    assert shown(model("a", 1, failed="out of memory"))[-2].endswith("not trained here: out of memory")


def test_files_are_compared_by_their_hashes() -> None:
    files = [
        ComparedFile(file=name, recorded="a" * 64, computed=there)
        for name, there in (("x", "a" * 64), ("y", ""))
    ]
    told = shown(*files)
    assert (
        "not made" in told[2] and told[-1] == f"\u2717 2 files of run {RUN}: 1 equal to the bit, 1 different"
    )
    assert document_of(files)["files"][1]["verdict"] == "different"
    (one,) = document_of([model("m", 1)])["models"]
    assert one["losses"][0] == {
        "fit": 0,
        "unit": "step",
        "number": 1,
        "name": "train_loss",
        "recorded": 0.5,
        "computed": 0.5,
        "equal": True,
    }
