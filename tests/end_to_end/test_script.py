"""A script from the example's folder by the command of its page: killed in the middle and started again, then
taken away with its spot machine; another one goes on, and its files are pulled with their hashes.
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
# Its first start waits in the second of five epochs to be killed, the next one in the fourth for the notice.
STOPS = """    if epoch == 2 and first == 1:
        print("waiting", os.getpid(), flush=True)
        time.sleep(600)
    while epoch == 4 and first == 2 and not notice.exists():
        time.sleep(0.05)
"""


@pytest.mark.nightly
@pytest.mark.slow
def test_a_script_runs_on_a_machine_without_a_gpu(desk):
    script = desk.folder / "train.py"
    script.write_text(
        "import os, pathlib\n"
        "assert 'CUDA_VISIBLE_DEVICES' not in os.environ\n"
        "pathlib.Path(os.environ['MAYFLY_OUT'], 'x.txt').write_text('hello')\n"
    )
    words = ("--script", str(script), "--instance", "m7i.large", "--max-duration", "30m")
    words += ("--interrupt", "40%", "--set", "machine.spot_without_checkpoints=true")  # it reports no steps
    out, err = desk.start("launch", "--rehearse", "--json", *words).communicate(timeout=500)
    receipt = json.loads(out)
    assert receipt["state"] == "done" and "done before its machine was taken back" in err, err
    assert [file["file"] for file in receipt["files"]] == ["x.txt"]
    (machine,) = receipt["instances"]
    assert (machine["instance_type"], machine["state"]) == ("m7i.large", "terminated")


@pytest.mark.nightly
@pytest.mark.slow
def test_a_killed_script_goes_on_from_its_checkpoints(desk, eventually):
    script = desk.folder / "train.py"
    text = (EXAMPLE / "train.py").read_text()
    before = '    print(f"epoch {epoch}'
    assert before in text and "\nimport os\n" in text
    write_wheel(desk.folder, "tiny", text="size = 3")  # among its files, in the place of an index
    (desk.folder / "requirements.txt").write_text("tiny\n")
    stops = text.replace(before, f"{STOPS}{before}").replace("\nimport os\n", "\nimport os\nimport time\n")
    script.write_text(f"import tiny\n\nassert tiny.size == 3\n{stops}")
    words = ("--script", str(script), "--data", str(EXAMPLE / "points"), "--max-duration", "2h")
    words += ("--instance", "g6.xlarge", "--set", "script.files=train.py,tiny-1.0-py3-none-any.whl")
    # Two of five epochs count as done once the second start waits in its fourth.
    run = desk.start("launch", "--rehearse", "--json", *words, "--interrupt", "30%")

    def logs() -> list[str]:
        return [log.read_text() for log in desk.home.glob("sandbox/*/opt/mayfly/work/node.log")]

    def waiting() -> list[int]:
        lines = [line.split() for log in logs() for line in log.splitlines() if "| waiting " in line]
        return [int(line[-1]) for line in lines]

    os.kill(eventually(waiting)[0], signal.SIGKILL)
    out, err = run.communicate(timeout=500)
    assert run.returncode == 0, err
    receipt = json.loads(out)
    first, second = receipt["attempts"]
    assert (receipt["state"], first["cause"], second["cause"]) == ("done", "lost", "")
    assert first["error"]["what"] == "the spot instance was taken back"
    assert [one["market"] for one in receipt["instances"]] == ["spot", "spot"]
    assert receipt["dollars"]["spot_saved_low"] <= 0 <= receipt["dollars"]["spot_saved_high"]
    (end,) = receipt["scripts"]
    assert end["exit_code"] == 0
    assert any("| resumed after epoch 1\n" in log for log in logs()), "by the second start"
    assert end["last_lines"][0] == "resumed after epoch 4", "its last checkpoint, written after the notice"
    assert end["last_lines"][-1].startswith("accuracy ")
    assert [file["file"] for file in receipt["files"]] == ["model.pt", "scores.json"]
    assert receipt["models"] == []

    assert receipt["python_packages"].endswith(", train.requirements.txt")
    assert "tiny==1.0" in (desk.folder / "train.requirements.txt").read_text()

    again = desk.run("launch", "--rehearse", "--dry-run", "--json", *words)
    assert again.returncode == 0, again.stderr
    plan = json.loads(again.stdout)
    (candidate,) = plan["candidates"]
    assert plan["data"]["packages"]["packages"] == ["tiny==1.0"]
    assert plan["times_are"] == "rough: not estimated: no whole run of this script has ended yet"
    assert candidate["seconds"] is candidate["here"]["seconds"] is None, "its only run was interrupted"

    pulled = desk.run("pull", receipt["run_id"], "--rehearse", "--out", "pulled")
    assert pulled.returncode == 0, pulled.stderr
    for file in receipt["files"]:
        body = (desk.folder / "pulled" / "out" / file["file"]).read_bytes()
        assert hashlib.sha256(body).hexdigest() == file["sha256"]
    told = desk.run("logs", receipt["run_id"], "--metrics", "--json", "--rehearse")
    assert [row["epoch"] for row in json.loads(told.stdout)["models"]["train"]] == [1, 2, 3, 4, 5]
