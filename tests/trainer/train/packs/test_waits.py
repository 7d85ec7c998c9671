"""No step makes the host wait for a device, and few kernels do its work: shown on the meta device, which has
shapes and no values.

What reads a value there raises an error, and every copy from the host is seen on its way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.jobs import job_of, with_settings
from tests.nightly import others_nightly
from tests.trainer.train.test_own_models import job_for
from trainer.data.feature_names import FEATURES
from trainer.job.job import Job
from trainer.train.packs import stacked
from trainer.train.packs.agents import Agents
from trainer.train.packs.chunks import Chunks
from trainer.train.packs.pack import Member, Pack
from trainer.train.packs.sequential import SequentialPack
from trainer.train.packs.stacked import Fused, Streams

BATCH = 4
BARS = 60  # of a window whose kernels are counted
ASKED_OF_THE_HOST = {"aten::_local_scalar_dense", "aten::item", "aten::nonzero", "aten::equal"}


class Copies(TorchDispatchMode):
    """Notes every copy between the host and a device, and whether it waits."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[str] = []
        self.others = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = op(*args, **(kwargs or {}))
        name = op._schema.name
        if name in ASKED_OF_THE_HOST:
            self.waiting.append(name)
        if name in {"aten::copy_", "aten::_to_copy"}:
            source, into = (args[1], args[0]) if name == "aten::copy_" else (args[0], made)
            given = dict(zip([argument.name for argument in op._schema.arguments], args, strict=False))
            if source.device != into.device:
                self.others += 1
                if not {**given, **(kwargs or {})}.get("non_blocking"):
                    self.waiting.append(f"{name} {tuple(source.shape)} {source.device} to {into.device}")
        return made


def member(name: str, device: str, *, columns: int = 1) -> Member:
    rows_TF = torch.randn(200, len(FEATURES), device=device)
    labels_TK = torch.zeros(200, columns, device=device)
    return Member(
        name=name,
        rows_TF=rows_TF,
        labels_TK=labels_TK,
        mean_F=torch.zeros(len(FEATURES), device=device),
        std_F=torch.ones(len(FEATURES), device=device),
    )


def starts_of(job: Job, device: str) -> torch.Tensor:
    """Return the windows of a step; an agent's have the next ones beside them."""
    shape = (job.reads_of_step, 2) if job.target.acts else (job.train.batch,)
    return torch.zeros(shape, dtype=torch.int64, device=device)


LSTM = job_of(hidden=8, layers=2, lookback=4, batch=BATCH, dropout=0.2, precision="fp32")
AVERAGED = with_settings(LSTM, ema=0.9)
AGENTS = job_of(
    model="mlp",
    target="position",
    hidden=8,
    lookback=4,
    batch=16,
    lanes=8,
    minibatches=2,
    updates=2,
    episode=3,
)
PACKS: dict[str, tuple[Callable[..., Pack], Job]] = {
    "lstm": (SequentialPack, LSTM),
    "lstm averaged": (SequentialPack, AVERAGED),
    "fused": (Fused, LSTM),
    "fused averaged": (Fused, AVERAGED),
    "streams": (Streams, LSTM),
    "transformer": (
        SequentialPack,
        job_of(
            model="transformer",
            width=16,
            heads=2,
            blocks=2,
            lookback=8,
            batch=BATCH,
            dropout=0.2,
            precision="fp32",
        ),
    ),
    "agents": (Agents, AGENTS),
    "free agents": (Agents, with_settings(AGENTS, actions="continuous", ema=0.9)),
    "tcn": (Chunks, job_of(model="tcn", width=8, blocks=2, chunk=16, batch=2, dropout=0.2, precision="fp32")),
}


class Kernels(TorchDispatchMode):
    """Counts operations that a device is asked for: all but views and memory. Each of ours is `ours`."""

    def __init__(self, ours: int) -> None:
        super().__init__()
        self.count, self._ours = 0, ours

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returns = op._schema.returns
        is_view = any(made.alias_info is not None and not made.alias_info.is_write for made in returns)
        if not is_view and not any(word in op._schema.name for word in ("empty", "_unsafe_view")):
            self.count += self._ours if op.namespace == "mayfly" else 1
        return op(*args, **(kwargs or {}))


@pytest.mark.parametrize(("ours", "least", "most"), [(1, 80, 120), (2 * BARS, 500, 600)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_fused_step_has_few_kernels(
    dtype: torch.dtype, ours: int, least: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two layers, whatever the number of models: 4,704 in torch's steps. A layer's bars are one kernel, or
    two a bar: a product, and all else.
    """
    monkeypatch.setattr(stacked, "resolve_precision", lambda *_: dtype)
    job = with_settings(LSTM, lookback=BARS)
    pack = Fused([member("a", "meta"), member("b", "meta"), member("c", "meta")], job)
    pack._run()  # the first step also makes the constants that all keep
    with Kernels(ours) as kernels:
        pack._run()
    assert least < kernels.count <= most


@pytest.mark.parametrize("job", [AGENTS, PACKS["free agents"][1]], ids=["discrete", "continuous"])
def test_a_recorded_rollout_sends_nothing_to_the_device(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = Agents([member("a", "meta", columns=3), member("b", "meta", columns=3)], job)
    pack._run()  # the first step also makes the constants that all keep
    for name in ("tensor", "as_tensor", "from_numpy"):  # whose copies are not seen on their way
        monkeypatch.setattr(torch, name, lambda *_, **__: pytest.fail("a graph can't record that"))
    with Copies() as copies:
        pack._run()
    assert (copies.waiting, copies.others) == ([], 0)


@pytest.mark.parametrize(
    "name", others_nightly(PACKS, {"lstm averaged", "fused averaged", "tcn"}.__contains__)
)
def test_a_step_waits_for_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(*PACKS[name], monkeypatch)


def test_a_step_of_an_own_module_with_buffers_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    check(SequentialPack, job_for("Norm", ema=0.9), monkeypatch)


def check(make: Callable[..., Pack], job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # meta has none
    columns = job.target.label_columns
    pack = make([member(name, "meta", columns=columns) for name in ("a", "b")], job, micro_batch=2)
    starts = [starts_of(job, "meta")] * 2
    with Copies() as copies:
        for _ in range(2):
            pack.set_learning_rate(0, 1e-3)
            losses_M = pack.step([True, True], starts)
    assert losses_M.device.type == "meta"
    assert copies.waiting == []
    assert copies.others


@pytest.mark.parametrize("name", PACKS)
def test_a_step_does_not_load_torchs_compiler(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes two seconds and 70 MB of every process that trains."""
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)  # to import it is an error now
    make, job = PACKS[name]
    pack = make([member("a", "cpu", columns=job.target.label_columns)], job, micro_batch=2)
    pack.step([True], [starts_of(job, "cpu")])
