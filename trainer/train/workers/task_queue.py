"""The order in which models are trained: longest first, and a symbol's models where its rows lie already.

Owns the choice and nothing else: no process, no file. `supervisor` asks it whenever a place is free.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from trainer.train.task import Task

# A task with this share of the longest estimate goes as well as the longest: taking it first lengthens the end of the job by
# a tenth of one model at most, and spares a symbol's reading and its rows.
NEARLY = 0.9


class TaskQueue:
    """Tasks that nobody trains yet."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._tasks = sorted(tasks, key=lambda task: (-task.estimate, task.model))

    def __len__(self) -> int:
        return len(self._tasks)

    def peek(self, *, held: Collection[str] = (), staged: str = "", elsewhere: Collection[str] = ()) -> Task:
        """Return what a worker with a free place should train next. Raises IndexError when nothing is left.

        Of the tasks with nearly the longest estimate: one whose symbol the worker holds, else the one of the symbol that was
        staged for it, else one of a symbol that no other worker holds or stages (`elsewhere`), else the longest. So nothing is
        kept for a busy worker while another is free: what is elsewhere is taken, too, where nothing else is as long.
        """
        longest = self._tasks[0].estimate
        nearly = [task for task in self._tasks if task.estimate >= NEARLY * longest]
        wishes = (
            (task for task in nearly if task.symbol in held),
            (task for task in nearly if task.symbol == staged),
            (task for task in nearly if task.symbol not in elsewhere),
        )
        return next((task for wish in wishes for task in wish), nearly[0])

    def take(self, *, held: Collection[str] = (), staged: str = "", elsewhere: Collection[str] = ()) -> Task:
        """Remove and return what `peek` returns."""
        task = self.peek(held=held, staged=staged, elsewhere=elsewhere)
        self._tasks.remove(task)
        return task

    def has(self, symbol: str) -> bool:
        """Tell whether a task of the symbol is left."""
        return any(task.symbol == symbol for task in self._tasks)
