"""A command on its machine, hostile ones too, without one: the bucket is a dictionary, and time is
passed in.
"""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import socket
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ConnectTimeoutError

from tests.manifests import command
from tests.nodes import NOW, bundle, listed, node, reported, start, stop_when
from tests.processes import cut_name
from trainer.aws.place import HERE
from trainer.base import environment
from trainer.base.errors import ConfigError, Stopped, TrainingFailed
from trainer.base.strict_json import read_object
from trainer.control.report import MOST_EVENT_BYTES
from trainer.job.script_values import MOST_COMBINATIONS
from trainer.node import command as module
from trainer.node import events, piece_run
from trainer.node import own_user as own_user_module
from trainer.node.command_process import CommandOutput, CommandProcess
from trainer.node.events import CommandEvents, EventFile, StepRate
from trainer.node.outputs import UNCHANGED_SECONDS, Outputs
from trainer.node.own_user import OwnUser, make_own_user
from trainer.node.report import progress
from trainer.node.shared import Node
from trainer.runs.reports import (
    LAST_LINES,
    MOST_LINE,
    MOST_NOTES,
    MOST_OUTPUTS_BYTES,
    heartbeat,
    read_scripts,
)
from trainer.runs.training_events import EventReader
from trainer.train.observing.observe import points_of

__all__ = ["bundle", "node", "start", "stop_when"]  # fixtures
PYTHON = Path("/usr/bin/python3")


@pytest.fixture
def outputs(node: Node, tmp_path: Path) -> Outputs:
    (tmp_path / "out").mkdir()
    clock = [0.0]
    made = Outputs(
        folder=tmp_path / "out", node=node, command=command(out_bytes=1000), clock=lambda: clock[0]
    )
    made.pass_time = lambda seconds: clock.__setitem__(0, clock[0] + seconds)  # type: ignore[attr-defined]
    return made


# --- OUT
# ------------------------------------------------------------------------------------------


def test_a_file_goes_up_once_it_is_unchanged_for_30_seconds(node, outputs):
    (outputs.folder / "a").mkdir()
    (outputs.folder / "a" / "m.pt").write_text("one")
    outputs.scan()
    outputs.pass_time(UNCHANGED_SECONDS - 1)
    outputs.scan()
    assert listed(node) == {}
    outputs.pass_time(1)
    outputs.scan()
    outputs.scan()
    assert listed(node) == {"a/m.pt": "one"} and len(node.uplink.s3.puts) == 1
    (outputs.folder / "a" / "m.pt").write_text("second")
    (outputs.folder / "same").write_text("one")
    outputs.scan()
    assert listed(node) == {"a/m.pt": "one"}, "it has just changed"
    outputs.finish()
    assert listed(node) == {"a/m.pt": "second", "same": "one"} and len(node.uplink.s3.puts) == 2
    assert outputs.notes() == []
    (outputs.folder / "same").unlink()
    outputs.finish()
    assert listed(node) == {"a/m.pt": "second"}


def test_unfit_names_links_and_large_files_are_refused(node, outputs, tmp_path):
    secret = tmp_path / "node.log"
    secret.write_text("the agent's")
    out = outputs.folder
    for name in (".bashrc", "\x1b[2J", "kept"):
        (out / name).write_text(name)
    (out / ".ssh").mkdir()
    (out / ".ssh" / "authorized_keys").write_text("x")
    (out / "link").symlink_to(secret)
    (out / "folder").symlink_to(tmp_path)
    (out / "zzz").write_bytes(b"x" * 1000)
    os.mkfifo(out / "pipe")
    outputs.finish()
    assert listed(node) == {"kept": "kept"}
    told = {note.partition(" was not uploaded: ")[0]: note for note in outputs.notes()}
    assert set(told) == {".bashrc", "\x1b[2J", ".ssh/", "link", "folder", "zzz", "pipe"}
    assert "begins with a dot" in told[".bashrc"]
    assert "is a link" in told["link"]
    assert "is a link" in told["folder"]
    assert "(script.out_gib)" in told["zzz"] and "not a plain file" in told["pipe"]
    assert not any(b"the agent's" in body for body in node.uplink.s3.objects.values())


