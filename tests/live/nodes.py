"""Two runs of two machines each: those of one run reach each other, and none of the other's."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from tests.live.context import Live, require
from tests.live.runs import left_alone, show
from trainer.runs.start_file import stored_start
from trainer.runs.store import start_key

BUDGET = "0.60"  # dollars, of two g4dn.xlarge: the deadline of a run
PORT = 7777
JOB = """name = "live-nodes"
[script]
command = "python meet.py"
env = ["PORT={port}", "SECONDS={seconds}", "STRANGERS={strangers}"]
[script.over]
n = [1, 2]
[machine]
nodes = 2
instance = ["g4dn.xlarge"]
max_duration = "25m"
"""
# Each node has one of the values: it listens, and tries to reach the others for a while.
MEET = """import json, os, socket, time
from pathlib import Path

port, ends = int(os.environ["PORT"]), time.time() + float(os.environ["SECONDS"])
server = socket.create_server(("", port))
met = {address: False for address in os.environ["MAYFLY_ADDRESSES"].split(",")}
met |= {address: False for address in os.environ["STRANGERS"].split("+") if address}
while time.time() < ends:
    for address in met:
        try:
            socket.create_connection((address, port), timeout=5).close()
            met[address] = True
        except OSError:
            pass
    time.sleep(2)
(Path(os.environ["MAYFLY_OUT"]) / "met.json").write_text(json.dumps(met))
"""


def nodes(live: Live) -> None:
    """Have the machines of a run try those of another one while both listen."""
    listening = _job(live, strangers=(), seconds=900)
    with left_alone(live, "--job", listening, *_limits()) as victim:
        key = start_key(victim, 1)

        def named() -> Any:
            start = stored_start(live.cloud.objects.get(key=key), victim, 1)
            return start.addresses if start else ()

        within = timedelta(minutes=10)
        addresses = live.until(named, f"the addresses of {victim}", within=within, every=10)
        wait = timedelta(minutes=15)
        live.until(lambda: _at_work(live, victim), f"the work of {victim}", within=wait, every=20)
        receipt = live.mayfly("launch", "--job", _job(live, strangers=addresses, seconds=120), *_limits())
        show(live, receipt, state="done")
        require([one["state"] for one in receipt["nodes"]] == ["done", "done"], str(receipt["nodes"]))
        for file in receipt["files"]:
            stored = live.cloud.objects.get(key=file["key"], version_id=file["version_id"])
            met = json.loads(stored.body) if stored else {}
            reached = [address for address, is_reached in met.items() if is_reached]
            live.say(f"{file['file']}: reached {', '.join(reached)} of {', '.join(met)}")
            require(len(met) == 4 and len(reached) == 2, f"it reached {reached}")
            require(
                not set(reached) & set(addresses), f"it reached {set(reached) & set(addresses)} of {victim}"
            )


def _limits() -> tuple[str, ...]:
    return ("--budget", BUDGET, "-y")


def _at_work(live: Live, run_id: str) -> bool:
    return live.mayfly("status", run_id)["runs"][0]["phase"] == "train"


def _job(live: Live, *, strangers: tuple[str, ...], seconds: int) -> str:
    folder = live.folder / "nodes"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "meet.py").write_text(MEET)
    text = JOB.format(port=PORT, seconds=seconds, strangers="+".join(strangers))
    (folder / "job.toml").write_text(text)
    return str(folder / "job.toml")
