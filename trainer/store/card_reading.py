"""Read a card strictly, checking every type and bound: a card is untrusted input.

Settings of model and target are checked by their homes (`trainer.train.predict.load_model`). Standard library
only.
"""

from __future__ import annotations

from typing import Any

from trainer.base.errors import DataError
from trainer.base.strict_json import MOST_TEXT, Fields, Unsound, Value, read_object
from trainer.base.symbols import flaw
from trainer.targets.described import check_metrics

FORMAT = 2  # 1, before pieces: one series, whose fields are the card's
READABLE_FORMATS = (1, 2)
SERIES_DATA = ("bars", "first", "last", "holes", "ties")  # fields of a card's `data` about one series
MOST_CARD_BYTES = (
    32 * 1024 * 1024
)  # a card is 10 KB, plus 5 KB per series, plus the user's files of up to 1 MB each
MOST_SERIES = 5_000
PANEL_SCALERS = ("pooled", "series", "rank")  # values of data.scaler
MOST_CARD_NUMBER = 1e39  # scalers are float32
MOST_BARS = 1_000_000_000
MOST_INPUTS = 10_000
MOST_FOLDS = 1_000
_MOST_OWN_CHARACTERS = 1_000_000
_TEXTS = ("model", "family", "timeframe", "features_version", "code_sha256", "created_at", "mayfly")


def read_values(text: str) -> dict[str, Any]:
    """Return the fields of a card by name. Raises DataError for an unknown format or an invalid card."""
    body = text.encode(errors="surrogatepass")
    try:
        fields = read_object(body, most_bytes=MOST_CARD_BYTES, most_number=MOST_CARD_NUMBER, name="the card")
        if (written := fields.whole("format")) in READABLE_FORMATS:
            return _values(fields, is_first=written == 1)
    except Unsound as error:
        raise DataError(
            "the model's card can't be used", why=str(error), do="Fetch the model again."
        ) from error
    raise DataError(
        f"the model's card has format {written}",
        why=f"this Mayfly reads {' and '.join(map(str, READABLE_FORMATS))}",
        do="Use the Mayfly that made it.",
    )


def _values(fields: Fields, *, is_first: bool) -> dict[str, Any]:
    features = _names(fields, "features")
    columns = _names(fields, "columns") if "columns" in fields.values else []
    if columns != features[len(features) - len(columns) :]:
        raise Unsound("the card.columns are not those at the end of its features")
    folds = fields.whole("folds", 1, least=1, most=MOST_FOLDS)
    data = _data(fields.value("data").fields())
    if is_first:
        own = {key: data[key] for key in SERIES_DATA if key in data}
        identity = {"piece": fields.text("symbol"), "kind": "symbol"}
        series = [{**_series(fields, len(features)), "data": own, "metrics": {}}]
    else:
        identity = {"piece": fields.text("piece"), "kind": fields.text("kind")}
        series = [
            _whole_series(item.fields(), len(features))
            for item in fields.value("series").items(most=MOST_SERIES)
        ]
    if len({one["symbol"] for one in series}) < len(series):
        raise Unsound("the card.series has a symbol twice")
    return dict(
        **{name: fields.text(name) for name in _TEXTS},
        **identity,
        series=series,
        target=fields.text("target", ""),
        architecture=_object(fields, "architecture"),
        features=features,
        columns=columns,
        lookback=fields.whole("lookback", most=MOST_BARS),
        metrics=_metrics(fields.value("metrics").fields()),
        training=_object(fields, "training"),
        data=data,
        seed=fields.whole("seed"),
        fold=fields.whole("fold", 1, least=1, most=folds),
        folds=folds,
        target_settings=dict(fields.table("target_settings").values),
        parent=_parent(fields.table("parent")),
        panel=_panel(fields.table("panel"), len(features))
        if fields.values.get("panel") is not None
        else None,
        own_files={name: _own_file(item.fields()) for name, item in _entries(fields, "own_files")},
    )


def _series(fields: Fields, inputs: int) -> dict[str, Any]:
    """Return the fields of one series, which cards of format 1 have at the top level."""
    symbol = fields.text("symbol")
    if why := flaw(symbol):
        raise Unsound(f"{fields.name}.symbol is not one: {why}")
    return {
        "symbol": symbol,
        "calendar": fields.text("calendar"),
        "horizon": fields.whole("horizon", most=MOST_BARS),
        "scaler": _scaler(fields.value("scaler").fields(), inputs),
        "splits": _object(fields, "splits"),
        "fitted": _fitted(fields),
    }


def _fitted(fields: Fields) -> dict[str, Any]:
    return {
        name: item.number(least=-MOST_CARD_NUMBER, most=MOST_CARD_NUMBER)
        for name, item in _entries(fields, "fitted")
    }


def _panel(fields: Fields, inputs: int) -> dict[str, Any]:
    """Return the fields of CardPanel."""
    parts = fields.exactly(("scaler_of", "scaler", "fitted", "calendar", "horizon"))
    return {
        "scaler_of": parts["scaler_of"].choice(PANEL_SCALERS),
        "scaler": _scaler(parts["scaler"].fields(), inputs),
        "fitted": _fitted(fields),
        "calendar": parts["calendar"].text(),
        "horizon": parts["horizon"].whole(most=MOST_BARS),
    }


def _whole_series(fields: Fields, inputs: int) -> dict[str, Any]:
    metrics = fields.table("metrics")
    scores = _metrics(metrics) if metrics.values else {}
    data, number = dict(fields.table("data").values), fields.whole("number", 0, most=MOST_SERIES)
    return {**_series(fields, inputs), "data": data, "metrics": scores, "number": number}


def _object(fields: Fields, key: str) -> dict[str, Any]:
    return dict(fields.value(key).fields().values)


def _entries(fields: Fields, key: str) -> list[tuple[str, Value]]:
    return list(fields.table(key).entries().items())


def _names(fields: Fields, key: str) -> list[str]:
    return [item.text(most=MOST_TEXT) for item in fields.value(key).items(most=MOST_INPUTS)]


def _scaler(fields: Fields, inputs: int) -> dict[str, Any]:
    """Return the scaler, with a mean and a deviation for each input.

    Cards without a target also have the target's fitted values in it.
    """
    scaler = dict(fields.values)
    for key, least in (("mean", -MOST_CARD_NUMBER), ("std", 0.0)):
        values = fields.value(key)
        scaler[key] = [item.number(least=least, most=MOST_CARD_NUMBER) for item in values.items()]
        if len(scaler[key]) != inputs:
            raise Unsound(f"{values.name} has {len(scaler[key])} numbers for {inputs} features")
    if 0.0 in scaler["std"]:
        raise Unsound(f"{fields.name}.std has a 0")
    if "limit" in scaler:
        scaler["limit"] = fields.value("limit").number(least=0, most=MOST_CARD_NUMBER)
    return scaler


def _metrics(fields: Fields) -> dict[str, dict[str, Any]]:
    metrics = {name: dict(item.fields().values) for name, item in fields.entries().items()}
    try:
        check_metrics(metrics)
    except ValueError as error:
        raise Unsound(f"{fields.name}: {error}") from error
    return metrics


def _data(fields: Fields) -> dict[str, Any]:
    fields.truth("synthetic")
    return dict(fields.values)


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
