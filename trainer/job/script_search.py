"""The `[search]` table of a job with a script, whose keys are names of values. Standard library only."""

from __future__ import annotations

from typing import Any

from trainer.base.errors import UsageError
from trainer.job.script_values import texts_of
from trainer.job.search import Range


def check_script_search(job: Any) -> None:
    """Raise UsageError for a search of a script's values that makes no sense."""
    search, script = job.search, job.script
    if not (search.over and script.command):
        return
    if script.over:
        why, do = "its values are the search's", "Leave one of them out."
        raise UsageError("script.over with [search]", why=why, do=do)
    if not search.score:
        do = 'Set search.score: a number of its events and the better end, such as "loss:min".'
        raise UsageError("a script's [search] without score", why="nothing says which trial is best", do=do)
    if script.best not in ("", search.score):
        raise UsageError("script.best and search.score differ", do="Leave script.best out.")
    listed = {key: () if isinstance(its, Range) else its for key, its in search.space.items()}
    texts_of(listed, key="search.over")
    alone = {
        "method = tpe": not search.is_planned,
        "prune = halving": search.prunes,
        "within": search.within,
        "dollars": search.dollars,
    }
    if job.machine.nodes > 1 and (asked := next(filter(alone.get, alone), "")):
        why = "its machines share trials that are known before, and none sees the scores of another"
        do = "Set machine.nodes = 1, or leave it out."
        raise UsageError(f"search.{asked} of a script on several machines", why=why, do=do)
