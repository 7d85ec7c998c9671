"""Notices of a spot machine, on a clock and with a metadata service of the test's own."""

from __future__ import annotations

import stat
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.nodes import bundle, listed, node, reported, start, stop_when
from tests.trainer.node.conftest import serve_metadata
from tests.trainer.rehearsal.test_metadata import VIEW
from trainer.aws.place import ACCOUNT
from trainer.base.errors import Stopped
from trainer.node.identity import Metadata, NodeIdentity
from trainer.node.report import Status
from trainer.node.shared import Node
from trainer.node.spot_notice import (
    INTERRUPTION,
    REBALANCE,
    SpotNotices,
    last_written,
    spot_notices,
    taken_by,
)

__all__ = ["bundle", "node", "start", "stop_when"]  # fixtures
NOON = datetime(2026, 11, 24, 12, 0, tzinfo=timezone.utc)
TAKEN = {INTERRUPTION: '{"action": "terminate", "time": "2026-11-24T12:02:00Z"}'}


class Machine:
    """A node, what its metadata service answers, and a clock."""

    def __init__(self, node: Node) -> None:
        self.node, self.texts, self.now = node, dict[str, str](), NOON
        node.enter("train")
        self.notices = SpotNotices(node, self.texts.get, clock=lambda: self.now)

    def look(self, seconds: float = 0.0) -> str:
        """Return the word of the notice's file, some seconds after noon."""
        self.now = NOON + timedelta(seconds=seconds)
        self.notices.look()
        file = self.node.notice_file
        return file.read_text() if file.exists() else ""


def node_in(work: Path, *, spot_zone: str = "us-east-1a") -> Node:
    identity = NodeIdentity(
        run_id="r", attempt=1, node=0, deadline=NOON + timedelta(hours=9), spot_zone=spot_zone
    )
    nothing: Any = None
    return Node(work=work, place=ACCOUNT, uplink=nothing, status=Status(identity=identity))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(node_in(tmp_path))


def test_there_is_no_file_before_a_notice(machine: Machine) -> None:
    assert machine.look() == "" and machine.node.may_begin()


def test_a_recommendation_asks_for_a_checkpoint_alone(machine: Machine) -> None:
    machine.texts[REBALANCE] = '{"noticeTime": "2026-11-24T12:00:00Z"}'
    assert machine.look() == "checkpoint\n"
    assert machine.look(600) == "checkpoint\n" and machine.node.may_begin() and not machine.node.end_reason


def test_a_notice_asks_for_the_end_and_begins_nothing(machine: Machine) -> None:
    machine.texts.update(TAKEN)
    assert machine.look(5) == "stop\n"
    assert not machine.node.may_begin() and not machine.node.is_stopping()
    assert machine.node.end_reason == "spot"
    assert stat.S_IMODE(machine.node.notice_file.stat().st_mode) == 0o644  # a script has a user of its own


def test_a_notice_replaces_a_recommendation(machine: Machine) -> None:
    machine.texts[REBALANCE] = "{}"
    assert machine.look() == "checkpoint\n"
    machine.texts.update(TAKEN)
    assert machine.look(5) == "stop\n"


@pytest.mark.parametrize(
    ("texts", "word"), [(TAKEN, "stop\n"), ({REBALANCE: "{}"}, "checkpoint\n")], ids=["taken", "rebalance"]
)
def test_a_notice_that_a_full_disk_refused_is_written_later(
    machine: Machine, tmp_path: Path, texts: Any, word: str
) -> None:
    machine.texts.update(texts)
    (tmp_path / "command").touch()  # in the way, as a full disk is
    with pytest.raises(OSError, match="exists"):
        machine.look()
    (tmp_path / "command").unlink()
    assert machine.look(5) == word and not machine.node.is_stopping()


def test_a_full_disk_does_not_keep_a_command_from_its_end(machine: Machine, tmp_path: Path) -> None:
    machine.texts.update(TAKEN)
    (tmp_path / "command").touch()
    for seconds in (0, 60):
        with pytest.raises(OSError, match="exists"):
            machine.look(seconds)
    assert machine.node.stop_reason == "spot"


@pytest.mark.parametrize(
    ("time", "stopped_at"),
    [
        ("2026-11-24T12:02:00Z", 60),  # a minute is left for the last uploads
        ("2026-11-24T12:00:20Z", 10),  # half of a rehearsal's shorter notice
        ("2026-11-24T11:59:00Z", 0),  # heard too late
        ("soon", 60),  # a time that can't be read: two minutes, as documented
    ],
)
def test_a_command_that_goes_on_is_stopped_in_time(machine: Machine, time: str, stopped_at: float) -> None:
    machine.texts[INTERRUPTION] = f'{{"action": "terminate", "time": "{time}"}}'
    if stopped_at:
        machine.look()
        machine.look(stopped_at - 1)
        assert not machine.node.is_stopping()
    machine.look(stopped_at)
    assert machine.node.stop_reason == "spot"


