"""A node's sandbox: nothing of it can hide, stop or outlive its end."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.processes import alive, cut_name
from trainer.rehearsal import instance, processes, supervisor
from trainer.rehearsal.forks import ForkServerProcess
from trainer.rehearsal.instance import MARKER, NodeProcess, reap, start_node

Start = Callable[..., NodeProcess]


def run_node(sandbox: Path, script: str, forks: ForkServerProcess | None = None) -> NodeProcess:
    """Run a shell script as the user data of a node."""
    return start_node(
        sandbox=sandbox,
        instance_id=f"i-{os.getpid()}-{sandbox.name}",
        instance_type="p3.8xlarge",
        user_data=f"#!/bin/bash\n{script}\n".encode(),
        environment={"MAYFLY_REHEARSAL_GPUS": "4", "DESK_PYTHON": sys.executable},
        forks=forks,
    )


@pytest.fixture(params=["started", "forked"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """Return a function that runs a script as a node whose interpreters are new ones, or forks."""
    forks = request.getfixturevalue("node_forks") if request.param == "forked" else None
    nodes = []

    def run(script: str, *, folder: str = "") -> NodeProcess:
        nodes.append(run_node(tmp_path / folder / f"node-{len(nodes)}", script, forks))
        return nodes[-1]

    yield run
    for node in nodes:
        node.terminate(grace_seconds=0)


def wait_for(condition: Callable[[], object], seconds: float = 500) -> None:
    """Wait for another process, which no clock of ours can hurry."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s"
        time.sleep(0.02)


def log_file(sandbox: Path) -> Path:
    return sandbox / "var/log/cloud-init-output.log"


def log(node: NodeProcess) -> str:
    return log_file(node.sandbox).read_text()


def pid_in(path: Path) -> int:
    wait_for(lambda: path.exists() and path.read_text().strip())
    return int(path.read_text())


