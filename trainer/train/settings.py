"""The `[train]` table of a job: how its models are trained. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.settings import bad_value, check_values, setting

AUTO = "auto"  # of `batch`, whose number is 0 then
BATCH_OF_THE_MODEL = -1  # `batch` where a job names none: the job puts the model's default in its place
STRATEGIES = ("auto", "sequential", "streams", "fused")
TUNE = ("auto", "never", "always")
SCHEDULES = ("constant", "cosine")
PRECISIONS = ("auto", "fp32", "bf16", "fp16")


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """How models are trained. What changes the speed and not the model says so."""

    epochs: int = setting(15, "Passes over the training windows, at most.", least=1, most=100_000)
    batch: int = setting(
        BATCH_OF_THE_MODEL,
        "Windows, or chunks, in one optimizer step, by default the model's; 0 or auto: the tuner's, which changes the model.",
        most=16_777_216,
    )
    learning_rate: float = setting(1e-3, "AdamW's learning rate.", above=0, most=100)
    warmup_steps: int = setting(
        0, "Optimizer steps over which the learning rate rises from nothing.", least=0, most=100_000_000
    )
    schedule: str = setting(
        "constant",
        "Learning rate after the warm-up: " + ", ".join(SCHEDULES) + " (to zero at the last epoch's end).",
        choices=SCHEDULES,
    )
    weight_decay: float = setting(1e-2, "AdamW's weight decay.", least=0, most=100)
    clip_norm: float = setting(1.0, "Gradient norm above which a step is scaled down.", above=0, most=1e9)
    ema: float = setting(
        0.0,
        "Decay a step of a moving average of the weights, which is validated and kept in their place; 0: none.",
        least=0,
        below=1,
    )
    patience: int = setting(3, "Epochs without a better validation loss before a model stops.", least=1, most=100_000)
    strategy: str = setting(
        "auto",
        "How a worker trains its models: " + ", ".join(STRATEGIES) + ". It changes the speed, not the model.",
        choices=STRATEGIES,
    )
    pack: int = setting(0, "Models that one worker trains together; 0: one on a CPU, eight on a GPU.", least=0, most=4_096)
    micro_batch: int = setting(
        0, "Windows, or chunks, in one slice of a batch, for speed and memory; 0: by device.", least=0, most=16_777_216
    )
    tune: str = setting(
        "auto",
        "Whether a trial of 12 s finds the fastest way before a training of a shape that is new here: auto (before an "
        "estimated run of ten minutes or more), never, or always.",
        choices=TUNE,
    )
    precision: str = setting(
        "auto",
        "Numbers of matrix products: " + ", ".join(PRECISIONS) + "; auto goes by the chip, fp32 on a CPU.",
        choices=PRECISIONS,
    )
    activation_checkpointing: bool = setting(False, "Compute activations again in the backward pass: less memory, more time.")
    trace_steps: int = setting(
        0, "Steps that each worker records with torch's profiler, to OUT/trace; 0: none.", least=0, most=10_000
    )
    checkpoint_seconds: int = setting(
        60, "Seconds of training between checkpoints of a model; 0: none.", least=0, most=1_000_000
    )
    stage_gib: float = setting(
        1.0,
        "GiB of host memory in which a worker may prepare the next symbol while it trains; 0: it does not.",
        least=0,
        most=16_384,
    )
    seed: int = setting(0, "Seed of weights, batch order and dropout.", least=0, most=4_294_967_295)
    seeds: int = setting(1, "Models of each symbol and fold: with this seed, the next, and so on.", least=1, most=1_000)
    retries: int = setting(1, "Times a model whose worker died is tried again.", least=0, most=100)

    def __post_init__(self) -> None:
        check_values("train", self)
        if self.batch < 0 and self.batch != BATCH_OF_THE_MODEL:
            raise bad_value("train.batch", self.batch, "0 or more")
