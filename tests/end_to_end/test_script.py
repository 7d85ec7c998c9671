"""A script from the example's folder by the command of its page: killed in the middle, resumed, and pulled
with its hashes.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal

import pytest

from tests.desk import ROOT
from tests.wheels import write_wheel

EXAMPLE = ROOT / "examples" / "scripts" / "plain-torch"


@pytest.mark.slow
def test_a_killed_script_resumes_from_its_checkpoints(desk, eventually):
    # The example's own, which stops at its third epoch until it was killed there
    script = desk.folder / "train.py"
    wait = 'print("waiting", os.getpid(), flush=True); import time; time.sleep(600)'
    text = (EXAMPLE / "train.py").read_text()
    before = '    print(f"epoch {epoch}'
    assert before in text
    write_wheel(desk.folder, "tiny", text="size = 3")  # among its files, in the place of an index
    (desk.folder / "requirements.txt").write_text("tiny\n")
    stops = text.replace(before, f"    if epoch == 3 and first == 1:\n        {wait}\n{before}")
    script.write_text(f"import tiny\n\nassert tiny.size == 3\n{stops}")
    words = ("--script", str(script), "--data", str(EXAMPLE / "points"), "--max-duration", "2h")
    words += ("--instance", "g6.xlarge", "--set", "script.files=train.py,tiny-1.0-py3-none-any.whl")
    run = desk.start("launch", "--rehearse", "--json", *words)

    def waiting() -> list[int]:
        logs = desk.home.glob("sandbox/*/opt/mayfly/work/node.log")
        lines = [
            line.split() for log in logs for line in log.read_text().splitlines() if "| waiting " in line
        ]
        return [int(line[-1]) for line in lines]

    os.kill(eventually(waiting)[0], signal.SIGKILL)
    out, err = run.communicate(timeout=500)
    assert run.returncode == 0, err
    receipt = json.loads(out)
    (end,) = receipt["scripts"]
    assert (receipt["state"], receipt["retries"], end["starts"], end["exit_code"]) == ("done", 1, 2, 0)
    assert end["last_lines"][0] == "resumed after epoch 2" and end["last_lines"][-1].startswith("accuracy ")
    assert [file["file"] for file in receipt["files"]] == ["model.pt", "scores.json"]
    assert receipt["models"] == []

    assert receipt["python_packages"].endswith(", train.requirements.txt")
    assert "tiny==1.0" in (desk.folder / "train.requirements.txt").read_text()

    again = desk.run("launch", "--rehearse", "--dry-run", "--json", *words)
    assert again.returncode == 0, again.stderr
    plan = json.loads(again.stdout)
    (candidate,) = plan["candidates"]
    assert plan["data"]["packages"]["packages"] == ["tiny==1.0"]
    assert plan["times_are"] == f"rough: from its run of {receipt['created_at'][:10]}"
    assert candidate["seconds"]["p50"] >= receipt["seconds"]["train"]

    pulled = desk.run("pull", receipt["run_id"], "--rehearse", "--out", "pulled")
    assert pulled.returncode == 0, pulled.stderr
    for file in receipt["files"]:
        body = (desk.folder / "pulled" / "out" / file["file"]).read_bytes()
        assert hashlib.sha256(body).hexdigest() == file["sha256"]
    told = desk.run("logs", receipt["run_id"], "--metrics", "--json", "--rehearse")
    assert [row["epoch"] for row in json.loads(told.stdout)["models"]["train"]] == [1, 2, 3, 4, 5]