def test_a_node_sees_nothing_of_the_desk_but_its_processor(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DESK_SECRET", "of the desk")
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    node = start("env; type -P systemctl poweroff; type -P python3 || echo no python3; pwd")
    wait_for(lambda: node.poll() == "exited")
    assert "DESK_SECRET" not in log(node)
    assert "OPENBLAS_CORETYPE=Haswell\n" in log(node)
    assert f"PATH={node.sandbox}/bin\n" in log(node)
    assert f"HOME={node.sandbox}/home\n" in log(node)
    assert (
        f"\n{node.sandbox}/bin/systemctl\n{node.sandbox}/bin/poweroff\nno python3\n{node.sandbox}/home\n"
        in log(node)
    )


def test_a_node_without_room_for_its_record_leaves_no_process(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would watch it: the account says by then that the instance is lost."""
    sandbox = tmp_path / "node-0"

    def full(path: Path) -> None:
        wait_for(lambda: log_file(sandbox).exists() and log_file(sandbox).read_text())
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(instance, "whole_file", full)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(OSError, match="No space left"):
        start("echo begun; sleep 600")
    assert not processes.members_of(f"i-{os.getpid()}-node-0", sandbox, None)
    assert not [*tmp_path.glob("mayfly-*/forks")]


def test_user_data_that_ends_leaves_the_node_up(start: Start) -> None:
    node = start("exit 3")
    wait_for(lambda: node.poll() == "exited")
    assert (node.sandbox / "run/user-data-exit").read_text() == "3"


@pytest.mark.parametrize(
    "command",
    ["systemctl poweroff", "poweroff", "shutdown -h now", "halt", "reboot", "systemctl poweroff --force"],
)
def test_every_way_to_power_off_is_seen(start: Start, command: str) -> None:
    node = start(f"{command}; sleep 600")
    wait_for(lambda: node.poll() == "poweroff")


def test_nvidia_smi_shows_as_many_gpus_as_the_type_has(start: Start) -> None:
    node = start("nvidia-smi --query-gpu=index,name,memory.total --format=csv,noheader,nounits")
    wait_for(lambda: node.poll() == "exited")
    assert [line.split(", ")[0] for line in log(node).splitlines()] == ["0", "1", "2", "3"]


@pytest.mark.parametrize("stopped", [False, True])
def test_processes_end_themselves_within_the_grace(start: Start, stopped: bool) -> None:
    node = start("trap 'echo goodbye; exit' TERM; touch $HOME/ready; while :; do sleep 0.05; done")
    wait_for((node.sandbox / "home/ready").exists)
    if stopped:
        os.killpg(node.process_group, signal.SIGSTOP)
    node.terminate(grace_seconds=500)
    assert "goodbye" in log(node)


def test_a_stopped_group_that_ignores_sigterm_ends(start: Start) -> None:
    node = start("trap '' TERM; echo $$ > $HOME/pid; while :; do sleep 0.05; done")
    pid = pid_in(node.sandbox / "home/pid")
    os.killpg(node.process_group, signal.SIGSTOP)
    node.terminate(grace_seconds=0.2)
    assert not alive(pid)


def test_a_daemon_with_an_empty_environment_ends_too(start: Start) -> None:
    daemon = (
        "import os, time\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        "open(os.sys.argv[1], 'w').write(str(os.getpid()))\n"
        "time.sleep(600)\n"
    )
    node = start(f'exec -c "$DESK_PYTHON" -I -c "{daemon}" "$HOME/pid"')
    pid = pid_in(node.sandbox / "home/pid")
    wait_for(lambda: node.poll() == "exited")
    assert os.getpgid(pid) != node.process_group and alive(pid)
    node.terminate(grace_seconds=0)
    assert not alive(pid)


def test_terminating_twice_is_as_good_as_once(start: Start) -> None:
    node = start("sleep 600")
    node.terminate(grace_seconds=0)
    node.terminate(grace_seconds=0)
    assert node.poll() == "exited"


TIMER = """
write() { # instant
  printf '[Timer]\\nOnCalendar=%s\\nUnit=end.service\\n' "$1" > "$MAYFLY_ROOT/etc/systemd/system/end.timer"
  local file="$MAYFLY_ROOT/etc/systemd/system/end.service"
  printf '[Service]\\nExecStart=%s\\n' "${2:-$MAYFLY_ROOT/bin/systemctl poweroff}" > "$file"
}
"""
NOON = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)
AT_NOON = f"{TIMER} write '2026-11-20 12:00:00 UTC'"


def test_a_timer_fires_though_every_process_is_stopped(start: Start) -> None:
    node = start(f"{AT_NOON}; systemctl daemon-reload; systemctl enable --now end.timer; sleep 600")
    wait_for((node.sandbox / "run/timers/end.timer").exists)
    os.killpg(node.process_group, signal.SIGSTOP)
    node.tick(NOON - timedelta(seconds=1))
    assert node.poll() == "running"
    node.tick(NOON)
    assert node.poll() == "poweroff"


def test_a_stopped_timer_does_not_fire(start: Start) -> None:
    node = start(f"{AT_NOON}; systemctl enable --now end.timer; systemctl stop end.timer")
    wait_for(lambda: node.poll() == "exited")
    node.tick(NOON)
    assert node.poll() == "exited"


def test_a_changed_timer_counts_after_daemon_reload_and_restart(start: Start) -> None:
    change = "systemctl enable --now end.timer; write '2026-11-20 11:00:00 UTC'; systemctl restart end.timer"
    node = start(f"{AT_NOON}; {change}")
    reloaded = start(f"{AT_NOON}; {change}; systemctl daemon-reload; systemctl restart end.timer")
    wait_for(lambda: node.poll() == reloaded.poll() == "exited")
    for one in (node, reloaded):
        one.tick(NOON - timedelta(minutes=1))
    assert (node.poll(), reloaded.poll()) == ("exited", "poweroff")


def test_a_unit_that_names_this_machines_own_tools_is_refused(start: Start) -> None:
    node = start(f"{AT_NOON} /bin/echo; systemctl start end.service")
    wait_for(lambda: node.poll() == "exited")
    assert "lies outside the sandbox" in log(node)


def test_stubs_do_nothing_outside_a_sandbox() -> None:
    stubs = Path(__file__).parents[3] / "trainer/rehearsal/stubs"
    for name, *words in (["systemctl", "poweroff"], ["poweroff"], ["shutdown", "now"]):
        command = [str(stubs / name), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=500)
        assert done.returncode == 1 and "not a rehearsal's sandbox" in done.stderr
    assert not (stubs.parent / "run").exists()


SERVER = """
import sys, time
from pathlib import Path
from trainer.rehearsal.instance import start_node
start_node(sandbox=Path(sys.argv[1]), instance_id="i-orphan", instance_type="t", environment={},
           user_data=b"#!/bin/bash\\necho $$ > $HOME/pid; trap '' TERM; while :; do sleep 0.05; done")
time.sleep(600)
"""


def run_server(sandbox: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", SERVER, str(sandbox)], cwd=Path(__file__).parents[3])


@pytest.mark.slow
def test_a_node_does_not_outlive_a_killed_server(
    tmp_path: Path,
) -> None:
    server = run_server(tmp_path / "sandbox/i-orphan")
    pid = pid_in(tmp_path / "sandbox/i-orphan/home/pid")
    marker = tmp_path / "sandbox/i-orphan" / MARKER
    wait_for(lambda: json.loads(marker.read_text()))  # written after the node has begun
    server.kill()
    server.wait()
    wait_for(lambda: not alive(pid))
    scratch = Path(json.loads(marker.read_text())["scratch"])
    assert scratch.exists()
    reap(tmp_path)
    assert not scratch.exists()


def test_a_process_with_half_a_letter_in_its_name_is_found(tmp_path: Path) -> None:
    marks = {"MAYFLY_INSTANCE": "i-orphan", "MAYFLY_ROOT": str(tmp_path)}
    with cut_name(tmp_path, marks) as pid:
        assert {pid} == {member[0] for member in processes.members_of("i-orphan", tmp_path, None)}
        assert pid in supervisor.descendants()


def test_a_node_that_can_not_be_started_leaves_no_scratch_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("there is no fork server")

    forks = SimpleNamespace(start=fails)
    with pytest.raises(RuntimeError, match="no fork server"):
        run_node(tmp_path / "node", "exit", forks)  # type: ignore[arg-type]
    assert not [*(tmp_path / "tmp").iterdir()]


def test_reap_kills_what_an_earlier_server_left(tmp_path: Path) -> None:
    server = run_server(tmp_path / "sandbox/i-orphan")
    pid = pid_in(tmp_path / "sandbox/i-orphan/home/pid")
    wait_for(lambda: json.loads((tmp_path / "sandbox/i-orphan" / MARKER).read_text()))
    os.kill(processes.parent_of(pid), signal.SIGKILL)  # its supervisor
    server.kill()
    server.wait()
    assert alive(pid)
    assert reap(tmp_path) >= 1
    wait_for(lambda: not alive(pid))
    assert reap(tmp_path) == 0


def test_a_process_forked_during_the_end_gets_a_sigterm_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[set[int], tuple[int, ...]]] = []
    looks = iter([{11}, {11, 22}, {22}, set(), set()])  # 22 was not there when the first look was taken
    monkeypatch.setattr(processes, "send_signals", lambda pids, *numbers: told.append((set(pids), numbers)))
    processes.end(lambda: next(looks), grace_seconds=600)
    assert [pids for pids, _ in told] == [{11}, {22}, set()]
    assert all(signal.SIGTERM in numbers and signal.SIGKILL not in numbers for _, numbers in told)


@pytest.fixture
def bystander(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of this user in a group of its own, which is no node's."""
    process = subprocess.Popen(["sleep", "600"], cwd=tmp_path, start_new_session=True)
    yield process
    process.kill()
    process.wait()


def plant(root: Path, instance_id: str = "i-0123456789abcdef0", **record: object) -> Path:
    """Write a record as a repository might bring it along."""
    sandbox = root / "sandbox" / instance_id
    sandbox.mkdir(parents=True)
    (sandbox / MARKER).write_text(json.dumps({"instance_id": instance_id, **record}))
    return sandbox


@pytest.mark.parametrize("instance_id", ["i-0123456789abcdef0", "sleep"])
def test_a_planted_record_kills_nobody(
    tmp_path: Path, bystander: subprocess.Popen[bytes], instance_id: str
) -> None:
    theirs = {"supervisor": bystander.pid, "started": processes.start_ticks(bystander.pid)}
    plant(tmp_path, instance_id, **theirs, process_group=bystander.pid)
    sandbox = plant(tmp_path, "i-0123456789abcdef1")
    (sandbox / MARKER).write_text(json.dumps({"instance_id": "sleep", **theirs}))
    assert reap(tmp_path) == 0
    assert bystander.poll() is None


def test_a_planted_record_deletes_no_folder_of_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    names = ("work", "mayfly-a/deep", "mayfly-link", "mayfly-node")
    mine, deep, link, node = (temporary / name for name in names)
    for folder in (mine, deep, node):
        folder.mkdir(parents=True)
    link.symlink_to(mine)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    outside = tmp_path / "mayfly-outside"
    outside.mkdir()
    roundabout = (f"{temporary}/mayfly-node/../work", f"{temporary}/../mayfly-outside")
    planted = [*map(str, (mine, deep, link, outside, temporary, *roundabout)), 5, str(node)]
    for number, scratch in enumerate(planted):
        plant(tmp_path / "root", f"i-{number:017x}", scratch=scratch)
    assert reap(tmp_path / "root") == 0
    assert all(folder.is_dir() for folder in (mine, deep, link, outside))
    assert not node.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "5", '{"instance_id": 5}', '"' + "x" * 100_000 + '"'])
