"""A model's card as markdown, in the format of a model card of the Hugging Face Hub: metadata as YAML, then
text.

Standard library only. Format: https://huggingface.co/docs/hub/model-cards and `modelcard.md` of
huggingface/hub-docs (2026-11-27). A card's texts are a stranger's: in the text they are code, in which
markdown and HTML mean nothing, and in the metadata JSON strings of ASCII, which YAML reads as such.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.base.text import printable, some_of
from trainer.store.card import Card
from trainer.targets.described import cells, check_metrics, headline_title, refit_until, tested, titles

TASK = "time-series-forecasting"  # of the Hub's tasks
MOST_TEXT = 120  # letters of a text of a card
MOST_SYMBOLS = 20  # that are named
MOST_ROWS = 24  # of scores


def markdown_of(card: Card) -> str:
    """Return a card as markdown: README.md of a model's repository."""
    head = "\n".join(f"{name}: {json.dumps(value)}" for name, value in _metadata(card).items())
    parts = [f"# {_code(card.model)}", _first_words(card), _table(("", ""), _facts(card))]
    if scores := _scores(card.metrics):
        parts += ["## Scores", _score_words(card), _table(("score", "test (baseline)"), scores)]
    parts += ["## Use", _USE_OF_AN_AGENT if _acts_in(card) else _USE, "## Limits", _LIMITS]
    return f"---\n{head}\n---\n\n" + "\n\n".join(parts) + "\n"


def _metadata(card: Card) -> dict[str, Any]:
    """Return the metadata of the Hub: what it filters by, and the scores of the test span."""
    found: dict[str, Any] = {
        "library_name": "mayfly",
        "pipeline_tag": TASK,
        "tags": [_ascii(tag) for tag in ("mayfly", card.family, card.target, card.timeframe)],
    }
    described = _described(card.metrics).get("metrics") or {}
    test = card.metrics.get("test") or {}
    measured = [
        {"type": _ascii(name), "name": _ascii(str(one["title"])), "value": test[name]}
        for name, one in list(described.items())[:MOST_ROWS]
        if _is_number(test.get(name))
    ]
    if measured:
        data = {"type": "candles", "name": _ascii(_named(card.symbols)), "split": "test"}
        result = {"task": {"type": TASK}, "dataset": data, "metrics": measured}
        found["model-index"] = [{"name": _ascii(card.model), "results": [result]}]
    return found


def _first_words(card: Card) -> str:
    family, target, bars = (_code(text) for text in (card.family, card.target, card.timeframe))
    words = f"A model of the family {family} that forecasts {target} of bars of {bars}, trained by Mayfly."
    if _acts_in(card):
        words = f"An agent of the family {family} that acts in the environment {_code(_acts_in(card))} over"
        words += f" bars of {bars}, trained by Mayfly."
    if card.data.get("synthetic"):
        words += " **It was trained on SYNTHETIC bars: it knows nothing of any market.**"
    return words


def _facts(card: Card) -> list[tuple[str, str]]:
    """Return name and value of what the model is and where it comes from."""
    architecture = ", ".join(
        f"{name} {value}" for name, value in card.architecture.items() if _is_plain(value)
    )
    settings = ", ".join(
        f"{name} {value}" for name, value in card.target_settings.items() if _is_plain(value)
    )
    parent = card.parent.get("model", "")
    reads = f"{card.lookback} bars of {len(card.features)} features"
    if _acts_in(card):
        reads = f"an observation of {len(card.features)} numbers, as it is"
    rows = [
        ("symbols", _named(card.symbols)),
        ("reads", reads),
        ("network", architecture),
        ("target", settings),
        ("networks averaged", str(card.members) if card.members > 1 else ""),
        ("fold", f"{card.fold} of {card.folds}" if card.folds > 1 else ""),
        ("trained until", refit_until(card.metrics) or card.trained_until),
        ("seed", str(card.seed)),
        ("starts from", parent),
        ("models of its run", str(card.tried)),
        ("created", card.created_at),
        ("Mayfly", f"{card.mayfly}, code {card.code_sha256[:12]}" if card.code_sha256 else card.mayfly),
    ]
    return [(name, _code(value)) for name, value in rows if value]


def _acts_in(card: Card) -> str:
    """Return the environment of the user's in which it acts; '' for any other model."""
    return str(card.target_settings.get("class", "")) if card.target == "environment" else ""


def _scores(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    if not _described(metrics) or not metrics.get("test"):
        return []
    rows = zip(titles(metrics), cells(metrics), strict=True)
    return [(_code(title), _code(cell)) for title, cell in rows][:MOST_ROWS]


def _score_words(card: Card) -> str:
    span, cell = tested(card.metrics)
    words = f"On its test span{f' {_code(span)}' if span else ''}, which chose nothing."
    if card.test_scored > 1:
        words += f" It was scored there {card.test_scored} times, with ever more epochs."
    if card.knows_later_bars:
        words += " **It was also trained on later bars: these are not the scores of a forecast.**"
    words += f" {_code(headline_title(card.metrics))} decides."
    words += f" Cells are {_code(cell)}." if cell else ""
    if card.held_out:
        words += " The scores are of its held-out twin: the model in the file was then trained on all bars."
    return words


def _described(metrics: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the description of a card's metrics; {} for one that can't be read."""
    try:
        check_metrics(metrics)
    except ValueError:
        return {}
    return metrics.get("about") or {}


def _table(title: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [title, ["---"] * len(title), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _named(symbols: Sequence[str]) -> str:
    return some_of(symbols, MOST_SYMBOLS)


def _is_plain(value: object) -> bool:
    return isinstance(value, (str, int, float))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _code(text: str) -> str:
    """Return a text as code of one line, also in a table. There a bar ends a cell even in code, and behind
    two backslashes an escaped one, too: it is shown as a broken bar.
    """
    line = " ".join(printable(text).replace("`", "'").replace("|", "\u00a6").split())[: 10 * MOST_TEXT]
    return f"`{line}`" if line else "-"


def _ascii(text: str) -> str:
    """Return a text in ASCII, others escaped: JSON's escapes of two halves are none of YAML's."""
    return printable(text)[:MOST_TEXT].encode("ascii", "backslashreplace").decode().replace("\n", " ")


_USE = """```python
import torch
import trainer  # Mayfly, from its repository; PyPI's mayfly is another project

model = trainer.load("MODEL.safetensors")
for symbol, bars in model.prepare("candles/", last=1).items():
    with torch.no_grad():
        print(symbol, bars.available_at, bars.forecast(model.module(**bars.inputs)))
```

For use without Mayfly, `mayfly models export MODEL` writes ONNX, with the scaler in the graph. The features
that it reads, in their order, the scalers and the fitted values are in the card, which the metadata of the
file has as `mayfly_card`."""
_USE_OF_AN_AGENT = """```python
import torch
import trainer  # Mayfly, from its repository; PyPI's mayfly is another project

model = trainer.load("MODEL.safetensors")
with torch.no_grad():
    outputs = model.module(torch.from_numpy(seen)[None, None])  # seen: an observation, float32
print(model.told["outputs"])
```

For use without Mayfly, `mayfly models export MODEL` writes ONNX, whose metadata says what inputs and outputs
are."""
_LIMITS = """Scores are of one span of the past, and a market can change the day after. They say whether the
model was better than plain baselines there beyond chance, not that it makes money. It is no advice. No
licence is stated: add `license` above before you share it."""
