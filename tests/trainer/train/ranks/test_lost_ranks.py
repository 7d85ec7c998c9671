"""How often the ranks of a piece start, and on which devices. The ranks are played."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import job_of
from tests.pieces import piece
from trainer.train.machine_file import MachineFacts
from trainer.train.ranks import supervisor as supervising
from trainer.train.ranks.supervisor import RankSupervisor
from trainer.train.workers.assignment import Outcome, WorkerSettings

DIES = {"event": "model_failed", "reason": "rank 1 was killed"}
DONE = {"event": "model_done"}


@dataclass
class Stage:
    """A supervisor whose starts end as told: by the number of the start and its devices."""

    ends: Callable[[int, tuple[int, ...]], Mapping[str, Any]]
    broken: Mapping[str, str] = field(default_factory=dict)
    starts: list[dict[str, Any]] = field(default_factory=list)
    told: list[dict[str, Any]] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)

    def named(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.told if event["event"] == kind]

    def smoke(self, device: str) -> str:
        self.tried.append(device)
        return self.broken.get(device, "")

    def start(self, assignment: Any, count: int, *_: Any, gpus: tuple[int, ...], **how: Any) -> Any:
        stage, number = self, len(self.starts)
        self.starts.append({"count": count, "gpus": gpus, "machine": assignment.settings.machine.gpus, **how})

        class Played:
            retries, silences, out_of_memory, gives_up = how["retries"], how["silences"], "", False

            def run(self) -> dict[str, Any]:
                end = {**assignment.piece.identity, **stage.ends(number, gpus or tuple(range(count)))}
                self.gives_up = end["event"] == "model_failed"
                if not self.gives_up:
                    stage.told.append(end)
                return end

            def close(self) -> None:
                pass

        return Played()

    def train(
        self, monkeypatch: pytest.MonkeyPatch, *, ranks: int = 4, kind: str = "cuda", pieces: int = 1
    ) -> Outcome:
        monkeypatch.setattr(supervising, "TorchRun", self.start)
        monkeypatch.setattr(supervising, "kept", lambda *_, **__: None)
        monkeypatch.setattr(
            supervising, "device_of", lambda kind, n: f"cuda:{n}" if kind == "cuda" else "cpu"
        )
        machine = MachineFacts(instance_type="p4d.24xlarge", gpus=ranks)
        settings = WorkerSettings(
            job=job_of(retries=2),
            data=None,
            out=Path(),
            checkpoints=Path(),
            machine=machine,  # type: ignore[arg-type]
        )
        known: dict[str, Any] = {"emit": self.told.append, "smoke": self.smoke}
        with RankSupervisor(kind=kind, ranks=ranks, settings=settings, **known) as supervisor:
            return supervisor.run([piece(f"P{number}") for number in range(pieces)])


def dies_with(device: int) -> Callable[[int, tuple[int, ...]], Mapping[str, Any]]:
    return lambda _, devices: DIES if device in devices else DONE


def test_a_broken_gpu_is_set_aside_and_the_others_go_on(monkeypatch):
    stage = Stage(dies_with(1), broken={"cuda:1": "its smoke test fails: no kernel image"})
    outcome = stage.train(monkeypatch, pieces=2)
    assert len(outcome.done) == 2 and not outcome.failed
    assert [(start["count"], start["gpus"], start["machine"]) for start in stage.starts] == [
        (4, (), 4),
        (3, (0, 2, 3), 3),
        (3, (0, 2, 3), 3),
    ]
    assert stage.starts[1]["retries"] == 2, "what the device did is not charged"
    (aside,) = stage.named("device_set_aside")
    assert (aside["device"], aside["worker"], aside["pieces"]) == ("cuda:1", 1, ["P0"])
    (retry,) = stage.named("retry")
    assert retry["charged"] is False and retry["reason"].startswith("set aside: cuda:1: its smoke test fails")
    assert sorted(stage.tried) == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]


def test_a_piece_that_fails_on_sound_gpus_is_reported_once(monkeypatch):
    stage = Stage(dies_with(1))
    outcome = stage.train(monkeypatch)
    (failed,) = outcome.failed.values()
    assert failed["reason"] == "rank 1 was killed" and stage.named("model_failed") == [failed]
    assert len(stage.starts) == 1 and not stage.named("device_set_aside")


def test_no_gpu_left_fails_the_rest_at_once(monkeypatch):
    stage = Stage(dies_with(0), broken={f"cuda:{n}": "its smoke test fails" for n in range(2)})
    outcome = stage.train(monkeypatch, ranks=2, pieces=3)
    assert len(outcome.failed) == 3 and len(stage.starts) == 1
    reasons = {failed["reason"] for failed in outcome.failed.values()}
    assert reasons == {"no device is left: cuda:0: its smoke test fails; cuda:1: its smoke test fails"}


def test_a_core_is_not_tried(monkeypatch):
    stage = Stage(dies_with(1))
    assert len(stage.train(monkeypatch, kind="cpu").failed) == 1 and not stage.tried