def test_a_state_of_the_same_size_and_time_is_another(node, outputs):
    file, passing = outputs.folder / "m.pt", outputs.folder / "m.pt.tmp"
    file.write_text("one")
    passing.write_text("x")
    outputs.finish()
    at = file.stat().st_mtime_ns
    file.write_text("two")
    os.utime(file, ns=(at, at))  # as cp -p and rsync -t leave it
    passing.write_text("longer")
    outputs.scan()
    passing.unlink()
    outputs.finish()
    assert listed(node) == {"m.pt": "two"} and outputs.notes() == []


def test_a_file_may_become_a_folder_and_a_folder_a_file(node, outputs):
    out = outputs.folder
    (out / "a").write_text("file")
    (out / "b").mkdir()
    (out / "b" / "m").write_text("below")
    outputs.scan()
    outputs.pass_time(UNCHANGED_SECONDS)
    outputs.scan()
    assert listed(node) == {"a": "file", "b/m": "below"}
    (out / "a").unlink()
    (out / "a").mkdir()
    (out / "a" / "m").write_text("below a")
    (out / "b" / "m").unlink()
    (out / "b").rmdir()
    (out / "b").write_text("file b")
    outputs.scan()
    assert listed(node) == {}, "neither is there any more"
    outputs.pass_time(UNCHANGED_SECONDS)
    outputs.scan()
    assert listed(node) == {"a/m": "below a", "b": "file b"}


def test_large_files_and_endless_folders_leave_the_rest_alone(node, outputs, monkeypatch):
    monkeypatch.setattr("trainer.node.outputs.MOST_LOOKED_AT", 30)
    (outputs.folder / "a-large").write_bytes(b"x" * 1001)
    (outputs.folder / "b").write_bytes(b"x")
    (outputs.folder / "c").mkdir()
    for number in range(100):
        (outputs.folder / "c" / f".{number}").touch()
        (outputs.folder / "c" / f"..{number}").mkdir()
    outputs.finish()
    assert listed(node) == {"b": "x"}
    assert "a-large was not uploaded: files above" in outputs.notes()[0]
    assert len(outputs.refused) <= 31 and any(
        "a run looks at 30 files and folders" in why for why in outputs.refused.values()
    )


def test_a_list_that_s3_did_not_take_is_sent_again(node, outputs, monkeypatch):
    monkeypatch.setattr("trainer.node.outputs.POLL_SECONDS", 0.0)
    node.uplink.fails = {1, 2}
    (outputs.folder / "m").write_text("m")
    outputs.finish()
    assert listed(node) == {"m": "m"} and node.uplink.tries == 3


def test_files_are_listed_together_and_during_long_scans(node, outputs):
    for number in range(10):
        (outputs.folder / f"{number}").write_text(f"{number}")
    put_object = node.uplink.s3.put_object

    def slowly(**asked: Any) -> Any:
        outputs.pass_time(2.0)
        return put_object(**asked)

    node.uplink.s3.put_object = slowly
    outputs.finish()
    assert len(listed(node)) == 10 and node.uplink.tries == 4, "the first, two in 20 seconds, and the last"


def test_a_piece_is_listed_as_over_once_its_files_are_sent(node, outputs):
    (outputs.folder / "a").mkdir()
    (outputs.folder / "a" / "m").write_text("m")
    outputs.piece_done("a/", lambda: {"piece": "a"})
    node.uplink.s3.refuses = True
    outputs.scan()
    assert listed_ends(node) == [] and not listed(node)
    node.uplink.s3.refuses = False
    outputs.scan()
    assert listed_ends(node) == [{"piece": "a"}] and listed(node) == {"a/m": "m"}, (
        "without waiting for changes"
    )


