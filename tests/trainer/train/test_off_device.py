"""Copies off a device: none is read before it is done, none is overwritten before it is read, and no step waits.

There is no GPU here: a lane of the host stands for one, which copies only when somebody waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

import trainer
from tests.jobs import job_of
from trainer.machines.memory import checkpoint_bytes
from trainer.train.checkpoint import tensors_of_checkpoint
from trainer.train.off_device import BUFFER_BYTES, BUFFERS, CudaLane, Ring, contents
from trainer.train.packs.pack import Member
from trainer.train.packs.strategy import form_pack
from trainer.train.run import Run

TENSORS = [
    torch.arange(24, dtype=torch.float32).reshape(4, 6).T,  # not contiguous
    torch.tensor(3.5, dtype=torch.bfloat16),
    torch.empty(0, 7),
    torch.arange(5, dtype=torch.int16),
    torch.tensor([True, False, True]),
]
BYTES = b"".join(one.contiguous().view(-1).view(torch.uint8).numpy().tobytes() for one in TENSORS)


class SlowLane:
    """A lane whose copies happen when their end is waited for; it notes what was called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def buffer(self, size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.uint8)

    def follow(self) -> None:
        self.calls.append("follow")

    def flat(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.contiguous().view(-1).view(torch.uint8)

    def begin(self, into: torch.Tensor, source: torch.Tensor) -> Callable[[], object]:
        self.calls.append("begin")

        def wait() -> None:
            self.calls.append("wait")
            into.copy_(source)

        return wait


class Counted(SlowLane):
    """A lane that copies nothing: counts the bytes of the host that it was given, and those that left."""

    def __init__(self) -> None:
        super().__init__()
        self.held = self.left = 0

    def buffer(self, size: int) -> torch.Tensor:
        self.held += size
        return super().buffer(size)

    def begin(self, into: torch.Tensor, source: torch.Tensor) -> Callable[[], object]:
        assert len(into) == source.nbytes
        self.left += source.nbytes
        return lambda: None


@pytest.mark.parametrize(
    ("device", "keys"),
    [
        ("cpu", {"model": "tcn", "width": 8, "blocks": 2, "chunk": 32}),
        pytest.param("meta", {"model": "tcn"}, marks=pytest.mark.nightly),
        pytest.param(
            "meta", {"model": "transformer", "preset": "large", "ema": 0.9}, marks=pytest.mark.nightly
        ),
    ],
)
def test_a_checkpoint_holds_a_host_ring_and_one_device_copy(device: str, keys: dict[str, Any]) -> None:
    """Also of models of 18 and 151 M weights, on the meta device: figures of bytes, without any."""
    job = job_of(**keys, precision="fp32", batch=2)
    rows_TF = torch.zeros(64, len(job.data.inputs), device=device)
    member = Member(name="a", rows_TF=rows_TF, labels_TK=rows_TF[:, :1], mean_F=rows_TF[0], std_F=rows_TF[0])
    with torch.device(device):
        pack = form_pack([member], job)
        state = pack.snapshot(0)
    run = Run(member=member, title="a", reads=torch.arange(2), validation=None, learning_rate=0.1)
    run.best_weights = {name: weight.detach() for name, weight in pack.model(0).named_parameters()}
    tensors = tensors_of_checkpoint(run, state)
    held = sum(one.nbytes for name, one in tensors.items() if not name.startswith("best."))
    best = sum(weight.nbytes for weight in run.best_weights.values())
    known = checkpoint_bytes(job, features=len(job.data.inputs))
    assert held + best == pytest.approx(known, rel=0.02), "what the memory formula counts on the device"
    lane = Counted()
    assert sum(1 for _ in Ring(lane).contents(tensors.values())) >= max(1, (held + best) // BUFFER_BYTES)
    assert lane.held == BUFFERS * BUFFER_BYTES == 48 << 20, "whatever the model"
    assert lane.left == held + best, "each byte leaves once"


@pytest.mark.parametrize(("buffers", "size"), [(1, 8), (2, 16), (3, 7), (3, 1 << 20)])
def test_the_ring_gives_every_byte_in_order(buffers: int, size: int) -> None:
    lane = SlowLane()
    ring = Ring(lane, buffers=buffers, buffer_bytes=size)
    for _ in range(2):  # a second checkpoint takes the same buffers
        assert b"".join(bytes(piece) for piece in ring.contents(TENSORS)) == BYTES
    assert b"".join(bytes(piece) for piece in contents(TENSORS)) == BYTES


def test_a_buffer_is_filled_while_another_is_read() -> None:
    lane = SlowLane()
    read: list[str] = []
    for piece in Ring(lane, buffers=2, buffer_bytes=32).contents(TENSORS[:1]):  # three pieces of 32 bytes
        read.append("+".join(lane.calls))
        lane.calls.clear()
        assert len(piece) == 32
    assert read == ["follow+begin+begin+wait", "begin+wait", "wait"]


class Stream:
    """A stream of CUDA that notes what it waits for, and that torch's current one may be."""

    def __init__(self, device: object) -> None:
        self.waited: list[object] = []

    def wait_stream(self, other: object) -> None:
        self.waited.append(other)


class Event:
    """An event of CUDA that notes the stream on which it was recorded."""

    def __init__(self, *, blocking: bool) -> None:
        assert blocking
        self.recorded: list[object] = []

    def record(self, stream: object) -> None:
        self.recorded.append(stream)

    def synchronize(self) -> object:
        return self.recorded


class Copies(TorchFunctionMode):
    """Notes the copies of torch: whether they return at once, and the current stream."""

    def __init__(self) -> None:
        self.current: object = None
        self.seen: list[tuple[object, bool]] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.copy_:
            self.seen.append((self.current, (kwargs or {}).get("non_blocking", False)))
        return function(*args, **(kwargs or {}))


def test_a_gpus_copies_go_by_a_stream_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = Copies()

    @contextmanager
    def on(stream: object) -> Iterator[None]:
        copies.current = stream
        yield
        copies.current = None

    own = {"Stream": Stream, "Event": Event, "stream": on, "device": nullcontext}
    for name, stands in own.items():
        monkeypatch.setattr(torch.cuda, name, stands)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: f"training on {device}")
    lane = CudaLane(torch.device("cuda", 1))
    side = lane._stream
    assert isinstance(side, Stream)
    lane.follow()
    assert side.waited == ["training on cuda:1"]
    with copies:
        wait = lane.begin(torch.zeros(3), torch.ones(3))
    assert copies.seen == [(side, True)]
    assert wait() == [side]  # the end of the copy on that stream, not of what the training has queued


class Driver:
    """torch's `device` and `stream` on devices that it only numbers, in a thread that has used none: those in
    `contexts` got one of CUDA's, which takes half a GiB. A stream's end sets its device, as torch 2.13 does.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.current, self.contexts = 0, set[int]()
        patch.setattr(torch.cuda, "Stream", lambda device: SimpleNamespace(device=device))
        patch.setattr(torch.cuda, "Event", Event)
        patch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(device=self.device))
        patch.setattr(torch.cuda, "set_stream", lambda stream: self.set(stream.device.index))
        patch.setattr(torch.cuda, "_exchange_device", self.set)
        patch.setattr(torch.cuda, "_maybe_exchange_device", lambda index: self.set(index, maybe=True))
        patch.setattr(
            torch.cuda, "_get_device_index", lambda one, *_, **__: self.current if one is None else one.index
        )

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self.current)

    def set(self, index: int, *, maybe: bool = False) -> int:
        before, self.current = self.current, index
        self.contexts |= set() if maybe or index == before else {index}
        return before


def test_a_writers_thread_uses_no_gpu_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    lane = CudaLane(torch.device("cuda", 1))
    lane.begin(torch.zeros(8, dtype=torch.uint8), lane.flat(torch.ones(2)))
    assert driver.contexts == {1}, "a worker's thread begins on the first GPU, which is another worker's"


def test_copies_return_early_in_one_module_only() -> None:
    package = Path(trainer.__file__).parent
    found = [path for path in package.rglob("*.py") if "non_blocking" in path.read_text(encoding="utf-8")]
    assert [path.relative_to(package).as_posix() for path in found] == ["train/off_device.py"]
