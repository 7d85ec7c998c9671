"""The data check is a child: it ends with its launcher, whatever ends that one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.jobs import job_of
from trainer.aws.place import ACCOUNT
from trainer.base.errors import DataError, UsageError
from trainer.cli.sources.candles import demo_data, find_candles
from trainer.cli.sources.check_child import CheckChild

AT_WORK = """
import sys, threading
from trainer.bars import check
check._job = lambda path: threading.Event().wait()  # it works for ever
sys.exit(check.main(sys.argv[1:]))
"""


def test_the_check_ends_with_its_launcher_and_cleans_up(tmp_path):
    scratch = tmp_path / "scratch"
    (scratch / "mayfly-candles-x").mkdir(parents=True)
    (scratch / "mayfly-candles-x" / "0.npy").write_bytes(b"bars")
    theirs, ours = os.pipe()
    command = [sys.executable, "-c", AT_WORK, "--data", str(tmp_path), "--scratch", str(scratch)]
    child = subprocess.Popen([*command, "--parent", str(theirs)], pass_fds=(theirs,))
    os.close(theirs)
    os.close(ours)  # as the kernel does when the launcher is killed
    assert child.wait() == 1 and not scratch.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="pipes are compared by /proc")
def test_the_launcher_alone_holds_the_other_end_of_that_pipe(tmp_path):
    check = CheckChild(tmp_path)
    try:
        child = check.process
        child.send_signal(signal.SIGSTOP)  # as it is, while it is looked at
        given = int(child.args[-1])
        assert Path(child.args[child.args.index("--scratch") + 1]) == Path(check.folder.name)
        assert (
            Path(f"/proc/{child.pid}/fd/{given}").readlink() == Path(f"/proc/self/fd/{check.pipe}").readlink()
        )
        assert not os.get_inheritable(check.pipe)
    finally:
        check.close()


def test_a_file_that_crashes_the_reader_is_a_data_error(tmp_path):
    child = CheckChild(tmp_path)
    child.process.send_signal(signal.SIGABRT)  # as arrow ends the process for a damaged file
    with pytest.raises(DataError, match="the data check crashed while it read"):
        child.report()


def test_the_demos_bars_are_made_whole_or_not_at_all(tmp_path, monkeypatch):
    def cut_off(command, **_):
        out = Path(command[command.index("--out") + 1])
        out.mkdir(parents=True)
        (out / "BTC-USD_1m_synthetic.parquet").write_bytes(b"")
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "run", cut_off)
    with pytest.raises(KeyboardInterrupt):
        demo_data(tmp_path / "demo-data")
    assert list(tmp_path.iterdir()) == []


def test_two_first_commands_share_the_demos_bars(tmp_path, monkeypatch):
    folder = tmp_path / "demo-data"

    def made_twice(command: list[str], **known: object) -> SimpleNamespace:
        for place in (Path(command[command.index("--out") + 1]), folder):  # the other command was faster
            place.mkdir(parents=True)
            (place / "BTC-USD_1m.parquet").write_bytes(b"bars")
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", made_twice)
    assert demo_data(folder) == folder
    assert [path.name for path in tmp_path.iterdir()] == ["demo-data"]


def test_what_scripts_read_is_no_data_set_to_choose():
    objects = SimpleNamespace(list=lambda prefix: (), folders=lambda prefix: (".files", "forex"))
    with pytest.raises(DataError, match=r"there is no data set 'main' .*Choose one with data.set: forex; or"):
        find_candles(job_of(), None, objects, place=ACCOUNT)
    objects.folders = lambda prefix: (".files",)
    with pytest.raises(UsageError, match="there is nothing to train on"):
        find_candles(job_of(), None, objects, place=ACCOUNT)
