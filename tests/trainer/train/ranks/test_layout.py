"""FSDP2 trains what DDP trains, a training resumes on another number of ranks, and torch is handed what GPUs
need.
"""

from __future__ import annotations

import inspect
import random
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from tests.jobs import job_of, with_settings
from tests.trainer.train.ranks.ranks import TwoRanks
from tests.trainer.train.ranks.test_equivalence import STEPS, batches_of, job_for, member_of, reads_of
from tests.trainer.train.rosters import MADE, Roster, WorkerKilled, heard_at
from trainer.base.errors import UsageError
from trainer.job.job import Job
from trainer.train.checkpoint import CheckpointWriter
from trainer.train.evaluate.epoch_scores import Validated, Validation
from trainer.train.loop import Total, train
from trainer.train.packs.layout import ONE, Layout
from trainer.train.packs.pack import Member, ModelState, fresh_state, new_model
from trainer.train.packs.strategy import form_pack
from trainer.train.ranks import layout as module
from trainer.train.ranks.group import Ranks
from trainer.train.ranks.layout import DataParallel, FullySharded
from trainer.train.run import Run

NETS = Path(__file__).parents[2] / "outside" / "nets.py"
TRANSFORMER = job_of(
    model="transformer", target="direction", preset="tiny", lookback=8, patch=4, batch=8, dropout=0.2
)


def layout_of(ranks: Ranks, name: str, job: Job) -> Layout:
    """Return one of the ranks' layouts."""
    return {"ddp": DataParallel, "fsdp": FullySharded}[name](ranks, job)


