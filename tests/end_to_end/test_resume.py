"""`launch --resume`: a script that ended by a bug goes on, mended, in a run of its own."""

from __future__ import annotations

import json

import pytest

BROKEN = """import os
from pathlib import Path

place = Path(os.environ["MAYFLY_CHECKPOINTS"]) / "at"
at = int(place.read_text()) if place.is_file() else 0
print("begins at", at, flush=True)
place.write_text("7")
raise SystemExit("a bug")
"""
MENDED = BROKEN.replace(
    'raise SystemExit("a bug")', '(Path(os.environ["MAYFLY_OUT"]) / "sum").write_text(str(at))'
)


@pytest.mark.nightly
def test_a_mended_script_goes_on_from_the_run_that_its_bug_ended(desk):
    words = ("launch", "--rehearse", "--json", "--script", str(desk.folder / "count.py"))
    words += ("--instance", "g6.xlarge", "--max-duration", "1h")
    (desk.folder / "count.py").write_text(BROKEN)
    broken = desk.run(*words)
    first = json.loads(broken.stdout)
    assert (broken.returncode, first["state"]) == (100, "failed")
    (desk.folder / "count.py").write_text(MENDED)
    mended = desk.run(*words, "--resume", first["run_id"])
    assert mended.returncode == 0, mended.stderr
    receipt = json.loads(mended.stdout)
    assert (receipt["state"], receipt["parent"], len(receipt["attempts"])) == ("done", first["run_id"], 1)
    assert receipt["scripts"][0]["last_lines"] == ["begins at 7"]
    assert "the script has changed, so its newest checkpoints count" in mended.stderr
    told = json.loads(desk.run("status", receipt["run_id"], "--rehearse", "--events", "--json").stdout)
    assert "begins with 0 finished pieces and 1 file of checkpoints" in [
        one["what"] for one in told["events"]
    ]
    again = desk.run(*words, "--resume", receipt["run_id"])
    assert (
        again.returncode == 2 and "it ended done: nothing of it is left to do" in again.stdout + again.stderr
    )