def test_a_piece_is_over_once_its_files_last_state_is_sent(node, outputs):
    """The next attempt leaves it out, and would keep an older state."""
    file = outputs.folder / "a" / "m"
    file.parent.mkdir()
    file.write_text("epoch 1")
    outputs.scan()
    outputs.pass_time(UNCHANGED_SECONDS)
    outputs.scan()
    assert listed(node) == {"a/m": "epoch 1"}
    file.write_text("epoch 2, the last")
    outputs.piece_done("a/", lambda: {"piece": "a"})
    node.uplink.s3.refuses = True
    outputs.scan()
    assert listed_ends(node) == []
    node.uplink.s3.refuses = False
    outputs.scan()
    assert listed_ends(node) == [{"piece": "a"}] and listed(node) == {"a/m": "epoch 2, the last"}


def test_the_end_of_a_piece_is_made_once(node, outputs):
    """Its notes look at every file, and a scan comes every few seconds."""
    made = []
    outputs.piece_done("a/", lambda: made.append("a") or {"piece": "a"})
    for _ in range(3):
        outputs.scan()
    assert made == ["a"] and listed_ends(node) == [{"piece": "a"}]


def test_a_piece_is_over_whose_files_are_more_than_a_run_keeps(node, outputs):
    (outputs.folder / "a").mkdir()
    (outputs.folder / "a" / "m").write_text("m")
    (outputs.folder / "a" / "too-large").write_bytes(b"x" * 1000)
    outputs.piece_done("a/", lambda: {"piece": "a"})
    outputs.scan()
    assert listed(node) == {"a/m": "m"} and "(script.out_gib)" in outputs.refused["a/too-large"]
    assert listed_ends(node) == [{"piece": "a"}], "no attempt of the run keeps more"


def test_the_list_stays_within_what_its_readers_take(node, outputs):
    """Of the most values, whose last lines have no Latin letter."""
    entry = {"kind": "script", "series": [], "fold": 0, "seed": 0, "values": {"n": "1"}, "done": True}
    entry |= {"exit_code": 0, "starts": 1, "best": {}, "seconds": 1.0, "notes": ["x" * 300] * MOST_NOTES}
    entry |= {"last_lines": ["\u6642" * MOST_LINE] * LAST_LINES}
    for number in range(MOST_COMBINATIONS):
        outputs.piece_done(f"n={number}/", partial(dict, entry, piece=f"n={number}"))
    outputs.scan()
    body = node.uplink.s3.objects[node.status.identity.keys.output_index]
    read = read_scripts(read_object(body, most_bytes=MOST_OUTPUTS_BYTES, name="the list"))
    assert len(read) == MOST_COMBINATIONS and all(one["done"] for one in read)


def listed_ends(node) -> list[dict[str, Any]]:
    body = node.uplink.s3.objects.get(node.status.identity.keys.output_index, b"{}")
    return json.loads(body).get("scripts", [])


def test_an_empty_folder_is_told_and_what_s3_refuses_too(node, outputs, monkeypatch):
    outputs.finish()
    assert outputs.notes() == ["MAYFLY_OUT stayed empty: nothing was uploaded"]
    (outputs.folder / "m").write_text("m")
    node.uplink.s3.refuses = True
    monkeypatch.setattr("trainer.node.shared.LAST_UPLOADS_SECONDS", 0.0)
    outputs.finish()
    assert outputs.notes() == ["m was not uploaded: S3 did not take it within 0 s"]


def test_uploads_end_in_time_though_each_try_hangs(node, outputs, monkeypatch):
    """A try of each of the many files takes hours while S3 hangs; the machine is paid for meanwhile."""
    tries = []

    def hanging(**asked: Any) -> Any:
        tries.append(asked["Key"])
        outputs.pass_time(120.0)
        raise ConnectTimeoutError(endpoint_url="s3")

    monkeypatch.setattr(node.uplink.s3, "put_object", hanging)
    for number in range(50):
        (outputs.folder / f"{number:02d}").write_text(f"{number}")
    outputs.finish()
    assert len(tries) == 8 and len(outputs.refused) == 50, "900 s, and the try that has begun then"


