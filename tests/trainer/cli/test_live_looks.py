"""`mayfly status` and `mayfly pull --live` of a run whose machine is up, as they are typed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.running import Running
from tests.trainer.conftest import OPEN_RUN
from tests.trainer.node.test_sampling import A10G, CPU
from tests.trainer.runs.test_training_events import EPOCH
from trainer.aws.access import Access
from trainer.aws.objects import Objects
from trainer.base.errors import ConnectionFailed
from trainer.base.instants import utc_now
from trainer.cli.verbs import logs, pull, status
from trainer.runs.samples import NodeSample

pytestmark = pytest.mark.slow  # an account in which a machine is up


@pytest.fixture
def running(access: Access, account: Objects) -> Iterator[Running]:
    yield Running(access, account)


def test_status_shows_the_newest_figures_of_a_running_node(running: Running, mayfly: Any) -> None:
    assert "  use " not in mayfly("status", OPEN_RUN)[1]
    assert mayfly("status", OPEN_RUN, "--json")[1]["runs"][0]["sample"] is None
    gpus = (A10G, replace(A10G, gpu=1, power_watts=None))
    running.sample(NodeSample(at=utc_now() - timedelta(seconds=4), gpus=gpus, cpu=CPU))
    code, shown, _ = mayfly("status", OPEN_RUN)
    assert code == 0
    first, *table = shown[shown.index("  use ") :].splitlines()
    assert first.split()[0] == "use" and first.endswith("s ago")
    assert [line.strip() for line in table[:4]] == [
        "gpu  name         use         memory  power  temperature",
        "0    NVIDIA A10G  97%  14.0/22.5 GiB  290 W        61 °C",
        "1    NVIDIA A10G  97%  14.0/22.5 GiB      -        61 °C",
        "cpu  48 cores     25%    2.0/4.0 GiB      -            -",
    ]
    sample = mayfly("status", OPEN_RUN, "--json")[1]["runs"][0]["sample"]
    assert (sample["gpus"][0]["power_watts"], sample["cpu"]["cores"]) == (289.91, 48)
    assert 4 <= sample["age_seconds"] < 600 and sample["at"] and sample["note"] == ""
    running.sample(
        NodeSample(at=utc_now(), gpus=(replace(A10G, name="\x1b[2K"),), note="nvidia-smi \x1b]0;x\x07")
    )
    out = mayfly("status", OPEN_RUN)[1]
    assert "\\x1b[2K" in out and "\x1b" not in out  # what a terminal obeys


def test_status_follows_each_new_sample_until_the_run_ends(
    running: Running, mayfly: Any, monkeypatch: Any
) -> None:
    steps = iter(
        [lambda: None, lambda: running.sample(NodeSample(at=utc_now(), cpu=CPU, note="no GPU")), running.end]
    )
    monkeypatch.setattr(status.time, "sleep", lambda _: next(steps, running.end)())
    code, out, err = mayfly("status", OPEN_RUN, "--follow")
    assert code == 0
    booting, used = err.split("\n  use ")  # one sample
    assert "the machine boots" in booting and "48 cores" not in booting
    assert "48 cores" in used and "no GPU" in used
    assert "stopped" in out and "48 cores" not in out


@pytest.mark.parametrize("words", [("status", "--follow"), ("logs", "--follow"), ("pull", "--live")])
def test_a_network_that_is_gone_for_a_while_ends_no_watching(
    running: Running, mayfly: Any, monkeypatch: Any, tmp_path: Path, words: tuple[str, str]
) -> None:
    """As of a laptop that slept."""
    command, flag = words
    verb = {"status": status, "logs": logs, "pull": pull}[command]
    settle, looks = verb.settle_run, []

    def settled(*given: Any, **more: Any) -> Any:
        looks.append(len(looks))
        if 2 <= len(looks) <= 4:
            raise ConnectionFailed("cannot describe the instances", why="EndpointConnectionError")
        return settle(*given, **more)

    steps = iter([*[lambda: None] * 5, running.end])
    monkeypatch.setattr(verb, "settle_run", settled)
    monkeypatch.setattr(verb.time, "sleep", lambda _: next(steps, running.end)())
    out = ("--out", str(tmp_path / "out")) if command == "pull" else ()
    code, _, err = mayfly(command, OPEN_RUN, flag, *out)
    assert code == 0 and len(looks) > 4
    assert err.count("EndpointConnectionError") == 1, "it is said once"


@pytest.mark.parametrize("words", [("--follow",), (OPEN_RUN, "--follow", "--json")])
def test_status_follows_one_run_and_prints_no_json(words: tuple[str, ...], mayfly: Any) -> None:
    assert mayfly("status", *words)[0] == 2


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
        "report.html",
    ]
