"""From nothing to a trained model, as docs/quick-start.md shows it: fetch from the exchange on this machine,
check, launch.
"""

from __future__ import annotations

import json

import pytest

from tests.end_to_end.test_run import only_json
from trainer.store.card import read_card


@pytest.mark.nightly
@pytest.mark.slow
def test_fetched_bars_are_checked_and_train_a_model(desk):
    pytest.importorskip("ccxt", reason="the extra fetch is not installed")
    words = (
        "data",
        "fetch",
        "BTC-USD",
        "ETH-USD",
        "--rehearse",
        "--timeframe",
        "1h",
        "--since",
        "2025-01-01",
    )
    fetched = desk.run(*words, "--until", "2026-01-01", "--out", "candles/", "--json")
    assert fetched.returncode == 0, fetched.stderr
    document = only_json(fetched.stdout)
    assert {entry["bars"] for entry in document["symbols"].values()} == {365 * 24} and document["synthetic"]
    checked = desk.run("data", "check", "candles/")
    assert checked.returncode == 0 and "2 symbols, 17,520 bars: training reads all of them" in checked.stdout
    small = ("--epochs", "1", "--set", "model.hidden=8", "--set", "model.lookback=8", "--symbols", "BTC-USD")
    launched = desk.run("launch", "--rehearse", "--json", "--data", "candles/", *small)
    assert launched.returncode == 0, launched.stderr
    receipt = only_json(launched.stdout)
    assert (receipt["state"], receipt["data"]["synthetic"], receipt["data"]["bars"]) == ("done", True, 8760)
    pulled = desk.run("pull", receipt["run_id"], "--rehearse", "--out", "pulled")
    assert pulled.returncode == 0, pulled.stderr
    card = read_card(next((desk.folder / "pulled").rglob("*.safetensors")))
    assert card.data["origins"] == [f"fetched from rehearsal by {document['libraries'][0]}"]
    again = desk.run(*words, "--until", "2026-01-01", "--out", "candles/", "--json")
    assert json.loads(again.stdout)["added"] == []
