"""The process group of ranks, from its start to its end."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.forks import ROOT

LEAVING = """
from pathlib import Path
import torch
from trainer.train.ranks.group import process_group

def threads():
    return [name for task in Path("/proc/self/task").iterdir() if "gloo" in (name := (task / "comm").read_text())]

with process_group(0, 1, torch.device("cpu")):
    network = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    network(torch.ones(1, 2)).sum().backward()
    assert threads()
    del network
assert not threads(), threads()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="threads are listed in /proc")
def test_the_groups_threads_end_with_it_and_not_with_the_interpreter(python):
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "GLOO_SOCKET_IFNAME": "lo"}
    ended = subprocess.run(
        [*python, "-c", LEAVING], cwd=ROOT, env={**os.environ, **place}, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
