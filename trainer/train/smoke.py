"""Smoke-test a device: train a tiny model for a few steps and check that its loss falls. The node does so
before training.

    python -m trainer.train.smoke --device cuda:0
    python -m trainer.train.smoke --import  # only import what the test needs

Prints one JSON line, {"device", "ok", "seconds", ...}; exit 0 if the device works, else 100.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

STEPS = 8
TRIED_SECONDS = 180.0  # for a device that is tried during a training: torch is loaded within seconds then


def main(arguments: list[str] | None = None) -> int:
    """Run the test and print its line."""
    parse = argparse.ArgumentParser(
        prog="python -m trainer.train.smoke", description="Train a tiny model on one device."
    )
    parse.add_argument("--device", default="cpu", help="cpu, or cuda:N")
    parse.add_argument("--import", action="store_true", dest="only_import", help="only import")
    options = parse.parse_args(arguments)
    device = "none" if options.only_import else options.device
    began = time.monotonic()
    try:
        report = only_import() if options.only_import else smoke(device)
    except (RuntimeError, AssertionError, OSError) as error:
        # torch without CUDA asserts; drivers and kernels raise the others.
        report = {"ok": False, "error": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}
    print(json.dumps({"device": device, **report, "seconds": round(time.monotonic() - began, 3)}))
    return 0 if report["ok"] else 100


def tried(device: str, *, seconds: float = TRIED_SECONDS) -> str:
    """Test a device in a process of its own; return why it fails, or ''."""
    words = [sys.executable, "-m", "trainer.train.smoke", f"--device={device}"]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        output, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        child.kill()  # and no wait: a driver that hangs may keep it for ever
        return f"its smoke test hangs (no answer within {seconds:.0f} s)"
    if child.returncode == 0:
        return ""
    last = (output.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
    with suppress(ValueError, AttributeError):
        last = str(json.loads(last).get("error") or "its loss does not fall")
    if "out of memory" in last:  # other workers hold it: that says nothing of the device
        return ""
    return f"its smoke test fails: {last[:300]}"


def only_import() -> dict[str, Any]:
    """Import torch, and the modules that train with it."""
    import trainer.train.packs.adamw  # noqa: F401

    return {"ok": True}


def smoke(device: str) -> dict[str, Any]:
    """Train a small default model on a learnable signal; return {"ok", "first_loss", ...}."""
    import torch  # loads after the arguments are parsed

    from trainer.job.reading import job_from
    from trainer.train.cpu import use_one_thread
    from trainer.train.packs.adamw import AdamW
    from trainer.train.packs.pack import Member, loss_for, new_model

    use_one_thread()
    job = job_from({"model": {"hidden": 16, "dropout": 0.0}})
    x_TBF = torch.randn(12, 64, 4, generator=torch.Generator().manual_seed(0)).to(device)
    labels_BK = (x_TBF[-1, :, :1] > 0).float()
    nothing = torch.zeros(4, device=device)
    member = Member(name="smoke", rows_TF=x_TBF[0], labels_TK=labels_BK, mean_F=nothing, std_F=nothing)
    model, loss_of = new_model(member, job), loss_for(job)
    optimizer = AdamW(model.parameters(), rate=1e-2, weight_decay=0.0)
    losses = []
    for _ in range(STEPS):
        loss = loss_of(model(x_TBF), labels_BK).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    gpu = torch.cuda.get_device_properties(device) if device.startswith("cuda") else None
    return {
        "ok": math.isfinite(losses[-1]) and losses[-1] < losses[0],
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "name": gpu.name if gpu else "cpu",
        "memory_gib": round(gpu.total_memory / 2**30, 1) if gpu else None,
    }


if __name__ == "__main__":
    sys.exit(main())
