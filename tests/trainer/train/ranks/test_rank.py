"""What a rank says about the training to the supervisor of its machine."""

from __future__ import annotations

from typing import Any

import pytest

from trainer.base.environment import RankEnvironment
from trainer.base.signs import tell_signs
from trainer.train.ranks.rank import reporter

PROGRESS = {"event": "progress", "piece": "a"}


class Connection:
    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []

    def report(self, event: dict[str, Any]) -> None:
        self.said.append(event)


@pytest.mark.parametrize(
    ("rank", "local_rank", "said"),
    [
        (0, 0, ["progress"]),
        (1, 1, []),
        (2, 0, ["moved"]),  # else its machine, which hears of no step, takes a long epoch for a hang
        (3, 1, []),
    ],
)
def test_each_machine_sees_that_its_ranks_train(rank: int, local_rank: int, said: list[str]):
    place = RankEnvironment(socket="", rank=rank, local_rank=local_rank, count=4, restart=0, nodes=2)
    connection: Any = Connection()
    tell_signs(connection.report)
    try:
        reporter(place, connection, "cpu")(dict(PROGRESS))
    finally:
        tell_signs(None)
    assert [event["event"] for event in connection.said] == said
