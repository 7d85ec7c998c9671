"""`mayfly gpu` and `mayfly pull --live` of a run whose machine is up, as they are typed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.running import Running
from tests.trainer.conftest import CLOSED_RUN, OPEN_RUN
from tests.trainer.node.test_sampling import A10G, CPU
from tests.trainer.runs.test_training_events import EPOCH
from trainer.aws.access import Access
from trainer.cli.main import main
from trainer.cli.verbs import gpu, pull
from trainer.runs.record import utc_now
from trainer.runs.samples import NodeSample
from trainer.runs.store import Objects

pytestmark = pytest.mark.slow  # an account in which a machine is up


@pytest.fixture
def running(access: Access, account: Objects) -> Iterator[Running]:
    yield Running(access, account)


@pytest.fixture
def mayfly(account: Objects, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    def call(*words: str) -> Any:
        code = main(list(words))
        out, err = capsys.readouterr()
        return code, json.loads(out) if "--json" in words else out, err

    return call


def test_gpu_shows_the_newest_figures_of_a_running_node(running: Running, mayfly: Any) -> None:
    assert mayfly("gpu", OPEN_RUN)[:2] == (0, f"{gpu.NONE_YET}\n")
    gpus = (A10G, replace(A10G, gpu=1, power_watts=None))
    running.sample(NodeSample(at=utc_now() - timedelta(seconds=4), gpus=gpus, cpu=CPU))
    code, table, _ = mayfly("gpu", OPEN_RUN)
    assert code == 0
    first, titles, *rows = table.splitlines()
    assert first.startswith(f"{running.instance_id} · train · ") and first.endswith("s ago")
    assert titles.split() == ["gpu", "name", "use", "memory", "power", "temperature"]
    assert rows == [
        "0    NVIDIA A10G  97%  14.0/22.5 GiB  290 W        61 °C",
        "1    NVIDIA A10G  97%  14.0/22.5 GiB      -        61 °C",
        "cpu  48 cores     25%    2.0/4.0 GiB      -            -",
    ]
    _, told, _ = mayfly("gpu", OPEN_RUN, "--json")
    assert (told["instance_id"], told["gpus"][0]["power_watts"], told["cpu"]["cores"]) == (
        running.instance_id,
        289.91,
        48,
    )
    running.sample(
        NodeSample(at=utc_now(), gpus=(replace(A10G, name="\x1b[2K"),), note="nvidia-smi \x1b]0;x\x07")
    )
    out = mayfly("gpu", OPEN_RUN)[1]
    assert "\\x1b[2K" in out and "\x1b" not in out  # what a terminal obeys


def test_gpu_of_an_ended_run_says_where_its_figures_are(mayfly: Any) -> None:
    code, _, err = mayfly("gpu", CLOSED_RUN)
    assert code == 2 and f"mayfly pull {CLOSED_RUN}" in err
    assert mayfly("gpu", CLOSED_RUN, "-f", "--json")[0] == 2


def test_gpu_follows_each_new_sample_until_the_run_ends(
    running: Running, mayfly: Any, monkeypatch: Any
) -> None:
    steps = iter(
        [lambda: None, lambda: running.sample(NodeSample(at=utc_now(), cpu=CPU, note="no GPU")), running.end]
    )
    monkeypatch.setattr(gpu.time, "sleep", lambda _: next(steps, running.end)())
    code, out, _ = mayfly("gpu", OPEN_RUN, "--follow")
    assert code == 0
    assert out.count(gpu.NONE_YET) == 1 and out.count("48 cores") == 1 and out.rstrip().endswith("no GPU")


def test_pull_live_grows_with_the_run_and_ends_with_its_receipt(
    running: Running, mayfly: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    def line(number: int) -> bytes:
        return json.dumps({**EPOCH, "epoch": number}).encode() + b"\n"

    def send(number: int) -> None:
        running.objects.put(key=f"{running.keys.metrics}{number:06d}.jsonl", body=line(number))
        running.objects.put(key=f"{running.keys.log}{number:06d}.log", body=f"epoch {number}\n".encode())

    seen: list[bytes] = []
    steps = iter([lambda: send(2), running.end])

    def step(_: float) -> None:
        seen.append((tmp_path / "out/events.jsonl").read_bytes())
        next(steps, running.end)()

    send(1)
    monkeypatch.setattr(pull.time, "sleep", step)
    code, out, _ = mayfly("pull", OPEN_RUN, "--live", "--out", str(tmp_path / "out"))
    assert code == 0
    assert seen[0] == line(1) and seen[1] == line(1) + line(2)
    assert (tmp_path / "out/log.txt").read_text() == "epoch 1\nepoch 2\n"
    assert (tmp_path / "out/observed/models" / f"{EPOCH['model']}.jsonl").read_text().count('"epoch":') == 2
    assert json.loads((tmp_path / "out/receipt.json").read_text())["run_id"] == OPEN_RUN
    assert [Path(name).name for name in out.splitlines()] == [
        "log.txt",
        "events.jsonl",
        "observed",
        "receipt.json",
    ]
