"""Events that a command tells, and the file that the agent keeps of them."""

from __future__ import annotations

import json

from tests.nodes import NOW
from trainer.control.report import MOST_EVENT_BYTES
from trainer.node import events
from trainer.node.events import CommandEvents, EventFile, StepRate


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