def test_a_damaged_record_is_passed_over(tmp_path: Path, text: str) -> None:
    (plant(tmp_path) / MARKER).write_text(text)
    assert reap(tmp_path) == 0


def test_an_ended_groups_reused_number_gets_no_signal(
    start: Start, bystander: subprocess.Popen[bytes]
) -> None:
    node = start("exit 0")
    wait_for(lambda: node.poll() == "exited")
    node.process_group = bystander.pid  # as the kernel gives it out again
    node.terminate(grace_seconds=0)
    assert bystander.poll() is None


def test_a_reused_process_number_gets_no_signal(
    bystander: subprocess.Popen[bytes],
) -> None:
    processes.send_signals({(bystander.pid, "1")}, signal.SIGKILL)
    assert bystander.poll() is None
    processes.send_signals({(bystander.pid, processes.start_ticks(bystander.pid))}, signal.SIGKILL)
    assert bystander.wait() == -signal.SIGKILL


def test_a_unit_runs_in_a_folder_with_a_blank_in_its_name(start: Start) -> None:
    node = start(f"{AT_NOON}; systemctl enable --now end.timer", folder="Application Support")
    wait_for(lambda: node.poll() == "exited")
    node.tick(NOON)
    assert node.poll() == "poweroff"


def test_a_node_in_a_deep_folder_can_open_sockets_in_its_tmpdir(start: Start) -> None:
    socket = "t.mkdtemp(prefix='pymp-') + '/listener-12345678'"
    code = f"import socket, tempfile as t; socket.socket(socket.AF_UNIX).bind({socket})"
    node = start(f'"$DESK_PYTHON" -c "{code}"', folder="deep" * 25)
    wait_for(lambda: node.poll() == "exited")
    assert (node.sandbox / "run/user-data-exit").read_text() == "0", log(node)
    assert node.scratch.exists()
    node.terminate(grace_seconds=0)
    assert not node.scratch.exists()


