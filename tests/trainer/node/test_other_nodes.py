"""What another node left in S3: found without listing, laid out once it verifies, and asked for by an agent
and by a training.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.nodes import bundle, listed, node, start, started_by
from tests.pieces import piece
from tests.queues import QueueOfNode, Time, hand_out_of
from trainer.cluster.hand_out import SILENT_SECONDS
from trainer.cluster.waiting import CHECKPOINT, MADE, NOTHING
from trainer.job.search import SearchSettings
from trainer.job.trials import TrialEnd
from trainer.node import command as module
from trainer.node import stage
from trainer.node.devices import Devices
from trainer.node.other_nodes import Fetches, OtherNodes, newest_number
from trainer.node.shared import Node
from trainer.node.snapshots import Snapshots
from trainer.runs.start_file import StartFile
from trainer.runs.store import start_key
from trainer.train.workers.carried import Carried

__all__ = ["bundle", "node", "start"]  # fixtures
IDS, ADDRESSES = ("i-1", "i-2"), ("10.0.0.4", "10.0.0.9")
START = StartFile(run_id="r", attempt=1, instances=IDS, addresses=ADDRESSES)


@pytest.mark.parametrize("last", [0, 1, 2, 3, 7, 8, 9, 1000])
def test_the_newest_number_is_found_in_few_questions(last):
    asked: list[int] = []

    def exists(number: int) -> bool:
        asked.append(number)
        return number <= last

    assert newest_number(exists) == last
    assert len(asked) <= 2 + 2 * last.bit_length()


def other(node: Node) -> Node:
    """Return the second node, in the same bucket."""
    identity = replace(node.status.identity, instance_id="i-2")
    return replace(node, status=replace(node.status, identity=identity))


def leave(node: Node, folder: Path, **files: bytes) -> None:
    """Have the second node send files of its CHECKPOINTS as a snapshot."""
    for name, content in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert Snapshots(other(node), folder).take()


def others_of(node: Node, checkpoints: Path, **more: Any) -> OtherNodes:
    checkpoints.mkdir(exist_ok=True)
    return OtherNodes(node, START, checkpoints, **{"leaves": "models", "own_user": None, **more})


def test_only_the_piece_is_laid_out(node, tmp_path):
    leave(node, tmp_path / "theirs", a__1__data=b"one", a__1__more=b"two", b__1__data=b"three")
    ours = tmp_path / "ours"
    (ours / "a" / "0").mkdir(parents=True)
    assert others_of(node, ours).fetch(1, "a") == CHECKPOINT
    files = {str(path.relative_to(ours)): path.read_bytes() for path in ours.rglob("*") if path.is_file()}
    assert files == {"a/1/data": b"one", "a/1/more": b"two"}
    assert not (ours / "a" / "0").exists()
    assert others_of(node, ours).fetch(1, "c") == NOTHING


@pytest.mark.parametrize("fails", [1, 2, 3])
def test_no_piece_begins_anew_since_s3_failed_for_a_moment(node, tmp_path, fails, monkeypatch):
    monkeypatch.setattr(stage, "PAUSES", (0.0, 0.0, 0.0))
    leave(node, tmp_path / "theirs", a__1__data=b"one")
    node.uplink.s3.heads_to_fail = fails
    assert others_of(node, tmp_path / "ours").fetch(1, "a") == CHECKPOINT
    node.uplink.s3.objects[f"{other(node).status.identity.keys.models}a.json"] = b"{}"
    node.uplink.s3.heads_to_fail = fails
    assert others_of(node, tmp_path / "ours").fetch(1, "a") == MADE


def test_an_s3_that_fails_for_good_leaves_nothing(node, tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "PAUSES", (0.0,))
    monkeypatch.setattr(stage, "OUTAGE_SECONDS", 0.0)
    leave(node, tmp_path / "theirs", a__1__data=b"one")
    node.uplink.s3.heads_to_fail = 100
    assert others_of(node, tmp_path / "ours").fetch(1, "a") == NOTHING
    assert others_of(node, tmp_path / "ours").ended(1, ["a t1"]) == []


def test_a_finished_model_needs_nothing(node, tmp_path):
    node.uplink.s3.objects[f"{other(node).status.identity.keys.models}a.json"] = b"{}"
    assert others_of(node, tmp_path).fetch(1, "a") == MADE
    assert others_of(node, tmp_path, leaves="files").fetch(1, "a") == NOTHING


@pytest.mark.parametrize(("done", "left"), [(True, MADE), (False, NOTHING)])
def test_a_value_whose_files_are_not_in_s3_is_not_made(node, tmp_path, done, left):
    end = {"piece": "a", "kind": "script", "series": [], "fold": 1, "seed": 0, "values": {"n": "1"}}
    end |= {"done": done, "exit_code": 0, "starts": 1, "best": {}, "seconds": 1.0}
    body = json.dumps({"files": [], "scripts": [end]}).encode()
    node.uplink.s3.objects[other(node).status.identity.keys.output_index] = body
    assert others_of(node, tmp_path, leaves="files").fetch(1, "a") == left


def test_an_older_snapshot_counts_if_the_newest_does_not_verify(node, tmp_path):
    theirs, keys, objects = tmp_path / "theirs", other(node).status.identity.keys, node.uplink.s3.objects
    leave(node, theirs, a__1__data=b"one")
    objects[keys.snapshot(2)] = b'{"format": 2}'
    assert others_of(node, tmp_path / "ours").fetch(1, "a") == CHECKPOINT
    objects[keys.snapshot_data(1)] = b"two"
    assert others_of(node, tmp_path / "ours").fetch(1, "a") == NOTHING


def test_nothing_is_written_where_the_command_put_a_link(node, tmp_path):
    leave(node, tmp_path / "theirs", a__1__data=b"one")
    ours, outside = tmp_path / "ours", tmp_path / "outside"
    ours.mkdir()
    outside.mkdir()
    (ours / "a").symlink_to(outside)
    assert others_of(node, ours).fetch(1, "a") == NOTHING
    assert list(outside.iterdir()) == []


def test_a_training_reads_the_answers_in_a_file(node, tmp_path):
    leave(node, tmp_path / "theirs", m__1__data=b"one")
    fetches = Fetches(others_of(node, tmp_path / "ours"), answers=tmp_path / "carried.json")
    for model in ("m", "n"):
        fetches.answer({"event": "taken_over", "model": model, "node": 1}, {})
    fetches._pool.shutdown()
    assert json.loads((tmp_path / "carried.json").read_text()) == {
        "m": {"left": CHECKPOINT, "ended": []},
        "n": {"left": NOTHING, "ended": []},
    }
    with pytest.raises(ValueError, match="no node 2"):
        fetches.answer({"event": "taken_over", "model": "m", "node": 2}, {})


def test_a_study_comes_with_ends_and_checkpoints_of_trials(node, tmp_path):
    leave(node, tmp_path / "theirs", m_t1__1__data=b"one", m_t2__1__data=b"two", n_t2__1__data=b"three")
    told = {"kind": "trial", "series": ["A"], "fold": 1, "seed": 0, "done": True, "exit_code": 0, "starts": 1}
    told |= {"values": {"train.ema": "0.9"}, "end": "done", "epochs": 3}
    told |= {"best": {"metric": "validation_loss", "value": 0.5, "better": "min"}}
    ends = [{**told, "piece": f"{name} t1", "trial": 1} for name in "mn"]
    keys = other(node).status.identity.keys
    node.uplink.s3.objects[keys.output_index] = json.dumps({"files": [], "scripts": ends}).encode()
    path, ours = tmp_path / "carried.json", tmp_path / "ours"
    fetches = Fetches(others_of(node, ours), answers=path)
    trials = {"m t1": "m_t1", "m t2": "m_t2", "m t3": "m_t3"}
    fetches.answer({"event": "taken_over", "model": "m", "node": 1}, trials)
    fetches._pool.shutdown()
    assert [str(one.relative_to(ours)) for one in ours.rglob("data")] == ["m_t2/1/data"], "t1 has ended"
    carried = Carried(path, lambda event: None, search=SearchSettings(over={"train.ema": [0.0, 0.9]}))
    study = piece("A", name="m")
    carried.ask(study, 1)
    end = TrialEnd(trial=1, values=(("train.ema", 0.9),), end="done", score=0.5, epochs=3)
    assert carried.arrived() == [(replace(study, trials=(end,)), CHECKPOINT)]
    for wrong in ({"end": "won"}, {"values": {"train.ema": "7"}}, {"trial": 0}):
        answer = {"left": NOTHING, "ended": [{**end.to_dict(), **wrong}]}
        path.write_text(json.dumps({"m": answer}))
        again = Carried(path, lambda event: None, search=SearchSettings(over={"train.ema": [0.0, 0.9]}))
        again.ask(study, 1)
        assert again.arrived() == [(study, NOTHING)]


VALUES = ["A", "B", "C", "D", "E", "F"]
VALUE = """
echo "$MAYFLY_VALUE_SYMBOL" >> ../../starts
cat $MAYFLY_CHECKPOINTS/half > $MAYFLY_OUT/model.pt 2> /dev/null || echo anew > $MAYFLY_OUT/model.pt
"""


class Fleet:
    """The queue of two nodes whose second takes three values, ends one, and is lost."""

    def __init__(self, silent: Callable[[], bool]) -> None:
        self.time, self._silent = Time(), silent
        pieces = [piece(f"symbol={value}", name=f"script_s_symbol={value}") for value in VALUES]
        self.hand_out = hand_out_of(pieces, self.time)
        self.hand_out.join(1)
        taken = [self.hand_out.take(1, held=(), staged=()).piece for _ in range(3)]
        self.taken = [VALUES[number] for number in taken]
        self.hand_out.done(1, taken[0])
        self.entered: list[dict[str, Any]] = []

    def __call__(self, cluster: Path, **more: Any) -> Fleet:
        self.entered.append(more)
        return self

    def __enter__(self) -> QueueOfNode:
        fleet = self

        class Queue(QueueOfNode):
            def look(self) -> None:
                if fleet._silent():
                    fleet.time.now = 2 * SILENT_SECONDS
                super().look()

        self.queue = Queue(self.hand_out, 0)
        return self.queue

    def __exit__(self, *_: object) -> None:
        os.close(self.queue.handle)


def test_values_of_a_lost_node_go_on_from_its_checkpoints(node, start, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "nodes_of", lambda manifest: 2)
    objects, keys = node.uplink.s3.objects, other(node).status.identity.keys
    objects[start_key("r", 1)] = started_by("r", *IDS, addresses=ADDRESSES)
    objects[node.status.identity.keys.token] = b"0a" * 32
    node.status.devices = Devices(expected=1, found=1, kind="cpu", note="")
    starts = node.work / "command" / "starts"
    fleet = Fleet(lambda: starts.exists() and len(starts.read_text().split()) == 3)
    monkeypatch.setattr(module, "SharedQueue", fleet)
    made, begun, waiting = fleet.taken
    end = {"model": f"script_s_symbol={made}", "piece": f"symbol={made}", "kind": "script", "series": []}
    end |= {"fold": 1, "seed": 0, "values": {"symbol": made}, "sha256": "", "done": True, "exit_code": 0}
    end |= {"starts": 1, "best": {}, "seconds": 1.0, "last_lines": [], "notes": []}
    objects[keys.output_index] = json.dumps({"files": [], "scripts": [end]}).encode()
    leave(node, tmp_path / "theirs", **{f"symbol={begun}__half": b"half\n"})
    start(VALUE, over={"symbol": VALUES})
    assert sorted(starts.read_text().split()) == sorted({*VALUES} - {made})
    files = {name.removeprefix("symbol=").partition("/")[0]: text for name, text in listed(node).items()}
    assert files == {**dict.fromkeys({*VALUES} - {made}, "anew\n"), begun: "half\n"}
    assert [entry["piece"] for entry in node.status.scripts if not entry["done"]] == []
    assert f"symbol={made}" not in node.status.progress.pieces  # that node's matter
    assert node.status.progress.message == "node 1 is lost"
    (how,) = fleet.entered
    assert how["token"] == node.token_file and not how["is_stopping"]()
    assert waiting in files
