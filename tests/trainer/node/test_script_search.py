"""Searches of a script's values as the agent runs them: who begins with which values, and how each ends."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.nodes import NOW, bundle, listed, node, own_user, reported, start, started_by, stop_when
from trainer.aws.place import HERE
from trainer.base import extras
from trainer.base.errors import ConfigError, TrainingFailed, UsageError
from trainer.base.instants import utc_now
from trainer.node.devices import Devices
from trainer.node.progress import Progress
from trainer.node.report import progress
from trainer.runs.lease import Lease
from trainer.runs.reports import heartbeat
from trainer.runs.store import start_key

__all__ = ["bundle", "node", "own_user", "start", "stop_when"]  # fixtures
SCORES = """
echo $MAYFLY_VALUE_RATE >> ../../begun
echo '{"step": 1, "error": '$MAYFLY_VALUE_RATE'}' >> $MAYFLY_EVENTS
echo '{"step": 2, "error": 7}' >> $MAYFLY_EVENTS
[ $MAYFLY_VALUE_RATE = 0.4 ] && { echo too large; exit 3; }
echo $MAYFLY_VALUE_RATE > $MAYFLY_OUT/model.pt
"""
GRID = {"over": {"rate": [0.1, 0.2, 0.4]}, "method": "grid", "score": "error:min"}
RANGE = {"over": {"rate": {"low": 0.01, "high": 1.0, "log": True}}, "trials": 6, "score": "error:min"}


@pytest.fixture(autouse=True)
def cheap(node: Any) -> None:
    """A node whose machine has just begun."""
    node.status.phases["boot"] = utc_now()


def begun(node: Any) -> list[str]:
    """Return the values of the trials that began, in order."""
    return Path(node.work, "command", "begun").read_text().split()


def ends(node: Any, error: Any = None) -> dict[str, dict[str, Any]]:
    """Return what the result says of each trial."""
    return {one["piece"]: one for one in reported(node, error).scripts}


def in_s3(node: Any) -> dict[str, str]:
    """Return the ends that S3 knows, as a later attempt begins with them."""
    body = node.uplink.s3.objects[node.status.identity.keys.output_index]
    return {one["piece"]: one["end"] for one in json.loads(body)["scripts"]}


def test_a_trial_that_fails_fails_no_run(node, start, caplog):
    caplog.set_level("INFO")
    start(SCORES, search=GRID)
    assert begun(node) == ["0.1", "0.2", "0.4"] and listed(node) == {
        f"t{number}/model.pt": f"{rate}\n" for number, rate in ((1, 0.1), (2, 0.2))
    }
    ended = ends(node)
    assert [(one["end"], one["done"], one["epochs"], one["values"]) for one in ended.values()] == [
        ("done", True, 2, {"rate": "0.1"}),
        ("done", True, 2, {"rate": "0.2"}),
        ("failed", True, 2, {"rate": "0.4"}),
    ]
    assert ended["t1"]["best"] == {"metric": "error", "value": 0.1, "better": "min"}
    assert (ended["t3"]["exit_code"], ended["t3"]["last_lines"]) == (3, ["too large"])
    assert in_s3(node) == {"t1": "done", "t2": "done", "t3": "failed"}
    told = heartbeat(Lease(instance_id="i-1", at=NOW, lease_until=NOW), progress(node.status))
    assert (told.models_total, told.models_done, told.progress["t2"]["score"]) == (3, 3, 0.2)
    assert "t2 done after 2 scores, the best error 0.2: rate = 0.2" in caplog.messages


BEHIND = """
echo $MAYFLY_VALUE_RATE >> ../../begun
trap 'echo asked > $MAYFLY_OUT/asked; exit 0' TERM
for step in 1 2 3; do echo '{"auc": '$MAYFLY_VALUE_RATE'}' >> $MAYFLY_EVENTS; done
[ $MAYFLY_VALUE_RATE = 0.4 ] || [ $MAYFLY_VALUE_RATE = 0.6 ] || while :; do sleep 0.02; done
"""


def test_a_trial_that_falls_behind_is_asked_to_end_and_is_over(node, start):
    over = {"rate": [0.4, 0.2, 0.1, 0.6]}
    start(BEHIND, search={**GRID, "over": over, "score": "auc:max", "prune": "halving"})
    assert begun(node) == ["0.4", "0.2", "0.1", "0.6"], "each once"
    assert [(one["end"], one["exit_code"], one["starts"]) for one in ends(node).values()] == [
        *(("done", 0, 1), ("pruned", 0, 1), ("pruned", 0, 1), ("done", 0, 1)),
    ]
    assert listed(node) == {"t2/asked": "asked\n", "t3/asked": "asked\n"}
    assert in_s3(node) == {"t1": "done", "t2": "pruned", "t3": "pruned", "t4": "done"}


def test_trials_beyond_the_time_are_left_out(node, start):
    node.status.phases["boot"] = NOW  # days ago
    start(SCORES, search={**RANGE, "within": "2h"})
    ended = ends(node)
    assert len(begun(node)) == 1 and [one["end"] for one in ended.values()] == ["done", *["left_out"] * 5]
    assert reported(node).state == "done" and in_s3(node) == {name: one["end"] for name, one in ended.items()}


def test_dollars_need_a_price(start):
    with pytest.raises(UsageError, match="search.dollars is 2, and the machine is yours"):
        start(SCORES, search={**RANGE, "dollars": 2.0})


def test_without_optuna_a_machines_owner_reads_what_to_install(node, start, monkeypatch):
    node.place = HERE
    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda name: None)
    for keys in ({"method": "tpe"}, {"prune": "halving"}):
        with pytest.raises(ConfigError, match=r"this needs optuna.*pip install .mayfly.search.'"):
            start(SCORES, search={**RANGE, **keys})
        shutil.rmtree(node.work / "command")
    start(SCORES, search=RANGE)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (SCORES.replace("error", "mse"), "none of its 2 trials has a score: search.score names error, and"
                                         " its events have mse"),
        ("echo no data; exit 1", "none of its 2 trials has a score: it ended with exit code 1: no data"),
    ],
)  # fmt: skip
def test_a_search_without_any_score_fails_with_the_first_reason(node, start, text, why):
    with pytest.raises(TrainingFailed) as failed:
        start(text, search={**GRID, "over": {"rate": [0.1, 0.2]}})
    assert failed.value.why == why and reported(node, failed.value).state == "failed"


def test_tpe_gives_a_trial_its_values_as_it_begins(node, start):
    start(SCORES, search={**RANGE, "method": "tpe", "trials": 12, "score": "error:max"})
    ended = ends(node)
    assert [one["values"]["rate"] for one in ended.values()] == begun(node) and len({*begun(node)}) == 12
    assert all(listed(node)[f"{name}/model.pt"].strip() == one["values"]["rate"]
               for name, one in ended.items())  # fmt: skip


def test_a_later_attempt_goes_on_as_if_no_machine_had_been_lost(node, start):
    search = {**RANGE, "method": "tpe", "trials": 13}  # the first ten are random

    def next_attempt(*finished: dict[str, Any]) -> list[str]:
        shutil.rmtree(node.work)
        node.work.mkdir()
        node.status.progress, node.status.scripts = Progress(), []
        node.uplink.s3.objects[start_key("r", 1)] = started_by("r", "i-1", finished=finished)
        start(SCORES, search=search)
        return begun(node)

    start(SCORES, search=search)
    whole, over = begun(node), reported(node).scripts
    assert next_attempt(*over[:11]) == whole[11:] and list(ends(node)) == ["t12", "t13"]
    left_out = {**over[11], "values": {}, "end": "left_out", "best": {}}
    assert len(next_attempt(*over[:11], left_out)) == 1 and list(ends(node)) == ["t13"]


GOES_ON = """
ls $MAYFLY_CHECKPOINTS > $MAYFLY_OUT/seen
echo '{"error": 1}' >> $MAYFLY_EVENTS
"""


@pytest.mark.parametrize(("method", "seen", "is_judged"), [("random", "epoch\n", False), ("tpe", "", True)])
def test_a_trial_with_known_values_goes_on_from_checkpoints(node, start, method, seen, is_judged):
    earlier = node.work / "command" / "checkpoints" / "t2"
    earlier.mkdir(parents=True)
    (earlier / "epoch").write_text("1")
    start(GOES_ON, search={**RANGE, "method": method, "trials": 2, "prune": "halving"})
    assert (listed(node)["t1/seen"], listed(node)["t2/seen"]) == ("", seen)
    lines = (node.work / "events" / "events.jsonl").read_text().splitlines()
    told = {one["piece"]: one for one in map(json.loads, lines) if one["event"] == "script"}
    assert "report" in told["t1"] and ("report" in told["t2"]) == is_judged and told["t2"]["score"] == 1


def test_a_score_that_no_trial_tells_ends_the_search_early(node, start):
    told = "the first 3 trials came to their end without a score, and no other began .search.score names mse"
    with pytest.raises(TrainingFailed, match=told) as failed:
        start(SCORES, search={**RANGE, "score": "mse:min"})
    assert len(begun(node)) == 3 and len(reported(node, failed.value, unfinished="it").failed) == 3


BROKEN_GPU = """
echo "$MAYFLY_VALUE_RATE $CUDA_VISIBLE_DEVICES" >> ../../begun
[ $CUDA_VISIBLE_DEVICES = 1 ] && exit 1
while [ $(grep -c ' 1$' ../../begun) -lt 3 ]; do sleep 0.01; done
echo '{"error": '$MAYFLY_VALUE_RATE'}' >> $MAYFLY_EVENTS
"""


def test_trials_that_a_broken_gpu_failed_are_tried_elsewhere(node, start):
    node.status.devices = Devices(expected=2, found=2, kind="cpu", note="")
    start(BROKEN_GPU, search=RANGE)
    ended = ends(node)
    assert len(begun(node)) == 2 * (6 + 3), "three were tried twice"
    assert [one["end"] for one in ended.values()] == ["done"] * 6
    assert in_s3(node) == dict.fromkeys(ended, "done") and len(node.status.progress.trials) == 6
