"""Reports of a node: those of ours are read, and every crafted report is one error."""

from __future__ import annotations

import json

import pytest

from tests.pieces import named
from trainer.base.strict_json import Fields, Unsound
from trainer.base.symbols import MOST_CANDLE_FILES
from trainer.runs.reports import MOST_TEXT, read_outputs, read_result

PREFIX = "models/experiments/r/1/"
MODEL = {
    **named("BTC-USD"),
    "family": "lstm",
    "target": "direction",
    "key": f"{PREFIX}lstm-direction_BTC-USD_1m.safetensors",
    "version_id": "v1",
    "sha256": "ab" * 32,
    "metrics": {},
}
OUTPUT = {"version_id": "v1", "sha256": "ab" * 32, "bytes": 5}
TABLE = [{"title": "AUC", "value": ["auc"], "beside": []}]
ABOUT = {
    "headline": "auc",
    "proper": ["auc"],
    "metrics": {"auc": {"title": "AUC", "better": "higher", "unit": ""}},
    "table": TABLE,
}


def read(**fields: object):
    return read_result(
        json.dumps({"state": "done", **fields}).encode(),
        models_prefix=PREFIX,
        names=["lstm-direction_BTC-USD_1m"],
    )


def test_a_model_under_the_attempts_prefix_is_read():
    (model,) = read(models=[{**MODEL, "metrics": {"about": ABOUT, "test": {"auc": 0.5}}}]).models
    assert (model["key"], model["metrics"]["test"]) == (MODEL["key"], {"auc": 0.5})


@pytest.mark.parametrize(
    "key",
    [
        "models/experiments/r/2/lstm_A_1m.safetensors",
        "models/production/lstm_A_1m.safetensors",
        "runs/r/run.json",
        *(
            PREFIX + name
            for name in (
                "",
                "..",
                "../../../production/lstm_A_1m.safetensors",
                "a/lstm_A_1m.safetensors",
                ".bashrc",
                "Makefile",
                ".hidden.safetensors",
                "-rf.safetensors",
                "~root.safetensors",
                "a\\b.safetensors",
                "a\nb.safetensors",
                "a\x1b[31m.safetensors",
                "a\u202eb.safetensors",
                "\x00.safetensors",
                "x" * 300 + ".safetensors",
            )
        ),
    ],
)
def test_a_model_of_another_name_or_place_spoils_the_result(key):
    with pytest.raises(Unsound, match="key"):
        read(models=[{**MODEL, "key": key}])


def test_a_model_of_another_run_spoils_the_result():
    """Else a node could put a model into another one's place in production."""
    body = json.dumps({"state": "done", "models": [MODEL]}).encode()
    assert read_result(body, models_prefix=PREFIX, names=["lstm-direction_BTC-USD_1m"]).models
    with pytest.raises(Unsound, match="BTC-USD_1m', which the run was not launched for"):
        read_result(body, models_prefix=PREFIX, names=["lstm-direction_ETH-USD_1m"])


def test_a_result_lists_as_many_candle_files_as_a_run_may_read():
    """500 stocks and a new file of each a week are 26,000 in a year."""
    files = [
        {"file": f"S{number}.parquet", "bars": 5, "symbols": ["S"]} for number in range(MOST_CANDLE_FILES)
    ]
    assert len(read(data={"files": files, "bars": 5, "holes": 0}).data["files"]) == 50_000
    with pytest.raises(Unsound, match="files"):
        read(data={"files": [*files, files[0]]})


@pytest.mark.parametrize(
    "fields",
    [
        {"state": "perfect"},
        {"exit_code": -1},
        {"exit_code": 10**9},
        {"error": "it failed"},
        {"error": {"code": "101"}},
        {"error": {"what": "x" * (MOST_TEXT + 1)}},
        {"models": {"a": 1}},
        {"models": [5]},
        {"models": [{**MODEL, "sha256": "../../etc/passwd"}]},
        {"models": [{**MODEL, "piece": ["A"]}]},
        {"models": [{**MODEL, "fold": "1"}]},
        {"models": [{key: value for key, value in MODEL.items() if key != "piece"}]},
        {"models": [{**MODEL, "key": f"{PREFIX}lstm-direction_OTHER_1m.safetensors"}]},
        {"models": [{**MODEL, "metrics": [1]}]},
        {"models": [{**MODEL, "metrics": {"about": ABOUT, "test": ".."}}]},
        {"models": [{**MODEL, "metrics": {"test": [1]}}]},
        {"models": [{**MODEL, "metrics": {"about": ABOUT, "validation": 5}}]},
        {"models": [{**MODEL, "metrics": {"about": {"headline": "auc"}}}]},
        {"models": [{**MODEL, "metrics": {"about": {**ABOUT, "headline": "loss"}}}]},
        {"models": [{**MODEL, "metrics": {"about": {**ABOUT, "proper": ["loss"]}}}]},
        {"models": [{**MODEL, "metrics": {"about": {**ABOUT, "proper": 5}}}]},
        {"models": [{**MODEL, "metrics": {"about": {**ABOUT, "table": [{**TABLE[0], "value": "auc"}]}}}]},
        {"models": [{**MODEL, "metrics": {"about": {**ABOUT, "table": [{**TABLE[0], "value": [["auc"]]}]}}}]},
        {"models": [{**MODEL, "metrics": {"about": {**ABOUT, "table": TABLE * 99}}}]},
        {"models": [MODEL] * 20_001},
        {"failed": [{**named("A"), "reason": {"deep": 1}}]},
        {"retries": 1e3},
        {"phases": {"train": "9999-12-31T23:59:59Z"}},
        {"phases": {str(number): "2026-11-20T12:00:00Z" for number in range(9)}},
        {"data": {"bars": "many"}},
        {"data": {"files": ["a.parquet"]}},
        {"devices": {"found": -1}},
    ],
    ids=lambda fields: json.dumps(fields)[:60],
)
def test_a_crafted_result_is_one_error(fields):
    with pytest.raises(Unsound):
        read(**fields)


def test_a_path_that_is_a_file_and_a_folder_is_refused():
    def listed(*paths: str) -> list[str]:
        files = [{"file": path, "key": f"{PREFIX}{'ab' * 32}", **OUTPUT} for path in paths]
        return [file["file"] for file in read_outputs(Fields({"files": files}, "it"), prefix=PREFIX)]

    assert listed("a.pt", "b/a", "b/c/d") == ["a.pt", "b/a", "b/c/d"]
    for paths in (("a", "a/b"), ("x/a/b", "x/a")):
        with pytest.raises(Unsound, match="is both a file and a folder"):
            listed(*paths)
