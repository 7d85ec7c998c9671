"""The node's training process, by what the kernel says of it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from trainer.base.errors import TrainingFailed
from trainer.launch.manifest import PROGRAM
from trainer.node.trainer_process import TrainerFiles, TrainerProcess, command_of


def no_files(folder: Path) -> TrainerFiles:
    """Return files that are not there: the trainer ends at once."""
    return TrainerFiles(
        job=folder / "no-such-job.json",
        plan=None,
        machine=folder / "machine.json",
        profiles=folder / "profiles.toml",
    )


def test_the_number_of_a_trainer_that_has_ended_is_its_own_until_its_group_is_killed(
    tmp_path: Path, monkeypatch
) -> None:
    """Else the group that is killed at the end may be somebody else's, who was given the same number."""
    signalled = []
    killpg = os.killpg

    def watched(group: int, number: int) -> None:
        signalled.append((Path(f"/proc/{group}/stat").read_text().rpartition(")")[2].split()[0], number))
        killpg(group, number)

    monkeypatch.setattr(os, "killpg", watched)
    with TrainerProcess(
        list(PROGRAM), work=tmp_path, files=no_files(tmp_path), workers=1, device="cpu"
    ) as trainer:
        deadline = time.monotonic() + 500
        while (code := trainer.poll()) is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert code == trainer.wait() == trainer.poll() > 0
    assert signalled == [("Z", signal.SIGKILL)]


def test_a_trainer_that_was_killed_tells_the_signal(tmp_path: Path) -> None:
    with TrainerProcess(
        list(PROGRAM), work=tmp_path, files=no_files(tmp_path), workers=1, device="cpu"
    ) as trainer:
        os.kill(trainer.pid, signal.SIGKILL)
        assert trainer.wait() == -signal.SIGKILL


def test_the_program_is_the_manifests_and_one_that_nobody_can_run_is_one_line(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import pathlib, sys; pathlib.Path(sys.argv[1], 'ran').write_text(' '.join(sys.argv[2:]))"
    )
    program = ["$PYTHON", str(script), "$OUT", "${WORKERS}x$DEVICE", "$$OUT"]
    (tmp_path / "models").mkdir()
    with TrainerProcess(
        program, work=tmp_path, files=no_files(tmp_path), workers=8, device="cuda"
    ) as trainer:
        assert trainer.wait() == 0
    assert (tmp_path / "models" / "ran").read_text() == f"8xcuda ${tmp_path / 'models'}"
    for bad in ([], "python", ["$PYTHON", 3], ["$HOME"], ["$PLAN"]):
        with pytest.raises(TrainingFailed, match="program can't be run"):
            command_of(bad, {"PYTHON": "python"})