@pytest.mark.parametrize("over", [{}, {"over": {"n": [1, 2]}}])
def test_a_script_whose_file_s3_did_not_take_is_not_done(node, start, monkeypatch, over):
    monkeypatch.setattr("trainer.node.shared.LAST_UPLOADS_SECONDS", 0.0)
    node.uplink.s3.refuses = True
    with pytest.raises(TrainingFailed, match=r"a file was not sent .(n=1/)?m: S3 did not take it") as failed:
        start('[ "$MAYFLY_VALUE_N" = 2 ] || echo m > $MAYFLY_OUT/m', **over)
    read = reported(node, failed.value)
    assert (read.state, read.exit_code) == ("failed", 100)
    assert [one["done"] for one in read.scripts] == ([False, True] if over else [False])
    assert "S3 did not take it" in read.scripts[0]["notes"][0]


# --- events
# ------------------------------------------------------------------------------------------


def test_events_are_read_as_they_come_strictly_and_within_bounds(tmp_path):
    path = tmp_path / "events.jsonl"
    events = CommandEvents(path)
    assert list(events.new()) == []
    path.write_text('{"step": 1, "loss": 0.5, "accuracy": 0.25, "note": "x", "event": "model_done"}\n{"step"')
    assert list(events.new()) == [{"counts": {"step": 1}, "loss": 0.5, "values": {"accuracy": 0.25}}]
    with path.open("a") as file:
        file.write(': 2}\nnot json\n[1]\n{"step": -1}\n{"loss": NaN}\n{"a": true, "../x": 1, "b": 1e400}\n')
        file.write("{" + " " * 20_000 + "}\n" + '{"step": 3}\n')
    assert [event["counts"] for event in events.new()] == [{"step": 2}, {"step": 3}] and events.unsound == 6
    path.unlink()
    path.symlink_to("/etc/passwd")
    assert list(events.new()) == []


def test_events_file_and_step_rate_are_bounded(tmp_path):
    file = EventFile(tmp_path / "events" / "e.jsonl", most_bytes=100, now=lambda: NOW)
    for number in range(10):
        file.write({"event": "script", "number": number})
    lines = (tmp_path / "events" / "e.jsonl").read_text().splitlines()
    assert [json.loads(line)["number"] for line in lines] == [0]
    clock = [0.0]
    rate = StepRate(lambda: clock[0])
    clock[0] = 2.0
    assert (rate.update(10), rate.update(11)) == (5.0, 5.0)


