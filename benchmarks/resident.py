"""Time forecasts by a model that stays in memory: 20 symbols in one batch, their features ready. Ours against
onnxruntime, as a ratio, in one run on one thread.

    python -m benchmarks.resident            each family at its usual size
    python -m benchmarks.resident --quick    small sizes (a minute, most of it the exporter)

Needs `mayfly[onnx]`. Figures are medians of interleaved rounds, in CPU time of the process, which other load
on the machine hardly changes; the ratio is how many times longer ours takes: above one, onnxruntime is
faster. Outputs are compared first (`write_onnx`). Writes benchmarks/results/resident.json.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.rounds import interleave, machine, median, ratio, write
from tests.models import card_of
from trainer.models import MODELS, network_of
from trainer.store.weights import save
from trainer.train.cpu import use_one_thread
from trainer.train.packs.tensors import tensors_of
from trainer.train.predict.loaded import LoadedModel, load
from trainer.train.predict.onnx_file import seeded_inputs, write_onnx

SYMBOLS = 20
ROUNDS, QUICK_ROUNDS, WARM_UP = 300, 30, 10
TARGETS = {"lstm": "direction", "mlp": "direction", "tcn": "volatility", "transformer": "direction"}
QUICK: dict[str, dict[str, Any]] = {
    "lstm": {"hidden": 8, "layers": 1},
    "mlp": {"hidden": 8},
    "tcn": {"width": 8, "blocks": 2},
    "transformer": {"preset": "tiny", "lookback": 64},
}
FULL: dict[str, dict[str, Any]] = {
    "lstm": {},
    "mlp": {},
    "tcn": {"width": 32, "blocks": 6},
    "transformer": {"preset": "small", "lookback": 64},
}


def main() -> None:
    """Measure, print and write the figures."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--quick", action="store_true")
    parse.add_argument("--out", type=Path)
    options = parse.parse_args()
    use_one_thread()
    sizes = QUICK if options.quick else FULL
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(name, keys, Path(folder), rounds) for name, keys in sizes.items()]
    for one in rows:
        took = ", ".join(f"{name} {ms} ms" for name, ms in one["ms"].items())
        print(f"  {one['model']}: {took}, {one['ratio']}x; {one['difference']:.0e} apart")
    print("wrote", write("resident", {"machine": machine(), "symbols": SYMBOLS, "models": rows}, options.out))


def measure(family: str, keys: dict[str, Any], folder: Path, rounds: int) -> dict[str, Any]:
    """Return the milliseconds of a batch by both, and how many times longer ours takes."""
    import onnxruntime

    model, path = resident_model(family, keys, folder), folder / f"{family}.onnx"
    parity = write_onnx(model, path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    inputs = seeded_inputs(model, SYMBOLS)
    arrays = {name: tensor.numpy() for name, tensor in inputs.items()}

    @torch.inference_mode()
    def ours() -> None:
        model.module(**inputs).numpy()

    contenders = {"ours": ours, "onnxruntime": lambda: session.run(["outputs"], arrays)}
    timed = {name: partial(batches_per_second, run) for name, run in contenders.items()}
    interleave(timed, rounds=WARM_UP)
    rates = interleave(timed, rounds=rounds)
    return {
        "model": family,
        "bars": model.card.lookback,
        "weights": sum(weight.numel() for weight in model.module.parameters()),
        "ms": {name: round(1000 / median(rates, name), 3) for name in rates},
        "ratio": round(ratio(rates, "onnxruntime", "ours"), 2),
        "difference": parity.share,
    }


def resident_model(family: str, keys: dict[str, Any], folder: Path) -> LoadedModel:
    """Return a model of random weights, loaded from its file."""
    settings = MODELS[family](**keys)
    card = card_of(family, TARGETS[family])
    architecture = settings.architecture(features=len(card.features), outputs=1)
    card = replace(card, architecture=architecture, lookback=settings.bars_seen)
    torch.manual_seed(0)
    save(folder / f"{family}.safetensors", tensors_of(network_of(family).build(architecture)), card)
    return load(folder / f"{family}.safetensors")


def batches_per_second(run: Callable[[], Any]) -> float:
    """Return the rate of one batch, by a clock that stands while others have the core."""
    began = time.process_time()
    run()
    return 1 / (time.process_time() - began)


if __name__ == "__main__":
    main()
