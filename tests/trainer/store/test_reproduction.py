"""How a model was trained is read from its card, and losses that are computed again are compared with its."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.trainer.store.test_weights import CARD
from trainer.base.errors import DataError
from trainer.store.reproduction import (
    OTHERS,
    TOLERANCE,
    ComparedFile,
    Here,
    asked,
    compared,
    grouped,
    inexact,
    lacks,
    other_packages,
    trained_again,
)
from trainer.store.trained import LossPlace, Trained, told_losses, trained_of

HISTORY = [{"epoch": number, "train_loss": 0.5 / number, "validation_loss": 0.6} for number in (1, 2)]
TRAINING: dict[str, Any] = {
    "device": "cpu",
    "chip": "AMD EPYC",
    "instructions": "AVX512",
    "driver": "",
    "deterministic": False,
    "torch": "2.13.0+cpu",
    "precision": "float32",
    "strategy": "sequential",
    "pack": 1,
    "pack_mates": ["m"],
    "micro_batch": 64,
    "activation_checkpointing": False,
    "threads": 1,
    "batch": 64,
    "choice": {},
    "epochs_run": 2,
    "steps": 80,
    "history": HISTORY,
    "first_steps": [0.7, None, 0.69],
}
HERE = Here(processor="AMD EPYC", instructions="AVX512", torch="2.13.0+cpu", gpus=(), cores=8)
GPU: dict[str, Any] = {"device": "cuda:0", "chip": "NVIDIA H100", "driver": "550.1"}


def trained(**changes: Any) -> Trained:
    return trained_of(replace(CARD, model="m", piece="A", training={**TRAINING, **changes}))


def step(number: int) -> LossPlace:
    return LossPlace(fit=0, unit="step", number=number)


def test_a_card_has_how_its_model_was_trained_and_its_losses() -> None:
    made = trained()
    assert (made.device, made.threads, made.ranks, made.steps_of_epoch) == ("cpu", 1, 1, 40)
    assert [made.losses[step(number)] for number in (1, 2, 3)] == [0.7, None, 0.69]
    assert made.losses[LossPlace(fit=0, unit="epoch", number=2)] == 0.25
    assert len(made.losses) == 3 + 2 * 2


def test_epochs_of_several_trainings_are_counted_on() -> None:
    refit = {"first_steps": [0.4], "history": [{"epoch": 1, "train_loss": 0.3}]}
    made = trained(refit=[refit])
    told = {"event": "epoch", "model": "m", "epoch": 3, "fit": 2, "train_loss": 0.3}
    assert told_losses(told).items() <= made.losses.items()
    first = {"event": "first_steps", "model": "m", "fit": 2, "losses": [0.4]}
    assert told_losses(first).items() <= made.losses.items()
    assert str(LossPlace(fit=2, unit="epoch", number=3)) == "training 2, epoch 3"
    assert told_losses({"event": "progress", "fit": 2}) == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"chip": None},
        {"threads": 0},
        {"threads": 10**6},
        {"first_steps": [1.0] * 2_000},
        {"first_steps": ["0.7"]},
        {"history": [{"train_loss": [1]}]},
        {"pack_mates": [1]},
        {"choice": {"ranks": -1}},
        {"steps": "many"},
    ],
)
def test_a_card_without_it_or_with_nonsense_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="does not say how it was trained"):
        trained(**changes)


def test_first_steps_ask_for_the_losses_that_they_make() -> None:
    made = trained()
    assert asked(made, 2) == [step(1), step(2)]
    assert [str(place) for place in asked(made, 40)][3:] == ["epoch 1", "epoch 1 validation"]
    assert asked(made, 0) == list(made.losses)


def test_losses_are_equal_to_the_bit_or_within_what_excuses_them() -> None:
    made = trained()
    computed = dict(made.losses)
    same = compared(made, computed, steps=0, inexact="")
    assert (same.verdict, same.worst, len(same.losses)) == ("equal to the bit", 0.0, 7)
    computed[step(1)] = math.nextafter(0.7, 1.0)
    assert compared(made, computed, steps=0, inexact="").verdict == "different"
    assert compared(made, computed, steps=0, inexact="a GPU").verdict == "within the tolerance"
    computed[step(1)] = 0.7 * (1 + 2 * TOLERANCE)
    assert compared(made, computed, steps=0, inexact="a GPU").verdict == "different"
    computed[step(1)] = None
    assert compared(made, computed, steps=0, inexact="a GPU").worst == math.inf
    del computed[step(1)]
    gone = compared(made, computed, steps=0, inexact="a GPU")
    assert (gone.missing, gone.verdict) == (1, "different")
    assert compared(made, {}, steps=0, inexact="", failed="out of memory").verdict == "different"
    assert ComparedFile(file="a", recorded="1" * 64, computed="").verdict == "different"


@pytest.mark.parametrize(
    ("changes", "here", "why"),
    [
        ({}, {}, ""),
        ({"strategy": "fused", "pack_mates": ["m"]}, {}, ""),
        ({"strategy": "fused", "pack_mates": ["m", "n"]}, {}, "in one with 1 other"),
        ({"instructions": "AVX2"}, {}, "AVX2 then, AMD EPYC with AVX512 here"),
        ({"chip": "Intel"}, {}, "Intel with AVX512 then"),
        ({}, {"torch": "2.13.0+cu130"}, "torch 2.13.0"),
        (GPU, {}, "a GPU"),
        ({**GPU, "deterministic": True}, {}, ""),
    ],
)
def test_what_excuses_another_last_digit(changes: Any, here: Any, why: str) -> None:
    found = inexact(trained(**changes), replace(HERE, **here))
    assert why in found and bool(found) == bool(why)


def test_a_chip_that_is_not_there_is_named() -> None:
    assert lacks(trained(), HERE) == ""
    said = "it was trained on NVIDIA H100, this machine has"
    assert lacks(trained(**GPU), HERE) == f"{said} no GPU"
    assert lacks(trained(**GPU), replace(HERE, gpus=("Tesla T4",))) == f"{said} Tesla T4"
    assert lacks(trained(**GPU), replace(HERE, gpus=("NVIDIA H100",))) == ""
    two = trained(**GPU, choice={"ranks": 2})
    assert "2 x NVIDIA H100" in lacks(two, replace(HERE, gpus=("NVIDIA H100",)))


def test_packages_that_differ_from_a_lock_are_named() -> None:
    lock = "# made\nboto3==1.0 ; x \\\n    --hash=sha256:00\nnumpy==2.4.6 ; old\nnumpy==2.5 ; else\nwin==1\n"
    there = {"numpy": "2.5", "torch": "2.13.0+cpu", "boto3": "0.9"}
    assert other_packages(lock, lambda name: there.get(name, "")) == []
    there["numpy"] = "2.4"
    assert other_packages(lock, lambda name: there.get(name, "")) == ["numpy 2.4.6 or 2.5 (here 2.4)"]


def test_the_command_is_fixed_to_what_was_chosen_then() -> None:
    words = ["$PYTHON", "-m", "trainer.train", "--finished", "$GIVEN/finished.json", "--workers"]
    words += ["$MAYFLY_DEVICES", "--device", "$DEVICE", "--arriving", "$GIVEN/arriving.json", "--plan", "P"]
    job = {
        "name": "j",
        "train": {"batch": 0, "epochs": 9},
        "expert": {"tune": "auto"},
        "machine": {"nodes": 4},
    }
    command = {"words": [*words, "--cluster", "$CLUSTER"], "devices": "tested", "name": "train"}
    manifest = {"job": job, "command": command, "documents": {"a": 1}, "ssh_key": "k", "run_id": "r"}
    again = trained_again(manifest, [trained(threads=2)], {"m": "A", "n": "B"}, cores=8)
    assert again["command"]["words"] == [
        *("$PYTHON", "-m", "trainer.train", "--finished", f"$GIVEN/{OTHERS}", "--workers", "1"),
        *("--device", "cpu", "--plan", "P"),
    ]
    assert (again["command"]["devices"], again["ssh_key"], again["run_id"]) == ("found", "", "r")
    assert again["documents"] == {"a": 1, OTHERS: ["B"]}
    assert again["job"]["train"] == {"batch": 64, "epochs": 9} and again["job"]["machine"] == {"nodes": 1}
    assert again["job"]["expert"]["threads"] == 2 and again["job"]["expert"]["tune"] == "never"
    assert manifest["job"]["machine"] == {"nodes": 4}, "the original stays"

    both = trained_again(manifest, [trained(threads=2)] * 2, {"m": "A"}, cores=8)
    assert both["command"]["words"][6] == "1"  # it is one model
    two = [trained(threads=2), replace(trained(threads=2), model="n")]
    assert trained_again(manifest, two, {"m": "A", "n": "B"}, cores=8)["command"]["words"][6] == "2"
    assert trained_again(manifest, two, {"m": "A", "n": "B"}, cores=3)["command"]["words"][6] == "1"

    fused = trained(strategy="fused", pack=8, pack_mates=["m", "n"])
    packed = trained_again(manifest, [fused], {"m": "A", "n": "B", "o": "C"}, cores=8)
    assert packed["job"]["expert"]["pack"] == 8 and packed["documents"][OTHERS] == ["C"]


def test_a_searched_model_is_made_again_without_the_search() -> None:
    search = {"values": {"model.hidden": "8"}, "tried": 3}
    one, other = trained(search=search), trained(search={**search, "values": {"model.hidden": "16"}})
    assert one.values == {"model.hidden": "8"} and len(grouped([one, other])) == 2
    job = {"name": "j", "model": {"hidden": 64}, "search": {"over": {"model": {"hidden": [8, 16]}}}}
    manifest = {"job": job, "command": {"words": [], "devices": "tested"}, "documents": {}}
    again = trained_again(manifest, [one], {"m": "A"}, cores=8, values=[("model.hidden", 8)])
    assert again["job"]["model"] == {"hidden": 8} and "search" not in again["job"]
    with pytest.raises(DataError, match="does not say how it was trained"):
        trained(search={"values": ["model.hidden"]})


def test_models_are_trained_together_that_one_training_can_train() -> None:
    one, two, other = trained(), trained(), trained(threads=2)
    assert grouped([one, other, two]) == [[one, two], [other]]
