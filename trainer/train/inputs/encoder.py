"""Start a network from another model: a pretrained encoder, or the same kind of model whole. Check and pin
its file, load its weights, and unfreeze those of an encoder in stages.

The launcher checks and pins it at the desk, without torch; training does so again. The new model keeps the
other's scalers for the series that it was trained on, since its weights expect inputs of that
scale.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.base.errors import DataError, UsageError
from trainer.base.files import open_plain
from trainer.base.text import some_of
from trainer.data.columns import told_of
from trainer.data.feature_names import is_version_of, version_of
from trainer.data.side_names import features_beside, reads_index, split_sides
from trainer.data.timeframes import step_of
from trainer.job.job import Job
from trainer.job.start_model import StartModel, start_model_of
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

# Parts of an architecture in which a model may differ from the one that it starts from.
OF_A_START = ("dropout", "file")
_MOST_TIME = 40  # characters of a time in a card
_NANOSECONDS = 10**9


def pinned(job: Job) -> Job:
    """Return the job with the hash of the model that it starts from and the end of the bars that this has
    seen; a job without one unchanged.

    Raises UsageError for a model of another architecture or a file that the job does not pin, DataError for
    an unreadable file.
    """
    start = start_model_of(job)
    if start is None:
        return job
    path = Path(start.path)
    card, sha256 = _read(path)
    if start.sha256 not in ("", sha256):
        why = f"its sha256 is {sha256[:12]}..., the job pins {start.sha256[:12]}..."
        raise UsageError(
            f"the {start.noun} {path} is another file",
            why=why,
            do=f"Give that file, or leave {start.key}_sha256 out.",
        )
    _refuse_other_network(card, job, start)
    return start.put(job, sha256=sha256, until=until_of(card, path))


def check_inputs(job: Job) -> None:
    """Raise DataError if the model that the job starts from was trained on other inputs. `job` has the
    timeframe of its data.
    """
    start = start_model_of(job)
    if start is None:
        return
    named = f"the {start.noun} {start.path}"
    card, _ = _read(Path(start.path))
    do = "Give this job the inputs of that model, or train it on those of this job."
    if card.timeframe != job.data.timeframe:
        why = f"it was trained on bars of {card.timeframe}, this job has bars of {job.data.timeframe}"
        raise DataError(f"{named} is of another timeframe", why=why, do=do)
    scalers = [card.panel.scaler_of if card.panel else "", job.data.scaler if job.data.panel else ""]
    if scalers[0] != scalers[1]:
        single = "those of single series"
        theirs, ours = (f"those of a panel, scaled as {name}" if name else single for name in scalers)
        why = f"its inputs are {theirs}, this job's {ours}"
        raise DataError(f"{named} has another scaler", why=why, do=do)
    if job.target.has_environment:
        return  # it reads observations, of which the architecture has the size
    inputs = list(job.data.inputs)
    if (card.features, card.columns) != (inputs, list(job.data.further)):
        odd = sorted(set(card.features) ^ set(inputs))
        why = f"it reads {len(card.features)} inputs, this job {len(inputs)}"
        more = " ..." if len(odd) > 6 else ""
        why += f"; only one of them has {', '.join(odd[:6])}{more}" if odd else ", in another order"
        raise DataError(f"{named} was trained on other features", why=why, do=do)
    index = job.data.told.index
    if told_of(card.told_columns)[0].index != index and reads_index(split_sides(job.data.further)[1]):
        why = f"its index is of other symbols than this job's, {some_of(index, 6)}"
        do = "Give index= in data.columns the symbols of that model, or train it on those of this job."
        raise DataError(f"{named} was trained on another index", why=why, do=do)
    computed = (*job.data.computed, *features_beside(job.data.further))
    own = job.data.own.sha256 if job.data.own else ""
    if computed and not is_version_of(card.features_version, computed, own):
        why = f"they were of version {card.features_version}, this job's are {version_of(computed, own)}"
        raise DataError(f"{named} was trained on other features", why=why, do="Train it again.")


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
    """Return when the bars of a series that trained and selected a model end, in ns; of a panel, of k folds,
    and of a series that it was not trained on, those of all series. Raises DataError for a card without these
    times.
    """
    joint = card.panel or card.held_out or card.knows_later_bars
    own = [one for one in card.series if one.symbol == symbol and not joint]
    return nanoseconds_of((_end_of(own[0], card.timeframe) if own else None) or until_of(card, path))


def portable(job: Job) -> Job:
    """Return the job for another machine: the path of the model that it starts from reduced to the file
    name.
    """
    start = start_model_of(job)
    return start.put(job, path=start.name) if start else job


def parent_of(job: Job) -> dict[str, str]:
    """Return the card's `parent`, the model that this one started from; {} if it started from random
    weights.
    """
    start = start_model_of(job)
    if start is None:
        return {}
    card, sha256 = _read(Path(start.path))
    return {
        "model": card.model,
        "sha256": sha256,
        "until": start.until,
        "training": start.training,
        "created_at": card.created_at,
    }


def known_scaler(job: Job, symbol: str = "") -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return mean and deviation (F,) float32 with which the model that the job starts from scaled the inputs
    of a series.

    A panel's has one scaler for all other series and for the empty symbol; any other gives None for a series
    that it was not trained on. None without such a model.
    """
    start = start_model_of(job)
    if start is None or job.target.has_environment:
        return None
    import torch  # late: the launcher has no torch

    card, _ = _read(Path(start.path))
    known = [one.scaler for one in card.series if one.symbol == symbol]
    if not known and card.panel is not None:
        known = [card.panel.scaler]
    return (torch.tensor(known[0]["mean"]), torch.tensor(known[0]["std"])) if known else None