def test_events_of_a_day_fit_into_the_report(tmp_path):
    clock, hours, told = [0.0], 30, tmp_path / "e.jsonl"
    file = EventFile(told, most_bytes=2**30, now=lambda: NOW, clock=lambda: clock[0])
    progress = {"event": "progress", "rate": 1234.5, "unit": "windows", "learning_rate": 0.001, "step": 10**6}
    figures = dict.fromkeys(("use_percent", "memory_used_mib", "power_watts", "temperature_celsius"), 98.765)
    for second in range(0, hours * 3600, 5):
        clock[0] = float(second)
        for number in range(4):
            file.write({"model": f"COIN{number}-USD", "worker": number, **progress})
            file.write({"event": "gpu", "gpu": number, **figures})
        if second % 3600 == 0:
            file.write({"event": "epoch", "model": "COIN0-USD", "epoch": second // 3600})
    events = [json.loads(line) for line in told.read_text().splitlines()]
    assert told.stat().st_size < MOST_EVENT_BYTES / 4
    assert sum(event["event"] == "epoch" for event in events) == hours
    for number in range(4):
        points = [event for event in events if event.get("worker") == number]
        assert len(points) > 1000 and points[0] is events[2 * number]


def test_an_events_line_is_whole_once_its_writer_ended(tmp_path):
    """A killed writer leaves half a line: the next one's first line is another."""
    path = tmp_path / "events.jsonl"
    events = CommandEvents(path)
    path.write_text('{"step": 1}')
    assert list(events.new()) == []
    events.writer_ended = True
    assert [event["counts"] for event in events.new()] == [{"step": 1}]
    events.writer_ended = False
    with path.open("a") as file:
        file.write('{"st')
    assert list(events.new()) == []
    events.writer_ended = True
    assert list(events.new()) == [] and events.unsound == 1
    with path.open("a") as file:
        file.write('{"step": 2}\n')
    assert [event["counts"] for event in events.new()] == [{"step": 2}] and events.unsound == 1


def test_events_beyond_the_bound_are_left_out_with_a_word(tmp_path, caplog):
    file = EventFile(tmp_path / "e.jsonl", most_bytes=2 << 20)
    for _ in range(5):
        file.write({"event": "script", "text": "x" * (1 << 20)})
    assert len((tmp_path / "e.jsonl").read_bytes().splitlines()) == 1
    (said,) = caplog.messages
    assert said == "its events take more than 2 MiB: the rest has no curves"


def test_invented_names_of_models_fill_no_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(events, "MOST_SOURCES", 2)
    clock = [0.0]
    file = EventFile(tmp_path / "e.jsonl", most_bytes=2**20, now=lambda: NOW, clock=lambda: clock[0])
    for second in (0, 240, 240, 240.5, 242):
        clock[0] = float(second)
        for name in ("A", "B", "C"):
            file.write({"event": "progress", "model": name, "at": second})
    kept = [json.loads(line) for line in (tmp_path / "e.jsonl").read_text().splitlines()]
    assert [one["at"] for one in kept if one["model"] == "A"] == [0, 240, 242]
    assert len([one for one in kept if one["model"] == "C"]) == 5 and len(file._kept_at) == 2


def test_a_full_disk_ends_nothing_at_an_event(tmp_path):
    (tmp_path / "e.jsonl").symlink_to("/dev/full")
    EventFile(tmp_path / "e.jsonl", most_bytes=100).write({"event": "script_done"})


# --- the process
# ------------------------------------------------------------------------------------------


def run(words: list[str], tmp_path: Path, *, grace_seconds: float = 10.0, **keys: Any) -> CommandProcess:
    variables = environment.for_script({"MARK": str(tmp_path)}, path="/usr/bin")
    keys = {"grace_seconds": grace_seconds, "mark": f"MARK={tmp_path}", **keys}
    return CommandProcess(words, folder=tmp_path, environment=variables, **keys)


def wait_for(process: CommandProcess) -> int:
    while (code := process.poll()) is None:
        time.sleep(0.01)
    return code


def test_last_lines_are_kept_and_the_log_is_bounded(caplog, monkeypatch):
    reader, writer = os.pipe()
    os.write(
        writer,
        b"10%\r50%\r100%\nline \xff\x1b[2J\n" + b"x" * 300 + b"\n" + b"".join(b"%d\n" % n for n in range(19)),
    )
    os.close(writer)
    output = CommandOutput(most_bytes=100)
    with caplog.at_level(logging.INFO):
        output.follow(os.fdopen(reader, "rb"))
    assert (
        output.last_lines[0] == "x" * 190 and len(output.last_lines) == 20 and output.last_lines[-1] == "18"
    )
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "| 100%" and "the rest is left out" in said[-1] and len(said) == 3


def test_the_logs_bound_counts_bytes_and_empty_lines(caplog, monkeypatch):
    for line in ("\n", "я" * 100 + "\n"):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            CommandOutput(most_bytes=1 << 10).follow(io.BytesIO(line.encode() * 1000))
        said = [record.getMessage() for record in caplog.records]
        assert 0 < sum(len(f"2026-11-20 12:00:00,000 {text}\n".encode()) for text in said[:-1]) <= 1 << 10


def test_a_process_is_reaped_after_its_group_is_killed(tmp_path, monkeypatch):
    """Else the group that is killed at the end may be somebody else's, who was given the same number."""
    signalled, killpg = [], os.killpg

    def watched(group: int, number: int) -> None:
        signalled.append((Path(f"/proc/{group}/stat").read_text().rpartition(")")[2].split()[0], number))
        killpg(group, number)

    monkeypatch.setattr(os, "killpg", watched)
    with run(["sh", "-c", "exit 3"], tmp_path) as process:
        assert wait_for(process) == process.poll() == 3
    assert signalled == [("Z", signal.SIGKILL)]


@pytest.mark.parametrize(("lines", "waits"), [(5, 6), (0, 1)])
def test_its_last_lines_are_read_while_they_come(tmp_path, lines, waits):
    """A busy machine reads slowly; a process that left the session may keep the pipe open for ever."""
    keys = {"folder": tmp_path, "environment": {"PATH": os.defpath}, "grace_seconds": 1, "mark": "X=1"}

    class Reader:
        joined = 0

        def is_alive(self) -> bool:
            return True

        def join(self, timeout: float) -> None:
            self.joined += 1
            process.output.num_blocks += self.joined <= lines

    with CommandProcess(["true"], **keys) as process:
        process._reader.join()
        reader = process._reader = Reader()
    assert reader.joined == waits


def test_a_bar_that_is_drawn_again_is_output(tmp_path):
    """It may have no end of line for hours, and its process is not silent."""
    with run(["sh", "-c", r"printf '1 %%\r'; sleep 1000"], tmp_path) as process:
        ends = time.monotonic() + 5
        while not process.output.num_blocks and time.monotonic() < ends:
            time.sleep(0.01)
        assert process.output.num_blocks == 1 and process.output.last_lines == []
    assert process.output.last_lines == ["1 %"]


def test_variables_of_a_command_are_replaced_or_refused():
    words = ("$PYTHON", "$OUT", "${GPUS}x$DEVICE", "$$OUT")
    known = {"PYTHON": "python", "OUT": "/out", "GPUS": "8", "DEVICE": "cuda"}
    assert module.words_of(command(words=words), known) == ["python", "/out", "8xcuda", "$/out"]
    with pytest.raises(TrainingFailed, match=r"command can't be run \(there is no \$HOME"):
        module.words_of(command(words=("$PYTHON", "$HOME")), known)


def test_a_missing_program_of_a_command_is_one_line(tmp_path):
    with pytest.raises(TrainingFailed, match=r"the machine has no torchrunn \(no folder of its PATH has one"):
        run(["torchrunn", "train.py"], tmp_path)
    with pytest.raises(TrainingFailed, match=r"the machine has no ./a \(it is not a program there\)"):
        run(["./a"], tmp_path)


# --- the whole
# ------------------------------------------------------------------------------------------


def test_the_last_event_may_have_no_end_of_line(node, start):
    start("""
[ -f again ] || { touch again; printf '{"st' >> $MAYFLY_EVENTS; kill -KILL $$; }
printf '{"step": 1, "loss": 0.25}\n{"step": 2, "loss": 0.125}' >> $MAYFLY_EVENTS
""")
    (script,) = reported(node).scripts
    assert script["best"]["value"] == 0.125 and script["starts"] == 2
    assert node.status.progress.pieces["s"]["step"] == 2
    assert script["notes"][-1] == "1 line of its events could not be read"


def test_a_killed_script_continues_from_its_checkpoint(node, start):
    text = """
[ "$(cat $MAYFLY_DATA/a/x.csv)" = 1,2 ] && cmp $MAYFLY_DATA/a/x.csv $MAYFLY_DATA/z.csv || exit 9
if [ ! -f $MAYFLY_CHECKPOINTS/half ]; then touch $MAYFLY_CHECKPOINTS/half; kill -KILL $$; fi
echo '{"step": 5, "steps": 10, "epoch": 1, "train_loss": 0.5}' >> $MAYFLY_EVENTS
echo nothing >> $MAYFLY_EVENTS
echo done > $MAYFLY_OUT/model.pt; echo devices $MAYFLY_DEVICES $A
"""
    start(text)
    read = reported(node)
    (script,) = read.scripts
    assert (read.state, read.retries, read.failed) == ("done", 1, ())
    assert read.python_packages == "the desk's .venv"
    assert (script["piece"], script["exit_code"], script["starts"]) == ("s", 0, 2)
    assert script["last_lines"] == ["devices 1 1"]
    assert script["best"] == {"metric": "train_loss", "value": 0.5, "better": "min"}
    assert script["notes"] == ["1 line of its events could not be read"]
    assert listed(node) == {"model.pt": "done\n"}
    events = [json.loads(line) for line in (node.work / "events" / "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == [
        *("started", "model_started", "retry", "model_started", "script", "epoch", "script_done")
    ]
    told = heartbeat(SimpleNamespace(instance_id="i-1", at=NOW, lease_until=NOW), progress(node.status))
    assert (told.models_done, told.progress["s"]["state"], told.unit) == (1, "done", "steps")


def test_a_script_that_tells_epochs_has_a_curve_of_them(node, start):
    start(
        """for epoch in 1 2 3; do echo '{"epoch": '$epoch', "epochs": 3, "loss": 0.5}' >> $MAYFLY_EVENTS; done"""
    )
    read = (node.work / "events" / "events.jsonl").read_bytes().splitlines()
    told = [event for event in EventReader().read(read) if event["event"] == "script"]
    assert [points_of(event) for event in told] == [("script_s", epoch, {"loss": 0.5}) for epoch in (1, 2, 3)]
    assert [event["rate"] for event in told] == [None] * 3  # of steps, which it does not tell


def test_events_written_at_the_end_are_read_to_the_last(node, start, monkeypatch):
    monkeypatch.setattr(events, "MOST_BLOCK", 1 << 10)
    lines = "".join(f'{{"step": {step}, "score": {step}}}\\n' for step in range(1, 101))
    without_end = "truncate -s 1T $MAYFLY_EVENTS"  # it is not read to its end
    start(f"printf '{lines}' >> $MAYFLY_EVENTS; {without_end}")
    assert reported(node).scripts[0]["best"] == {"metric": "score", "value": 100, "better": "max"}


def test_a_name_that_is_not_utf_8_is_told_and_spoils_no_result(node, start):
    start(
        """cd $MAYFLY_OUT; echo x > "$(printf 'caf\\351')"; echo x > kept; mkdir "$(printf 'caf\\351.d')" """
    )
    notes = reported(node).scripts[0]["notes"]
    assert [note.partition(" was not")[0] for note in notes] == ["caf\ufffd", "caf\ufffd.d/"]
    assert listed(node) == {"kept": "x\n"}


def test_a_result_is_readable_whatever_the_script_left(node, start, monkeypatch):
    monkeypatch.setattr(environment, "image_python", lambda: f"/{'a' * 300}/python")
    decide = piece_run.PieceRun._decide

    def decided(run: Any) -> None:
        run._note = "it failed on GPU 1 first"
        decide(run)

    monkeypatch.setattr(piece_run.PieceRun, "_decide", decided)
    node.place = HERE
    text = """echo '{"score": 2000000000000000000, "step": 7}' > $MAYFLY_EVENTS; echo no >> $MAYFLY_EVENTS"""
    start(f"{text}; for i in $(seq 50); do touch $MAYFLY_OUT/.$i; done")
    (script,) = reported(node).scripts
    assert len(script["notes"]) == 42 and script["best"] == {} and script["done"]


def test_failed_packages_are_removed_from_an_own_disk(node, start, monkeypatch):
    def fails(*_: Any, venv: Path, **__: Any) -> None:
        (venv / "lib").mkdir(parents=True)
        raise TrainingFailed("can't install")

    monkeypatch.setattr(module, "install", fails)
    node.place = HERE
    with pytest.raises(TrainingFailed, match="can't install"):
        start("true", requirements="run.sh")
    assert not (node.work / "command" / "venv").exists()


def test_a_failed_script_is_not_restarted_and_its_files_are_sent(node, start):
    with pytest.raises(TrainingFailed, match=r"the script ended with exit code 3 \(no such file\)") as failed:
        start("echo half > $MAYFLY_OUT/half; echo no such file; exit 3")
    read = reported(node, failed.value)
    assert (read.state, read.exit_code, read.scripts[0]["exit_code"]) == ("failed", 100, 3)
    assert read.scripts[0]["starts"] == 1
    assert [entry["reason"] for entry in read.failed] == ["it ended with exit code 3: no such file"]
    assert listed(node) == {"half": "half\n"}


def test_a_missing_program_is_one_line_without_exit_code(node, start):
    with pytest.raises(TrainingFailed, match="the machine has no torchrunn") as failed:
        start("", command="torchrunn train.py")
    read = reported(node, failed.value)
    assert (read.state, read.scripts) == ("failed", ())
    assert [entry["reason"] for entry in read.failed] == ["the machine has no torchrunn"]


def test_a_stopped_script_gets_sigterm_and_is_not_done(node, start, stop_when):
    stop_when((node.work / "command" / "out" / "ready").exists)
    text = (
        "trap 'echo saved > $MAYFLY_OUT/saved; exit 0' TERM; touch $MAYFLY_OUT/ready; while :; do sleep 0.05;"
        " done"
    )
    with pytest.raises(Stopped) as stopped:
        start(text)
    read = reported(node, stopped.value)
    assert (read.state, read.scripts[0]["exit_code"]) == ("stopped", 0)
    assert [entry["reason"] for entry in read.failed] == ["stopped"]
    assert listed(node) == {"ready": "", "saved": "saved\n"}


def test_a_process_with_a_cut_name_is_found(tmp_path: Path) -> None:
    with cut_name(tmp_path, {"MAYFLY_EVENTS": str(tmp_path)}) as pid:
        own = OwnUser(uid=os.geteuid(), gid=os.getegid())
        assert list(own.processes(f"MAYFLY_EVENTS={tmp_path}")) == [pid]


@pytest.mark.skipif(
    os.geteuid() != 0 or not PYTHON.exists(), reason="needs root, and a Python that every user may run"
)
def test_no_script_begins_while_its_user_reaches_metadata(tmp_path, monkeypatch):
    ran: list[str] = []
    monkeypatch.setattr(own_user_module, "ETC", tmp_path)
    (tmp_path / "at.deny").write_text("daemon\n")
    monkeypatch.setattr(own_user_module, "_run", lambda line: ran.append(line) or 0)
    monkeypatch.setattr(
        own_user_module.pwd, "getpwnam", lambda name: SimpleNamespace(pw_uid=64_321, pw_gid=64_321)
    )
    with socket.create_server(("127.0.0.1", 0)) as metadata:
        monkeypatch.setattr(own_user_module, "METADATA", metadata.getsockname())
        with pytest.raises(ConfigError, match="the script can't be kept from the machine's credentials"):
            make_own_user(metadata=False)
    assert make_own_user(metadata=False) == OwnUser(uid=64_321, gid=64_321)  # nothing answers there any more
    assert [line.split()[0] for line in ran] == ["useradd", "iptables", "ip6tables"] * 2
    rule = "-m owner --uid-owner 64321 -j REJECT"
    assert ran[4:] == [
        f"iptables -I OUTPUT -d 127.0.0.1 {rule}",
        f"ip6tables -I OUTPUT -d fd00:ec2::254 {rule}",
    ]
    assert (tmp_path / "at.deny").read_text() == "daemon\nmayfly-script\n"
    assert (tmp_path / "cron.deny").read_text() == "mayfly-script\n"
    monkeypatch.setattr(own_user_module, "_run", lambda line: 3 if line.startswith("iptables") else 0)
    with pytest.raises(
        ConfigError, match=r"can't be kept from the machine's credentials \(iptables ended with 3, so its"
    ):
        make_own_user(metadata=False)
    monkeypatch.setattr(own_user_module, "_run", lambda line: 1)
    with pytest.raises(ConfigError, match="the user mayfly-script can't be made .useradd ended with 1"):
        make_own_user(metadata=False)
