"""The smoke test of a device: a tiny model takes a few steps and its loss falls. The node runs it on each before training.

    python -m trainer.train.smoke --device cuda:0

Prints one JSON line, {"device", "ok", "seconds", ...}; exit 0 when the device works, 100 when not.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from typing import Any

STEPS = 8


def main(arguments: list[str] | None = None) -> int:
    """Run the test and print its line."""
    parse = argparse.ArgumentParser(prog="python -m trainer.train.smoke", description="Train a tiny model on one device.")
    parse.add_argument("--device", default="cpu", help="cpu, or cuda:N")
    device = parse.parse_args(arguments).device
    began = time.monotonic()
    try:
        found = smoke(device)
    except (RuntimeError, AssertionError, OSError) as error:  # torch without CUDA asserts; drivers and kernels raise the others
        found = {"ok": False, "error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
    print(json.dumps({"device": device, **found, "seconds": round(time.monotonic() - began, 3)}))
    return 0 if found["ok"] else 100


def smoke(device: str) -> dict[str, Any]:
    """Train a small LSTM on a signal it can see; return {"ok", "first_loss", "last_loss", "name", "memory_gib"}."""
    import torch  # loads after the arguments are parsed

    from trainer.models.lstm import LstmClassifier
    from trainer.train.cpu import use_one_thread

    use_one_thread()
    torch.manual_seed(0)
    model = LstmClassifier(features=4, hidden=16, layers=2, dropout=0.0).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x_TBF = torch.randn(12, 64, 4).to(device)
    labels_B = (x_TBF[-1, :, 0] > 0).float()
    losses = []
    for _ in range(STEPS):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(x_TBF), labels_B)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    cuda = device.startswith("cuda")
    return {
        "ok": math.isfinite(losses[-1]) and losses[-1] < losses[0],
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "name": torch.cuda.get_device_name(device) if cuda else "cpu",
        "memory_gib": round(torch.cuda.get_device_properties(device).total_memory / 2**30, 1) if cuda else None,
    }


if __name__ == "__main__":
    sys.exit(main())
