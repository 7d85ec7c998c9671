"""The `[train]` and `[expert]` tables of a job: how its models are trained. Standard library only."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trainer.base.settings import bad_value, check_limits, setting
from trainer.models.pretrained import nanoseconds_of

AUTO = "auto"  # of `batch`, whose number is 0 then
BATCH_OF_THE_MODEL = -1  # `batch` if a job names none: the job replaces it by the model's default
STRATEGIES = ("auto", "sequential", "streams", "fused")
TUNE = ("auto", "never", "always")
SCHEDULES = ("constant", "cosine")
RATE_SCALINGS = ("none", "linear", "sqrt")
COMPILE = ("auto", "never", "always")
DISTRIBUTED = ("auto", "never", "always")
PRECISIONS = ("auto", "fp32", "bf16", "fp16")


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """The `[train]` table: what determines a training's models, and how it is protected."""

    epochs: int = setting(15, "Passes over the training windows, at most.", least=1, most=100_000)
    batch: int = setting(
        BATCH_OF_THE_MODEL,
        "Windows or chunks per optimizer step (default: by model); 0 or auto: the trial chooses, which"
        " changes the model.",
        most=16_777_216,
    )
    learning_rate: float = setting(1e-3, "AdamW's learning rate.", above=0, most=100)
    warmup_steps: int = setting(
        0, "Optimizer steps over which the learning rate rises from zero.", least=0, most=100_000_000
    )
    warmup_epochs: float = setting(
        0.0, "The same in epochs, such as 0.5, instead of train.warmup_steps.", least=0, most=100_000
    )
    steps_per_epoch: int = setting(
        0,
        "Optimizer steps after which an epoch ends, on windows drawn anew for each; 0: once through all.",
        least=0,
        most=100_000_000,
    )
    schedule: str = setting(
        "constant",
        "Learning rate after the warm-up: " + ", ".join(SCHEDULES) + " (to zero at the last epoch's end).",
        choices=SCHEDULES,
    )
    rate_scaling: str = setting(
        "none",
        "Scaling of the learning rate by batch / expert.rate_batch: " + ", ".join(RATE_SCALINGS) + ".",
        choices=RATE_SCALINGS,
    )
    weight_decay: float = setting(
        1e-2, "AdamW's weight decay of matrices and kernels; biases and norms have none.", least=0, most=100
    )
    clip_norm: float = setting(1.0, "Gradient norm above which a step is scaled down.", above=0, most=1e9)
    ema: float = setting(
        0.0,
        "Decay per step of a moving average of the weights, which is validated and saved instead of them; 0:"
        " none.",
        least=0,
        below=1,
    )
    patience: int = setting(
        3, "Epochs without a better validation loss after which a model stops.", least=1, most=100_000
    )
    precision: str = setting(
        "auto",
        "Number format of matrix products: " + ", ".join(PRECISIONS) + "; auto: by chip, fp32 on a CPU"
        " and for a recurrent model of up to 128 units.",
        choices=PRECISIONS,
    )
    checkpoint_seconds: int = setting(
        120,
        "Seconds of training between checkpoints of a model; 0: none. On an instance 96 at most, unless"
        " they would cost over 1 % of its price; a smaller number is kept at any price.",
        least=0,
        most=1_000_000,
    )
    distributed: str = setting(
        "auto",
        "Train one model on all devices together: auto (a panel's), never, or always. Changes the speed, not"
        " the model.",
        choices=DISTRIBUTED,
    )
    seed: int = setting(0, "Seed of weights, batch order and dropout.", least=0, most=4_294_967_295)
    seeds: int = setting(
        1, "Models per symbol and fold, with consecutive seeds from train.seed on.", least=1, most=1_000
    )
    init: str = setting(
        "", "Model file to start from, head and all: a model of the same sizes, inputs and target."
    )
    init_sha256: str = setting("", "Its hash: written by Mayfly; yours, if given, must be that of the file.")
    init_until: str = setting(
        "", "End of the bars and labels that it was trained and chosen by: written by Mayfly."
    )
    ensemble: bool = setting(
        False,
        "Make one model of the seeds of a symbol and fold: its forecast is the mean of theirs.",
    )
    refit: bool = setting(
        False,
        "Once a model is scored, train it again on all bars, for the epochs that validation chose; that is"
        " the model to use.",
    )
    retries: int = setting(1, "Retries of a model whose worker died.", least=0, most=100)

    def __post_init__(self) -> None:
        check_limits("train", self)
        if self.batch < 0 and self.batch != BATCH_OF_THE_MODEL:
            raise bad_value("train.batch", self.batch, "0 or more")
        if self.warmup_steps and self.warmup_epochs:
            raise bad_value("train.warmup_epochs", self.warmup_epochs, "0 where train.warmup_steps is given")
        if self.init_sha256 and not re.fullmatch(r"[0-9a-f]{64}", self.init_sha256):
            raise bad_value("train.init_sha256", self.init_sha256, "a sha256: 64 hexadecimal digits")
        if self.init_until:
            nanoseconds_of(self.init_until, key="train.init_until")
        if self.ensemble and self.seeds < 2:
            raise bad_value("train.ensemble", self.ensemble, "false unless train.seeds is 2 or more")

    @property
    def members(self) -> int:
        """Return how many networks one model has: the mean of their forecasts is the model's."""
        return self.seeds if self.ensemble else 1

    @property
    def models_of_a_fold(self) -> int:
        """Return how many models each symbol and fold gets."""
        return self.seeds // self.members


@dataclass(frozen=True, kw_only=True)
class ExpertSettings:
    """The `[expert]` table. The first three change the model; the others only speed, memory or what is
    recorded; the first of these are chosen where they are left open (`trainer.train.tuning`).
    """

    rate_batch: int = setting(
        256, "Batch for which train.learning_rate is given, if it is scaled.", least=1, most=16_777_216
    )
    restart_epochs: int = setting(
        0, "Epochs after which a cosine restarts at the full rate; 0: it never does.", least=0, most=100_000
    )
    restart_factor: int = setting(
        1, "Factor by which each cosine is longer than the one before.", least=1, most=100
    )
    strategy: str = setting(
        "auto",
        "Strategy by which a worker trains its models: "
        + ", ".join(STRATEGIES)
        + ". Changes the speed, not the model.",
        choices=STRATEGIES,
    )
    pack: int = setting(
        0,
        "Models that a worker trains together; 0: one on a CPU (but eight agents), on a GPU as many as its"
        " trial and memory take.",
        least=0,
        most=4_096,
    )
    micro_batch: int = setting(
        0,
        "Windows or chunks per slice of a batch; changes speed and memory; 0: by device.",
        least=0,
        most=16_777_216,
    )
    threads: int = setting(
        0,
        "Threads that each model trains with on a CPU; sums over another number round differently; 0: by its"
        " cores.",
        least=0,
        most=1_024,
    )
    tune: str = setting(
        "auto",
        "Compare the strategies for a few seconds at the start of a training, and use the fastest that agrees"
        " with plain modules: auto (on a GPU), never, or always (on a CPU, too).",
        choices=TUNE,
    )
    activation_checkpointing: bool = setting(
        False, "Recompute activations in the backward pass: less memory, more time."
    )
    compile: str = setting(
        "auto",
        "Compile each block of the model: auto (on GPUs that train one model together), never, or always."
        " Changes the speed.",
        choices=COMPILE,
    )
    trace_steps: int = setting(
        0,
        "Steps that each worker records with torch's profiler, to OUT/trace; 0: none.",
        least=0,
        most=10_000,
    )

    def __post_init__(self) -> None:
        check_limits("expert", self)