@pytest.mark.parametrize(("written", "stopped"), [(-5, False), (5, True), (12, False)])
def test_a_command_is_stopped_soon_after_its_checkpoint(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, written: float, stopped: bool
) -> None:
    machine.texts.update(TAKEN)
    machine.look()
    at = NOON + timedelta(seconds=written)
    monkeypatch.setattr("trainer.node.spot_notice.last_written", lambda folder: at)
    machine.look(14)
    assert not machine.node.is_stopping()
    machine.look(16)
    assert machine.node.is_stopping() is stopped


def test_a_value_that_saved_does_not_end_the_others(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They run on one machine, and each looks at its notice after a step of its own."""
    saved: dict[str, datetime] = {}
    monkeypatch.setattr("trainer.node.spot_notice.last_written", lambda folder: saved.get(folder.name))
    machine.node.at_work = ("a/", "b/")
    machine.texts.update(TAKEN)
    machine.look()
    saved["a"] = saved["checkpoints"] = NOON + timedelta(seconds=2)
    machine.look(20)
    assert not machine.node.is_stopping()
    saved["b"] = NOON + timedelta(seconds=25)
    machine.look(34)
    assert not machine.node.is_stopping()
    machine.look(35)
    assert machine.node.stop_reason == "spot"


def test_the_newest_checkpoint_is_found_in_any_folder(tmp_path: Path) -> None:
    assert last_written(tmp_path / "none") is None and last_written(tmp_path) is None
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".metadata").write_text("x")
    newest = (tmp_path / "a" / ".metadata").stat().st_ctime
    assert last_written(tmp_path) == datetime.fromtimestamp(newest, timezone.utc)


def test_a_notice_before_the_command_began_ends_at_once(machine: Machine) -> None:
    machine.node.enter("stage")
    machine.texts.update(TAKEN)
    machine.look()
    assert machine.node.stop_reason == "spot"


@pytest.mark.parametrize(
    ("asked", "reason"), [("", "spot"), ("SIGTERM", "spot"), ("stop.json", "stop.json"), ("spot", "spot")]
)
def test_whoever_asked_for_the_end_first_is_named(machine: Machine, asked: str, reason: str) -> None:
    machine.texts.update(TAKEN)
    machine.node.stop(asked)
    machine.look()
    assert machine.node.end_reason == reason


def test_only_spot_machines_are_asked(tmp_path: Path) -> None:
    assert spot_notices(node_in(tmp_path, spot_zone=""), "http://127.0.0.1:1") is None
    assert spot_notices(node_in(tmp_path), "http://127.0.0.1:1") is not None


def test_the_metadata_service_is_asked_with_a_token_that_lasts() -> None:
    view = replace(VIEW, life_cycle="spot", taken_at=NOON + timedelta(minutes=2))
    server = serve_metadata(view)
    try:
        metadata = Metadata(f"http://127.0.0.1:{server.server_address[1]}/imds/i-1")
        assert metadata.find(INTERRUPTION) == TAKEN[INTERRUPTION]
        metadata._token = "expired"
        assert metadata.find(REBALANCE) is None
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"time": 7}', "null"])
def test_a_notice_without_a_time_has_none(text: str) -> None:
    assert taken_by(text) is None


# --- its command
# ------------------------------------------------------------------------------------------

OBEYS = """
trap 'echo not asked by signal; exit 9' TERM
touch $MAYFLY_OUT/ready
while [ "$(cat $MAYFLY_NOTICE 2>/dev/null)" != stop ]; do sleep 0.02; done
echo half > $MAYFLY_CHECKPOINTS/half; echo saved > $MAYFLY_OUT/saved
"""


def take(node: Node) -> Any:
    """Return what gives the node its notice."""
    texts = dict(TAKEN)
    notices = SpotNotices(node, texts.get, clock=lambda: NOON)
    return notices.look


def test_a_script_that_obeys_is_not_done_and_not_signalled(node: Node, start: Any, stop_when: Any) -> None:
    stop_when((node.work / "command" / "out" / "ready").exists, take(node))
    with pytest.raises(Stopped) as stopped:
        start(OBEYS)
    read = reported(node, stopped.value, unfinished="taken")
    assert (read.state, read.exit_code) == ("interrupted", 105)
    assert (read.scripts[0]["exit_code"], read.scripts[0]["done"]) == (0, False)
    assert listed(node) == {"ready": "", "saved": "saved\n"}


def test_no_value_begins_after_a_notice_and_none_is_restarted(node: Node, start: Any, stop_when: Any) -> None:
    stop_when((node.work / "command" / "out" / "n=1" / "ready").exists, take(node))
    with pytest.raises(Stopped) as stopped:
        start(f"{OBEYS}kill -KILL $$", over={"n": [1, 2, 3]})
    read = reported(node, stopped.value, unfinished="taken")
    assert read.state == "interrupted"
    assert [(item["starts"], item["exit_code"]) for item in read.scripts] == [(1, -9)]


def test_the_values_at_work_are_known_to_the_notice(node: Node, start: Any, stop_when: Any) -> None:
    known: set[tuple[str, ...]] = set()
    stop_when(lambda: bool(known.add(tuple(node.at_work))))  # type: ignore[func-returns-value]
    start("sleep 0.1", over={"n": [1, 2]})
    assert known == {("n=1/",), ("n=2/",)} and node.at_work == ()
