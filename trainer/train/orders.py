"""The order in which an epoch visits its windows, on the device of the rows.

To draw a million numbers takes some 10 ms, and a copy from pageable memory waits for the device. So on a
device the next epoch's order is drawn during the present one, on a thread, into pinned memory.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

import torch

from trainer.train.off_device import send
from trainer.train.seeds import Episodes, batch_order, episode_order


class Orders:
    """The orders of one model's epochs."""

    def __init__(
        self,
        windows: int,
        *,
        most: int,
        seed: int,
        model: str,
        device: torch.device,
        episodes: Episodes | None = None,
    ) -> None:
        """`most`: of the `windows`, those that an epoch visits. Seed and model as in `batch_order`. With
        `episodes` the orders are an agent's.
        """
        self._episodes = episodes
        self._windows, self._most, self._seed, self._model = windows, most, seed, model
        self._device = device
        self._next: tuple[int, Future[torch.Tensor]] | None = None  # epoch, and its order

    def of(self, epoch: int) -> torch.Tensor:
        """Return the order (most,) int64 of an epoch, or an agent's (most, 2), on the device. Another than
        the next is drawn at once.
        """
        if self._device.type == "cpu":
            return self._drawn(epoch)
        known = self._next
        order = known[1].result() if known is not None and known[0] == epoch else self._drawn(epoch)
        self._next = epoch + 1, _thread().submit(self._drawn, epoch + 1)
        return send(order, self._device)

    def _drawn(self, epoch: int) -> torch.Tensor:
        windows, most, seed, model = self._windows, self._most, self._seed, self._model
        if self._episodes is None:
            order = batch_order(windows, seed=seed, model=model, epoch=epoch)[:most]
        else:
            order = episode_order(windows, self._episodes, most=most, seed=seed, model=model, epoch=epoch)
        return order.pin_memory() if self._device.type == "cuda" else order


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="orders")
