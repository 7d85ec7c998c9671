"""Read a card strictly, checking every type and bound: a card is untrusted input.

Settings of model and target are checked by their homes (`trainer.train.predict.load_model`). Standard library
only.
"""

from __future__ import annotations

from typing import Any

from trainer.base.errors import DataError
from trainer.base.strict_json import MOST_TEXT, YEARS_OF_BARS, Fields, Unsound, Value, instant, read_object
from trainer.base.symbols import MOST_SERIES, flaw
from trainer.targets.described import check_metrics

FORMAT = 1
# A card is 10 KB, plus 5 KB per series, plus the user's files of up to 1 MB each.
MOST_CARD_BYTES = 32 * 1024 * 1024
PANEL_SCALERS = ("pooled", "series", "rank")  # values of data.scaler
MOST_CARD_NUMBER = 1e39  # scalers are float32
MOST_BARS = 1_000_000_000
MOST_INPUTS = 10_000
MOST_FOLDS = 1_000
LATER_BARS = "trained_after_test"  # of a card's data: whether k folds trained it on both sides of its test
TOLD_COLUMNS, MOST_TOLD = "told_columns", 20  # of a card's data: entries of data.columns
MOST_TOLD_TEXT = 100_000  # characters of one: the symbols of an index
MOST_MEMBERS = 1_000
MOST_SCORED = 1_000_000
MOST_CELLS = 100_000
_FIRST_SECOND = -5_364_662_400  # 1800-01-01: no bar is earlier (`trainer/data/read/times.py`)
MOST_ORIGINS = 40  # of fetched files
MOST_GROUPS = 100  # of forecasts in a reliability table
_MOST_OWN_CHARACTERS = 1_000_000
_TEXTS = (
    *("model", "piece", "kind", "family", "target", "timeframe", "features_version"),
    *("code_sha256", "created_at", "mayfly"),
)


def read_values(text: str) -> dict[str, Any]:
    """Return the fields of a card by name. Raises DataError for another format or an invalid card."""
    body = text.encode(errors="surrogatepass")
    try:
        fields = read_object(body, most_bytes=MOST_CARD_BYTES, most_number=MOST_CARD_NUMBER, name="the card")
        if (written := fields.whole("format")) == FORMAT:
            return _card(fields)
    except Unsound as error:
        raise DataError(
            "the model's card can't be used", why=str(error), do="Fetch the model again."
        ) from error
    raise DataError(
        f"the model's card has format {written}",
        why=f"this Mayfly reads {FORMAT}",
        do="Use the Mayfly that made it.",
    )


def _card(fields: Fields) -> dict[str, Any]:
    """Return the fields of Card."""
    features, columns = _names(fields, "features"), _names(fields, "columns")
    if columns != features[len(features) - len(columns) :]:
        raise Unsound("the card.columns are not those at the end of its features")
    folds = fields.whole("folds", least=1, most=MOST_FOLDS)
    data = _object(fields, "data")
    data.truth("synthetic")
    if LATER_BARS in data.values:
        data.truth(LATER_BARS)
    for origin in data.value("origins", []).items(most=MOST_ORIGINS):
        origin.text(most=MOST_TEXT)
    if TOLD_COLUMNS in data.values:
        for entry in data.value(TOLD_COLUMNS).items(least=1, most=MOST_TOLD):
            entry.text(most=MOST_TOLD_TEXT)
    card = {
        **{name: fields.text(name) for name in _TEXTS},
        "format": FORMAT,
        **_trained_on(fields, len(features)),
        "held_out": _held_out(fields.table("held_out"), len(features)),
        "tried": fields.whole("tried", least=1, most=MOST_SCORED),
        "test_scored": fields.whole("test_scored", least=1, most=MOST_SCORED),
        "members": fields.whole("members", least=1, most=MOST_MEMBERS),
        "architecture": _object(fields, "architecture").values,
        "features": features,
        "columns": columns,
        "lookback": fields.whole("lookback", most=MOST_BARS),
        "metrics": _metrics(_object(fields, "metrics")),
        "training": _object(fields, "training").values,
        "data": data.values,
        "seed": fields.whole("seed"),
        "fold": fields.whole("fold", least=1, most=folds),
        "folds": folds,
        "target_settings": _object(fields, "target_settings").values,
        "parent": _parent(_object(fields, "parent")),
        "losses": _losses(_object(fields, "losses")),
        "reliability": {
            name: _reliability(item.fields())
            for name, item in _object(fields, "reliability").entries().items()
        },
        "trades": _trades(_object(fields, "trades")),
        "own_files": {
            name: _own_file(item.fields()) for name, item in _object(fields, "own_files").entries().items()
        },
    }
    fields.exactly([*card])
    return card


