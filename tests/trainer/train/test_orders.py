"""Orders of epochs: the draws of `batch_order`, drawn ahead for a device, which no copy makes wait."""

from __future__ import annotations

import pytest
import torch

from tests.trainer.train.packs.test_waits import Copies
from trainer.train import orders as drawing
from trainer.train.off_device import send
from trainer.train.orders import Orders
from trainer.train.seeds import batch_order

CPU, META = torch.device("cpu"), torch.device("meta")


def orders_of(device: torch.device) -> Orders:
    return Orders(50, most=40, seed=3, model="m", device=device)


def drawn(epoch: int) -> torch.Tensor:
    return batch_order(50, seed=3, model="m", epoch=epoch)[:40]


def test_orders_are_those_of_the_seed_in_any_order(monkeypatch):
    sent: list[torch.Tensor] = []

    def noted(values: torch.Tensor, device: torch.device) -> torch.Tensor:
        sent.append(values)
        return values

    monkeypatch.setattr(drawing, "send", noted)
    ahead, plain = orders_of(META), orders_of(CPU)
    for epoch in (0, 1, 1, 2, 7):  # an epoch that broke begins again; a resumed run begins later
        assert torch.equal(ahead.of(epoch), drawn(epoch)) and torch.equal(plain.of(epoch), drawn(epoch))
    assert len(sent) == 5, "a CPU is sent nothing"


def test_the_next_order_is_drawn_early_and_sent_without_a_wait(monkeypatch):
    orders = orders_of(META)
    orders.of(0)
    drawing._thread().submit(lambda: None).result()  # after what was asked of the thread before
    monkeypatch.setattr(drawing, "batch_order", None)  # to draw now is an error
    with Copies() as copies, pytest.raises(TypeError):
        orders.of(1)
        assert copies.others == 1 and copies.waiting == []
        orders.of(2)


def test_only_pinned_memory_is_sent_to_a_gpu():
    with pytest.raises(ValueError, match="pinned"):
        send(torch.arange(3), torch.device("cuda"))
