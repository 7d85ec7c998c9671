"""The process group of ranks, the shares of each rank, and the clock on which they agree."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.forks import ROOT
from tests.trainer.train.ranks.ranks import TwoRanks
from trainer.train.notice import CHECKPOINT, STOP, Notice
from trainer.train.packs.layout import slices_of
from trainer.train.ranks.group import MOST_READINGS, AgreedClock, Ranks, readings_until_next, share

LEAVING = """
import sys
from pathlib import Path
import torch
from trainer.train.ranks.group import process_group

def threads():
    return [name for task in Path("/proc/self/task").iterdir() if "gloo" in (name := (task / "comm").read_text())]

def train(*, fails):
    network = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    network.cycle = [network]
    network(torch.ones(1, 2)).sum().backward()
    assert threads()
    if fails:
        raise ZeroDivisionError

try:
    with process_group(0, 1, torch.device("cpu"), nodes=1):
        train(fails=sys.argv[1] == "fails")
except ZeroDivisionError:  # its traceback has the frames
    assert not threads(), threads()
assert not threads(), threads()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="threads are listed in /proc")
@pytest.mark.parametrize("end", ["returns", "fails"])
def test_the_groups_threads_end_with_it(python, end):
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "GLOO_SOCKET_IFNAME": "lo"}
    ended = subprocess.run(
        [*python, "-c", LEAVING, end], cwd=ROOT, env={**os.environ, **place}, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr


@given(count=st.integers(0, 300), ranks=st.integers(1, 16), micro_batch=st.integers(1, 50))
@settings(deadline=None, max_examples=60)
def test_ranks_take_every_row_once_in_equal_shares(count, ranks, micro_batch):
    shares = [share(count, rank=rank, ranks=ranks) for rank in range(ranks)]
    assert [row for part in shares for row in part] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    for part in shares:
        least = math.ceil(math.ceil(count / ranks) / micro_batch)  # of the rank with the most rows
        slices = slices_of(part, micro_batch)
        assert slices, "a rank without rows takes part in the exchange all the same"
        assert len(slices_of(part, micro_batch, least=least)) == max(1, least), (
            "where weights are divided, in every forward's"
        )
        assert [row for rows, counts in slices if counts for row in rows] == list(part)
        assert max(len(rows) for rows, _ in slices) <= micro_batch


def test_ranks_agree_on_the_time_about_twice_a_second():
    assert readings_until_next(1, elapsed=3.0) == 1
    # At most twice as many as before: one slow step may have been chance.
    assert readings_until_next(8, elapsed=0.01) == 16
    assert readings_until_next(16, elapsed=1.0) == 8
    assert readings_until_next(MOST_READINGS, elapsed=0.0) == MOST_READINGS


def hear_as_rank(ranks: Ranks, path: Path) -> list[tuple[str, float]]:
    """Read a shared clock, what it heard and its interval, in the course of a notice that only rank 0 may
    read. Each rank would have another interval.
    """
    ticks = itertools.count()
    interval = (float(10 * (seconds + 1) + ranks.rank) for seconds in itertools.count())
    notice = Notice(path if ranks.is_first else None, clock=lambda: float(next(ticks)))
    clock = AgreedClock(ranks, clock=lambda: float(next(ticks)), notice=notice, interval=interval.__next__)
    words = []
    for word in ("", CHECKPOINT, STOP):
        if word and ranks.is_first:
            path.write_text(word)
        for _ in range(4):
            clock()
            words.append((clock.heard(), clock.interval()))
    return words


@pytest.mark.slow
def test_ranks_hear_what_rank_0_heard_at_the_same_step(two_ranks: TwoRanks, tmp_path: Path) -> None:
    first, second = two_ranks(hear_as_rank, tmp_path / "notice")
    assert first == second
    words = [word for word, _ in first]
    assert words.count(CHECKPOINT) == 1 and words[-1] == words[-2] == STOP and not any(words[:4])
    seconds = [interval for _, interval in first]
    assert seconds == sorted(seconds) and len({*seconds}) > 1 and not any(one % 10 for one in seconds)