def start_from(network: nn.Module, job: Job, *, series: Sequence[str]) -> None:
    """Copy the weights of the model that the job starts from into a new network: an encoder's except its
    head's, which are frozen if they never train; of any other all, with buffers.

    `series` are the symbols of the network's piece, in order: series embeddings are matched by symbol. Does
    nothing for a job without such a model. Raises DataError if the file's tensors do not fit its card.
    """
    start = start_model_of(job)
    if start is None:
        return
    from trainer.models import network_of
    from trainer.store.weights import load_tensors  # late, as these load torch
    from trainer.train.packs.tensors import put_buffers
    from trainer.train.predict.load_model import unfit

    path = Path(start.path)
    card, sha256 = _read(path)
    if sha256 != start.sha256:
        raise DataError(
            f"the {start.noun} {path} has changed", why="its sha256 is another one", do="Start again."
        )
    tensors: Mapping[str, torch.Tensor] = load_tensors(path)
    if job.model.reads_context:
        place = {
            one.symbol: one.number if card.panel else number for number, one in enumerate(card.series, 1)
        }
        numbers = [place.get(symbol, 0) for symbol in series]
        tensors = network_of(job.model.name).for_series(tensors, numbers, like=network)
    weights = dict(network.named_parameters())
    for name, weight in weights.items():
        if name.startswith(HEAD) and not start.is_whole:
            continue
        tensor = tensors.get(name)
        if tensor is None or (tensor.shape, tensor.is_floating_point()) != (
            weight.shape,
            weight.is_floating_point(),
        ):
            raise unfit(path, f"weight {name} is not that of its architecture")
        weight.data.copy_(tensor)
        if not start.is_whole:
            weight.requires_grad_(start.training != FROZEN)
    if start.is_whole:
        put_buffers(network, {name: one for name, one in tensors.items() if name not in weights})


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
    """Return card and sha256 of a model's file, read again only if it was written since. Raises
    DataError.
    """
    try:
        status = path.stat()
    except OSError as error:
        do = "Check its path: a job file names it from its own folder. mayfly pull fetches models."
        raise DataError(f"the model {path} can't be read", why=str(error.strerror), do=do) from error
    return _read_once(path, status.st_mtime_ns, status.st_size)


@cache
def _read_once(path: Path, changed_at: int, size: int) -> tuple[Card, str]:
    card = read_card(path)
    try:
        with open_plain(path) as file:
            return card, hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(
            f"the model {path} can't be read", why=str(error.strerror), do="Check its permissions."
        ) from error


def _refuse_other_network(card: Card, job: Job, start: StartModel) -> None:
    """Raise UsageError for a model that differs from the job's in more than it may: an encoder in its head,
    any other one in its dropout.
    """
    model, named = job.model, f"the {start.noun} {start.path}"
    other = f"{named} is of another architecture"
    if card.family != model.name:
        why = f"it is a {card.family}, and model.name is {model.name}"
        raise UsageError(other, why=why, do=f"Set model.name to {card.family}, or give another model.")
    if card.members > 1:
        why = f"it is the mean of {card.members} networks"
        raise UsageError(f"{named} can't be started from", why=why, do="Give a model of one network.")
    theirs, outputs = card.architecture, card.architecture.get("outputs")
    features = len(card.features)
    outputs = outputs if type(outputs) is int else 1
    model.check_architecture(theirs, features=features, outputs=outputs, bars_seen=card.lookback)
    ours = model.architecture(features=features, outputs=job.target.outputs)
    may_differ = {*encoder_keys(model)}
    if start.is_whole:
        may_differ = {*OF_A_START, *may_differ} - {"outputs"}
    others = [key for key in ours if key not in may_differ and ours[key] != theirs.get(key)]
    if others or (start.is_whole and model.bars_seen != card.lookback):
        pairs = ", ".join(f"{key} is {theirs.get(key)} there and {ours[key]} here" for key in others[:4])
        why = pairs or f"it sees {card.lookback} bars, this job's {model.bars_seen}"
        raise UsageError(other, why=why, do="Give [model] the sizes of that model.")
    settings = [option.card_keys() for option in job.target.options()]
    if start.is_whole and (card.target != job.target.name or card.target_settings not in settings):
        why = f"it forecasts {card.target} with {card.target_settings}"
        do = "Give this job that target, or start from all but the head: model.encoder."
        raise UsageError(f"{named} forecasts something else", why=why, do=do)


def encoder_keys(model: object) -> tuple[str, ...]:
    """Return the parts of an architecture in which a head and its encoder may differ."""
    return model.own_of_a_head if isinstance(model, PretrainedSettings) else ()


def _end_of(series: CardSeries, timeframe: str) -> str | None:
    """Return the end of a series' validation, or None if its card doesn't have it."""
    try:
        end = nanoseconds_of(series.splits["validation"]["last"][:_MOST_TIME]) + step_of(timeframe)
    except (KeyError, TypeError, UsageError, DataError):  # a card's splits are free in form
        return None
    seconds = -(-end // _NANOSECONDS)
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