def _trained_on(fields: Fields, inputs: int) -> dict[str, Any]:
    """Return the fields that a card and its held-out twin each have: until when it has seen bars, and its
    series.
    """
    listed = fields.value("series").items(least=1, most=MOST_SERIES)
    series = [_series(item.fields(), inputs) for item in listed]
    if len({one["symbol"] for one in series}) < len(series):
        raise Unsound(f"{fields.name}.series has a symbol twice")
    has_panel = fields.values.get("panel") is not None
    until = fields.text("trained_until", "")
    if until:
        instant(until, years=YEARS_OF_BARS)
    return {
        "trained_until": until,
        "series": series,
        "panel": _panel(_object(fields, "panel"), inputs) if has_panel else None,
    }


def _held_out(fields: Fields, inputs: int) -> dict[str, Any]:
    """Return the held-out twin of a refit: its hash, and what it was trained on; {} for any other model."""
    if not fields.values:
        return {}
    twin = {"sha256": fields.value("sha256").sha256(), **_trained_on(fields, inputs)}
    fields.exactly(tuple(twin))
    return twin


def _series(fields: Fields, inputs: int) -> dict[str, Any]:
    """Return the fields of CardSeries."""
    symbol = fields.text("symbol")
    if why := flaw(symbol):
        raise Unsound(f"{fields.name}.symbol is not one: {why}")
    series = {
        "symbol": symbol,
        **_of_any_symbol(fields, inputs),
        "splits": _object(fields, "splits").values,
        "data": _object(fields, "data").values,
        "metrics": _metrics(_object(fields, "metrics")),
        "number": fields.whole("number", most=MOST_SERIES),
    }
    fields.exactly(tuple(series))
    return series


def _panel(fields: Fields, inputs: int) -> dict[str, Any]:
    """Return the fields of CardPanel."""
    panel = {"scaler_of": fields.choice("scaler_of", PANEL_SCALERS), **_of_any_symbol(fields, inputs)}
    fields.exactly(tuple(panel))
    return panel


def _of_any_symbol(fields: Fields, inputs: int) -> dict[str, Any]:
    """Return the fields that CardSeries and CardPanel have in common."""
    return {
        "calendar": fields.text("calendar"),
        "horizon": fields.whole("horizon", most=MOST_BARS),
        "scaler": _scaler(_object(fields, "scaler"), inputs),
        "fitted": {
            name: item.number(least=-MOST_CARD_NUMBER, most=MOST_CARD_NUMBER)
            for name, item in _object(fields, "fitted").entries().items()
        },
    }


def _object(fields: Fields, key: str) -> Fields:
    return fields.value(key).fields()


def _names(fields: Fields, key: str) -> list[str]:
    return [item.text(most=MOST_TEXT) for item in fields.value(key).items(most=MOST_INPUTS)]


