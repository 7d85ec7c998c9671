"""A card as markdown: the Hub's metadata, scores beside baselines, and nothing that a stranger's text can do."""

from __future__ import annotations

from dataclasses import replace

import yaml

from tests.models import card_of
from trainer.store.card import LATER_BARS, Card, card_from_json
from trainer.store.model_card import TASK, markdown_of

ABOUT = {
    "headline": "log_loss",
    "proper": ["log_loss"],
    "metrics": {"log_loss": {"title": "log loss", "better": "lower", "unit": ""}},
    "table": [{"title": "log loss", "value": ["log_loss"], "beside": ["baselines", "base_rate", "log_loss"]}],
}
TEST = {"n": 100, "first": "2026-01-01", "last": "2026-02-01", "cell": "a day", "log_loss": 0.68,
        "baselines": {"base_rate": {"log_loss": 0.69}}}  # fmt: skip
HOSTILE = "]\n---\nx: !!python/object:os.system\n# `<script>alert(1)</script>` | \\| <b>http</b> [a](http://b) \u202e\U0001f600\ud800"


def scored(**changes: object) -> Card:
    return replace(card_of("lstm", "direction", metrics={"test": TEST, "about": ABOUT}), **changes)  # type: ignore[arg-type]


def parts_of(text: str) -> tuple[dict, str]:
    """Return the metadata and the text of a model card, as the Hub splits them."""
    empty, head, body = text.split("---\n", 2)
    assert not empty
    return yaml.safe_load(head), body


def test_a_card_has_the_hubs_metadata_and_its_scores() -> None:
    head, body = parts_of(markdown_of(scored()))
    assert head["pipeline_tag"] == TASK and head["library_name"] == "mayfly"
    assert head["tags"] == ["mayfly", "lstm", "direction", "1m"]
    (entry,) = head["model-index"]
    assert entry["name"] == "lstm-direction_SIG-USD_1m"
    (result,) = entry["results"]
    assert result["task"] == {"type": TASK}
    assert result["dataset"] == {"type": "candles", "name": "SIG-USD", "split": "test"}
    assert result["metrics"] == [{"type": "log_loss", "name": "log loss", "value": 0.68}]
    assert "| `log loss` | `0.6800 (0.6900)` |" in body
    assert "`2026-01-01 to 2026-02-01`" in body and "SYNTHETIC" not in body
    synthetic = markdown_of(scored(data={"synthetic": True}))
    assert "SYNTHETIC bars: it knows nothing" in synthetic


def test_a_card_asks_nobody_to_install_a_package_of_our_name() -> None:
    """The mayfly of PyPI is another project's."""
    for card in (scored(), scored(target="environment", target_settings={"class": "C"})):
        _, body = parts_of(markdown_of(card))
        assert "import trainer" in body and "pip install" not in body and "PyPI's mayfly is another" in body


def test_a_card_without_scores_has_none() -> None:
    head, body = parts_of(markdown_of(card_of("tcn", "volatility")))
    assert "model-index" not in head and "## Scores" not in body


def test_a_hostile_cards_texts_are_only_text() -> None:
    about = {**ABOUT, "metrics": {"log_loss": {"title": HOSTILE, "better": "lower", "unit": ""}}}
    test = {**TEST, "first": HOSTILE, "cell": HOSTILE}
    card = scored(
        model=HOSTILE, created_at=HOSTILE, mayfly=HOSTILE, timeframe=HOSTILE, architecture={"a": HOSTILE}
    )
    card = replace(
        card, metrics={"test": test, "about": about}, parent={"model": HOSTILE}, code_sha256=HOSTILE
    )
    text = markdown_of(card)
    head, body = parts_of(text)
    assert set(head) == {"library_name", "pipeline_tag", "tags", "model-index"}
    assert text.split("\n---\n")[0].isascii() and "\u202e" not in text and "\ud800" not in text
    for line in body.splitlines():
        outside = line.split("`")[::2]  # what is in code means nothing
        assert not any("script" in part or "http" in part or "!!" in part for part in outside), line
    assert body.count("\n---\n") == 0
    assert {line.count("|") for line in body.splitlines() if line.startswith("|")} == {3}


def test_scores_say_what_makes_them_less_than_a_forecasts() -> None:
    plain = markdown_of(scored())
    assert "later bars" not in plain and "scored there" not in plain
    assert "It was scored there 3 times" in markdown_of(scored(test_scored=3))
    assert "not the scores of a forecast" in markdown_of(scored(data={LATER_BARS: True}))


def test_a_card_that_was_read_can_be_shown() -> None:
    assert "lstm-direction" in markdown_of(card_from_json(scored().to_json()))
