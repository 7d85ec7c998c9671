"""Start a network from a pretrained encoder: check and pin its file, load its weights, and unfreeze them in
stages.

The launcher checks and pins it at the desk, without torch; training does so again. The new model keeps the
encoder's scalers for the series that the encoder was trained on, since its weights expect inputs of that
scale.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.base.errors import DataError, UsageError
from trainer.base.files import open_plain
from trainer.data.feature_names import FEATURES_VERSION
from trainer.data.timeframes import step_of
from trainer.job.job import Job
from trainer.models.pretrained import (
    FROZEN,
    HEAD,
    UNFREEZE,
    PretrainedSettings,
    encoder_of,
    nanoseconds_of,
    stage_of,
)
from trainer.store.card import Card, CardSeries, read_card

if TYPE_CHECKING:
    import torch
    from torch import nn

_MOST_TIME = 40  # characters of a time in a card
_NANOSECONDS = 10**9


def pinned(job: Job) -> Job:
    """Return the job with its encoder's hash and the end of the bars that the encoder has seen; a job without
    one unchanged.

    Raises UsageError for an encoder of another architecture or a file that the job does not pin, DataError
    for an unreadable file.
    """
    encoder = encoder_of(job.model)
    if encoder is None:
        return job
    path = Path(encoder.encoder)
    card, sha256 = _read(path)
    if encoder.encoder_sha256 not in ("", sha256):
        why = f"its sha256 is {sha256[:12]}..., the job pins {encoder.encoder_sha256[:12]}..."
        raise UsageError(
            f"the encoder {path} is another file",
            why=why,
            do="Give that file, or leave model.encoder_sha256 out.",
        )
    _refuse_other_network(card, encoder, path)
    return replace(job, model=replace(encoder, encoder_sha256=sha256, encoder_until=until_of(card, path)))


def check_inputs(job: Job) -> None:
    """Raise DataError if the job's encoder was trained on other inputs. `job` has the timeframe of
    its data.
    """
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
        single = "those of single series"
        theirs, ours = (f"those of a panel, scaled as {name}" if name else single for name in scalers)
        why = f"its inputs are {theirs}, this job's {ours}"
        raise DataError(f"the encoder {path} has another scaler", why=why, do=do)
    inputs = list(job.data.inputs)
    if (card.features, card.columns) != (inputs, list(job.data.columns)):
        odd = sorted(set(card.features) ^ set(inputs))
        why = f"it reads {len(card.features)} inputs, this job {len(inputs)}"
        more = " ..." if len(odd) > 6 else ""
        why += f"; only one of them has {', '.join(odd[:6])}{more}" if odd else ", in another order"
        raise DataError(f"the encoder {path} was trained on other features", why=why, do=do)
    if len(inputs) > len(job.data.columns) and card.features_version != FEATURES_VERSION:
        why = f"they were of version {card.features_version}, this Mayfly computes {FEATURES_VERSION}"
        raise DataError(f"the encoder {path} was trained on other features", why=why, do="Pretrain again.")


def until_of(card: Card, path: Path) -> str:
    """Return when the bars that trained and selected a model end (ISO 8601, UTC): the latest end of
    validation of its series.

    No label crosses the end of its span. Raises DataError for a card without these times.
    """
    if card.trained_until:
        return card.trained_until
    ends = [end for one in card.series if (end := _end_of(one, card.timeframe))]
    needed = 1 if card.panel else len(card.series)  # a series of a panel may have ended before
    if len(ends) < needed:
        why = "its card does not say on which bars it was trained"
        raise DataError(f"{path} can't be used here", why=why, do="Give a model of Mayfly's training.")
    return max(ends, key=nanoseconds_of)


def seen_until(card: Card, symbol: str, path: Path) -> int:
    """Return when the bars of a series that trained and selected a model end, in ns; of a panel, and of a
    series that it was not trained on, those of all series. Raises DataError for a card without these times.
    """
    own = [one for one in card.series if one.symbol == symbol and not card.panel and not card.held_out]
    return nanoseconds_of((_end_of(own[0], card.timeframe) if own else None) or until_of(card, path))


def portable(job: Job) -> Job:
    """Return the job for another machine: its encoder's path reduced to the file name."""
    encoder = encoder_of(job.model)
    return replace(job, model=replace(encoder, encoder=Path(encoder.encoder).name)) if encoder else job


def parent_of(job: Job) -> dict[str, str]:
    """Return the card's `parent`, the model that this one started from; {} if it started from random
    weights.
    """
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
    """Return mean and deviation (F,) float32 with which the job's encoder scaled the inputs of a series.

    A panel's encoder has one scaler for all other series and for the empty symbol; any other encoder gives
    None for a series that it was not trained on. None without an encoder.
    """
    encoder = encoder_of(job.model)
    if encoder is None:
        return None
    import torch  # late: the launcher has no torch

    card, _ = _read(Path(encoder.encoder))
    known = [one.scaler for one in card.series if one.symbol == symbol]
    if not known and card.panel is not None:
        known = [card.panel.scaler]
    return (torch.tensor(known[0]["mean"]), torch.tensor(known[0]["std"])) if known else None


def start_from(network: nn.Module, job: Job, *, series: Sequence[str]) -> None:
    """Copy the encoder's weights, except its head's, into a new network of the job, and freeze them if they
    never train.

    `series` are the symbols of the network's piece, in order: series embeddings are matched by symbol. Does
    nothing for a job without an encoder. Raises DataError if the file's tensors do not fit its card.
    """
    encoder = encoder_of(job.model)
    if encoder is None:
        return
    from trainer.models import network_of
    from trainer.store.weights import load_tensors  # late, as these load torch
    from trainer.train.predict.load_model import unfit

    path = Path(encoder.encoder)
    card, sha256 = _read(path)
    if sha256 != encoder.encoder_sha256:
        raise DataError(f"the encoder {path} has changed", why="its sha256 is another one", do="Start again.")
    tensors: Mapping[str, torch.Tensor] = load_tensors(path)
    if job.model.reads_context:
        place = {
            one.symbol: one.number if card.panel else number for number, one in enumerate(card.series, 1)
        }
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
    """Drop the gradients of weights that are still frozen after `batches` batches, so that the optimizer does
    not move them.

    They are computed all the same, so that ranks that share a network exchange the same gradients in each
    step.
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
    """Return card and sha256 of an encoder's file, read again only if it was written since. Raises
    DataError.
    """
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
        with open_plain(path) as file:
            return card, hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(
            f"the encoder {path} can't be read", why=str(error.strerror), do="Check its permissions."
        ) from error


def _refuse_other_network(card: Card, encoder: PretrainedSettings, path: Path) -> None:
    """Raise UsageError for an encoder that differs from the job's network in more than the head."""
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
    try:
        end = nanoseconds_of(series.splits["validation"]["last"][:_MOST_TIME]) + step_of(timeframe)
    except (KeyError, TypeError, UsageError, DataError):  # a card's splits are free in form
        return None
    seconds = -(-end // _NANOSECONDS)
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