def _scaler(fields: Fields, inputs: int) -> dict[str, Any]:
    """Return the scaler: a mean and a deviation for each input, and the limit of scaled inputs."""
    parts = fields.exactly(("mean", "std", "limit"))
    scaler: dict[str, Any] = {"limit": parts["limit"].number(least=0, most=MOST_CARD_NUMBER)}
    for key, least in (("mean", -MOST_CARD_NUMBER), ("std", 0.0)):
        scaler[key] = [item.number(least=least, most=MOST_CARD_NUMBER) for item in parts[key].items()]
        if len(scaler[key]) != inputs:
            raise Unsound(f"{parts[key].name} has {len(scaler[key])} numbers for {inputs} features")
    if 0.0 in scaler["std"]:
        raise Unsound(f"{fields.name}.std has a 0")
    return scaler


def _metrics(fields: Fields) -> dict[str, dict[str, Any]]:
    metrics = {name: dict(item.fields().values) for name, item in fields.entries().items()}
    try:
        check_metrics(metrics)
    except ValueError as error:
        raise Unsound(f"{fields.name}: {error}") from error
    return metrics


def _losses(fields: Fields) -> dict[str, Any]:
    """Return the losses by cell: when each begins, its bars, and sums by score and forecaster."""
    if not fields.values:
        return {}
    parts = fields.exactly(("begins", "bars", "sums"))
    begins = _begins(parts["begins"])
    bars = [item.whole(least=1, most=MOST_BARS) for item in parts["bars"].items(most=MOST_CELLS)]
    sums = {
        score: {name: _sums(item, len(begins)) for name, item in by_name.fields().entries().items()}
        for score, by_name in parts["sums"].fields().entries().items()
    }
    if len(bars) != len(begins) or begins != sorted(set(begins)):
        raise Unsound(f"{fields.name} has {len(begins)} cells, out of order or not those of its bars")
    return {"begins": begins, "bars": bars, "sums": sums}


def _trades(fields: Fields) -> dict[str, list[Any]]:
    """Return what a plain rule made: when each cell begins, and its net return."""
    if not fields.values:
        return {}
    parts = fields.exactly(("begins", "net"))
    begins = _begins(parts["begins"])
    net = _sums(parts["net"], len(begins))
    if net is None or begins != sorted(set(begins)):
        raise Unsound(f"{fields.name} has cells out of order, or no returns")
    return {"begins": begins, "net": net}


def _reliability(fields: Fields) -> dict[str, list[Any]]:
    """Return an event's reliability: columns of as many groups of forecasts."""
    parts = fields.exactly(("n", "forecast", "happened", "low", "high"))
    columns: dict[str, list[Any]] = {
        "n": [item.whole(least=1, most=MOST_BARS) for item in parts["n"].items(least=1, most=MOST_GROUPS)]
    }
    for name in ("forecast", "happened", "low", "high"):
        may_lack = name in ("low", "high")
        columns[name] = [
            None if may_lack and item.value is None else item.number(least=-1, most=2)
            for item in parts[name].items(least=1, most=MOST_GROUPS)
        ]
    if len({len(column) for column in columns.values()}) > 1:
        raise Unsound(f"{fields.name} has columns of different lengths")
    return columns


def _begins(item: Value) -> list[int]:
    """Return when each cell begins, in seconds since 1970."""
    return [one.whole(least=_FIRST_SECOND) for one in item.items(least=1, most=MOST_CELLS)]


def _sums(item: Value, cells: int) -> list[float] | None:
    if item.value is None:
        return None
    sums = [one.number(least=-MOST_CARD_NUMBER, most=MOST_CARD_NUMBER) for one in item.items()]
    if len(sums) != cells:
        raise Unsound(f"{item.name} has {len(sums)} numbers for {cells} cells")
    return sums


def _parent(fields: Fields) -> dict[str, str]:
    if not fields.values:
        return {}
    texts = {name: fields.text(name) for name in ("model", "until", "training", "created_at")}
    return {**texts, "sha256": fields.value("sha256").sha256()}


def _own_file(fields: Fields) -> dict[str, str]:
    return {
        "file": fields.value("file").file_name(),
        "class": fields.text("class"),
        "sha256": fields.value("sha256").sha256(),
        "text": fields.text("text", most=_MOST_OWN_CHARACTERS),
    }
