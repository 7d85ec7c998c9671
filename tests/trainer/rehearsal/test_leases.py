"""Leases on a clock of the test's own, held by processes that are really there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.rehearsal.leases import Leases

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def leases() -> Leases:
    return Leases()


def test_a_server_waits_for_its_first_lease(leases: Leases) -> None:
    assert [leases.over(now, instances_alive=False) for now in (0, 10, 29, 31)] == [False, False, False, True]


def test_a_server_ends_five_seconds_after_its_last_lease(leases: Leases) -> None:
    lease = leases.take(os.getpid())
    assert lease
    assert not leases.over(100, instances_alive=False)
    leases.release(lease)
    assert [leases.over(now, instances_alive=False) for now in (101, 105, 106)] == [False, False, True]


def test_a_living_instance_keeps_the_server(leases: Leases) -> None:
    leases.release(leases.take(os.getpid()) or "")
    assert [leases.over(now, instances_alive=True) for now in (0, 100, 1000)] == [False] * 3
    assert [leases.over(now, instances_alive=False) for now in (1001, 1005, 1006)] == [False, False, True]


def test_a_lease_dies_with_its_holder(leases: Leases) -> None:
    holder = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert leases.take(holder.pid)
    assert not leases.over(0, instances_alive=False)
    holder.kill()
    holder.wait()
    assert [leases.over(now, instances_alive=False) for now in (1, 5.9, 6)] == [False, False, True]


def test_a_server_that_said_it_ends_leases_no_more(leases: Leases) -> None:
    leases.end()
    assert leases.over(0, instances_alive=True)
    assert leases.take(os.getpid()) is None


def test_nobody_holds_a_lease_for_a_process_that_is_not_there(leases: Leases) -> None:
    assert leases.take(2**22 + 1) is None


def test_a_shell_with_half_a_letter_in_its_name_is_found(tmp_path: Path) -> None:
    shell = tmp_path / "тренировка"
    shell.symlink_to("/bin/bash")
    code = "from trainer.rehearsal.leases import *; print(shell_of_our_output())"
    script = f"id=$(PYTHONPATH={ROOT} {sys.executable} -c '{code}'; true); echo $id $$"
    found = subprocess.run([shell, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "form", ['eval "id=$(%s)"', 'eval "id=$(%s 2>/dev/null)"', "id=$(true; %s; true)", "id=`%s 2>&1`"]
)
def test_a_lease_from_a_substitution_is_the_shells(form: str, tmp_path: Path) -> None:
    file = tmp_path / "holder.py"
    file.write_text("from trainer.rehearsal.leases import *\nprint(shell_of_our_output())\n")
    script = form % f"{sys.executable} {file}" + "; echo $id $$"
    own = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env=own)
    holder, shell = done.stdout.split()
    assert holder == shell