@pytest.fixture
def forking_node(node_forks: ForkServerProcess, tmp_path: Path) -> Iterator[tuple[NodeProcess, int]]:
    """A node whose environment's python runs a module of its code as a fork: -> (node, process id of the
    fork).
    """
    package = tmp_path / "code" / "trainer"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    lines = [
        "import os, sys, time",
        f"open({str(tmp_path / 'fork')!r}, 'w').write(str(os.getpid()))",
        "time.sleep(600)",
    ]
    (package / "agent.py").write_text("\n".join(lines))
    script = f"""
        "$MAYFLY_DESK_PYTHON" -m venv --without-pip "$HOME/venv"
        PYTHONPATH={tmp_path}/code "$HOME/venv/bin/python" -m trainer.agent
    """
    instance_id = f"i-{os.getpid()}-forking-node"  # its sandbox's name, too, as `reap` expects
    node = start_node(
        sandbox=tmp_path / "sandbox" / instance_id,
        instance_id=instance_id,
        instance_type="p3.8xlarge",
        user_data=f"#!/bin/bash\n{script}\n".encode(),
        environment={"MAYFLY_REHEARSAL_GPUS": "4"},
        forks=node_forks,
    )
    yield node, pid_in(tmp_path / "fork")
    node.terminate(grace_seconds=0)


def test_a_nodes_forks_are_below_its_first_process_and_end(
    forking_node: tuple[NodeProcess, int],
) -> None:
    node, pid = forking_node
    assert processes.parent_of(pid) == node.supervisor.pid
    assert os.getpgid(pid) == pid != node.process_group
    node.terminate(grace_seconds=0)
    assert not alive(pid)


def test_an_orphaned_fork_is_found_by_its_name_and_folder(
    forking_node: tuple[NodeProcess, int], tmp_path: Path
) -> None:
    node, pid = forking_node
    os.kill(pid, signal.SIGSTOP)  # so that it is there still, whatever its parent's death sends
    os.kill(node.supervisor.pid, signal.SIGKILL)
    wait_for(lambda: not alive(node.supervisor.pid))
    reap(tmp_path)
    wait_for(lambda: not alive(pid))


def test_a_forked_node_ends_with_its_fork_server(fork_server: Path, tmp_path: Path) -> None:
    server = ForkServerProcess(fork_server)
    node = run_node(tmp_path / "lost", f"echo $$ > {tmp_path}/pid; sleep 600", server)
    pid = pid_in(tmp_path / "pid")
    server.close()
    wait_for(lambda: not alive(pid))
    node.terminate(grace_seconds=0)