def losses_beside(ranks: Ranks, job: Job, dtype: torch.dtype) -> dict[str, list[float]]:
    """Return losses and weights by each layout; half-way the state goes from each to the other."""
    member, losses = member_of(dtype), dict[str, list[float]]()
    packs = {name: form_pack([member], job, layout_of(ranks, name, job)) for name in ("ddp", "fsdp")}
    batches = batches_of(job, member)[:STEPS]
    assert len(batches) == STEPS
    for half in (batches[: STEPS // 2], batches[STEPS // 2 :]):
        for name, pack in packs.items():
            losses.setdefault(name, []).extend(
                float(ranks.sum_(pack.step([True], [starts]))[0]) for starts in half
            )
        if len(losses[name]) == STEPS // 2:
            whole = packs["ddp"].snapshot(0)
            parts = packs["fsdp"].snapshot(0)
            packs["fsdp"].restore(0, whole)
            assert parts.weights.keys() == whole.weights.keys()
            packs["fsdp"].restore(0, parts)  # its own again: parts, as a step that goes back restores them
    for name, pack in packs.items():
        losses[name] += [float(weight.double().sum()) for weight in pack.model(0).parameters()]
    return losses


@pytest.mark.nightly
@pytest.mark.parametrize(
    "job",
    [
        pytest.param(job_for("lstm", micro_batch=2), id="lstm"),
        pytest.param(with_settings(job_for("tcn"), activation_checkpointing=True), id="tcn"),
        pytest.param(
            with_settings(TRANSFORMER, activation_checkpointing=True, micro_batch=2, ema=0.9),
            id="transformer",
        ),
    ],
)
def test_fsdp_has_the_losses_and_weights_of_ddp(two_ranks: TwoRanks, job: Job):
    first, second = two_ranks(losses_beside, job, torch.float64)
    assert first == second
    np.testing.assert_allclose(first["fsdp"], first["ddp"], rtol=1e-9)
    assert len({round(loss, 6) for loss in first["ddp"][:STEPS]}) > STEPS // 2


def parts_held(ranks: Ranks, job: Job) -> tuple[float, list[float]]:
    """Return the share of its weights that a rank holds under FSDP, and the loss and moments after a step of
    no number.
    """
    member = member_of(torch.float64)
    pack = form_pack([member], job, layout_of(ranks, "fsdp", job))
    starts = reads_of(job, member)[:4]
    assert np.isfinite(float(pack.step([True], [starts])[0]))
    before = pack.snapshot(0)
    held = sum(weight.to_local().numel() for weight in before.weights.values())  # type: ignore[attr-defined]
    whole = sum(weight.numel() for weight in before.weights.values())
    pack.set_learning_rate(0, float("inf"))
    pack.step([True], [starts])
    broken = float(pack.step([True], [starts])[0])
    best = {name: tensor.detach().clone() for name, tensor in pack.model(0).named_parameters()}
    best = {name: torch.full_like(tensor, 0.01) for name, tensor in best.items()}
    pack.restore(0, fresh_state(best, like=pack.snapshot(0)))  # wholes, as the loop keeps its best weights
    pack.set_learning_rate(0, 1e-3)
    return held / whole, [broken, float(ranks.sum_(pack.step([True], [starts]))[0])]


def test_each_rank_holds_its_part_and_all_see_a_nan_loss(two_ranks: TwoRanks):
    (share, first), (other_share, second) = two_ranks(parts_held, job_for("lstm"))
    assert share + other_share == pytest.approx(1) and 0.3 < share < 0.7
    assert np.isnan(first[0]) and np.isnan(second[0])
    assert first[1] == second[1] and np.isfinite(first[1])


HALF = with_settings(TRANSFORMER, precision="bf16", batch=8)


def _types_of(seen: set[torch.dtype], block: nn.Module, _: object) -> None:
    seen.update(weight.dtype for weight in block.parameters())


def half_beside(ranks: Ranks) -> dict[str, Any]:
    """Return losses in bf16 by each layout and in fp32, and types: of blocks in the forward pass, of gradients
    and weights.
    """
    member, found = member_of(torch.float32), dict[str, Any]()
    batches = batches_of(HALF, member)[:STEPS]
    for name, job in {"ddp": HALF, "fsdp": HALF, "full": with_settings(HALF, precision="fp32")}.items():
        pack = form_pack([member], job, layout_of(ranks, "fsdp" if name == "fsdp" else "ddp", job))
        seen = set[torch.dtype]()
        if name == "fsdp":
            model = pack._models[0]  # type: ignore[attr-defined]
            look = partial(_types_of, seen)
            for block in blocks_of(model):
                block.register_forward_pre_hook(look)
        found[name] = [float(ranks.sum_(pack.step([True], [starts]))[0]) for starts in batches]
        if name == "fsdp":
            grads = {weight.grad.dtype for weight in model.parameters() if weight.grad is not None}
            found["types"] = [str(one) for one in (*seen, *grads, *{w.dtype for w in model.parameters()})]
    return found


def test_fsdp_gathers_in_the_type_of_matrix_products(two_ranks: TwoRanks):
    first, second = two_ranks(half_beside)
    assert first == second
    # Gathered in bf16; reduced, kept and stepped in fp32.
    assert first["types"] == ["torch.bfloat16", "torch.float32", "torch.float32"]
    # Not relative: the loss of a single window may be near zero.
    beside = np.abs(np.array(first["ddp"]) - np.array(first["full"])).max()
    apart = np.abs(np.array(first["fsdp"]) - np.array(first["full"])).max()
    assert apart < max(4 * beside, 1e-2)


def gathered_by(ranks: Ranks, bucket_bytes: int) -> tuple[int, bool]:
    """Return the number of collectives that put divided weights whole, and whether each is what its parts are."""
    import torch.distributed as dist

    from trainer.train.packs import tensors

    member, calls = member_of(torch.float64), 0
    job = with_settings(TRANSFORMER, ema=0)
    (divided,) = form_pack([member], job, layout_of(ranks, "fsdp", job))._models  # type: ignore[attr-defined]
    into, gather = new_model(member, job), dist.all_gather
    expected = [tensors.whole(weight) for weight in divided.parameters()]

    def counted(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        return gather(*given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_gather", counted)
        tensors.put_whole(into, divided, bucket_bytes=bucket_bytes)
    same = all(
        torch.equal(weight.detach(), one) for weight, one in zip(into.parameters(), expected, strict=True)
    )
    return calls, same


def test_weights_are_gathered_together_for_validation(two_ranks: TwoRanks):
    assert two_ranks(gathered_by, 64 << 20) == [(1, True)] * 2
    (few, same), _ = two_ranks(gathered_by, 1 << 14)
    assert same and 1 < few < len(list(new_model(member_of(torch.float64), TRANSFORMER).parameters()))


def models_asked(ranks: Ranks) -> list[int]:
    """Return how often weights were put whole: of two looks, of one after a step, after a restored state."""
    from trainer.train.packs import sequential

    job, member, calls = job_for("lstm"), member_of(torch.float64), list[int]()
    pack = form_pack([member], job, layout_of(ranks, "fsdp", job))
    put, times = sequential.put_whole, 0

    def counted(*given: Any) -> None:
        nonlocal times
        times += 1
        put(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequential, "put_whole", counted)
        state = pack.snapshot(0)
        steps = (lambda: None, lambda: None, lambda: pack.step([True], [reads_of(job, member)[:4]]))
        for before in (*steps, lambda: pack.restore(0, state)):
            before()
            pack.model(0)
            calls.append(times)
    return calls


def test_weights_are_put_whole_once_for_each_state(two_ranks: TwoRanks):
    assert two_ranks(models_asked) == [[1, 1, 2, 3]] * 2


def refuse_own(ranks: Ranks) -> str:
    """Return the error for a module of a user's own."""
    try:
        layout_of(ranks, "fsdp", job_of(model=f"{NETS}:Norm")).divide(nn.Linear(2, 2))
    except UsageError as error:
        return str(error)
    return ""


def test_a_module_of_a_users_own_is_not_divided(two_ranks: TwoRanks):
    assert set(two_ranks(refuse_own)) == {
        "a model of your own can't be divided among GPUs (its frozen, tied and unused weights are not known)."
        " Take a GPU that it fits, or one of our models."
    }


class Continued(Roster):
    """A roster that writes a checkpoint each step by a writer, and dies at a step."""

    def __init__(self, run: Run, folder: Path, writer: CheckpointWriter, *, dies_at: int) -> None:
        super().__init__(run, folder=folder)
        self._writer, self._dies_at = writer, dies_at

    def checkpoint(self, run: Run, state: ModelState, *, snapshot_seconds: float) -> None:
        self.checkpoints.append(state.batches)
        self._writer.submit(run, state, MADE, snapshot_seconds=snapshot_seconds)
        if state.batches == self._dies_at:
            raise WorkerKilled


def go_on(
    job: Job, layout: Layout, folder: Path, writer: Any, dies_at: int, told_at: int = 0, **total: Total
) -> tuple[int, list[dict[str, Any]]]:
    """Train until a step at which it dies or is told to stop, or to the end; return where it went on, and the
    history.
    """
    member: Member = member_of(torch.float32 if told_at else torch.float64)
    firsts = reads_of(job, member)[:75]  # ten steps an epoch, the last of three samples
    run = Run(
        member=member,
        title="S",
        reads=firsts,
        validation=Validation(outputs=_loss, judged=_as_it_is),
        learning_rate=3e-4,
    )
    ticks = iter(range(10**6))  # every look at the clock is a second later, so a checkpoint is always due
    roster = Continued(run, folder, writer, dies_at=dies_at)
    with suppress(WorkerKilled):
        form = partial(form_pack, job=job, layout=layout)
        heard = heard_at(told_at) if told_at else lambda: ""
        train(roster, form, job, lambda event: None, clock=lambda: next(ticks), heard=heard, **total)
    writer.flush()
    return roster.resumed.get(member.name, 0), run.history


def _loss(model: nn.Module) -> torch.Tensor:
    """Return a loss (1, 1) that depends on every weight."""
    squares = [(weight.detach().double() ** 2).sum() for weight in model.parameters()]
    return torch.stack(squares).sum().view(1, 1)


def _as_it_is(outputs_NO: np.ndarray) -> Validated:
    return Validated(loss=float(outputs_NO[0, 0]))


def go_on_as_rank(
    ranks: Ranks, name: str, job: Job, folder: Path, dies_at: int, told_at: int = 0
) -> tuple[int, list[dict[str, Any]]]:
    """Train as one of several ranks, by one of their layouts."""
    from trainer.train.ranks.shards import write_shards

    store = partial(write_shards, ranks=ranks.in_background())
    writer = CheckpointWriter(folder, lambda event: None, store=store)
    return go_on(job, layout_of(ranks, name, job), folder, writer, dies_at, told_at, total=ranks.sum_)


def test_training_resumes_on_other_numbers_of_ranks(two_ranks: TwoRanks, tmp_path: Path):
    job = with_settings(job_for("lstm"), epochs=2, patience=2, checkpoint_seconds=1)
    _, alone = go_on(
        job, ONE, tmp_path / "alone", CheckpointWriter(tmp_path / "alone", lambda event: None), 0
    )
    assert len(alone) == 2
    moments = sorted(random.Random(14).sample(range(2, 18), 3))
    folder = tmp_path / "cut"
    (start, _), _ = two_ranks(go_on_as_rank, "ddp", job, folder, moments[0])
    assert start == 0
    resumed, _ = go_on(job, ONE, folder, CheckpointWriter(folder, lambda event: None), moments[1])
    assert resumed == moments[0]
    (resumed, _), _ = two_ranks(go_on_as_rank, "fsdp", job, folder, moments[2])
    assert resumed == moments[1]
    (resumed, history), (_, other) = two_ranks(go_on_as_rank, "ddp", job, folder, 0)
    assert resumed == moments[2] and history == other
    for here, there in zip(alone, history, strict=True):
        assert there == pytest.approx(here, rel=1e-9)


@pytest.mark.nightly
def test_a_notice_takes_a_training_to_other_numbers_of_ranks(
    two_ranks: TwoRanks, three_ranks: TwoRanks, tmp_path: Path
):
    # No checkpoint is due: only a notice writes one.
    job = with_settings(job_for("lstm"), epochs=4, patience=4, checkpoint_seconds=1_000_000)
    folder, never = tmp_path / "told", 10**6

    def alone(folder: Path, told_at: int) -> tuple[int, list[dict[str, Any]]]:
        return go_on(job, ONE, folder, CheckpointWriter(folder, lambda event: None), 0, told_at)

    _, whole = alone(tmp_path / "whole", never)
    went_on = [two_ranks(go_on_as_rank, "ddp", job, folder, 0, 6)[0][0]]
    went_on.append(three_ranks(go_on_as_rank, "ddp", job, folder, 0, 7)[0][0])
    went_on.append(alone(folder, 8)[0])
    went_on.append(three_ranks(go_on_as_rank, "fsdp", job, folder, 0, 5)[0][0])
    (last, history), (_, other) = two_ranks(go_on_as_rank, "fsdp", job, folder, 0, never)
    assert [*went_on, last] == [0, 6, 13, 21, 26]  # no step is taken twice
    assert history == other and len(history) == len(whole) == 4
    for here, there in zip(whole, history, strict=True):
        assert there == pytest.approx(here, rel=1e-5)


class OnGpu:
    """Stands for DDP on a GPU, which is not here: keeps what it is handed, under the real one's names."""

    def __init__(self, *given: Any, **named: Any) -> None:
        bound = inspect.signature(DistributedDataParallel.__init__).bind(self, *given, **named)
        self.handed = {name: value for name, value in bound.arguments.items() if name != "self"}
        self.hooks: list[Any] = []
        self.compiled = compiled_of(self.handed["module"])

    def register_comm_hook(self, state: object, hook: Any) -> None:
        """Keep a hook."""
        self.hooks.append(hook)


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that wraps a model as rank 1 of two GPUs does; it returns what torch was handed."""
    monkeypatch.setattr(module, "DistributedDataParallel", OnGpu)
    gpus = Ranks(rank=1, count=2, device=torch.device("cuda", 1))

    def wrap(model: nn.Module, job: Job, *, link: str = "", slices: int = 1) -> OnGpu:
        wrapped = DataParallel(gpus, job, link=link).wrap(model, slices=slices)
        assert isinstance(wrapped, OnGpu)
        return wrapped

    return wrap


def test_gradients_are_summed_in_bf16_over_pcie_only(on_gpu: Any):
    half, whole = (with_settings(job_for("lstm"), precision=name) for name in ("fp16", "fp32"))
    assert on_gpu(nn.Linear(2, 2), half, link="PCIe").hooks == [bf16_compress_hook]
    for job, link in ((half, "NVSwitch"), (half, ""), (whole, "PCIe")):
        assert on_gpu(nn.Linear(2, 2), job, link=link).hooks == []


def test_batch_norm_on_gpus_has_statistics_of_all_ranks(on_gpu: Any):
    job = job_of(model=f"{NETS}:Norm")
    handed = on_gpu(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.LayerNorm(2)), job).handed
    assert [type(part) for part in handed["module"]] == [nn.Linear, nn.SyncBatchNorm, nn.LayerNorm]


def test_ddp_on_a_gpu_is_handed_its_device_and_options(on_gpu: Any):
    job, model = with_settings(job_for("lstm"), precision="fp32"), nn.Linear(2, 2)
    ours = {"static_graph": True, "find_unused_parameters": False, "forward_sync_buffers": False}
    handed = {"module": model, "device_ids": [1], "gradient_as_bucket_view": True, **ours}
    assert on_gpu(model, job).handed == handed
    assert on_gpu(model, job, slices=2).handed == {**handed, "static_graph": False}
    own = {"static_graph": False, "find_unused_parameters": True, "forward_sync_buffers": True}
    assert on_gpu(model, job_of(model=f"{NETS}:Norm")).handed == {**handed, **own}


def mark(module: nn.Module) -> None:
    """Stand for torch's compiler: mark a module that is handed to it."""
    module.is_compiled = True  # type: ignore[assignment]


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules are marked, and none is compiled."""
    monkeypatch.setattr(nn.Module, "compile", mark)


def compiled_of(model: nn.Module) -> list[nn.Module]:
    """Return a model's modules that were handed to torch's compiler so far."""
    return [module for module in model.modules() if getattr(module, "is_compiled", False)]


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return a transformer's blocks."""
    return [block for blocks in model.modules() if isinstance(blocks, nn.ModuleList) for block in blocks]


@pytest.mark.parametrize(("compiles", "gpu"), [("auto", True), ("always", True), ("never", False)])
def test_blocks_are_compiled_on_gpus_before_ddp(on_gpu: Any, compiler: None, compiles: str, gpu: bool):
    job = with_settings(TRANSFORMER, compile=compiles, precision="fp32")
    model = new_model(member_of(torch.float32), job)
    wrapped = on_gpu(model, job)
    assert wrapped.handed["module"] is model
    assert len(blocks_of(model)) > 1 and wrapped.compiled == (blocks_of(model) if gpu else [])


def test_a_users_own_blocks_are_compiled_only_if_asked(on_gpu: Any, compiler: None):
    model = nn.Sequential(nn.ModuleList([nn.Linear(2, 2), nn.Dropout()]))
    job = job_of(model=f"{NETS}:Norm")
    assert on_gpu(model, job).compiled == []
    asked = on_gpu(model, with_settings(job, compile="always")).compiled
    assert asked == blocks_of(model)[:1], "not what has no weights"


def divided_on_rank(ranks: Ranks, compiles: str) -> tuple[int, int]:
    """Return how many modules were compiled before FSDP2 divided a transformer, and the number of its blocks."""
    divided = list[tuple[nn.Module, int]]()
    job = with_settings(TRANSFORMER, compile=compiles)
    model = new_model(member_of(torch.float32), job)

    def fully_shard(part: nn.Module, **_: object) -> None:
        divided.append((part, len(compiled_of(model))))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.Module, "compile", mark)
        patch.setattr("torch.distributed.fsdp.fully_shard", fully_shard)  # loading it takes two core-seconds
        FullySharded(ranks, job).divide(model)
    assert [part for part, _ in divided] == [*blocks_of(model), model]
    return divided[0][1], len(blocks_of(model))


def test_fsdp_divides_blocks_that_are_compiled(two_ranks: TwoRanks):
    for count, blocks in two_ranks(divided_on_rank, "always"):
        assert count == blocks > 1
    assert {count for count, _ in two_ranks(divided_on_rank, "auto")} == {0}, "not on CPUs unless asked"


def gradients_on_rank(ranks: Ranks) -> tuple[int, int]:
    """Return how many gradients a backward by DDP leaves, and in how many pieces of memory they are."""
    wrapped = DataParallel(ranks, job_for("lstm")).wrap(
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), slices=1
    )
    wrapped(torch.ones(2, 4)).sum().backward()
    gradients = [weight.grad for weight in wrapped.parameters() if weight.grad is not None]
    return len(gradients), len({one.untyped_storage().data_ptr() for one in gradients})


def test_gradients_are_views_of_ddps_buckets(two_ranks: TwoRanks):
    assert two_ranks(gradients_on_rank) == [(4, 1)] * 2, "else each has a copy beside its bucket"
