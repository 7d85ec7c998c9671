"""The smoke test of an image: driver, torch, a matrix product with a known result, an all-reduce over all
GPUs, training.

    PYTHONPATH=CODE PYTHON ami/smoke_test.py [--cpu PROCESSES]

CODE holds the package `trainer`, whose own smoke test, the one that each node runs, does the training. With
--cpu so many processes stand in for GPUs, over gloo. Stages go to stderr, one JSON line to stdout; exit 0
when all of it works, else 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SECONDS = 600.0  # for everything: a first import of torch from a cold volume takes minutes
SIZE = 512  # of the matrices: small whole numbers, so that every sum is exact in fp32, TF32 included
QUERY = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")


def main(arguments: list[str] | None = None) -> int:
    """Run the test and print its result."""
    parser = argparse.ArgumentParser(prog="ami/smoke_test.py", description=__doc__.splitlines()[0])
    in_place = "processes in the place of GPUs"
    parser.add_argument("--cpu", type=int, default=0, metavar="PROCESSES", help=in_place)
    # of a process that this file starts
    parser.add_argument("--rank", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--of", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--store", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    try:
        if options.rank >= 0:
            rank(options.rank, options.of, store=options.store, cpu=bool(options.cpu))
            return 0
        report = run(options.cpu)
    except (RuntimeError, AssertionError, OSError, ImportError, subprocess.SubprocessError) as error:
        if options.rank >= 0:
            say(f"failed: {type(error).__name__}: {error}")
            return 1
        report = {"ok": False, "error": f"{type(error).__name__}: {error}"}
    print(json.dumps(report))
    return 0 if report["ok"] else 1


def run(processes: int) -> dict[str, object]:
    """Look at the driver, then start one process for each GPU. Raises RuntimeError for what does not work."""
    began = time.monotonic()
    gpus = [] if processes else driver()
    if not processes and not gpus:
        raise RuntimeError("the driver shows no GPU")
    count = processes or len(gpus)
    with tempfile.TemporaryDirectory(prefix="mayfly-smoke-") as folder:
        command = [sys.executable, str(Path(__file__).resolve())]
        command += ["--of", str(count), "--store", f"{folder}/store"]
        command += ["--cpu", str(processes)] if processes else []
        ranks = [subprocess.Popen([*command, "--rank", str(number)]) for number in range(count)]
        wait(ranks, began + SECONDS)
    return {"ok": True, "devices": gpus or ["cpu"] * count, "seconds": round(time.monotonic() - began, 1)}


def driver() -> list[str]:
    """Return the name and driver version of each GPU. Raises OSError or SubprocessError if the driver does
    not answer.
    """
    shown = subprocess.run(QUERY, capture_output=True, text=True, check=True, timeout=120).stdout
    gpus = [line.strip() for line in shown.splitlines() if line.strip()]
    say(f"driver: {len(gpus)} GPUs: {'; '.join(gpus)}")
    return gpus


def wait(ranks: list[subprocess.Popen[bytes]], ends: float) -> None:
    """Wait for all processes; the first that fails, or the end of the time, ends the others. Raises
    RuntimeError.
    """
    failed = ""
    while not failed and any(one.poll() is None for one in ranks):
        codes = {number: one.returncode for number, one in enumerate(ranks) if one.poll()}
        failed = next((f"process {number} ended with {code}" for number, code in codes.items()), "")
        if not failed and time.monotonic() > ends:
            failed = f"not done after {SECONDS:.0f} s"
        time.sleep(0.05)
    for one in ranks:
        if one.poll() is None:
            one.kill()
        one.wait()
    codes = {number: one.returncode for number, one in enumerate(ranks) if one.returncode}
    if failed or codes:
        raise RuntimeError(failed or f"processes ended with {codes}")


def rank(number: int, of: int, *, store: str, cpu: bool) -> None:
    """Test one device, together with the others. Raises RuntimeError or AssertionError for what does not
    work.
    """
    if cpu:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch  # late: what starts the processes needs none
    import torch.distributed as distributed

    device = "cpu" if cpu else f"cuda:{number}"
    if not cpu:
        if not torch.cuda.is_available():
            raise RuntimeError(f"torch {torch.__version__} finds no CUDA device")
        if torch.cuda.device_count() != of:
            raise RuntimeError(f"torch finds {torch.cuda.device_count()} GPUs, the driver {of}")
        torch.cuda.set_device(number)
    say(f"{device}: torch {torch.__version__}")

    whole = (torch.arange(SIZE)[:, None] * 3 + torch.arange(SIZE)[None, :]) % 7
    product = whole.to(device, torch.float32) @ whole.T.to(device, torch.float32)
    if not torch.equal(product.cpu().to(torch.int64), whole @ whole.T):
        raise RuntimeError(f"{device} multiplies matrices wrongly")
    say(f"{device}: matrix product")

    backend = "gloo" if cpu else "nccl"
    distributed.init_process_group(backend, init_method=f"file://{store}", rank=number, world_size=of)
    total = torch.full((1 << 16,), float(number + 1), device=device)
    distributed.all_reduce(total)
    if not torch.equal(total.cpu(), torch.full((1 << 16,), of * (of + 1) / 2)):
        raise RuntimeError(f"{device} has a wrong sum after the all-reduce")
    distributed.destroy_process_group()
    say(f"{device}: all-reduce over {of}")

    from trainer.train.smoke import smoke

    report = smoke(device)
    if not report["ok"]:
        losses = f"{report['first_loss']} to {report['last_loss']}"
        raise RuntimeError(f"a tiny model does not learn on {device}: {losses}")
    say(f"{device}: training")


def say(text: str) -> None:
    """Print a line of progress."""
    print(f"smoke test: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
