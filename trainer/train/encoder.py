"""Start a network from a pretrained encoder: check and pin its file, load its weights, and unfreeze them in stages.

The launcher checks and pins at the desk, without torch; a training does so again. A head keeps the encoder's scalers for the
series that the encoder knows: its weights were trained on inputs of that scale.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.artifacts.card import Card, CardSeries, read_card
from trainer.data.feature_names import FEATURES_VERSION
from trainer.data.timeframes import step_of
from trainer.errors import DataError, UsageError
from trainer.job import Job
from trainer.pretrained import FROZEN, HEAD, UNFREEZE, PretrainedSettings, encoder_of, nanoseconds_of, stage_of

if TYPE_CHECKING:
    import torch
    from torch import nn

_MOST_TIME = 40  # characters of a time in a card
_NANOSECONDS = 10**9


def pinned(job: Job) -> Job:
    """Return the job with the hash of its encoder and the time until which that has seen bars; the same job without one.

    Raises UsageError for an encoder of another architecture, or another file than the job pins, DataError for one that can't
    be read.
    """
    encoder = encoder_of(job.model)
    if encoder is None:
        return job
    path = Path(encoder.encoder)
    card, sha256 = _read(path)
    if encoder.encoder_sha256 not in ("", sha256):
        why = f"its sha256 is {sha256[:12]}..., the job pins {encoder.encoder_sha256[:12]}..."
        raise UsageError(f"the encoder {path} is another file", why=why, do="Give that file, or leave encoder_sha256 out.")
    _refuse_other_network(card, encoder, path)
    return replace(job, model=replace(encoder, encoder_sha256=sha256, encoder_until=until_of(card, path)))


def check_inputs(job: Job) -> None:
    """Raise DataError if the job's encoder was trained on other inputs. `job` has the timeframe of its data."""
    encoder = encoder_of(job.model)
    if encoder is None:
        return
    path = Path(encoder.encoder)
    card, _ = _read(path)
    do = "Pretrain on the inputs of this job, or give this job those of the encoder."
    if card.timeframe != job.data.timeframe:
        why = f"it was trained on bars of {card.timeframe}, this job has bars of {job.data.timeframe}"
        raise DataError(f"the encoder {path} is of another timeframe", why=why, do=do)
    scalers = [card.panel.scaler_of if card.panel else "", job.data.scaler if job.data.panel else ""]
    if scalers[0] != scalers[1]:
        theirs, ours = (f"those of a panel, scaled as {name}" if name else "those of single series" for name in scalers)
        raise DataError(f"the encoder {path} has another scaler", why=f"its inputs are {theirs}, this job's {ours}", do=do)
    inputs = list(job.data.inputs)
    if (card.features, card.columns) != (inputs, list(job.data.columns)):
        odd = sorted(set(card.features) ^ set(inputs))
        why = f"it reads {len(card.features)} inputs, this job {len(inputs)}"
        why += f"; only one of them has {', '.join(odd[:6])}{' ...' if len(odd) > 6 else ''}" if odd else ", in another order"
        raise DataError(f"the encoder {path} was trained on other features", why=why, do=do)
    if len(inputs) > len(job.data.columns) and card.features_version != FEATURES_VERSION:
        why = f"they were of version {card.features_version}, this Mayfly computes {FEATURES_VERSION}"
        raise DataError(f"the encoder {path} was trained on other features", why=why, do="Pretrain again.")


def until_of(card: Card, path: Path) -> str:
    """Return the end of the bars and labels by which a model was trained and chosen: of its validation, over all series.

    No label crosses the end of its span. Raises DataError for a card that doesn't say.
    """
    ends = [end for one in card.series if (end := _end_of(one, card.timeframe))]
    if not ends or (len(ends) < len(card.series) and not card.panel):  # a series of a panel may have ended before
        why = "its card does not say on which bars it was trained"
        raise DataError(f"{path} can't be an encoder", why=why, do="Give a model of Mayfly's training.")
    return max(ends, key=nanoseconds_of)


def portable(job: Job) -> Job:
    """Return the job for another machine: its encoder without a folder."""
    encoder = encoder_of(job.model)
    return replace(job, model=replace(encoder, encoder=Path(encoder.encoder).name)) if encoder else job


def parent_of(job: Job) -> dict[str, str]:
    """Return what a card says of the model that this one started from; {} of a model that began with drawn weights."""
    encoder = encoder_of(job.model)
    if encoder is None:
        return {}
    card, sha256 = _read(Path(encoder.encoder))
    return {
        "model": card.model,
        "sha256": sha256,
        "until": encoder.encoder_until,
        "training": encoder.encoder_training,
        "created_at": card.created_at,
    }


