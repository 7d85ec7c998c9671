"""The keys of a model that may start from a pretrained encoder: another model of the same architecture,
without its head.

    [model]
    encoder = "models/tcn-volatility_ticks_1m.safetensors"     # beside the job file
    encoder_training = "unfreeze"

The encoder's file is identified by its sha256, and names the time until which it has seen bars and labels.
Both are read from the file before anything is planned (`trainer/train/inputs/encoder.py`); reading a job
reads no file. Standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, ClassVar

from trainer.base.settings import ModelSettings, bad_value, setting

FINE_TUNED, FROZEN, UNFREEZE = "fine-tuned", "frozen", "unfreeze"
HEAD = "head."  # begins the names of the weights that are not taken from the encoder
_BLOCK = re.compile(r"blocks\.(\d+)\.")
_NANOSECONDS = 10**9


@dataclass(frozen=True, kw_only=True)
class PretrainedSettings(ModelSettings):
    """Settings of a model that may start from a pretrained encoder. Its network has `blocks`, and a `head` at
    its end.
    """

    # Of an architecture: encoder and job may differ in these.
    own_of_a_head: ClassVar[tuple[str, ...]] = ("outputs", "dropout")

    encoder: str = setting(
        "", "Model file to start from, all but its head: a model of the same sizes and inputs."
    )
    encoder_training: str = setting(
        FINE_TUNED,
        "What trains: all of it (fine-tuned), only the head (frozen), or block by block from the head on"
        " (unfreeze).",
        choices=(FINE_TUNED, FROZEN, UNFREEZE),
    )
    unfreeze_steps: int = setting(
        200, "With unfreeze: optimizer steps from one block to the next.", least=1, most=1_000_000_000
    )
    encoder_sha256: str = setting(
        "", "Its hash: written by Mayfly; yours, if given, must be that of the file."
    )
    encoder_until: str = setting(
        "", "End of the bars and labels that it was trained and chosen by: written by Mayfly."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.encoder_sha256 and not re.fullmatch(r"[0-9a-f]{64}", self.encoder_sha256):
            raise bad_value("model.encoder_sha256", self.encoder_sha256, "a sha256: 64 hexadecimal digits")
        if self.encoder_until:
            nanoseconds_of(self.encoder_until)

    @property
    def trains_head_alone(self) -> bool:
        """Return whether everything but the head is frozen to the end."""
        return bool(self.encoder) and self.encoder_training == FROZEN


def stage_of(weight: str, *, num_blocks: int) -> int:
    """Return when a weight of a network begins to train: 0 with the head, then block by block, the last one
    first.

    The weights before the first block, and the norm behind the last one, come last.
    """
    if weight.startswith(HEAD):
        return 0
    block = _BLOCK.match(weight)
    return num_blocks - int(block[1]) if block else num_blocks + 1


def encoder_of(model: Any) -> PretrainedSettings | None:
    """Return the settings of a model that starts from a pretrained encoder; None for any other."""
    return model if isinstance(model, PretrainedSettings) and model.encoder else None


def nanoseconds_of(text: str, *, key: str = "model.encoder_until") -> int:
    """Return a time, such as 2024-01-31T00:00:00Z, in nanoseconds; a fraction of a second is rounded up.
    Raises UsageError, which names the key.
    """
    try:
        time = datetime.fromisoformat(re.sub(r"(\.\d{6})\d*Z$", r"\1Z", text))
        if time.tzinfo is None or not 1678 <= time.year <= 2261:
            raise ValueError(text)
    except ValueError as error:
        raise bad_value(key, text, "a time, such as 2024-01-31T00:00:00Z") from error
    whole = int(time.astimezone(timezone.utc).replace(microsecond=0).timestamp())
    return (whole + ("." in text)) * _NANOSECONDS
