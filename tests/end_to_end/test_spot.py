"""A spot machine that is taken away from a user's script: it obeys the notice, and another goes on from its
last checkpoint.
"""

from __future__ import annotations

import json

import pytest

from tests.desk import ROOT

EXAMPLE = ROOT / "examples" / "scripts" / "plain-torch"
WAITS = "    while epoch == 3 and first == 1 and not notice.exists():\n        time.sleep(0.05)\n"


@pytest.mark.slow
def test_a_script_goes_on_after_its_spot_machine_was_taken(desk):
    text = (EXAMPLE / "train.py").read_text()
    before = '    print(f"epoch {epoch}'
    assert before in text and "\nimport os\n" in text
    script = text.replace(before, f"{WAITS}{before}").replace("\nimport os\n", "\nimport os\nimport time\n")
    (desk.folder / "train.py").write_text(script)
    words = ("--script", str(desk.folder / "train.py"), "--data", str(EXAMPLE / "points"))
    words += (
        "--instance",
        "g6.xlarge",
        "--max-duration",
        "2h",
        "--interrupt",
        "20%",
    )  # two of five epochs: the third is under way
    run = desk.run("launch", "--rehearse", "--json", *words)
    assert run.returncode == 0, run.stderr
    receipt = json.loads(run.stdout)
    first, second = receipt["attempts"]
    assert (receipt["state"], first["cause"], second["cause"]) == ("done", "lost", "")
    assert first["error"]["what"] == "the spot instance was taken back"
    assert [one["market"] for one in receipt["instances"]] == ["spot", "spot"]
    (end,) = receipt["scripts"]
    assert end["last_lines"][0] == "resumed after epoch 3", "its last checkpoint, written after the notice"
    assert [file["file"] for file in receipt["files"]] == ["model.pt", "scores.json"]
    assert receipt["dollars"]["spot_saved_low"] <= 0 <= receipt["dollars"]["spot_saved_high"]