def known_scaler(job: Job, symbol: str = "") -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return mean and deviation (F,) float32 of the inputs of a series, as the job's encoder was trained on them.

    None without an encoder, and for a series that one which is of no panel doesn't know. An encoder of a panel has one scaler
    for every other series, and for the empty symbol.
    """
    encoder = encoder_of(job.model)
    if encoder is None:
        return None
    import torch  # late: a launcher has none

    card, _ = _read(Path(encoder.encoder))
    known = [one.scaler for one in card.series if one.symbol == symbol]
    if not known and card.panel is not None:
        known = [card.panel.scaler]
    return (torch.tensor(known[0]["mean"]), torch.tensor(known[0]["std"])) if known else None


def start_from(network: nn.Module, job: Job, *, series: Sequence[str]) -> None:
    """Put the encoder's weights into a new network of the job, all but the head's, and freeze what does not train at all.

    `series` are the symbols of the network's piece, in order: embeddings of series are taken over by symbol. Does nothing
    for a job without an encoder. Raises DataError for a file whose tensors are not those of its card.
    """
    encoder = encoder_of(job.model)
    if encoder is None:
        return
    from trainer.artifacts.weights import load_tensors  # late, as these load torch
    from trainer.models import network_of
    from trainer.train.load_model import unfit

    path = Path(encoder.encoder)
    card, sha256 = _read(path)
    if sha256 != encoder.encoder_sha256:
        raise DataError(f"the encoder {path} has changed", why="its sha256 is another one", do="Start again.")
    tensors: Mapping[str, torch.Tensor] = load_tensors(path)
    if job.model.reads_context:
        place = {one.symbol: one.number if card.panel else number for number, one in enumerate(card.series, 1)}
        numbers = [place.get(symbol, 0) for symbol in series]
        tensors = network_of(job.model.name).for_series(tensors, numbers, like=network)
    for name, weight in network.named_parameters():
        if name.startswith(HEAD):
            continue
        tensor = tensors.get(name)
        if tensor is None or tensor.shape != weight.shape or not tensor.is_floating_point():
            raise unfit(path, f"weight {name} is not that of its architecture")
        weight.data.copy_(tensor)
        weight.requires_grad_(encoder.encoder_training != FROZEN)


def drop_early_gradients(network: nn.Module, job: Job, *, batches: int) -> None:
    """Drop the gradients of weights whose time to train has not come in the step after so many: no optimizer moves them.

    They are computed, so that a network that several ranks share has the same gradients in each step.
    """
    encoder = encoder_of(job.model)
    if encoder is None or encoder.encoder_training != UNFREEZE:
        return
    count = len(network.get_submodule("blocks")._modules)
    if batches >= encoder.unfreeze_steps * (count + 1):
        return
    for name, weight in network.named_parameters():
        if batches < encoder.unfreeze_steps * stage_of(name, num_blocks=count):
            weight.grad = None


def _read(path: Path) -> tuple[Card, str]:
    """Return card and sha256 of an encoder's file, read again only if it was written since. Raises DataError."""
    try:
        status = path.stat()
    except OSError as error:
        do = "Check model.encoder: a job file names it from its own folder. mayfly pull fetches models."
        raise DataError(f"the encoder {path} can't be read", why=str(error.strerror), do=do) from error
    return _read_once(path, status.st_mtime_ns, status.st_size)


@cache
def _read_once(path: Path, changed_at: int, size: int) -> tuple[Card, str]:
    card = read_card(path)
    try:
        with path.open("rb") as file:
            return card, hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"the encoder {path} can't be read", why=str(error.strerror), do="Check its permissions.") from error


def _refuse_other_network(card: Card, encoder: PretrainedSettings, path: Path) -> None:
    """Raise UsageError for an encoder that is not the job's network but for its head."""
    if card.family != encoder.name:
        why = f"it is a {card.family}, and model.name is {encoder.name}"
        do = f"Set model.name to {card.family}, or give another encoder."
        raise UsageError(f"the encoder {path} is of another architecture", why=why, do=do)
    theirs, outputs = card.architecture, card.architecture.get("outputs")
    features = len(card.features)
    encoder.check_architecture(
        theirs, features=features, outputs=outputs if type(outputs) is int else 1, bars_seen=card.lookback
    )
    ours = encoder.architecture(features=features, outputs=1)
    others = [key for key in ours if key not in encoder.own_of_a_head and ours[key] != theirs.get(key)]
    if others:
        pairs = ", ".join(f"{key} is {theirs.get(key)} there and {ours[key]} here" for key in others[:4])
        do = "Give [model] the sizes of the encoder."
        raise UsageError(f"the encoder {path} is of another architecture", why=pairs, do=do)


def _end_of(series: CardSeries, timeframe: str) -> str | None:
    """Return the end of a series' validation, or None if its card doesn't have it."""
    span = series.splits.get("validation")
    last = span.get("last") if isinstance(span, dict) else None
    if not isinstance(last, str) or len(last) > _MOST_TIME:
        return None
    try:
        end = nanoseconds_of(last) + step_of(timeframe)
    except (UsageError, DataError):
        return None
    seconds = -(-end // _NANOSECONDS)
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
